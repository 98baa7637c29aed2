//! Constants of the worlds: a certificate, TLS configurations, snapshots.

use std::sync::{Arc, LazyLock};

use evergate_base::{Micros, Protocol};
use evergate_connection::{
    Accepted, AuditScope, Limits, Listener, Pool, Server, Snapshot, Stickiness, Timeouts, UpstreamTls,
};
use evergate_crypto::{
    ClientAuth, ClientSettings, ServerSettings, TicketHandle, TicketKeys, Verify, client_config,
    load_certificate, pem_certificates, server_config,
};
use evergate_http::ForwardedTrust;
use evergate_replication::ConnectionId;
use evergate_rules::{Deny, RuleSpec, Ruleset};
use evergate_tls::{HandshakeParams, Version};
use rustls::ServerConfig;

/// Names of the listeners of [`snapshot`], in order.
pub const LISTENERS: [&str; 6] = ["http", "https", "tcp", "tls", "redirect", "passthrough"];
/// Servers in each pool of [`snapshot`].
pub const SERVERS: u32 = 2;
/// The pool of [`snapshot`] whose servers use TLS. No rule names it; only the state of another node does.
pub const TLS_POOL: u32 = 2;
const NOW_UNIX_S: u64 = 1_800_000_000;
const GENERATION: u64 = 3;

/// A key that protects nothing: made for these targets, so that recorded conversations can be replayed.
const CHAIN_PEM: &[u8] = include_bytes!("../fixture/localhost.pem");
const KEY_PEM: &[u8] = include_bytes!("../fixture/localhost.key.pem");
/// Authority of client certificates.
const AUTHORITY_PEM: &[u8] = include_bytes!("../fixture/authority.pem");

/// Parameters of a handshake besides configuration and client bytes.
pub fn handshake_params() -> HandshakeParams {
    let accepted = accepted(1);
    HandshakeParams {
        secret: accepted.secret,
        accepted_unix_s: NOW_UNIX_S,
        generation: GENERATION,
        client: accepted.client,
        local: accepted.local,
    }
}

/// A connection accepted on this listener.
pub fn accepted(listener: u32) -> Accepted {
    Accepted {
        id: ConnectionId(0x0123_4567_89ab_cdef),
        listener,
        client: ([192, 0, 2, 7], 40_000).into(),
        local: ([198, 51, 100, 1], 443).into(),
        proxy: None,
        unix_s: NOW_UNIX_S,
        secret: [7; 32],
    }
}

/// The configurations of the handshake target: both versions, 1.2 only, with client certificates.
pub fn server_configs() -> &'static [Arc<ServerConfig>; 3] {
    static CONFIGS: LazyLock<[Arc<ServerConfig>; 3]> = LazyLock::new(|| {
        let certificate = load_certificate(CHAIN_PEM, KEY_PEM).expect("the fixture is a certificate");
        let roots = pem_certificates(AUTHORITY_PEM).expect("the fixture is a certificate");
        let settings = || ServerSettings {
            certificates: vec![certificate.clone()],
            alpn: vec![b"http/1.1".to_vec()],
            tickets: Some(tickets()),
            session_ids: Some((tickets(), 600)),
            ..ServerSettings::default()
        };
        let old = ServerSettings { version_max: Version::Tls12, ..settings() };
        let mutual = ServerSettings { client_auth: ClientAuth::Optional(roots), ..settings() };
        [settings(), old, mutual].map(|settings| server_config(settings).expect("the settings fit together"))
    });
    &CONFIGS
}

/// Ticket keys from constants, in their file format.
fn tickets() -> TicketHandle {
    TicketHandle::new(TicketKeys::from_file_bytes(&[0xf7; 64]).expect("64 bytes are a key"))
}

/// The first configuration: a listener of each protocol, rules that use all fields, limits small enough to be reached.
pub fn snapshot() -> &'static Arc<Snapshot> {
    static SNAPSHOT: LazyLock<Arc<Snapshot>> = LazyLock::new(|| Arc::new(build(GENERATION)));
    &SNAPSHOT
}

/// The configuration after a reload.
pub fn reloaded() -> &'static Arc<Snapshot> {
    static SNAPSHOT: LazyLock<Arc<Snapshot>> = LazyLock::new(|| Arc::new(build(GENERATION + 1)));
    &SNAPSHOT
}

