//! The record layer: one end opens what the other sealed, and detects every changed bit. Any record from a peer is
//! opened or refused. A record layer that was encoded and decoded continues with the same bytes.

#![no_main]

use evergate_fuzz::input::{Choices, split};
use evergate_tls::{ContentType, Opened, Records, RecordsState, record_len};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    decoded_state(data);
    let (mut choices, payload) = split(data);
    let kind = choices.byte();
    let (mut server, mut client) = pair(kind & 1 != 0, kind >> 1 & 3);
    let mut rest = payload;
    while let Some(step) = choices.next() {
        let (ours, theirs) =
            if step & 0x80 == 0 { (&mut server, &mut client) } else { (&mut client, &mut server) };
        let len = usize::from(choices.byte()).min(rest.len());
        let (part, after) = rest.split_at(len);
        rest = after;
        let long = part.repeat(if step & 0x10 == 0 { 1 } else { 64 });
        let part = &long[..];
        match step & 7 {
            0..=2 => relay(ours, theirs, ContentType::ApplicationData, part, &mut choices),
            3 => relay(ours, theirs, ContentType::Handshake, part, &mut choices),
            4 => relay(ours, theirs, ContentType::Alert, part, &mut choices),
            5 => {
                let mut record = Vec::new();
                ours.seal_key_update(step & 8 != 0, &mut record);
                if !record.is_empty() && theirs.open(&mut record).is_err() {
                    return; // refused for consecutive KeyUpdates
                }
            }
            6 => any_record(theirs, part, step & 8 != 0),
            _ => *ours = carried(ours),
        }
    }
});

/// A state from any source is refused, or has exactly these bytes and can be used.
fn decoded_state(bytes: &[u8]) {
    let Ok(state) = RecordsState::decode(bytes) else { return };
    let mut again = Vec::new();
    state.encode(&mut again);
    assert_eq!(again, bytes);
    if let Ok(mut records) = Records::import(&state) {
        assert_eq!((records.tx(), records.rx()), (state.tx(), state.rx()));
        let _ = (records.wants_close(), records.wants_key_update());
        let _ = sealed(&mut records, ContentType::ApplicationData, b"payload");
        records.seal_key_update(true, &mut Vec::new());
        records.seal_alert(0, &mut Vec::new());
        any_record(&mut records, b"whatever a peer sends", true);
    }
}

/// Server and client ends of one connection.
fn pair(tls13: bool, suite: u8) -> (Records, Records) {
    let suite = suite % 3;
    let (key, secret) = [(16, 32), (32, 48), (32, 32)][usize::from(suite)];
    let len = if tls13 { secret } else { key + 12 };
    let end = |role: u8, tx: u8, rx: u8| {
        let mut bytes = vec![0x10 | suite << 2 | role << 1 | u8::from(tls13)];
        for fill in [tx, rx] {
            bytes.extend(std::iter::repeat_n(fill, len));
            bytes.extend_from_slice(&[0, 0]);
        }
        Records::import(&RecordsState::decode(&bytes).expect("well-formed")).expect("usable")
    };
    (end(0, 1, 2), end(1, 2, 1))
}

fn sealed(records: &mut Records, content: ContentType, payload: &[u8]) -> Option<Vec<u8>> {
    let layout = records.layout();
    let mut slot = vec![0; layout.header];
    slot.extend_from_slice(payload);
    slot.resize(slot.len() + layout.trailer, 0);
    records.seal(content, &mut slot).ok().map(|()| slot)
}

/// The same record layer on another node.
fn carried(records: &Records) -> Records {
    let mut bytes = Vec::new();
    records.export().encode(&mut bytes);
    let state = RecordsState::decode(&bytes).expect("what was written can be read");
    Records::import(&state).expect("what was exported can be imported")
}

fn relay(
    ours: &mut Records,
    theirs: &mut Records,
    content: ContentType,
    payload: &[u8],
    choices: &mut Choices<'_>,
) {
    let mut twin = carried(ours);
    let Some(record) = sealed(ours, content, payload) else {
        assert!(payload.is_empty() && content != ContentType::ApplicationData, "sealing failed");
        return;
    };
    assert_eq!(
        sealed(&mut twin, content, payload).as_ref(),
        Some(&record),
        "an imported layer seals otherwise"
    );
    assert_eq!((twin.tx(), twin.rx()), (ours.tx(), ours.rx()));
    assert_eq!(record_len(record.first_chunk().expect("a header")), Ok(record.len()));

    let mut forged = record.clone();
    let at = (usize::from(choices.byte()) << 8 | usize::from(choices.byte())) % forged.len();
    forged[at] ^= choices.byte().max(1);
    let verdict = carried(theirs).open(&mut forged);
    assert!(verdict.is_err(), "a changed record was opened: byte {at}, {verdict:?}");

    let mut opened = record.clone();
    match theirs.open(&mut opened) {
        Ok(Opened::Data(range)) => {
            assert_eq!(content, ContentType::ApplicationData);
            assert_eq!(&opened[range], payload);
        }
        // The rest of a ticket may be outstanding, before which no data may come.
        Ok(_) if content == ContentType::Handshake => *theirs = carried(theirs),
        Ok(_) => assert!(content != ContentType::ApplicationData || payload.is_empty()),
        // Messages that are not allowed, and too many records without data, end the connection; a new one continues.
        Err(error) => {
            assert!(content != ContentType::ApplicationData || payload.is_empty(), "{error}");
            let _ = error.alert();
            *theirs = carried(theirs);
        }
    }
    let same = (theirs.rx().generation, ours.tx().generation);
    if same.0 != same.1 || theirs.rx().sequence != ours.tx().sequence {
        // A KeyUpdate that was sealed as a message changes the keys of one end only: both ends are made again.
        let _ = theirs.seek_rx(ours.tx());
    }
}

/// Bytes that no peer sealed: refused, or (one change_cipher_spec) ignored, and the layer is unchanged.
fn any_record(records: &mut Records, bytes: &[u8], framed: bool) {
    let mut record = bytes.to_vec();
    if framed && record.len() >= 5 {
        let len = (record.len() - 5) as u16;
        record[1..3].copy_from_slice(&[3, 3]);
        record[3..5].copy_from_slice(&len.to_be_bytes());
    }
    let before = (records.tx(), records.rx());
    let mut twin = carried(records);
    let verdict = twin.open(&mut record);
    assert!(matches!(verdict, Ok(Opened::Ignored) | Err(_)), "a forged record was opened: {verdict:?}");
    assert_eq!((twin.tx(), twin.rx()), before);
    if let Err(error) = verdict {
        let _ = (error.alert(), error.blame(), error.to_string());
    }
}
