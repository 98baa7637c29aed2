//! Running and past failovers, as the workers report them.
//!
//! A report names the number of its failover. Workers may report dropped failovers late, and such a report must not end
//! a running one.
//!
//! Buckets of planned handoffs arrive one by one, hundreds in a row. Consecutive handoffs are one item of the list and
//! one log line, so that failovers between them stay visible.

use evergate_base::Micros;
use evergate_worker::{FailoverOrder, Resumed};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Bound on the remembered failovers and handoffs.
pub const FAILOVERS_MAX: usize = 16;

/// One failover or handoff.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FailoverStatus {
    /// When it began, in seconds since 1970.
    pub began_unix_s: u64,
    /// Whether a worker has not finished it.
    pub running: bool,
    /// Buckets whose owner died.
    pub failed_over: u64,
    /// Buckets of planned handoffs.
    pub handed_off: u64,
    /// Connections that continue.
    pub connections: u64,
    /// Connections that could not continue.
    pub lost: u64,
    /// Silence of the dead node when the failover began, in milliseconds; 0 for a handoff. With several dead nodes: the
    /// longest.
    #[serde(default)]
    pub silent_ms: f64,
    /// Time until the last worker finished, in milliseconds.
    pub took_ms: f64,
    /// Longest time that a worker measured, in milliseconds.
    pub worker_ms: f64,
}

/// What failovers and handoffs have done since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailoverCounts {
    /// Failovers of buckets whose owner died.
    pub failovers: u64,
    /// Buckets of planned handoffs to this node.
    pub handoffs: u64,
    /// Connections that continued here after a failover or handoff.
    pub continued: u64,
    /// Connections that could not continue.
    pub lost: u64,
}

/// Bound on the running failovers that are tracked separately; later ones count with the newest.
const RUNNING_MAX: usize = 64;

/// Time without a handoff after which the handoffs are logged.
const PAUSE: Micros = Micros::from_ms(1000);
/// Time since the first handoff after which the handoffs are logged.
const PATIENCE: Micros = Micros::from_ms(10_000);

/// Handoffs that are not logged yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Handoffs {
    first_at: Micros,
    last_at: Micros,
    /// Buckets that came.
    pub buckets: u64,
    /// Connections that continue.
    pub connections: u64,
    /// Connections that could not continue.
    pub lost: u64,
}

impl Handoffs {
    /// Time from the first to the last.
    pub fn span(&self) -> Micros {
        self.last_at.since(self.first_at)
    }
}

/// A running failover or handoff.
#[derive(Debug)]
struct Running {
    /// Numbers of the first and last order: orders beyond the bound are added to it.
    numbers: (u64, u64),
    began_at: Micros,
    /// Worker reports that are missing.
    missing: usize,
    status: FailoverStatus,
}

/// All failovers and handoffs.
#[derive(Debug, Default)]
pub struct Failovers {
    /// Orders so far.
    begun: u64,
    running: VecDeque<Running>,
    last: VecDeque<FailoverStatus>,
    handoffs: Option<Handoffs>,
    counts: FailoverCounts,
}

