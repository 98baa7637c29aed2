//! The buffer that leads to the client: records are read into, sealed and written from one place.
//!
//! Layout: head room, then slots of header, 16,384 bytes of payload and trailer. A server's bytes are scattered by
//! `readv` straight into the payload gaps, sealed in place, and leave in one contiguous `write`: a body is never copied
//! in user space. A rewritten head grows backwards into the head room, so that it sits directly before its body.
//!
//! Invariant: `ready()` is everything that must reach the client next, in order; bytes that do not fit behind the slots
//! go to `extra` and follow.

use evergate_tls::{Layout, PAYLOAD_MAX};
use std::ops::Range;

/// Room before the first slot for tickets and grown heads, in bytes.
pub const HEAD_ROOM: usize = 8192;
/// Slots, so many records a batch.
pub const SLOTS: usize = 16;
/// Bytes of a response that are read while its head is still expected: the rest of the slot lets the head grow.
pub const FIRST_READ: usize = PAYLOAD_MAX - 4096;
/// The most that a head may grow by being rewritten in place, in bytes.
pub(crate) const GROWTH_MAX: usize = 3072;

const AROUND_MAX: usize = 13 + 17;

/// The client-bound buffer of a worker.
#[derive(Debug)]
pub struct Slots {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    extra: Vec<u8>,
}

impl Default for Slots {
    fn default() -> Slots {
        Slots::new()
    }
}

impl Slots {
    /// An empty buffer of about 270 KB.
    pub fn new() -> Slots {
        let bytes = HEAD_ROOM + SLOTS * (PAYLOAD_MAX + AROUND_MAX);
        Slots { buffer: vec![0; bytes], start: HEAD_ROOM, end: HEAD_ROOM, extra: Vec::new() }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.start = HEAD_ROOM;
        self.end = HEAD_ROOM;
        self.extra.clear();
    }

    /// What must reach the client next; the second part follows the first.
    pub fn ready(&self) -> (&[u8], &[u8]) {
        (&self.buffer[self.start..self.end], &self.extra)
    }

    /// Gives away the memory with what is ready in it (the part before `extra`) and continues with `fresh`, the memory
    /// of another buffer of this kind; allocates where that is too short.
    pub fn take_memory(&mut self, mut fresh: Vec<u8>) -> (Vec<u8>, Range<usize>) {
        fresh.resize(self.buffer.len(), 0);
        let taken = std::mem::replace(&mut self.buffer, fresh);
        let range = self.start..self.end;
        self.start = HEAD_ROOM;
        self.end = HEAD_ROOM;
        (taken, range)
    }

    /// Number of bytes ready.
    pub fn len(&self) -> usize {
        self.end - self.start + self.extra.len()
    }

    /// Whether nothing is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The whole memory, for scattered reads at the places that [`Slots::payload`] names.
    pub fn memory(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// Payload of slot `index`.
    pub fn payload(layout: Layout, index: usize) -> Range<usize> {
        let stride = layout.header + PAYLOAD_MAX + layout.trailer;
        let start = HEAD_ROOM + index * stride + layout.header;
        start..start + PAYLOAD_MAX
    }

    /// Where the bytes of a body go in slot `index`, behind `held` ones that are in the first slot already.
    pub fn body(layout: Layout, index: usize, held: usize) -> Range<usize> {
        let payload = Slots::payload(layout, index);
        let before = if index == 0 { held.min(payload.len()) } else { 0 };
        payload.start + before..payload.end
    }

    /// Bytes at `range` of the memory.
    pub fn at(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Mutable bytes at `range` of the memory.
    pub fn at_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.buffer[range]
    }

    /// Declares `range` of the memory ready, after what is ready already; it must lie in the slots and follow it.
    pub fn publish(&mut self, range: Range<usize>) {
        if self.start == self.end && self.extra.is_empty() {
            self.start = range.start;
            self.end = range.end;
        } else if range.start == self.end && self.extra.is_empty() {
            self.end = range.end;
        } else {
            let bytes = self.buffer[range].to_vec();
            self.extra.extend_from_slice(&bytes);
        }
    }

    /// Puts `bytes` before everything that is ready.
    pub fn prepend(&mut self, bytes: &[u8]) {
        if bytes.len() <= self.start {
            self.start -= bytes.len();
            self.buffer[self.start..self.start + bytes.len()].copy_from_slice(bytes);
        } else {
            let mut all = bytes.to_vec();
            all.extend_from_slice(&self.buffer[self.start..self.end]);
            all.append(&mut self.extra);
            self.start = self.end;
            self.extra = all;
        }
    }

    /// Where bytes are appended one piece after the other.
    pub fn extra(&mut self) -> &mut Vec<u8> {
        &mut self.extra
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_any_layout_fit_the_memory_and_do_not_overlap() {
        for layout in [(0, 0), (5, 16), (5, 17), (13, 16)] {
            let layout = Layout { header: layout.0, trailer: layout.1 };
            let mut slots = Slots::new();
            for index in 1..SLOTS {
                let before = Slots::payload(layout, index - 1);
                let payload = Slots::payload(layout, index);
                assert_eq!(before.end + layout.trailer + layout.header, payload.start);
                assert!(payload.end + layout.trailer <= slots.memory().len());
            }
        }
    }

    #[test]
    fn prepended_bytes_leave_first() {
        let mut slots = Slots::new();
        slots.at_mut(HEAD_ROOM..HEAD_ROOM + 3).copy_from_slice(b"cde");
        slots.publish(HEAD_ROOM..HEAD_ROOM + 3);
        slots.extra().extend_from_slice(b"fg");
        slots.prepend(b"ab");
        assert_eq!(slots.ready(), (&b"abcde"[..], &b"fg"[..]));
        slots.prepend(&[7; HEAD_ROOM]);
        assert_eq!(slots.ready().1[HEAD_ROOM..], b"abcdefg"[..]);
    }
}
