//! Payload of one direction of a TCP connection, in order.
//!
//! Bytes are kept as they were seen first. A repeat with the same bytes is dropped. A repeat with other bytes is named
//! [`Ambiguous`], with the digests of both copies: a capture cannot show which of them the receiver took, unless it had
//! acknowledged the first before the second came.
//!
//! Packets may be out of order. Missing bytes become a hole after [`PATIENCE_PACKETS`] packets of the connection, at a
//! limit of memory, or at the end.

use crate::event::{HoleCause, MissingBytes};
use crate::limits::Limits;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Packets of the connection for which missing bytes may still come.
pub const PATIENCE_PACKETS: u32 = 1000;
/// Segments for which the direction's first byte is unknown, before the lowest of them counts as the first.
const UNPLACED_MAX: usize = 64;
/// Bytes around the expected place within which a segment belongs to the stream.
const WINDOW: i32 = 1 << 30;
/// Most ambiguous places that are named; more are counted.
pub const AMBIGUOUS_MAX: usize = 256;
/// Most bytes of other copies that are kept, to try records with them.
const COPY_BYTES_MAX: usize = 256 << 10;
/// Most parts of cut packets that are remembered.
const CUTS_MAX: usize = 1024;

/// Two copies of the same place with different bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ambiguous {
    /// Place in the direction's payload.
    pub offset: u64,
    /// Number of bytes, from the first to the last that differ.
    pub length: u64,
    /// SHA-256 of the bytes that were seen first.
    pub kept: [u8; 32],
    /// SHA-256 of the other bytes.
    pub other: [u8; 32],
    /// Whether the receiver had acknowledged the first copy before the other came.
    pub is_acknowledged: bool,
    /// Time of the other copy in nanoseconds since 1970.
    pub time_ns: u64,
    /// Bytes of the other copy; empty beyond a limit.
    pub(crate) copy: Vec<u8>,
}

/// Part of the payload, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes.
    Bytes {
        /// Time of their packet in nanoseconds since 1970.
        time_ns: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Missing bytes.
    Hole(MissingBytes),
    /// The sender's FIN: no byte follows.
    End,
}

/// A TCP segment with payload, as the stream takes it.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    /// Time of the packet in nanoseconds since 1970.
    pub time_ns: u64,
    /// Sequence number of the first byte.
    pub seq: u32,
    /// Captured bytes.
    pub bytes: &'a [u8],
    /// Number of bytes on the wire.
    pub wire_bytes: u32,
    /// Whether a FIN follows the bytes.
    pub has_fin: bool,
}

/// Counts of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// Bytes in order, without repeats and holes.
    pub bytes: u64,
    /// Bytes that came again.
    pub repeated_bytes: u64,
    /// Bytes that came again too late to be compared.
    pub unchecked_bytes: u64,
    /// Segments outside the stream, of another connection between the same ends or forged.
    pub strays: u64,
    /// Ambiguous places beyond [`AMBIGUOUS_MAX`].
    pub ambiguous_omitted: u64,
}

#[derive(Debug)]
struct Waiting {
    time_ns: u64,
    bytes: Vec<u8>,
}

/// One direction.
#[derive(Debug)]
pub struct Stream {
    pending_max: usize,
    history_max: usize,
    /// Sequence number of the first byte.
    base: Option<u32>,
    /// Payload that came before the first byte was known.
    unplaced: Vec<(u32, Waiting, u32, bool)>,
    /// Lowest acknowledgement before the first byte was known.
    lowest_ack: Option<u32>,
    /// Place of the next byte in order.
    next: u64,
    /// Place behind the highest acknowledged byte.
    acknowledged: u64,
    fin: Option<u64>,
    has_ended: bool,
    pending: BTreeMap<u64, Waiting>,
    pending_bytes: usize,
    /// Packets of the connection since the first byte is missing.
    missed_packets: u32,
    /// The last bytes before `next`.
    history: VecDeque<u8>,
    /// Holes in the history: their bytes are zeros there.
    gone: VecDeque<Range<u64>>,
    last_ns: u64,
    cuts: Vec<Range<u64>>,
    ambiguous: Vec<Ambiguous>,
    copy_bytes: usize,
    counts: StreamCounts,
    out: Vec<Piece>,
}

