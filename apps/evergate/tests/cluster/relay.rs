//! Relay between two nodes that can repeat, delay and alter datagrams. Each node is configured with the relay's
//! address instead of the other node's.

use crate::world::{PORT, outside};
use evergate_netns::Namespace;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Outside addresses under which node 1 reaches node 2, and node 2 reaches node 1.
pub(crate) const FOR_ONE: u8 = 201;
pub(crate) const FOR_TWO: u8 = 202;
/// Bound on the datagrams kept for replay. Most of them are replayed later than the replay window remembers.
const KEPT_MAX: usize = 3000;

/// Running relay.
pub(crate) struct Relay {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    hostile: AtomicBool,
    ends: AtomicBool,
    attacks: AtomicU64,
}

impl Relay {
    /// Starts the relay between nodes 1 and 2, in the switch's namespace. At first it only forwards.
    pub(crate) fn start(switch: &Namespace) -> Relay {
        for host in [FOR_ONE, FOR_TWO] {
            switch.ip(&format!("addr add {}/24 dev out", outside(host))).unwrap();
        }
        let shared = Arc::new(Shared::default());
        let socket = |host| {
            let socket = switch.run(move || UdpSocket::bind((outside(host), PORT)).unwrap());
            socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            Arc::new(socket)
        };
        let (to_one, to_two) = (socket(FOR_TWO), socket(FOR_ONE));
        // Datagrams of node 1 to "node 2" reach node 2 from the address that node 2 knows as node 1, and vice versa.
        let ways = [(to_two.clone(), to_one.clone(), 2), (to_one, to_two, 1)];
        let threads = ways.map(|(from, by, to)| {
            let (shared, to) = (shared.clone(), SocketAddr::new(outside(to), PORT));
            std::thread::spawn(move || pass(&from, &by, to, &shared))
        });
        Relay { shared, threads: threads.into() }
    }

    /// Starts the attacks.
    pub(crate) fn turn_hostile(&self) {
        self.shared.hostile.store(true, Ordering::Relaxed);
    }

    /// Number of datagrams that were no plain forwards.
    pub(crate) fn attacks(&self) -> u64 {
        self.shared.attacks.load(Ordering::Relaxed)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn pass(from: &UdpSocket, by: &UdpSocket, to: SocketAddr, shared: &Shared) {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let mut buffer = vec![0; 65_536];
    let mut forwarded = 0usize;
    while !shared.ends.load(Ordering::Relaxed) {
        let Ok((length, _)) = from.recv_from(&mut buffer) else { continue };
        let datagram = buffer[..length].to_vec();
        let _ = by.send_to(&datagram, to);
        forwarded += 1;
        if shared.hostile.load(Ordering::Relaxed) {
            for attack in attacks(&datagram, &kept, forwarded) {
                let _ = by.send_to(&attack, to);
                shared.attacks.fetch_add(1, Ordering::Relaxed);
            }
        }
        if kept.len() < KEPT_MAX {
            kept.push(datagram);
        }
    }
}

/// Attacks with a datagram: a duplicate, an old datagram, a flipped bit, a truncation, and noise.
fn attacks(datagram: &[u8], kept: &[Vec<u8>], forwarded: usize) -> Vec<Vec<u8>> {
    let mut all = vec![datagram.to_vec()];
    all.extend(kept.get(forwarded / 8 % kept.len().max(1)).cloned());
    let mut flipped = datagram.to_vec();
    let bit = forwarded * 7 % (flipped.len() * 8);
    flipped[bit / 8] ^= 1 << (bit % 8);
    all.push(flipped);
    all.push(datagram[..forwarded % datagram.len()].to_vec());
    all.push((0..forwarded % 200).map(|at| (at * 31 + forwarded) as u8).collect());
    all
}
