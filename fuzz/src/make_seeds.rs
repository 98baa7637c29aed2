//! Writes the committed seeds: real conversations and messages, few and small. See docs/internals/fuzzing.md.
//!
//! Certificates, secrets and clocks of the fixture are constants, so recorded client bytes complete a whole handshake
//! again when a target replays them.

#[path = "evidence_seeds.rs"]
mod evidence_seeds;
#[path = "membership_seeds.rs"]
mod membership_seeds;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evergate_base::Micros;
use evergate_fuzz::fixture::{TLS_POOL, handshake_params, server_configs, snapshot};
use evergate_fuzz::input::{join, put_chunk};
use evergate_fuzz::world::{Kind, World};
use evergate_proxy_protocol::{Endpoints, Extras, SslInfo, encode_v1, encode_v2};
use evergate_replication::{Entry, LegTls, RecordKind, RecordLayout, RecordPosition};
use evergate_tls::{ClientHandshake, ContentType, Handshake, Progress, Records};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};

const GET: &[u8] = b"GET /b/x?y=1 HTTP/1.1\r\nHost: a.test\r\nX-Tag: 1\r\nCookie: eg=b1\r\n\r\n";
const POST: &[u8] =
    b"POST /f HTTP/1.1\r\nHost: a.test\r\nContent-Type: application/x-www-form-urlencoded\r\n\
    Content-Length: 3\r\n\r\np=1";
const CHUNKED: &[u8] =
    b"PUT / HTTP/1.1\r\nHost: a.test\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n\
    Transfer-Encoding: chunked\r\n\r\n9\r\n{\"a\":\"b\"}\r\n0\r\nX-T: 1\r\n\r\n";
const UPGRADE: &[u8] =
    b"GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nping";
const OLD: &[u8] =
    b"HEAD http://a.test/old HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /deny HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nServer: s\r\nContent-Length: 5\r\n\r\nhello";
const OK_CHUNKED: &[u8] =
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n\
    3;x=1\r\nabc\r\n0\r\n\r\n";
const SWITCHING: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\npong";
const UNTIL_CLOSE: &[u8] = b"HTTP/1.0 304\r\nContent-Length: 7\r\nConnection: close\r\n\r\n";

/// A script for the connection target: both peers send everything in small steps.
const SCRIPT: [u8; 12] = [0, 40, 0, 200, 3, 30, 0x40, 200, 0x43, 200, 13, 0];

const REPLICATED: Kind = Kind { replicated: true, splices: false, pooled: false };
/// Time after which the backup receives input that no response has followed.
const STALL: Micros = Micros::from_ms(1_100);

fn main() {
    let folder = PathBuf::from(std::env::args().nth(1).expect("usage: make_seeds FOLDER"));
    let put = |target: &str, name: &str, bytes: &[u8]| {
        let folder = folder.join(target);
        std::fs::create_dir_all(&folder).expect("a folder can be made");
        std::fs::write(folder.join(name), bytes).expect("a seed can be written");
    };
    for (name, bytes) in
        [("get", GET), ("post", POST), ("chunked", CHUNKED), ("upgrade", UPGRADE), ("old", OLD)]
    {
        put("http_request", name, &join(&[0, 10, 30], bytes));
    }
    for (name, bytes) in
        [("ok", OK), ("chunked", OK_CHUNKED), ("switching", SWITCHING), ("until_close", UNTIL_CLOSE)]
    {
        put("http_response", name, &join(&[0, 10, 30], bytes));
    }
    let body = b"9;x=\"1\"\r\n{\"a\":\"b\"}\r\n00A\r\n0123456789\r\n0\r\nX-T: 1\r\n\r\n";
    put("http_body", "chunked", &join(&[0, 1, 9, 3], body));
    put("http_body", "position", &join(&[6], &[&[3, 6, 0, 0, 0, 0], &b"X-T: 1\r\n\r\n"[..]].concat()));
    texts(&put);
    proxy_headers(&put);
    observed_handshakes(&put, &folder);
    put(
        "records",
        "relay",
        &join(&[1, 0, 5, 0, 9, 1, 0x80, 3, 2, 2, 2, 13, 0, 4, 2, 1, 1, 1, 7, 0], &[1, 0, 7, 9, 9, 9]),
    );
    put(
        "records",
        "tls12",
        &join(&[2, 0x10, 5, 0, 9, 1, 0x83, 4, 0, 1, 1, 14, 9], &[0, 0, 0, 0, 22, 3, 3, 0, 4, 1, 2]),
    );
    handshakes(&put, &folder);
    connections(&put);
    membership_seeds::datagrams(&put);
    evidence_seeds::all(&put);
}

