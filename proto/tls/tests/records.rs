//! The record layer against itself, through its public interface: two ends made from one exported state.

use aws_lc_rs::{aead, hmac};
use evergate_tls::{
    Blame, ContentType, Opened, PAYLOAD_MAX, Position, RecordError, Records, RecordsState, alert, record_len,
};

const SUITES: [(u8, usize, usize); 3] = [(0, 16, 32), (1, 32, 48), (2, 32, 32)]; // number, key, secret

/// Server and client ends of one connection: `suite` as [`SUITES`] numbers it.
fn pair(tls13: bool, suite: u8) -> (Records, Records) {
    let (_, key, secret) = SUITES[usize::from(suite)];
    let len = if tls13 { secret } else { key + 12 };
    let end = |role: u8, tx: u8, rx: u8| {
        let mut bytes = vec![0x10 | suite << 2 | role << 1 | u8::from(tls13)];
        for fill in [tx, rx] {
            bytes.extend(std::iter::repeat_n(fill, len));
            bytes.extend_from_slice(&[0, 0]);
        }
        Records::import(&RecordsState::decode(&bytes).unwrap()).unwrap()
    };
    (end(0, 1, 2), end(1, 2, 1))
}

fn all_pairs() -> impl Iterator<Item = (bool, u8)> {
    [true, false].into_iter().flat_map(|tls13| (0..3).map(move |suite| (tls13, suite)))
}

fn sealed(records: &mut Records, content: ContentType, payload: &[u8]) -> Result<Vec<u8>, RecordError> {
    let layout = records.layout();
    let mut slot = vec![0; layout.header];
    slot.extend_from_slice(payload);
    slot.resize(slot.len() + layout.trailer, 0);
    records.seal(content, &mut slot).map(|()| slot)
}

fn data(records: &mut Records, payload: &[u8]) -> Vec<u8> {
    sealed(records, ContentType::ApplicationData, payload).unwrap()
}

#[test]
fn sealed_records_open_in_place_at_the_other_end() {
    for (tls13, suite) in all_pairs() {
        let (mut server, mut client) = pair(tls13, suite);
        for len in [1, 2, 15, 16, 17, 1000, PAYLOAD_MAX - 1, PAYLOAD_MAX] {
            let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut record = data(&mut server, &payload);
            assert_eq!(record_len(record.first_chunk().unwrap()), Ok(record.len()));
            let Opened::Data(range) = client.open(&mut record).unwrap() else { panic!("{tls13} {suite}") };
            assert_eq!(range.start, server.layout().header);
            assert_eq!(record[range], payload);
            assert_eq!(server.tx(), client.rx());
            std::mem::swap(&mut server, &mut client);
        }
    }
}

#[test]
fn slot_of_a_wrong_size_is_the_callers_fault() {
    let (mut server, mut client) = pair(true, 0);
    for len in [0, 21, 22 + PAYLOAD_MAX + 1] {
        let error = server.seal(ContentType::ApplicationData, &mut vec![0; len]).unwrap_err();
        assert_eq!(error.blame(), Blame::Caller);
    }
    assert_eq!(sealed(&mut server, ContentType::Alert, b"").unwrap_err().blame(), Blame::Caller);
    assert_eq!(server.tx(), Position::default());
    let record = data(&mut server, b"payload");
    for end in 0..record.len() {
        assert_eq!(client.open(&mut record[..end].to_vec()).unwrap_err().blame(), Blame::Caller, "{end}");
    }
    assert_eq!(client.open(&mut [&record[..], &[0]].concat()).unwrap_err().blame(), Blame::Caller);
}

