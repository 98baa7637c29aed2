//! Whether a worker lets events gather before it looks for more.
//!
//! To go to sleep and to be woken is dear, on virtual machines dearer than what most events ask for, and whoever wakes a worker pays as
//! well. A worker that is idle for a moment now and then is woken for each event or two; one that waits a fraction of a millisecond
//! first finds several. That is what network cards do for the kernel (interrupt moderation).
//!
//! Invariants: a worker that is mostly idle answers at once; so does one that found many events, for more will have come when it is
//! done with them; and gathering that costs work ends: what is done meanwhile is compared with what was done without it, again and again.
//! (Clients that wait for their answers before they say more do less when each answer comes later, if nothing else keeps them.)

use evergate_base::Micros;
use std::time::Duration;

/// How long things are looked at before something is decided.
const WINDOW: Micros = Micros::from_ms(8);
/// Parts of a thousand of the worker's time: from so busy on it gathers, below so busy it stops, and between them and so busy it
/// waits the longer the busier it is.
const BUSY_PERCENT: u64 = 550;
const CALM: u64 = 500;
const FULL: u64 = 600;
/// With fewer events than this in a turn it is worth waiting for more.
const FEW: usize = 8;
/// The first so long are compared with what was done before they began, further ones with not gathering for so long.
const FIRST: Micros = Micros::from_ms(64);
const ROUND: Micros = Micros::from_ms(1000);
const COMPARED: Micros = Micros::from_ms(32);
/// Percent of the work without gathering that must be done with it; clocks and loads are not steadier than that.
const THROUGHPUT_MIN_PERCENT: u64 = 90;
/// Where so many comparisons in a row say that less was done, it is so: one may have met a slow moment of the machine.
const DOUBTS: u32 = 3;
/// Then nothing is gathered for so long, twice as long the next time, and so on.
const FIRST_BREAK: Micros = Micros::from_ms(1000);
const LAST_BREAK: Micros = Micros::from_ms(64_000);

/// Where a worker stands: two of these tell what happened between.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mark {
    /// The time.
    pub(super) at: Micros,
    /// Processor time used so far.
    pub(super) cpu_ns: u64,
    /// Work done so far, in units of any size.
    pub(super) work: u64,
}

impl Mark {
    /// Work a second since then.
    fn rate_since(self, before: Mark) -> u64 {
        self.work.saturating_sub(before.work) * 1_000_000 / self.at.since(before.at).0.max(1)
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Events are looked for at once, at least until then.
    Prompt(Micros),
    /// They gather, since then.
    Beginning(Mark),
    /// They go on gathering, since then.
    Gathering(Mark),
    /// They do not, since then, to compare it with this much work a second.
    Comparing(Mark, u64),
}

/// Decides for one worker.
#[derive(Debug)]
pub(super) struct EventBatching {
    phase: Phase,
    window: Mark,
    /// How busy the worker is, in parts of a thousand, smoothed.
    busy: u64,
    /// Work a second without gathering, of the last 32 ms or so.
    prompt_rate: u64,
    /// Comparisons in a row that said that gathering costs work.
    doubts: u32,
    /// How long the next break is.
    pause: Micros,
    /// Events of the last turn.
    found: usize,
}

impl EventBatching {
    pub(super) fn new(at: Micros) -> EventBatching {
        let window = Mark { at, ..Mark::default() };
        let phase = Phase::Prompt(at);
        EventBatching { phase, window, busy: 0, prompt_rate: 0, doubts: 0, pause: FIRST_BREAK, found: 0 }
    }

    /// How long to wait before looking for events; `most` is for a worker that is busy enough.
    pub(super) fn wait(&self, most: Duration) -> Option<Duration> {
        let waits =
            matches!(self.phase, Phase::Beginning(_) | Phase::Gathering(_)) && (1..FEW).contains(&self.found);
        let share = self.busy.saturating_sub(CALM).min(FULL - CALM) as u32;
        waits.then(|| most * share / (FULL - CALM) as u32).filter(|wait| !wait.is_zero())
    }

    /// A turn found so many events. Whether [`look`](Self::look) is due.
    pub(super) fn note_turn(&mut self, now: Micros, found: usize) -> bool {
        self.found = found;
        now.since(self.window.at) >= WINDOW
    }

