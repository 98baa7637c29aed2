//! What the agent must not wait for: writing lines, asking the kernel for neighbours, looking through tables.
//!
//! Bound: so many lines may wait; more are lost, and their number is told.

use super::mailbox::Mailbox;
use super::routes::DefaultRoutes;
use super::tc_filters::Filters;
use super::witness_ping::WitnessRoutes;
use super::{Interface, host_setup};
use crate::control::console::{info, warning};
use evergate_bpf::{Leases, PacketGate};
use evergate_membership::NodeId;
use evergate_sys::Epoll;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Lines that may wait.
const LINES_MAX: usize = 256;
/// Between two looks at neighbours and routes, while some are unknown or gone, and when all are there; and between two at what else
/// may have been taken away.
const CHECK_SOON: Duration = Duration::from_millis(50);
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// A connection request that has come to nothing for so long gives its place in the gate back: longer than the kernel
/// repeats a SYN-ACK.
const UNFINISHED_NS: u64 = 130_000_000_000;
/// The same while many slots are in use: who has not answered the SYN-ACK by then, which was said three times, never will.
const UNANSWERED_NS: u64 = 5_000_000_000;
/// Between two looks at those; sooner while the last one found some and more than this share of the slots is in use, in percent.
const RECLAIM: Duration = Duration::from_secs(10);
const RECLAIM_SOON: Duration = Duration::from_secs(1);
const MANY: usize = 25;

/// From this share of the gate's slots on the operator hears of it, in percent; and again once it was below the second.
const FULL: usize = 90;
const NOT_FULL: usize = 80;

/// A line for the operator.
pub(crate) enum Line {
    Info(String),
    Warning(String),
    /// The agent has ended.
    End,
}

/// The agent's end.
pub(crate) struct Housekeeper {
    mailbox: Arc<Mailbox<Line>>,
    unsent: Vec<Line>,
    lost: u64,
    thread: Option<JoinHandle<()>>,
}

/// Where the other nodes are.
pub(crate) struct Neighbourhood {
    pub(crate) interface: Interface,
    pub(crate) peers: BTreeMap<NodeId, IpAddr>,
}

impl Housekeeper {
    /// Starts the thread, which runs until [`Keeper::finish`].
    /// `addresses`: those that move, which the host must have.
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

    /// Never waits. What cannot be handed over now goes with the next line, or with [`Keeper::hand_over`].
    pub(crate) fn log(&mut self, line: Line) {
        if self.unsent.len() < LINES_MAX {
            self.unsent.push(line);
        } else {
            self.lost += 1;
        }
    }

    /// Hands over what is to be said; once a turn.
    pub(crate) fn flush_log(&mut self) {
        if self.lost > 0 && self.unsent.len() < LINES_MAX {
            let lost = std::mem::take(&mut self.lost);
            self.unsent
                .push(Line::Warning(format!("cluster: {lost} messages were lost: they came too fast")));
        }
        self.mailbox.try_post(&mut self.unsent);
    }

    /// Waits until everything is said.
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
    /// The operator knows that the gate is nearly full.
    full: bool,
    /// ... and that an address is missing, or that connections are tracked strictly.
    bare: bool,
    strict: bool,
}

impl Work {
    fn run(mut self, epoll: &mut Epoll, mailbox: &Mailbox<Line>) {
        let (mut look_at, mut tend_at) = (Instant::now(), Instant::now());
        let mut reclaim_at = tend_at + RECLAIM;
        loop {
            let until = look_at.min(tend_at).min(reclaim_at).saturating_duration_since(Instant::now());
            // An epoll that cannot wait is looked at as often as it would.
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
            if now >= look_at {
                let (met, leads) = (self.update_neighbours(), self.beyond.check());
                look_at = now + if met && leads { CHECK_EVERY } else { CHECK_SOON };
            }
            // Not as often as one looks for a machine that may never come.
            if now >= tend_at {
                tend_at = now + CHECK_EVERY;
                self.keep_addresses();
                self.keep_tracking();
                self.witnesses.resolve();
                self.filters.keep();
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

    /// Whoever took an address that moves off this host made it deaf for its clients, and told nobody.
    fn keep_addresses(&mut self) {
        match host_setup::add_addresses(&self.addresses) {
            Ok(()) => self.bare = false,
            Err(error) if !std::mem::replace(&mut self.bare, true) => {
                warning(format_args!("cluster: clients of this node hear nothing from it: {error:#}"));
            }
            Err(_) => {}
        }
    }

    fn keep_tracking(&mut self) {
        match host_setup::loosen_tracking() {
            Ok(()) => self.strict = false,
            Err(error) if !std::mem::replace(&mut self.strict, true) => {
                warning(format_args!("cluster: connections that come back here may stand still: {error:#}"));
            }
            Err(_) => {}
        }
    }

    /// Tells the gate the cards of the other nodes, which the kernel knows from sending heartbeats to them. Whether all are
    /// known.
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

/// What the operator should hear: without a slot a connection does not start, and nobody is told.
fn slot_warning(reported: &mut bool, in_use: usize, max: usize) -> Option<String> {
    let bound = if *reported { NOT_FULL } else { FULL };
    let full = in_use * 100 >= max * bound;
    let known = std::mem::replace(reported, full);
    (full && !known).then(|| {
        format!(
            "cluster: {in_use} of {max} TCP connections that the packet filter can carry are in use; beyond that new ones \
             get no answer: raise cluster.flows_max (a restart), or find out who holds them"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_that_fills_is_told_of_once_each_time() {
        let mut full = false;
        let reported =
            [89, 90, 95, 85, 99, 79, 90].map(|in_use| slot_warning(&mut full, in_use, 100).is_some());
        assert_eq!(reported, [false, true, false, false, false, false, true]);
    }
}
