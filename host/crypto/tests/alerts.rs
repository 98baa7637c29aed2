//! Raw records against the server's handshake, and the alert of the RFCs for each: one list per version.

mod common;

use std::sync::{Arc, Mutex};

use aws_lc_rs::{aead, hmac};
use common::*;
use evergate_tls::{Handshake, HandshakeError, Progress, alert};
use rustls::crypto::aws_lc_rs::cipher_suite as suite;
use rustls::pki_types::ServerName;
use rustls::version::TLS12;
use rustls::{AlertDescription, ClientConnection, KeyLog};

fn vector(prefix: usize, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_be_bytes()[4 - prefix..], body].concat()
}

fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &vector(2, body)].concat()
}

fn record(kind: u8, version: u8, body: &[u8]) -> Vec<u8> {
    [&[kind, 3, version][..], &vector(2, body)].concat()
}

/// A ClientHello for TLS 1.3 that is changed in one place.
#[derive(Clone)]
struct Hello {
    legacy_version: [u8; 2],
    versions: Option<Vec<u8>>,
    groups: Option<Vec<u8>>,
    signatures: Option<Vec<u8>>,
    share: Option<Vec<u8>>,
    name: Option<Vec<u8>>,
}

impl Hello {
    fn usual() -> Hello {
        let share = vector(2, &[&[0, 0x1d][..], &vector(2, &[9; 32])].concat());
        Hello {
            legacy_version: [3, 3],
            versions: Some(vec![2, 3, 4]),
            groups: Some(vec![0, 2, 0, 0x1d]),
            signatures: Some(vec![0, 2, 4, 3]),
            share: Some(share),
            name: None,
        }
    }

    fn with(change: impl FnOnce(&mut Hello)) -> Vec<u8> {
        let mut hello = Hello::usual();
        change(&mut hello);
        hello.message()
    }

    fn share(key: &[u8]) -> Option<Vec<u8>> {
        Some(vector(2, &[&[0, 0x1d][..], &vector(2, key)].concat()))
    }

    fn message(&self) -> Vec<u8> {
        let kinds = [(0, &self.name), (43, &self.versions), (10, &self.groups), (13, &self.signatures)];
        let all = kinds.into_iter().chain([(51, &self.share)]);
        let extensions: Vec<u8> = all
            .filter_map(|(kind, body)| body.as_ref().map(|body| extension(kind, body)))
            .collect::<Vec<_>>()
            .concat();
        let body = [
            &self.legacy_version[..],
            &[7; 32],
            &[0], // no session
            &vector(2, &[0x13, 1, 0xc0, 0x2b]),
            &[1, 0], // no compression
            &vector(2, &extensions),
        ]
        .concat();
        [&[1][..], &vector(3, &body)].concat()
    }
}

/// Feeds a new handshake byte by byte and in one piece: both must give the same result.
fn refused(bytes: &[u8]) -> (HandshakeError, Vec<u8>) {
    let run = |chunk| {
        let mut handshake = Handshake::new(&node(&PEMS.p256), &params(1)).unwrap();
        let mut out = Vec::new();
        let mut pieces = bytes.chunks(chunk);
        let error = pieces.find_map(|piece| handshake.handle_input(piece, &mut out).err());
        (error, out)
    };
    let ((whole, out), (piecewise, other)) = (run(bytes.len()), run(1));
    let error = whole.expect("a refusal");
    assert_eq!(Some(error.to_string()), piecewise.map(|error| error.to_string()));
    assert_eq!(out, other, "{error}");
    (error, out)
}