fn build(generation: u64) -> Snapshot {
    let rules = Arc::new(Ruleset::compile(&rules(), &Default::default()).expect("the rules compile"));
    let pool_names = ["a", "b", "tls"];
    let index = |name: &String| pool_names.iter().position(|known| known == name).unwrap_or(0) as u32;
    let rule_pools = rules.pools().iter().map(index).collect();
    let listener = |(name, protocol, redirect_to_https): (&str, Protocol, Option<u16>)| Listener {
        name: name.to_owned(),
        protocol,
        tls: protocol.is_tls().then(|| server_configs()[0].clone()),
        client_policy: None,
        audit: AuditScope::Nothing,
        pool: Some(u32::from(protocol.is_greeted())),
        asks_rules: protocol.is_greeted(),
        trust_forwarded: if name == "http" { ForwardedTrust::AllPeers } else { ForwardedTrust::NoPeer },
        trusted_proxies: None,
        redirect_to_https,
        limits: Limits {
            body_bytes_max: 1 << 20,
            requests_max: 20,
            body_prefix_bytes: 256,
            ..Limits::default()
        },
    };
    let listeners = [
        (LISTENERS[0], Protocol::Http, None),
        (LISTENERS[1], Protocol::Https, None),
        (LISTENERS[2], Protocol::Tcp, None),
        (LISTENERS[3], Protocol::Tls, None),
        (LISTENERS[4], Protocol::Http, Some(8443)),
        (LISTENERS[5], Protocol::Passthrough, None),
    ];
    let pool = |(name, stickiness): (&str, Stickiness)| Pool {
        name: name.to_owned(),
        stickiness,
        by_session: name == "b",
        cookie: "eg".to_owned(),
        tls: (name == "tls").then(upstream_tls),
        proxy_header: None,
        client_source: false,
        retries: 2,
        connect: Micros::from_ms(1000),
        response: Micros::from_ms(5000),
        servers: (0..SERVERS)
            .map(|n| Server {
                name: format!("{name}{n}"),
                cookie: format!("{name}{n}"),
                tls_name: Some("localhost".try_into().expect("a name")),
            })
            .collect(),
    };
    let stickiness = [Stickiness::None, Stickiness::Cookie, Stickiness::None];
    Snapshot {
        generation,
        listeners: listeners.map(listener).into(),
        pools: pool_names.into_iter().zip(stickiness).map(pool).collect(),
        rules,
        rule_pools,
        timeouts: Timeouts::default(),
        request_key: evergate_connection::RequestKey([5, 7]),
    }
}

fn upstream_tls() -> UpstreamTls {
    let settings = ClientSettings { verify: Verify::InsecureNone, ..ClientSettings::default() };
    UpstreamTls { config: client_config(settings).expect("the settings fit together") }
}

fn rules() -> Vec<RuleSpec> {
    let rule =
        |name: &str, when: &str| RuleSpec { name: name.into(), when: when.into(), ..RuleSpec::default() };
    let hello = |name: &str, when: &str| RuleSpec {
        listeners: vec!["passthrough".to_owned()],
        of_connections: true,
        ..rule(name, when)
    };
    let mut tag = rule("tag", r#"header("x-tag").exists()"#);
    tag.set_request_headers.insert("X-Seen".into(), "1".into());
    tag.remove_request_headers.push("X-Tag".into());
    tag.set_response_headers.insert("X-Rule".into(), "tag".into());
    tag.remove_response_headers.push("Server".into());
    vec![
        tag,
        RuleSpec { deny: Some(403.into()), ..rule("deny", r#"path.path_prefix("/deny")"#) },
        RuleSpec {
            redirect: Some("https://${host}/new${path}?${query}".into()),
            ..rule("move", r#"path == "/old""#)
        },
        RuleSpec { route: Some("b".into()), ..rule("body", r#"method == "PUT" && json("/a") == "b""#) },
        RuleSpec {
            route: Some("b".into()),
            ..rule("form", r#"path.path_prefix("/f") && form("p").exists()"#)
        },
        RuleSpec { route: Some("b".into()), ..rule("b", r#"path.path_prefix("/b")"#) },
        RuleSpec { deny: Some(Deny::AccessDenied), ..hello("alert", r#"tls.sni.ends_with("alert")"#) },
        RuleSpec { deny: Some(Deny::Reset), ..hello("reset", r#"tls.alpn.contains("h2")"#) },
    ]
}
