//! Data through the record layer against real clients, failover in mid-stream, and the upstream client.

mod common;

use std::sync::Arc;

use common::*;
use evergate_crypto::{ClientSettings, Verify, client_config};
use evergate_tls::{
    Blame, ClientHandshake, Finished, Handshake, HandshakeError, Opened, Progress, Records, RecordsState,
    alert,
};
use rustls::ClientConfig;
use rustls::crypto::aws_lc_rs::cipher_suite as suite;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};

fn kinds() -> Vec<ClientKind> {
    let one = |version, suite| ClientKind { version, suites: vec![suite], ..ClientKind::default() };
    vec![
        one(&TLS13, suite::TLS13_AES_128_GCM_SHA256),
        one(&TLS13, suite::TLS13_AES_256_GCM_SHA384),
        one(&TLS13, suite::TLS13_CHACHA20_POLY1305_SHA256),
        one(&TLS12, suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
        one(&TLS12, suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
        one(&TLS12, suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ]
}

fn connected(kind: &ClientKind) -> Connected {
    connect(&node(&PEMS.p256), &Arc::new(kind.config()), &params(1)).map_err(|(error, _)| error).unwrap()
}

fn moved(records: &Records) -> Records {
    let mut bytes = Vec::new();
    records.export().encode(&mut bytes);
    Records::import(&RecordsState::decode(&bytes).unwrap()).unwrap()
}

#[test]
fn data_continues_on_another_node_across_key_updates() {
    for kind in kinds() {
        let tls13 = kind.version.version == TLS13.version;
        let Connected { mut client, server, .. } = connected(&kind);
        let mut records = server.records;
        for step in 0..40_usize {
            let payload: Vec<u8> = (0..step * 331).map(|i| (i * step) as u8).collect();
            let up = send(&mut client, &payload);
            let (data, _) = open_all(&mut records, &up);
            assert_eq!(data, payload);
            let down = seal(&mut records, &payload);
            assert_eq!(feed(&mut client, &down).unwrap(), payload);
            if tls13 && step % 5 == 1 {
                client.refresh_traffic_keys().unwrap();
                let (_, events) = open_all(&mut records, &take(&mut client));
                assert_eq!(events, [Opened::KeyUpdate { requested: true }]);
                let mut out = Vec::new();
                records.seal_key_update(false, &mut out);
                feed(&mut client, &out).unwrap();
            }
            if tls13 && step % 5 == 2 {
                let mut out = Vec::new();
                records.seal_key_update(true, &mut out);
                feed(&mut client, &out).unwrap();
                // The client answers before its next data.
                let (data, events) = open_all(&mut records, &send(&mut client, b"after"));
                assert_eq!((data, events), (b"after".to_vec(), vec![Opened::KeyUpdate { requested: false }]));
            }
            if step % 4 == 3 {
                records = moved(&records);
            }
        }
        if tls13 {
            assert_eq!((records.tx().generation, records.rx().generation), (16, 16));
        }
        client.send_close_notify();
        let (_, events) = open_all(&mut records, &take(&mut client));
        assert_eq!(events, [Opened::Alert { fatal: false, description: alert::CLOSE_NOTIFY }]);
        let mut out = Vec::new();
        records.seal_alert(alert::CLOSE_NOTIFY, &mut out);
        client.read_tls(&mut &out[..]).unwrap();
        assert!(client.process_new_packets().unwrap().peer_has_closed());
    }
}

#[test]
fn data_behind_the_last_handshake_record_is_left_over() {
    for kind in kinds() {
        let Connected { mut client, c2s, s2c, .. } = connected(&kind);
        let early = send(&mut client, b"hello");
        let mut handshake = Handshake::new(&node(&PEMS.p256), &params(1)).unwrap();
        let mut out = Vec::new();
        let together = [&c2s[..], &early[..]].concat();
        assert_eq!(handshake.handle_input(&together, &mut out).unwrap(), Progress::Done);
        assert_eq!(handshake.consumed(), c2s.len() as u64);
        assert_eq!(handshake.handle_input(&early[..3], &mut out).unwrap(), Progress::Done);
        assert_eq!(out, s2c);
        let Finished { leftover, mut records, consumed, .. } = handshake.finish().unwrap();
        assert_eq!(leftover, [&early[..], &early[..3]].concat());
        assert_eq!(consumed, c2s.len() as u64);
        assert_eq!(open_all(&mut records, &early).0, b"hello");
    }
}

#[test]
fn handshake_continues_on_another_node_after_any_byte() {
    for kind in [ClientKind::default(), ClientKind { version: &TLS12, ..ClientKind::default() }] {
        let Connected { mut client, c2s, s2c, .. } = connected(&kind);
        // The first node fails after any byte; the second receives the replicated bytes, then the rest.
        for cut in (0..c2s.len()).step_by(13) {
            let mut second = Handshake::new(&node(&PEMS.p256), &params(1)).unwrap();
            let mut out = Vec::new();
            second.handle_input(&c2s[..cut], &mut out).unwrap();
            assert!(s2c.starts_with(&out));
            second.handle_input(&c2s[cut..], &mut out).unwrap();
            assert_eq!(out, s2c);
            let mut records = second.finish().unwrap().records;
            if cut == 0 {
                let up = send(&mut client, b"still here");
                assert_eq!(open_all(&mut records, &up).0, b"still here");
                assert_eq!(feed(&mut client, &seal(&mut records, b"so am I")).unwrap(), b"so am I");
            }
        }
    }
}

#[test]
fn other_protocols_are_refused_with_their_name() {
    let refused = |bytes: &[u8]| {
        let mut handshake = Handshake::new(&node(&PEMS.p256), &params(1)).unwrap();
        let mut out = Vec::new();
        let error = handshake.handle_input(bytes, &mut out).unwrap_err();
        assert!(matches!(handshake.handle_input(b"x", &mut out), Err(HandshakeError::State(_))));
        assert!(handshake.finish().is_err());
        (error, out)
    };
    let (error, out) = refused(b"GET / HTTP/1.1\r\n\r\n");
    assert!(matches!(error, HandshakeError::PlainHttp) && out.is_empty());
    let (error, out) = refused(b"\x16\x03\x01\x00\x05\x02");
    assert!(matches!(error, HandshakeError::Unexpected(_)) && out == [21, 3, 3, 0, 2, 2, 10]);
    let (error, out) = refused(b"SSH-2.0-x");
    assert!(matches!(error, HandshakeError::NotTls) && out == [21, 3, 3, 0, 2, 2, 10]);
    let (error, out) = refused(&[22, 3, 1, 0, 4, 1, 0xff, 0, 0]);
    assert!(matches!(error, HandshakeError::HelloTooLong { .. }) && out == [21, 3, 3, 0, 2, 2, 50]);
    // A hello that rustls refuses: its alert is sent once.
    let (error, out) = refused(&[22, 3, 1, 0, 5, 1, 0, 0, 1, 9]);
    assert!(matches!(error, HandshakeError::Tls(_)) && error.blame() == Blame::Peer);
    assert_eq!((out.len(), out[0]), (7, 21));
}

#[test]
fn client_without_common_version_or_alpn_receives_an_alert() {
    let only13 = node_with(&PEMS.p256, |settings| settings.version_min = evergate_tls::Version::Tls13);
    let old = ClientKind { version: &TLS12, ..ClientKind::default() };
    let (error, out) = connect(&only13, &Arc::new(old.config()), &params(1)).map(|_| ()).unwrap_err();
    assert_eq!((error.blame(), &out[..]), (Blame::Peer, &[21, 3, 3, 0, 2, 2, 70][..]));
    let mut other = ClientKind::default().config();
    other.alpn_protocols = vec![b"gopher".to_vec()];
    let (error, out) = connect(&node(&PEMS.p256), &Arc::new(other), &params(1)).map(|_| ()).unwrap_err();
    // Known only after the ServerHello, so the alert is encrypted: 2 bytes, a type and a tag.
    assert!(error.blame() == Blame::Peer && error.to_string().contains("(ALPN) in common"), "{error}");
    assert_eq!(out[out.len() - 24..out.len() - 19], [23, 3, 3, 0, 19]);
}

/// A hello without extensions, as sent by clients before TLS 1.2.
fn bare_hello(version: [u8; 2]) -> Vec<u8> {
    let rest: &[u8] = &[0, 0, 4, 0xc0, 0x13, 0, 0x2f, 1, 0]; // no session, two cipher suites, no compression
    let body = [&version[..], &[7; 32], rest].concat();
    let len = body.len() as u8;
    [&[22, 3, 1, 0, len + 4, 1, 0, 0, len], &body[..]].concat()
}

#[test]
fn client_of_an_old_version_receives_its_alert() {
    for (version, alert) in [([3, 0], 70), ([3, 1], 70), ([3, 2], 70), ([3, 3], 40)] {
        let (mut server, mut out) = (Handshake::new(&node(&PEMS.p256), &params(1)).unwrap(), Vec::new());
        let error = server.handle_input(&bare_hello(version), &mut out).unwrap_err();
        assert_eq!(out, [21, 3, 3, 0, 2, 2, alert], "{version:?}: {error}");
        let is_old = matches!(error, HandshakeError::TooOld | HandshakeError::Ssl3);
        assert_eq!((is_old, error.blame()), (alert == 70, Blame::Peer));
    }
}

/// A client with a ticket of another server, which sends early data.
fn early_client(groups: Vec<&'static dyn rustls::crypto::SupportedKxGroup>) -> Arc<ClientConfig> {
    // One hash: `rustls` makes a client keep its ticket when the server asks for another share.
    let kind = ClientKind { groups, suites: vec![suite::TLS13_AES_128_GCM_SHA256], ..ClientKind::default() };
    let mut config = kind.config();
    config.enable_early_data = true;
    let certificate = load(&PEMS.p256).key.cert.clone();
    let key = rustls::pki_types::pem::PemObject::from_pem_slice(PEMS.p256.1.as_bytes()).unwrap();
    let mut other = rustls::ServerConfig::builder_with_provider(ClientKind::default().provider())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificate, key)
        .unwrap();
    other.max_early_data_size = 1 << 20;
    other.alpn_protocols = vec![b"http/1.1".to_vec()];
    let config = Arc::new(config);
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = rustls::ClientConnection::new(config.clone(), name).unwrap();
    let mut server = rustls::ServerConnection::new(Arc::new(other)).unwrap();
    for _ in 0..3 {
        server.read_tls(&mut &take(&mut client)[..]).unwrap();
        server.process_new_packets().unwrap();
        let mut out = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut out).unwrap();
        }
        feed(&mut client, &out).unwrap();
    }
    config
}

