use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

const MSS: u16 = 1400;
const START: Micros = Micros(1_000_000);

/// Simulated slot of a leg.
#[derive(Debug)]
struct Model {
    committed: u32,
    sent_ack: u32,
    peer_acked: u32,
}

impl AckSlot for Model {
    fn committed(&self) -> u32 {
        self.committed
    }

    fn set_committed(&mut self, ack: u32) {
        assert!(!is_after(self.committed, ack), "{ack} after {}", self.committed);
        self.committed = ack;
    }

    fn sent_ack(&self) -> u32 {
        self.sent_ack
    }

    fn peer_acked(&self) -> u32 {
        self.peer_acked
    }
}

impl Model {
    fn new(origin: Origin) -> Model {
        Model { committed: origin.received, sent_ack: origin.received, peer_acked: origin.sent }
    }

    /// Something goes to the peer, or an ACK alone.
    fn use_for(&mut self) {
        self.sent_ack = self.committed;
    }
}

fn leg(origin: Origin) -> (AckGate, Model) {
    (AckGate::new(origin, MSS, START), Model::new(origin))
}

fn beginning() -> (AckGate, Model) {
    leg(Origin { sent: 500, received: 1 })
}

#[derive(Clone, Debug)]
enum Step {
    Read(usize),
    /// Backups receive this part of the input that they lack, in thousandths.
    Replicated(u64),
    /// There is no backup.
    Alone,
    End,
    EndReplicated,
    Uses,
    Writes(usize),
    /// The peer acknowledges this part of its unacknowledged input, in thousandths, or our FIN too.
    PeerAcks(u32),
    Ripens,
    Idle,
    Settles,
    Passes(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = || prop_oneof![1..1_500_usize, 1..200_000_usize];
    let step = prop_oneof![
        4 => bytes().prop_map(Step::Read),
        4 => (0..=1_000_u64).prop_map(Step::Replicated),
        1 => Just(Step::Alone),
        1 => Just(Step::End),
        1 => Just(Step::EndReplicated),
        2 => Just(Step::Uses),
        2 => bytes().prop_map(Step::Writes),
        3 => (0..=1_100_u32).prop_map(Step::PeerAcks),
        2 => Just(Step::Ripens),
        1 => Just(Step::Idle),
        1 => Just(Step::Settles),
        3 => (0..8_000_u64).prop_map(Step::Passes),
    ];
    vec(step, 0..60)
}

/// A leg, its gate, and the backups' input, through some steps. Keeps the answers.
struct Run {
    positions: AckGate,
    gate: Model,
    now: Micros,
    origin: Origin,
    /// Bytes that were read, and that the backups hold.
    read: u64,
    held: u64,
    ended: bool,
    end_held: bool,
    answers: Vec<(bool, Option<u64>, u32, Option<Delay>)>,
}

impl Run {
    fn new(origin: Origin) -> Run {
        let (positions, gate) = leg(origin);
        let (now, answers) = (START, Vec::new());
        Run { positions, gate, now, origin, read: 0, held: 0, ended: false, end_held: false, answers }
    }

    fn of(origin: Origin, steps: &[Step]) -> Run {
        let mut run = Run::new(origin);
        steps.iter().for_each(|step| run.take(step));
        run
    }

    fn take(&mut self, step: &Step) {
        let (target, committed) = (self.positions.target, self.positions.committed);
        let answer = self.answer(step);
        self.check();
        assert!(self.positions.target >= target && self.positions.committed >= committed);
        let acked = self.positions.newly_acked(&self.gate);
        let look = self.positions.next_ack_check(&self.gate, false, self.now);
        self.answers.push((answer, acked, self.released(), look));
    }

    fn answer(&mut self, step: &Step) -> bool {
        let Run { positions, gate, now, .. } = self;
        match *step {
            Step::Read(bytes) if !self.ended => {
                self.read += bytes as u64;
                positions.handle_read(bytes, *now);
            }
            Step::Read(_) => {}
            Step::Replicated(part) => {
                self.held += (self.read - self.held) * part / 1_000;
                return positions.release(gate, self.held, *now);
            }
            Step::Alone => {
                (self.held, self.end_held) = (self.read, self.ended);
                return positions.release(gate, u64::MAX, *now);
            }
            Step::End => {
                self.ended = true;
                positions.handle_end();
            }
            Step::EndReplicated => {
                self.end_held |= self.ended && self.held == self.read;
                return positions.release_end(gate);
            }
            Step::Uses => gate.use_for(),
            Step::Writes(bytes) => positions.handle_written(bytes, *now),
            Step::PeerAcks(part) => {
                let flying = positions.end_sequence().wrapping_sub(gate.peer_acked);
                let more = u64::from(flying) * u64::from(part) / 1_000;
                gate.peer_acked = gate.peer_acked.wrapping_add((more as u32).min(flying));
            }
            Step::Ripens => return positions.ack_if_due(gate, *now),
            Step::Idle => return positions.on_idle(gate, *now),
            Step::Settles => {
                positions.allow_ack(gate, self.origin.received.wrapping_add(self.held as u32), *now)
            }
            Step::Passes(span) => *now = *now + Micros(span),
        }
        false
    }

