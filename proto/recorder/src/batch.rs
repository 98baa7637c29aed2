//! Batches: the records that one statement covers. Their size follows the Master's answers.
//!
//! Paper section 4.2.2, after Nagle: a batch closes at once while no statement is unanswered. Otherwise it closes at
//! [`BYTES`] of packets or after [`WAIT_NS`]. With [`UNANSWERED_MAX`] unanswered statements, batches grow instead.

use evergate_evidence::merkle::{Hash, Tree};
use evergate_evidence::statement::{ChainEnd, Counters, Partition, Span, Statement};

/// Bytes of packets at which a batch closes.
pub const BYTES: u64 = 2 << 20;
/// Time after its first record at which a batch closes, in nanoseconds.
pub const WAIT_NS: u64 = 20_000_000;
/// Most statements that are unanswered before batches grow.
pub const UNANSWERED_MAX: u64 = 16;
/// Bytes of packets at which a batch closes while the Master is slow or away.
pub const SLOW_BYTES: u64 = 64 << 20;
/// Time after its first record at which a batch closes while the Master is slow or away, in nanoseconds.
pub const SLOW_WAIT_NS: u64 = 1_000_000_000;

/// The open batch, and the end of the chain of statements.
#[derive(Debug)]
pub struct Batches {
    recorder: Hash,
    partition: Partition,
    end: Option<ChainEnd>,
    tree: Tree,
    span: Option<Span>,
    packets: u64,
    packet_bytes: u64,
    opened_ns: u64,
}

impl Batches {
    /// Batches of a Recorder whose last statement is `end`.
    pub fn new(recorder: Hash, partition: Partition, end: Option<ChainEnd>) -> Batches {
        Batches {
            recorder,
            partition,
            end,
            tree: Tree::new(),
            span: None,
            packets: 0,
            packet_bytes: 0,
            opened_ns: 0,
        }
    }

    /// Number of the last closed batch; 0 before the first.
    pub fn last_batch(&self) -> u64 {
        self.end.map_or(0, |end| end.batch)
    }

    /// Number of the last record in a closed batch; 0 before the first.
    pub fn last_seq(&self) -> u64 {
        self.end.map_or(0, |end| end.last_seq)
    }

    /// Adds a record. `packet_bytes` are those of its packet, if it is one.
    pub fn push(&mut self, leaf: Hash, seq: u64, time_ns: u64, packet_bytes: Option<usize>, now_ns: u64) {
        self.tree.push(leaf);
        if let Some(bytes) = packet_bytes {
            self.packets += 1;
            self.packet_bytes += bytes as u64;
        }
        match &mut self.span {
            Some(span) => {
                span.last_seq = seq;
                span.first_ns = span.first_ns.min(time_ns);
                span.last_ns = span.last_ns.max(time_ns);
            }
            None => {
                self.opened_ns = now_ns;
                self.span = Some(Span { first_seq: seq, last_seq: seq, first_ns: time_ns, last_ns: time_ns });
            }
        }
    }

    /// Whether the open batch should close, with this number of unanswered statements.
    pub fn is_due(&self, unanswered: u64, now_ns: u64) -> bool {
        let age_ns = now_ns.saturating_sub(self.opened_ns);
        match unanswered {
            _ if self.span.is_none() => false,
            0 => true,
            _ if unanswered < UNANSWERED_MAX => self.packet_bytes >= BYTES || age_ns >= WAIT_NS,
            _ => self.packet_bytes >= SLOW_BYTES || age_ns >= SLOW_WAIT_NS,
        }
    }

    /// Closes the open batch; `None` if it is empty.
    pub fn close(&mut self, counters: Counters, emergency_ms: u32) -> Option<Statement> {
        let span = self.span.take()?;
        let statement = Statement {
            received_ms: 0,
            recorder: self.recorder,
            batch: self.last_batch() + 1,
            span,
            packets: std::mem::take(&mut self.packets),
            packet_bytes: std::mem::take(&mut self.packet_bytes),
            root: std::mem::take(&mut self.tree).root(),
            previous: self.end.map_or([0; 32], |end| end.link),
            counters,
            partition: self.partition,
            emergency_ms,
        };
        self.end = Some(ChainEnd::from(&statement));
        Some(statement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_evidence::merkle::leaf_hash;

    fn batches() -> Batches {
        Batches::new([1; 32], Partition::default(), None)
    }

    #[test]
    fn batch_closes_at_once_without_unanswered_statements() {
        let mut batches = batches();
        assert!(!batches.is_due(0, 5));
        batches.push([0; 32], 1, 5, Some(10), 5);
        assert!(batches.is_due(0, 5) && !batches.is_due(1, 5));
        assert!(batches.is_due(1, 5 + WAIT_NS) && !batches.is_due(UNANSWERED_MAX, 5 + WAIT_NS));
        assert!(batches.is_due(UNANSWERED_MAX, 5 + SLOW_WAIT_NS));
    }

    #[test]
    fn statements_follow_each_other() {
        let mut batches = batches();
        let leaf = leaf_hash(&[b"x"]);
        let mut previous: Option<ChainEnd> = None;
        for seq in 1..=3 {
            batches.push(leaf, seq, 100 - seq, None, 0);
            let statement = batches.close(Counters::default(), 0).expect("one record");
            assert_eq!(statement.follows(previous.as_ref()), Ok(()));
            assert_eq!((statement.check().is_ok(), statement.root), (true, leaf));
            previous = Some(ChainEnd::from(&statement));
        }
        assert_eq!(batches.close(Counters::default(), 0), None);
    }
}
