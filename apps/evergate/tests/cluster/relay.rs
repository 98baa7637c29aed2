//! A wire between two nodes that can say everything twice, later, or wrongly: each node takes the relay's address for the
//! other's.

use crate::world::{PORT, outside};
use evergate_bpf::netns::Namespace;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Where node 1 finds node 2, and where node 2 finds node 1, on the outside.
pub(crate) const FOR_ONE: u8 = 201;
pub(crate) const FOR_TWO: u8 = 202;
/// How many datagrams are kept, to be said again: most of them later than what a replay window remembers.
const KEPT_MAX: usize = 3000;

/// The running wire.
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
    /// Between the nodes 1 and 2, in the switch's namespace. It passes everything on, and no more.
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
        // What node 1 sends to "node 2" goes to node 2, from the address that is node 1 to it; and back.
        let ways = [(to_two.clone(), to_one.clone(), 2), (to_one, to_two, 1)];
        let threads = ways.map(|(from, by, to)| {
            let (shared, to) = (shared.clone(), SocketAddr::new(outside(to), PORT));
            std::thread::spawn(move || pass(&from, &by, to, &shared))
        });
        Relay { shared, threads: threads.into() }
    }

    /// Begins to disturb.
    pub(crate) fn turn_hostile(&self) {
        self.shared.hostile.store(true, Ordering::Relaxed);
    }

    /// Datagrams that were not what a node had just said.
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
    let mut reported = 0usize;
    while !shared.ends.load(Ordering::Relaxed) {
        let Ok((length, _)) = from.recv_from(&mut buffer) else { continue };
        let datagram = buffer[..length].to_vec();
        let _ = by.send_to(&datagram, to);
        reported += 1;
        if shared.hostile.load(Ordering::Relaxed) {
            for attack in attacks(&datagram, &kept, reported) {
                let _ = by.send_to(&attack, to);
                shared.attacks.fetch_add(1, Ordering::Relaxed);
            }
        }
        if kept.len() < KEPT_MAX {
            kept.push(datagram);
        }
    }
}

/// The same again, something old, one bit wrong, cut, and noise.
fn attacks(datagram: &[u8], kept: &[Vec<u8>], reported: usize) -> Vec<Vec<u8>> {
    let mut all = vec![datagram.to_vec()];
    all.extend(kept.get(reported / 8 % kept.len().max(1)).cloned());
    let mut flipped = datagram.to_vec();
    let bit = reported * 7 % (flipped.len() * 8);
    flipped[bit / 8] ^= 1 << (bit % 8);
    all.push(flipped);
    all.push(datagram[..reported % datagram.len()].to_vec());
    all.push((0..reported % 200).map(|at| (at * 31 + reported) as u8).collect());
    all
}
