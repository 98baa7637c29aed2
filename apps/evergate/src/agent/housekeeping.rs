//! Work that the agent must not wait for: log lines, neighbours in the kernel, checks of tables.
//!
//! Bound: [`LINES_MAX`] lines may wait. Further lines are lost, and their number is logged.

use super::host_setup;
use super::mailbox::Mailbox;
use super::routes::DefaultRoutes;
use super::tc_filters::Filters;
use super::witness_ping::WitnessRoutes;
use crate::control::console::{info, warning};
use evergate_bpf::{Leases, PacketGate};
use evergate_membership::NodeId;
use evergate_sys::Epoll;
use evergate_worker::Interface;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bound on the waiting lines.
const LINES_MAX: usize = 256;
/// Time between two checks of neighbours and routes while some are unknown or missing.
const CHECK_SOON: Duration = Duration::from_millis(50);
/// Time between two checks while none is missing, and between two checks of other settings.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// Time after which an unfinished connection request releases its slot in the gate, in nanoseconds: longer than the
/// kernel repeats a SYN-ACK.
const UNFINISHED_NS: u64 = 130_000_000_000;
/// The same time while many slots are in use: three SYN-ACKs without an answer, so no answer will come.
const UNANSWERED_NS: u64 = 5_000_000_000;
/// Time between two searches for unfinished requests.
const RECLAIM: Duration = Duration::from_secs(10);
/// The same time while the last search found some and more than `MANY` percent of the slots are in use.
const RECLAIM_SOON: Duration = Duration::from_secs(1);
/// Used slots from which on they count as many, in percent.
const MANY: usize = 25;

/// Used slots from which on a warning is logged, in percent.
const FULL: usize = 90;
/// Used slots below which the warning may be logged again, in percent.
const NOT_FULL: usize = 80;

/// A line for the operator.
pub(crate) enum Line {
    Info(String),
    Warning(String),
    /// Ends the thread.
    End,
}

/// The agent's side of the thread.
pub(crate) struct Housekeeper {
    mailbox: Arc<Mailbox<Line>>,
    unsent: Vec<Line>,
    lost: u64,
    thread: Option<JoinHandle<()>>,
}

/// The other nodes' addresses on one interface.
pub(crate) struct Neighbourhood {
    pub(crate) interface: Interface,
    pub(crate) peers: BTreeMap<NodeId, IpAddr>,
}

impl Housekeeper {
    /// Starts the thread, which runs until [`Housekeeper::finish`]. `addresses`: the movable addresses, which the host
    /// must have.
    pub(crate) fn start(
        filters: Filters,
        places: Vec<Neighbourhood>,
        addresses: Vec<IpAddr>,
        witnesses: WitnessRoutes,
        beyond: DefaultRoutes,
    ) -> io::Result<Housekeeper> {
        let mailbox = Arc::new(Mailbox::new()?);
        let mut epoll = Epoll::new(1)?;
        epoll.add_input(mailbox.waker().fd(), 0)?;
        let read = mailbox.clone();
        let (known, full, bare, strict) = (BTreeMap::new(), false, false, false);
        let gate = filters.gate();
        let work = move || {
            Work { gate, filters, places, addresses, witnesses, beyond, known, full, bare, strict }
                .run(&mut epoll, &read)
        };
        let thread = std::thread::Builder::new().name("housekeeping".to_owned()).spawn(work)?;
        Ok(Housekeeper { mailbox, unsent: Vec::new(), lost: 0, thread: Some(thread) })
    }

    /// Queues a line without waiting. It is sent with [`Housekeeper::flush_log`], or with a later line.
    pub(crate) fn log(&mut self, line: Line) {
        if self.unsent.len() < LINES_MAX {
            self.unsent.push(line);
        } else {
            self.lost += 1;
        }
    }

    /// Sends the queued lines to the thread; once a turn.
    pub(crate) fn flush_log(&mut self) {
        if self.lost > 0 && self.unsent.len() < LINES_MAX {
            let lost = std::mem::take(&mut self.lost);
            self.unsent
                .push(Line::Warning(format!("cluster: {lost} messages were lost: they came too fast")));
        }
        self.mailbox.try_post(&mut self.unsent);
    }

