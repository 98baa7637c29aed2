//! Certificates by name, client certificates, and tickets that open only under their policy.

mod common;

use std::sync::Arc;

use common::*;
use evergate_crypto::{
    ClientAuth, ClientCertificate, ClientSettings, ConfigError, KeyError, ServerSettings, TicketHandle,
    TicketKeys, Verify, client_config, load_certificate, self_signed, server_config,
};
use evergate_tls::{Blame, record_len};
use rustls::pki_types::CertificateDer;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, SignatureScheme};

/// A root and a client certificate that it signed.
struct Clients {
    root: CertificateDer<'static>,
    chain: String,
    key: String,
}

fn clients() -> Clients {
    clients_with(|certificate| certificate.not_after = rcgen::date_time_ymd(2040, 1, 1))
}

/// Like [`clients`], with another certificate.
fn clients_with(change: impl FnOnce(&mut rcgen::CertificateParams)) -> Clients {
    clients_of(|root| root.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained), change)
}

/// Like [`clients_with`], with another root as well.
fn clients_of(
    root: impl FnOnce(&mut rcgen::CertificateParams),
    change: impl FnOnce(&mut rcgen::CertificateParams),
) -> Clients {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    root(&mut params);
    let root = rcgen::CertifiedIssuer::self_signed(params, rcgen::KeyPair::generate().unwrap()).unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["someone".to_owned()]).unwrap();
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    change(&mut params);
    let key = rcgen::KeyPair::generate().unwrap();
    let leaf = params.signed_by(&key, &root).unwrap();
    Clients { root: root.der().clone(), chain: leaf.pem(), key: key.serialize_pem() }
}

/// A client of `version` that presents the certificate or none.
fn showing(
    clients: Option<&Clients>,
    version: &'static rustls::SupportedProtocolVersion,
) -> Arc<ClientConfig> {
    let provider = ClientKind::default().provider();
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(trust::Everyone(provider)));
    let config = match clients {
        None => builder.with_no_client_auth(),
        Some(clients) => {
            let certificate =
                ClientCertificate::from_pem(clients.chain.as_bytes(), clients.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(certificate.chain, certificate.key).unwrap()
        }
    };
    Arc::new(config)
}

fn asking(auth: ClientAuth, policy: &str) -> Arc<rustls::ServerConfig> {
    node_with(&PEMS.p256, |settings| {
        settings.client_auth = auth;
        settings.policy = policy.to_owned();
        settings.alpn = Vec::new();
    })
}

#[test]
fn flights_are_identical_for_every_client_auth_setting() {
    let (ours, unlisted) = (clients(), clients());
    let roots = || vec![ours.root.clone()];
    for version in [&TLS13, &TLS12] {
        for (auth, client, accepted, shown) in [
            (ClientAuth::None, Some(&ours), true, false),
            (ClientAuth::Optional(roots()), None, true, false),
            (ClientAuth::Optional(roots()), Some(&ours), true, true),
            (ClientAuth::Optional(roots()), Some(&unlisted), false, false),
            (ClientAuth::Required(roots()), None, false, false),
            (ClientAuth::Required(roots()), Some(&ours), true, true),
            (ClientAuth::Required(roots()), Some(&unlisted), false, false),
        ] {
            let what = format!("{:?} {auth:?} {}", version.version, client.is_some());
            match connect(&asking(auth.clone(), ""), &showing(client, version), &params(1)) {
                Ok(connected) => {
                    assert!(accepted, "{what}");
                    assert_eq!(!connected.server.facts.client_certificates.is_empty(), shown, "{what}");
                    let replay = replay(&asking(auth, ""), &params(1), &connected.c2s, 5);
                    assert_eq!(replay.out, connected.s2c, "{what}");
                }
                Err((error, out)) => {
                    assert!(!accepted, "{what}: {error}");
                    assert_eq!(error.blame(), Blame::Peer, "{what}: {error}");
                    assert!(!out.is_empty(), "{what}");
                }
            }
        }
    }
}

