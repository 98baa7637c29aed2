//! What the kernel or our privileges lack, found by asking, with a remedy.

use crate::port_range;
use crate::socket::stream_socket;
use crate::sockopt::set;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

/// Something that fail-over needs and that is not there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{feature} is missing: {found}; it needs Linux {kernel} or newer{}", privilege_text(.privilege))]
pub struct Missing {
    /// What it is.
    pub feature: &'static str,
    /// The first kernel that has it.
    pub kernel: &'static str,
    /// The capability that it needs, if any.
    pub privilege: Option<&'static str>,
    /// What the kernel said.
    pub found: String,
}

fn privilege_text(privilege: &Option<&'static str>) -> String {
    privilege.map_or_else(String::new, |name| format!(" and {name}"))
}

impl Missing {
    /// A feature whose trial failed.
    pub fn new(
        feature: &'static str,
        kernel: &'static str,
        privilege: Option<&'static str>,
        found: &io::Error,
    ) -> Missing {
        Missing { feature, kernel, privilege, found: found.to_string() }
    }
}

/// What moving sockets needs and lacks here: empty when all is well. Nothing is changed by asking.
pub fn missing_socket_features() -> Vec<Missing> {
    let nowhere: SocketAddr = ([127, 0, 0, 1], 1).into();
    let admin = Some("CAP_NET_ADMIN");
    let trials: [(&'static str, &'static str, Option<&'static str>, io::Result<()>); 4] = [
        ("restoring sockets (TCP_REPAIR)", "4.8", admin, try_option(libc::IPPROTO_TCP, libc::TCP_REPAIR, 1)),
        (
            "port blocks (IP_LOCAL_PORT_RANGE)",
            "6.3",
            None,
            try_option(libc::SOL_IP, port_range::IP_LOCAL_PORT_RANGE, 0),
        ),
        ("raw probes", "2.2", Some("CAP_NET_RAW"), crate::Prober::new().map(drop)),
        (
            "destroying orphans (CONFIG_INET_DIAG_DESTROY)",
            "4.9",
            admin,
            port_range::destroy(nowhere, nowhere).map(drop),
        ),
    ];
    let missing = |(feature, kernel, privilege, result): (_, _, _, io::Result<()>)| {
        result.err().map(|error| Missing::new(feature, kernel, privilege, &error))
    };
    trials.into_iter().filter_map(missing).collect()
}

fn try_option(level: i32, option: i32, value: u32) -> io::Result<()> {
    let socket = stream_socket(([0, 0, 0, 0], 0).into())?;
    set(socket.as_raw_fd(), level, option, &value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_feature_names_itself_the_kernel_and_the_privilege() {
        let error = io::Error::from_raw_os_error(libc::EPERM);
        let missing = Missing::new("restoring sockets", "4.8", Some("CAP_NET_ADMIN"), &error);
        let text = missing.to_string();
        for part in ["restoring sockets", "Linux 4.8", "CAP_NET_ADMIN", "not permitted"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