fn texts(put: &impl Fn(&str, &str, &[u8])) {
    let rules = "host == \"a.test\" && !(path.path_prefix(\"/a\") || query(\"q\") in [\"1\", \"2\"])\n\
        header(\"x\").matches(\"^a[0-9]+$\") || cookie(\"c\") != \"v\"\n\
        client.ip in [\"10.0.0.0/8\"] && body.size > 3\n\
        json(\"/a/0\") == \"b\"\0/a/b\0q=1&p=2\0a.test\0X: a12\nCookie: c=v\n\
        Content-Type: application/json\0{\"a\":[\"b\"]}";
    put("rules", "conditions", &join(&[0], rules.as_bytes()));
    let typed = "tls.sni.ends_with(\".test\") && tls.version == \"TLSv1.3\"\nmethod in [\"GET\", \"PUT\"]\n\
        xml(\"a/b/@c\") >= 1.5\nform(\"p\").exists()\0/\0\0h\0Content-Type: text/xml\0<a><b c=\"2\"/></a>";
    put("rules", "typed", &join(&[0x10], typed.as_bytes()));
    put("bodies", "json", &join(&[0, 9], br#"{"a":[{"b":4.5e1}],"":{"c":null},"d":"\u00e9\ud83d\ude00x"}"#));
    put("bodies", "json_text", &join(&[0, 4], br#"{"a":"b"}"#));
    put(
        "bodies",
        "xml",
        &join(&[1, 9], b"<?xml version=\"1.0\"?><a><b c='xx'>c</b><!-- - --><![CDATA[x]]>&amp;</a>"),
    );
    put("bodies", "form", &join(&[2, 3], b"p=v&q=%20+&r"));
    let multipart = b"--b\r\nContent-Disposition: form-data; name=\"p\"\r\n\r\nv\r\n--b\r\n\
        Content-Disposition: form-data; name=\"q\"; filename=\"f\"\r\n\r\nx\r\n--b--\r\n";
    put("bodies", "multipart", &join(&[3, 20], multipart));
}

/// Headers of the PROXY protocol, each before a few bytes of its client.
fn proxy_headers(put: &impl Fn(&str, &str, &[u8])) {
    let ends = |source: &str, destination: &str| {
        Endpoints::new(source.parse().expect("an address"), destination.parse().expect("an address"))
    };
    let v4 = ends("192.0.2.1:56324", "198.51.100.2:443");
    let v6 = ends("[2001:db8::1]:56324", "[2001:db8:0:1::2]:443");
    let ssl = SslInfo {
        is_tls: true,
        cert_in_connection: true,
        cert_in_session: true,
        is_verified: true,
        version: Some(b"TLSv1.3"),
        common_name: Some(b"client"),
    };
    let all = Extras {
        alpn: Some(b"h2"),
        authority: Some(b"a.test"),
        unique_id: Some(b"id"),
        ssl: Some(ssl),
        checksum: true,
    };
    for (name, endpoints) in [("v4", Some(&v4)), ("v6", Some(&v6)), ("none", None)] {
        let mut line = Vec::new();
        encode_v1(endpoints, &mut line);
        put("proxy_protocol", &format!("text_{name}"), &[&line, GET].concat());
        for (kind, extras) in [("plain", Extras::default()), ("extras", all)] {
            let mut header = Vec::new();
            encode_v2(endpoints, &extras, &mut header).expect("it is short");
            put("proxy_protocol", &format!("{kind}_{name}"), &[&header, GET].concat());
        }
    }
}

/// Conversations of OpenSSL that the tests of proto/tls replay: the hello, then parts behind their sides.
fn observed_handshakes(put: &impl Fn(&str, &str, &[u8]), folder: &Path) {
    let conversations = folder.join("../../proto/tls/tests/conversations");
    for entry in std::fs::read_dir(conversations).expect("the folder is there") {
        let path = entry.expect("an entry").path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".txt")) else {
            continue;
        };
        let text = std::fs::read_to_string(&path).expect("a conversation can be read");
        let mut payload = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let (side, hex) = line.split_at(2);
            let bytes = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16));
            let bytes: Vec<u8> = bytes.collect::<Result<_, _>>().expect("hexadecimal");
            let side = u8::from(side.starts_with('<'));
            put_chunk(&if number == 0 { bytes } else { [&[side], &bytes[..]].concat() }, &mut payload);
        }
        put("server_flight", name, &join(&[1, 5, 60, 7], &payload));
    }
}

