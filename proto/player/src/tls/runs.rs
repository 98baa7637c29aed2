//! Raw bytes of one direction that wait to be opened, and the holes among them.

use crate::event::MissingBytes;
use std::collections::VecDeque;

/// Memory that an empty run keeps.
const IDLE_BYTES_MAX: usize = 4096;

#[derive(Debug)]
enum Run {
    Bytes(Vec<u8>),
    Hole(MissingBytes),
}

/// Bytes and holes in order.
#[derive(Debug, Default)]
pub(super) struct Runs {
    runs: VecDeque<Run>,
    /// Bytes of the first run that have been consumed.
    used: usize,
    /// Place of the first byte in the direction's payload.
    offset: u64,
    bytes: usize,
}

impl Runs {
    pub(super) fn push_bytes(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len();
        match self.runs.back_mut() {
            Some(Run::Bytes(run)) => run.extend_from_slice(bytes),
            _ => self.runs.push_back(Run::Bytes(bytes.to_vec())),
        }
    }

    pub(super) fn push_hole(&mut self, hole: MissingBytes) {
        if self.runs.back().is_none_or(|run| matches!(run, Run::Hole(_))) {
            self.runs.push_back(Run::Bytes(Vec::new())); // bytes and holes alternate, and bytes come first
        }
        self.runs.push_back(Run::Hole(hole));
    }

    /// Bytes before the first hole.
    pub(super) fn front(&self) -> &[u8] {
        match self.runs.front() {
            Some(Run::Bytes(run)) => run.get(self.used..).unwrap_or_default(),
            _ => &[],
        }
    }

    /// The first hole.
    pub(super) fn hole(&self) -> Option<MissingBytes> {
        match self.runs.get(1) {
            Some(Run::Hole(hole)) => Some(*hole),
            _ => None,
        }
    }

    /// Bytes between the first hole and the second, and whether there is a second.
    pub(super) fn behind_hole(&self) -> (&[u8], bool) {
        match self.runs.get(2) {
            Some(Run::Bytes(run)) => (run, self.runs.len() > 3),
            _ => (&[], self.runs.len() > 3),
        }
    }

    /// Place of the first byte.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of memory.
    pub(super) fn buffered(&self) -> usize {
        self.bytes
    }

    /// Removes bytes before the first hole.
    pub(super) fn consume(&mut self, bytes: usize) {
        let bytes = bytes.min(self.front().len());
        self.used += bytes;
        self.offset += bytes as u64;
        self.bytes -= bytes;
        if let Some(Run::Bytes(run)) = self.runs.front_mut()
            && (self.used == run.len() || (self.used >= 64 << 10 && self.used > run.len() / 2))
        {
            run.drain(..self.used);
            self.used = 0;
            if run.is_empty() && run.capacity() > IDLE_BYTES_MAX {
                *run = Vec::new();
            }
        }
    }

    /// Removes the bytes before the first hole, the hole, and bytes behind it.
    pub(super) fn consume_hole(&mut self, behind: usize) -> Option<MissingBytes> {
        let hole = self.hole()?;
        self.consume(self.front().len());
        self.runs.drain(..2);
        self.used = 0;
        self.offset += hole.length;
        self.consume(behind);
        Some(hole)
    }

    /// Makes one hole of the first two and the bytes between them.
    pub(super) fn merge_holes(&mut self) {
        let (Some(first), Some(Run::Bytes(between)), Some(Run::Hole(second))) =
            (self.hole(), self.runs.get(2), self.runs.get(3))
        else {
            return;
        };
        let length = first.length + between.len() as u64 + second.length;
        let is_acknowledged = first.is_acknowledged && second.is_acknowledged;
        let hole = MissingBytes { length, to_ns: second.to_ns, is_acknowledged, ..first };
        self.bytes -= between.len();
        self.runs.drain(2..4);
        if let Some(run) = self.runs.get_mut(1) {
            *run = Run::Hole(hole);
        }
    }

    /// Removes everything.
    pub(super) fn clear(&mut self) {
        self.runs.clear();
        (self.used, self.bytes) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::HoleCause;

    fn hole(offset: u64, length: u64) -> MissingBytes {
        let (cause, is_acknowledged) = (HoleCause::Unexplained, false);
        MissingBytes { offset, length, cause, from_ns: 0, to_ns: 0, is_acknowledged }
    }

    #[test]
    fn holes_are_consumed_in_order() {
        let mut runs = Runs::default();
        runs.push_hole(hole(0, 3));
        runs.push_bytes(b"abc");
        runs.push_hole(hole(6, 2));
        runs.push_hole(hole(8, 1));
        runs.push_bytes(b"def");
        assert_eq!(
            (runs.front(), runs.hole(), runs.behind_hole()),
            (&b""[..], Some(hole(0, 3)), (&b"abc"[..], true))
        );
        runs.consume_hole(1);
        assert_eq!((runs.front(), runs.offset(), runs.buffered()), (&b"bc"[..], 4, 5));
        runs.merge_holes();
        assert_eq!(runs.hole().map(|hole| hole.length), Some(3));
        runs.consume_hole(2);
        assert_eq!((runs.front(), runs.hole(), runs.offset(), runs.buffered()), (&b"f"[..], None, 11, 1));
    }
}
