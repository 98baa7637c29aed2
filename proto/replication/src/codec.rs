//! Wire format of entries and of the whole replicated state (postcard: varints, no field names).
//!
//! The bytes come from another node, perhaps from one with a defect. A decoded value is within the ranges with which
//! the replay and a restored connection can calculate. The relation of values is not checked here.

use crate::validate::OutOfRange;
use crate::{ConnectionState, Entry};
use serde::de::DeserializeOwned;

/// The longest encoded entry that is accepted, in bytes: a stash of a full window plus its header.
pub const ENTRY_BYTES_MAX: usize = 1 << 20;

/// The longest encoded state that is accepted, in bytes: two stashes of what a socket's buffer holds at most, and the
/// handshake.
pub const STATE_BYTES_MAX: usize = 1 << 24;

/// An entry or a state that could not be read or written.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum WireError {
    /// Longer than [`ENTRY_BYTES_MAX`] or [`STATE_BYTES_MAX`].
    #[error("{what} of {length} bytes exceeds the limit of {max}")]
    TooLong {
        /// An entry or a state.
        what: &'static str,
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// Not a well-formed encoding.
    #[error("malformed {what}: {source}")]
    Malformed {
        /// An entry or a state.
        what: &'static str,
        /// Cause of the failure.
        source: postcard::Error,
    },
    /// More bytes than the value has.
    #[error("{surplus} bytes behind {what}")]
    Trailing {
        /// An entry or a state.
        what: &'static str,
        /// Number of extra bytes.
        surplus: usize,
    },
    /// Well-formed, but impossible for a connection.
    #[error("{what} with {source}")]
    Value {
        /// An entry or a state.
        what: &'static str,
        /// The value.
        source: OutOfRange,
    },
}

const ENTRY: &str = "log entry";
const STATE: &str = "connection state";

impl Entry {
    /// Encodes the entry; fails where [`Entry::decode`] would reject the length.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        encode(ENTRY, self, ENTRY_BYTES_MAX)
    }

    /// Reads one entry that fills `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Entry, WireError> {
        let entry: Entry = decode(ENTRY, bytes, ENTRY_BYTES_MAX)?;
        entry.check().map_err(|source| WireError::Value { what: ENTRY, source })?;
        Ok(entry)
    }
}

impl ConnectionState {
    /// Encodes the whole state, for a new backup; fails where [`ConnectionState::decode`] would reject the length.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        encode(STATE, self, STATE_BYTES_MAX)
    }

    /// Reads a state that fills `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<ConnectionState, WireError> {
        let state: ConnectionState = decode(STATE, bytes, STATE_BYTES_MAX)?;
        state.check().map_err(|source| WireError::Value { what: STATE, source })?;
        Ok(state)
    }
}

fn encode(what: &'static str, value: &impl serde::Serialize, max: usize) -> Result<Vec<u8>, WireError> {
    let bytes = postcard::to_allocvec(value).map_err(|source| WireError::Malformed { what, source })?;
    if bytes.len() > max {
        return Err(WireError::TooLong { what, length: bytes.len(), max });
    }
    Ok(bytes)
}

pub(crate) fn decode<T: DeserializeOwned>(
    what: &'static str,
    bytes: &[u8],
    max: usize,
) -> Result<T, WireError> {
    if bytes.len() > max {
        return Err(WireError::TooLong { what, length: bytes.len(), max });
    }
    let (value, rest) =
        postcard::take_from_bytes(bytes).map_err(|source| WireError::Malformed { what, source })?;
    if !rest.is_empty() {
        return Err(WireError::Trailing { what, surplus: rest.len() });
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RecordKind, RecordLayout, RecordPosition};

    #[test]
    fn entries_survive_the_wire_and_garbage_does_not_panic() {
        let entries = [
            Entry::Boundary(RecordLayout {
                first: RecordPosition { generation: 1, sequence: 77 },
                kind: RecordKind::Data,
                lengths: vec![(16384, 15), (3, 1)],
                digest: 42,
            }),
            Entry::LegStash { exchange: 2, leg: 3, position: 9, bytes: vec![1, 2, 3] },
            Entry::Close { plain: 7, abort: false },
        ];
        for entry in &entries {
            let bytes = entry.encode().unwrap();
            assert_eq!(&Entry::decode(&bytes).unwrap(), entry);
            for end in 0..bytes.len() {
                assert!(Entry::decode(&bytes[..end]).is_err(), "{end} bytes of {entry:?} are enough");
            }
        }
    }

    #[test]
    fn bytes_behind_a_value_are_refused() {
        let mut entry = Entry::Input(vec![1, 2]).encode().unwrap();
        entry.extend_from_slice(&[0, 0]);
        assert_eq!(Entry::decode(&entry), Err(WireError::Trailing { what: ENTRY, surplus: 2 }));
        let mut state = ConnectionState::default().encode().unwrap();
        state.push(0);
        assert_eq!(ConnectionState::decode(&state), Err(WireError::Trailing { what: STATE, surplus: 1 }));
    }

    #[test]
    fn oversized_values_are_rejected_by_both_ends() {
        let entry = Entry::Input(vec![0; ENTRY_BYTES_MAX]);
        let bytes = postcard::to_allocvec(&entry).unwrap();
        let refused = WireError::TooLong { what: ENTRY, length: bytes.len(), max: ENTRY_BYTES_MAX };
        assert_eq!(entry.encode().as_ref(), Err(&refused));
        assert_eq!(Entry::decode(&bytes).as_ref(), Err(&refused));

        let bytes = vec![0; STATE_BYTES_MAX];
        let flights = Vec::new();
        let hello = Some(crate::Hello { secret: [0; 32], accepted_unix_s: 0, found: None, bytes, flights });
        let state = ConnectionState { hello, ..ConnectionState::default() };
        let bytes = postcard::to_allocvec(&state).unwrap();
        let refused = WireError::TooLong { what: STATE, length: bytes.len(), max: STATE_BYTES_MAX };
        assert_eq!(state.encode().as_ref(), Err(&refused));
        assert_eq!(ConnectionState::decode(&bytes).as_ref(), Err(&refused));
    }

    #[test]
    fn a_run_of_full_records_costs_few_bytes() {
        let boundary = RecordLayout {
            first: RecordPosition { generation: 0, sequence: 1_000_000 },
            kind: RecordKind::Data,
            lengths: vec![(16384, 16)],
            digest: u64::MAX,
        };
        assert!(Entry::Boundary(boundary).encode().unwrap().len() <= 24);
    }
}
