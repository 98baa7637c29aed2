//! Probes that ask the peers of recovered connections for their positions, all at once, before their sockets are made.

use super::Cluster;
use super::recovering::{Leg, RecoveringConnection};
use evergate_base::net::PeerPosition;
use evergate_worker::Watchdog;
use evergate_worker::host::Gate;
use std::time::{Duration, Instant};

/// Most probes per peer, and their interval. A peer without an answer by then counts as silent. Where probing all peers
/// connections long, a few probes suffice.
const PROBES: usize = 20;
const PROBES_MIN: usize = 3;
const PROBE_EVERY: Duration = Duration::from_millis(2);
const PROBE_SPAN: Duration = Duration::from_millis(40);

/// Prober of the peers of connections.
pub(super) trait Peers {
    /// Forgets positions that the peer reported before.
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

/// Probes every peer until all have answered or time is up. There may be thousands, and a pass over all of them may
/// take longer than the watchdog waits.
pub(super) fn probe_all(peers: &impl Peers, pulse: &Watchdog, connections: &mut [RecoveringConnection]) {
    let began = Instant::now();
    for leg in legs(pulse, connections) {
        peers.forget(leg);
    }
    for round in 0..PROBES {
        if round >= PROBES_MIN && began.elapsed() >= PROBE_SPAN {
            break;
        }
        let now_ms = evergate_sys::steady_clock_ms();
        let mut open = false;
        for leg in legs(pulse, connections).filter(|leg| leg.peer_position.is_none()) {
            peers.ask(leg, now_ms);
            open = true;
        }
        if !open {
            break;
        }
        let until = Instant::now() + PROBE_EVERY;
        while !all_answered(peers, pulse, connections) && Instant::now() < until {
            std::thread::yield_now();
        }
    }
    for leg in legs(pulse, connections) {
        listen(leg, peers); // for the newest position
    }
}

/// Records the answers that have arrived; whether all peers have answered.
fn all_answered(peers: &impl Peers, pulse: &Watchdog, connections: &mut [RecoveringConnection]) -> bool {
    let mut all = true;
    for leg in legs(pulse, connections).filter(|leg| leg.peer_position.is_none()) {
        all &= listen(leg, peers);
    }
    all
}

/// Looks whether the peer has answered.
fn listen(leg: &mut Leg, peers: &impl Peers) -> bool {
    if let Some(position) = peers.record_answer(leg) {
        leg.record_position(position);
    }
    leg.peer_position.is_some()
}

/// All legs, and a beat for each.
fn legs<'a>(
    pulse: &'a Watchdog,
    connections: &'a mut [RecoveringConnection],
) -> impl Iterator<Item = &'a mut Leg> {
    connections.iter_mut().flat_map(|take| &mut take.legs).inspect(|_| pulse.beat())
}

#[cfg(test)]
mod tests {
    use super::super::recovering::tests::active;
    use super::*;
    use evergate_base::net::Flow;
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

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
    fn probing_many_peers_beats_the_watchdog() {
        for (answers, answered) in [(1, 3000), (3, 3000), (usize::MAX, 0)] {
            let pulse = Watchdog::default();
            pulse.beat(); // the worker is active
            let slow = Slow { pulse: &pulse, answers, asked: RefCell::default(), gap: Cell::new((0, 0, 0)) };
            let mut connections: Vec<RecoveringConnection> =
                (0..3000).map(|number| active(number, number as u16 + 1)).collect();
            probe_all(&slow, &pulse, &mut connections);
            let legs = || connections.iter().flat_map(|connection| &connection.legs);
            assert_eq!(
                (legs().count(), legs().filter(|leg| leg.peer_position.is_some()).count()),
                (3000, answered)
            );
            assert!(
                slow.asked.borrow().values().all(|asked| (PROBES_MIN.min(answers)..=PROBES).contains(asked))
            );
            let (_, _, most) = slow.gap.get();
            assert!(most <= 1, "{most} peers without a beat");
        }
    }
}
