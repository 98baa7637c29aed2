//! The wire form of entries and of the whole mirrored state (postcard: varints, no field names).

use crate::{Entry, Mirrored};

/// The longest encoded entry that is accepted, in bytes: a stash of a full window plus its header.
pub const ENTRY_BYTES_MAX: usize = 1 << 20;

/// An entry or a state that could not be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WireError {
    /// Longer than [`ENTRY_BYTES_MAX`].
    #[error("mirror entry of {0} bytes exceeds the limit")]
    TooLong(usize),
    /// Not a well-formed encoding.
    #[error("malformed mirror entry: {0}")]
    Malformed(#[from] postcard::Error),
}

impl Entry {
    /// The wire form.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        Ok(postcard::to_allocvec(self)?)
    }

    /// Reads one entry that fills `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Entry, WireError> {
        if bytes.len() > ENTRY_BYTES_MAX {
            return Err(WireError::TooLong(bytes.len()));
        }
        Ok(postcard::from_bytes(bytes)?)
    }
}

impl Mirrored {
    /// The wire form of the whole state, for a new backup.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        Ok(postcard::to_allocvec(self)?)
    }

    /// Reads a state that fills `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Mirrored, WireError> {
        Ok(postcard::from_bytes(bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Boundary, RecordKind, RecordPosition, Side};

    #[test]
    fn entries_survive_the_wire_and_garbage_does_not_panic() {
        let entries = [
            Entry::Boundary(Boundary {
                first: RecordPosition { generation: 1, sequence: 77 },
                kind: RecordKind::Alert(0),
                lengths: vec![(16384, 15), (3, 1)],
                digest: 42,
            }),
            Entry::Stash { side: Side::Server(3), position: 9, bytes: vec![1, 2, 3] },
            Entry::Close { plain: 7, abort: false },
        ];
        for entry in &entries {
            let bytes = entry.encode().unwrap();
            assert_eq!(&Entry::decode(&bytes).unwrap(), entry);
            for end in 0..bytes.len() {
                let _ = Entry::decode(&bytes[..end]);
            }
        }
    }

    #[test]
    fn a_run_of_full_records_costs_few_bytes() {
        let boundary = Boundary {
            first: RecordPosition { generation: 0, sequence: 1_000_000 },
            kind: RecordKind::Data,
            lengths: vec![(16384, 16)],
            digest: u64::MAX,
        };
        assert!(Entry::Boundary(boundary).encode().unwrap().len() <= 24);
    }
}
