//! Take-overs under way and the last ones, as the workers report them.
//!
//! A report belongs to the take-over whose number it names: workers may be late with those that were voided, and one that goes on
//! must not pass for done because of that.
//!
//! Buckets that are handed over come one by one, hundreds in a row. In the list those that follow each other are one, and in
//! the log they are told together: else nobody would find the deaths between them.

use super::Resumed;
use super::instruction::FailoverOrder;
use super::status::{ClusterCounts, FAILOVERS_MAX, FailoverStatus};
use evergate_base::Micros;
use std::collections::VecDeque;

/// Take-overs that are told apart while they are under way; what begins beyond them counts with the newest.
const RUNNING_MAX: usize = 64;

/// Hand-overs are told when none has come for so long, or when the first was so long ago.
const PAUSE: Micros = Micros::from_ms(1000);
const PATIENCE: Micros = Micros::from_ms(10_000);

/// Buckets that were handed over since this was told last.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Handed {
    first_at: Micros,
    last_at: Micros,
    pub(crate) buckets: u64,
    pub(crate) connections: u64,
    pub(crate) lost: u64,
}

impl Handed {
    pub(crate) fn took(&self) -> Micros {
        self.last_at.since(self.first_at)
    }
}

/// One under way.
struct Running {
    /// The numbers of its rounds, first and last: those that began beyond the bound are among them.
    numbers: (u64, u64),
    began_at: Micros,
    missing: usize,
    status: FailoverStatus,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Failovers {
    /// Rounds that have begun.
    begun: u64,
    running: VecDeque<Running>,
    last: VecDeque<FailoverStatus>,
    handed: Option<Handed>,
}

impl Failovers {
    /// One begins, and gets its number. `failed_over` of its buckets lost their owner, of which nothing had been heard for
    /// `silent`; the others were handed over.
    pub(crate) fn begin(
        &mut self,
        now: Micros,
        unix_s: u64,
        round: &mut FailoverOrder,
        failed_over: usize,
        silent: Micros,
        workers: usize,
    ) {
        self.begun += 1;
        (round.number, round.silent) = (self.begun, silent);
        let handed_off = round.buckets.len().saturating_sub(failed_over) as u64;
        if self.running.len() >= RUNNING_MAX
            && let Some(newest) = self.running.back_mut()
        {
            newest.numbers.1 = round.number;
            newest.missing += workers;
            newest.status.failed_over += failed_over as u64;
            newest.status.handed_off += handed_off;
            newest.status.silent_ms = newest.status.silent_ms.max(silent.0 as f64 / 1000.0);
            return;
        }
        let status = FailoverStatus {
            began_unix_s: unix_s,
            running: true,
            failed_over: failed_over as u64,
            handed_off,
            silent_ms: silent.0 as f64 / 1000.0,
            ..FailoverStatus::default()
        };
        let numbers = (round.number, round.number);
        self.running.push_back(Running { numbers, began_at: now, missing: workers, status });
    }

    /// A worker is done with its part; the take-over, if it was the last part and buckets had lost their owner.
    pub(crate) fn resumed(
        &mut self,
        now: Micros,
        part: &Resumed,
        counts: &mut ClusterCounts,
    ) -> Option<FailoverStatus> {
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
        if done.status.failed_over == 0 {
            self.note_handed(done.began_at, now, &done.status);
            return None;
        }
        Some(done.status)
    }

    fn note_handed(&mut self, began_at: Micros, now: Micros, status: &FailoverStatus) {
        let handed = self.handed.get_or_insert(Handed {
            first_at: began_at,
            last_at: now,
            buckets: 0,
            connections: 0,
            lost: 0,
        });
        handed.last_at = now;
        handed.buckets += status.handed_off;
        handed.connections += status.connections;
        handed.lost += status.lost;
    }

