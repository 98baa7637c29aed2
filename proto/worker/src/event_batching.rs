//! Event batching: a busy worker waits a fraction of a millisecond before it polls for events.
//!
//! Sleeping and waking is expensive, on virtual machines often more than handling the event, for the waker as well. A
//! worker that is idle for a moment now and then is woken for each event or two. After a short wait it finds several at
//! once. Network cards do the same for the kernel (interrupt moderation).
//!
//! A worker that does hardly anything but splice is woken for each piece that a sender writes, often one TLS record. It
//! batches under any load.
//!
//! Invariants: a mostly idle worker that does something else polls at once. So does a worker that found many events,
//! for more will have arrived when it has handled them. Batching that reduces throughput ends: it is compared with
//! unbatched work again and again. (Clients that wait for each response before the next request send less when
//! responses come later.)

use crate::BYTES_PER_US;
use evergate_base::Micros;
use std::time::Duration;

/// Length of a measurement window.
const WINDOW: Micros = Micros::from_ms(8);
/// CPU load in parts of a thousand: batching starts at [`BUSY_PERCENT`] and stops below [`CALM`]. Between [`CALM`] and
/// [`FULL`] the wait grows with the load.
const BUSY_PERCENT: u64 = 550;
const CALM: u64 = 500;
const FULL: u64 = 600;
/// Bytes a microsecond from which splicing counts: half a gigabit a second.
const SPLICED_MIN: u64 = 60;
/// Least share of splicing in the work of a worker that batches for it, in percent.
const SPLICED_PERCENT: u64 = 90;
/// Number of events in a turn below which waiting for more pays.
const FEW_EVENTS: usize = 8;
/// The same of a relay: one event of it stands for a piece of a stream, of which there is always more.
const FEW_EVENTS_OF_RELAY: usize = 64;
/// Length of the first batching period, which is compared with the time before it; of later ones; and of the unbatched
/// period after each of those.
const FIRST: Micros = Micros::from_ms(64);
const ROUND: Micros = Micros::from_ms(1000);
const COMPARED: Micros = Micros::from_ms(32);
/// Least throughput with batching, in percent of that without: clocks and loads vary by about the rest.
const THROUGHPUT_MIN_PERCENT: u64 = 90;
/// Number of bad comparisons in a row that end batching: a single one may have met a slow moment of the machine.
const BAD_COMPARISONS_MAX: u32 = 3;
/// Break after that; it doubles with each repetition up to [`LAST_BREAK`].
const FIRST_BREAK: Micros = Micros::from_ms(1000);
const LAST_BREAK: Micros = Micros::from_ms(64_000);

/// State of a worker's clocks and counters at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    /// Monotonic time.
    pub(super) at: Micros,
    /// CPU time used so far.
    pub(super) cpu_ns: u64,
    /// Work done so far, in units of any size.
    pub(super) work: u64,
}

impl Mark {
    /// Work per second since `before`.
    fn rate_since(self, before: Mark) -> u64 {
        self.work.saturating_sub(before.work) * 1_000_000 / self.at.since(before.at).0.max(1)
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Not batching, at least until then.
    Immediate(Micros),
    /// First batching period, since then.
    Starting(Mark),
    /// Batching for longer, since then.
    Batching(Mark),
    /// Not batching since then, for a comparison with this work per second.
    Comparing(Mark, u64),
}

/// Event batching of one worker.
#[derive(Debug)]
pub struct EventBatching {
    phase: Phase,
    window: Mark,
    /// CPU load in parts of a thousand, smoothed.
    busy: u64,
    /// Bytes spliced in this window.
    spliced: u64,
    /// Whether the worker did hardly anything but splice in the last window, and much of that.
    is_relay: bool,
    /// Work per second without batching, over the last 32 ms or so.
    unbatched_rate: u64,
    /// Bad comparisons in a row.
    bad_comparisons: u32,
    /// Length of the next break.
    pause: Micros,
    /// Events of the last turn.
    found: usize,
}

impl EventBatching {
    pub(super) fn new(at: Micros) -> EventBatching {
        let window = Mark { at, ..Mark::default() };
        let phase = Phase::Immediate(at);
        EventBatching {
            phase,
            window,
            busy: 0,
            spliced: 0,
            is_relay: false,
            unbatched_rate: 0,
            bad_comparisons: 0,
            pause: FIRST_BREAK,
            found: 0,
        }
    }