#[test]
fn non_issuing_certificate_verifies_no_client() {
    use rcgen::{BasicConstraints::Unconstrained, IsCa, KeyUsagePurpose as Usage};
    for (is_ca, usages, may_issue) in [
        (IsCa::Ca(Unconstrained), vec![], true),
        (IsCa::Ca(Unconstrained), vec![Usage::DigitalSignature, Usage::KeyCertSign], true),
        (IsCa::Ca(Unconstrained), vec![Usage::DigitalSignature], false),
        (IsCa::NoCa, vec![], false),
        (IsCa::NoCa, vec![Usage::KeyCertSign], false),
        (IsCa::ExplicitNoCa, vec![], false),
    ] {
        let what = format!("{is_ca:?} {usages:?}");
        let named = clients_of(|root| (root.is_ca, root.key_usages) = (is_ca, usages), |_| {});
        let settings = |roots| ServerSettings {
            certificates: vec![load(&PEMS.p256)],
            client_auth: ClientAuth::Required(roots),
            ..ServerSettings::default()
        };
        let alone = server_config(settings(vec![named.root.clone()]));
        assert_eq!(alone.is_ok(), may_issue, "{what}");
        assert!(alone.err().is_none_or(|error| matches!(error, ConfigError::NoAuthority)), "{what}");
        let others = clients();
        let server = server_config(settings(vec![named.root.clone(), others.root.clone()])).unwrap();
        let accepts =
            |clients: &Clients| connect(&server, &showing(Some(clients), &TLS13), &params(1)).is_ok();
        assert_eq!((accepts(&named), accepts(&others)), (may_issue, true), "{what}");
    }
}

#[test]
fn clients_are_accepted_when_authority_names_do_not_fit() {
    let ours = clients();
    let key = rcgen::KeyPair::generate().unwrap();
    let other = |index: usize| {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, format!("{index:0>64}"));
        params.self_signed(&key).unwrap().der().clone()
    };
    let mut roots: Vec<_> = (0..190).map(other).collect();
    roots.push(ours.root.clone());
    let summary = evergate_crypto::authorities(&roots);
    let (bytes, bytes_max) = summary.names_bytes;
    assert!(summary.count == 191 && bytes <= bytes_max && bytes_max < 1 << 14, "{summary:?}");
    // The names exceed neither the 16 bits of the length nor the memory of clients.
    let mut sizes = Vec::new();
    for more in [0, 50, 900] {
        roots.extend((0..more).map(|index| other(1000 + index)));
        for version in [&TLS13, &TLS12] {
            let server = asking(ClientAuth::Required(roots.clone()), "");
            let connected = connect(&server, &showing(Some(&ours), version), &params(1));
            let connected = connected.map_err(|(error, _)| error).unwrap();
            assert_eq!(connected.server.facts.client_certificates.len(), 1);
            sizes.push(connected.s2c.len());
        }
    }
    assert!(
        sizes[..2].iter().all(|&size| size > 15_000) && sizes[2..].iter().all(|&size| size < 4000),
        "{sizes:?}"
    );
}

#[test]
fn client_certificates_are_checked_at_the_accept_time() {
    let ours = clients();
    for (unix_s, accepted) in [(NOW, true), (1_500_000_000, false), (2_300_000_000, false)] {
        let mut params = params(1);
        params.accepted_unix_s = unix_s;
        let server = asking(ClientAuth::Required(vec![ours.root.clone()]), "");
        let outcome = connect(&server, &showing(Some(&ours), &TLS13), &params);
        assert_eq!(outcome.is_ok(), accepted, "{unix_s}");
    }
}

/// Full handshake at `first`; returns whether the session resumes at `second`.
fn resumes(
    first: &Arc<rustls::ServerConfig>,
    second: &Arc<rustls::ServerConfig>,
    client: &Arc<ClientConfig>,
    names: [&str; 2],
    later_s: u64,
) -> Option<bool> {
    let one = connect_to(names[0], first, client, &params(1)).map_err(|(error, _)| error).unwrap();
    assert!(!one.server.facts.resumed);
    let mut params = params(2);
    params.accepted_unix_s += later_s;
    connect_to(names[1], second, client, &params).ok().map(|two| two.server.facts.resumed)
}