#[test]
fn imported_layer_continues_with_the_same_bytes() {
    for (tls13, suite) in all_pairs() {
        let (mut server, mut client) = pair(tls13, suite);
        for step in 0..40 {
            if step % 7 == 3 {
                let mut out = Vec::new();
                server.seal_key_update(false, &mut out);
                assert_eq!(out.is_empty(), !tls13);
                if tls13 {
                    assert_eq!(client.open(&mut out), Ok(Opened::KeyUpdate { requested: false }));
                }
            }
            let mut bytes = Vec::new();
            server.export().encode(&mut bytes);
            assert!((61..=117).contains(&bytes.len()), "{}", bytes.len());
            let mut other = Records::import(&RecordsState::decode(&bytes).unwrap()).unwrap();
            assert_eq!((other.tx(), other.rx()), (server.tx(), server.rx()));
            let payload = vec![step; 100];
            let mut record = data(&mut server, &payload);
            assert_eq!(data(&mut other, &payload), record);
            assert!(matches!(client.open(&mut record), Ok(Opened::Data(_))));
            let answer = data(&mut client, &payload);
            assert_eq!(server.open(&mut answer.clone()), other.open(&mut answer.clone()));
            assert_eq!((other.tx(), other.rx()), (server.tx(), server.rx()));
        }
    }
}

#[test]
fn seek_reaches_any_position_in_both_directions() {
    let (mut server, mut client) = pair(true, 1);
    let mut stream = Vec::new();
    for step in 0..30_u8 {
        let at = server.tx();
        if step % 5 == 4 {
            let mut out = Vec::new();
            server.seal_key_update(false, &mut out);
            stream.push((at, None, out));
        } else {
            let record = data(&mut server, &[step; 50]);
            stream.push((at, Some(step), record));
        }
    }
    let end = server.tx();
    assert_eq!(end.generation, 6);
    for (at, step, record) in stream.iter().rev().chain(&stream) {
        server.seek_tx(*at).unwrap();
        client.seek_rx(*at).unwrap();
        match step {
            Some(step) => assert_eq!(data(&mut server, &[*step; 50]), *record),
            None => {
                let mut out = Vec::new();
                server.seal_key_update(false, &mut out);
                assert_eq!(out, *record);
            }
        }
        client.open(&mut record.clone()).unwrap();
        assert_eq!(server.tx(), client.rx());
    }
    assert_eq!(server.tx(), end);
    let far = Position { generation: 1025, sequence: 0 };
    assert_eq!(server.seek_tx(far).unwrap_err().blame(), Blame::Caller);
    assert_eq!(server.tx(), end);
    let (mut tls12, _) = pair(false, 0);
    assert!(tls12.seek_tx(Position { generation: 1, sequence: 0 }).is_err());
    tls12.seek_rx(Position { generation: 0, sequence: 9 }).unwrap();
}

#[test]
fn record_limit_asks_for_a_key_update_in_time() {
    const LIMIT: u64 = 1 << 24;
    for (tls13, suite) in all_pairs() {
        let (mut server, mut client) = pair(tls13, suite);
        let gcm = suite != 2;
        let at = |sequence| Position { generation: 0, sequence };
        server.seek_tx(at(LIMIT / 2 - 1)).unwrap();
        assert!(!server.wants_key_update() && !server.wants_close());
        data(&mut server, b"x");
        assert_eq!(server.wants_key_update(), tls13 && gcm);
        server.seek_tx(at(LIMIT - 8)).unwrap();
        assert_eq!(server.wants_close(), gcm);
        let outcome = sealed(&mut server, ContentType::ApplicationData, b"x");
        assert_eq!(outcome.is_err(), gcm);
        if !gcm {
            continue;
        }
        assert_eq!(outcome.unwrap_err().blame(), Blame::Us);
        client.seek_rx(server.tx()).unwrap();
        let mut out = Vec::new();
        server.seal_key_update(false, &mut out);
        if tls13 {
            assert!(matches!(client.open(&mut out), Ok(Opened::KeyUpdate { .. })));
            assert!(!server.wants_key_update());
            assert!(matches!(client.open(&mut data(&mut server, b"x")), Ok(Opened::Data(_))));
        } else {
            server.seal_alert(alert::CLOSE_NOTIFY, &mut out);
            assert_eq!(client.open(&mut out), Ok(Opened::Alert { fatal: false, description: 0 }));
            server.seek_tx(at(LIMIT)).unwrap();
            let mut out = vec![7];
            server.seal_alert(alert::CLOSE_NOTIFY, &mut out);
            assert_eq!(out, [7]);
        }
    }
}

