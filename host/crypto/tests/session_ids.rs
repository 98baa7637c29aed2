//! TLS 1.2 sessions that clients without tickets resume by their ids: the stored state, the clients that may resume it,
//! and that a handshake depends only on the session found.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use evergate_base::session::{KeptSession, Sealed, SessionId};
use evergate_crypto::{ClientAuth, ServerSettings};
use evergate_tls::{NamedSession, Progress, Version};
use rustls::client::{Resumption, Tls12Resumption};
use rustls::pki_types::PrivateKeyDer;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ServerConfig};

const LIFETIME_S: u32 = 600;

type Change = fn(&mut ServerSettings);

/// A node that stores sessions, with its configuration loaded again.
fn keeping(change: impl FnOnce(&mut ServerSettings)) -> Arc<ServerConfig> {
    node_with(&PEMS.p256, |settings| {
        settings.session_ids = Some((shared_tickets(), LIFETIME_S));
        change(settings);
    })
}

/// A client that accepts no tickets, of both versions if `newer`.
fn client(newer: bool) -> Arc<ClientConfig> {
    let kind = ClientKind { version: &TLS12, ..ClientKind::default() };
    let mut config = kind.config();
    if newer {
        config = ClientConfig::builder_with_provider(kind.provider())
            .with_protocol_versions(&[&TLS12, &TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(trust::Everyone(kind.provider())))
            .with_no_client_auth();
    }
    config.resumption = Resumption::in_memory_sessions(8).tls12_resumption(Tls12Resumption::SessionIdOnly);
    Arc::new(config)
}

fn full(server: &Arc<ServerConfig>, client: &Arc<ClientConfig>) -> KeptSession {
    let connected = connect(server, client, &params(1)).map_err(|(error, _)| error).unwrap();
    assert!(!connected.server.facts.resumed);
    match connected.server.session {
        Some(NamedSession::New(kept)) => kept,
        other => panic!("{other:?}"),
    }
}

/// A second connection to `server`, which finds `kept`.
fn again(server: &Arc<ServerConfig>, client: &Arc<ClientConfig>, kept: &KeptSession) -> Connected {
    let find = |id: &SessionId| (*id == kept.id).then(|| kept.sealed.clone());
    connect_from("localhost", server, client, &params(2), find).map_err(|(error, _)| error).unwrap()
}

#[test]
fn session_resumed_by_id_has_the_same_flight_on_every_node() {
    let client = client(false);
    let kept = full(&keeping(|_| {}), &client);
    assert_eq!(kept.until_unix_s, NOW + u64::from(LIFETIME_S));
    let resumed = again(&keeping(|_| {}), &client, &kept);
    assert!(resumed.server.facts.resumed);
    assert_eq!(resumed.server.session, Some(NamedSession::Resumed(kept.id)));
    let mut state = Vec::new();
    resumed.server.records.export().encode(&mut state);
    for chunk in [1, 7, 100, 1 << 20] {
        let replay =
            replay_from(&keeping(|_| {}), &params(2), Some(kept.sealed.clone()), &resumed.c2s, chunk);
        assert_eq!((replay.outcome, replay.out), (Ok(Progress::Done), resumed.s2c.clone()), "chunk {chunk}");
        assert_eq!(replay.state.as_ref(), Some(&state), "chunk {chunk}");
    }
    // A node with only an empty cache of its own writes another flight.
    assert_ne!(replay(&keeping(|_| {}), &params(2), &resumed.c2s, 100).out, resumed.s2c);
}

#[test]
fn session_with_id_ends_with_its_client_certificate() {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let root = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["someone".to_owned()]).unwrap();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    // 300 s after `NOW`, which is at eight o'clock.
    params.not_after = rcgen::date_time_ymd(2027, 1, 15) + Duration::from_secs(8 * 3600 + 300);
    let key = rcgen::KeyPair::generate().unwrap();
    let chain = vec![params.signed_by(&key, &root).unwrap().der().clone()];
    let kind = ClientKind { version: &TLS12, ..ClientKind::default() };
    let mut client = ClientConfig::builder_with_provider(kind.provider())
        .with_protocol_versions(&[&TLS12])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(trust::Everyone(kind.provider())))
        .with_client_auth_cert(chain, PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    client.resumption = Resumption::in_memory_sessions(8).tls12_resumption(Tls12Resumption::SessionIdOnly);
    let client = Arc::new(client);
    let strict = || {
        keeping(|settings| {
            settings.alpn = Vec::new();
            settings.client_auth = ClientAuth::Required(vec![root.der().clone()]);
        })
    };
    let kept = full(&strict(), &client);
    assert_eq!(kept.until_unix_s, NOW + 300, "the store forgets it then");
    for (later_s, resumed) in [(0, Some(true)), (300, Some(true)), (301, None)] {
        let mut params = common::params(2);
        params.accepted_unix_s += later_s;
        let find = |id: &SessionId| (*id == kept.id).then(|| kept.sealed.clone());
        let connected = connect_from("localhost", &strict(), &client, &params, find).ok();
        assert_eq!(connected.map(|connected| connected.server.facts.resumed), resumed, "{later_s}");
    }
}