#[test]
fn ticket_resumes_only_under_its_policy_auth_and_name() {
    let ours = clients();
    let others = clients();
    let roots = |clients: &Clients| vec![clients.root.clone()];
    for version in [&TLS13, &TLS12] {
        let client = || showing(Some(&ours), version);
        let same = ["localhost", "localhost"];
        let open = || asking(ClientAuth::None, "a");
        let strict = || asking(ClientAuth::Required(roots(&ours)), "a");
        assert_eq!(resumes(&open(), &open(), &client(), same, 0), Some(true));
        assert_eq!(resumes(&strict(), &strict(), &client(), same, 0), Some(true));
        assert_eq!(resumes(&open(), &asking(ClientAuth::None, "b"), &client(), same, 0), Some(false));
        assert_eq!(resumes(&open(), &strict(), &client(), same, 0), Some(false));
        assert_eq!(resumes(&strict(), &open(), &client(), same, 0), Some(false));
        let optional = asking(ClientAuth::Optional(roots(&ours)), "a");
        assert_eq!(resumes(&optional, &strict(), &client(), same, 0), Some(false));
        // Other roots: the ticket is not accepted, and neither is the certificate.
        let elsewhere = asking(ClientAuth::Required(roots(&others)), "a");
        assert_eq!(resumes(&strict(), &elsewhere, &client(), same, 0), None);
        assert_eq!(resumes(&open(), &open(), &client(), ["localhost", "other.example"], 0), Some(false));
        assert_eq!(resumes(&open(), &open(), &client(), same, 13 * 3600), Some(false), "too old");
    }
}

#[test]
fn resumed_session_keeps_its_client_certificate() {
    let ours = clients();
    let server = asking(ClientAuth::Required(vec![ours.root.clone()]), "");
    for version in [&TLS13, &TLS12] {
        let client = showing(Some(&ours), version);
        let first = connect(&server, &client, &params(1)).map_err(|(error, _)| error).unwrap();
        let second = connect(&server, &client, &params(2)).map_err(|(error, _)| error).unwrap();
        assert!(second.server.facts.resumed && !second.server.facts.client_certificates.is_empty());
        assert_eq!(second.server.facts.client_certificates, first.server.facts.client_certificates);
    }
}

/// One client's connections at these times after its first one, each with the session of the previous one; returns
/// whether they resumed.
fn chain(
    server: &Arc<rustls::ServerConfig>,
    client: &Arc<ClientConfig>,
    later_s: &[u64],
) -> Vec<Option<bool>> {
    let at = |(index, later_s): (usize, &u64)| {
        let mut params = params(index as u8 + 1);
        params.accepted_unix_s += later_s;
        let connected = connect(server, client, &params).ok()?;
        let replay = replay(server, &params, &connected.c2s, 100);
        assert_eq!(replay.out, connected.s2c, "another node, {later_s} s later");
        Some(connected.server.facts.resumed)
    };
    later_s.iter().enumerate().map(at).collect()
}

#[test]
fn resumption_does_not_extend_a_session() {
    let ours = clients();
    let strict = asking(ClientAuth::Required(vec![ours.root.clone()]), "");
    let open = asking(ClientAuth::None, "");
    for version in [&TLS13, &TLS12] {
        for (server, clients) in [(&strict, Some(&ours)), (&open, None)] {
            let hours = [0, 11, 12, 13, 24, 26].map(|hours| hours * 3600);
            let resumed = chain(server, &showing(clients, version), &hours);
            let expected = [false, true, true, false, true, false].map(Some);
            assert_eq!(resumed, expected, "{:?} {}", version.version, clients.is_some());
        }
    }
}

#[test]
fn session_is_not_resumed_after_client_certificate_expiry() {
    // An hour after `NOW`, which is at eight o'clock.
    let soon = rcgen::date_time_ymd(2027, 1, 15) + std::time::Duration::from_secs(9 * 3600);
    let ours = clients_with(|certificate| certificate.not_after = soon);
    for auth in [ClientAuth::Required, ClientAuth::Optional] {
        let server = asking(auth(vec![ours.root.clone()]), "");
        for version in [&TLS13, &TLS12] {
            let resumed = chain(&server, &showing(Some(&ours), version), &[0, 1800, 3600, 7200]);
            let expected = [Some(false), Some(true), Some(true), None];
            assert_eq!(resumed, expected, "{:?}: the certificate is refused in the end", version.version);
        }
    }
}