/// Bytes of an exported state.
fn encoded(state: &RecordsState) -> Vec<u8> {
    let mut bytes = Vec::new();
    state.encode(&mut bytes);
    bytes
}

#[test]
fn key_updates_are_unlimited_when_the_base_follows() {
    let (mut server, mut client) = pair(true, 1);
    for step in 0..5000_u32 {
        let mut out = Vec::new();
        server.seal_key_update(false, &mut out);
        assert_eq!(client.open(&mut out), Ok(Opened::KeyUpdate { requested: false }), "{step}");
        let Opened::Data(_) = client.open(&mut data(&mut server, b"x")).unwrap() else { panic!("{step}") };
        for records in [&mut server, &mut client] {
            let (tx, rx) = (records.tx(), records.rx());
            if records.wants_rebase(tx, rx) {
                records.rebase(tx, rx);
            }
        }
        if step % 700 == 699 {
            let state = RecordsState::decode(&encoded(&server.export())).unwrap();
            server = Records::import(&state).unwrap();
        }
    }
    assert_eq!((server.tx().generation, client.rx().generation), (5000, 5000));
}

/// State of a backup: the base and both positions are behind those of the owner.
#[test]
fn rebased_state_reaches_later_generations_only() {
    let (mut server, mut client) = pair(true, 0);
    let mut sealed_at = Vec::new();
    for _ in 0..600 {
        let mut out = Vec::new();
        server.seal_key_update(false, &mut out);
        client.open(&mut out).unwrap();
        sealed_at.push((server.tx(), data(&mut server, b"x")));
        client.open(&mut sealed_at.last().unwrap().1.clone()).unwrap();
    }
    let (floor, rx) = (sealed_at[399].0, server.rx());
    assert!(server.wants_rebase(floor, rx));
    server.rebase(floor, rx);
    assert!(!server.wants_rebase(floor, rx));
    let bytes = encoded(&server.export_at(floor, rx));
    let mut backup = Records::import(&RecordsState::decode(&bytes).unwrap()).unwrap();
    assert_eq!(backup.tx(), floor);
    for (position, record) in &sealed_at[399..] {
        backup.seek_tx(*position).unwrap();
        assert_eq!(&data(&mut backup, b"x"), record, "{position:?}");
    }
    assert!(backup.seek_tx(sealed_at[398].0).is_err(), "erased");
    assert!(backup.seek_tx(Position { generation: floor.generation + 1025, sequence: 0 }).is_err());
}

#[test]
fn key_updates_are_limited_when_the_base_stays() {
    let (mut server, mut client) = pair(true, 0);
    let mut out = Vec::new();
    for _ in 0..1024 {
        out.clear();
        server.seal_key_update(false, &mut out);
        client.open(&mut out).unwrap();
        client.open(&mut data(&mut server, b"x")).unwrap();
    }
    out.clear();
    server.seal_key_update(false, &mut out);
    assert!(out.is_empty() && server.tx() == Position { generation: 1024, sequence: 1 });
    // A peer that does not stop there is disconnected.
    let mut record = sealed(&mut server, ContentType::Handshake, &[24, 0, 0, 1, 0]).unwrap();
    assert_eq!(client.open(&mut record).unwrap_err().blame(), Blame::Peer);
}

