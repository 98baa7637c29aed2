//! Records and segments of a Recorder's store, from its owner. A record that decodes has exactly these bytes, and so
//! has its block in a segment. A segment gives the same records and the same error in windows of any size.
//!
//! The first decision selects bytes of a record, the body of a record behind a head that fits, an object of a mark, or
//! a segment. The others are sizes of windows.

#![no_main]

use evergate_evidence::mark::{Mark, MarkKind, SegmentBegin, SegmentEnd};
use evergate_evidence::record::{Body, HEAD_BYTES, Record, stated_length};
use evergate_evidence::segment::{SegmentDecoder, SegmentEncoder, SegmentError};
use evergate_evidence::verify::RecordDigest;
use evergate_fuzz::input::{Choices, split};
use libfuzzer_sys::fuzz_target;
use std::borrow::Cow;

fuzz_target!(|data: &[u8]| {
    let (mut choices, bytes) = split(data);
    match choices.byte() % 4 {
        0 => record(bytes),
        1 => record(&framed(choices.byte(), bytes)),
        2 => mark(choices.byte(), bytes),
        _ => segment(choices, bytes),
    }
});

/// A record with this body, whose head fits.
fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (HEAD_BYTES + body.len()) as u32;
    [&[1 + kind % 6, 1, 0, 0][..], &length.to_be_bytes(), &9u64.to_be_bytes(), body].concat()
}

fn record(bytes: &[u8]) {
    let Ok(record) = Record::decode(bytes) else { return };
    let mut again = Vec::new();
    record.encode(&mut again);
    assert_eq!(again, bytes);
    assert_eq!(stated_length(bytes), Some(bytes.len()));
    let digest = RecordDigest::of(&record, 0, &mut again);
    assert_eq!(digest.leaf, evergate_evidence::merkle::leaf_hash(&[bytes]));
    stored(&record);
}

/// The record in a segment, behind the mark that begins it.
fn stored(record: &Record<'_>) {
    if matches!(&record.body, Body::Mark(mark) if mark.what == MarkKind::SegmentBegins) {
        return; // only the first record of a segment
    }
    let begin = SegmentBegin {
        filter: String::new(),
        interfaces: vec!["eth0".into()],
        link_type: 1,
        next_connection: 1,
        recorder: "ab".repeat(32),
        segment: 1,
        snaplen: 0,
    };
    let begin = Record { seq: 1, interface: 0, body: Body::Mark(Mark::new(MarkKind::SegmentBegins, &begin)) };
    let (mut encoder, mut bytes) = (SegmentEncoder::default(), Vec::new());
    encoder.push(&begin, &mut bytes);
    let first = bytes.len();
    encoder.push(record, &mut bytes);
    let mut decoder = SegmentDecoder::default();
    let decoded = decoder.read(&bytes).expect("own encoding").expect("a whole record");
    assert_eq!((decoded.bytes, decoded.record), (first, begin));
    let decoded = decoder.read(&bytes[first..]).expect("own encoding").expect("a whole record");
    assert_eq!((first + decoded.bytes, &decoded.record), (bytes.len(), record));
}

fn mark(what: u8, json: &[u8]) {
    let Ok(json) = std::str::from_utf8(json) else { return };
    let is_begin = what.is_multiple_of(2);
    let what = if is_begin { MarkKind::SegmentBegins } else { MarkKind::SegmentEnds };
    let mark = Mark { what, json: Cow::Borrowed(json) };
    let again = match is_begin {
        true => mark.object::<SegmentBegin>().map(|object| Mark::new(what, &object)),
        false => mark.object::<SegmentEnd>().map(|object| Mark::new(what, &object)),
    };
    let Some(again) = again else { return };
    assert_eq!(again, mark);
    let mut bytes = Vec::new();
    SegmentEncoder::default().push(&Record { seq: 1, interface: 0, body: Body::Mark(mark) }, &mut bytes);
}

type Outcome<'a> = (Vec<Record<'a>>, usize, Option<SegmentError>);

fn segment(windows: Choices<'_>, bytes: &[u8]) {
    let whole = read(&[bytes], bytes);
    let (mut encoder, mut again) = (SegmentEncoder::default(), Vec::new());
    whole.0.iter().for_each(|record| encoder.push(record, &mut again));
    assert_eq!(again, bytes[..whole.1]);
    assert_eq!(read(&windows.pieces(bytes), bytes), whole);
}

/// Records of a segment that arrives in pieces, the place behind the last one, and the error there.
fn read<'a>(pieces: &[&[u8]], bytes: &'a [u8]) -> Outcome<'a> {
    let (mut decoder, mut records, mut at, mut end) = (SegmentDecoder::default(), Vec::new(), 0, 0);
    for piece in pieces {
        end += piece.len();
        loop {
            match decoder.read(&bytes[at..end]) {
                Ok(Some(decoded)) => {
                    assert!(decoded.bytes > 0);
                    at += decoded.bytes;
                    records.push(decoded.record);
                }
                Ok(None) => {
                    let is_enough = decoder.bytes_needed(&bytes[at..end]) <= end - at;
                    assert!(
                        !is_enough || decoder.has_ended(),
                        "a reader of {} bytes makes no progress",
                        end - at
                    );
                    break;
                }
                Err(error) => return (records, at, Some(error)),
            }
        }
    }
    (records, at, None)
}