impl Stream {
    /// A direction without bytes.
    pub fn new(limits: &Limits) -> Stream {
        Stream {
            pending_max: limits.pending,
            history_max: limits.history,
            base: None,
            unplaced: Vec::new(),
            lowest_ack: None,
            next: 0,
            acknowledged: 0,
            fin: None,
            has_ended: false,
            pending: BTreeMap::new(),
            pending_bytes: 0,
            missed_packets: 0,
            history: VecDeque::new(),
            gone: VecDeque::new(),
            last_ns: 0,
            cuts: Vec::new(),
            ambiguous: Vec::new(),
            copy_bytes: 0,
            counts: StreamCounts::default(),
            out: Vec::new(),
        }
    }

    /// Takes a SYN of this direction.
    pub fn on_syn(&mut self, seq: u32) {
        let first = seq.wrapping_add(1);
        match self.base {
            None => self.place(first),
            Some(base) if base != first => self.counts.strays += 1,
            Some(_) => {}
        }
    }

    /// Takes payload or a FIN.
    pub fn on_payload(&mut self, payload: &Payload<'_>) {
        let Payload { time_ns, seq, bytes, wire_bytes, has_fin } = *payload;
        if self.base.is_some() {
            return self.take(time_ns, seq, bytes, wire_bytes, has_fin);
        }
        self.pending_bytes += bytes.len();
        self.unplaced.push((seq, Waiting { time_ns, bytes: bytes.to_vec() }, wire_bytes, has_fin));
        if self.unplaced.len() >= UNPLACED_MAX || self.pending_bytes > self.pending_max {
            self.place_lowest();
        }
    }

    /// Takes the receiver's acknowledgement of everything before `ack`.
    pub fn on_ack(&mut self, ack: u32) {
        if self.base.is_none() {
            let lowest = self.lowest_ack.get_or_insert(ack);
            if (ack.wrapping_sub(*lowest) as i32) < 0 {
                *lowest = ack;
            }
        }
        if let Some(place) = self.place_of(ack) {
            self.acknowledged = self.acknowledged.max(place);
        }
    }

    /// Counts a packet of the connection. After enough of them missing bytes are a hole.
    pub fn on_packet(&mut self, explain: &dyn Fn(u64, u64) -> HoleCause) {
        if self.pending.is_empty() {
            return;
        }
        self.missed_packets += 1;
        while self.missed_packets > PATIENCE_PACKETS || self.pending_bytes > self.pending_max {
            let is_full = self.missed_packets <= PATIENCE_PACKETS;
            let Some((&to, waiting)) = self.pending.first_key_value() else { break };
            let cause = explain(self.last_ns, waiting.time_ns);
            let cause = if is_full && !cause.is_declared() { HoleCause::Memory } else { cause };
            self.leave_hole(to, waiting.time_ns, cause);
            self.deliver();
        }
    }

    /// Ends the capture: whatever is missing is a hole.
    pub fn finish(&mut self, now_ns: u64, explain: &dyn Fn(u64, u64) -> HoleCause) {
        if self.base.is_none() {
            self.place_lowest();
        }
        while let Some((&to, waiting)) = self.pending.first_key_value() {
            let to_ns = waiting.time_ns;
            self.leave_hole(to, to_ns, explain(self.last_ns, to_ns));
            self.deliver();
        }
        // An acknowledgement of one byte more may be that of a FIN.
        let end =
            self.fin.unwrap_or(if self.acknowledged > self.next + 1 { self.acknowledged } else { self.next });
        if end > self.next {
            self.leave_hole(end, now_ns, explain(self.last_ns, now_ns));
        }
        self.deliver();
    }

    /// Takes the next part in order.
    pub fn poll(&mut self) -> Vec<Piece> {
        std::mem::take(&mut self.out)
    }

    /// Places with contradicting copies.
    pub fn ambiguous(&self) -> &[Ambiguous] {
        &self.ambiguous
    }

    /// Counts.
    pub fn counts(&self) -> StreamCounts {
        self.counts
    }