    /// The hand-overs since the last ones, when it is time to tell them.
    pub(crate) fn take_handed(&mut self, now: Micros) -> Option<Handed> {
        self.handed
            .take_if(|handed| now.since(handed.last_at) >= PAUSE || now.since(handed.first_at) >= PATIENCE)
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
    pub(crate) fn list(&self) -> Vec<FailoverStatus> {
        let mut all = self.last.clone();
        for running in &self.running {
            add(&mut all, running.status.clone());
        }
        all.into()
    }

    fn keep(&mut self, status: FailoverStatus) {
        add(&mut self.last, FailoverStatus { running: false, ..status });
    }
}

/// Adds one, with those before it where both were only handed over.
fn add(all: &mut VecDeque<FailoverStatus>, one: FailoverStatus) {
    if let Some(before) = all.back_mut()
        && before.failed_over == 0
        && one.failed_over == 0
    {
        before.running |= one.running;
        before.handed_off += one.handed_off;
        before.connections += one.connections;
        before.lost += one.lost;
        before.took_ms = before.took_ms.max(one.took_ms);
        before.worker_ms = before.worker_ms.max(one.worker_ms);
        return;
    }
    if all.len() >= FAILOVERS_MAX {
        all.pop_front();
    }
    all.push_back(one);
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_membership::{Bucket, Term};

    #[test]
    fn a_take_over_is_done_when_every_worker_is_and_the_list_stays_short() {
        let (mut rounds, mut counts) = (Failovers::default(), ClusterCounts::default());
        let buckets = (0..3).map(|bucket| (Bucket(bucket), Term::default())).collect();
        let mut round = FailoverOrder { number: 0, buckets, silent: Micros(0) };
        let part = |round, connections, took_us| Resumed { round, buckets: 1, connections, lost: 1, took_us };
        for begun in 0..40u64 {
            let at = Micros(begun * 1000);
            rounds.begin(at, begun, &mut round, 2, Micros(40_500), 2);
            assert_eq!(rounds.resumed(at, &part(round.number, 3, 500), &mut counts), None);
            assert!(rounds.list().last().is_some_and(|last| last.running));
            let done = rounds.resumed(at + Micros(1500), &part(round.number, 4, 900), &mut counts).unwrap();
            let figures = (done.failed_over, done.handed_off, done.connections, done.lost);
            assert_eq!(figures, (2, 1, 7, 2));
            assert_eq!((done.took_ms, done.worker_ms, done.running), (1.5, 0.9, false));
            assert_eq!(done.silent_ms, 40.5);
        }
        assert_eq!(rounds.list().len(), FAILOVERS_MAX);
        assert_eq!((counts.connections_continued, counts.connections_lost), (280, 80));
        assert_eq!(
            rounds.resumed(Micros(0), &part(round.number, 1, 1), &mut counts),
            None,
            "a report of nothing that runs"
        );
    }

    #[test]
    fn hand_overs_in_a_row_are_one_and_are_told_when_they_are_over() {
        let (mut rounds, mut counts) = (Failovers::default(), ClusterCounts::default());
        let mut play = |rounds: &mut Failovers, at_ms: u64, taken: usize| {
            let buckets = vec![(Bucket(0), Term::default())];
            let mut round = FailoverOrder { number: 0, buckets, silent: Micros(0) };
            let at = Micros::from_ms(at_ms);
            rounds.begin(at, at_ms, &mut round, taken, Micros(0), 1);
            let part = Resumed { round: round.number, connections: 2, took_us: 3000, ..Resumed::default() };
            rounds.resumed(at + Micros(5000), &part, &mut counts).is_some()
        };
        assert!((0..300).all(|ms| !play(&mut rounds, ms, 0)));
        assert!(play(&mut rounds, 300, 1), "a death is told at once");
        assert!(!play(&mut rounds, 301, 0));
        let reported: Vec<_> =
            rounds.list().iter().map(|one| (one.failed_over, one.handed_off, one.connections)).collect();
        assert_eq!(reported, [(0, 300, 600), (1, 0, 2), (0, 1, 2)]);
        assert_eq!(rounds.take_handed(Micros::from_ms(1305)), None, "more may come");
        let handed = rounds.take_handed(Micros::from_ms(1306)).unwrap();
        assert_eq!((handed.buckets, handed.connections, handed.took()), (301, 602, Micros::from_ms(306)));
        assert_eq!(rounds.take_handed(Micros::from_ms(9000)), None);
        let reported = (0..30).filter(|n| {
            let at_ms = 10_000 + n * 500;
            play(&mut rounds, at_ms, 0);
            rounds.take_handed(Micros::from_ms(at_ms)).is_some()
        });
        assert_eq!(reported.count(), 1, "they do not end, and are told now and then");
    }

    #[test]
    fn a_late_report_of_what_was_voided_does_not_end_what_began_since() {
        let (mut rounds, mut counts) = (Failovers::default(), ClusterCounts::default());
        let begin = |rounds: &mut Failovers| {
            let mut round =
                FailoverOrder { number: 0, buckets: vec![(Bucket(0), Term::default())], silent: Micros(0) };
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
        let (mut rounds, mut counts) = (Failovers::default(), ClusterCounts::default());
        let parts: Vec<Resumed> = (0..RUNNING_MAX + 2)
            .map(|_| {
                let mut round = FailoverOrder { number: 0, buckets: Vec::new(), silent: Micros(0) };
                rounds.begin(Micros(0), 0, &mut round, 1, Micros(0), 1);
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
