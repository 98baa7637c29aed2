//! Orphaned sockets of a process that ended without closing them in order.

use crate::port_range;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// States of `/proc/net/tcp` in which a socket without a process is an orphan: FIN_WAIT1 and 2, LAST_ACK, CLOSING. In
/// other states such a socket is a connection in a listener's queue, or in TIME_WAIT.
const STATES: [&str; 4] = ["04", "05", "09", "0B"];

/// Destroys every orphan of this network namespace with one of these local addresses; returns their number. The gate
/// stops their FINs, and for as long as the kernel repeats these the peers would reach the orphan instead of the new
/// listener. Needs `CAP_NET_ADMIN`; the gate must withhold their RSTs.
///
/// Does nothing before Linux 6.11, where a destroyed orphan stays forever instead of for a minute or two.
pub fn destroy_orphans(of: &[IpAddr]) -> io::Result<usize> {
    if !ends_orphans(&std::fs::read_to_string("/proc/sys/kernel/osrelease")?) {
        return Ok(0);
    }
    let mut destroyed = 0;
    for file in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        let text = match std::fs::read_to_string(file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue, // a kernel without IPv6
            text => text?,
        };
        for (local, remote) in text.lines().skip(1).filter_map(orphan) {
            if of.contains(&local.ip()) && port_range::destroy(local, remote)? {
                destroyed += 1;
            }
        }
    }
    Ok(destroyed)
}

/// Whether a kernel of this release ends a destroyed orphan ("tcp: fix forever orphan socket caused by tcp_abort").
fn ends_orphans(release: &str) -> bool {
    let mut numbers = release.trim().split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 11)
}

/// Local and remote address of a line's socket, if it is an orphan.
fn orphan(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, local, remote, state, _, _, _, _, _, inode, ..] = fields[..] else { return None };
    (STATES.contains(&state) && inode == "0").then_some(())?;
    Some((address(local)?, address(remote)?))
}

/// Parses `0100007F:1F90`: words of the address in the machine's byte order, then the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let words = (0..ip.len()).step_by(8).map(|at| u32::from_str_radix(ip.get(at..at + 8)?, 16).ok());
    let bytes: Vec<u8> =
        words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let ip = match bytes.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        _ => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn orphans_are_distinguished_from_other_lines() {
        let line = |state: &str, inode: &str| {
            format!(
                "   3: 6400480A:1F90 0748000A:9C41 {state} 00000000:00000000 01:00000014 \
                 00000000     0        0 {inode} 4 00 20 4 30 10 -1"
            )
        };
        let ends = (SocketAddr::from(([10, 72, 0, 100], 8080)), SocketAddr::from(([10, 0, 72, 7], 40_001)));
        assert_eq!(orphan(&line("04", "0")), Some(ends));
        assert_eq!(orphan(&line("09", "0")), Some(ends));
        assert_eq!(orphan(&line("04", "77")), None, "a process has it");
        for state in ["01", "03", "06", "0A"] {
            assert_eq!(orphan(&line(state, "0")), None, "{state}");
        }
        for (release, ends) in
            [("6.11.0", true), ("6.18-1", true), ("7.0.1", true), ("6.8.0-45", false), ("", false)]
        {
            assert_eq!(ends_orphans(release), ends, "{release}");
        }
        assert_eq!(orphan("  sl  local_address rem_address   st"), None);
        assert_eq!(
            address("0000000000000000FFFF00000100007F:0050"),
            Some(SocketAddr::from(([127, 0, 0, 1], 80)))
        );
        let v6 = address("000072FD000000000000000064000000:01BB").unwrap();
        assert_eq!(v6, "[fd72::64]:443".parse().unwrap());
        for broken in
            ["", "01", "0100007F", "0100007G:0050", "010000:0050", "0100007F:", "0100007F0100007F:0050"]
        {
            assert_eq!(address(broken), None, "{broken}");
        }
    }
}