    /// Whether the direction's begin was captured, or its first byte is known otherwise.
    pub fn has_begun(&self) -> bool {
        self.base.is_some()
    }

    /// Bytes of memory.
    pub fn buffered(&self) -> usize {
        self.pending_bytes + self.history.capacity() + self.copy_bytes
    }

    /// Place of a sequence number, if it is near the next byte.
    fn place_of(&self, seq: u32) -> Option<u64> {
        let expected = self.base?.wrapping_add(self.next as u32);
        let ahead = seq.wrapping_sub(expected) as i32;
        if ahead.checked_abs().is_none_or(|distance| distance > WINDOW) {
            return None;
        }
        self.next.checked_add_signed(i64::from(ahead))
    }

    fn place_lowest(&mut self) {
        let Some((first, ..)) = self.unplaced.first() else { return };
        let ahead = |seq: &u32| seq.wrapping_sub(*first) as i32;
        // What the receiver had before the capture began is no hole.
        let seqs = self.unplaced.iter().map(|(seq, ..)| *seq).chain(self.lowest_ack);
        let lowest = seqs.min_by_key(ahead);
        if let Some(lowest) = lowest {
            self.place(lowest);
        }
    }

    fn place(&mut self, first: u32) {
        self.base = Some(first);
        self.pending_bytes = 0;
        for (seq, waiting, wire_bytes, has_fin) in std::mem::take(&mut self.unplaced) {
            self.take(waiting.time_ns, seq, &waiting.bytes, wire_bytes, has_fin);
        }
    }

    fn take(&mut self, time_ns: u64, seq: u32, bytes: &[u8], wire_bytes: u32, has_fin: bool) {
        let Some(expected) = self.base.map(|base| base.wrapping_add(self.next as u32)) else { return };
        let ahead = seq.wrapping_sub(expected) as i32;
        if ahead.checked_abs().is_none_or(|distance| distance > WINDOW) {
            self.counts.strays += 1;
            return;
        }
        // A segment may begin before the first byte: a keep-alive, or a forged one.
        let begin = self.next as i64 + i64::from(ahead);
        let before = usize::try_from(-begin).unwrap_or(0);
        let (offset, bytes) = (begin.max(0) as u64, bytes.get(before..).unwrap_or_default());
        let end = (begin + i64::from(wire_bytes)).max(0) as u64;
        if offset + (bytes.len() as u64) < end && self.cuts.len() < CUTS_MAX {
            self.cuts.push(offset + bytes.len() as u64..end);
        }
        if has_fin && self.fin.is_none() {
            self.fin = Some(end);
        }
        self.insert(time_ns, offset, bytes);
        self.deliver();
    }

    /// Adds the bytes that no packet before had, and compares the others.
    fn insert(&mut self, time_ns: u64, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        let part = |from: u64, to: u64| &bytes[(from - offset) as usize..(to - offset) as usize];
        let mut at = offset;
        if at < self.next {
            let to = end.min(self.next);
            self.compare_delivered(time_ns, at, part(at, to));
            at = to;
        }
        if at >= end {
            return;
        }
        let first = self.pending.range(..=at).next_back().map_or(at, |(from, _)| *from);
        let known: Vec<Range<u64>> = self
            .pending
            .range(first..end)
            .map(|(from, waiting)| *from..from + waiting.bytes.len() as u64)
            .filter(|range| range.end > at)
            .collect();
        for range in known {
            if at < range.start {
                self.add(time_ns, at, part(at, range.start));
            }
            let (from, to) = (at.max(range.start), end.min(range.end));
            self.compare_pending(time_ns, range.start, from, part(from, to));
            at = to;
        }
        if at < end {
            self.add(time_ns, at, part(at, end));
        }
    }

    fn add(&mut self, time_ns: u64, offset: u64, bytes: &[u8]) {
        self.pending_bytes += bytes.len();
        self.pending.insert(offset, Waiting { time_ns, bytes: bytes.to_vec() });
    }

