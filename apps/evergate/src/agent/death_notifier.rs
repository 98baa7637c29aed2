//! LEAVE heartbeats of a node whose process has died.
//!
//! A process that is killed cannot send them, and the other nodes must wait until its leases have expired. A second
//! process, forked at the start ([`evergate_sys::Survivor`]), detects the end at once. It revokes the leases in the
//! kernel, so that nothing leaves this node any more, and only then sends the LEAVE that the agent has left with it.
//! Without it, or when the whole machine fails, the other nodes detect the end by silence.
//!
//! Invariant: no LEAVE is sent before every lease is revoked, because it states that the gate is closed permanently.

use super::event_loop::Link;
use evergate_bpf::Leases;
use evergate_membership::Transmit;
use evergate_sys::Survivor;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Number of times that each datagram is sent, because some may be lost.
const TIMES: usize = 3;
/// Time between two sends.
const APART: Duration = Duration::from_millis(2);

/// The process that survives this one, and the datagrams that it will send.
pub(super) struct DeathNotifier {
    survivor: Option<Survivor>,
    message: Vec<u8>,
}

impl DeathNotifier {
    /// Forks the process.
    pub(super) fn new(links: &[Link; 2], leases: &Leases) -> std::io::Result<DeathNotifier> {
        let leases = leases.clone();
        let sockets = [&links[0].datagrams.urgent, &links[1].datagrams.urgent];
        let keep = sockets.map(AsRawFd::as_raw_fd);
        let survivor = Survivor::make(&keep, |message| {
            leases.revoke_all();
            for _ in 0..TIMES {
                send_all(message, sockets);
                std::thread::sleep(APART);
            }
        })?;
        Ok(DeathNotifier { survivor: Some(survivor), message: Vec::new() })
    }

    /// Replaces the LEAVE that the other process holds. Other nodes accept it for a second.
    pub(super) fn leave(&mut self, links: &[Link; 2], heartbeats: &[Transmit]) {
        let Some(survivor) = &mut self.survivor else { return };
        self.message.clear();
        for transmit in heartbeats {
            let Some(index) = links.iter().position(|link| link.path == transmit.path) else { continue };
            let Some(to) = links[index].peers.get(&transmit.to) else { continue };
            put(&mut self.message, index as u8, *to, &transmit.bytes);
        }
        let _ = survivor.leave_word(&self.message); // no peer, or too long: then silence reveals the end
    }

    /// Ends the other process when this one ends in order.
    pub(super) fn dismiss(self) {
        if let Some(survivor) = self.survivor {
            survivor.dismiss();
        }
    }
}

/// Appends a datagram: link, family, address, port, length, bytes.
fn put(message: &mut Vec<u8>, link: u8, to: SocketAddr, bytes: &[u8]) {
    message.push(link);
    match to.ip() {
        IpAddr::V4(ip) => {
            message.push(4);
            message.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            message.push(6);
            message.extend_from_slice(&ip.octets());
        }
    }
    message.extend_from_slice(&to.port().to_be_bytes());
    message.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    message.extend_from_slice(bytes);
}

/// The next datagram of a message, and the rest of the message. Allocates nothing, since a forked process reads it.
fn take(message: &[u8]) -> Option<(u8, SocketAddr, &[u8], &[u8])> {
    let ([link, family], rest) = message.split_first_chunk()?;
    let (ip, rest) = match family {
        4 => rest.split_first_chunk::<4>().map(|(ip, rest)| (IpAddr::from(*ip), rest))?,
        _ => rest.split_first_chunk::<16>().map(|(ip, rest)| (IpAddr::from(*ip), rest))?,
    };
    let (port, rest) = rest.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (bytes, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    Some((*link, SocketAddr::new(ip, u16::from_be_bytes(*port)), bytes, rest))
}

fn send_all(mut message: &[u8], sockets: [&UdpSocket; 2]) {
    while let Some((link, to, bytes, rest)) = take(message) {
        if let Some(socket) = sockets.get(usize::from(link)) {
            let _ = socket.send_to(bytes, to); // sent again, and at last silence reveals the end
        }
        message = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_read_as_written_and_a_cut_one_up_to_the_cut() {
        let to = ["192.0.2.1:7400", "[2001:db8::1]:7401"].map(|text| text.parse::<SocketAddr>().unwrap());
        let mut message = Vec::new();
        put(&mut message, 0, to[0], b"one");
        put(&mut message, 1, to[1], b"");
        let (link, address, bytes, rest) = take(&message).unwrap();
        assert_eq!((link, address, bytes), (0, to[0], &b"one"[..]));
        let (link, address, bytes, rest) = take(rest).unwrap();
        assert_eq!((link, address, bytes, rest), (1, to[1], &b""[..], &b""[..]));
        assert!(take(rest).is_none());
        let first = 2 + 4 + 2 + 2 + b"one".len();
        assert!((0..first).all(|cut| take(&message[..cut]).is_none()));
    }
}
