//! Law 0 (`docs/internals/failover.md`): two nodes with the same parameters and client bytes write the same flights.

mod common;

use std::sync::Arc;

use common::*;
use evergate_tls::{HandshakeParams, Progress, Version};
use proptest::prelude::*;
use rustls::crypto::aws_lc_rs::{cipher_suite as suite, kx_group};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, SupportedCipherSuite};

/// Connects, then replays on another node in several segmentations.
fn check(what: &str, pems: &(String, String), client: &Arc<ClientConfig>, secret: u8) -> Connected {
    let connected = connect(&node(pems), client, &params(secret)).map_err(|(error, _)| error).expect(what);
    let mut state = Vec::new();
    connected.server.records.export().encode(&mut state);
    let other = node(pems);
    for chunk in [1, 7, 100, 1 << 20] {
        let replay = replay(&other, &params(secret), &connected.c2s, chunk);
        assert_eq!(replay.outcome, Ok(Progress::Done), "{what}, chunk {chunk}");
        assert_eq!(replay.out, connected.s2c, "{what}, chunk {chunk}");
        assert_eq!(replay.state.as_ref(), Some(&state), "{what}, chunk {chunk}");
        assert_eq!(replay.consumed, connected.server.consumed, "{what}, chunk {chunk}");
    }
    connected
}

fn pems() -> [(&'static str, &'static (String, String)); 5] {
    let Pems { p256, p384, p521, ed25519, rsa } = &*PEMS;
    [("p256", p256), ("p384", p384), ("p521", p521), ("ed25519", ed25519), ("rsa", rsa)]
}

#[test]
fn flights_are_identical_for_every_key_version_and_group() {
    for (certificate, pems) in pems() {
        for version in [&TLS13, &TLS12] {
            let first = [kx_group::X25519MLKEM768, kx_group::X25519, kx_group::SECP256R1];
            for group in first.into_iter().chain([kx_group::SECP384R1]) {
                if version.version == TLS12.version && group.name() == kx_group::X25519MLKEM768.name() {
                    continue;
                }
                let what = format!("{certificate} {:?} {:?}", version.version, group.name());
                let kind = ClientKind { version, groups: vec![group], ..ClientKind::default() };
                let client = Arc::new(kind.config());
                let mut first = check(&what, pems, &client, 1);
                assert_eq!(first.server.facts.group, group.name().as_str(), "{what}");
                assert!(!first.server.facts.resumed);
                // The tickets come with the server's last flight.
                let pending = std::mem::take(&mut first.pending);
                feed(&mut first.client, &pending).unwrap();
                let resumed = check(&format!("{what} resumed"), pems, &client, 2);
                assert!(resumed.server.facts.resumed, "{what}");
                assert_eq!(resumed.server.facts.sni.as_deref(), Some("localhost"));
                assert_eq!(resumed.server.facts.alpn.as_deref(), Some(&b"http/1.1"[..]));
            }
        }
    }
}

