//! Verification of hostile input: no statement, receipt or record makes it panic.

use evergate_evidence::merkle::Hash;
use evergate_evidence::note::{Algorithm, PublicKey, SignatureVerifier, VerifyingKey};
use evergate_evidence::record::{Gap, GapReason};
use evergate_evidence::statement::{Counters, Partition, STATEMENT_BYTES, Span, Statement};
use evergate_evidence::verify::{
    BatchProof, Event, RecordDigest, Session, SessionVerifier, StoreFacts, StreamVerifier, Trust,
};
use proptest::prelude::*;

struct AllValid;

impl SignatureVerifier for AllValid {
    fn is_valid(&self, _: Algorithm, _: &[u8], _: &[u8], _: &[u8]) -> bool {
        true
    }
}

fn trust() -> Trust {
    let key = VerifyingKey::new("log.test", PublicKey::Ed25519([1; 32])).expect("name");
    Trust::parse(format!("{{\"logs\":[\"{}\"]}}", key.to_vkey()).as_bytes()).expect("valid")
}

/// Small numbers, and the ends of their range.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..6, Just(u64::MAX), Just(u64::MAX - 1), Just(1 << 63), any::<u64>()]
}

fn statement() -> impl Strategy<Value = [u8; STATEMENT_BYTES]> {
    (number(), number(), number(), number(), number(), any::<Hash>(), any::<[u8; 8]>()).prop_map(
        |(batch, first_seq, last_seq, first_ns, packets, root, noise)| {
            let mut bytes = Statement {
                received_ms: 0,
                recorder: [7; 32],
                batch,
                span: Span { first_seq, last_seq, first_ns, last_ns: first_ns },
                packets,
                packet_bytes: packets,
                root,
                previous: [0; 32],
                counters: Counters { seen: packets, written: first_ns, ..Counters::default() },
                partition: Partition::default(),
                emergency_ms: 0,
            }
            .encode();
            if noise[0] < 40 {
                bytes[usize::from(noise[1]) % STATEMENT_BYTES] ^= noise[2];
            }
            bytes
        },
    )
}

fn record() -> impl Strategy<Value = RecordDigest> {
    let packet = (number(), number(), number()).prop_map(|(time_ns, connection, packet_seq)| Event::Packet {
        time_ns,
        connection,
        packet_seq,
        bytes: 9,
    });
    let gap = (number(), number(), number()).prop_map(|(count, from_ns, to_ns)| {
        Event::Gap(Gap { reason: GapReason::Ring, exact: true, count, from_ns, to_ns })
    });
    let event = prop_oneof![
        packet,
        gap,
        Just(Event::Start),
        Just(Event::Stop),
        Just(Event::Begin(None)),
        Just(Event::Other)
    ];
    (any::<Hash>(), number(), event).prop_map(|(leaf, seq, event)| RecordDigest {
        leaf,
        seq,
        offset: 0,
        event,
    })
}

proptest! {
    #[test]
    fn hostile_stores_never_panic(
        statements in proptest::collection::vec(statement(), 0..6),
        segments in proptest::collection::vec(
            (1u64..4, proptest::collection::vec(record(), 0..8), any::<Vec<u8>>(), 0u8..4), 0..4),
        checkpoint: Option<Vec<u8>>,
        is_live: bool,
    ) {
        let trust = trust();
        let facts = StoreFacts { recorder: [7; 32], installation: String::new(), part: 0, parts: 1 };
        let mut verifier =
            StreamVerifier::new((&trust, &AllValid), facts, statements.into_iter(), is_live, 1 << 20);
        let mut number = 0;
        verifier.on_event_receipt(checkpoint.as_deref().unwrap_or_default(), "outbox/x.receipt");
        for (step, records, bytes, how) in &segments {
            number += step;
            verifier.begin_segment(number);
            verifier.on_receipt(bytes, 0);
            match how {
                0 => verifier.on_deleted(bytes, "x"),
                1 => verifier.on_missing(),
                2 => verifier.on_segment_fault(9, false, false, "fault"),
                _ => {}
            }
            verifier.on_records(records);
            verifier.finish_segment();
        }
        let report = verifier.finish(checkpoint.as_deref(), None);
        prop_assert!(!report.ok);
    }

    #[test]
    fn hostile_bundles_never_panic(
        statements in proptest::collection::vec((statement(), proptest::collection::vec(any::<u32>(), 0..4),
            proptest::collection::vec(any::<Hash>(), 0..4)), 0..4),
        records in proptest::collection::vec(record(), 0..8),
        proof: Vec<u8>,
        noise: Vec<u8>,
    ) {
        let trust = trust();
        let mut batches = Vec::new();
        for (statement, wanted, hashes) in statements {
            if let Ok(statement) = Statement::decode(&statement) {
                BatchProof { statement, wanted, hashes }.encode(&mut batches);
            }
        }
        let _ = BatchProof::decode_all(&noise);
        let batches = BatchProof::decode_all(&batches).unwrap_or_default();
        let session = Session { recorder: [7; 32], connection: 1 };
        let mut verifier = SessionVerifier::new(&trust, &AllValid, session, batches);
        verifier.check_batches();
        for batch in verifier.batches() {
            verifier.on_proof(batch, &proof, "proof");
        }
        records.iter().for_each(|record| verifier.on_record(record));
        prop_assert!(!verifier.finish(None).ok);
    }
}
