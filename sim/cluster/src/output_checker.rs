//! Everything that left the cluster, and its invariants.
//!
//! Segments are checked where they leave a node's gate, even those that the network then loses: an observer there has
//! them. One byte at one position of a stream, whichever node sends it, is law 0 of `docs/internals/failover.md`. Since
//! a record's sequence number follows from its place in the stream, it is law 3 as well, "one nonce, one plaintext".

use crate::segment::{FIRST, Flow, Segment};
use std::collections::BTreeMap;

/// One flow as observed outside the cluster.
#[derive(Debug, Default)]
struct Record {
    bytes: Vec<u8>,
    /// The bytes that have left: a gate that was closed for a while leaves holes.
    left: Vec<bool>,
    /// Position of the FIN.
    end: Option<u64>,
    acked: u64,
}

/// Check of all output: see the module's description.
#[derive(Debug, Default)]
pub(crate) struct OutputChecker {
    flows: BTreeMap<Flow, Record>,
    pub(crate) segments: u64,
}

impl OutputChecker {
    /// Records a segment that leaves, and compares it with earlier ones. `has_end`: the peer has the FIN. The gate
    /// cannot know whether the last number that the peer has acknowledged is a byte or that FIN, and may repeat the FIN
    /// one higher; a peer ignores it.
    pub(crate) fn note(&mut self, segment: &Segment, has_end: bool) -> Result<(), String> {
        self.segments += 1;
        if segment.syn || segment.rst || segment.probe {
            return Ok(());
        }
        let record = self.flows.entry(segment.flow).or_default();
        record.acked = record.acked.max(segment.ack.unwrap_or_default());
        let at = (segment.seq - FIRST) as usize;
        let data = &segment.data[..];
        if !data.is_empty() {
            let size = record.bytes.len().max(at + data.len());
            record.bytes.resize(size, 0);
            record.left.resize(size, false);
            for (place, byte) in (at..).zip(data) {
                if record.left[place] && record.bytes[place] != *byte {
                    return Err(format!("{}: another byte at position {place}", segment.flow));
                }
                record.bytes[place] = *byte;
                record.left[place] = true;
            }
        }
        let end = (at + data.len()) as u64;
        if segment.fin && data.is_empty() && has_end && record.end.is_some_and(|known| known + 1 == end) {
            return Ok(());
        }
        if segment.fin && record.end.is_some_and(|known| known != end) {
            return Err(format!("{}: FIN at {end} and at {:?}", segment.flow, record.end));
        }
        if segment.fin {
            record.end = Some(end);
        }
        if record.end.is_some_and(|known| (record.bytes.len() as u64) > known) {
            return Err(format!("{}: bytes after the FIN at {:?}", segment.flow, record.end));
        }
        Ok(())
    }

    /// Whether nothing of the flow has left that a node without its state could not send again.
    pub(crate) fn is_untouched(&self, flow: Flow) -> bool {
        self.flows.get(&flow).is_none_or(|record| record.bytes.is_empty() && record.acked <= FIRST)
    }
}
