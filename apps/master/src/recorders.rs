//! State of every Recorder in the log: the end of its chain, and where its newest batches are.

use evergate_evidence::entry::{Enrolment, Entry, Event};
use evergate_evidence::merkle::Hash;
use evergate_evidence::statement::{ChainEnd, Statement};
use evergate_evidence::submission::{Refusal, RefusalCode};
use std::collections::{BTreeMap, VecDeque};

/// Batches of each Recorder whose places are known: older ones get no second receipt.
pub const WINDOW: usize = 4096;

/// Place of a batch in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Number of the batch.
    pub batch: u64,
    /// Place in the log.
    pub index: u64,
    /// Time of receipt in ms since 1970.
    pub received_ms: u64,
    /// Hash of the statement as sent.
    pub link: Hash,
}

/// End of a Recorder's chain and its newest batches.
#[derive(Clone, Debug)]
pub struct Chain {
    /// What the next statement must follow.
    pub end: ChainEnd,
    /// Place of the last statement.
    pub last_index: u64,
    window: VecDeque<Logged>,
}

/// Outcome of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is next: log it.
    Next,
    /// It is in the log already.
    Logged(Logged),
}

/// All Recorders of a log.
#[derive(Clone, Debug, Default)]
pub struct Recorders {
    chains: BTreeMap<Hash, Chain>,
    enrolled: BTreeMap<Hash, String>,
}

impl Recorders {
    /// Recorders with the ends of their chains, from a snapshot.
    pub fn restore(ends: Vec<(ChainEnd, u64)>, enrolled: BTreeMap<Hash, String>) -> Recorders {
        let chain = |(end, last_index): (ChainEnd, u64)| {
            (end.recorder, Chain { end, last_index, window: VecDeque::new() })
        };
        Recorders { chains: ends.into_iter().map(chain).collect(), enrolled }
    }

    /// End of a Recorder's chain.
    pub fn chain(&self, recorder: &Hash) -> Option<&Chain> {
        self.chains.get(recorder)
    }

    /// All chains.
    pub fn chains(&self) -> impl Iterator<Item = &Chain> {
        self.chains.values()
    }

    /// Recorders that the log has as enrolled, with their names.
    pub fn enrolled(&self) -> &BTreeMap<Hash, String> {
        &self.enrolled
    }

    /// Decides about a statement. Changes nothing.
    pub fn check(&self, statement: &Statement) -> Result<Outcome, Refusal> {
        let refuse = |code, text: String| Err(Refusal { code, text });
        if let Err(error) = statement.check() {
            return refuse(RefusalCode::Malformed, error.to_string());
        }
        let chain = self.chains.get(&statement.recorder);
        let end = chain.map(|chain| &chain.end);
        if end.is_none_or(|end| statement.batch > end.batch) {
            return match statement.follows(end) {
                Ok(()) => Ok(Outcome::Next),
                Err(error) => refuse(RefusalCode::Sequence, error.to_string()),
            };
        }
        let logged = chain.and_then(|chain| chain.find(statement.batch));
        match logged {
            None => refuse(
                RefusalCode::Sequence,
                format!(
                    "batch {} is older than the last {WINDOW}; its receipt is in the log only",
                    statement.batch
                ),
            ),
            Some(logged) if logged.link == statement.link() => Ok(Outcome::Logged(logged)),
            Some(_) => {
                let text = format!("batch {} is in the log with other content", statement.batch);
                refuse(RefusalCode::Differs, text)
            }
        }
    }

    /// Takes an entry of the log into account.
    pub fn record(&mut self, index: u64, entry: &Entry) {
        match entry {
            Entry::Statement(statement) => {
                let end = ChainEnd::from(statement);
                let chain = self.chains.entry(statement.recorder).or_insert_with(|| Chain {
                    end,
                    last_index: index,
                    window: VecDeque::new(),
                });
                chain.remember(index, statement, end.link);
                chain.end = end;
                chain.last_index = index;
            }
            Entry::Event(_, Event::Enrolment(Enrolment { is_enrolled, recorder, name })) => {
                match is_enrolled {
                    true => drop(self.enrolled.insert(*recorder, name.clone())),
                    false => drop(self.enrolled.remove(recorder)),
                };
            }
            _ => {}
        }
    }

    /// Takes a statement into account that is before the end of its chain: places of old batches at start.
    pub fn record_old(&mut self, index: u64, statement: &Statement) {
        if let Some(chain) = self.chains.get_mut(&statement.recorder) {
            chain.remember(index, statement, statement.link());
        }
    }
}

impl Chain {
    fn remember(&mut self, index: u64, statement: &Statement, link: Hash) {
        if self.window.len() == WINDOW {
            self.window.pop_front();
        }
        let Statement { batch, received_ms, .. } = *statement;
        self.window.push_back(Logged { batch, index, received_ms, link });
    }

    fn find(&self, batch: u64) -> Option<Logged> {
        let at = self.window.binary_search_by_key(&batch, |logged| logged.batch).ok()?;
        self.window.get(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_evidence::statement::{Counters, Partition, Span};

    fn statement(batch: u64, previous: Hash) -> Statement {
        Statement {
            received_ms: 0,
            recorder: [1; 32],
            batch,
            span: Span { first_seq: batch * 2 - 1, last_seq: batch * 2, first_ns: 1, last_ns: 1 },
            packets: 2,
            packet_bytes: 1,
            root: [0; 32],
            previous,
            counters: Counters::default(),
            partition: Partition::default(),
            emergency_ms: 0,
        }
    }

    #[test]
    fn statements_are_next_repeated_or_refused() {
        let mut recorders = Recorders::default();
        let mut previous = [0; 32];
        let mut sent = Vec::new();
        for batch in 1..=WINDOW as u64 + 2 {
            let statement = statement(batch, previous);
            assert_eq!(recorders.check(&statement), Ok(Outcome::Next));
            previous = statement.link();
            let logged = Statement { received_ms: 5, ..statement.clone() };
            recorders.record(batch + 10, &Entry::Statement(logged));
            sent.push(statement);
        }
        assert!(matches!(recorders.check(&sent[2]), Ok(Outcome::Logged(Logged { batch: 3, index: 13, .. }))));
        let code = |statement: &Statement| recorders.check(statement).unwrap_err().code;
        assert_eq!(code(&sent[1]), RefusalCode::Sequence);
        let differs = Statement { root: [9; 32], ..sent[50].clone() };
        assert_eq!(code(&differs), RefusalCode::Differs);
        assert_eq!(code(&statement(WINDOW as u64 + 4, previous)), RefusalCode::Sequence);
        assert_eq!(code(&statement(WINDOW as u64 + 3, [7; 32])), RefusalCode::Sequence);
        let malformed = Statement { packets: 3, ..statement(WINDOW as u64 + 3, previous) };
        assert_eq!(code(&malformed), RefusalCode::Malformed);
    }
}
