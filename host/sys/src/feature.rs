//! Missing kernel features and privileges, found by trying, each with a remedy.

use crate::port_range;
use crate::socket::stream_socket;
use crate::sockopt::set;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

/// A missing feature that failover needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{feature} is missing: {found}; it needs Linux {kernel} or newer{}", privilege_text(.privilege))]
pub struct Missing {
    /// The feature.
    pub feature: &'static str,
    /// First kernel with the feature.
    pub kernel: &'static str,
    /// Capability that the feature needs, if any.
    pub privilege: Option<&'static str>,
    /// Error of the kernel.
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

/// The features for moving sockets that this host lacks; empty when it has all. The trials change nothing.
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
    fn missing_feature_names_kernel_and_privilege() {
        let error = io::Error::from_raw_os_error(libc::EPERM);
        let missing = Missing::new("restoring sockets", "4.8", Some("CAP_NET_ADMIN"), &error);
        let text = missing.to_string();
        for part in ["restoring sockets", "Linux 4.8", "CAP_NET_ADMIN", "not permitted"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