impl Failovers {
    /// Begins a failover, and sets its number. `failed_over` of its buckets lost their owner, which was silent for
    /// `silent`; the other buckets are planned handoffs.
    pub fn begin(
        &mut self,
        now: Micros,
        unix_s: u64,
        order: &mut FailoverOrder,
        failed_over: usize,
        silent: Micros,
        workers: usize,
    ) {
        self.begun += 1;
        (order.number, order.silent) = (self.begun, silent);
        self.counts.failovers += u64::from(failed_over > 0);
        self.counts.handoffs += order.buckets.len().saturating_sub(failed_over) as u64;
        let handed_off = order.buckets.len().saturating_sub(failed_over) as u64;
        if self.running.len() >= RUNNING_MAX
            && let Some(newest) = self.running.back_mut()
        {
            newest.numbers.1 = order.number;
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
        let numbers = (order.number, order.number);
        self.running.push_back(Running { numbers, began_at: now, missing: workers, status });
    }

    /// Records that a worker has finished its part. The failover, if that was the last part and buckets had lost their
    /// owner.
    pub fn resumed(&mut self, now: Micros, part: &Resumed) -> Option<FailoverStatus> {
        self.counts.continued += part.connections as u64;
        self.counts.lost += part.lost as u64;
        let is_of = |running: &Running| (running.numbers.0..=running.numbers.1).contains(&part.round);
        let index = self.running.iter().position(is_of)?;
        let running = self.running.get_mut(index)?;
        let status = &mut running.status;
        status.connections += part.connections as u64;
        status.lost += part.lost as u64;
        status.worker_ms = status.worker_ms.max(part.took_us as f64 / 1000.0);
        running.missing = running.missing.saturating_sub(1);
        if running.missing > 0 {
            return None;
        }
        let mut done = self.running.remove(index)?;
        done.status.running = false;
        done.status.took_ms = now.since(done.began_at).0 as f64 / 1000.0;
        self.remember(done.status.clone());
        if done.status.failed_over == 0 {
            self.record_handoff(done.began_at, now, &done.status);
            return None;
        }
        Some(done.status)
    }

    fn record_handoff(&mut self, began_at: Micros, now: Micros, status: &FailoverStatus) {
        let handoffs = self.handoffs.get_or_insert(Handoffs {
            first_at: began_at,
            last_at: now,
            buckets: 0,
            connections: 0,
            lost: 0,
        });
        handoffs.last_at = now;
        handoffs.buckets += status.handed_off;
        handoffs.connections += status.connections;
        handoffs.lost += status.lost;
    }

    /// Takes the handoffs since the last log line, if a line is due.
    pub fn take_handoffs(&mut self, now: Micros) -> Option<Handoffs> {
        let is_due = |handoffs: &mut Handoffs| {
            now.since(handoffs.last_at) >= PAUSE || now.since(handoffs.first_at) >= PATIENCE
        };
        self.handoffs.take_if(is_due)
    }

    /// Whether connections may be left that have not resumed.
    pub fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Ends all running failovers, after this node has dropped its state.
    pub fn reset(&mut self) {
        for running in std::mem::take(&mut self.running) {
            self.remember(running.status);
        }
    }

    /// What they have done so far.
    pub fn counts(&self) -> FailoverCounts {
        self.counts
    }

    /// Past and running failovers.
    pub fn list(&self) -> Vec<FailoverStatus> {
        let mut all = self.last.clone();
        for running in &self.running {
            add(&mut all, running.status.clone());
        }
        all.into()
    }

    fn remember(&mut self, status: FailoverStatus) {
        add(&mut self.last, FailoverStatus { running: false, ..status });
    }
}

/// Appends one; a handoff that follows a handoff is merged with it.
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
    fn failover_ends_with_the_last_worker_and_the_list_is_bounded() {
        let mut rounds = Failovers::default();
        let buckets = (0..3).map(|bucket| (Bucket(bucket), Term::default())).collect();
        let mut round = FailoverOrder { number: 0, buckets, silent: Micros(0) };
        let part = |round, connections, took_us| Resumed { round, buckets: 1, connections, lost: 1, took_us };
        for begun in 0..40u64 {
            let at = Micros(begun * 1000);
            rounds.begin(at, begun, &mut round, 2, Micros(40_500), 2);
            assert_eq!(rounds.resumed(at, &part(round.number, 3, 500)), None);
            assert!(rounds.list().last().is_some_and(|last| last.running));
            let done = rounds.resumed(at + Micros(1500), &part(round.number, 4, 900)).unwrap();
            let figures = (done.failed_over, done.handed_off, done.connections, done.lost);
            assert_eq!(figures, (2, 1, 7, 2));
            assert_eq!((done.took_ms, done.worker_ms, done.running), (1.5, 0.9, false));
            assert_eq!(done.silent_ms, 40.5);
        }
        assert_eq!(rounds.list().len(), FAILOVERS_MAX);
        let counts = rounds.counts();
        assert_eq!((counts.continued, counts.lost), (280, 80));
        assert_eq!(
            rounds.resumed(Micros(0), &part(round.number, 1, 1)),
            None,
            "a report of no running failover"
        );
    }

