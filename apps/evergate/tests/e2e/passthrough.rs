//! Listeners that route by the ClientHello, in front of servers that terminate TLS.

use super::client::{get, tcp};
use super::node::{Folder, Node, eventually};
use super::pki::{client, issue, shown, stored, tls};
use super::tls::{CLOSING, s_client};
use super::upstream::{keeping_secure_backend, secure_backend};
use crate::support::evergate;
use rustls::AlertDescription;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

const LISTENER: &str =
    "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\nprotocol = \"passthrough\"\n";

fn pool(name: &str, server: SocketAddr) -> String {
    format!("[[pools]]\nname = \"{name}\"\nservers = [{{ address = \"{server}\" }}]\n")
}

fn rule(name: &str, when: &str, action: &str) -> String {
    format!("[[rules]]\nname = \"{name}\"\nlisteners = [\"in\"]\nwhen = '{when}'\n{action}\n")
}

/// Node in front of the servers `a.example` and `b.example`, which have certificates of these names.
fn node() -> Node {
    node_before(keeping_secure_backend)
}

/// The same with such servers.
fn node_before(backend: fn(&Folder, &str) -> SocketAddr) -> Node {
    let folder = Folder::new();
    for name in ["a", "b"] {
        issue(&folder, name, "ecdsa", &format!("{name}.example"), None);
    }
    let (a, b) = (backend(&folder, "a"), backend(&folder, "b"));
    let rules = [
        rule("one", "tls.sni == \"a.example\"", "route = \"a\"\nclass = \"gold\""),
        rule("others", "tls.sni.ends_with(\"b.example\")", "route = \"b\""),
        rule("closed", "tls.sni == \"closed.example\"", "deny = \"access_denied\""),
        rule("cut", "tls.sni == \"cut.example\"", "deny = \"reset\""),
        rule("terminators", "tls.sni == \"terminators.example\"", "route = \"c\""),
        rule("h2", "tls.alpn.contains(\"h2\")", "route = \"b\""),
    ];
    let log = "[logs]\naccess = \"access.log\"\n";
    let by_session = "policy = \"sslsard\"\nsessions = { fallback = \"sni\" }\n";
    let pools = format!("{}{}{}{by_session}", pool("a", a), pool("b", b), pool("c", b));
    let config = format!("{LISTENER}{pools}{}{log}", rules.concat());
    Node::start_in(folder, &config)
}

/// The lines of the access log, when there are so many.
fn lines(node: &Node, count: usize) -> Vec<serde_json::Value> {
    eventually("the access log has its lines", || {
        let text = std::fs::read_to_string(node.folder.path("access.log")).unwrap_or_default();
        let lines: Vec<_> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (lines.len() >= count).then_some(lines)
    })
}

#[test]
fn server_name_chooses_the_server_that_terminates_tls() {
    let node = node();
    for (name, own) in [("a.example", "a"), ("b.example", "b"), ("www.b.example", "b"), ("A.example", "a")] {
        let mut wire = tls(node.address("in"), &Arc::new(client(None)), name);
        let response = wire.get("/5000").unwrap();
        assert_eq!((response.status, response.body.len()), (200, 5000), "{name}");
        assert_eq!(shown(&wire), stored(&node.folder, own), "{name}");
    }
    let lines = lines(&node, 4); // in any order: two workers write them
    let of = |host: &str| lines.iter().find(|line| line["host"] == host).expect("a line of the host");
    let (first, second) = (of("a.example"), of("b.example"));
    assert_eq!((&first["rule"], &first["class"]), (&"one".into(), &"gold".into()));
    assert_eq!((&first["pool"], &second["pool"]), (&"a".into(), &"b".into()));
}

#[test]
fn protocols_of_the_client_choose_a_server() {
    let node = node();
    let mut config = client(None);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut wire = tls(node.address("in"), &Arc::new(config), "none.example");
    let _ = wire.get("/5");
    assert_eq!(shown(&wire), stored(&node.folder, "b"));
}

#[test]
fn openssl_passes_in_both_versions() {
    let node = node_before(secure_backend); // it closes behind its answer
    for (version, shows) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let reported = s_client(&node, &[version, "-servername", "b.example"], CLOSING);
        assert!(reported.contains("CN = b.example") && reported.contains(shows), "{version}: {reported}");
    }
}

#[test]
fn hello_in_single_bytes_reaches_its_server() {
    let node = node();
    let mut stream = tcp(node.address("in"));
    stream.set_nodelay(true).unwrap();
    let name = "a.example".to_owned().try_into().unwrap();
    let mut connection = rustls::ClientConnection::new(Arc::new(client(None)), name).unwrap();
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).unwrap();
    for byte in hello {
        stream.write_all(&[byte]).unwrap();
    }
    while connection.is_handshaking() {
        connection.read_tls(&mut stream).unwrap();
        connection.process_new_packets().unwrap();
        connection.write_tls(&mut stream).unwrap();
    }
}