#[test]
fn ticket_lifetime_hint_does_not_exceed_the_lifetime() {
    let client = Arc::new(ClientKind { version: &TLS12, ..ClientKind::default() }.config());
    let server = node(&PEMS.p256);
    let hints: Vec<u32> = [0, 3600, 12 * 3600]
        .into_iter()
        .map(|later_s| {
            let mut params = params(1);
            params.accepted_unix_s += later_s;
            let connected = connect(&server, &client, &params).map_err(|(error, _)| error).unwrap();
            assert_eq!(connected.server.facts.resumed, later_s > 0);
            lifetime_hint(&connected.s2c)
        })
        .collect();
    assert_eq!(hints, [12 * 3600, 11 * 3600, 0]);
}

#[test]
fn resumed_client_receives_one_new_ticket() {
    let (server, client) = (node(&PEMS.p256), Arc::new(ClientKind::default().config()));
    for (resumed, tickets) in [(false, 2), (true, 1), (true, 1)] {
        let connected = connect(&server, &client, &params(1)).map_err(|(error, _)| error).unwrap();
        assert_eq!(connected.server.facts.resumed, resumed);
        assert_eq!(connected.client.tls13_tickets_received(), tickets);
    }
}

/// The lifetime in a TLS 1.2 server's NewSessionTicket (RFC 5077 section 3.3).
fn lifetime_hint(mut records: &[u8]) -> u32 {
    loop {
        let len = record_len(records.first_chunk().unwrap()).unwrap();
        let (record, rest) = records.split_at(len);
        let mut messages = &record[5..];
        while record[0] == 22 && messages.len() >= 4 {
            let len = u32::from_be_bytes([0, messages[1], messages[2], messages[3]]) as usize;
            if messages[0] == 4 {
                return u32::from_be_bytes(*messages[4..].first_chunk().unwrap());
            }
            messages = messages.get(4 + len..).unwrap_or_default();
        }
        records = rest;
    }
}

#[test]
fn tickets_survive_one_rotation_with_identical_flights() {
    let client = Arc::new(ClientKind::default().config());
    let handle = TicketHandle::new(TicketKeys::random(0));
    let server = node_with(&PEMS.p256, |settings| settings.tickets = Some(handle.clone()));
    let first = connect(&server, &client, &params(1)).map_err(|(error, _)| error).unwrap();
    handle.replace(handle.current().rotated(NOW + 1));
    let replayed = replay(&server, &params(1), &first.c2s, 100);
    assert_eq!(replayed.out, first.s2c, "accepted before the rotation, replayed after it");
    let mut later = params(2);
    later.accepted_unix_s += 10;
    let second = connect(&server, &client, &later).map_err(|(error, _)| error).unwrap();
    assert!(second.server.facts.resumed);
    for step in 2..4 {
        handle.replace(handle.current().rotated(NOW + step));
    }
    let third = connect(&server, &client, &later).map_err(|(error, _)| error).unwrap();
    assert!(!third.server.facts.resumed);
}

#[test]
fn sessions_are_not_resumed_without_ticket_keys() {
    for version in [&TLS13, &TLS12] {
        let server = node_with(&PEMS.p256, |settings| settings.tickets = None);
        let client = Arc::new(ClientKind { version, ..ClientKind::default() }.config());
        assert_eq!(resumes(&server, &server, &client, ["localhost", "localhost"], 0), Some(false));
    }
}

