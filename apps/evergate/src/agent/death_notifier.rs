//! The last words of a node whose process is gone.
//!
//! A process that is killed cannot say so, and the others must wait until its leases are surely over. A second process,
//! made at the start ([`evergate_sys::Survivor`]), sees the end at once: it revokes the leases in the kernel, so that nothing
//! leaves this node any more, and only then sends the farewell that the agent has left with it. Without it, or when the
//! whole machine is gone, the others find out by silence.
//!
//! Invariant: nothing of a farewell is sent before every lease is revoked; it says that the gate is closed for good.

use super::event_loop::Link;
use evergate_bpf::Leases;
use evergate_membership::Transmit;
use evergate_sys::Survivor;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// A datagram may be lost: so often it is sent, this far apart.
const TIMES: usize = 3;
const APART: Duration = Duration::from_millis(2);

/// What is to be said when this process is gone.
pub(super) struct DeathNotifier {
    survivor: Option<Survivor>,
    word: Vec<u8>,
}

impl DeathNotifier {
    /// Starts the other process.
    pub(super) fn new(links: &[Link; 2], leases: &Leases) -> std::io::Result<DeathNotifier> {
        let leases = leases.clone();
        let sockets = [&links[0].datagrams.urgent, &links[1].datagrams.urgent];
        let keep = sockets.map(AsRawFd::as_raw_fd);
        let survivor = Survivor::make(&keep, |word| {
            leases.revoke_all();
            for _ in 0..TIMES {
                send_all(word, sockets);
                std::thread::sleep(APART);
            }
        })?;
        Ok(DeathNotifier { survivor: Some(survivor), word: Vec::new() })
    }

    /// Leaves a farewell, which replaces the one before: it is believed for a second.
    pub(super) fn leave(&mut self, links: &[Link; 2], farewell: &[Transmit]) {
        let Some(survivor) = &mut self.survivor else { return };
        self.word.clear();
        for transmit in farewell {
            let Some(index) = links.iter().position(|link| link.path == transmit.path) else { continue };
            let Some(to) = links[index].peers.get(&transmit.to) else { continue };
            put(&mut self.word, index as u8, *to, &transmit.bytes);
        }
        let _ = survivor.leave_word(&self.word); // nobody to say it to, or too much: silence must tell
    }

    /// This process ends in order.
    pub(super) fn dismiss(self) {
        if let Some(survivor) = self.survivor {
            survivor.dismiss();
        }
    }
}

/// One datagram: link, family, address, port, length, bytes.
fn put(word: &mut Vec<u8>, link: u8, to: SocketAddr, bytes: &[u8]) {
    word.push(link);
    match to.ip() {
        IpAddr::V4(ip) => {
            word.push(4);
            word.extend_from_slice(&ip.octets());
        }
        IpAddr::V6(ip) => {
            word.push(6);
            word.extend_from_slice(&ip.octets());
        }
    }
    word.extend_from_slice(&to.port().to_be_bytes());
    word.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    word.extend_from_slice(bytes);
}

/// The next datagram of a word, and the rest of it. Allocates nothing: it is read by a process that was just forked.
fn take(word: &[u8]) -> Option<(u8, SocketAddr, &[u8], &[u8])> {
    let ([link, family], rest) = word.split_first_chunk()?;
    let (ip, rest) = match family {
        4 => rest.split_first_chunk::<4>().map(|(ip, rest)| (IpAddr::from(*ip), rest))?,
        _ => rest.split_first_chunk::<16>().map(|(ip, rest)| (IpAddr::from(*ip), rest))?,
    };
    let (port, rest) = rest.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (bytes, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
    Some((*link, SocketAddr::new(ip, u16::from_be_bytes(*port)), bytes, rest))
}

fn send_all(mut word: &[u8], sockets: [&UdpSocket; 2]) {
    while let Some((link, to, bytes, rest)) = take(word) {
        if let Some(socket) = sockets.get(usize::from(link)) {
            let _ = socket.send_to(bytes, to); // sent again, and silence tells at last
        }
        word = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_read_as_it_was_written_and_a_torn_one_up_to_the_tear() {
        let to = ["192.0.2.1:7400", "[2001:db8::1]:7401"].map(|text| text.parse::<SocketAddr>().unwrap());
        let mut word = Vec::new();
        put(&mut word, 0, to[0], b"one");
        put(&mut word, 1, to[1], b"");
        let (link, address, bytes, rest) = take(&word).unwrap();
        assert_eq!((link, address, bytes), (0, to[0], &b"one"[..]));
        let (link, address, bytes, rest) = take(rest).unwrap();
        assert_eq!((link, address, bytes, rest), (1, to[1], &b""[..], &b""[..]));
        assert!(take(rest).is_none());
        let first = 2 + 4 + 2 + 2 + b"one".len();
        assert!((0..first).all(|cut| take(&word[..cut]).is_none()));
    }
}