#[test]
fn records_without_data_are_limited() {
    for kind in 0..3 {
        let (mut server, mut client) = pair(true, 0);
        let mut fruitless = |client: &mut Records| {
            let mut out = Vec::new();
            match kind {
                0 => out = data(client, b""),
                1 => client.seal_key_update(false, &mut out),
                _ => client.seal_alert(alert::USER_CANCELED, &mut out),
            }
            server.open(&mut out)
        };
        for _ in 0..32 {
            fruitless(&mut client).unwrap();
        }
        let error = fruitless(&mut client).unwrap_err();
        assert_eq!((error.blame(), error.alert()), (Blame::Peer, Some(alert::UNEXPECTED_MESSAGE)));
    }
    let (mut server, mut client) = pair(true, 0);
    for _ in 0..10 {
        for _ in 0..32 {
            server.open(&mut data(&mut client, b"")).unwrap();
        }
        server.open(&mut data(&mut client, b"x")).unwrap();
    }
}

/// Traffic of a client that changes its keys every second and sends no data.
#[test]
fn one_record_without_data_is_forgiven_per_second() {
    for (per_second, is_flood) in [(1, false), (2, true)] {
        let (mut server, mut client) = pair(true, 0);
        let mut refused = false;
        for second in 100..200 {
            for _ in 0..per_second {
                server.forgive(second);
                refused |= server.open(&mut data(&mut client, b"")).is_err();
            }
        }
        assert_eq!(refused, is_flood, "{per_second}");
    }
    let (mut server, mut client) = pair(true, 0);
    server.forgive(1000);
    for _ in 0..32 {
        server.open(&mut data(&mut client, b"")).unwrap();
        server.forgive(900);
    }
    assert!(server.open(&mut data(&mut client, b"")).is_err(), "no allowance before the first");
}

/// Traffic of a long upload, in which the client only sends its own key changes.
#[test]
fn answers_to_own_key_updates_are_not_counted() {
    let (mut server, mut client) = pair(true, 0);
    for _ in 0..200 {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        server.seal_key_update(true, &mut ours);
        assert_eq!(client.open(&mut ours), Ok(Opened::KeyUpdate { requested: true }));
        client.open(&mut data(&mut server, b"x")).unwrap();
        client.seal_key_update(false, &mut theirs);
        assert_eq!(server.open(&mut theirs), Ok(Opened::KeyUpdate { requested: false }));
    }
}

#[test]
fn messages_not_allowed_after_the_handshake_are_refused() {
    let ccs = [20, 3, 3, 0, 1, 1];
    let (mut server, mut client) = pair(true, 0);
    let error = server.open(&mut ccs.clone()).unwrap_err();
    assert_eq!(error.alert(), Some(alert::UNEXPECTED_MESSAGE), "change_cipher_spec behind Finished");
    let (mut server, _) = pair(true, 0);
    server.open(&mut data(&mut client, b"x")).unwrap();
    assert!(server.open(&mut ccs.clone()).is_err(), "change_cipher_spec after data");
    assert!(server.open(&mut [21, 3, 3, 0, 2, 1, 0]).is_err(), "alert in clear");
    assert!(server.open(&mut [22, 3, 3, 0, 4, 1, 0, 0, 0]).is_err(), "hello in clear");
    for (message, description) in [
        (&[1, 0, 0, 0][..], alert::UNEXPECTED_MESSAGE),  // ClientHello
        (&[4, 0, 0, 0], alert::UNEXPECTED_MESSAGE),      // a client's NewSessionTicket
        (&[24, 0, 0, 1, 2], alert::ILLEGAL_PARAMETER),   // KeyUpdate of an unknown request
        (&[24, 0, 0, 1, 255], alert::ILLEGAL_PARAMETER), // of another
        (&[24, 0, 0, 1, 0, 24], alert::UNEXPECTED_MESSAGE), // KeyUpdate that does not end the record
        (&[24, 0, 0, 2, 0, 0], alert::DECODE_ERROR),     // of a wrong length
        (&[24, 0, 0, 0], alert::DECODE_ERROR),           // empty
        (&[11, 0, 0, 4, 0, 0, 0, 0], alert::UNEXPECTED_MESSAGE), // Certificate
    ] {
        let (mut server, mut client) = pair(true, 0);
        let mut record = sealed(&mut client, ContentType::Handshake, message).unwrap();
        let error = server.open(&mut record).unwrap_err();
        assert_eq!((error.blame(), error.alert()), (Blame::Peer, Some(description)), "{message:?}");
    }
    // Records without a message (RFC 8446 section 5.4).
    for (inner, description) in [
        (&[22][..], alert::UNEXPECTED_MESSAGE),
        (&[21], alert::UNEXPECTED_MESSAGE),
        (&[1, 21], alert::DECODE_ERROR),
    ] {
        assert_eq!(pair(true, 0).0.open(&mut raw_inner(inner)).unwrap_err().alert(), Some(description));
    }
}

