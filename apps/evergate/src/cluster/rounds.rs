//! Take-overs under way and the last ones, as the workers report them.
//!
//! A report belongs to the take-over whose number it names: workers may be late with those that were voided, and one that goes on
//! must not pass for done because of that.

use super::Resumed;
use super::instruction::Round;
use super::status::{ClusterCounts, TAKE_OVERS_MAX, TakeOverStatus};
use evergate_base::Micros;
use std::collections::VecDeque;

/// Take-overs that are told apart while they are under way; what begins beyond them counts with the newest.
const RUNNING_MAX: usize = 64;

/// One under way.
struct Running {
    /// The numbers of its rounds, first and last: those that began beyond the bound are among them.
    numbers: (u64, u64),
    began_at: Micros,
    missing: usize,
    status: TakeOverStatus,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Rounds {
    /// Rounds that have begun.
    begun: u64,
    running: VecDeque<Running>,
    last: VecDeque<TakeOverStatus>,
}

impl Rounds {
    /// One begins, and gets its number. `taken_over` of its buckets lost their owner, of which nothing had been heard for
    /// `silent`; the others were handed over.
    pub(crate) fn begin(
        &mut self,
        now: Micros,
        unix_s: u64,
        round: &mut Round,
        taken_over: usize,
        silent: Micros,
        workers: usize,
    ) {
        self.begun += 1;
        (round.number, round.silent) = (self.begun, silent);
        let handed_over = round.buckets.len().saturating_sub(taken_over) as u64;
        if self.running.len() >= RUNNING_MAX
            && let Some(newest) = self.running.back_mut()
        {
            newest.numbers.1 = round.number;
            newest.missing += workers;
            newest.status.taken_over += taken_over as u64;
            newest.status.handed_over += handed_over;
            newest.status.silent_ms = newest.status.silent_ms.max(silent.0 as f64 / 1000.0);
            return;
        }
        let status = TakeOverStatus {
            began_unix_s: unix_s,
            running: true,
            taken_over: taken_over as u64,
            handed_over,
            silent_ms: silent.0 as f64 / 1000.0,
            ..TakeOverStatus::default()
        };
        let numbers = (round.number, round.number);
        self.running.push_back(Running { numbers, began_at: now, missing: workers, status });
    }

    /// A worker is done with its part; the take-over, if it was the last part.
    pub(crate) fn resumed(
        &mut self,
        now: Micros,
        part: &Resumed,
        counts: &mut ClusterCounts,
    ) -> Option<TakeOverStatus> {
        counts.connections_continued += part.connections as u64;
        counts.connections_lost += part.lost as u64;
        let is_of = |running: &Running| (running.numbers.0..=running.numbers.1).contains(&part.round);
        let place = self.running.iter().position(is_of)?;
        let running = self.running.get_mut(place)?;
        let status = &mut running.status;
        status.connections += part.connections as u64;
        status.lost += part.lost as u64;
        status.worker_ms = status.worker_ms.max(part.took_us as f64 / 1000.0);
        running.missing = running.missing.saturating_sub(1);
        if running.missing > 0 {
            return None;
        }
        let mut done = self.running.remove(place)?;
        done.status.running = false;
        done.status.took_ms = now.since(done.began_at).0 as f64 / 1000.0;
        self.keep(done.status.clone());
        Some(done.status)
    }

    /// Whether connections may be left that do not go on yet.
    pub(crate) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Nothing of them counts any more.
    pub(crate) fn void(&mut self) {
        for running in std::mem::take(&mut self.running) {
            self.keep(running.status);
        }
    }

    /// The last ones and those under way.
    pub(crate) fn list(&self) -> Vec<TakeOverStatus> {
        let all = self.last.iter().chain(self.running.iter().map(|running| &running.status));
        let count = self.last.len() + self.running.len();
        all.skip(count.saturating_sub(TAKE_OVERS_MAX)).cloned().collect()
    }

    fn keep(&mut self, status: TakeOverStatus) {
        if self.last.len() >= TAKE_OVERS_MAX {
            self.last.pop_front();
        }
        self.last.push_back(TakeOverStatus { running: false, ..status });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_cluster::Bucket;

    #[test]
    fn a_take_over_is_done_when_every_worker_is_and_the_list_stays_short() {
        let (mut rounds, mut counts) = (Rounds::default(), ClusterCounts::default());
        let buckets = (0..3).map(|bucket| (Bucket(bucket), evergate_mirror::Office::default())).collect();
        let mut round = Round { number: 0, buckets, silent: Micros(0) };
        let part = |round, connections, took_us| Resumed { round, buckets: 1, connections, lost: 1, took_us };
        for begun in 0..40u64 {
            let at = Micros(begun * 1000);
            rounds.begin(at, begun, &mut round, 2, Micros(40_500), 2);
            assert_eq!(rounds.resumed(at, &part(round.number, 3, 500), &mut counts), None);
            assert!(rounds.list().last().is_some_and(|last| last.running));
            let done = rounds.resumed(at + Micros(1500), &part(round.number, 4, 900), &mut counts).unwrap();
            let figures = (done.taken_over, done.handed_over, done.connections, done.lost);
            assert_eq!(figures, (2, 1, 7, 2));
            assert_eq!((done.took_ms, done.worker_ms, done.running), (1.5, 0.9, false));
            assert_eq!(done.silent_ms, 40.5);
        }
        assert_eq!(rounds.list().len(), TAKE_OVERS_MAX);
        assert_eq!((counts.connections_continued, counts.connections_lost), (280, 80));
        assert_eq!(
            rounds.resumed(Micros(0), &part(round.number, 1, 1), &mut counts),
            None,
            "a report of nothing that runs"
        );
    }

    #[test]
    fn a_late_report_of_what_was_voided_does_not_end_what_began_since() {
        let (mut rounds, mut counts) = (Rounds::default(), ClusterCounts::default());
        let begin = |rounds: &mut Rounds| {
            let mut round = Round {
                number: 0,
                buckets: vec![(Bucket(0), evergate_mirror::Office::default())],
                silent: Micros(0),
            };
            rounds.begin(Micros(0), 0, &mut round, 1, Micros(0), 2);
            Resumed { round: round.number, ..Resumed::default() }
        };
        let voided = begin(&mut rounds);
        assert_eq!(rounds.resumed(Micros(0), &voided, &mut counts), None);
        rounds.void();
        let next = begin(&mut rounds);
        assert_eq!(rounds.resumed(Micros(0), &next, &mut counts), None);
        assert_eq!(rounds.resumed(Micros(0), &voided, &mut counts), None);
        assert!(rounds.is_running());
        assert!(rounds.resumed(Micros(0), &next, &mut counts).is_some());
        assert!(!rounds.is_running());
    }

    #[test]
    fn what_begins_beyond_the_bound_is_waited_for_with_the_newest() {
        let (mut rounds, mut counts) = (Rounds::default(), ClusterCounts::default());
        let parts: Vec<Resumed> = (0..RUNNING_MAX + 2)
            .map(|_| {
                let mut round = Round { number: 0, buckets: Vec::new(), silent: Micros(0) };
                rounds.begin(Micros(0), 0, &mut round, 0, Micros(0), 1);
                Resumed { round: round.number, ..Resumed::default() }
            })
            .collect();
        let (last, rest) = parts.split_last().unwrap();
        let done = rest.iter().filter(|part| rounds.resumed(Micros(0), part, &mut counts).is_some());
        assert_eq!(done.count(), RUNNING_MAX - 1);
        assert!(rounds.is_running());
        assert!(rounds.resumed(Micros(0), last, &mut counts).is_some() && !rounds.is_running());
    }
}
