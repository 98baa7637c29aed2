//! AEAD libraries for TLS records: chosen at the start, shown, forced, and exchanged under open connections.

use crate::backend::{Backend, pattern};
use crate::client::connect;
use crate::node::{Folder, Node, plain, web};
use crate::pki::{Tls, certificate, https, issue, stored, tls};
use crate::support::{Process, evergate};
use crate::upstream::keeping_secure_backend;
use evergate_tls::Suite;
use rustls::{CipherSuite, ClientConfig, RootCertStore};
use std::collections::BTreeMap;
use std::sync::Arc;

const SUITES: [CipherSuite; 6] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
];
/// More bytes than sockets and buffers hold, so that the transfer is under way while the libraries change.
const BODY: usize = 12_000_000;

/// Client that offers one cipher suite.
fn client_of(folder: &Folder, suite: CipherSuite) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(stored(folder, "ca").into()).unwrap();
    let mut provider = Arc::unwrap_or_clone(evergate_crypto::client_provider());
    provider.cipher_suites.retain(|known| known.suite() == suite);
    let config = ClientConfig::builder_with_provider(Arc::new(provider));
    let config = config.with_protocol_versions(rustls::ALL_VERSIONS).unwrap();
    Arc::new(config.with_root_certificates(roots).with_no_client_auth())
}

fn all_by(library: &str) -> BTreeMap<String, String> {
    Suite::ALL.map(|suite| (suite.name().to_owned(), library.to_owned())).into()
}

fn begin_download(wire: &mut Tls) {
    wire.send(format!("GET /bytes/{BODY} HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
    let head = wire.read_head().unwrap().unwrap();
    assert_eq!(head.field("content-length").unwrap(), BODY.to_string());
}

/// Upgrades to the same program under another environment.
fn upgrade_to(node: &Node, library: &str) {
    let text = format!("EVERGATE_AEAD={library} exec {} \"$@\"", env!("CARGO_BIN_EXE_evergate"));
    let program = node.script(library, &text);
    node.begin_upgrade_with(&["--binary", &program]);
    assert_eq!(node.status().aead, all_by(library));
}

#[test]
fn connections_continue_under_the_other_library() {
    let folder = Folder::new();
    issue(&folder, "ca", "ecdsa", "", None);
    issue(&folder, "site", "ecdsa", "site.example", Some("ca"));
    let backend = Backend::new("one");
    let secure = keeping_secure_backend(&folder, "site");
    let config = format!(
        "{}{}{}[[listeners]]\nname = \"over\"\naddress = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"secure\"\n\
         [[pools]]\nname = \"secure\"\nservers = [{{ address = \"{secure}\" }}]\ntls = {{ verify = false }}\n",
        https(""),
        certificate("site"),
        web(&[backend.address()], ""),
    );
    let node = Node::start_in(folder, &config);
    let clients = SUITES.map(|suite| client_of(&node.folder, suite));
    let open = |client| tls(node.address("in"), client, "site.example");
    let (mut kept, mut downloads) = (clients.each_ref().map(open), clients.each_ref().map(open));
    let mut over = connect(node.address("over"));
    for (wire, suite) in kept.iter_mut().zip(SUITES) {
        assert_eq!(wire.get("/x").unwrap().text(), "one", "{suite:?}");
        assert_eq!(wire.stream.conn.negotiated_cipher_suite().unwrap().suite(), suite);
    }
    downloads.iter_mut().for_each(begin_download);
    let expected = pattern(BODY);
    let parts: Vec<&[u8]> = expected.chunks(BODY / 4).collect();
    for (part, library) in parts.iter().zip(["ring", "aws-lc", "ring", "aws-lc"]) {
        for (wire, suite) in downloads.iter_mut().zip(SUITES) {
            assert!(wire.exactly(part.len()).unwrap() == **part, "{suite:?} before {library}");
        }
        upgrade_to(&node, library);
        for (wire, suite) in kept.iter_mut().zip(SUITES) {
            let echoed = wire.post("/echo", &expected[..100_000]).unwrap();
            assert!(echoed.body == expected[..100_000], "{suite:?} under {library}");
        }
        assert!(over.get("/bytes/300000").unwrap().body == pattern(300_000), "to the server under {library}");
    }
    for wire in kept.iter_mut().chain(&mut downloads) {
        assert_eq!(wire.get("/x").unwrap().text(), "one");
    }
    assert!(node.status().reasons.is_empty(), "{:?}", node.status().reasons);
}

#[test]
fn library_of_each_suite_is_shown_at_start_and_in_the_status() {
    let node = Node::start(&plain(&[Backend::new("one").address()], "", ""));
    let aead = node.status().aead;
    assert!(aead.keys().eq(Suite::ALL.map(Suite::name)), "{aead:?}");
    assert!(aead.values().all(|library| library == "aws-lc" || library == "ring"), "{aead:?}");
    let list: Vec<String> = aead.iter().map(|(suite, library)| format!("{suite} {library}")).collect();
    let list = list.join(", ");
    let line = format!("encryption of TLS records: {list}");
    assert!(node.lines().iter().any(|reported| reported.ends_with(&line)), "{line}: {:?}", node.lines());
    let (ok, text) = node.cli(&["status"]);
    assert!(ok && text.contains(&format!("\nencryption:    {list}\n")), "{text}");
}

#[test]
fn unknown_library_in_the_environment_refuses_the_start() {
    let folder = Folder::new();
    let path = folder.write("evergate.toml", "");
    let mut process = Process::spawn(|command| command.arg(path).env("EVERGATE_AEAD", "openssl"));
    assert_eq!(process.wait().code(), Some(2));
    let (reported, _) = process.line_after(0, "EVERGATE_AEAD=openssl");
    assert!(reported.contains("`aws-lc` or `ring`"), "{reported}");
}

#[test]
fn bench_shows_records_in_both_libraries() {
    let output = evergate(&["bench", "records", "--json", "--time-ms", "1"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    let costs: Vec<serde_json::Value> = serde_json::from_str(&output.out).unwrap();
    for suite in Suite::ALL {
        for library in ["aws-lc", "ring"] {
            let own = |cost: &&serde_json::Value| cost["suite"] == suite.name() && cost["library"] == library;
            assert_eq!(costs.iter().filter(own).count(), 3, "{suite:?} {library}");
        }
    }
    let output = evergate(&["bench", "crypto", "--time-ms", "1"]);
    assert!(output.code == Some(0) && output.out.contains("HANDSHAKE"), "{output:?}");
    assert!(output.out.contains("aes-128-gcm        16384 B  ring"), "{}", output.out);
}