/// The error of a client that asks for this name.
fn refusal(node: &Node, name: &str) -> std::io::Error {
    tls(node.address("in"), &Arc::new(client(None)), name).get("/5").unwrap_err()
}

#[test]
fn refused_clients_learn_why() {
    let node = node();
    for (name, alert) in [
        ("closed.example", AlertDescription::AccessDenied),
        ("unknown.example", AlertDescription::UnrecognisedName),
    ] {
        let error = refusal(&node, name).to_string();
        assert!(error.contains(&format!("{alert:?}")), "{name}: {error}");
    }
    assert_eq!(refusal(&node, "cut.example").kind(), ErrorKind::ConnectionReset);
    let response = get(node.address("in"), "/x");
    assert_eq!(response.status, 400, "plain HTTP");
    let mut stream = tcp(node.address("in"));
    stream.write_all(b"SSH-2.0-OpenSSH\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer[..2], [21, 3], "an alert");
    let mut reasons: Vec<_> = lines(&node, 5).iter().map(|line| line["reason"].to_string()).collect();
    reasons.sort_unstable(); // two workers write them
    let expected = ["denied_by_rule", "denied_by_rule", "no_route", "not_tls", "plain_http_on_tls_port"];
    let expected = expected.map(|reason| format!("\"{reason}\""));
    assert_eq!(reasons, expected);
}

#[test]
fn silent_client_is_reset_at_the_handshake_timeout() {
    let folder = Folder::new();
    issue(&folder, "a", "ecdsa", "a.example", None);
    let server = secure_backend(&folder, "a");
    let limit = "[timeouts]\nhandshake_ms = 300\n";
    let node = Node::start_in(folder, &format!("{LISTENER}pool = \"a\"\n{}{limit}", pool("a", server)));
    let mut stream = tcp(node.address("in"));
    stream.write_all(&[22, 3, 1, 0, 200, 1]).unwrap();
    assert_eq!(stream.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn connections_pass_an_upgrade_of_the_process() {
    let folder = Folder::new();
    issue(&folder, "a", "ecdsa", "a.example", None);
    let server = keeping_secure_backend(&folder, "a");
    let node = Node::start_in(folder, &format!("{LISTENER}pool = \"a\"\n{}", pool("a", server)));
    let config = Arc::new(client(None));
    let mut open = tls(node.address("in"), &config, "a.example");
    assert_eq!(open.get("/100").unwrap().body.len(), 100);
    let name = "a.example".to_owned().try_into().unwrap();
    let mut connection = rustls::ClientConnection::new(config, name).unwrap();
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).unwrap();
    let mut begun = tcp(node.address("in"));
    let received = || node.metric("evergate_bytes_total");
    let before = received();
    begun.write_all(&hello[..50]).unwrap();
    eventually("the node has the half", || (received() >= before + 50).then_some(()));
    let upgraded = node.upgrade();
    assert_eq!(upgraded.passed, 2, "{upgraded:?}");
    assert_eq!(open.get("/200").unwrap().body.len(), 200);
    begun.write_all(&hello[50..]).unwrap();
    while connection.is_handshaking() {
        connection.read_tls(&mut begun).unwrap();
        connection.process_new_packets().unwrap();
        connection.write_tls(&mut begun).unwrap();
    }
}

#[test]
fn explain_shows_what_becomes_of_a_connection() {
    let node = node();
    let file = node.folder.path("evergate.toml");
    let explain = |more: &[&str]| {
        let file = file.to_str().unwrap();
        let output = evergate(&[&["explain", file, "--listener", "in"], more].concat());
        (output.code == Some(0), output.out + &output.err)
    };
    let (ok, text) = explain(&["--sni", "www.b.example"]);
    assert!(ok && text.contains("sent to pool \"b\" by rule \"others\""), "{text}");
    let (ok, text) = explain(&["--sni", "closed.example"]);
    assert!(ok && text.contains("denied with the TLS alert access_denied by rule \"closed\""), "{text}");
    let (ok, text) = explain(&["--alpn", "h2,http/1.1"]);
    assert!(ok && text.contains("sent to pool \"b\" by rule \"h2\""), "{text}");
    let (ok, text) = explain(&["--sni", "terminators.example"]);
    assert!(
        ok && text.contains("by a known session that the client offers, else by the server name\n"),
        "{text}"
    );
    let (ok, text) = explain(&[]);
    assert!(ok && text.contains("closed: no rule routes it"), "{text}");
}
