//! Everything that the Master, a Recorder or a verifier reads of the Master's log: notes, keys, checkpoints, receipts,
//! entries, messages, paths of tiles, bundles. Each has one encoding: what is read writes the same bytes again. No
//! proof of random hashes holds.
//!
//! The first byte selects the format.

#![no_main]

use evergate_evidence::checkpoint::SignedCheckpoint;
use evergate_evidence::entry::Entry;
use evergate_evidence::merkle::Hash;
use evergate_evidence::merkle::multi::root_from_multi;
use evergate_evidence::merkle::proof::{verify_consistency, verify_inclusion};
use evergate_evidence::note::{Note, VerifyingKey};
use evergate_evidence::proof::Receipt;
use evergate_evidence::statement::Statement;
use evergate_evidence::submission::{ToMaster, ToRecorder, first_frame};
use evergate_evidence::tile::{Tile, bundle_entries, put_entry};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&format, bytes)) = data.split_first() else { return };
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    let written = match format % 10 {
        0 => Note::parse(bytes).ok().map(|note| note.to_bytes()),
        1 => VerifyingKey::parse(text).ok().map(|key| key.to_vkey().into_bytes()),
        2 => SignedCheckpoint::parse(bytes).ok().map(|checkpoint| checkpoint.to_bytes()),
        3 => Receipt::parse(bytes).ok().map(|receipt| receipt.to_bytes()),
        4 => Entry::decode(bytes).ok().map(|entry| entry.encode()),
        5 => Statement::decode(bytes).ok().map(|statement| {
            let _ = (statement.check(), statement.follows(None));
            statement.encode().to_vec()
        }),
        6 => ToMaster::decode(bytes).ok().map(|message| unframed(&message.to_frame())),
        7 => ToRecorder::decode(bytes).ok().map(|message| unframed(&message.to_frame())),
        8 => Tile::parse(text).map(|tile| tile.path().into_bytes()),
        _ => {
            proofs(bytes);
            bundle(bytes)
        }
    };
    if let Some(written) = written {
        assert_eq!(written, bytes);
    }
});

fn unframed(frame: &[u8]) -> Vec<u8> {
    let (body, len) = first_frame(frame).expect("a frame").expect("a whole frame");
    assert_eq!(len, frame.len());
    body.to_vec()
}

fn bundle(bytes: &[u8]) -> Option<Vec<u8>> {
    let (&width, bytes_of_entries) = bytes.split_first()?;
    let entries = bundle_entries(bytes_of_entries, u16::from(width)).ok()?;
    assert_eq!(entries.len(), usize::from(width));
    let mut written = vec![width];
    entries.iter().for_each(|entry| put_entry(&mut written, entry).expect("an entry that was read"));
    Some(written)
}

/// Sizes and hashes from the bytes. The roots are constants that no hash of the input leads to.
fn proofs(bytes: &[u8]) {
    let (hashes, rest) = bytes.as_chunks::<32>();
    let number = |at: usize| {
        rest.get(at * 8..at * 8 + 8).map_or(at as u64, |b| b.iter().fold(0, |n, &b| n << 8 | u64::from(b)))
    };
    let (one, two) = (number(0), number(1));
    let (old_root, new_root): (Hash, Hash) = ([1; 32], [2; 32]);
    assert!(verify_inclusion(&[3; 32], one, two, hashes, &new_root).is_err());
    assert!(verify_consistency((one, &old_root), (two, &new_root), hashes).is_err());
    let wanted: Vec<(u64, Hash)> =
        hashes.iter().enumerate().map(|(n, hash)| (one.wrapping_add(n as u64), *hash)).collect();
    let _ = root_from_multi(two, &wanted, hashes);
}
