//! Segments of clients whose connection has no socket yet: they are buffered for the socket, and these connections
//! resume first.
//!
//! Idle connections are restored between all other work, which takes seconds when there are many. A segment that
//! arrives before the socket exists would be lost, and the client's kernel would repeat it only after 0.2, 0.6, 1.4 and
//! 3 seconds. The gate therefore diverts it to the worker, which puts it into the socket's receive queue
//! ([`crate::host::Restoring::receive`]).

use evergate_base::net::{DivertedSegment, Flow, PeerPosition};
use std::collections::{HashMap, VecDeque};

/// Most buffered bytes in all.
const BYTES_MAX: usize = 16 << 20;
/// Most connections with buffered segments, and most segments of each.
const FLOWS_MAX: usize = 65_536;
const SEGMENTS_MAX: usize = 8;

/// A piece of a client's stream, its sequence number, and the acknowledgement that came with it.
pub(super) struct EarlySegment {
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) data: Vec<u8>,
}

/// Input of one client before its connection has a socket.
#[derive(Default)]
pub(super) struct EarlyInput {
    /// Newest position of the client.
    pub(super) position: Option<PeerPosition>,
    pub(super) pieces: Vec<EarlySegment>,
}

/// Buffered input of clients whose connections have no socket yet.
#[derive(Default)]
pub(super) struct EarlySegments {
    flows: HashMap<Flow, EarlyInput>,
    bytes: usize,
    /// Flows in the order of their first segment, and some that were removed.
    order: VecDeque<Flow>,
}

impl EarlySegments {
    /// Buffers a diverted segment. Without room it is dropped: the client retransmits it.
    pub(super) fn note(&mut self, diverted: DivertedSegment) {
        let DivertedSegment { flow, position, data } = diverted;
        if !self.flows.contains_key(&flow) {
            if self.flows.len() >= FLOWS_MAX {
                return;
            }
            self.order.push_back(flow);
        }
        let input = self.flows.entry(flow).or_default();
        input.position = Some(position);
        let (seq, pieces) = (position.seq, &mut input.pieces);
        let is_known = pieces.iter().any(|piece| piece.seq == seq && piece.data.len() >= data.len());
        if data.is_empty() || is_known || pieces.len() >= SEGMENTS_MAX || self.bytes + data.len() > BYTES_MAX
        {
            return;
        }
        self.bytes += data.len();
        pieces.push(EarlySegment { seq, ack: position.ack, data });
    }

    /// Removes the input of a flow whose socket exists now, or never will.
    pub(super) fn take(&mut self, flow: &Flow) -> EarlyInput {
        let input = self.flows.remove(flow).unwrap_or_default();
        self.bytes -= input.pieces.iter().map(|piece| piece.data.len()).sum::<usize>();
        input
    }

    /// The waiting flow whose first segment is the oldest; each flow is returned once.
    pub(super) fn next(&mut self) -> Option<Flow> {
        while let Some(flow) = self.order.pop_front() {
            if self.flows.contains_key(&flow) {
                return Some(flow);
            }
        }
        None
    }

    /// Requeues flows that cannot resume yet.
    pub(super) fn put_back(&mut self, flows: Vec<Flow>) {
        self.order.extend(flows);
    }
}

/// The pieces that follow `next` without a gap, in order, each byte once.
pub(super) fn in_order(pieces: &[EarlySegment], mut next: u32) -> Vec<&[u8]> {
    let ahead = |seq: u32, next: u32| seq.wrapping_sub(next) as i32;
    let mut sorted: Vec<&EarlySegment> = pieces.iter().collect();
    sorted.sort_by_key(|piece| ahead(piece.seq, next));
    let mut found = Vec::new();
    for EarlySegment { seq, data, .. } in sorted {
        let Ok(known) = usize::try_from(-i64::from(ahead(*seq, next))) else { break };
        if let Some(fresh) = data.get(known..).filter(|fresh| !fresh.is_empty()) {
            next = next.wrapping_add(fresh.len() as u32);
            found.push(fresh);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(port: u16) -> Flow {
        Flow::new(([10, 0, 0, 1], 443).into(), ([10, 0, 0, 2], port).into())
    }

    fn early_segment(port: u16, seq: u32, data: &[u8]) -> DivertedSegment {
        let position = PeerPosition { seq, ack: 1, window: u32::from(port), count: 1, timestamps: (0, 0) };
        DivertedSegment { flow: flow(port), position, data: data.to_vec() }
    }

    #[test]
    fn flows_come_once_in_order_of_their_first_segment() {
        let mut early = EarlySegments::default();
        for (port, seq, data) in [(2, 5, "ab"), (1, 9, "x"), (2, 7, "cd"), (2, 5, "ab"), (3, 0, "")] {
            early.note(early_segment(port, seq, data.as_bytes()));
        }
        assert_eq!(early.bytes, 5, "a retransmission is buffered once");
        early.take(&flow(1));
        assert_eq!(early.next(), Some(flow(2)));
        early.put_back(vec![flow(2)]);
        assert_eq!((early.next(), early.next(), early.next()), (Some(flow(3)), Some(flow(2)), None));
        let input = early.take(&flow(2));
        assert_eq!((input.pieces.len(), input.position.map(|position| position.window)), (2, Some(2)));
        assert!(early.take(&flow(3)).pieces.is_empty() && early.flows.is_empty() && early.bytes == 0);
    }

    #[test]
    fn flood_is_bounded() {
        let mut early = EarlySegments::default();
        for seq in 0..100 {
            early.note(early_segment(1, seq, b"x"));
        }
        assert_eq!(early.bytes, SEGMENTS_MAX);
        for port in 2..u16::MAX {
            early.note(early_segment(port, 0, &[0; 4096]));
        }
        assert!(early.bytes <= BYTES_MAX && early.flows.len() <= FLOWS_MAX);
    }

    #[test]
    fn pieces_are_joined_without_gaps_and_without_repetition() {
        let join = |pieces: &[(u32, &str)], next: u32| {
            let piece = |(seq, data): &(u32, &str)| EarlySegment {
                seq: *seq,
                ack: 0,
                data: data.as_bytes().to_vec(),
            };
            let pieces: Vec<EarlySegment> = pieces.iter().map(piece).collect();
            String::from_utf8(in_order(&pieces, next).concat()).unwrap()
        };
        assert_eq!(join(&[(12, "cd"), (10, "ab")], 10), "abcd");
        assert_eq!(join(&[(10, "abcd"), (12, "cdef"), (11, "b")], 11), "bcdef");
        assert_eq!(join(&[(10, "ab"), (13, "d")], 10), "ab", "a gap");
        assert_eq!(join(&[(11, "b")], 10), "", "the first byte is missing");
        assert_eq!(join(&[(5, "old")], 10), "");
        assert_eq!(join(&[(u32::MAX, "abc"), (2, "d")], u32::MAX), "abcd", "numbers wrap around");
    }
}