    /// Bytes that may be acknowledged, the peer's FIN included.
    fn released(&self) -> u32 {
        self.gate.committed.wrapping_sub(self.origin.received)
    }

    fn check(&self) {
        self.positions.check_invariants();
        assert!(self.positions.target <= self.held, "{:?} of {}", self.positions, self.held);
        let most = self.held + u64::from(self.end_held);
        assert!(u64::from(self.released()) <= most, "{} of {most}", self.released());
    }

    /// Checks the gate after each delay, as a worker does, until nothing is due any more.
    fn poll_until_nothing_is_due(&mut self) {
        for looks in 0.. {
            assert!(looks < 100, "{:?} {:?}", self.positions, self.gate);
            let Some(look) = self.positions.next_ack_check(&self.gate, false, self.now) else { return };
            self.now = self.now + look.span();
            let ripe = self.positions.ack_if_due(&mut self.gate, self.now);
            if ripe || self.positions.is_overdue(&self.gate, self.now) {
                self.gate.use_for();
            }
        }
    }
}

fn anywhere() -> impl Strategy<Value = Origin> {
    let number = || prop_oneof![any::<u32>(), (0..100_000_u32).prop_map(|below| u32::MAX - below)];
    (number(), number()).prop_map(|(sent, received)| Origin { sent, received })
}

proptest! {
    #[test]
    fn only_replicated_input_is_acknowledged(origin in anywhere(), steps in steps()) {
        Run::of(origin, &steps);
    }

    #[test]
    fn first_sequence_number_does_not_matter(origin in anywhere(), steps in steps()) {
        let low = Run::of(Origin { sent: 0, received: 0 }, &steps);
        prop_assert_eq!(Run::of(origin, &steps).answers, low.answers);
    }

    #[test]
    fn replicated_input_is_acknowledged_eventually(origin in anywhere(), steps in steps()) {
        let mut run = Run::of(origin, &steps);
        run.take(&Step::Replicated(1_000));
        run.take(&Step::EndReplicated);
        run.poll_until_nothing_is_due();
        let all = run.read as u32 + u32::from(run.ended);
        prop_assert_eq!(run.gate.sent_ack.wrapping_sub(origin.received), all);
    }

    #[test]
    fn flight_is_watched_or_checked(origin in anywhere(), steps in steps(), eager in any::<bool>()) {
        let run = Run::of(origin, &steps);
        let Run { positions, gate, now, .. } = &run;
        let flying = positions.written - positions.acked;
        match positions.watched(eager, *now) {
            Some(ack) => {
                let ahead = ack.wrapping_sub(gate.peer_acked);
                prop_assert!(u64::from(ahead) <= flying && ahead > 0, "{ahead} of {flying}");
            }
            None if flying > 0 => {
                prop_assert!(!eager && positions.next_ack_check(gate, false, *now).is_some());
            }
            None => {}
        }
    }

    #[test]
    fn restarted_leg_equals_a_new_one(origin in anywhere(), before in steps(), steps in steps()) {
        let mut old = Run::of(origin, &before);
        prop_assume!(!old.ended);
        old.take(&Step::Replicated(1_000));
        old.poll_until_nothing_is_due();
        old.gate.peer_acked = old.positions.end_sequence().wrapping_sub(1);
        old.positions.restart(old.now);
        let begins = old.positions.origin();
        prop_assert_eq!(begins.received, origin.received.wrapping_add(old.read as u32));
        let new = Run::of(begins, &steps);
        let mut again = Run { positions: old.positions, gate: old.gate, now: old.now, ..Run::new(begins) };
        steps.iter().for_each(|step| again.take(step));
        let answers = |run: &Run| {
            let all = run.answers.iter();
            all.map(|(answer, acked, out, _)| (*answer, *acked, *out)).collect::<Vec<_>>()
        };
        prop_assert_eq!(answers(&again), answers(&new));
    }
}

#[test]
fn request_is_acknowledged_whole_and_with_its_response() {
    let (mut positions, mut gate) = beginning();
    positions.handle_read(700, START);
    assert!(!positions.release(&mut gate, 700, START), "no packet for it alone");
    assert_eq!((gate.committed, gate.sent_ack), (701, 1));
    assert_eq!(positions.next_ack_check(&gate, false, START), Some(Delay::Medium));
    let later = START + ACK_DELAY_MAX;
    assert!(!positions.is_overdue(&gate, START + Micros(4_999)) && positions.is_overdue(&gate, later));
    gate.use_for();
    assert!(!positions.is_overdue(&gate, later) && positions.next_ack_check(&gate, false, later).is_none());
}

#[test]
fn half_of_a_stream_is_withheld_until_it_idles() {
    let (mut positions, mut gate) = beginning();
    positions.handle_read(20_000, START);
    assert!(positions.release(&mut gate, 20_000, START), "it is much, and nothing waits here");
    assert_eq!(gate.committed, 10_001);
    assert_eq!(positions.next_ack_check(&gate, false, START), Some(Delay::Short));
    assert!(!positions.ack_if_due(&mut gate, START + Micros(999)));
    assert!(positions.ack_if_due(&mut gate, START + COMMIT_AFTER));
    assert_eq!(gate.committed, 20_001);
    positions.handle_read(1_000_000, START);
    positions.release(&mut gate, 1_020_000, START);
    assert_eq!(gate.committed, 1_020_001 - WITHHELD_BYTES_MAX as u32);
}

#[test]
fn few_segments_before_waiting_input_stay_withheld() {
    let (mut positions, mut gate) = beginning();
    let rested = START + COMMIT_AFTER;
    for (read, held, committed) in
        [(100_000, 50_000, 50_000 - 4 * u64::from(MSS)), (1_000, 99_500, 98_000), (0, 101_000, 101_000)]
    {
        positions.handle_read(read, START);
        positions.release(&mut gate, held, START);
        positions.ack_if_due(&mut gate, rested);
        assert_eq!(gate.committed, committed as u32 + 1);
        gate.use_for();
        assert_ne!(
            positions.next_ack_check(&gate, false, rested),
            Some(Delay::Short),
            "no delay changes this"
        );
    }
}

#[test]
fn running_stream_acknowledges_only_much_at_once() {
    let (mut positions, mut gate) = beginning();
    positions.handle_read(300_000, START);
    assert!(!positions.release(&mut gate, 70_000, START), "more of it waits here");
    assert!(positions.release(&mut gate, 65_536 + ACK_AT_ONCE_BYTES, START));
}

#[test]
fn end_waits_for_all_input_before_it() {
    let (mut positions, mut gate) = beginning();
    positions.handle_read(100, START);
    positions.handle_end();
    assert!(!positions.release_end(&mut gate) && gate.committed == 1);
    positions.release(&mut gate, 100, START);
    assert!(positions.release_end(&mut gate) && !positions.release_end(&mut gate));
    assert_eq!(gate.committed, 102);
}

#[test]
fn leg_is_complete_when_both_ends_are_acknowledged() {
    let (mut positions, mut gate) = beginning();
    positions.handle_written(50, START);
    gate.peer_acked = positions.end_sequence();
    assert!(!positions.is_complete(&gate), "the peer's end has not come");
    positions.handle_end();
    assert!(positions.is_complete(&gate));
    gate.peer_acked = gate.peer_acked.wrapping_sub(1);
    assert!(!positions.is_complete(&gate), "the peer lacks our end");
}

#[test]
fn peer_that_sends_ahead_does_not_wait_for_acks() {
    let (mut positions, mut gate) = beginning();
    positions.note_next(&gate);
    positions.handle_read(100, START);
    assert!(positions.can_wait_for_ack(), "nothing was unacknowledged");
    positions.note_next(&gate);
    assert!(!positions.can_wait_for_ack());
    positions.note_silence();
    positions.release(&mut gate, 100, START);
    gate.use_for();
    positions.note_next(&gate);
    assert!(positions.can_wait_for_ack());
}

#[test]
fn waiting_input_is_stashed_and_checked_less_often() {
    let (mut positions, gate) = beginning();
    positions.handle_read(100, START);
    let look = |inside, ms| positions.next_ack_check(&gate, inside, START + Micros::from_ms(ms));
    assert_eq!([look(true, 0), look(false, 0)], [Some(Delay::Short), Some(Delay::Medium)]);
    assert_eq!([look(true, 199), look(true, 200)], [Some(Delay::Short), Some(Delay::Long)]);
    for (extent, stalls_after) in
        [(InputBoundary::Partial, 1), (InputBoundary::Open, 100), (InputBoundary::Whole, 1000)]
    {
        let stalls = |ms| positions.is_stalled(extent, START + Micros::from_ms(ms));
        assert_eq!([stalls(stalls_after - 1), stalls(stalls_after)], [false, true], "{extent:?}");
    }
}

#[test]
fn recovered_leg_skips_output_that_its_peer_has() {
    let origin = Origin { sent: u32::MAX - 10, received: u32::MAX };
    let stands = ResumePoint { received: 50, ended: true, sent: 100, acked: 130 };
    let mut positions = AckGate::resumed(origin, MSS, stands, START);
    let end = origin.received.wrapping_add(51);
    let mut gate = Model { committed: end, sent_ack: end, peer_acked: origin.sent.wrapping_add(130) };
    positions.check_invariants();
    assert!(positions.has_undelivered_skip() && positions.watched(true, START).is_none());
    assert_eq!(
        [positions.skip_delivered(20), positions.skip_delivered(20), positions.skip_delivered(20)],
        [20, 10, 0]
    );
    assert!(!positions.release_end(&mut gate) && gate.committed == end, "its end counts as acknowledged");
    positions.handle_written(5, START);
    gate.peer_acked = origin.sent.wrapping_add(136);
    assert_eq!((positions.newly_acked(&gate), positions.newly_acked(&gate)), (Some(135), None));
}