    /// A window is over.
    pub(super) fn end_window(&mut self, mark: Mark) {
        let took = mark.at.since(self.window.at);
        let busy = mark.cpu_ns.saturating_sub(self.window.cpu_ns) / took.0.max(1);
        // One event ended a long sleep: the past does not count.
        self.busy = if took.0 > 8 * WINDOW.0 { busy } else { smooth(self.busy, busy) };
        let rate = mark.rate_since(self.window);
        self.window = mark;
        let has_been = |since: Mark, span| mark.at.since(since.at) >= span;
        self.phase = match self.phase {
            Phase::Prompt(until) => {
                self.prompt_rate = (self.prompt_rate * 3 + rate) / 4;
                if self.busy >= BUSY_PERCENT && mark.at >= until {
                    Phase::Beginning(mark)
                } else {
                    self.phase
                }
            }
            Phase::Beginning(since) if self.busy < CALM || has_been(since, FIRST) => {
                self.judge(mark.rate_since(since), mark)
            }
            Phase::Gathering(since) if self.busy < CALM => self.judge(mark.rate_since(since), mark),
            Phase::Gathering(since) if has_been(since, ROUND) => {
                Phase::Comparing(mark, mark.rate_since(since))
            }
            Phase::Comparing(since, gathered) if has_been(since, COMPARED) => {
                self.prompt_rate = (self.prompt_rate + mark.rate_since(since)) / 2;
                self.judge(gathered, mark)
            }
            Phase::Beginning(_) | Phase::Gathering(_) | Phase::Comparing(..) => self.phase,
        };
    }

    /// What follows when so much work a second was done with gathering.
    fn judge(&mut self, gathered: u64, mark: Mark) -> Phase {
        if gathered * 100 < self.prompt_rate * THROUGHPUT_MIN_PERCENT {
            self.doubts += 1;
            if self.doubts < DOUBTS {
                return Phase::Prompt(mark.at + COMPARED); // and once more
            }
            let until = mark.at + self.pause;
            self.pause = Micros((self.pause.0 * 2).min(LAST_BREAK.0));
            self.doubts = 0;
            return Phase::Prompt(until);
        }
        self.doubts = 0;
        if !matches!(self.phase, Phase::Beginning(_)) {
            self.pause = FIRST_BREAK;
        }
        if self.busy < CALM { Phase::Prompt(mark.at) } else { Phase::Gathering(mark) }
    }
}

/// A mean in which the last 64 ms count.
fn smooth(before: u64, newest: u64) -> u64 {
    (before * 7 + newest) / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a load is like: how busy it keeps the worker (parts of a thousand), and work a millisecond; without and with gathering.
    type Load = fn(u64) -> [(u64, u64); 2];

    /// Runs for so many milliseconds with 4 events a turn and a turn a millisecond; how many of them gathered.
    fn run(gather: &mut EventBatching, mark: &mut Mark, ms: u64, load: Load) -> u64 {
        let mut gathered = 0;
        let mut random = 7_u64;
        for _ in 0..ms {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let [prompt, gathering] = load(random >> 33);
            let (busy, work) = if waits(gather) { gathering } else { prompt };
            gathered += u64::from(waits(gather));
            mark.at = mark.at + Micros::from_ms(1);
            mark.cpu_ns += busy * 1000;
            mark.work += work;
            if gather.note_turn(mark.at, 4) {
                gather.end_window(*mark);
            }
        }
        gathered
    }

    fn waits(gather: &EventBatching) -> bool {
        gather.wait(Duration::from_micros(200)).is_some()
    }

    fn start(load: Load, ms: u64) -> u64 {
        run(&mut EventBatching::new(Micros(0)), &mut Mark::default(), ms, load)
    }

    #[test]
    fn a_worker_that_is_mostly_idle_answers_at_once() {
        assert_eq!(start(|_| [(490, 1000); 2], 10_000), 0);
        assert_eq!(start(|random| [(100 + random % 700, 1000); 2], 10_000), 0, "now and then is not busy");
    }

    #[test]
    fn a_busy_one_gathers_where_no_work_is_lost() {
        assert!(start(|_| [(600, 1000), (550, 1080)], 10_000) > 9000, "more is done");
        assert!(start(|_| [(700, 1000), (540, 1000)], 10_000) > 9000, "as much, with less");
        let noisy: Load = |random| [(560 + random % 200, random % 2000), (530 + random % 200, random % 2000)];
        assert!(start(noisy, 10_000) > 8000, "{}", start(noisy, 10_000));
    }

    #[test]
    fn clients_that_only_wait_for_answers_end_it() {
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
    fn it_ends_with_the_load_and_begins_with_the_next() {
        let (mut gather, mut mark) = (EventBatching::new(Micros(0)), Mark::default());
        assert!(run(&mut gather, &mut mark, 1000, |_| [(600, 1000); 2]) > 700);
        assert!(run(&mut gather, &mut mark, 10_000, |_| [(100, 100); 2]) < 100, "the load is over");
        assert!(run(&mut gather, &mut mark, 2000, |_| [(600, 1000); 2]) > 700, "at most a second later");
        mark.at = mark.at + Micros::from_ms(5000);
        assert!(run(&mut gather, &mut mark, 10, |_| [(600, 1000); 2]) < 9, "a long sleep counts at once");
    }

    #[test]
    fn with_many_events_there_is_no_need_to_wait_for_more() {
        let (mut gather, mut mark) = (EventBatching::new(Micros(0)), Mark::default());
        run(&mut gather, &mut mark, 200, |_| [(900, 1000); 2]);
        for (found, expected) in [(0, false), (1, true), (FEW - 1, true), (FEW, false), (64, false)] {
            gather.note_turn(mark.at, found);
            assert_eq!(waits(&gather), expected, "{found}");
        }
    }
}