#[test]
fn refused_hellos_cause_the_alerts_of_the_rfcs() {
    let hello = Hello::usual().message();
    let raw = |message: &[u8]| record(22, 1, message);
    let split = |between: &[u8]| [&raw(&hello[..32]), between, &raw(&hello[32..])].concat();
    let unexpected = alert::UNEXPECTED_MESSAGE;
    for (name, bytes, description) in [
        ("record of 16,385 bytes", record(22, 1, &[1; 16385]), alert::RECORD_OVERFLOW),
        ("record of 65,535 bytes", vec![22, 3, 1, 0xff, 0xff], alert::RECORD_OVERFLOW),
        ("ServerHello first", raw(&[2, 0, 0, 34]), unexpected),
        ("ClientKeyExchange first", raw(&[16, 0, 0, 0]), unexpected),
        ("change_cipher_spec first", record(20, 1, &[1]), unexpected),
        ("application data first", record(23, 3, b"hello"), unexpected),
        ("alert first", record(21, 1, &[1, 90]), unexpected),
        ("empty handshake record", raw(&[]), unexpected),
        ("alert between fragments", split(&record(21, 1, &[1, 0])), unexpected),
        ("change_cipher_spec between fragments", split(&record(20, 1, &[1])), unexpected),
        ("empty record between fragments", split(&raw(&[])), unexpected),
        ("unknown type between fragments", split(&record(0, 1, &[1])), unexpected),
        ("record of version 2", vec![22, 2], unexpected),
        ("garbage", vec![0x80, 0x2e, 1, 3, 1], unexpected),
        ("another message behind the hello", raw(&[&hello[..], &[20, 0, 0, 0]].concat()), unexpected),
        ("hello of SSL 3.0", raw(&Hello::with(|h| h.legacy_version = [3, 0])), alert::PROTOCOL_VERSION),
        (
            "hello for TLS 1.1 only",
            raw(&Hello::with(|h| h.versions = Some(vec![2, 3, 2]))),
            alert::PROTOCOL_VERSION,
        ),
        ("no key_share", raw(&Hello::with(|h| h.share = None)), alert::MISSING_EXTENSION),
        ("no supported_groups", raw(&Hello::with(|h| h.groups = None)), alert::MISSING_EXTENSION),
        ("no signature_algorithms", raw(&Hello::with(|h| h.signatures = None)), alert::MISSING_EXTENSION),
        (
            "key share of 31 bytes",
            raw(&Hello::with(|h| h.share = Hello::share(&[9; 31]))),
            alert::ILLEGAL_PARAMETER,
        ),
        (
            "key share of 33 bytes",
            raw(&Hello::with(|h| h.share = Hello::share(&[9; 33]))),
            alert::ILLEGAL_PARAMETER,
        ),
        (
            "key share of zeros",
            raw(&Hello::with(|h| h.share = Hello::share(&[0; 32]))),
            alert::ILLEGAL_PARAMETER,
        ),
        (
            "key_share that ends early",
            raw(&Hello::with(|h| h.share.as_mut().unwrap().truncate(20))),
            alert::DECODE_ERROR,
        ),
        ("hello that ends early", raw(&[1, 0, 0, 2, 3, 3]), alert::DECODE_ERROR),
        ("hello longer than the limit", raw(&[1, 0xff, 0, 0]), alert::DECODE_ERROR),
        (
            "TLS 1.2 without groups",
            raw(&Hello::with(|h| (h.versions, h.groups) = (None, None))),
            alert::HANDSHAKE_FAILURE,
        ),
    ] {
        let (error, out) = refused(&bytes);
        assert_eq!(out, alert::clear_alert(description), "{name}: {error}");
    }
}

#[test]
fn hellos_in_records_of_any_minor_version_are_read() {
    let hello = Hello::usual().message();
    for version in [0, 1, 3, 4, 0xfe, 0xff] {
        let parts = [record(22, version, &hello[..9]), record(22, 1, &hello[9..])].concat();
        for bytes in [record(22, version, &hello), parts] {
            let mut handshake = Handshake::new(&node(&PEMS.p256), &params(1)).unwrap();
            let mut out = Vec::new();
            assert_eq!(handshake.handle_input(&bytes, &mut out).unwrap(), Progress::NeedInput, "{version}");
            assert_eq!(out[..2], [22, 3], "{version}: a ServerHello");
        }
    }
}

/// The secrets of a client's key log.
#[derive(Debug, Default)]
struct Secrets(Mutex<Vec<Secret>>);

/// Label, the client's random bytes, and the secret.
type Secret = (String, Vec<u8>, Vec<u8>);

impl KeyLog for Secrets {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        self.0.lock().unwrap().push((label.to_owned(), client_random.to_vec(), secret.to_vec()));
    }
}

impl Secrets {
    fn of(&self, label: &str) -> (Vec<u8>, Vec<u8>) {
        let all = self.0.lock().unwrap();
        let (_, random, secret) = all.iter().find(|(known, ..)| known == label).expect("a secret");
        (random.clone(), secret.clone())
    }
}