#[test]
fn key_update_of_a_client_may_be_fragmented() {
    for cut in 1..5 {
        let (mut server, mut client) = pair(true, 0);
        let update = [24, 0, 0, 1, 1];
        let mut first = sealed(&mut client, ContentType::Handshake, &update[..cut]).unwrap();
        let mut second = sealed(&mut client, ContentType::Handshake, &update[cut..]).unwrap();
        assert_eq!(server.open(&mut first), Ok(Opened::Ignored), "{cut}");
        assert!(!server.is_between_messages(), "{cut}");
        assert_eq!(server.open(&mut second), Ok(Opened::KeyUpdate { requested: true }), "{cut}");
        assert_eq!(server.rx(), Position { generation: 1, sequence: 0 }, "{cut}");
    }
}

#[test]
fn tls12_renegotiation_asks_for_a_warning_and_changes_nothing() {
    let hello = [&[1, 0, 0, 60][..], &[7; 60]].concat();
    for parts in
        [vec![&hello[..]], vec![&hello[..2], &hello[2..]], vec![&hello[..30], &hello[30..40], &hello[40..]]]
    {
        let (mut server, mut client) = pair(false, 0);
        let mut events = Vec::new();
        for part in parts {
            let mut record = sealed(&mut client, ContentType::Handshake, part).unwrap();
            events.push(server.open(&mut record).unwrap());
        }
        assert_eq!(events.iter().filter(|event| **event == Opened::Renegotiation).count(), 1, "{events:?}");
        assert!(server.is_between_messages());
        let mut warning = Vec::new();
        server.seal_alert(alert::NO_RENEGOTIATION, &mut warning);
        let expected = Opened::Alert { fatal: false, description: alert::NO_RENEGOTIATION };
        assert_eq!(client.open(&mut warning), Ok(expected));
        assert!(matches!(server.open(&mut data(&mut client, b"x")), Ok(Opened::Data(_))));
    }
    // The number of renegotiations is limited, and other messages are refused.
    let (mut server, mut client) = pair(false, 0);
    let ask = |server: &mut Records, client: &mut Records, message: &[u8]| {
        server.open(&mut sealed(client, ContentType::Handshake, message).unwrap())
    };
    for _ in 0..32 {
        ask(&mut server, &mut client, &[1, 0, 0, 0]).unwrap();
    }
    let flood = ask(&mut server, &mut client, &[1, 0, 0, 0]).unwrap_err();
    assert_eq!(flood.alert(), Some(alert::UNEXPECTED_MESSAGE));
    let (mut server, mut client) = pair(false, 0);
    let other = ask(&mut server, &mut client, &[16, 0, 0, 0]).unwrap_err();
    assert_eq!((other.blame(), other.alert()), (Blame::Peer, Some(alert::UNEXPECTED_MESSAGE)));
    let (mut server, mut client) = pair(false, 0);
    let mut request = sealed(&mut server, ContentType::Handshake, &[0, 0, 0, 0]).unwrap();
    assert_eq!(client.open(&mut request), Ok(Opened::Ignored), "a HelloRequest");
    assert!(server.open(&mut [20, 3, 3, 0, 1, 1]).is_err());
}

