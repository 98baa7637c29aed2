//! The peers of connections that are taken over are asked what they have, all at once, before their sockets are made.

use super::Cluster;
use super::recovering::{Leg, RecoveringConnection};
use crate::worker::Watchdog;
use evergate_bpf::PeerPosition;
use std::time::{Duration, Instant};

/// Peers are asked so often at most, this far apart; those who have not answered in the time that this takes, or, where to ask
/// them all takes long, when they were asked a few times, do not answer.
const PROBES: usize = 20;
const PROBES_MIN: usize = 3;
const PROBE_EVERY: Duration = Duration::from_millis(2);
const PROBE_SPAN: Duration = Duration::from_millis(40);

/// The peers of connections, as they are asked what they have.
pub(super) trait Peers {
    /// What was heard of this one before counts no more.
    fn forget(&self, leg: &Leg);
    fn ask(&self, leg: &Leg, now_ms: u64);
    fn record_answer(&self, leg: &Leg) -> Option<PeerPosition>;
}

impl Peers for Cluster {
    fn forget(&self, leg: &Leg) {
        self.gate.forget_peer_position(&leg.flow());
    }

    fn ask(&self, leg: &Leg, now_ms: u64) {
        leg.ask(self, now_ms);
    }

    fn record_answer(&self, leg: &Leg) -> Option<PeerPosition> {
        self.gate.peer_position(&leg.flow())
    }
}

/// Asks every peer what it has, until all have answered or time is up. There may be thousands, and each pass over them may take
/// longer than others wait for a sign of life.
pub(super) fn ask_all(peers: &impl Peers, pulse: &Watchdog, takes: &mut [RecoveringConnection]) {
    let began = Instant::now();
    for leg in legs(pulse, takes) {
        peers.forget(leg);
    }
    for round in 0..PROBES {
        if round >= PROBES_MIN && began.elapsed() >= PROBE_SPAN {
            break;
        }
        let now_ms = evergate_sys::steady_clock_ms();
        let mut open = false;
        for leg in legs(pulse, takes).filter(|leg| leg.peer_input.is_none()) {
            peers.ask(leg, now_ms);
            open = true;
        }
        if !open {
            break;
        }
        let until = Instant::now() + PROBE_EVERY;
        while !all_answered(peers, pulse, takes) && Instant::now() < until {
            std::thread::yield_now();
        }
    }
    for leg in legs(pulse, takes) {
        listen(leg, peers); // the newest word
    }
}

/// Listens for those who have not answered; whether now all have.
fn all_answered(peers: &impl Peers, pulse: &Watchdog, takes: &mut [RecoveringConnection]) -> bool {
    let mut all = true;
    for leg in legs(pulse, takes).filter(|leg| leg.peer_input.is_none()) {
        all &= listen(leg, peers);
    }
    all
}

/// Looks whether the peer has answered.
fn listen(leg: &mut Leg, peers: &impl Peers) -> bool {
    if let Some(peer_input) = peers.record_answer(leg) {
        leg.record_position(peer_input);
    }
    leg.peer_input.is_some()
}

/// All legs, and a beat for each.
fn legs<'a>(pulse: &'a Watchdog, takes: &'a mut [RecoveringConnection]) -> impl Iterator<Item = &'a mut Leg> {
    takes.iter_mut().flat_map(|take| &mut take.legs).inspect(|_| pulse.beat())
}

#[cfg(test)]
mod tests {
    use super::super::recovering::tests::busy;
    use super::*;
    use evergate_bpf::Flow;
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    /// Peers that answer the `answers`th question, and how much was done for them without a beat.
    struct Slow<'a> {
        pulse: &'a Watchdog,
        answers: usize,
        asked: RefCell<BTreeMap<Flow, usize>>,
        /// The pulse as seen last, steps since it changed, and the most of them.
        gap: Cell<(u64, usize, usize)>,
    }

    impl Slow<'_> {
        fn step(&self) {
            let (mut last, steps, most) = self.gap.get();
            let steps = if self.pulse.continues(&mut last) { 0 } else { steps + 1 };
            self.gap.set((last, steps, most.max(steps)));
        }
    }

    impl Peers for Slow<'_> {
        fn forget(&self, _: &Leg) {
            self.step();
        }

        fn ask(&self, leg: &Leg, _: u64) {
            self.step();
            *self.asked.borrow_mut().entry(leg.flow()).or_default() += 1;
        }

        fn record_answer(&self, leg: &Leg) -> Option<PeerPosition> {
            self.step();
            let asked = self.asked.borrow().get(&leg.flow()).copied().unwrap_or(0);
            (asked >= self.answers).then_some(PeerPosition {
                seq: 1,
                ack: 1,
                window: 1000,
                count: 1,
                timestamps: (0, 0),
            })
        }
    }

    #[test]
    fn a_worker_that_asks_many_peers_shows_that_it_gets_on() {
        for (answers, peer_input) in [(1, 3000), (3, 3000), (usize::MAX, 0)] {
            let pulse = Watchdog::default();
            pulse.beat(); // it is at work
            let slow = Slow { pulse: &pulse, answers, asked: RefCell::default(), gap: Cell::new((0, 0, 0)) };
            let mut takes: Vec<RecoveringConnection> =
                (0..3000).map(|number| busy(number, number as u16 + 1)).collect();
            ask_all(&slow, &pulse, &mut takes);
            let legs = || takes.iter().flat_map(|take| &take.legs);
            assert_eq!(
                (legs().count(), legs().filter(|leg| leg.peer_input.is_some()).count()),
                (3000, peer_input)
            );
            assert!(
                slow.asked.borrow().values().all(|asked| (PROBES_MIN.min(answers)..=PROBES).contains(asked))
            );
            let (_, _, most) = slow.gap.get();
            assert!(most <= 1, "{most} peers without a beat");
        }
    }
}
