//! Configurations that the tests run under.

use evergate_base::{Micros, Protocol};
use evergate_connection::{
    Accepted, AuditScope, Limits, Listener, Pool, Server, Snapshot, Stickiness, Timeouts, UpstreamTls,
};
use evergate_crypto::{
    CertifiedName, ClientAuth, ClientSettings, ServerSettings, TicketHandle, TicketKeys, Verify,
    client_config, load_certificate, server_config,
};
use evergate_replication::ConnectionId;
use evergate_rules::{RuleSpec, Ruleset};
use rustls::pki_types::{CertificateDer, ServerName};
use std::sync::{Arc, OnceLock};

/// Index of each listener in [`snapshot`].
pub(crate) const HTTPS: u32 = 0;
pub(crate) const HTTP: u32 = 1;
pub(crate) const TLS: u32 = 2;
pub(crate) const TCP: u32 = 3;
pub(crate) const PASSTHROUGH: u32 = 4;

pub(crate) const CLIENT: &str = "192.0.2.7";
pub(crate) const ID: u64 = 0x0123_4567_89ab_cdef;

struct Tls {
    server: Arc<rustls::ServerConfig>,
    root: CertificateDer<'static>,
}

fn tls() -> &'static Tls {
    static TLS: OnceLock<Tls> = OnceLock::new();
    TLS.get_or_init(|| {
        // Fixed keys: a run is a function of its seed, down to the lengths of signatures.
        let certificate =
            load_certificate(include_bytes!("data/test.pem"), include_bytes!("data/test.key")).unwrap();
        let root = certificate.key.cert[0].clone();
        let settings = with_tickets(0xa5, settings(certificate));
        Tls { server: server_config(settings).unwrap(), root }
    })
}

fn settings(certificate: CertifiedName) -> ServerSettings {
    ServerSettings {
        certificates: vec![certificate],
        alpn: vec![b"http/1.1".to_vec()],
        policy: "test".to_owned(),
        ..ServerSettings::default()
    }
}

/// These settings with ticket keys of this byte.
fn with_tickets(byte: u8, settings: ServerSettings) -> ServerSettings {
    let tickets = TicketHandle::new(TicketKeys::from_file_bytes(&[byte; 64]).unwrap());
    ServerSettings { tickets: Some(tickets.clone()), session_ids: Some((tickets, 3600)), ..settings }
}

/// Files that a handshake depends on, and that two nodes may have in different states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Files {
    Certificate,
    TicketKeys,
    /// Trust anchors of clients: one node admits a client that the other refuses.
    ClientRoots,
}

/// The TLS of two nodes that have other files.
pub(crate) fn differing_tls(files: Files) -> [Arc<rustls::ServerConfig>; 2] {
    let pems: [(&[u8], &[u8]); 2] = [
        (include_bytes!("data/test.pem"), include_bytes!("data/test.key")),
        (include_bytes!("data/other.pem"), include_bytes!("data/other.key")),
    ];
    [0, 1].map(|node| {
        let differs = |what| if files == what { node } else { 0 };
        let (chain, key) = pems[differs(Files::Certificate)];
        let settings = settings(load_certificate(chain, key).unwrap());
        let mut settings = with_tickets([0xa5, 0xb5][differs(Files::TicketKeys)], settings);
        if files == Files::ClientRoots {
            let roots = evergate_crypto::pem_certificates(include_bytes!("data/authority.pem")).unwrap();
            settings.client_auth =
                [ClientAuth::Optional(roots.clone()), ClientAuth::Required(roots)][node].clone();
        }
        server_config(settings).unwrap()
    })
}

pub(crate) fn server_tls() -> Arc<rustls::ServerConfig> {
    tls().server.clone()
}

pub(crate) fn root() -> CertificateDer<'static> {
    tls().root.clone()
}

pub(crate) fn key() -> rustls::pki_types::PrivatePkcs8KeyDer<'static> {
    use rustls::pki_types::pem::PemObject;
    rustls::pki_types::PrivatePkcs8KeyDer::from_pem_slice(include_bytes!("data/test.key")).unwrap()
}

/// TLS towards servers that trust our test certificate.
pub(crate) fn upstream_tls() -> UpstreamTls {
    let settings = ClientSettings { verify: Verify::Roots(vec![root()]), ..ClientSettings::default() };
    UpstreamTls { config: client_config(settings).unwrap() }
}

pub(crate) fn pool(name: &str) -> Pool {
    let server = |name: &str| Server {
        name: name.to_owned(),
        cookie: format!("c-{name}"),
        tls_name: Some(ServerName::try_from("test.example").unwrap()),
    };
    Pool {
        name: name.to_owned(),
        stickiness: Stickiness::None,
        by_session: false,
        cookie: "EG".to_owned(),
        tls: None,
        proxy_header: None,
        client_source: false,
        retries: 2,
        connect: Micros::from_ms(3_000),
        response: Micros::from_ms(20_000),
        servers: ["a", "b", "c"].iter().map(|name| server(name)).collect(),
    }
}