fn client_config(version: &'static SupportedProtocolVersion, fixture: &Path) -> Arc<ClientConfig> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let groups = vec![rustls::crypto::aws_lc_rs::kx_group::X25519];
    let provider = rustls::crypto::CryptoProvider { kx_groups: groups, ..provider };
    let mut roots = RootCertStore::empty();
    let certificate =
        CertificateDer::from_pem_file(fixture.join("localhost.pem")).expect("the fixture is there");
    roots.add(certificate).expect("the fixture is a certificate");
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[version])
        .expect("the provider has suites")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

fn client(config: &Arc<ClientConfig>) -> ClientConnection {
    ClientConnection::new(config.clone(), ServerName::try_from("localhost").expect("a name"))
        .expect("a client")
}

fn take(client: &mut ClientConnection) -> Vec<u8> {
    let mut out = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut out).expect("memory takes everything");
    }
    out
}

fn give(client: &mut ClientConnection, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        client.read_tls(&mut bytes).expect("there is room");
        client.process_new_packets().expect("our server is understood");
        let _ = client.reader().read(&mut [0; 4096]);
    }
}

fn handshakes(put: &impl Fn(&str, &str, &[u8]), folder: &Path) {
    let fixture = folder.join("../fixture");
    for (name, choice, version) in
        [("tls13", 0, &rustls::version::TLS13), ("tls12", 1, &rustls::version::TLS12)]
    {
        let config = client_config(version, &fixture);
        for name in [name.to_owned(), format!("{name}_resumed")] {
            put("handshake", &name, &join(&[choice, 60, 7, 200], &shake(choice, &mut client(&config))));
        }
    }
    put("handshake", "plain", &join(&[0, 3], GET));
    put("upgrade_state", "tls_hello", &hello_in_upgrade_state(&fixture));
    put("restore", "tls_hello", &restore_input(0x41, b"", b"", &hello_only(&fixture)));
}

/// All bytes that a client sends in a handshake, with one record of data.
fn shake(config: u8, client: &mut ClientConnection) -> Vec<u8> {
    let mut server =
        Handshake::new(&server_configs()[usize::from(config)], &handshake_params()).expect("it fits");
    let mut sent = Vec::new();
    loop {
        let (flight, mut answer) = (take(client), Vec::new());
        sent.extend_from_slice(&flight);
        let progress = server.handle_input(&flight, &mut answer).expect("a real client");
        give(client, &answer);
        if progress == Progress::Done {
            client.writer().write_all(b"data").expect("there is room");
            sent.extend_from_slice(&take(client));
            return sent;
        }
    }
}

/// A restore input: flags, the peers' later bytes, and entries.
fn restore_input(flags: u8, client: &[u8], server: &[u8], entries: &[Entry]) -> Vec<u8> {
    let mut rest = Vec::new();
    put_chunk(client, &mut rest);
    put_chunk(server, &mut rest);
    for entry in entries {
        put_chunk(&entry.encode().expect("an entry can be written"), &mut rest);
    }
    join(&[flags, 20, 30], &rest)
}

/// A ClientHello of which half is in the upgrade state, and half arrives later.
fn hello_in_upgrade_state(fixture: &Path) -> Vec<u8> {
    let flight = take(&mut client(&client_config(&rustls::version::TLS13, fixture)));
    let (first, second) = flight.split_at(flight.len() / 2);
    let mut world = World::accept(1, Kind::default());
    world.client.send(first);
    world.pump();
    upgrade_state_input(&mut world, second, b"")
}

/// Entries that the backup has received.
fn entries_of(world: &World) -> Vec<Entry> {
    world.backup.as_ref().expect("the world is replicated").entries.clone()
}

fn hello_only(fixture: &Path) -> Vec<Entry> {
    let mut world = World::accept(1, REPLICATED);
    let flight = take(&mut client(&client_config(&rustls::version::TLS13, fixture)));
    world.client.send(&flight);
    world.pump();
    entries_of(&world)
}