    /// How long to wait before polling for events; `most` is the wait under full load.
    pub(super) fn wait(&self, most: Duration) -> Option<Duration> {
        let few = if self.is_relay { FEW_EVENTS_OF_RELAY } else { FEW_EVENTS };
        let waits =
            matches!(self.phase, Phase::Starting(_) | Phase::Batching(_)) && (1..few).contains(&self.found);
        let share = if self.is_relay { FULL } else { self.busy };
        let share = share.saturating_sub(CALM).min(FULL - CALM) as u32;
        waits.then(|| most * share / (FULL - CALM) as u32).filter(|wait| !wait.is_zero())
    }

    /// Records bytes that were spliced.
    pub(super) fn note_spliced(&mut self, bytes: u64) {
        self.spliced = self.spliced.wrapping_add(bytes);
    }

    /// Records a turn with `found` events. True when [`end_window`](Self::end_window) is due.
    pub(super) fn note_turn(&mut self, now: Micros, found: usize) -> bool {
        self.found = found;
        now.since(self.window.at) >= WINDOW
    }

    /// Ends a measurement window, and decides on the next phase.
    pub(super) fn end_window(&mut self, mark: Mark) {
        let took = mark.at.since(self.window.at);
        let busy = mark.cpu_ns.saturating_sub(self.window.cpu_ns) / took.0.max(1);
        // One event ended a long sleep: the past does not count.
        self.busy = if took.0 > 8 * WINDOW.0 { busy } else { smooth(self.busy, busy) };
        let rate = mark.rate_since(self.window);
        let work = mark.work.saturating_sub(self.window.work);
        let spliced = std::mem::take(&mut self.spliced);
        self.is_relay =
            spliced >= SPLICED_MIN * took.0 && spliced / BYTES_PER_US * 100 >= work * SPLICED_PERCENT;
        self.window = mark;
        let has_been = |since: Mark, span| mark.at.since(since.at) >= span;
        self.phase = match self.phase {
            Phase::Immediate(until) => {
                self.unbatched_rate = (self.unbatched_rate * 3 + rate) / 4;
                let begins = self.busy >= BUSY_PERCENT || self.is_relay;
                if begins && mark.at >= until { Phase::Starting(mark) } else { self.phase }
            }
            Phase::Starting(since) if self.is_calm() || has_been(since, FIRST) => {
                self.judge(mark.rate_since(since), mark)
            }
            Phase::Batching(since) if self.is_calm() => self.judge(mark.rate_since(since), mark),
            Phase::Batching(since) if has_been(since, ROUND) => {
                Phase::Comparing(mark, mark.rate_since(since))
            }
            Phase::Comparing(since, batched_rate) if has_been(since, COMPARED) => {
                self.unbatched_rate = (self.unbatched_rate + mark.rate_since(since)) / 2;
                self.judge(batched_rate, mark)
            }
            Phase::Starting(_) | Phase::Batching(_) | Phase::Comparing(..) => self.phase,
        };
    }

    /// The phase after a batching period with this work per second.
    fn judge(&mut self, batched_rate: u64, mark: Mark) -> Phase {
        if batched_rate * 100 < self.unbatched_rate * THROUGHPUT_MIN_PERCENT {
            self.bad_comparisons += 1;
            if self.bad_comparisons < BAD_COMPARISONS_MAX {
                return Phase::Immediate(mark.at + COMPARED); // then compare again
            }
            let until = mark.at + self.pause;
            self.pause = Micros((self.pause.0 * 2).min(LAST_BREAK.0));
            self.bad_comparisons = 0;
            return Phase::Immediate(until);
        }
        self.bad_comparisons = 0;
        if !matches!(self.phase, Phase::Starting(_)) {
            self.pause = FIRST_BREAK;
        }
        if self.is_calm() { Phase::Immediate(mark.at) } else { Phase::Batching(mark) }
    }

