//! Probes that ask the peers of recovered connections for their positions, all at once, before their sockets are made.
//!
//! A failover probes over several turns, in which the worker serves its other connections.

use super::Cluster;
use super::recovering::{Leg, RecoveringConnection};
use crate::Watchdog;
use crate::host::{Gate, Host};
use evergate_base::net::PeerPosition;
use evergate_base::{Bucket, Micros};
use std::collections::BTreeMap;

/// Most probes per peer, and their interval. A peer without an answer by then counts as silent. Where probing all peers
/// takes long, a few probes suffice.
const PROBES: usize = 20;
const PROBES_MIN: usize = 3;
const PROBE_EVERY: Micros = Micros::from_ms(2);
const PROBE_SPAN: Micros = Micros::from_ms(40);

/// Prober of the peers of connections.
pub(super) trait Peers<H: Host> {
    /// Forgets positions that the peer reported before.
    fn forget(&self, leg: &Leg<H>);
    fn ask(&self, leg: &Leg<H>, now_ms: u64);
    fn record_answer(&self, leg: &Leg<H>) -> Option<PeerPosition>;
}

impl<H: Host> Peers<H> for Cluster<H> {
    fn forget(&self, leg: &Leg<H>) {
        self.gate.forget_peer_position(&leg.flow());
    }

    fn ask(&self, leg: &Leg<H>, now_ms: u64) {
        leg.ask(self, now_ms);
    }

    fn record_answer(&self, leg: &Leg<H>) -> Option<PeerPosition> {
        self.gate.peer_position(&leg.flow())
    }
}

/// Probes to all peers of one failover.
#[derive(Debug)]
pub(super) struct Probes {
    began: Micros,
    /// Probes that each silent peer has received.
    rounds: usize,
    next_at: Micros,
}

impl Probes {
    /// Probes of a failover that begins now.
    pub(super) fn new(now: Micros) -> Probes {
        Probes { began: now, rounds: 0, next_at: now }
    }

    /// Records answers, and sends the probes that are due. True when all peers have answered or time is up. There may
    /// be thousands, and a pass over all of them may take longer than the watchdog waits.
    pub(super) fn run<H: Host>(
        &mut self,
        peers: &impl Peers<H>,
        pulse: &Watchdog,
        connections: &mut BTreeMap<Bucket, Vec<RecoveringConnection<H>>>,
        (now, now_ms): (Micros, u64),
    ) -> bool {
        if self.rounds == 0 {
            legs(pulse, connections).for_each(|leg| peers.forget(leg));
        }
        let mut all_answered = true;
        for leg in legs(pulse, connections).filter(|leg| leg.peer_position.is_none()) {
            all_answered &= self.rounds > 0 && listen(leg, peers);
        }
        let over =
            self.rounds >= PROBES || (self.rounds >= PROBES_MIN && now.since(self.began) >= PROBE_SPAN);
        if all_answered || (over && now >= self.next_at) {
            for leg in legs(pulse, connections) {
                listen(leg, peers); // for the newest position
            }
            return true;
        }
        if now >= self.next_at {
            for leg in legs(pulse, connections).filter(|leg| leg.peer_position.is_none()) {
                peers.ask(leg, now_ms);
            }
            self.rounds += 1;
            self.next_at = now + PROBE_EVERY;
        }
        false
    }
}

/// Looks whether the peer has answered.
fn listen<H: Host>(leg: &mut Leg<H>, peers: &impl Peers<H>) -> bool {
    if let Some(position) = peers.record_answer(leg) {
        leg.record_position(position);
    }
    leg.peer_position.is_some()
}

/// All legs, and a beat for each.
fn legs<'a, H: Host>(
    pulse: &'a Watchdog,
    connections: &'a mut BTreeMap<Bucket, Vec<RecoveringConnection<H>>>,
) -> impl Iterator<Item = &'a mut Leg<H>> {
    let all = connections.values_mut().flatten();
    all.flat_map(|connection| &mut connection.legs).inspect(|_| pulse.beat())
}

#[cfg(test)]
mod tests {
    use super::super::recovering::tests::active;
    use super::*;
    use crate::host::Nothing;
    use evergate_base::net::Flow;
    use std::cell::{Cell, RefCell};

    /// Peers that answer probe number `answers`, and a count of the steps without a heartbeat.
    struct Slow<'a> {
        pulse: &'a Watchdog,
        answers: usize,
        asked: RefCell<BTreeMap<Flow, usize>>,
        /// The watchdog counter as seen last, steps since it changed, and the largest number of them.
        gap: Cell<(u64, usize, usize)>,
    }

    impl Slow<'_> {
        fn step(&self) {
            let (mut last, steps, most) = self.gap.get();
            let steps = if self.pulse.continues(&mut last) { 0 } else { steps + 1 };
            self.gap.set((last, steps, most.max(steps)));
        }
    }

    impl Peers<Nothing> for Slow<'_> {
        fn forget(&self, _: &Leg<Nothing>) {
            self.step();
        }

        fn ask(&self, leg: &Leg<Nothing>, _: u64) {
            self.step();
            *self.asked.borrow_mut().entry(leg.flow()).or_default() += 1;
        }

        fn record_answer(&self, leg: &Leg<Nothing>) -> Option<PeerPosition> {
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

    /// A turn takes longer than the interval of probes when `turn` does.
    #[test]
    fn probing_many_peers_beats_the_watchdog() {
        let turns = [Micros(100), Micros::from_ms(30)];
        for (answers, answered) in [(1, 3000), (3, 3000), (usize::MAX, 0)] {
            for turn in turns {
                let pulse = Watchdog::default();
                pulse.beat(); // the worker is active
                let slow =
                    Slow { pulse: &pulse, answers, asked: RefCell::default(), gap: Cell::new((0, 0, 0)) };
                let connections = (0..3000).map(|number| active(number, number as u16 + 1)).collect();
                let mut connections = BTreeMap::from([(Bucket(1), connections)]);
                let (mut now, mut probes) = (Micros(7), Probes::new(Micros(7)));
                while !probes.run(&slow, &pulse, &mut connections, (now, now.0 / 1000)) {
                    now = now + turn;
                }
                let most_us = PROBE_SPAN.0 + PROBE_EVERY.0 + turn.0 * PROBES_MIN as u64;
                assert!(now.0 <= 7 + most_us, "{now:?} with turns of {turn:?}");
                let legs = || connections.values().flatten().flat_map(|connection| &connection.legs);
                assert_eq!(
                    (legs().count(), legs().filter(|leg| leg.peer_position.is_some()).count()),
                    (3000, answered)
                );
                let asked = slow.asked.borrow();
                assert!(asked.values().all(|asked| (PROBES_MIN.min(answers)..=PROBES).contains(asked)));
                let (_, _, most) = slow.gap.get();
                assert!(most <= 1, "{most} peers without a beat");
            }
        }
    }
}