#[test]
fn fatal_alerts_follow_number_in_tls13_and_level_in_tls12() {
    for (tls13, message, fatal) in [
        (true, [1, 0], false),
        (true, [2, 0], false),
        (true, [1, 90], false),
        (true, [1, 40], true),
        (true, [2, 40], true),
        (false, [1, 0], false),
        (false, [1, 100], false),
        (false, [2, 40], true),
    ] {
        let (mut server, mut client) = pair(tls13, 0);
        let mut record = sealed(&mut client, ContentType::Alert, &message).unwrap();
        assert_eq!(server.open(&mut record), Ok(Opened::Alert { fatal, description: message[1] }));
    }
    let (mut server, mut client) = pair(true, 0);
    let mut record = sealed(&mut client, ContentType::Alert, &[1, 0, 1]).unwrap();
    assert!(server.open(&mut record).is_err());
}

#[test]
fn client_skips_tickets_in_any_fragmentation() {
    let (mut server, mut client) = pair(true, 0);
    let ticket = [&[4, 0, 0, 100][..], &[9; 100]].concat();
    let mut send = |server: &mut Records, message: &[u8]| {
        client.open(&mut sealed(server, ContentType::Handshake, message).unwrap())
    };
    assert_eq!(send(&mut server, &ticket), Ok(Opened::Ignored));
    assert_eq!(send(&mut server, &[&ticket[..], &ticket].concat()), Ok(Opened::Ignored));
    for part in ticket.chunks(30) {
        assert_eq!(send(&mut server, part), Ok(Opened::Ignored));
    }
    let both = [&ticket[..], &[24, 0, 0, 1, 1]].concat();
    assert_eq!(send(&mut server, &both), Ok(Opened::KeyUpdate { requested: true }));
    let (mut server, mut client) = pair(true, 0);
    client.open(&mut sealed(&mut server, ContentType::Handshake, &ticket[..30]).unwrap()).unwrap();
    assert!(client.open(&mut data(&mut server, b"x")).is_err(), "data inside a message");
}

#[test]
fn server_messages_may_be_fragmented_anywhere() {
    let ticket = [&[4, 0, 0, 100][..], &[9; 100]].concat();
    let update = [24, 0, 0, 1, 1];
    for (messages, opened) in [
        (vec![&ticket[..]], Opened::Ignored),
        (vec![&ticket, &ticket], Opened::Ignored),
        (vec![&ticket, &update], Opened::KeyUpdate { requested: true }),
        (vec![&update], Opened::KeyUpdate { requested: true }),
    ] {
        let whole = messages.concat();
        for cut in 1..whole.len() {
            let (mut server, mut client) = pair(true, 0);
            let mut state_text = |client: &mut Records, part: &[u8]| {
                client.open(&mut sealed(&mut server, ContentType::Handshake, part).unwrap())
            };
            assert_eq!(state_text(&mut client, &whole[..cut]), Ok(Opened::Ignored), "{cut}");
            let is_end = messages.len() == 2 && cut == messages[0].len();
            assert_eq!(client.is_between_messages(), is_end, "{cut}");
            assert_eq!(state_text(&mut client, &whole[cut..]), Ok(opened.clone()), "{cut}");
            assert!(client.is_between_messages(), "{cut}");
            if let Opened::KeyUpdate { requested } = opened {
                server.seal_key_update(!requested, &mut Vec::new()); // its keys follow
            }
            assert!(matches!(client.open(&mut data(&mut server, b"x")), Ok(Opened::Data(_))), "{cut}");
        }
    }
    for cut in 1..4 {
        let (mut server, mut client) = pair(true, 0);
        client.open(&mut sealed(&mut server, ContentType::Handshake, &ticket[..cut]).unwrap()).unwrap();
        assert!(client.open(&mut data(&mut server, b"x")).is_err(), "data inside a message");
        let (mut server, mut client) = pair(true, 0);
        let finished = [20, 0, 0, 0];
        client.open(&mut sealed(&mut server, ContentType::Handshake, &finished[..cut]).unwrap()).unwrap();
        assert!(
            client.open(&mut sealed(&mut server, ContentType::Handshake, &finished[cut..]).unwrap()).is_err()
        );
    }
}