/// A client up to the server's flight, and its own second flight, which the test may change.
struct Halfway {
    client: ClientConnection,
    server: Handshake,
    secrets: Arc<Secrets>,
    server_flight: Vec<u8>,
    second: Vec<u8>,
}

fn halfway(kind: &ClientKind) -> Halfway {
    let secrets = Arc::new(Secrets::default());
    let mut config = kind.config();
    config.key_log = secrets.clone();
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut server = Handshake::new(&node(&PEMS.p256), &params(1)).unwrap();
    let mut server_flight = Vec::new();
    server.handle_input(&take(&mut client), &mut server_flight).unwrap();
    feed(&mut client, &server_flight).unwrap();
    let second = take(&mut client);
    Halfway { client, server, secrets, server_flight, second }
}

const CCS: [u8; 6] = [20, 3, 3, 0, 1, 1];

/// Seals inner plaintexts as the client's records of the handshake, from sequence 0 on.
fn protected(secret: &[u8], inners: &[Vec<u8>]) -> Vec<u8> {
    let expand = |label: &[u8], len: usize| {
        let info = [&[0, len as u8, 6 + label.len() as u8][..], b"tls13 ", label, &[0, 1]].concat();
        hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), &info).as_ref()[..len].to_vec()
    };
    let key = aead::LessSafeKey::new(aead::UnboundKey::new(&aead::AES_128_GCM, &expand(b"key", 16)).unwrap());
    let mut out = Vec::new();
    for (sequence, inner) in (0_u8..).zip(inners) {
        let mut nonce: [u8; 12] = expand(b"iv", 12).try_into().unwrap();
        nonce[11] ^= sequence;
        let header = [&[23, 3, 3][..], &((inner.len() + 16) as u16).to_be_bytes()].concat();
        let mut body = inner.clone();
        let (nonce, aad) = (aead::Nonce::assume_unique_for_key(nonce), aead::Aad::from(&header));
        key.seal_in_place_append_tag(nonce, aad, &mut body).unwrap();
        out.extend([header, body].concat());
    }
    out
}

/// An inner plaintext: content, then its type, then padding.
fn inner(content: &[u8], kind: u8) -> Vec<u8> {
    [content, &[kind]].concat()
}

fn tls13() -> ClientKind {
    ClientKind { suites: vec![suite::TLS13_AES_128_GCM_SHA256], ..ClientKind::default() }
}

/// Feeds the second flight; returns the alert as the client reads it.
fn alert_of(halfway: Halfway, bytes: &[u8]) -> (String, Option<AlertDescription>) {
    let Halfway { mut client, mut server, .. } = halfway;
    let mut out = Vec::new();
    let error = server.handle_input(bytes, &mut out).unwrap_err().to_string();
    match feed(&mut client, &out) {
        Err(rustls::Error::AlertReceived(description)) => (error, Some(description)),
        Ok(data) => (format!("{error}; {data:?}"), None),
        Err(other) => panic!("{error}: {other}: {out:?}"),
    }
}

#[test]
fn protected_tls13_flights_cause_the_alerts_of_the_rfcs() {
    let finished = |len: usize| [&[20][..], &vector(3, &vec![5; len])].concat();
    let one = |content: &[u8], kind: u8| vec![inner(content, kind)];
    let (unexpected, decode) = (AlertDescription::UnexpectedMessage, AlertDescription::DecodeError);
    for (name, inners, description) in [
        ("wrong Finished", one(&finished(32), 22), AlertDescription::DecryptError),
        ("truncated Finished", one(&finished(31), 22), decode),
        ("empty Finished", one(&finished(0), 22), decode),
        ("oversized Finished", one(&finished(33), 22), decode),
        ("Finished of 2^24 - 1 bytes", one(&[20, 0xff, 0xff, 0xff, 1], 22), decode),
        ("message of 65,536 bytes", one(&[11, 1, 0, 0, 1], 22), decode),
        ("zero content type", one(&[], 0), unexpected),
        ("zero content type behind zeros", one(&[0; 40], 0), unexpected),
        ("unknown content type", one(&finished(32), 24), unexpected),
        ("protected change_cipher_spec", one(&[1], 20), unexpected),
        ("application data before Finished", one(b"GET /", 23), unexpected),
        ("empty handshake record", [vec![inner(&[], 22); 40]].concat(), unexpected),
        ("another message", one(&[1, 0, 0, 0], 22), unexpected),
        ("ClientHello behind Finished", one(&[&finished(32)[..], &[1, 0, 0, 0]].concat(), 22), unexpected),
        (
            "alert between fragments",
            vec![inner(&finished(32)[..9], 22), inner(&[1, 90], 21), inner(&finished(32)[9..], 22)],
            unexpected,
        ),
        (
            "data between fragments",
            vec![inner(&finished(32)[..9], 22), inner(b"x", 23), inner(&finished(32)[9..], 22)],
            unexpected,
        ),
        ("alert of three bytes", one(&[1, 90, 1], 21), decode),
        ("inner plaintext of 2^14 + 2 bytes", one(&[1; 16385], 22), AlertDescription::RecordOverflow),
    ] {
        let halfway = halfway(&tls13());
        let (_, secret) = halfway.secrets.of("CLIENT_HANDSHAKE_TRAFFIC_SECRET");
        let bytes = [&CCS[..], &protected(&secret, &inners)].concat();
        let (error, found) = alert_of(halfway, &bytes);
        assert_eq!(found, Some(description), "{name}: {error}");
    }
}