/// Result of a handshake with early data in records of these sizes: the alert, or success.
fn with_early_data(config: &Arc<ClientConfig>, records: &[usize], chunk: usize) -> Result<(), Vec<u8>> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = rustls::ClientConnection::new(config.clone(), name).unwrap();
    let mut up = Vec::new();
    for len in records {
        std::io::Write::write_all(&mut client.early_data().unwrap(), &vec![7; *len]).unwrap();
        up.extend(take(&mut client));
    }
    let (mut server, mut out) = (Handshake::new(&node(&PEMS.p256), &params(1)).unwrap(), Vec::new());
    loop {
        for piece in up.chunks(chunk) {
            match server.handle_input(piece, &mut out) {
                Ok(Progress::NeedInput) => {}
                Ok(Progress::Done) => {
                    assert!(!client.is_early_data_accepted());
                    let mut records = server.finish().unwrap().records;
                    assert_eq!(open_all(&mut records, &send(&mut client, b"again")).0, b"again");
                    return Ok(());
                }
                Err(_) => return Err(out),
            }
        }
        feed(&mut client, &std::mem::take(&mut out)).unwrap();
        up = take(&mut client);
        assert!(!up.is_empty());
    }
}

#[test]
fn rejected_early_data_is_skipped_in_any_segmentation() {
    use rustls::crypto::aws_lc_rs::kx_group::{SECP384R1, X25519};
    for groups in [vec![X25519], vec![SECP384R1, X25519]] {
        let retried = groups.len() > 1;
        for records in
            [vec![1], vec![9000], vec![16384], vec![8000; 2], vec![2048; 16], vec![16384; 2], vec![1; 500]]
        {
            // A ticket is valid for one attempt.
            for chunk in [1 << 20, 1000] {
                let config = early_client(groups.clone());
                let outcome = with_early_data(&config, &records, chunk);
                assert_eq!(outcome, Ok(()), "{retried} {records:?} {chunk}");
            }
        }
        for records in [vec![16384, 16384, 1], vec![2048; 17], vec![1; 513]] {
            let outcome = with_early_data(&early_client(groups.clone()), &records, 1 << 20);
            assert!(outcome.is_err_and(|out| !out.is_empty()), "{retried} {records:?}");
        }
    }
}

