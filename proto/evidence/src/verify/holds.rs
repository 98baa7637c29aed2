//! Logged holds against logged deletions: which holds were set when the log got a deletion.
//!
//! A hold on a period covers every segment with records in it. A hold with a query covers segments with connections
//! that only the deleted records could show: such a hold is a remark, not a finding.

use crate::entry::Hold;

/// Holds of the store whose entries have receipts. Memory: 48 bytes for each.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    logged: Vec<LoggedHold>,
}

#[derive(Debug)]
struct LoggedHold {
    /// Place of the entry in the log.
    index: u64,
    hold: u64,
    is_set: bool,
    period_ns: (u64, u64),
    has_query: bool,
}

/// What a deletion did to the holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Number of a hold on a period that covered the deleted records.
    pub(crate) hold: Option<u64>,
    /// Number of a hold with a query whose period has deleted records.
    pub(crate) unchecked: Option<u64>,
}

impl Holds {
    /// Takes an entry of the log.
    pub(crate) fn record(&mut self, index: u64, hold: &Hold) {
        self.logged.push(LoggedHold {
            index,
            hold: hold.hold,
            is_set: hold.is_set,
            period_ns: (hold.from_ns, hold.to_ns),
            has_query: !hold.query.is_empty(),
        });
    }

    /// Holds set at this place of the log that cover records of these times.
    pub(crate) fn violated(&self, index: u64, (first_ns, last_ns): (u64, u64)) -> Violation {
        let mut violation = Violation::default();
        for set in self.logged.iter().filter(|hold| hold.is_set && hold.index < index) {
            let is_lifted = |other: &LoggedHold| {
                !other.is_set && other.hold == set.hold && (set.index..index).contains(&other.index)
            };
            let (from_ns, to_ns) = set.period_ns;
            if first_ns > to_ns || last_ns < from_ns || self.logged.iter().any(is_lifted) {
                continue;
            }
            match set.has_query {
                true => violation.unchecked = Some(set.hold),
                false => violation.hold = Some(set.hold),
            }
        }
        violation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(is_set: bool, hold: u64, from_ns: u64, to_ns: u64, query: &str) -> Hold {
        let (recorder, query, reason) = ([0; 32], query.into(), String::new());
        Hold { is_set, recorder, hold, from_ns, to_ns, query, reason }
    }

    #[test]
    fn hold_counts_from_its_entry_to_its_end() {
        let mut holds = Holds::default();
        holds.record(5, &hold(true, 1, 100, 200, ""));
        holds.record(9, &hold(false, 1, 100, 200, ""));
        let at = |index, times| holds.violated(index, times).hold;
        assert_eq!((at(4, (150, 160)), at(6, (150, 160)), at(10, (150, 160))), (None, Some(1), None));
        assert_eq!((at(6, (0, 99)), at(6, (0, 100)), at(6, (201, 300))), (None, Some(1), None));
    }

    #[test]
    fn hold_with_a_query_is_a_remark() {
        let mut holds = Holds::default();
        holds.record(5, &hold(true, 2, 0, u64::MAX, "--sni shop.example"));
        assert_eq!(holds.violated(6, (1, 2)), Violation { hold: None, unchecked: Some(2) });
    }
}
