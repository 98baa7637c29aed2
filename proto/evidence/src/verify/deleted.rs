//! Declared deletion of a segment: `N.deleted.json` with the log's entry, and the proof that it was logged.

use crate::base64;
use crate::entry::{Deletion, Entry, Event};
use serde::{Deserialize, Serialize};

/// Content of `N.deleted.json`: one JSON object in this order, without spaces, and a line end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeletedSegment {
    /// The entry as logged (kind 8), in base64.
    pub entry: String,
    /// Text of the tlog-proof of the entry.
    pub proof: String,
}

impl DeletedSegment {
    /// Longest file in bytes.
    pub const BYTES_MAX: usize = 128 << 10;

    /// Declaration of this entry.
    pub fn new(entry: &[u8], proof: &str) -> DeletedSegment {
        DeletedSegment { entry: base64::encode(entry), proof: proof.to_owned() }
    }

    /// Content of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).unwrap_or_default(); // two strings always serialise
        bytes.push(b'\n');
        bytes
    }

    /// Declaration from exactly its bytes.
    pub fn parse(bytes: &[u8]) -> Option<DeletedSegment> {
        let deleted: DeletedSegment = serde_json::from_slice(bytes).ok()?;
        (deleted.to_bytes() == bytes).then_some(deleted)
    }

    /// The logged entry: its bytes and its content.
    pub(crate) fn entry(&self) -> Option<(Vec<u8>, Deletion)> {
        let bytes = base64::decode(&self.entry)?;
        match Entry::decode(&bytes).ok()? {
            Entry::Event(_, Event::Deletion(deletion)) => Some((bytes, deletion)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_one_form() {
        let deleted = DeletedSegment::new(b"entry", "proof\n");
        let bytes = deleted.to_bytes();
        assert_eq!(DeletedSegment::parse(&bytes), Some(deleted));
        assert_eq!(DeletedSegment::parse(&bytes[..bytes.len() - 1]), None);
        assert_eq!(DeletedSegment::parse(&[b" ", &bytes[..]].concat()), None);
    }
}