#[test]
fn client_without_suitable_certificate_receives_an_alert() {
    let rsa = vec![suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256];
    let by_suite = ClientKind { version: &TLS12, suites: rsa, ..ClientKind::default() }.config();
    let mut provider = (*ClientKind::default().provider()).clone();
    let schemes = &mut provider.signature_verification_algorithms.mapping;
    *schemes = &schemes[..1]; // ECDSA
    let provider = Arc::new(provider);
    let by_scheme = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(trust::Everyone(provider)))
        .with_no_client_auth();
    for (server, client) in [(&PEMS.p256, by_suite), (&PEMS.rsa, by_scheme)] {
        let outcome = connect(&node(server), &Arc::new(client), &params(1));
        let (error, out) = outcome.map(|_| ()).unwrap_err();
        assert_eq!(out, [21, 3, 3, 0, 2, 2, 40], "{error}");
        assert!(matches!(error, HandshakeError::NothingInCommon), "{error}");
        assert_eq!((error.blame(), error.alert()), (Blame::Peer, Some(alert::HANDSHAKE_FAILURE)));
    }
}

/// The upstream client with the server, `chunk` bytes at a time.
fn upstream(client: &Arc<ClientConfig>, secret: u8, chunk: usize) -> (Finished, Finished, Vec<u8>) {
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientHandshake::new(client, name).unwrap();
    let mut server = Handshake::new(&node(&PEMS.p256), &params(secret)).unwrap();
    let (mut up, mut down) = (Vec::new(), Vec::new());
    client.start(&mut up).unwrap();
    loop {
        let flight = std::mem::take(&mut up);
        let mut progress = Progress::NeedInput;
        for piece in flight.chunks(chunk) {
            progress = server.handle_input(piece, &mut down).unwrap();
        }
        let flight = std::mem::take(&mut down);
        for piece in flight.chunks(chunk) {
            client.handle_input(piece, &mut up).unwrap();
        }
        if progress == Progress::Done && up.is_empty() {
            let (client, server) = (client.finish().unwrap(), server.finish().unwrap());
            let tickets = client.leftover.clone();
            return (client, server, tickets);
        }
    }
}