    /// Whether batching would not pay.
    fn is_calm(&self) -> bool {
        self.busy < CALM && !self.is_relay
    }
}

/// Mean over about the last 64 ms.
fn smooth(before: u64, newest: u64) -> u64 {
    (before * 7 + newest) / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simulated load without and with batching: CPU load (parts of a thousand), and work per millisecond.
    type Load = fn(u64) -> [(u64, u64); 2];

    /// Runs `ms` milliseconds with one turn of 4 events each; returns how many of them were batched.
    fn run(batching: &mut EventBatching, mark: &mut Mark, ms: u64, load: Load) -> u64 {
        let mut batched = 0;
        let mut random = 7_u64;
        for _ in 0..ms {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let [unbatched, with_batching] = load(random >> 33);
            let (busy, work) = if waits(batching) { with_batching } else { unbatched };
            batched += u64::from(waits(batching));
            mark.at = mark.at + Micros::from_ms(1);
            mark.cpu_ns += busy * 1000;
            mark.work += work;
            if batching.note_turn(mark.at, 4) {
                batching.end_window(*mark);
            }
        }
        batched
    }

    fn waits(batching: &EventBatching) -> bool {
        batching.wait(Duration::from_micros(200)).is_some()
    }

    fn start(load: Load, ms: u64) -> u64 {
        run(&mut EventBatching::new(Micros(0)), &mut Mark::default(), ms, load)
    }

    #[test]
    fn mostly_idle_worker_does_not_batch() {
        assert_eq!(start(|_| [(490, 1000); 2], 10_000), 0);
        assert_eq!(start(|random| [(100 + random % 700, 1000); 2], 10_000), 0, "now and then is not busy");
    }

    #[test]
    fn busy_worker_batches_where_no_work_is_lost() {
        assert!(start(|_| [(600, 1000), (550, 1080)], 10_000) > 9000, "more is done");
        assert!(start(|_| [(700, 1000), (540, 1000)], 10_000) > 9000, "as much, with less");
        let noisy: Load = |random| [(560 + random % 200, random % 2000), (530 + random % 200, random % 2000)];
        assert!(start(noisy, 10_000) > 8000, "{}", start(noisy, 10_000));
    }

    #[test]
    fn waiting_clients_end_batching() {
        for load in [
            (|_| [(600, 1000), (550, 880)]) as Load, // an eighth is lost
            |_| [(600, 1000), (500, 700)],
            |_| [(800, 1000), (100, 150)], // a few connections, and nothing else
        ] {
            assert!(start(load, 1500) < 300, "{}", start(load, 1500));
            assert!(start(load, 100_000) < 1500, "{}", start(load, 100_000));
        }
    }

    #[test]
    fn batching_ends_and_begins_with_the_load() {
        let (mut batching, mut mark) = (EventBatching::new(Micros(0)), Mark::default());
        assert!(run(&mut batching, &mut mark, 1000, |_| [(600, 1000); 2]) > 700);
        assert!(run(&mut batching, &mut mark, 10_000, |_| [(100, 100); 2]) < 100, "the load is over");
        assert!(run(&mut batching, &mut mark, 2000, |_| [(600, 1000); 2]) > 700, "at most a second later");
        mark.at = mark.at + Micros::from_ms(5000);
        assert!(run(&mut batching, &mut mark, 10, |_| [(600, 1000); 2]) < 9, "a long sleep counts at once");
    }

    /// Batched milliseconds of a second of a worker that splices `bytes` in each and answers `requests`, at a tenth of
    /// its core.
    fn relay(batching: &mut EventBatching, mark: &mut Mark, bytes: u64, requests: u64) -> u64 {
        let mut batched = 0;
        for _ in 0..1000 {
            batched += u64::from(waits(batching));
            batching.note_spliced(bytes);
            mark.at = mark.at + Micros::from_ms(1);
            mark.cpu_ns += 100_000;
            mark.work += bytes / BYTES_PER_US + 10 * requests;
            if batching.note_turn(mark.at, 2) {
                batching.end_window(*mark);
            }
        }
        batched
    }

    #[test]
    fn relay_batches_under_any_load_while_it_only_splices() {
        let (mut batching, mut mark) = (EventBatching::new(Micros(0)), Mark::default());
        assert!(relay(&mut batching, &mut mark, 1_000_000, 0) > 900);
        assert!(relay(&mut batching, &mut mark, 1_000_000, 10) < 100, "a quarter of the work is requests");
        assert_eq!(relay(&mut batching, &mut mark, 30_000, 0), 0, "an idle relay is woken at once");
        assert!(relay(&mut batching, &mut mark, 100_000, 0) > 900);
        batching.note_turn(mark.at, 1);
        assert_eq!(
            batching.wait(Duration::from_micros(200)),
            Some(Duration::from_micros(200)),
            "the whole wait"
        );
    }

    #[test]
    fn turn_with_many_events_does_not_batch() {
        let (mut batching, mut mark) = (EventBatching::new(Micros(0)), Mark::default());
        run(&mut batching, &mut mark, 200, |_| [(900, 1000); 2]);
        for (found, expected) in
            [(0, false), (1, true), (FEW_EVENTS - 1, true), (FEW_EVENTS, false), (64, false)]
        {
            batching.note_turn(mark.at, found);
            assert_eq!(waits(&batching), expected, "{found}");
        }
    }
}
