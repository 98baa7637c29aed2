//! Binary content of the Master's log and of what leads to it: statements, entries, messages in both directions,
//! places of tiles, bundles of entries, stored receipts, batches of a bundle. Each has one encoding: what is read is
//! written as the same bytes. A stream of messages has the same frames in pieces of any size. No proof of random
//! hashes holds.
//!
//! The first decision selects the format.

#![no_main]

use evergate_evidence::deletion;
use evergate_evidence::entry::Entry;
use evergate_evidence::merkle::Hash;
use evergate_evidence::merkle::multi::root_from_multi;
use evergate_evidence::merkle::proof::{verify_consistency, verify_inclusion};
use evergate_evidence::statement::{ChainEnd, STATEMENT_BYTES, Statement};
use evergate_evidence::submission::{FRAME_BYTES_MAX, ToMaster, ToRecorder, first_frame};
use evergate_evidence::tile::{TILE_WIDTH, Tile, bundle_entries, put_entry, tile_hashes};
use evergate_evidence::verify::{BatchProof, EventReceipt, ReceiptFrame};
use evergate_fuzz::input::{Choices, split};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (mut choices, bytes) = split(data);
    let written = match choices.byte() % 11 {
        0 => Entry::decode(bytes).ok().map(|entry| entry.encode()),
        1 => statements(bytes),
        2 => to_master(bytes),
        3 => to_recorder(bytes),
        4 => stream(choices, bytes),
        5 => tile(bytes),
        6 => bundle(choices.byte(), bytes),
        7 => deletion::from_json(bytes).map(|deletion| deletion::to_json(&deletion).into_bytes()),
        8 => receipt(bytes),
        9 => batches(bytes),
        _ => {
            proofs(bytes);
            None
        }
    };
    if let Some(written) = written {
        assert_eq!(written, bytes);
    }
});

/// Statements in order, like a Recorder's file of them.
fn statements(bytes: &[u8]) -> Option<Vec<u8>> {
    let (whole, rest) = bytes.as_chunks::<STATEMENT_BYTES>();
    let (mut written, mut end) = (Vec::new(), None::<ChainEnd>);
    for bytes in whole {
        let statement = Statement::decode(bytes).ok()?;
        assert_eq!(statement.leaf(), Entry::Statement(statement.clone()).leaf());
        assert_eq!(statement.as_sent().link(), statement.link());
        if statement.check().is_ok() && statement.follows(end.as_ref()).is_ok() {
            assert_eq!(statement.batch, end.map_or(0, |end| end.batch) + 1);
        }
        end = Some(ChainEnd::from(&statement));
        written.extend_from_slice(&statement.encode());
    }
    rest.is_empty().then_some(written)
}

fn to_master(bytes: &[u8]) -> Option<Vec<u8>> {
    let message = ToMaster::decode(bytes).ok()?;
    if let ToMaster::Statement(statement) = &message {
        assert_eq!(statement.received_ms, 0);
    }
    Some(unframed(&message.to_frame()))
}

fn to_recorder(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(unframed(&ToRecorder::decode(bytes).ok()?.to_frame()))
}

fn unframed(frame: &[u8]) -> Vec<u8> {
    let (body, len) = first_frame(frame).expect("a frame").expect("a whole frame");
    assert_eq!(len, frame.len());
    body.to_vec()
}

fn stream(pieces: Choices<'_>, bytes: &[u8]) -> Option<Vec<u8>> {
    let whole = frames(&[bytes]);
    assert_eq!(frames(&pieces.pieces(bytes)), whole);
    let (bodies, rest, is_valid) = whole;
    let mut written = Vec::new();
    for body in bodies {
        assert!(!body.is_empty() && body.len() <= FRAME_BYTES_MAX);
        let _ = (to_master(&body), to_recorder(&body));
        written.extend_from_slice(&(body.len() as u32).to_be_bytes());
        written.extend_from_slice(&body);
    }
    is_valid.then(|| [written, rest].concat())
}

/// Bodies of the frames, what is left, and whether the stream is valid so far.
fn frames(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, Vec<u8>, bool) {
    let (mut bodies, mut buffer) = (Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match first_frame(&buffer) {
                Ok(Some((body, len))) => {
                    bodies.push(body.to_vec());
                    buffer.drain(..len);
                }
                Ok(None) => break,
                Err(_) => return (bodies, Vec::new(), false),
            }
        }
    }
    (bodies, buffer, true)
}

fn tile(path: &[u8]) -> Option<Vec<u8>> {
    let tile = Tile::parse(std::str::from_utf8(path).ok()?)?;
    assert!(tile.width > 0 && u64::from(tile.width) <= TILE_WIDTH);
    Some(tile.path().into_bytes())
}

fn bundle(width: u8, bytes: &[u8]) -> Option<Vec<u8>> {
    if let Ok(hashes) = tile_hashes(bytes, u16::from(width)) {
        assert_eq!(hashes.concat(), bytes);
    }
    let entries = bundle_entries(bytes, u16::from(width)).ok()?;
    assert_eq!(entries.len(), usize::from(width));
    let mut written = Vec::new();
    for entry in entries {
        put_entry(&mut written, entry).expect("an entry that was read");
    }
    Some(written)
}

fn receipt(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut written = Vec::new();
    if let Some(receipt) = EventReceipt::decode(bytes) {
        let mut again = Vec::new();
        receipt.encode(&mut again);
        assert_eq!(again, bytes);
    }
    ReceiptFrame::decode(bytes)?.encode(&mut written);
    Some(written.split_off(4))
}

fn batches(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut written = Vec::new();
    BatchProof::decode_all(bytes).ok()?.iter().for_each(|batch| batch.encode(&mut written));
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