#[test]
fn unprotected_records_after_a_tls13_flight_cause_alerts() {
    let cut = |halfway: &Halfway| {
        let (_, secret) = halfway.secrets.of("CLIENT_HANDSHAKE_TRAFFIC_SECRET");
        protected(&secret, &[inner(&[20, 0, 0, 32, 5], 22)])
    };
    let unexpected = AlertDescription::UnexpectedMessage;
    for (name, bytes, description) in [
        ("plaintext Finished", [&[22, 3, 3, 0, 36, 20, 0, 0, 32][..], &[5; 32]].concat(), unexpected),
        ("record that does not decrypt", record(23, 3, &[0; 32]), AlertDescription::BadRecordMac),
        ("record of 20,000 bytes", record(23, 3, &[0; 20000]), AlertDescription::RecordOverflow),
        ("record of type zero", record(0, 3, &[0; 20]), unexpected),
        ("change_cipher_spec of 2", record(20, 3, &[2]), unexpected),
        ("three of change_cipher_spec", [CCS, CCS, CCS].concat(), unexpected),
    ] {
        let (error, found) = alert_of(halfway(&tls13()), &bytes);
        assert_eq!(found, Some(description), "{name}: {error}");
    }
    // Between the fragments of a protected message.
    let halfway = halfway(&tls13());
    let bytes = [&cut(&halfway)[..], &CCS].concat();
    let (error, found) = alert_of(halfway, &bytes);
    assert_eq!(found, Some(unexpected), "{error}");
}

/// Each node sends the same alert, so that a client may receive either in a failover.
#[test]
fn alert_is_equal_on_every_node_and_in_any_segmentation() {
    let kind = tls13();
    let halfway = halfway(&kind);
    let (_, secret) = halfway.secrets.of("CLIENT_HANDSHAKE_TRAFFIC_SECRET");
    let hello = {
        let name = ServerName::try_from("localhost").unwrap();
        take(&mut ClientConnection::new(Arc::new(kind.config()), name).unwrap())
    };
    let garbage = protected(&secret, &[inner(&[20, 0, 0, 31], 22)]);
    let bytes = [&hello[..], &CCS, &garbage, &[22, 3, 3, 0, 1, 0]].concat();
    let whole = replay(&node(&PEMS.p256), &params(1), &bytes, bytes.len());
    assert!(whole.outcome.is_err());
    for chunk in [1, 7, 100, 1000] {
        let again = replay(&node(&PEMS.p256), &params(1), &bytes, chunk);
        assert_eq!((again.out, again.outcome), (whole.out.clone(), whole.outcome.clone()), "{chunk}");
    }
}

/// The PRF of TLS 1.2 with SHA-256 (RFC 5246 section 5).
fn prf(secret: &[u8], label: &[u8], seed: &[u8], len: usize) -> Vec<u8> {
    let mac = |data: &[u8]| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), data).as_ref().to_vec();
    let seed = [label, seed].concat();
    let (mut a, mut out) = (mac(&seed), Vec::new());
    while out.len() < len {
        out.extend(mac(&[&a[..], &seed].concat()));
        a = mac(&a);
    }
    out.truncate(len);
    out
}

