//! Listening sockets: bound once per worker, and never beside those of another process.
//!
//! Workers share a port (SO_REUSEPORT), and the kernel would let a second process of the same user share it as well,
//! and divide the clients between them. So the first socket at an address checks that no other socket listens there,
//! and the others share with it. Where this process listens already, as when a reload renames a listener or gives its
//! port to the metrics, no check is needed.

use crate::daemon::keepalive;
use crate::worker::{LinuxListener, ListenerSocket};
use anyhow::{Result, anyhow};
use evergate_config::Config;
use evergate_config::model::{ListenAddress, Listener};
use evergate_sys::{Keepalive, Listening};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

const BACKLOG: i32 = 4096;

/// Binds all listeners of a configuration, once per worker.
#[expect(clippy::type_complexity, reason = "where each is bound, and the sockets by worker")]
pub(crate) fn bind_all(
    config: &Config,
    workers: usize,
) -> Result<(Vec<(String, SocketAddr)>, Vec<Vec<ListenerSocket>>)> {
    let mut sockets: Vec<Vec<ListenerSocket>> = (0..workers).map(|_| Vec::new()).collect();
    let mut bound: Vec<(String, SocketAddr)> = Vec::new();
    let mut ours = Vec::new();
    for listener in &config.listeners {
        let at = bind(listener, &mut sockets, &ours, keepalive(&config.timeouts))?;
        ours.push(at);
        bound.push((listener.name.clone(), at.socket));
    }
    Ok((bound, sockets))
}

/// Binds a listener once per worker, on the same port. `ours`: where this process listens already.
pub(crate) fn bind(
    listener: &Listener,
    sockets: &mut [Vec<ListenerSocket>],
    ours: &[ListenAddress],
    keepalive: Option<Keepalive>,
) -> Result<ListenAddress> {
    let mut at = listener.address;
    for (index, list) in sockets.iter_mut().enumerate() {
        let is_first = index == 0 && !is_ours(at, ours);
        let (socket, bound) = open(at, is_first, BACKLOG, keepalive).map_err(|refusal| {
            anyhow!("listener \"{}\" cannot listen on \"{}\": {refusal}", listener.name, listener.address)
        })?;
        at = bound;
        let local = (!at.socket.ip().is_unspecified()).then_some(at.socket);
        list.push(ListenerSocket { name: listener.name.clone(), socket: LinuxListener(socket), local });
    }
    Ok(at)
}

/// Opens a socket at an address, or on all of IPv4 where both families are configured and the machine has no IPv6.
/// Returns the bound address, or the problem and its remedy. `is_first`: no other socket may listen there.
pub(crate) fn open(
    address: ListenAddress,
    is_first: bool,
    backlog: i32,
    keepalive: Option<Keepalive>,
) -> Result<(OwnedFd, ListenAddress), String> {
    let listen = |at: ListenAddress| {
        let how = Listening { both_families: at.both_families, is_first, backlog, keepalive };
        let socket = evergate_sys::listen_as(at.socket, how)?;
        let bound = evergate_sys::local_address(socket.as_raw_fd())?;
        Ok((socket, ListenAddress { socket: bound, ..at }))
    };
    let error = match listen(address) {
        Ok(listening) => return Ok(listening),
        Err(error) => error,
    };
    match address.ipv4_fallback().filter(|_| is_without_ipv6(&error)) {
        None => Err(explained(&error, address, is_first)),
        Some(fallback) => {
            let fallback = ListenAddress { socket: fallback, both_families: false };
            listen(fallback).map_err(|second: io::Error| {
                format!("[::]: {error}; {fallback}: {}", explained(&second, fallback, is_first))
            })
        }
    }
}

/// Whether this process listens at an address, or at one that takes the same connections.
pub(crate) fn is_ours(address: ListenAddress, ours: &[ListenAddress]) -> bool {
    ours.iter().any(|known| known.meets(address))
}

