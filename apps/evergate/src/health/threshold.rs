//! Results of checks become a state: `rise` successes or `fall` failures in a row turn it round.

use evergate_config::model::Health;
use evergate_connection::printable;
use serde::{Deserialize, Serialize};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The last health check of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HealthStatus {
    /// Whether it passed.
    pub ok: bool,
    /// Result.
    pub detail: String,
    /// When it ended, in seconds since 1970.
    pub checked_unix_s: u64,
    /// How long it took.
    pub took_ms: f64,
    /// Checks that passed since the process started.
    pub passed: u64,
    /// Checks that failed since then.
    pub failed: u64,
}

/// State of one server's checks; survives a reload.
#[derive(Debug, Default)]
pub struct Record(Mutex<Tally>);

#[derive(Debug, Default)]
struct Tally {
    /// Checks of the process before have led to the state.
    inherited: bool,
    /// The earlier results are discarded: the next result decides alone.
    fresh_start: bool,
    /// Results in a row that contradict the state.
    against: u32,
    last: Option<HealthStatus>,
}

/// A server went up or down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Whether it is up now.
    pub up: bool,
    /// Result of the last check.
    pub detail: String,
    /// Number of equal results in a row.
    pub in_a_row: u32,
}

impl Record {
    /// The record of a server whose state comes from the process before.
    pub fn inherited() -> Record {
        Record(Mutex::new(Tally { inherited: true, ..Tally::default() }))
    }

    /// Whether no check has ended yet, here or in the old process, or the earlier results are discarded.
    pub fn is_fresh(&self) -> bool {
        self.lock().is_fresh()
    }

    /// The next result decides alone, as the first did.
    pub fn begin_again(&self) {
        self.lock().fresh_start = true;
    }

    /// The last check.
    pub fn status(&self) -> Option<HealthStatus> {
        self.lock().last.clone()
    }

    /// Takes in a result of a server that is `up` so far; a transition if that changes now.
    pub fn observe(
        &self,
        up: bool,
        health: &Health,
        result: Result<String, String>,
        took: Duration,
    ) -> Option<Transition> {
        let mut tally = self.lock();
        let (ok, detail) = match result {
            Ok(detail) => (true, detail),
            Err(detail) => (false, detail),
        };
        let detail = printable(&detail); // a server's certificate may be in it
        let (passed, failed) = tally.last.as_ref().map_or((0, 0), |last| (last.passed, last.failed));
        let is_first = tally.is_fresh();
        tally.fresh_start = false;
        tally.last = Some(HealthStatus {
            ok,
            detail: detail.clone(),
            checked_unix_s: evergate_sys::wall_clock_s(),
            took_ms: took.as_micros() as f64 / 1000.0,
            passed: passed + u64::from(ok),
            failed: failed + u64::from(!ok),
        });
        if ok == up {
            tally.against = 0;
            return None;
        }
        tally.against += 1;
        let needed = if ok { health.rise } else { health.fall };
        if tally.against < needed && !is_first {
            return None;
        }
        let in_a_row = std::mem::take(&mut tally.against);
        Some(Transition { up: ok, detail, in_a_row })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tally {
    fn is_fresh(&self) -> bool {
        self.fresh_start || (self.last.is_none() && !self.inherited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_config::model::HealthCheck;

    fn states(results: &str) -> String {
        states_of(&Record::default(), results)
    }

    fn states_of(record: &Record, results: &str) -> String {
        let ms = Duration::from_millis;
        let health = Health { check: HealthCheck::Tcp, interval: ms(9), timeout: ms(9), rise: 2, fall: 3 };
        let mut up = true;
        let mut seen = String::new();
        for result in results.chars() {
            let result = if result == '+' { Ok("yes".to_owned()) } else { Err("no".to_owned()) };
            if let Some(transition) = record.observe(up, &health, result, ms(1)) {
                assert_ne!(transition.up, up, "a transition changes the state");
                up = transition.up;
            }
            seen.push(if up { 'U' } else { 'd' });
        }
        seen
    }

    #[test]
    fn first_result_decides_alone() {
        assert_eq!(states("-"), "d");
        assert_eq!(states("+"), "U");
        assert_eq!(states("-+-++"), "ddddU");
    }

    #[test]
    fn first_result_of_an_inherited_server_does_not_decide_alone() {
        assert!(!Record::inherited().is_fresh());
        assert_eq!(states_of(&Record::inherited(), "-+---"), "UUUUd");
    }

    #[test]
    fn next_result_decides_alone_after_a_restart_of_checks() {
        let record = Record::default();
        assert_eq!(states_of(&record, "+---"), "UUUd");
        record.begin_again();
        assert!(record.is_fresh());
        assert_eq!(states_of(&record, "-+-"), "ddd");
        record.begin_again();
        assert_eq!(states_of(&record, "+--"), "UUU");
    }

    #[test]
    fn state_changes_after_rise_or_fall_results_in_a_row() {
        assert_eq!(states("+--+---"), "UUUUUUd");
        assert_eq!(states("+---+-++"), "UUUddddU");
    }
}
