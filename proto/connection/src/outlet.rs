//! Bytes that could not leave yet: the socket was full, or a backup had not acknowledged what they depend on.
//!
//! Bound: a leg whose outlet holds bytes takes no further input, so an outlet holds at most one batch (about 270 KB)
//! and small control records. Those answer the outlet's peer: without backups nothing is read from a peer that leaves
//! more than [`CHUNKS_MAX`] chunks unread.

use std::collections::VecDeque;
use std::ops::Range;

/// Buffers from this size on are worth giving back, in bytes.
const REUSED_MIN: usize = 65_536;

/// A buffer of which no more than this part still waits is given back.
const WASTED_SHARE: usize = 8;

/// Chunks that wait before their peer is read no further: a batch, and control records of as many calls.
const CHUNKS_MAX: usize = 64;

/// A queue of bytes in front of one leg's socket.
#[derive(Debug, Default)]
pub struct Outlet {
    chunks: VecDeque<Chunk>,
    bytes: usize,
    spent: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Chunk {
    bytes: Vec<u8>,
    /// What waits of them is `taken..end`.
    taken: usize,
    end: usize,
    after: u64,
}

impl Chunk {
    /// A large buffer with little left in it.
    fn wastes(&self) -> bool {
        self.bytes.capacity() > REUSED_MIN && (self.end - self.taken) * WASTED_SHARE <= self.bytes.capacity()
    }

    /// Moves what waits into memory of its size; returns the buffer.
    fn shrink(&mut self) -> Vec<u8> {
        let rest = self.bytes[self.taken..self.end].to_vec();
        (self.taken, self.end) = (0, rest.len());
        std::mem::replace(&mut self.bytes, rest)
    }
}

impl Outlet {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the peer has left so much unread that nothing more is read from it.
    pub(crate) fn is_crowded(&self) -> bool {
        self.chunks.len() > CHUNKS_MAX
    }

    /// Bytes of memory in which they do.
    pub fn memory(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.bytes.capacity()).sum()
    }

    /// Queues `bytes`, which may leave once the replication log is acknowledged up to `after`.
    pub fn push(&mut self, bytes: Vec<u8>, after: u64) {
        if !bytes.is_empty() {
            self.bytes += bytes.len();
            let end = bytes.len();
            self.chunks.push_back(Chunk { bytes, taken: 0, end, after });
        }
    }

    /// Queues the bytes of `buffer` at `range`; [`Outlet::take_spent`] gives the buffer back when they have left.
    pub fn push_buffer(&mut self, buffer: Vec<u8>, range: Range<usize>, after: u64) {
        if range.is_empty() {
            self.spent = Some(buffer);
        } else {
            self.bytes += range.len();
            self.chunks.push_back(Chunk { bytes: buffer, taken: range.start, end: range.end, after });
        }
    }

    /// The bytes that wait, in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().map(|chunk| &chunk.bytes[chunk.taken..chunk.end])
    }

    /// A large buffer whose bytes have left, for use elsewhere.
    pub fn take_spent(&mut self) -> Option<Vec<u8>> {
        self.spent.take()
    }

    /// The next bytes that may leave now that the log is acknowledged up to `acknowledged`; empty when none may.
    pub fn front(&self, acknowledged: u64) -> &[u8] {
        match self.chunks.front() {
            Some(chunk) if chunk.after <= acknowledged => &chunk.bytes[chunk.taken..chunk.end],
            _ => &[],
        }
    }

    /// Notes that `count` of the bytes from [`Outlet::front`] have left.
    pub fn advance(&mut self, count: usize) {
        self.bytes -= count;
        if let Some(chunk) = self.chunks.front_mut() {
            chunk.taken += count;
            if chunk.taken == chunk.end {
                let spent = self.chunks.pop_front().map(|chunk| chunk.bytes);
                self.spent = spent.filter(|buffer| buffer.capacity() > REUSED_MIN);
            } else if chunk.wastes() {
                self.spent = Some(chunk.shrink()); // a slow peer must not keep the whole buffer
            }
        }
        if self.bytes == 0 {
            self.chunks = VecDeque::new(); // an idle connection holds no buffer
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Outlet::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_order_and_only_after_what_they_depend_on() {
        let mut outlet = Outlet::default();
        outlet.push(b"ab".to_vec(), 1);
        outlet.push(b"c".to_vec(), 2);
        assert_eq!(outlet.front(0), b"");
        assert_eq!(outlet.front(1), b"ab");
        outlet.advance(1);
        assert_eq!(outlet.front(1), b"b");
        outlet.advance(1);
        assert_eq!((outlet.front(1), outlet.front(2), outlet.len()), (&b""[..], &b"c"[..], 1));
    }

    #[test]
    fn a_large_buffer_is_not_held_for_the_little_that_is_left_of_it() {
        let mut outlet = Outlet::default();
        let buffer: Vec<u8> = (0..80_000u32).map(|byte| byte as u8).collect();
        outlet.push_buffer(buffer.clone(), 0..80_000, 0);
        outlet.advance(69_000);
        assert!(outlet.memory() >= 80_000 && outlet.take_spent().is_none());
        outlet.advance(1_000);
        assert_eq!((outlet.len(), outlet.memory()), (10_000, 10_000));
        assert_eq!(outlet.front(0), &buffer[70_000..]);
        assert!(outlet.take_spent().is_some_and(|spent| spent.capacity() >= 80_000));
        outlet.advance(10_000);
        assert!(outlet.is_empty() && outlet.memory() == 0);
    }

    #[test]
    fn pieces_cover_the_queued_bytes_alone() {
        let mut outlet = Outlet::default();
        outlet.push(b"ab".to_vec(), 0);
        outlet.push_buffer(b"--cdef----".to_vec(), 2..6, 0);
        outlet.advance(1);
        assert_eq!(outlet.pieces().collect::<Vec<_>>(), [&b"b"[..], b"cdef"]);
        outlet.advance(1);
        outlet.advance(3);
        assert_eq!((outlet.pieces().collect::<Vec<_>>(), outlet.len()), (vec![&b"f"[..]], 1));
    }
}