/// A client's first protected record of TLS 1.2 with AES-128-GCM.
fn protected_tls12(halfway: &Halfway, kind: u8, content: &[u8]) -> Vec<u8> {
    let (client_random, master) = halfway.secrets.of("CLIENT_RANDOM");
    let server_random = &halfway.server_flight[11..43];
    let block = prf(&master, b"key expansion", &[server_random, &client_random].concat(), 40);
    let key = aead::LessSafeKey::new(aead::UnboundKey::new(&aead::AES_128_GCM, &block[..16]).unwrap());
    let nonce = [&block[32..36], &[0; 8]].concat();
    let aad = [&[0; 8][..], &[kind, 3, 3], &(content.len() as u16).to_be_bytes()].concat();
    let mut body = content.to_vec();
    let nonce = aead::Nonce::try_assume_unique_for_key(&nonce).unwrap();
    key.seal_in_place_append_tag(nonce, aead::Aad::from(aad), &mut body).unwrap();
    record(kind, 3, &[&[0; 8][..], &body].concat())
}

#[test]
fn second_tls12_flights_cause_the_alerts_of_the_rfcs() {
    let kind = ClientKind {
        version: &TLS12,
        suites: vec![suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256],
        ..ClientKind::default()
    };
    type Change = fn(&Halfway) -> Vec<u8>;
    // ClientKeyExchange, change_cipher_spec, Finished: the part before the second of them.
    fn exchange(halfway: &Halfway) -> &[u8] {
        let len = usize::from(u16::from_be_bytes([halfway.second[3], halfway.second[4]]));
        &halfway.second[..5 + len]
    }
    fn up_to_finished(halfway: &Halfway) -> Vec<u8> {
        [exchange(halfway), &CCS].concat()
    }
    fn finished(halfway: &Halfway, len: usize) -> Vec<u8> {
        let message = [&[20][..], &vector(3, &vec![5; len])].concat();
        [up_to_finished(halfway), protected_tls12(halfway, 22, &message)].concat()
    }
    let cases: [(&str, Change, u8); 15] = [
        ("wrong Finished", |half| finished(half, 12), 51),
        ("truncated Finished", |half| finished(half, 11), alert::DECODE_ERROR),
        ("oversized Finished", |half| finished(half, 13), alert::DECODE_ERROR),
        (
            "plaintext Finished",
            |half| {
                [up_to_finished(half), record(22, 3, &[20, 0, 0, 12, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1])]
                    .concat()
            },
            alert::BAD_RECORD_MAC,
        ),
        (
            "Finished before change_cipher_spec",
            |half| [exchange(half), &record(22, 3, &[20, 0, 0, 0])].concat(),
            alert::UNEXPECTED_MESSAGE,
        ),
        ("Finished first", |_| record(22, 3, &[20, 0, 0, 0]), alert::UNEXPECTED_MESSAGE),
        ("change_cipher_spec first", |_| CCS.to_vec(), alert::UNEXPECTED_MESSAGE),
        ("application data first", |_| record(23, 3, b"x"), alert::UNEXPECTED_MESSAGE),
        ("record of type zero", |_| record(0, 3, b"x"), alert::UNEXPECTED_MESSAGE),
        ("record of 16,385 bytes", |_| record(22, 3, &[16; 16385]), alert::RECORD_OVERFLOW),
        ("key exchange that ends early", |_| record(22, 3, &[16, 0, 0, 2, 32, 1]), alert::DECODE_ERROR),
        ("empty key exchange", |_| record(22, 3, &[16, 0, 0, 0]), alert::DECODE_ERROR),
        (
            "key share of 31 bytes",
            |_| record(22, 3, &[&[16, 0, 0, 32, 31][..], &[9; 31]].concat()),
            alert::ILLEGAL_PARAMETER,
        ),
        (
            "alert between fragments",
            |_| [record(22, 3, &[16, 0]), record(21, 3, &[1, 90])].concat(),
            alert::UNEXPECTED_MESSAGE,
        ),
        (
            "protected data before Finished",
            |half| [up_to_finished(half), protected_tls12(half, 23, b"GET /")].concat(),
            alert::UNEXPECTED_MESSAGE,
        ),
    ];
    for (name, bytes, description) in cases {
        let mut halfway = halfway(&kind);
        let bytes = bytes(&halfway);
        let mut out = Vec::new();
        let error = halfway.server.handle_input(&bytes, &mut out).unwrap_err();
        assert_eq!(out, alert::clear_alert(description), "{name}: {error}");
    }
}
