//! What the agent must not wait for: writing lines, asking the kernel for neighbours, looking through tables.
//!
//! Bound: so many lines may wait; more are lost, and their number is told.

use super::{Interface, roles};
use crate::control::message::{info, warning};
use evergate_bpf::{Gate, Leases};
use evergate_cluster::NodeId;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Lines that may wait.
const LINES_MAX: usize = 256;
/// Between two looks at neighbours while some are unknown, and when all are known.
const LOOK_SOON: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_secs(1);
/// A connection request that has come to nothing for so long gives its place in the gate back: longer than the kernel
/// repeats a SYN-ACK.
const UNFINISHED_NS: u64 = 130_000_000_000;
/// Between two looks at those.
const RECLAIM: Duration = Duration::from_secs(10);

/// A line for the operator.
pub(crate) enum Line {
    Info(String),
    Warning(String),
}

/// The agent's end.
pub(crate) struct Keeper {
    lines: SyncSender<Line>,
    lost: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

/// Where the other nodes are.
pub(crate) struct Neighbourhood {
    pub(crate) interface: Interface,
    pub(crate) peers: BTreeMap<NodeId, IpAddr>,
}

impl Keeper {
    /// Starts the thread; it ends with this value.
    pub(crate) fn start(gate: Arc<Gate>, places: Vec<Neighbourhood>) -> io::Result<Keeper> {
        let (lines, waiting) = sync_channel(LINES_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let seen = lost.clone();
        let work = move || Work { gate, places, known: BTreeMap::new(), lost: seen }.run(&waiting);
        let thread = std::thread::Builder::new().name("cluster-keeper".to_owned()).spawn(work)?;
        Ok(Keeper { lines, lost, thread: Some(thread) })
    }

    pub(crate) fn say(&self, line: Line) {
        if self.lines.try_send(line).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until everything is said.
    pub(crate) fn finish(mut self) {
        let thread = self.thread.take();
        drop(self);
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

struct Work {
    gate: Arc<Gate>,
    places: Vec<Neighbourhood>,
    known: BTreeMap<(u32, NodeId), [u8; 6]>,
    lost: Arc<AtomicU64>,
}

impl Work {
    fn run(mut self, lines: &Receiver<Line>) {
        let (mut look_at, mut reclaim_at) = (Instant::now(), Instant::now() + RECLAIM);
        loop {
            let until = look_at.min(reclaim_at).saturating_duration_since(Instant::now());
            match lines.recv_timeout(until) {
                Ok(Line::Info(text)) => info(text),
                Ok(Line::Warning(text)) => warning(text),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = Instant::now();
            if now >= look_at {
                look_at = now + if self.look() { LOOK } else { LOOK_SOON };
                let lost = self.lost.swap(0, Ordering::Relaxed);
                if lost > 0 {
                    warning(format_args!("cluster: {lost} messages were lost because they came too fast"));
                }
            }
            if now >= reclaim_at {
                reclaim_at = now + RECLAIM;
                self.gate.reclaim(Leases::now_ns(), UNFINISHED_NS);
            }
        }
    }

    /// Tells the gate the cards of the other nodes, which the kernel knows from sending heartbeats to them. Whether all are
    /// known.
    fn look(&mut self) -> bool {
        let mut all = true;
        for place in &self.places {
            for (peer, ip) in &place.peers {
                let index = place.interface.index;
                let found = evergate_sys::neighbour(index, *ip).ok().flatten();
                all &= found.is_some() || self.known.contains_key(&(index, *peer));
                let (Some(mac), Some(node)) = (found, roles::gate_node(*peer)) else { continue };
                if self.known.get(&(index, *peer)) != Some(&mac)
                    && self.gate.set_peer(index, node, mac).is_ok()
                {
                    self.known.insert((index, *peer), mac);
                }
            }
        }
        all
    }
}