#[test]
fn own_client_and_server_connect_and_resume() {
    let settings = || ClientSettings {
        verify: Verify::Roots(load(&PEMS.p256).key.cert.clone()),
        alpn: vec![b"http/1.1".to_vec()],
        certificate: None,
    };
    for chunk in [1, 100, 1 << 20] {
        let config = client_config(settings()).unwrap();
        for resumed in [false, true] {
            let (mut client, mut server, tickets) = upstream(&config, 1, chunk);
            for facts in [&client.facts, &server.facts] {
                assert_eq!(facts.resumed, resumed);
                assert_eq!(facts.sni.as_deref(), Some("localhost"));
                assert_eq!(facts.alpn.as_deref(), Some(&b"http/1.1"[..]));
                assert_eq!(facts.group, Some("X25519"));
            }
            assert_eq!(client.facts.client_certificates, load(&PEMS.p256).key.cert);
            let (_, events) = open_all(&mut client.records, &tickets);
            assert!(!events.is_empty() && events.iter().all(|event| *event == Opened::Ignored));
            for _ in 0..3 {
                let record = seal(&mut client.records, b"request");
                assert_eq!(open_all(&mut server.records, &record).0, b"request");
                let record = seal(&mut server.records, b"response");
                assert_eq!(open_all(&mut client.records, &record).0, b"response");
                let mut update = Vec::new();
                client.records.seal_key_update(true, &mut update);
                assert_eq!(open_all(&mut server.records, &update).1, [Opened::KeyUpdate { requested: true }]);
                client.records = moved(&client.records);
            }
        }
    }
}