    /// Waits until all lines are written.
    pub(crate) fn finish(mut self) {
        for line in self.unsent.drain(..).chain([Line::End]) {
            self.mailbox.post(line);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Work {
    gate: Arc<PacketGate>,
    filters: Filters,
    places: Vec<Neighbourhood>,
    known: BTreeMap<(u32, NodeId), [u8; 6]>,
    addresses: Vec<IpAddr>,
    witnesses: WitnessRoutes,
    beyond: DefaultRoutes,
    /// The warning that the gate is nearly full is logged.
    full: bool,
    /// The warning that an address is missing is logged.
    bare: bool,
    /// The warning that connections are tracked strictly is logged.
    strict: bool,
}

impl Work {
    fn run(mut self, epoll: &mut Epoll, mailbox: &Mailbox<Line>) {
        let (mut neighbours_at, mut check_at) = (Instant::now(), Instant::now());
        let mut reclaim_at = check_at + RECLAIM;
        loop {
            let until = neighbours_at.min(check_at).min(reclaim_at).saturating_duration_since(Instant::now());
            // If the wait fails, the loop runs on without pause.
            let _ = epoll.wait_us(u64::try_from(until.as_micros()).unwrap_or(u64::MAX).max(1));
            mailbox.waker().drain();
            for line in mailbox.take() {
                match line {
                    Line::Info(text) => info(text),
                    Line::Warning(text) => warning(text),
                    Line::End => return,
                }
            }
            let now = Instant::now();
            if now >= neighbours_at {
                let (complete, leads) = (self.update_neighbours(), self.beyond.check());
                neighbours_at = now + if complete && leads { CHECK_EVERY } else { CHECK_SOON };
            }
            // Less often than the look-up of a machine that may never come.
            if now >= check_at {
                check_at = now + CHECK_EVERY;
                self.check_addresses();
                self.check_tracking();
                self.witnesses.resolve();
                self.filters.check();
            }
            if now >= reclaim_at {
                self.gate.reclaim(Leases::now_ns(), UNFINISHED_NS);
                let many = |(in_use, max): (usize, usize)| in_use * 100 >= max * MANY;
                let flooded = many(self.gate.slots_counted())
                    && self.gate.reclaim_unanswered(Leases::now_ns(), UNANSWERED_NS) > 0;
                reclaim_at = now + if flooded { RECLAIM_SOON } else { RECLAIM };
                let (in_use, max) = self.gate.slots_counted();
                slot_warning(&mut self.full, in_use, max).into_iter().for_each(warning);
            }
        }
    }

    /// Restores movable addresses that were removed from this host. Without one, clients get no answer, and nothing
    /// else shows it.
    fn check_addresses(&mut self) {
        match host_setup::add_addresses(&self.addresses) {
            Ok(()) => self.bare = false,
            Err(error) if !std::mem::replace(&mut self.bare, true) => {
                warning(format_args!("cluster: clients of this node receive nothing: {error:#}"));
            }
            Err(_) => {}
        }
    }

    fn check_tracking(&mut self) {
        match host_setup::loosen_tracking() {
            Ok(()) => self.strict = false,
            Err(error) if !std::mem::replace(&mut self.strict, true) => {
                warning(format_args!(
                    "cluster: connections that return to this node may stand still: {error:#}"
                ));
            }
            Err(_) => {}
        }
    }

    /// Updates the gate's Ethernet addresses of the other nodes, which the kernel knows from sent heartbeats. Whether
    /// all are known.
    fn update_neighbours(&mut self) -> bool {
        let mut all = true;
        for place in &self.places {
            for (peer, ip) in &place.peers {
                let index = place.interface.index;
                let found = evergate_sys::neighbour(index, *ip).ok().flatten();
                all &= found.is_some() || self.known.contains_key(&(index, *peer));
                let Some(mac) = found else { continue };
                if self.known.get(&(index, *peer)) != Some(&mac)
                    && self.gate.set_peer(index, *peer, mac).is_ok()
                {
                    self.known.insert((index, *peer), mac);
                }
            }
        }
        all
    }
}

/// The warning about a nearly full gate: without a slot a connection does not start, and nothing else shows it.
fn slot_warning(reported: &mut bool, in_use: usize, max: usize) -> Option<String> {
    let bound = if *reported { NOT_FULL } else { FULL };
    let full = in_use * 100 >= max * bound;
    let known = std::mem::replace(reported, full);
    (full && !known).then(|| {
        format!(
            "cluster: {in_use} of {max} TCP connections that the packet filter can track are in use; beyond that \
             new ones get no answer: raise cluster.flows_max (a restart), or find out which clients have them"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_gate_is_logged_once_each_time() {
        let mut full = false;
        let reported =
            [89, 90, 95, 85, 99, 79, 90].map(|in_use| slot_warning(&mut full, in_use, 100).is_some());
        assert_eq!(reported, [false, true, false, false, false, false, true]);
    }
}
