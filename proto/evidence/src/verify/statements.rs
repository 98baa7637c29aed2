//! Chain of statements: each follows the one before, and does not contradict itself or its receipt.

use super::finding::{FindingKind, Findings};
use super::stream::StoreFacts;
use crate::statement::{ChainEnd, STATEMENT_BYTES, Statement};
use std::rc::Rc;

/// Path of the statements in a store.
pub(crate) const STATEMENTS: &str = "statements";
/// Largest lead of a Recorder's clock over the Master's in nanoseconds.
pub(crate) const CLOCK_LEAD_NS: u64 = 10_000_000_000;

/// A statement with its receipt.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) statement: Statement,
    /// File of the receipt.
    pub(crate) path: Rc<str>,
    pub(crate) offset: u64,
}

/// State of the chain behind the last statement.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    /// Number of the last batch.
    pub(crate) batch: u64,
    /// End of the chain; `None` before batch 1 and behind a damaged statement.
    end: Option<ChainEnd>,
    last: Option<Statement>,
    received_ms: u64,
}

impl Chain {
    /// Whether the statements so far cover every record before this one.
    pub(crate) fn covers(&self, seq: u64) -> bool {
        self.end.is_some_and(|end| end.last_seq.saturating_add(1) >= seq)
    }

    /// The next statement from its stored form and from its receipt, which is signed and prevails. `Err` if neither is
    /// there; `Ok(None)` if the stored one is damaged and has no receipt.
    pub(crate) fn next(
        &mut self,
        stored: Option<[u8; STATEMENT_BYTES]>,
        received: Option<&Received>,
        findings: &mut Findings,
    ) -> Result<Option<Statement>, ()> {
        if stored.is_none() && received.is_none() {
            return Err(());
        }
        let offset = self.batch.saturating_mul(STATEMENT_BYTES as u64);
        self.batch += 1;
        let mut fault = |detail: &str| {
            let detail = format!("batch {}: {detail}", self.batch);
            findings.add(FindingKind::Statement, STATEMENTS, Some(offset), detail);
        };
        let as_sent = received.map(|received| received.statement.as_sent());
        match (&stored, &as_sent) {
            (None, _) => fault("the statement is missing, its receipt is there"),
            (Some(stored), Some(as_sent)) if *stored != as_sent.encode() => {
                fault("the statement differs from the one with the receipt");
            }
            _ => {}
        }
        let statement = match (as_sent, stored.map(|stored| Statement::decode(&stored))) {
            (Some(as_sent), _) => as_sent,
            (None, Some(Ok(statement))) if statement.received_ms == 0 => statement,
            (None, Some(Ok(_))) => {
                fault("the stored statement has a time of receipt");
                self.end = None;
                return Ok(None);
            }
            (None, Some(Err(error))) => {
                fault(&error.to_string());
                self.end = None;
                return Ok(None);
            }
            (None, None) => return Err(()),
        };
        Ok(Some(statement))
    }

    /// Checks that the statement follows, and makes it the end of the chain.
    pub(crate) fn follow(
        &mut self,
        statement: &Statement,
        received: Option<&Received>,
        facts: &StoreFacts,
        findings: &mut Findings,
    ) {
        let offset = (self.batch - 1).saturating_mul(STATEMENT_BYTES as u64);
        let mut fault = |kind, detail: String| findings.add(kind, STATEMENTS, Some(offset), detail);
        if let Err(error) = statement.check() {
            fault(FindingKind::Statement, error.to_string());
        }
        if statement.recorder != facts.recorder {
            fault(FindingKind::Statement, "the statement is of another Recorder than store.json".into());
        }
        if (statement.partition.part, statement.partition.parts) != (facts.part, facts.parts) {
            let detail = "part and parts differ from store.json".to_owned();
            fault(FindingKind::Statement, detail.clone());
            findings.add_once(
                FindingKind::Description,
                "store.json",
                "part and parts differ from statements",
            );
        }
        let is_known = self.end.is_some() || self.batch == 1;
        if is_known && let Err(error) = statement.follows(self.end.as_ref()) {
            findings.add(FindingKind::Statement, STATEMENTS, Some(offset), error);
        }
        if let Some(received) = received {
            self.check_time(received, findings);
        }
        self.end = Some(ChainEnd::from(statement));
    }

    /// Checks the time of receipt against the one before and against the batch's own time.
    fn check_time(&mut self, received: &Received, findings: &mut Findings) {
        let Received { statement, path, offset } = received;
        if statement.received_ms < self.received_ms {
            let detail = format!("batch {}: time of receipt goes back", statement.batch);
            findings.add(FindingKind::Time, path, Some(*offset), detail);
        }
        self.received_ms = statement.received_ms;
        let limit_ns = statement.received_ms.saturating_mul(1_000_000).saturating_add(CLOCK_LEAD_NS);
        if statement.span.last_ns > limit_ns {
            let detail =
                format!("batch {}: its records are more than 10 s after its receipt", statement.batch);
            findings.add(FindingKind::Time, path, Some(*offset), detail);
        }
    }

    /// Checks counters against those of the statement before, unless the Recorder started between them, and makes the
    /// statement the last one.
    pub(crate) fn check_counters(&mut self, statement: Statement, is_new_run: bool, findings: &mut Findings) {
        let last = self.last.replace(statement);
        let (Some(last), Some(statement)) = (last, &self.last) else { return };
        let (before, after) = (&last.counters, &statement.counters);
        let goes_back = after.seen < before.seen
            || after.written < before.written
            || after.dropped < before.dropped
            || statement.emergency_ms < last.emergency_ms;
        if goes_back && !is_new_run {
            let offset = statement.batch.saturating_sub(1).saturating_mul(STATEMENT_BYTES as u64);
            let detail = format!("batch {}: counters go back without a start", statement.batch);
            findings.add(FindingKind::Counters, STATEMENTS, Some(offset), detail);
        }
    }
}