/// A configuration with a listener of each kind, all on one pool, as `edit` changes it.
pub(crate) fn snapshot(edit: impl FnOnce(&mut Snapshot)) -> Arc<Snapshot> {
    let listener = |name: &str, protocol: Protocol| Listener {
        name: name.to_owned(),
        protocol,
        tls: protocol.is_tls().then(server_tls),
        client_policy: None,
        audit: AuditScope::Nothing,
        pool: Some(0),
        asks_rules: false,
        trust_forwarded: Default::default(),
        trusted_proxies: None,
        redirect_to_https: None,
        limits: Limits::default(),
    };
    let mut snapshot = Snapshot {
        generation: 1,
        listeners: vec![
            listener("https", Protocol::Https),
            listener("http", Protocol::Http),
            listener("tls", Protocol::Tls),
            listener("tcp", Protocol::Tcp),
            listener("passthrough", Protocol::Passthrough),
        ],
        pools: vec![pool("main"), pool("other")],
        rules: Arc::new(Ruleset::empty()),
        rule_pools: Vec::new(),
        timeouts: Timeouts::default(),
        request_key: evergate_connection::RequestKey([5, 7]),
    };
    edit(&mut snapshot);
    Arc::new(snapshot)
}

/// Compiles rules into the snapshot; pools of the rules are found by name.
pub(crate) fn set_rules(snapshot: &mut Snapshot, rules: &[RuleSpec]) {
    let rules = Ruleset::compile(rules, &evergate_rules::Limits::default()).unwrap();
    let index = |name: &String| snapshot.pools.iter().position(|pool| pool.name == *name).unwrap() as u32;
    snapshot.rule_pools = rules.pools().iter().map(index).collect();
    snapshot.rules = Arc::new(rules);
}

/// Records of a ClientHello that asks for a host and offers protocols, in records of at most so many bytes.
pub(crate) fn client_hello(host: &str, alpn: &[&str], record: usize) -> Vec<u8> {
    let vector = |width: usize, body: &[u8]| [&body.len().to_be_bytes()[8 - width..], body].concat();
    let extension = |kind: u16, body: &[u8]| [&kind.to_be_bytes()[..], &vector(2, body)].concat();
    let name = vector(2, &[&[0][..], &vector(2, host.as_bytes())].concat());
    let protocols: Vec<u8> = alpn.iter().flat_map(|name| vector(1, name.as_bytes())).collect();
    let mut extensions = extension(43, &vector(1, &[0x3a, 0x3a, 3, 4, 3, 3])); // with GREASE
    if !host.is_empty() {
        extensions.extend(extension(0, &name));
    }
    if !alpn.is_empty() {
        extensions.extend(extension(16, &vector(2, &protocols)));
    }
    let (session, suites) = (vector(1, &[9; 32]), vector(2, &[0x13, 1, 0xc0, 0x2b]));
    let body = [&[3, 3][..], &[7; 32], &session, &suites, &vector(1, &[0]), &vector(2, &extensions)].concat();
    let message = [&[1][..], &vector(3, &body)].concat();
    message.chunks(record).flat_map(|part| [&[22, 3, 1][..], &vector(2, part)].concat()).collect()
}

pub(crate) fn accepted(listener: u32) -> Accepted {
    Accepted {
        id: ConnectionId(ID),
        listener,
        client: format!("{CLIENT}:40001").parse().unwrap(),
        local: "203.0.113.1:443".parse().unwrap(),
        proxy: None,
        unix_s: 1_700_000_000,
        secret: [7; 32],
    }
}

/// What the server gets of a request with these lines: the rewritten head.
pub(crate) fn forwarded(lines: &str, scheme: &str, request: u32) -> Vec<u8> {
    format!(
        "{lines}X-Forwarded-For: {CLIENT}\r\nX-Forwarded-Proto: {scheme}\r\n\
         X-Request-Id: {ID:016x}{request:08x}\r\n\r\n"
    )
    .into_bytes()
}

/// The client's answer in a cluster, where it differs from the answer `alone` without a cluster: a denial because of a
/// body is the last answer.
pub(crate) fn answered_in_a_cluster(alone: &[u8]) -> Option<Vec<u8>> {
    const DENIED: &[u8] = b"HTTP/1.1 406 ";
    let place = |of: &[u8], all: &[u8]| all.windows(of.len()).position(|window| window == of);
    let head_end = |at: usize| place(b"\r\n\r\n", &alone[at..]).map(|length| at + length + 2);
    let at = place(DENIED, alone).and_then(head_end)?;
    Some([&alone[..at], b"Connection: close\r\n", &alone[at..]].concat())
}

/// A plaintext server's request in a cluster, where it is `alone` without one: behind a chunked body it asks for the
/// end.
pub(crate) fn asked_in_a_cluster(alone: &[u8]) -> Vec<u8> {
    const CHUNKED: &[u8] = b"Transfer-Encoding: chunked\r\n";
    let place = |of: &[u8], all: &[u8]| all.windows(of.len()).position(|window| window == of);
    let head = place(b"\r\n\r\n", alone).unwrap_or(0);
    let Some(at) = place(CHUNKED, &alone[..alone.len().min(head + 2)]).map(|at| at + CHUNKED.len()) else {
        return alone.to_vec();
    };
    let (before, after) = alone.split_at(at);
    match after.strip_prefix(b"Connection: TE\r\n") {
        Some(after) => [before, b"Connection: TE, close\r\n", after].concat(),
        None => [before, b"Connection: close\r\n", after].concat(),
    }
}
