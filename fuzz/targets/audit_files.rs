//! Files of audited capture: segments, records, receipts and bundles from an owner, and foreign captures. Each is
//! refused, or has exactly these bytes; a segment encodes again to the bytes that it was read from.

#![no_main]

use evergate_evidence::capture_file::{CAPTURE_BLOCK_BYTES_MAX, CaptureDecoder, Step};
use evergate_evidence::record::Record;
use evergate_evidence::segment::{SegmentDecoder, SegmentEncoder};
use evergate_evidence::verify::{BatchProof, EventReceipt, ReceiptFrame, RecordDigest, Trust};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else { return };
    match kind % 6 {
        0 => segment(bytes),
        1 => record(bytes),
        2 => capture(bytes),
        3 => receipt(bytes),
        4 => batches(bytes),
        _ => drop(Trust::parse(bytes)),
    }
});

fn segment(bytes: &[u8]) {
    let (mut decoder, mut encoder, mut again, mut at) =
        (SegmentDecoder::default(), SegmentEncoder::default(), Vec::new(), 0);
    while let Ok(Some(decoded)) = decoder.read(&bytes[at..]) {
        assert!(decoded.bytes > 0);
        at += decoded.bytes;
        encoder.push(&decoded.record, &mut again);
        assert_eq!(again, bytes[..at]);
        let _ = RecordDigest::of(&decoded.record, 0, &mut Vec::new());
    }
    let _ = decoder.bytes_needed(&bytes[at..]);
}

fn record(bytes: &[u8]) {
    let Ok(record) = Record::decode(bytes) else { return };
    let mut again = Vec::new();
    record.encode(&mut again);
    assert_eq!(again, bytes);
}

fn capture(bytes: &[u8]) {
    let (mut decoder, mut at) = (CaptureDecoder::default(), 0);
    loop {
        match decoder.read(&bytes[at..]) {
            Ok(Step::Skip(length) | Step::Packet(length, _)) => {
                assert!(length > 0);
                at += length;
                assert_eq!(decoder.offset(), at as u64);
            }
            Ok(Step::Need(length)) => {
                assert!(length > bytes.len() - at && length <= CAPTURE_BLOCK_BYTES_MAX);
                let _ = decoder.finish(bytes.len() - at);
                return;
            }
            Err(error) => {
                assert_eq!(error.offset, at as u64);
                return;
            }
        }
    }
}

fn receipt(bytes: &[u8]) {
    let mut again = Vec::new();
    if let Some(frame) = ReceiptFrame::decode(bytes) {
        frame.encode(&mut again);
        assert_eq!(&again[4..], bytes);
    }
    if let Some(receipt) = EventReceipt::decode(bytes) {
        again.clear();
        receipt.encode(&mut again);
        assert_eq!(again, bytes);
    }
}

fn batches(bytes: &[u8]) {
    let Ok(batches) = BatchProof::decode_all(bytes) else { return };
    let mut again = Vec::new();
    batches.iter().for_each(|batch| batch.encode(&mut again));
    assert_eq!(again, bytes);
}
