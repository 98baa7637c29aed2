//! Deletion of a segment: the statement that stays in its place, and that the Master logs before the file is removed.
//!
//! The body of a log entry of kind 8 and the file `segments/N.deleted.json` are the same bytes: one canonical JSON
//! object (RFC 8785) with its keys in order.

use serde::{Deserialize, Serialize};

/// Kind of its log entry.
pub const DELETION_ENTRY: u8 = 8;

/// A segment that was removed, and the rule that removed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deletion {
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Time of the statement in milliseconds since 1970.
    pub created_ms: u64,
    /// Time of the first record in nanoseconds since 1970, in decimal digits: numbers of JSON end at 2^53.
    pub first_ns: String,
    /// `seq` of the first record.
    pub first_seq: u64,
    /// Time of the last record in nanoseconds since 1970, in decimal digits.
    pub last_ns: String,
    /// `seq` of the last record.
    pub last_seq: u64,
    /// Id of the Recorder: 64 hexadecimal digits.
    pub recorder: String,
    /// Rule with its limit, in words.
    pub rule: String,
    /// Number of the segment.
    pub segment: u64,
    /// SHA-256 of the file: 64 hexadecimal digits.
    pub sha256: String,
}

impl Deletion {
    /// The canonical JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() // strings and integers always serialise
    }

    /// The deletion in these bytes; `None` unless they are exactly what [`Deletion::to_json`] writes for it.
    pub fn from_json(bytes: &[u8]) -> Option<Deletion> {
        let deletion: Deletion = serde_json::from_slice(bytes).ok()?;
        (deletion.to_json().as_bytes() == bytes).then_some(deletion)
    }

    /// Times of the first and the last record; `None` if they are no numbers.
    pub fn times_ns(&self) -> Option<(u64, u64)> {
        Some((self.first_ns.parse().ok()?, self.last_ns.parse().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deletion() -> Deletion {
        Deletion {
            bytes: 9,
            created_ms: 1,
            first_ns: "2".into(),
            first_seq: 3,
            last_ns: "4".into(),
            last_seq: 5,
            recorder: "ab".repeat(32),
            rule: "older than 30 days".into(),
            segment: 6,
            sha256: "cd".repeat(32),
        }
    }

    #[test]
    fn deletion_has_one_encoding_with_keys_in_order() {
        let json = deletion().to_json();
        assert_eq!(Deletion::from_json(json.as_bytes()), Some(deletion()));
        assert_eq!(Deletion::from_json(format!("{json}\n").as_bytes()), None);
        assert_eq!(Deletion::from_json(json.replace(":9,", ": 9,").as_bytes()), None);
        assert!(json.starts_with("{\"bytes\":9,\"created_ms\":1,"), "{json}");
    }

    #[test]
    fn every_flipped_bit_changes_the_deletion_or_is_refused() {
        let json = deletion().to_json().into_bytes();
        for bit in 0..json.len() * 8 {
            let mut changed = json.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Deletion::from_json(&changed), Some(deletion()), "bit {bit}");
        }
    }
}