/// Record of a ClientHello for `a.example`, with a ticket.
const HELLO: &[u8] = b"\x16\x03\x01\x00\x92\x01\x00\x00\x8e\x03\x03\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\
    \x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x07\x20\x09\x09\x09\x09\
    \x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\x09\
    \x09\x09\x09\x09\x00\x04\x13\x01\xc0\x2b\x01\x00\x00\x41\x00\x2b\x00\x05\x04\x03\x04\x03\x03\x00\
    \x00\x00\x0e\x00\x0c\x00\x00\x09\x61\x2e\x65\x78\x61\x6d\x70\x6c\x65\x00\x10\x00\x0b\x00\x09\x08\
    \x68\x74\x74\x70\x2f\x31\x2e\x31\x00\x23\x00\x13\x74\x69\x63\x6b\x65\x74\x2d\x6f\x66\x2d\x61\x2d\
    \x73\x65\x73\x73\x69\x6f\x6e";
/// Records of a server that resumes that session: ServerHello, ChangeCipherSpec, Finished.
const RESUMED: &[u8] = b"\
    \x16\x03\x03\x00\x2a\x02\x00\x00\x26\x03\x03\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\
    \x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x05\x00\xc0\x2b\x00\x14\
    \x03\x03\x00\x01\x01\x16\x03\x03\x00\x28\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\
    \x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\
    \x01\x01";

fn connections(put: &impl Fn(&str, &str, &[u8])) {
    type Parts = &'static [&'static [u8]];
    let conversations: [(&str, u8, Parts, Parts); 8] = [
        ("get", 0, &[GET], &[OK]),
        ("pipelined", 0, &[GET, POST, GET], &[OK, OK, OK]),
        ("chunked", 0, &[CHUNKED], &[OK_CHUNKED]),
        ("upgrade", 0, &[UPGRADE], &[SWITCHING]),
        ("old", 0, &[OLD], &[UNTIL_CLOSE]),
        ("tcp", 2, &[b"ping"], &[b"pong"]),
        ("redirect", 4, &[GET, OLD], &[]),
        ("passthrough", 5, &[HELLO, b"rest"], &[RESUMED]),
    ];
    for (name, listener, requests, responses) in conversations {
        let (requests, responses) = (requests.concat(), responses.concat());
        let input = |kind: u8| {
            let mut streams = Vec::new();
            put_chunk(&requests, &mut streams);
            put_chunk(&responses, &mut streams);
            join(&[&[kind], &SCRIPT[..]].concat(), &streams)
        };
        put("connection", name, &input(listener));
        put("connection", &format!("{name}_replicated"), &input(listener | 0x10));

        // A backup's state in the middle of the conversation, and the peers' retransmissions.
        let mut world = World::accept(u32::from(listener), REPLICATED);
        world.client.send(&requests);
        world.pump();
        if let Some(server) = world.server() {
            server.send(&responses[..responses.len() / 2]);
        }
        world.pump();
        world.client.acknowledge(u64::MAX);
        world.pass(STALL);
        upgrade_state(put, name, listener, &requests, &responses);
        let entries = entries_of(&world);
        put("restore", name, &restore_input(listener, &requests, &responses, &entries));
        let mut chunks = Vec::new();
        for entry in &entries {
            put_chunk(&entry.encode().expect("an entry can be written"), &mut chunks);
        }
        put("replication", name, &chunks);
        membership_seeds::frames(put, name, &entries);
    }
    secure(put);
    behind_tls(put);
}

/// An upgrade input: the peers' later bytes, and the upgrade state of the connection.
fn upgrade_state_input(world: &mut World, client: &[u8], server: &[u8]) -> Vec<u8> {
    let mut rest = Vec::new();
    put_chunk(client, &mut rest);
    put_chunk(server, &mut rest);
    put_chunk(&world.export(), &mut rest);
    join(&[20, 30], &rest)
}

/// A connection that is exported in the middle of a conversation, with pending bytes for both peers.
fn upgrade_state(
    put: &impl Fn(&str, &str, &[u8]),
    name: &str,
    listener: u8,
    requests: &[u8],
    responses: &[u8],
) {
    let mut world = World::accept(u32::from(listener), Kind::default());
    let (sent, answered) = (requests.len() * 2 / 3, responses.len() / 2);
    world.process.host.set_server_window(sent / 2);
    world.client.send(&requests[..sent]);
    world.pump();
    world.client.set_window(answered / 2);
    if let Some(server) = world.server() {
        server.send(&responses[..answered]);
    }
    world.pump();
    put("upgrade_state", name, &upgrade_state_input(&mut world, &requests[sent..], &responses[answered..]));
}