    #[test]
    fn consecutive_handoffs_are_merged_and_logged_at_their_end() {
        let mut rounds = Failovers::default();
        let run = |rounds: &mut Failovers, at_ms: u64, failed_over: usize| {
            let buckets = vec![(Bucket(0), Term::default())];
            let mut round = FailoverOrder { number: 0, buckets, silent: Micros(0) };
            let at = Micros::from_ms(at_ms);
            rounds.begin(at, at_ms, &mut round, failed_over, Micros(0), 1);
            let part = Resumed { round: round.number, connections: 2, took_us: 3000, ..Resumed::default() };
            rounds.resumed(at + Micros(5000), &part).is_some()
        };
        assert!((0..300).all(|ms| !run(&mut rounds, ms, 0)));
        assert!(run(&mut rounds, 300, 1), "a failover is logged at once");
        assert!(!run(&mut rounds, 301, 0));
        let reported: Vec<_> =
            rounds.list().iter().map(|one| (one.failed_over, one.handed_off, one.connections)).collect();
        assert_eq!(reported, [(0, 300, 600), (1, 0, 2), (0, 1, 2)]);
        assert_eq!(rounds.take_handoffs(Micros::from_ms(1305)), None, "more may come");
        let handoffs = rounds.take_handoffs(Micros::from_ms(1306)).unwrap();
        assert_eq!(
            (handoffs.buckets, handoffs.connections, handoffs.span()),
            (301, 602, Micros::from_ms(306))
        );
        assert_eq!(rounds.take_handoffs(Micros::from_ms(9000)), None);
        let reported = (0..30).filter(|n| {
            let at_ms = 10_000 + n * 500;
            run(&mut rounds, at_ms, 0);
            rounds.take_handoffs(Micros::from_ms(at_ms)).is_some()
        });
        assert_eq!(reported.count(), 1, "handoffs without an end are logged now and then");
    }

    #[test]
    fn late_report_of_a_dropped_failover_does_not_end_a_new_one() {
        let mut rounds = Failovers::default();
        let begin = |rounds: &mut Failovers| {
            let mut round =
                FailoverOrder { number: 0, buckets: vec![(Bucket(0), Term::default())], silent: Micros(0) };
            rounds.begin(Micros(0), 0, &mut round, 1, Micros(0), 2);
            Resumed { round: round.number, ..Resumed::default() }
        };
        let dropped = begin(&mut rounds);
        assert_eq!(rounds.resumed(Micros(0), &dropped), None);
        rounds.reset();
        let next = begin(&mut rounds);
        assert_eq!(rounds.resumed(Micros(0), &next), None);
        assert_eq!(rounds.resumed(Micros(0), &dropped), None);
        assert!(rounds.is_running());
        assert!(rounds.resumed(Micros(0), &next).is_some());
        assert!(!rounds.is_running());
    }

    #[test]
    fn failovers_beyond_the_bound_end_with_the_newest() {
        let mut rounds = Failovers::default();
        let parts: Vec<Resumed> = (0..RUNNING_MAX + 2)
            .map(|_| {
                let mut round = FailoverOrder { number: 0, buckets: Vec::new(), silent: Micros(0) };
                rounds.begin(Micros(0), 0, &mut round, 1, Micros(0), 1);
                Resumed { round: round.number, ..Resumed::default() }
            })
            .collect();
        let (last, rest) = parts.split_last().unwrap();
        let done = rest.iter().filter(|part| rounds.resumed(Micros(0), part).is_some());
        assert_eq!(done.count(), RUNNING_MAX - 1);
        assert!(rounds.is_running());
        assert!(rounds.resumed(Micros(0), last).is_some() && !rounds.is_running());
    }
}