    fn compare_pending(&mut self, time_ns: u64, piece: u64, from: u64, bytes: &[u8]) {
        self.counts.repeated_bytes += bytes.len() as u64;
        let Some(waiting) = self.pending.get(&piece) else { return };
        let begin = (from - piece) as usize;
        let known = &waiting.bytes[begin..begin + bytes.len()];
        if known != bytes {
            let known = known.to_vec();
            self.note_difference(time_ns, from, &known, bytes);
        }
    }

    fn compare_delivered(&mut self, time_ns: u64, from: u64, bytes: &[u8]) {
        self.counts.repeated_bytes += bytes.len() as u64;
        let oldest = self.next - self.history.len() as u64;
        let skipped = usize::try_from(oldest.saturating_sub(from)).unwrap_or(usize::MAX).min(bytes.len());
        self.counts.unchecked_bytes += skipped as u64;
        let (from, bytes) = (from + skipped as u64, &bytes[skipped..]);
        if bytes.is_empty() {
            return;
        }
        let to = from + bytes.len() as u64;
        let holes: Vec<_> =
            self.gone.iter().filter(|hole| hole.start < to && hole.end > from).cloned().collect();
        let begin = (from - oldest) as usize;
        let mut known: Vec<u8> = self.history.range(begin..begin + bytes.len()).copied().collect();
        for hole in holes {
            // These bytes come too late: their hole has been reported.
            let (first, last) = (hole.start.max(from) - from, hole.end.min(to) - from);
            known[first as usize..last as usize].copy_from_slice(&bytes[first as usize..last as usize]);
            self.counts.unchecked_bytes += last - first;
        }
        if known != bytes {
            self.note_difference(time_ns, from, &known, bytes);
        }
    }

    fn note_difference(&mut self, time_ns: u64, from: u64, known: &[u8], other: &[u8]) {
        let differs = |(a, b): (&u8, &u8)| a != b;
        let first = known.iter().zip(other).position(differs).unwrap_or(0);
        let last = known.iter().zip(other).rposition(differs).unwrap_or(0);
        let (known, other) = (&known[first..=last], &other[first..=last]);
        let (offset, digest) = (from + first as u64, Sha256::digest(other).into());
        let is_named = |named: &Ambiguous| named.offset == offset && named.other == digest;
        if self.ambiguous.iter().any(is_named) {
            return;
        }
        if self.ambiguous.len() >= AMBIGUOUS_MAX {
            self.counts.ambiguous_omitted += 1;
            return;
        }
        let has_room = self.copy_bytes + other.len() <= COPY_BYTES_MAX;
        self.copy_bytes += if has_room { other.len() } else { 0 };
        self.ambiguous.push(Ambiguous {
            offset,
            length: other.len() as u64,
            kept: Sha256::digest(known).into(),
            other: digest,
            is_acknowledged: self.acknowledged >= offset + other.len() as u64,
            time_ns,
            copy: if has_room { other.to_vec() } else { Vec::new() },
        });
    }

    /// Hands out what is in order.
    fn deliver(&mut self) {
        while let Some(entry) = self.pending.first_entry().filter(|entry| *entry.key() == self.next) {
            let Waiting { time_ns, bytes } = entry.remove();
            self.pending_bytes -= bytes.len();
            self.missed_packets = 0;
            self.last_ns = time_ns;
            self.next += bytes.len() as u64;
            self.counts.bytes += bytes.len() as u64;
            self.remember(&bytes);
            self.out.push(Piece::Bytes { time_ns, bytes });
        }
        if self.fin.is_some_and(|fin| fin <= self.next) && !self.has_ended && self.pending.is_empty() {
            self.has_ended = true;
            self.out.push(Piece::End);
        }
    }

    fn leave_hole(&mut self, to: u64, to_ns: u64, cause: HoleCause) {
        let (offset, length) = (self.next, to - self.next);
        let is_cut = self.cuts.iter().any(|cut| cut.start <= offset && cut.end >= to);
        let cause = if is_cut { HoleCause::Cut } else { cause };
        let is_acknowledged = self.acknowledged >= to;
        let hole = MissingBytes { offset, length, cause, from_ns: self.last_ns, to_ns, is_acknowledged };
        self.out.push(Piece::Hole(hole));
        self.next = to;
        self.missed_packets = 0;
        // The history continues behind the hole; zeros stand for short holes.
        if length > self.history_max as u64 {
            self.history.clear();
            self.gone.clear();
        } else {
            self.gone.push_back(offset..to);
            self.remember(&vec![0; length as usize]);
        }
    }

