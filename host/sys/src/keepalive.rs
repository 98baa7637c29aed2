//! TCP keep-alive, which detects a peer that has vanished without FIN or RST.

use crate::sockopt::set;
use evergate_base::net::Keepalive;
use std::io;
use std::os::fd::RawFd;

/// Number of probes within the time after which the first one is sent.
const PROBES_PER_IDLE: u16 = 4;

/// Sets or clears keep-alive. Accepted sockets inherit it from the socket that listens.
pub fn set_keepalive(fd: RawFd, keepalive: Option<Keepalive>) -> io::Result<()> {
    let tcp = |option, value: i32| set(fd, libc::IPPROTO_TCP, option, &value);
    if let Some(Keepalive { idle_s, .. }) = keepalive {
        tcp(libc::TCP_KEEPIDLE, idle_s.into())?;
        tcp(libc::TCP_KEEPINTVL, (idle_s / PROBES_PER_IDLE).max(1).into())?;
    }
    let timeout_ms = keepalive.map_or(0, |keepalive| keepalive.timeout_ms.min(i32::MAX as u32));
    set(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &timeout_ms)?;
    set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &i32::from(keepalive.is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockopt::get_u32;
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    /// SO_KEEPALIVE, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_USER_TIMEOUT.
    fn options(fd: RawFd) -> [u32; 4] {
        let tcp = |option| get_u32(fd, libc::IPPROTO_TCP, option).unwrap();
        let on = get_u32(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE).unwrap();
        [on, tcp(libc::TCP_KEEPIDLE), tcp(libc::TCP_KEEPINTVL), tcp(libc::TCP_USER_TIMEOUT)]
    }

    #[test]
    fn accepted_socket_inherits_keepalive_of_listener() {
        let listener = crate::listen("127.0.0.1:0".parse().unwrap(), 8).unwrap();
        let at = crate::local_address(listener.as_raw_fd()).unwrap();
        let accepted = || {
            let client = std::net::TcpStream::connect(at).unwrap();
            let mut epoll = crate::Epoll::new(1).unwrap();
            epoll.add_input(listener.as_raw_fd(), 1).unwrap();
            epoll.wait(10_000).unwrap();
            let socket = crate::accept(listener.as_raw_fd()).unwrap().unwrap().0;
            (options(socket.as_raw_fd()), client)
        };
        assert_eq!((accepted().0[0], accepted().0[3]), (0, 0));
        for (idle_s, interval_s) in [(60, 15), (3, 1), (32_767, 8191)] {
            set_keepalive(listener.as_raw_fd(), Some(Keepalive { idle_s, timeout_ms: 120_000 })).unwrap();
            assert_eq!(accepted().0, [1, u32::from(idle_s), interval_s, 120_000]);
        }
        set_keepalive(listener.as_raw_fd(), None).unwrap();
        assert_eq!((accepted().0[0], accepted().0[3]), (0, 0));
    }

    #[test]
    fn keepalive_timeout_outlasts_patience_and_never_shrinks() {
        for (timeout_ms, patience_s, expected) in [
            (120_000, 30, 120_000),
            (120_000, 60, 120_000),
            (120_000, 61, 121_000),
            (5, 604_800, 604_860_000),
        ] {
            let mut keepalive = Keepalive { idle_s: 60, timeout_ms };
            keepalive.outlast(Duration::from_secs(patience_s));
            assert_eq!(keepalive.timeout_ms, expected);
        }
    }

    #[test]
    fn connecting_socket_keeps_keepalive_when_established() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = crate::connect(listener.local_addr().unwrap()).unwrap();
        set_keepalive(socket.as_raw_fd(), Some(Keepalive { idle_s: 7, timeout_ms: 14_000 })).unwrap();
        let _accepted = listener.accept().unwrap();
        assert_eq!(options(socket.as_raw_fd()), [1, 7, 1, 14_000]);
    }
}