/// Whether the error means a machine without IPv6. Any other error concerns the address itself.
fn is_without_ipv6(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

/// The error with a remedy that fits it. `is_first`: this process does not listen there yet.
fn explained(error: &io::Error, address: ListenAddress, is_first: bool) -> String {
    let port = address.socket.port();
    let remedy = match error.raw_os_error() {
        Some(libc::EADDRINUSE) if !is_first => {
            format!(
                "this process listens on that port itself: with `node.user` it is no longer the user that bound it, \
                 and a restart changes the address; without, another one listens there too, see `ss -ltnp 'sport = \
                 :{port}'`"
            )
        }
        Some(libc::EADDRINUSE) => {
            format!(
                "a process listens there, see `ss -ltnp 'sport = :{port}'`: end it, or choose another address"
            )
        }
        Some(libc::EACCES) => {
            "ports below 1024 need a capability: give the process CAP_NET_BIND_SERVICE, start it as root with \
             node.user, or choose a port from 1024 on; where node.user is set, a restart binds it"
                .to_owned()
        }
        Some(libc::EADDRNOTAVAIL) => {
            format!("no interface has this address: give it to one, or write \":{port}\" for all addresses")
        }
        Some(libc::EAFNOSUPPORT) => {
            format!("this machine has no IPv6: write \"0.0.0.0:{port}\", or an IPv4 address of it")
        }
        _ => "choose another address".to_owned(),
    };
    format!("{error}; {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn error(number: i32) -> io::Error {
        io::Error::from_raw_os_error(number)
    }

    #[test]
    fn only_a_machine_without_ipv6_gets_ipv4_in_its_place() {
        for number in [libc::EADDRINUSE, libc::EACCES, libc::EMFILE] {
            assert!(!is_without_ipv6(&error(number)));
        }
        assert!(is_without_ipv6(&error(libc::EAFNOSUPPORT)) && is_without_ipv6(&error(libc::EADDRNOTAVAIL)));
    }

    #[test]
    fn remedy_fits_the_error() {
        let remedy = |number| explained(&error(number), ListenAddress::any(443), true);
        for (number, part) in [
            (libc::EADDRINUSE, "sport = :443"),
            (libc::EACCES, "CAP_NET_BIND_SERVICE"),
            (libc::EADDRNOTAVAIL, "no interface"),
            (libc::EAFNOSUPPORT, "0.0.0.0:443"),
        ] {
            let text = remedy(number);
            assert!(text.contains(part), "{text}");
            assert_eq!(text.contains("CAP_NET"), number == libc::EACCES, "{text}");
        }
        let own = explained(&error(libc::EADDRINUSE), ListenAddress::any(443), false);
        assert!(own.contains("a restart changes") && !own.contains("end it"), "{own}");
    }

    #[test]
    fn address_in_use_is_no_reason_for_ipv4_only() {
        let Ok((_there, at)) = open(ListenAddress::any(0), true, 8, None) else { panic!("no port at all") };
        if at.socket.is_ipv4() {
            assert!(std::env::var_os("CI").is_none(), "in CI no test is skipped, and this one needs IPv6");
            // Not by `eprintln!`, which the harness keeps for tests that fail.
            return drop(writeln!(io::stderr(), "skipped: this machine has no IPv6"));
        }
        let refusal = open(ListenAddress::any(at.socket.port()), true, 8, None).unwrap_err();
        assert!(refusal.contains("ss -ltnp") && !refusal.contains("0.0.0.0"), "{refusal}");
    }

    #[test]
    fn address_is_ours_when_it_accepts_the_same_connections() {
        let at = |text: &str| ListenAddress { socket: text.parse().unwrap(), both_families: false };
        let ours = [at("127.0.0.1:80"), ListenAddress::any(81), at("[::]:82"), at("0.0.0.0:83")];
        for (text, expected) in [
            ("127.0.0.1:80", true),
            ("0.0.0.0:80", true),
            ("127.0.0.2:80", false),
            ("127.0.0.1:81", true),
            ("[::1]:81", true),
            ("[::1]:82", true),
            ("127.0.0.1:82", false),
            ("0.0.0.0:82", false),
            ("[::1]:83", false),
            ("127.0.0.1:84", false),
        ] {
            assert_eq!(is_ours(at(text), &ours), expected, "{text}");
        }
        assert!(is_ours(ListenAddress::any(82), &ours) && is_ours(ListenAddress::any(83), &ours));
    }
}