#[test]
fn flights_are_identical_for_every_suite() {
    let tls13 = [
        suite::TLS13_AES_128_GCM_SHA256,
        suite::TLS13_AES_256_GCM_SHA384,
        suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    let tls12 = [
        suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ];
    for (version, suites, expected) in [(&TLS13, tls13, Version::Tls13), (&TLS12, tls12, Version::Tls12)] {
        for suite in suites {
            let kind = ClientKind { version, suites: vec![suite], ..ClientKind::default() };
            let connected = check(&format!("{suite:?}"), &PEMS.p256, &Arc::new(kind.config()), 1);
            assert_eq!(connected.server.facts.version, expected);
            let name = format!("{:?}", suite.suite()).replace("TLS13_", "TLS_");
            assert_eq!(connected.server.facts.suite, name);
        }
    }
}

#[test]
fn flights_are_identical_after_a_hello_retry_request() {
    // The client's first share is of a group that the server uses only without an alternative.
    for group in [kx_group::X25519, kx_group::SECP256R1] {
        let kind = ClientKind { groups: vec![kx_group::SECP384R1, group], ..ClientKind::default() };
        let connected = check("hello retry", &PEMS.p256, &Arc::new(kind.config()), 1);
        assert_eq!(connected.server.facts.group, group.name().as_str());
        assert_eq!(connected.client.handshake_kind(), Some(rustls::HandshakeKind::FullWithHelloRetryRequest));
    }
}

/// A client whose share is of a group other than its first one; `rustls` never sends this.
#[test]
fn p384_client_without_a_share_is_asked_for_one() {
    #[derive(Debug)]
    struct Unknown;
    impl rustls::crypto::SupportedKxGroup for Unknown {
        fn start(&self) -> Result<Box<dyn rustls::crypto::ActiveKeyExchange>, rustls::Error> {
            Ok(Box::new(Unknown))
        }
        fn name(&self) -> rustls::NamedGroup {
            rustls::NamedGroup::Unknown(0xfe01)
        }
    }
    impl rustls::crypto::ActiveKeyExchange for Unknown {
        fn complete(self: Box<Self>, _: &[u8]) -> Result<rustls::crypto::SharedSecret, rustls::Error> {
            Err(rustls::Error::General("an unknown group is agreed on".into()))
        }
        fn pub_key(&self) -> &[u8] {
            &[1; 40]
        }
        fn group(&self) -> rustls::NamedGroup {
            rustls::NamedGroup::Unknown(0xfe01)
        }
    }
    let kind = ClientKind { groups: vec![&Unknown, kx_group::SECP384R1], ..ClientKind::default() };
    let connected = check("p384 retry", &PEMS.p256, &Arc::new(kind.config()), 1);
    assert_eq!(connected.server.facts.group, Some("secp384r1"));
    assert_eq!(connected.client.handshake_kind(), Some(rustls::HandshakeKind::FullWithHelloRetryRequest));
}

#[test]
fn every_parameter_changes_the_flight() {
    let client = Arc::new(ClientKind::default().config());
    let connected = connect(&node(&PEMS.p256), &client, &params(1)).map_err(|(error, _)| error).unwrap();
    let hello = &connected.c2s[..evergate_hello_len(&connected.c2s)];
    let answer = |params: &HandshakeParams| replay(&node(&PEMS.p256), params, hello, 4096).out;
    let usual = answer(&params(1));
    assert!(connected.s2c.starts_with(&usual) && usual.len() > 100);
    let changes: [fn(&mut HandshakeParams); 5] = [
        |params| params.secret[31] ^= 1,
        |params| params.accepted_unix_s += 1,
        |params| params.generation += 1,
        |params| params.client.set_port(1),
        |params| params.local.set_ip("198.51.100.2".parse().unwrap()),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut params = params(1);
        change(&mut params);
        let other = answer(&params);
        // The random (bytes 11 to 43 of the ServerHello's record) and the key share differ.
        assert_ne!(other[11..43], usual[11..43], "{index}");
    }
    let mut mapped = params(1);
    mapped.client.set_ip("::ffff:192.0.2.7".parse().unwrap());
    assert_eq!(answer(&mapped), usual, "an IPv4 client is the same on both kinds of socket");
}

#[test]
fn another_hello_under_equal_parameters_causes_other_keys() {
    // An attacker would replay a victim's hello with a changed tail for this.
    let client = Arc::new(ClientKind::default().config());
    let one = connect(&node(&PEMS.p256), &client, &params(1)).map_err(|(error, _)| error).unwrap();
    let two = connect(&node(&PEMS.p256), &client, &params(1)).map_err(|(error, _)| error).unwrap();
    assert_ne!(one.s2c[11..43], two.s2c[11..43]);
}

fn evergate_hello_len(raw: &[u8]) -> usize {
    match evergate_tls::hello_status(raw, 1 << 16) {
        evergate_tls::HelloStatus::Complete { len } => len,
        other => panic!("{other:?}"),
    }
}

/// Recordings to be mutated: name and client bytes.
fn recordings() -> Vec<(&'static str, Vec<u8>)> {
    let record = |kind: &ClientKind| {
        let client = Arc::new(kind.config());
        let mut first = connect(&node(&PEMS.p256), &client, &params(1)).map_err(|(error, _)| error).unwrap();
        let pending = std::mem::take(&mut first.pending);
        feed(&mut first.client, &pending).unwrap();
        let resumed = connect(&node(&PEMS.p256), &client, &params(1)).map_err(|(error, _)| error).unwrap();
        [first.c2s, resumed.c2s]
    };
    let retry = ClientKind { groups: vec![kx_group::SECP384R1, kx_group::X25519], ..ClientKind::default() };
    let tls12 = ClientKind { version: &TLS12, ..ClientKind::default() };
    let [full, resumed] = record(&ClientKind::default());
    let [retried, retried_resumed] = record(&retry);
    let [full12, resumed12] = record(&tls12);
    vec![
        ("tls13", full),
        ("tls13 resumed", resumed),
        ("retry", retried),
        ("retry resumed", retried_resumed),
        ("tls12", full12),
        ("tls12 resumed", resumed12),
    ]
}

#[test]
fn mutated_client_bytes_have_one_answer_in_any_segmentation() {
    let recordings = recordings();
    let nodes = [node(&PEMS.p256), node(&PEMS.p256)];
    let refused = std::cell::Cell::new(0);
    let cases = ProptestConfig::default().cases.max(4000); // PROPTEST_CASES can only raise it
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(
        ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() },
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let edits = proptest::collection::vec((any::<prop::sample::Index>(), 0..4_u8, any::<u8>()), 1..4);
    runner
        .run(&(0..recordings.len(), edits, 1..100_usize), |(which, edits, chunk)| {
            let (what, original) = &recordings[which];
            let mut bytes = original.clone();
            for (at, kind, value) in edits {
                if bytes.is_empty() {
                    break;
                }
                let at = at.index(bytes.len());
                match kind {
                    0 => drop(bytes.remove(at)),
                    1 => bytes.insert(at, value),
                    2 => bytes[at] ^= 1 << (value % 8),
                    _ => bytes[at] = value,
                }
            }
            bytes.extend_from_slice(&[23, 3, 3, 0, 2, 1, 1]);
            let whole = replay(&nodes[0], &params(1), &bytes, usize::MAX);
            for (node, chunk) in [(&nodes[1], chunk), (&nodes[1], 1)] {
                let other = replay(node, &params(1), &bytes, chunk);
                prop_assert_eq!(&other.out, &whole.out, "{}, chunk {}", what, chunk);
                prop_assert_eq!(&other.outcome, &whole.outcome, "{}, chunk {}", what, chunk);
                prop_assert_eq!(&other.state, &whole.state, "{}, chunk {}", what, chunk);
            }
            refused.set(refused.get() + u32::from(whole.outcome.is_err()));
            Ok(())
        })
        .unwrap();
    assert!(refused.get() > 1000, "mutations were too tame: {} refused", refused.get());
}

#[test]
fn cut_and_garbage_bytes_never_panic() {
    let server = node(&PEMS.p256);
    for (what, bytes) in recordings() {
        for end in (0..bytes.len()).step_by(11) {
            let replay = replay(&server, &params(1), &bytes[..end], usize::MAX);
            assert!(
                replay.outcome.is_ok() && replay.state.is_none() || replay.state.is_some(),
                "{what} {end}"
            );
        }
    }
    proptest!(ProptestConfig::with_cases(500), |(bytes in proptest::collection::vec(any::<u8>(), 0..300))| {
        let raw = replay(&server, &params(1), &bytes, 10);
        let mut framed = vec![22, 3, 1, (bytes.len() >> 8) as u8, bytes.len() as u8];
        framed.extend_from_slice(&bytes);
        let framed = replay(&server, &params(1), &framed, 10);
        prop_assert!(raw.state.is_none() && framed.state.is_none());
    });
}

#[test]
fn chacha_is_used_only_for_clients_that_prefer_it() {
    let chosen = |suites: Vec<SupportedCipherSuite>, prefer: bool, version| {
        let server = node_with(&PEMS.p256, |settings| settings.prefer_chacha_when_client_does = prefer);
        let kind = ClientKind { suites, version, ..ClientKind::default() };
        let connected =
            connect(&server, &Arc::new(kind.config()), &params(1)).map_err(|(error, _)| error).unwrap();
        connected.server.facts.suite
    };
    let tls13 = |order: [usize; 3]| {
        let suites = [
            suite::TLS13_AES_128_GCM_SHA256,
            suite::TLS13_AES_256_GCM_SHA384,
            suite::TLS13_CHACHA20_POLY1305_SHA256,
        ];
        order.map(|index| suites[index]).to_vec()
    };
    assert_eq!(chosen(tls13([2, 0, 1]), true, &TLS13), "TLS_CHACHA20_POLY1305_SHA256");
    assert_eq!(chosen(tls13([2, 0, 1]), false, &TLS13), "TLS_AES_128_GCM_SHA256");
    assert_eq!(chosen(tls13([1, 2, 0]), true, &TLS13), "TLS_AES_128_GCM_SHA256");
    assert_eq!(chosen(tls13([1, 2, 0]), false, &TLS13), "TLS_AES_128_GCM_SHA256");
    let tls12 = vec![
        suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    ];
    assert_eq!(chosen(tls12.clone(), true, &TLS12), "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256");
    assert_eq!(chosen(tls12, false, &TLS12), "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384");
}

#[test]
fn provider_has_no_randomness_outside_a_seeded_scope() {
    let provider = evergate_crypto::provider();
    assert!(provider.secure_random.fill(&mut [0; 8]).is_err());
    for group in &provider.kx_groups {
        assert!(group.start().is_err());
    }
    // An ordinary `rustls` connection with such a configuration fails instead of using other randomness.
    let mut server = rustls::ServerConnection::new(node(&PEMS.p256)).unwrap();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(ClientKind::default().config()), name).unwrap();
    server.read_tls(&mut &take(&mut client)[..]).unwrap();
    assert!(matches!(server.process_new_packets(), Err(rustls::Error::FailedToGetRandomBytes)));
}