/// Both ends of a connection to a server with TLS, after its handshake.
fn upstream() -> (Records, Records) {
    let pool = &snapshot().pools[TLS_POOL as usize];
    let tls = pool.tls.as_ref().expect("the pool uses TLS");
    let name = pool.servers[0].tls_name.clone().expect("and so do its servers");
    let mut ours = ClientHandshake::new(&tls.config, name).expect("it fits");
    let mut theirs = Handshake::new(&server_configs()[0], &handshake_params()).expect("it fits");
    let mut flight = Vec::new();
    ours.start(&mut flight).expect("a hello");
    loop {
        let (mut answer, mut more) = (Vec::new(), Vec::new());
        let done = theirs.handle_input(&flight, &mut answer).expect("a real client") == Progress::Done;
        if done {
            return (ours.finish().expect("done").records, theirs.finish().expect("done").records);
        }
        ours.handle_input(&answer, &mut more).expect("a real server");
        flight = more;
    }
}

/// A request to a server with TLS, with and without a deterministic record, and the server's answer.
fn behind_tls(put: &impl Fn(&str, &str, &[u8])) {
    let (ours, mut theirs) = upstream();
    let layout = theirs.layout();
    let mut answer = vec![0; layout.header + OK.len() + layout.trailer];
    answer[layout.header..layout.header + OK.len()].copy_from_slice(OK);
    theirs.seal(ContentType::ApplicationData, &mut answer).expect("the first record");
    packed_behind_tls(put, &ours, &answer);
    let mut world = World::accept(0, REPLICATED);
    world.client.send(GET);
    world.pump();
    let mut entries = entries_of(&world);
    let mut state = Vec::new();
    ours.export().encode(&mut state);
    for entry in &mut entries {
        if let Entry::Route(route) = entry {
            route.pool = TLS_POOL;
            let tls = LegTls { records: state.clone(), consumed: 900, sent: 500, flight: vec![22; 80] };
            route.tls = Some(Box::new(tls));
        }
    }
    put("restore", "behind_tls", &restore_input(0, GET, &answer, &entries));
    let first = RecordPosition::default();
    let boundary = RecordLayout { first, kind: RecordKind::Data, lengths: vec![(140, 1)], digest: 1 };
    entries.push(Entry::LegBoundary { exchange: 0, leg: 1, boundary });
    put("restore", "behind_tls_decided", &restore_input(0, GET, &answer, &entries));
}

/// The upgrade state of a connection whose server leg uses TLS.
fn packed_behind_tls(put: &impl Fn(&str, &str, &[u8]), ours: &Records, answer: &[u8]) {
    let mut world = World::accept(0, Kind { pooled: true, ..Kind::default() });
    world.client.send(GET);
    world.pump();
    world.server().expect("the request was sent").send(OK);
    world.pump();
    world.set_idle_records(Records::import(&ours.export()).expect("it was exported"));
    world.client.send(GET);
    world.pump();
    if let Some(server) = world.server() {
        server.send(&answer[..answer.len() / 2]);
    }
    world.pump();
    put("upgrade_state", "behind_tls", &upgrade_state_input(&mut world, GET, &answer[answer.len() / 2..]));
}

/// A whole HTTPS conversation, and a backup's state of it.
fn secure(put: &impl Fn(&str, &str, &[u8])) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixture");
    for (name, replicated) in [("https", false), ("https_replicated", true)] {
        let mut client = client(&client_config(&rustls::version::TLS13, &fixture));
        let mut world = World::accept(1, Kind { replicated, ..Kind::default() });
        client.writer().write_all(GET).expect("there is room");
        let (mut sent, mut given) = (Vec::new(), 0);
        for _ in 0..4 {
            let flight = take(&mut client);
            sent.extend_from_slice(&flight);
            world.client.send(&flight);
            world.pump();
            if let Some(server) = world.server() {
                server.send(OK);
            }
            world.pump();
            let written = world.client.written();
            give(&mut client, &written[given..]);
            given = written.len();
        }
        client.send_close_notify();
        let end = take(&mut client);
        if !replicated {
            put("upgrade_state", "https", &upgrade_state_input(&mut world, &end, OK));
        }
        sent.extend_from_slice(&end);
        let mut streams = Vec::new();
        put_chunk(&sent, &mut streams);
        put_chunk(OK, &mut streams);
        put(
            "connection",
            name,
            &join(&[&[1 | if replicated { 0x10 } else { 0 }], &SCRIPT[..]].concat(), &streams),
        );
        if replicated {
            put("restore", "https", &restore_input(1, b"", OK, &entries_of(&world)));
            world.client.acknowledge(u64::MAX);
            world.pump();
            put("restore", "https_idle", &restore_input(1, b"", OK, &entries_of(&world)));
        }
    }
}