#[test]
fn unknown_session_id_causes_a_full_handshake_on_replay() {
    let client = client(false);
    let lost = full(&keeping(|_| {}), &client);
    let second = connect(&keeping(|_| {}), &client, &params(2)).map_err(|(error, _)| error).unwrap();
    let Some(NamedSession::New(kept)) = &second.server.session else { panic!("no new session") };
    assert!(!second.server.facts.resumed && kept.id != lost.id);
    let replay = replay(&keeping(|_| {}), &params(2), &second.c2s, 9);
    assert_eq!(replay.out, second.s2c);
    assert!(again(&keeping(|_| {}), &client, kept).server.facts.resumed);
}

#[test]
fn session_resumes_only_under_its_policy_auth_keys_and_id() {
    let cases: [(&str, Change); 3] = [
        ("another name", |settings| settings.policy = "b".to_owned()),
        ("other client authentication", |settings| {
            let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            let root = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
            settings.client_auth = ClientAuth::Optional(vec![root.der().clone()]);
        }),
        ("other keys", |settings| {
            let keys = evergate_crypto::TicketKeys::random(0);
            settings.session_ids = Some((evergate_crypto::TicketHandle::new(keys), LIFETIME_S));
        }),
    ];
    for (what, change) in cases {
        let client = client(false);
        let kept = full(&keeping(|_| {}), &client);
        let refused = again(&keeping(change), &client, &kept);
        assert!(!refused.server.facts.resumed, "{what}");
        assert!(matches!(refused.server.session, Some(NamedSession::New(_))), "{what}");
    }
    // Another session under this id, and a ticket in its place.
    let (ours, other) = (client(false), client(false));
    let (kept, foreign) = (full(&keeping(|_| {}), &ours), full(&keeping(|_| {}), &other));
    let swapped = KeptSession { sealed: foreign.sealed, ..kept.clone() };
    assert!(!again(&keeping(|_| {}), &ours, &swapped).server.facts.resumed);
    let spoilt = KeptSession { sealed: Sealed(vec![7; 300]), ..kept };
    assert!(!again(&keeping(|_| {}), &ours, &spoilt).server.facts.resumed);
}

#[test]
fn only_clients_without_tickets_receive_an_id() {
    let takes_tickets = || Arc::new(ClientKind { version: &TLS12, ..ClientKind::default() }.config());
    let session = |server: &Arc<ServerConfig>, client: &Arc<ClientConfig>| {
        let connected = connect(server, client, &params(1)).map_err(|(error, _)| error).unwrap();
        connected.server.session
    };
    assert_eq!(session(&keeping(|_| {}), &takes_tickets()), None);
    let without_tickets = keeping(|settings| settings.tickets = None);
    assert!(matches!(session(&without_tickets, &takes_tickets()), Some(NamedSession::New(_))));
    assert_eq!(session(&node(&PEMS.p256), &client(false)), None, "where no sessions are kept");
    assert_eq!(session(&keeping(|_| {}), &client(true)), None, "TLS 1.3");
    let newer = Arc::new(ClientKind::default().config());
    assert_eq!(session(&without_tickets, &newer), None, "TLS 1.3 without ticket keys");
}

#[test]
fn client_of_both_versions_resumes_by_id_in_tls12() {
    let old = || keeping(|settings| settings.version_max = Version::Tls12);
    let client = client(true);
    let kept = full(&old(), &client);
    assert!(again(&old(), &client, &kept).server.facts.resumed);
    // A server of TLS 1.3 ignores the id and does not look it up.
    let find = |_: &SessionId| -> Option<Sealed> { panic!("looked up") };
    let newer = connect_from("localhost", &keeping(|_| {}), &client, &params(3), find);
    assert_eq!(newer.map_err(|(error, _)| error).unwrap().server.facts.version, Version::Tls13);
}