#[test]
fn certificate_is_chosen_by_name_and_algorithm() {
    let ec = |names: &[&str]| common::self_signed(names, &rcgen::KeyPair::generate().unwrap());
    let rsa_key =
        rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap();
    let pems = [
        ec(&["default.example"]),
        common::self_signed(&["both.example"], &rsa_key),
        ec(&["both.example", "Exact.Wild.example"]),
        ec(&["*.wild.example"]),
    ];
    let certificates: Vec<_> = pems.iter().map(load).collect();
    let server = server_config(ServerSettings { certificates, ..ServerSettings::default() }).unwrap();
    let chosen = |name: &str, version| {
        let kind = ClientKind { version, ..ClientKind::default() };
        let mut config = kind.config();
        config.alpn_protocols.clear();
        let connected =
            connect_to(name, &server, &Arc::new(config), &params(1)).map_err(|(error, _)| error).unwrap();
        let shown = connected.client.peer_certificates().unwrap()[0].clone();
        pems.iter().position(|pems| load(pems).key.cert[0] == shown).unwrap()
    };
    for version in [&TLS13, &TLS12] {
        for (name, expected) in [
            ("default.example", 0),
            ("both.example", 2),
            ("exact.wild.example", 2),
            ("a.wild.example", 3),
            ("A.WILD.example", 3),
            ("a.b.wild.example", 0),
            ("wild.example", 0),
            ("unknown.example", 0),
            ("192.0.2.1", 0),
        ] {
            assert_eq!(chosen(name, version), expected, "{name}");
        }
    }
    // A client that verifies RSA only.
    let mut algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
    let rsa_only: Vec<_> = algorithms
        .mapping
        .iter()
        .copied()
        .filter(|(scheme, _)| {
            matches!(scheme, SignatureScheme::RSA_PSS_SHA256 | SignatureScheme::RSA_PSS_SHA512)
        })
        .collect();
    algorithms.mapping = Box::leak(rsa_only.into_boxed_slice());
    let provider = Arc::new(rustls::crypto::CryptoProvider {
        signature_verification_algorithms: algorithms,
        ..rustls::crypto::aws_lc_rs::default_provider()
    });
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(trust::Everyone(provider)))
        .with_no_client_auth();
    let connected =
        connect_to("both.example", &server, &Arc::new(config), &params(1)).map_err(|(error, _)| error);
    let shown = connected.unwrap().client.peer_certificates().unwrap()[0].clone();
    assert_eq!(shown, load(&pems[1]).key.cert[0]);
}

#[test]
fn tls12_client_receives_a_key_on_a_listed_curve_if_any() {
    use rustls::crypto::aws_lc_rs::kx_group::{SECP256R1, SECP384R1, X25519};
    const BOTH: [&rustls::SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
    let chosen = |pems: &[&(String, String)], max, versions, groups: &[_]| {
        let server = server_config(ServerSettings {
            certificates: pems.iter().map(|pems| load(pems)).collect(),
            version_max: max,
            ..ServerSettings::default()
        });
        let provider = ClientKind { groups: groups.to_vec(), ..ClientKind::default() }.provider();
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(trust::Everyone(provider)))
            .with_no_client_auth();
        let connected = connect(&server.unwrap(), &Arc::new(client), &params(1)).map_err(|(error, _)| error);
        let shown = connected.unwrap().client.peer_certificates().unwrap()[0].clone();
        pems.iter().position(|pems| load(pems).key.cert[0] == shown).unwrap()
    };
    use evergate_tls::Version::{Tls12, Tls13};
    let all = [&PEMS.rsa, &PEMS.p256, &PEMS.p384];
    for (max, versions) in [(Tls13, &BOTH[1..]), (Tls12, &BOTH[..])] {
        assert_eq!(chosen(&all, max, versions, &[X25519]), 0);
        assert_eq!(chosen(&all, max, versions, &[X25519, SECP256R1]), 1);
        assert_eq!(chosen(&all, max, versions, &[X25519, SECP384R1]), 2);
        assert_eq!(chosen(&all[..2], max, versions, &[X25519, SECP384R1]), 0);
        assert_eq!(chosen(&all[1..2], max, versions, &[X25519]), 0, "there is no other one");
    }
    // In TLS 1.3 groups are for the key exchange alone.
    for versions in [&BOTH[..], &BOTH[..1]] {
        assert_eq!(chosen(&all, Tls13, versions, &[X25519]), 1);
    }
}

