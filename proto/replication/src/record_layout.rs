//! Counting in a run of records: how many there are, where the run ends, and the part that is still needed.

use crate::{RecordKind, RecordLayout, RecordPosition};

impl RecordLayout {
    /// Number of records.
    pub fn count(&self) -> u64 {
        self.lengths.iter().map(|(_, count)| u64::from(*count)).sum()
    }

    /// Position after the last record.
    pub fn end(&self) -> RecordPosition {
        match self.kind {
            RecordKind::KeyUpdate(_) => RecordPosition { generation: self.first.generation + 1, sequence: 0 },
            _ => RecordPosition {
                generation: self.first.generation,
                sequence: self.first.sequence + self.count(),
            },
        }
    }

    /// Drops the records before `position`; the digest then covers none of the rest and is not checked.
    pub(crate) fn drop_before(&mut self, position: RecordPosition) {
        if position.generation != self.first.generation || position.sequence <= self.first.sequence {
            return;
        }
        let mut skip = position.sequence - self.first.sequence;
        while let Some((_, count)) = self.lengths.first_mut() {
            if u64::from(*count) > skip {
                *count -= skip as u32;
                break;
            }
            skip -= u64::from(*count);
            self.lengths.remove(0);
        }
        self.first = position;
        self.digest = 0;
    }
}
