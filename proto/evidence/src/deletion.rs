//! Deletion of a segment: the file that stays in its place.
//!
//! `segments/N.deleted.json` has the fields of the log entry of kind 8, and nothing else: the entry covers every bit of
//! it. It is one canonical JSON object (RFC 8785) with its keys in order.

use crate::entry::{Deletion, Entry, Event};
use crate::merkle::Hash;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    bytes: u64,
    first_seq: u64,
    last_seq: u64,
    recorder: String,
    rule: String,
    segment: u64,
    sha256: String,
}

/// The canonical JSON of a deletion.
pub fn to_json(deletion: &Deletion) -> String {
    let fields = Fields {
        bytes: deletion.bytes,
        first_seq: deletion.first_seq,
        last_seq: deletion.last_seq,
        recorder: hex(&deletion.recorder),
        rule: deletion.rule.clone(),
        segment: deletion.segment,
        sha256: hex(&deletion.sha256),
    };
    serde_json::to_string(&fields).unwrap_or_default() // strings and integers always serialise
}

/// The deletion in these bytes; `None` unless they are exactly what [`to_json`] writes for it.
pub fn from_json(bytes: &[u8]) -> Option<Deletion> {
    let fields: Fields = serde_json::from_slice(bytes).ok()?;
    let deletion = Deletion {
        recorder: unhex(&fields.recorder)?,
        segment: fields.segment,
        bytes: fields.bytes,
        sha256: unhex(&fields.sha256)?,
        first_seq: fields.first_seq,
        last_seq: fields.last_seq,
        rule: fields.rule,
    };
    (to_json(&deletion).as_bytes() == bytes).then_some(deletion)
}

/// The log entry as a Recorder sends it.
pub fn entry(deletion: &Deletion) -> Vec<u8> {
    Entry::Event(0, Event::Deletion(deletion.clone())).encode()
}

/// Hexadecimal digits of a hash.
pub fn hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The hash of 64 hexadecimal digits in lower case.
pub fn unhex(digits: &str) -> Option<Hash> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if digits.len() != 64 || !digits.bytes().all(is_digit) {
        return None;
    }
    let mut hash = Hash::default();
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&digits[at * 2..at * 2 + 2], 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deletion() -> Deletion {
        Deletion {
            recorder: [0xab; 32],
            segment: 6,
            bytes: 9,
            sha256: [0xcd; 32],
            first_seq: 3,
            last_seq: 5,
            rule: "older than 30 days".into(),
        }
    }

    #[test]
    fn deletion_has_one_encoding_with_keys_in_order() {
        let json = to_json(&deletion());
        assert_eq!(from_json(json.as_bytes()), Some(deletion()));
        assert_eq!(from_json(format!("{json}\n").as_bytes()), None);
        assert_eq!(from_json(json.replace(":9,", ": 9,").as_bytes()), None);
        assert!(json.starts_with("{\"bytes\":9,\"first_seq\":3,"), "{json}");
    }

    #[test]
    fn every_flipped_bit_changes_the_deletion_or_is_refused() {
        let json = to_json(&deletion()).into_bytes();
        for bit in 0..json.len() * 8 {
            let mut changed = json.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(from_json(&changed), Some(deletion()), "bit {bit}");
        }
    }

    #[test]
    fn entry_is_the_deletion_as_the_log_has_it() {
        assert_eq!(Entry::decode(&entry(&deletion())), Ok(Entry::Event(0, Event::Deletion(deletion()))));
    }
}