#[test]
fn certificates_are_described_and_wrong_files_refused() {
    let names = ["*.Example.org".to_owned(), "example.org".to_owned()];
    let (chain, key) = self_signed(&names).unwrap();
    let loaded = load_certificate(chain.as_bytes(), key.as_bytes()).unwrap();
    assert_eq!(loaded.names, ["*.example.org", "example.org"]);
    assert!(loaded.subject.contains("CN=*.Example.org") && loaded.subject == loaded.issuer);
    assert!(loaded.not_before_unix_s < loaded.not_after_unix_s && !loaded.serial.is_empty());

    let (other_chain, other_key) = self_signed(&names).unwrap();
    let load = |chain: &str, key: &str| load_certificate(chain.as_bytes(), key.as_bytes()).unwrap_err();
    assert!(matches!(load(&chain, &other_key), KeyError::Mismatch { .. }));
    assert!(matches!(load(&other_chain, &key), KeyError::Mismatch { .. }));
    let reversed = load(&(other_chain.clone() + &chain), &key);
    assert!(matches!(&reversed, KeyError::Order { number: 2, .. }), "{reversed}");
    assert!(
        reversed.to_string().contains("; begin the file with CN=*.Example.org, then its issuer"),
        "{reversed}"
    );
    assert!(matches!(load("", &key), KeyError::Chain(_)));
    assert!(load(&key, &key).to_string().contains("the file holds a private key"));
    assert!(load(&chain, &chain).to_string().contains("the file holds a certificate"));
    let (cut, _) = chain.rsplit_once("-----END").unwrap();
    let text = load(&(chain.clone() + cut), &key).to_string();
    assert!(text.contains("no line `-----END CERTIFICATE-----`") && !text.contains('['), "{text}");
    let text = load(&(chain.clone() + "-----BEGIN CERTI\n"), &key).to_string();
    assert!(text.contains("does not end with five dashes"), "{text}");
    // No part of the key is shown, in whatever way a key file is damaged.
    let secret: String = key.lines().filter(|line| !line.starts_with("-----")).collect();
    let spoiled = [
        key.replace('\n', ""),
        key.replace('\n', " "),
        key.replace('\n', "\\n"),
        key.replacen("-----\n", "-----", 1),
        key.replacen("BEGIN ", "BEGIN", 1),
        key.replacen("-----BEGIN PRIVATE KEY-----\n", "-----BEGIN ", 1),
        key.replacen("-----BEGIN PRIVATE KEY-----\n", "", 1),
    ];
    let shown = |chain: &str, key: &str| load(chain, key).to_string();
    for text in spoiled
        .iter()
        .flat_map(|bad| [shown(&chain, bad), shown(bad, &key), shown(&(chain.clone() + bad), bad)])
    {
        assert!(
            secret.as_bytes().windows(8).all(|part| !text.as_bytes().windows(8).any(|w| w == part)),
            "{text}"
        );
    }
    // Files as written by editors of other systems.
    let marked = |text: &str| format!("\u{feff}{text}");
    load_certificate(marked(&chain).as_bytes(), marked(&key).as_bytes()).unwrap();
    for (chain, key) in
        [(chain.clone() + &marked(&chain), key.clone()), (chain.clone(), marked(&marked(&key)))]
    {
        let text = load(&chain, &key).to_string();
        assert!(text.contains("byte order mark"), "{text}");
    }
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n";
    assert!(matches!(load(&chain, encrypted), KeyError::Encrypted));
    let broken = key.replacen("BEGIN PRIVATE KEY-----\nM", "BEGIN PRIVATE KEY-----\nN", 1);
    assert!(matches!(load(&chain, &broken), KeyError::Key(_)));

    let none = server_config(ServerSettings::default()).unwrap_err();
    assert!(matches!(none, ConfigError::NoCertificate));
    let settings = ClientSettings { verify: Verify::Roots(Vec::new()), ..ClientSettings::default() };
    assert!(matches!(client_config(settings).unwrap_err(), ConfigError::NoRoots));
    let settings = ServerSettings {
        certificates: vec![loaded],
        client_auth: ClientAuth::Required(vec![CertificateDer::from(vec![1, 2, 3])]),
        ..ServerSettings::default()
    };
    assert!(matches!(server_config(settings).unwrap_err(), ConfigError::Root { index: 0, .. }));
}