#[test]
fn records_with_a_changed_bit_are_refused() {
    for (tls13, suite) in all_pairs() {
        let (mut server, mut client) = pair(tls13, suite);
        let record = data(&mut server, b"some payload");
        for bit in 0..record.len() * 8 {
            let mut changed = record.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let error = client.open(&mut changed).unwrap_err();
            assert!(matches!(error.blame(), Blame::Peer | Blame::Caller), "{bit}");
        }
        assert_eq!(client.rx(), Position::default(), "nothing was accepted");
        client.open(&mut record.clone()).unwrap();
        // Every record of a length that cannot contain a tag.
        for len in 0..40_u8 {
            for kind in 19..25 {
                let mut short = [&[kind, 3, 3, 0, len][..], &vec![0; usize::from(len)]].concat();
                assert!(client.open(&mut short).is_err());
            }
        }
    }
}

#[test]
fn headers_are_checked_before_their_records_arrive() {
    assert_eq!(record_len(&[23, 3, 3, 0x40, 0]), Ok(5 + 16384));
    assert_eq!(record_len(&[22, 3, 1, 0x41, 0]), Ok(5 + 16384 + 256));
    let too_long = record_len(&[23, 3, 3, 0x41, 1]).unwrap_err();
    assert_eq!(too_long.alert(), Some(alert::RECORD_OVERFLOW));
    assert_eq!(record_len(&[22, 3, 0xfe, 0, 4]), Ok(9), "the minor version means nothing");
    for header in [[24, 3, 3, 0, 1], [19, 3, 3, 0, 1], [23, 2, 3, 0, 1], *b"GET /"] {
        assert_eq!(record_len(&header).unwrap_err().alert(), Some(alert::UNEXPECTED_MESSAGE));
    }
}

/// Seals any inner plaintext like the client of `pair(true, 0)`, at sequence 0.
fn raw_inner(inner: &[u8]) -> Vec<u8> {
    let expand = |label: &[u8], len: usize| {
        let info = [&[0, len as u8, 6 + label.len() as u8][..], b"tls13 ", label, &[0, 1]].concat();
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &[2; 32]), &info).as_ref()[..len].to_vec()
    };
    let key = aead::UnboundKey::new(&aead::AES_128_GCM, &expand(b"key", 16)).unwrap();
    let nonce: [u8; 12] = expand(b"iv", 12).try_into().unwrap();
    let header = [&[23, 3, 3][..], &((inner.len() + 16) as u16).to_be_bytes()].concat();
    let mut body = inner.to_vec();
    aead::LessSafeKey::new(key)
        .seal_in_place_append_tag(
            aead::Nonce::assume_unique_for_key(nonce),
            aead::Aad::from(&header),
            &mut body,
        )
        .unwrap();
    [header, body].concat()
}

#[test]
fn padding_is_removed_and_padding_alone_refused() {
    for padding in [0, 1, 100, 10_000] {
        let mut record = raw_inner(&[b"data\x17", &vec![0; padding][..]].concat());
        assert_eq!(pair(true, 0).0.open(&mut record), Ok(Opened::Data(5..9)));
        let mut empty = raw_inner(&vec![0; padding + 1]);
        let error = pair(true, 0).0.open(&mut empty).unwrap_err();
        assert_eq!(
            (error.clone(), error.alert()),
            (RecordError::NoContentType, Some(alert::UNEXPECTED_MESSAGE))
        );
    }
    // An inner plaintext of 2^14 + 2 bytes fits the outer limit but not the inner one.
    let mut long = raw_inner(&[&vec![1; PAYLOAD_MAX + 1][..], &[23]].concat());
    assert_eq!(pair(true, 0).0.open(&mut long).unwrap_err().alert(), Some(alert::RECORD_OVERFLOW));
    let mut unknown = raw_inner(b"data\x18");
    assert!(pair(true, 0).0.open(&mut unknown).is_err());
}