/// A server whose certificate is its own authority, as made by `openssl req -x509`.
#[test]
fn authority_certificate_is_a_server_only_when_pinned() {
    let made = |name: &str, until: i32| {
        let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    };
    let (good, elsewhere, expired) =
        (made("localhost", 2200), made("elsewhere", 2200), made("localhost", 2001));
    for (shows, trusts, refused) in [
        (&good, &good, ""),
        (&good, &elsewhere, "self-signed certificate of unknown issuer"),
        (&elsewhere, &elsewhere, "not valid for name"),
        (&expired, &expired, "xpired"),
    ] {
        let verify = Verify::Roots(load(trusts).key.cert.clone());
        let config = client_config(ClientSettings { verify, ..ClientSettings::default() }).unwrap();
        let mut client = ClientHandshake::new(&config, ServerName::try_from("localhost").unwrap()).unwrap();
        let mut server = Handshake::new(&node(shows), &params(1)).unwrap();
        let (mut up, mut down) = (Vec::new(), Vec::new());
        client.start(&mut up).unwrap();
        server.handle_input(&std::mem::take(&mut up), &mut down).unwrap();
        let outcome = client.handle_input(&down, &mut up).map_err(|error| error.to_string());
        assert!(outcome.as_ref().err().is_none_or(|error| error.contains(refused)), "{outcome:?}");
        assert_eq!(outcome.is_ok(), refused.is_empty(), "{outcome:?}");
    }
}

#[test]
fn pinned_certificate_is_trusted_for_its_server_alone() {
    let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "pinned");
    let pinned = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
    let itself = (pinned.pem(), pinned.key().serialize_pem());
    let key = rcgen::KeyPair::generate().unwrap();
    let forged = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
    let forged = (forged.signed_by(&key, &pinned).unwrap().pem(), key.serialize_pem());
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = authority.self_signed(&key).unwrap().der().clone();
    for roots in [vec![pinned.der().clone()], vec![pinned.der().clone(), authority]] {
        for (shows, accepted) in [(&itself, true), (&forged, false)] {
            let verify = Verify::Roots(roots.clone());
            let config = client_config(ClientSettings { verify, ..ClientSettings::default() }).unwrap();
            let name = ServerName::try_from("localhost").unwrap();
            let mut client = ClientHandshake::new(&config, name).unwrap();
            let mut server = Handshake::new(&node(shows), &common::params(1)).unwrap();
            let (mut up, mut down) = (Vec::new(), Vec::new());
            client.start(&mut up).unwrap();
            server.handle_input(&std::mem::take(&mut up), &mut down).unwrap();
            let outcome = client.handle_input(&down, &mut up);
            assert_eq!(outcome.is_ok(), accepted, "{outcome:?}");
            let reported = outcome.err().map(|error| error.to_string());
            assert!(reported.is_none_or(|reported| reported.contains("unknown issuer")));
        }
    }
}

#[test]
fn unverified_upstream_is_refused_unless_insecure() {
    let other = self_signed(&["localhost"], &rcgen::KeyPair::generate().unwrap());
    for (verify, accepted) in [
        (Verify::Roots(load(&PEMS.p256).key.cert.clone()), true),
        (Verify::Roots(load(&other).key.cert.clone()), false),
        (Verify::InsecureNone, true),
    ] {
        let config = client_config(ClientSettings { verify, ..ClientSettings::default() }).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientHandshake::new(&config, name).unwrap();
        let mut server = Handshake::new(&node(&PEMS.p256), &params(1)).unwrap();
        let (mut up, mut down) = (Vec::new(), Vec::new());
        client.start(&mut up).unwrap();
        server.handle_input(&std::mem::take(&mut up), &mut down).unwrap();
        let outcome = client.handle_input(&down, &mut up);
        assert_eq!(outcome.is_ok(), accepted);
        if let Err(error) = outcome {
            assert_eq!(error.blame(), Blame::Peer);
            let error = server.handle_input(&up, &mut down).unwrap_err();
            assert!(error.to_string().contains("received fatal alert"), "{error}");
        }
    }
}
