//! The record layer under AWS-LC and under `ring`: equal bytes, equal answers, equal errors.

use evergate_tls::{
    AeadLibraries, AeadLibrary, ContentType, Opened, PAYLOAD_MAX, Position, RecordError, Records,
    RecordsState, alert,
};
use proptest::prelude::*;

/// Bits of the state's first byte, key and secret length.
const SUITES: [(u8, usize, usize); 3] = [(0, 16, 32), (1, 32, 48), (2, 32, 32)];

fn all(library: AeadLibrary) -> AeadLibraries {
    AeadLibraries::by(|_| library)
}

/// Both ends of one connection, each under `library`.
fn ends(tls13: bool, suite: usize, library: AeadLibrary) -> [Records; 2] {
    let (number, key, secret) = SUITES[suite];
    let len = if tls13 { secret } else { key + 12 };
    [(0_u8, [1_u8, 2]), (1, [2, 1])].map(|(role, fills)| {
        let mut bytes = vec![0x10 | number << 2 | role << 1 | u8::from(tls13)];
        for fill in fills {
            bytes.extend(std::iter::repeat_n(fill, len));
            bytes.extend_from_slice(&[0, 0]);
        }
        Records::import_with(&RecordsState::decode(&bytes).unwrap(), all(library)).unwrap()
    })
}

fn restored(records: &Records, library: AeadLibrary) -> Records {
    let mut bytes = Vec::new();
    records.export().encode(&mut bytes);
    Records::import_with(&RecordsState::decode(&bytes).unwrap(), all(library)).unwrap()
}

/// A slot with space around `payload`, sealed in place; the bytes before it are unchanged.
fn sealed(
    records: &mut Records,
    content: ContentType,
    payload: &[u8],
    before: usize,
) -> Result<Vec<u8>, RecordError> {
    let layout = records.layout();
    let mut stream = [&vec![0xee; before + layout.header][..], payload].concat();
    stream.resize(stream.len() + layout.trailer, 0);
    records.seal(content, &mut stream[before..])?;
    assert!(stream.drain(..before).all(|byte| byte == 0xee));
    Ok(stream)
}

#[derive(Clone, Debug)]
enum Step {
    Data { len: usize, before: usize },
    KeyUpdate,
    Alert,
    Tampered { bit: prop::sample::Index },
    Seek { below_limit: u64 },
    Restore,
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![
        Just(0_usize),
        1..600_usize,
        Just(PAYLOAD_MAX - 1),
        Just(PAYLOAD_MAX),
        Just(PAYLOAD_MAX + 1)
    ];
    prop_oneof![
        4 => (len, 0..32_usize).prop_map(|(len, before)| Step::Data { len, before }),
        1 => Just(Step::KeyUpdate),
        1 => Just(Step::Alert),
        2 => any::<prop::sample::Index>().prop_map(|bit| Step::Tampered { bit }),
        1 => (0..12_u64).prop_map(|below_limit| Step::Seek { below_limit }),
        1 => Just(Step::Restore),
    ]
}

/// Bytes of a step on the wire, or its error.
fn send(records: &mut Records, step: &Step) -> Result<Vec<u8>, RecordError> {
    let mut out = Vec::new();
    match step {
        Step::Data { len, before } => {
            let payload: Vec<u8> = (0..*len).map(|at| at as u8).collect();
            return sealed(records, ContentType::ApplicationData, &payload, *before);
        }
        Step::KeyUpdate => records.seal_key_update(false, &mut out),
        Step::Alert => records.seal_alert(alert::USER_CANCELED, &mut out),
        Step::Tampered { bit } => {
            let record = sealed(&mut restored(records, AeadLibrary::AwsLc), ContentType::Alert, b"12", 0)?;
            out = record;
            let at = bit.index(out.len() * 8);
            out[at / 8] ^= 1 << (at % 8);
        }
        Step::Seek { .. } | Step::Restore => {}
    }
    Ok(out)
}

/// Answer to a record, and the bytes after it, which are undefined after a failure.
fn received(records: &mut Records, record: &[u8]) -> (Result<Opened, RecordError>, Vec<u8>, Position) {
    let mut record = record.to_vec();
    let opened = records.open(&mut record);
    if opened.is_err() {
        record.clear();
    }
    (opened, record, records.rx())
}

proptest! {
    #[test]
    fn both_libraries_send_and_answer_equally(
        tls13 in any::<bool>(), suite in 0..3_usize, steps in prop::collection::vec(step(), 1..30),
    ) {
        let [mut aws_lc, mut ring] = AeadLibrary::ALL.map(|library| ends(tls13, suite, library));
        for step in steps {
            if let Step::Seek { below_limit } = step {
                let to = Position { sequence: (1 << 24) - below_limit, ..aws_lc[0].tx() };
                for [sender, receiver] in [&mut aws_lc, &mut ring] {
                    sender.seek_tx(to).unwrap();
                    receiver.seek_rx(to).unwrap();
                }
            }
            if matches!(step, Step::Restore) {
                // Each end continues under the library of its twin.
                let ends = AeadLibrary::ALL.map(|library| {
                    let from = if library == AeadLibrary::AwsLc { &ring } else { &aws_lc };
                    [restored(&from[0], library), restored(&from[1], library)]
                });
                [aws_lc, ring] = ends;
            }
            let wire = send(&mut aws_lc[0], &step);
            prop_assert_eq!(&wire, &send(&mut ring[0], &step));
            prop_assert_eq!(aws_lc[0].tx(), ring[0].tx());
            let Ok(wire) = wire else { continue };
            if wire.is_empty() {
                continue;
            }
            let answer = received(&mut aws_lc[1], &wire);
            prop_assert_eq!(&answer, &received(&mut ring[1], &wire));
            if answer.0.is_err() {
                let is_refusable = matches!(step, Step::Tampered { .. } | Step::Alert | Step::Data { len: 0, .. });
                prop_assert!(is_refusable, "{:?}", answer.0);
                if !matches!(step, Step::Tampered { .. }) {
                    break; // too many records without data: the connection is over
                }
            }
        }
    }
}

#[test]
fn restored_layer_under_other_library_seals_equal_bytes() {
    let payload: Vec<u8> = (0..PAYLOAD_MAX).map(|at| at as u8).collect();
    for (tls13, suite) in [true, false].into_iter().flat_map(|tls13| (0..3).map(move |suite| (tls13, suite)))
    {
        for (before, after) in
            [(AeadLibrary::AwsLc, AeadLibrary::Ring), (AeadLibrary::Ring, AeadLibrary::AwsLc)]
        {
            let [mut server, mut client] = ends(tls13, suite, before);
            for step in 0..12_usize {
                if step % 5 == 3 {
                    server.seal_key_update(false, &mut Vec::new());
                    client.seek_rx(server.tx()).unwrap();
                }
                // The owner fails with this record in flight: the backup seals it again from the replicated state.
                let (mut backup, mut restored_client) = (restored(&server, after), restored(&client, after));
                let len = payload.len() >> step;
                let record =
                    sealed(&mut server, ContentType::ApplicationData, &payload[..len], step).unwrap();
                let resealed = sealed(&mut backup, ContentType::ApplicationData, &payload[..len], 0).unwrap();
                assert_eq!(record, resealed, "{tls13} {suite} {before:?} {step}");
                let opened = received(&mut client, &resealed);
                assert!(matches!(&opened.0, Ok(Opened::Data(range)) if range.len() == len));
                assert_eq!(opened, received(&mut restored_client, &record));
                (server, client) = (backup, restored_client);
                (server, client) = (restored(&server, before), restored(&client, before));
            }
        }
    }
}