    fn remember(&mut self, bytes: &[u8]) {
        let kept = &bytes[bytes.len().saturating_sub(self.history_max)..];
        let excess = (self.history.len() + kept.len()).saturating_sub(self.history_max);
        self.history.drain(..excess.min(self.history.len()));
        let length = self.history.len() + kept.len();
        if length > self.history.capacity() {
            // Not twice the limit, as a vector that grows by itself.
            self.history.reserve_exact((2 * length).min(self.history_max) - self.history.len());
        }
        self.history.extend(kept);
        let oldest = self.next - (self.history.len() as u64).min(self.next);
        while self.gone.front().is_some_and(|hole| hole.end <= oldest) {
            self.gone.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CAUSE: HoleCause = HoleCause::Unexplained;

    struct Rig(Stream, u64);

    impl Rig {
        fn new() -> Rig {
            Rig(Stream::new(&Limits { pending: 4096, history: 1024, ..Limits::default() }), 0)
        }

        fn send(&mut self, seq: u32, bytes: &[u8]) {
            self.1 += 1;
            let wire_bytes = bytes.len() as u32;
            self.0.on_payload(&Payload { time_ns: self.1, seq, bytes, wire_bytes, has_fin: false });
            self.0.on_packet(&|_, _| CAUSE);
        }

        /// Bytes in order; a hole is a `?` for each byte.
        fn text(&mut self) -> Vec<u8> {
            let pieces = self.0.poll();
            let text = |piece| match piece {
                Piece::Bytes { bytes, .. } => bytes,
                Piece::Hole(hole) => vec![b'?'; hole.length as usize],
                Piece::End => b"!".to_vec(),
            };
            pieces.into_iter().flat_map(text).collect()
        }
    }

    #[test]
    fn segments_out_of_order_and_repeated_are_put_in_order() {
        let mut rig = Rig::new();
        rig.send(u32::MAX, b"ab"); // before its SYN
        rig.0.on_syn(u32::MAX - 1);
        rig.send(4, b"fg");
        rig.send(1, b"cde");
        rig.send(2, b"defgh");
        assert_eq!(rig.text(), b"abcdefgh");
        assert!(rig.0.ambiguous().is_empty());
        assert_eq!(rig.0.counts().repeated_bytes, 4);
    }

    #[test]
    fn first_byte_is_known_by_the_lowest_acknowledgement() {
        let mut rig = Rig::new();
        rig.0.on_ack(12);
        rig.0.on_ack(10);
        rig.send(12, b"cd");
        rig.0.finish(1, &|_, _| CAUSE);
        assert_eq!(rig.text(), b"??cd");
    }

    #[test]
    fn hole_is_named_after_its_patience() {
        let mut rig = Rig::new();
        rig.0.on_syn(9);
        rig.send(10, b"ab");
        rig.send(15, b"fg");
        for _ in 0..PATIENCE_PACKETS {
            assert_eq!(rig.0.counts().bytes, 2);
            rig.0.on_packet(&|_, _| CAUSE);
        }
        assert_eq!(rig.text(), b"ab???fg");
    }

    #[test]
    fn full_memory_makes_a_hole_early() {
        let mut rig = Rig::new();
        rig.0.on_syn(9);
        rig.send(20, &[7; 3000]);
        rig.send(4000, &[8; 3000]);
        let pieces = rig.0.poll();
        let Some(Piece::Hole(hole)) = pieces.first() else { panic!("{pieces:?}") };
        assert_eq!((hole.offset, hole.length, hole.cause), (0, 10, HoleCause::Memory));
    }

    #[test]
    fn acknowledged_end_that_is_missing_is_a_hole() {
        let mut rig = Rig::new();
        rig.0.on_syn(9);
        rig.send(10, b"ab");
        rig.0.on_ack(20);
        rig.0.finish(99, &|_, _| CAUSE);
        let pieces = rig.0.poll();
        let Some(Piece::Hole(hole)) = pieces.last() else { panic!("{pieces:?}") };
        assert_eq!((hole.offset, hole.length, hole.is_acknowledged), (2, 8, true));
    }

    #[test]
    fn other_bytes_at_the_same_place_are_ambiguous() {
        let mut rig = Rig::new();
        rig.0.on_syn(9);
        rig.send(10, b"abcdef");
        rig.0.on_ack(13);
        rig.send(11, b"bXXe");
        rig.send(11, b"bXXe");
        rig.send(20, b"klm");
        rig.send(20, b"kLm");
        rig.0.finish(9, &|_, _| CAUSE);
        assert_eq!(rig.text(), b"abcdef????klm");
        let digest = |bytes: &[u8]| <[u8; 32]>::from(Sha256::digest(bytes));
        let [first, second] = rig.0.ambiguous() else { panic!("two places") };
        assert_eq!((first.offset, first.length, first.is_acknowledged), (2, 2, false));
        assert_eq!((first.kept, first.other), (digest(b"cd"), digest(b"XX")));
        assert_eq!((second.offset, &second.copy[..]), (11, &b"L"[..]));
    }

    #[test]
    fn fin_ends_the_direction_behind_its_last_byte() {
        let mut rig = Rig::new();
        rig.0.on_syn(9);
        let fin = Payload { time_ns: 1, seq: 12, bytes: b"", wire_bytes: 0, has_fin: true };
        rig.0.on_payload(&fin);
        assert_eq!(rig.text(), b"");
        rig.send(10, b"ab");
        rig.0.on_ack(13);
        rig.0.finish(9, &|_, _| CAUSE);
        assert_eq!(rig.text(), b"ab!");
    }

    #[test]
    fn cut_packet_leaves_a_hole_with_its_cause() {
        let mut rig = Rig::new();
        rig.0.on_syn(9);
        rig.0.on_payload(&Payload { time_ns: 1, seq: 10, bytes: b"ab", wire_bytes: 5, has_fin: false });
        rig.send(15, b"fg");
        rig.0.finish(9, &|_, _| CAUSE);
        let pieces = rig.0.poll();
        assert!(pieces.iter().any(|p| matches!(p, Piece::Hole(hole) if hole.cause == HoleCause::Cut)));
    }

    proptest! {
        /// Any segments of a text, in any order, give the text with holes where no segment was.
        #[test]
        fn segments_of_a_text_give_the_text(
            segments in prop::collection::vec((0usize..200, 1usize..60), 1..60), base: u32,
        ) {
            let text: Vec<u8> = (0..260u32).map(|at| (at * 7 % 251) as u8).collect();
            let mut expected = vec![b'?'; 260];
            let mut rig = Rig::new();
            rig.0.on_syn(base.wrapping_sub(1));
            let mut end = 0;
            for (from, length) in segments {
                let bytes = &text[from..from + length];
                expected[from..from + length].copy_from_slice(bytes);
                end = end.max(from + length);
                rig.send(base.wrapping_add(from as u32), bytes);
            }
            rig.0.finish(1, &|_, _| CAUSE);
            prop_assert_eq!(rig.text(), &expected[..end]);
            prop_assert!(rig.0.ambiguous().is_empty() && rig.0.pending_bytes == 0);
        }

        #[test]
        fn any_segments_stay_within_bounds(
            segments in prop::collection::vec(
                (any::<u32>(), prop::collection::vec(any::<u8>(), 0..90), 0u32..200), 0..200,
            ),
            near in any::<bool>(),
        ) {
            let mut rig = Rig::new();
            for (seq, bytes, more) in segments {
                let seq = if near { seq % 4096 } else { seq };
                let wire_bytes = bytes.len() as u32 + more;
                rig.0.on_payload(&Payload { time_ns: 1, seq, bytes: &bytes, wire_bytes, has_fin: more == 7 });
                rig.0.on_ack(seq.wrapping_mul(3));
                rig.0.on_packet(&|_, _| CAUSE);
                prop_assert!(rig.0.buffered() <= 4096 + 1024 + COPY_BYTES_MAX + 90);
            }
            rig.0.finish(1, &|_, _| CAUSE);
        }
    }
}
