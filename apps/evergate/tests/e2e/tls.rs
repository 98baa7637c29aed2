//! TLS towards clients: versions, certificates, groups, resumption, client certificates, key updates.

use super::backend::Backend;
use super::client::connect;
use super::node::{Folder, Node, web};
use super::pki::{certificate, client, https, issue, shown, stored, tls};
use rustls::{HandshakeKind, ProtocolVersion};
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

fn start(folder: Folder, names: &[&str], more: &str) -> (Backend, Node) {
    let backend = Backend::new("one");
    let certificates: String = names.iter().map(|name| certificate(name)).collect();
    let node = Node::start_in(
        folder,
        &format!("{}{certificates}{}{more}", https(""), web(&[backend.address()], "")),
    );
    (backend, node)
}

pub(crate) fn s_client(node: &Node, args: &[&str], input: &str) -> String {
    let mut child = Command::new("timeout")
        .args(["20", "openssl", "s_client", "-ign_eof", "-connect", &node.address("in").to_string()])
        .args(args)
        .current_dir(node.folder.path(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

pub(crate) const CLOSING: &str = "GET /x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

#[test]
fn openssl_gets_the_certificate_of_its_sni_in_both_versions() {
    let folder = Folder::new();
    for name in ["ecdsa", "rsa", "ed25519"] {
        issue(&folder, name, name, &format!("{name}.example"), None);
    }
    let (_backend, node) = start(folder, &["ecdsa", "rsa", "ed25519"], "");
    for name in ["ecdsa", "rsa", "ed25519"] {
        for (version, shows) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
            let reported = s_client(&node, &[version, "-servername", &format!("{name}.example")], CLOSING);
            assert!(reported.contains(&format!("CN = {name}.example")), "{name} {version}: {reported}");
            assert!(
                reported.contains(shows) && reported.contains("\r\n\r\none"),
                "{name} {version}: {reported}"
            );
        }
    }
    let reported = s_client(&node, &["-noservername"], CLOSING);
    assert!(reported.contains("CN = ecdsa.example"), "the first certificate without SNI: {reported}");
}

#[test]
fn clients_choose_either_version_of_http_by_its_name() {
    let folder = Folder::new();
    issue(&folder, "ecdsa", "ecdsa", "a", None);
    let (_backend, node) = start(folder, &["ecdsa"], "");
    for (offered, chosen) in [("http/1.0", "http/1.0"), ("http/1.0,http/1.1", "http/1.1"), ("h2", "")] {
        let reported = s_client(&node, &["-alpn", offered], "GET /x HTTP/1.0\r\n\r\n");
        let answered =
            reported.contains(&format!("ALPN protocol: {chosen}\n")) && reported.contains("\r\n\r\none");
        assert_eq!(answered, !chosen.is_empty(), "{offered}: {reported}");
    }
}

#[test]
fn every_offered_group_completes_a_handshake() {
    let folder = Folder::new();
    issue(&folder, "ca", "ecdsa", "", None);
    issue(&folder, "site", "ecdsa", "site.example", Some("ca"));
    let (_backend, node) = start(folder, &["site"], "");
    let provider = evergate_crypto::client_provider();
    for group in
        [rustls::NamedGroup::X25519, rustls::NamedGroup::secp256r1, rustls::NamedGroup::X25519MLKEM768]
    {
        let mut provider = (*provider).clone();
        provider.kx_groups.retain(|have| have.name() == group);
        assert_eq!(provider.kx_groups.len(), 1, "{group:?} in the client");
        let mut roots = rustls::RootCertStore::empty();
        roots.add(stored(&node.folder, "ca").into()).unwrap();
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut wire = tls(node.address("in"), &Arc::new(config), "site.example");
        assert_eq!(wire.get("/x").unwrap().text(), "one", "{group:?}");
        assert_eq!(wire.stream.conn.negotiated_key_exchange_group().unwrap().name(), group);
    }
    // OpenSSL also checks the certificate's own curve against the list in TLS 1.2. P-384 is chosen where it is the
    // only group, also if it comes first and without a share.
    for (groups, key) in [
        ("X25519:P-256", "X25519"),
        ("P-256", "prime256v1"),
        ("P-384:X25519:P-256", "X25519"),
        ("P-384", "secp384r1"),
        ("P-521:P-384", "secp384r1"),
    ] {
        for version in ["-tls1_2", "-tls1_3"] {
            if version == "-tls1_2" && key == "secp384r1" {
                continue; // it would take no certificate of P-256
            }
            let reported = s_client(&node, &[version, "-groups", groups], CLOSING);
            let used = reported.lines().find(|line| line.contains("Temp Key")).unwrap_or_default();
            assert!(used.contains(key) && reported.contains("\r\n\r\none"), "{groups} {version}: {reported}");
        }
    }
}

#[test]
fn sessions_resume_in_both_versions() {
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let (_backend, node) = start(folder, &["site"], "");
    for version in ["-tls1_2", "-tls1_3"] {
        let first = s_client(&node, &[version, "-sess_out", "session"], CLOSING);
        assert!(first.contains("New, TLS") && first.contains("\r\n\r\none"), "{version}: {first}");
        let second = s_client(&node, &[version, "-sess_in", "session"], CLOSING);
        assert!(second.contains("Reused, TLS") && second.contains("\r\n\r\none"), "{version}: {second}");
    }
    let config = Arc::new(client(None));
    for expected in [HandshakeKind::Full, HandshakeKind::Resumed] {
        let mut wire = tls(node.address("in"), &config, "site.example");
        assert_eq!(wire.get("/x").unwrap().text(), "one");
        assert_eq!(wire.stream.conn.handshake_kind(), Some(expected));
        assert_eq!(wire.stream.conn.protocol_version(), Some(ProtocolVersion::TLSv1_3));
    }
    assert_eq!(node.metric("evergate_handshakes_total"), 6);
}

const SUBJECT_RULES: &str = "[[rules]]\nname = \"alice\"\nwhen = 'tls.client_subject.contains(\"alice.example\")'\n\
    deny = 418\n";

fn client_certificates(mode: &str) -> (Backend, Node) {
    let folder = Folder::new();
    issue(&folder, "ca", "ecdsa", "", None);
    issue(&folder, "alice", "ecdsa", "alice.example", Some("ca"));
    issue(&folder, "bob", "rsa", "bob.example", Some("ca"));
    issue(&folder, "mallory", "ecdsa", "alice.example", None);
    issue(&folder, "site", "ecdsa", "site.example", None);
    let backend = Backend::new("one");
    let config = format!(
        "{}{}{}[tls.t]\nclient_certificates = \"{mode}\"\nclient_ca = \"ca.pem\"\n{SUBJECT_RULES}",
        https("tls = \"t\""),
        certificate("site"),
        web(&[backend.address()], "")
    );
    let node = Node::start_in(folder, &config);
    (backend, node)
}

fn status_with(node: &Node, own: Option<&str>) -> Option<u16> {
    let config = Arc::new(client(own.map(|name| (&node.folder, name))));
    tls(node.address("in"), &config, "site.example").get("/x").ok().map(|response| response.status)
}

#[test]
fn required_client_certificates_are_verified_for_rules() {
    let (backend, node) = client_certificates("required");
    assert_eq!(status_with(&node, Some("alice")), Some(418));
    assert_eq!(status_with(&node, Some("bob")), Some(200));
    assert_eq!(status_with(&node, None), None);
    assert_eq!(status_with(&node, Some("mallory")), None);
    assert_eq!(backend.requests(), 1);
}

/// In TLS 1.2 a client signs its own hello, including the name.
#[test]
fn client_certificate_under_a_hyphened_name_is_checked() {
    let (_backend, node) = client_certificates("required");
    for version in ["-tls1_2", "-tls1_3"] {
        for (own, status) in [("bob", "200"), ("alice", "418")] {
            let (certificate, key) = (format!("{own}.pem"), format!("{own}.key"));
            let args = [version, "-servername", "-a.site.example", "-cert", &certificate, "-key", &key];
            let reported = s_client(&node, &args, CLOSING);
            assert!(reported.contains(&format!("HTTP/1.1 {status} ")), "{version} {own}: {reported}");
        }
    }
}

#[test]
fn optional_client_certificates_may_be_missing_but_not_wrong() {
    let (_backend, node) = client_certificates("optional");
    assert_eq!(status_with(&node, Some("alice")), Some(418));
    assert_eq!(status_with(&node, None), Some(200));
    assert_eq!(status_with(&node, Some("mallory")), None);
}

#[test]
fn key_updates_of_the_client_change_nothing_it_sees() {
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let (_backend, node) = start(folder, &["site"], "");
    let mut wire = tls(node.address("in"), &Arc::new(client(None)), "site.example");
    for round in 0..20 {
        let body = format!("round {round}");
        assert_eq!(wire.post("/echo", body.as_bytes()).unwrap().text(), body);
        wire.stream.conn.refresh_traffic_keys().unwrap();
    }
}

/// More than 1,024 key updates must not end a connection.
#[test]
fn client_may_change_its_keys_without_bound() {
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let (_backend, node) = start(folder, &["site"], "");
    let mut wire = tls(node.address("in"), &Arc::new(client(None)), "site.example");
    for round in 0..1100 {
        let body = format!("round {round}");
        assert_eq!(wire.post("/echo", body.as_bytes()).unwrap().text(), body);
        wire.stream.conn.refresh_traffic_keys().unwrap();
    }
}

/// The client has sent more than the node reads, so a reset could overtake the alert.
#[test]
fn handshake_that_fails_ends_with_an_alert_and_a_fin() {
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let (backend, node) = start(folder, &["site"], "");
    let hello = |version: u8, extensions: &[u8]| {
        let len = extensions.len() as u8;
        let body = [&[3, version][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0, 0, len], extensions].concat();
        let len = body.len() as u8;
        [&[22, 3, 1, 0, len + 4, 1, 0, 0, len], &body[..]].concat()
    };
    let tls13 = [0, 43, 0, 3, 2, 3, 4, 0, 10, 0, 4, 0, 2, 0, 0x1d, 0, 13, 0, 4, 0, 2, 4, 3];
    let whole = hello(3, &tls13);
    let cut = [&[22, 3, 1, 0, 20][..], &whole[5..25], &[21, 3, 1, 0, 2, 1, 0]].concat();
    for (name, bytes, description) in [
        ("garbage", b"SSH-2.0-x\r\n".to_vec(), 10),
        ("record of 16,385 bytes", [&[22, 3, 1, 0x40, 1][..], &[1; 16385]].concat(), 22),
        ("no key_share", whole, 109),
        ("hello of SSL 3.0", hello(0, &tls13), 70),
        ("ServerHello first", vec![22, 3, 1, 0, 4, 2, 0, 0, 0], 10),
        ("alert between fragments", cut, 10),
        ("hello that ends early", vec![22, 3, 1, 0, 5, 1, 0, 0, 1, 9], 50),
    ] {
        let mut wire = connect(node.address("in"));
        wire.send(bytes).unwrap();
        wire.send(vec![0x16; 300_000]).unwrap();
        let mut answer = Vec::new();
        let end = std::io::Read::read_to_end(&mut wire.stream, &mut answer);
        assert!(end.is_ok(), "{name}: {end:?}");
        assert_eq!(answer, [21, 3, 3, 0, 2, 2, description], "{name}");
    }
    assert_eq!(backend.requests(), 0);
}

#[test]
fn name_with_a_hyphen_at_an_edge_gets_its_wildcard() {
    let folder = Folder::new();
    issue(&folder, "other", "ecdsa", "other.example", None);
    issue(&folder, "wild", "ecdsa", "*.w.example", None);
    let (_backend, node) = start(folder, &["other", "wild"], "");
    for name in ["-a.w.example", "a-.w.example", "--a--.w.example"] {
        for version in ["-tls1_2", "-tls1_3"] {
            // The second client is asked for another share. The third and fourth have another transcript hash.
            for more in [
                &[][..],
                &["-groups", "P-384:X25519:P-256"],
                &["-ciphersuites", "TLS_AES_256_GCM_SHA384"],
                &["-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"],
            ] {
                let args = [&[version, "-servername", name], more].concat();
                let first = s_client(&node, &[&args[..], &["-sess_out", "session"]].concat(), CLOSING);
                assert!(first.contains("CN = *.w.example"), "{args:?}: {first}");
                assert!(first.contains("\r\n\r\none"), "{args:?}: {first}");
                let again = s_client(&node, &[&args[..], &["-sess_in", "session"]].concat(), CLOSING);
                assert!(again.contains("Reused, TLS") && again.contains("\r\n\r\none"), "{args:?}: {again}");
            }
        }
    }
}

#[test]
fn certificate_with_a_p521_key_is_served_in_both_versions() {
    let folder = Folder::new();
    issue(&folder, "site", "p521", "site.example", None);
    let (_backend, node) = start(folder, &["site"], "");
    for version in ["-tls1_2", "-tls1_3"] {
        let reported = s_client(&node, &[version], CLOSING);
        assert!(
            reported.contains("CN = site.example") && reported.contains("\r\n\r\none"),
            "{version}: {reported}"
        );
    }
}

#[test]
fn plain_http_on_the_tls_port_is_answered_with_400() {
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let (backend, node) = start(folder, &["site"], "");
    let mut wire = connect(node.address("in"));
    wire.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let answer = String::from_utf8_lossy(&wire.until_closed()).into_owned();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer:?}");
    assert_eq!(backend.requests(), 0);
}

#[test]
fn reloaded_certificate_is_for_new_handshakes_only() {
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    issue(&folder, "next", "rsa", "site.example", None);
    let (_backend, node) = start(folder, &["site"], "");
    let (old, new) = (stored(&node.folder, "site"), stored(&node.folder, "next"));
    let mut kept = tls(node.address("in"), &Arc::new(client(None)), "site.example");
    assert_eq!(kept.get("/x").unwrap().text(), "one");
    for suffix in ["pem", "key"] {
        let file = |name: &str| node.folder.path(&format!("{name}.{suffix}"));
        std::fs::rename(file("next"), file("site")).unwrap();
    }
    node.reload();
    let mut fresh = tls(node.address("in"), &Arc::new(client(None)), "site.example");
    assert_eq!(fresh.get("/x").unwrap().text(), "one");
    assert!(shown(&fresh) == new && shown(&kept) == old && new != old);
    assert_eq!(kept.get("/x").unwrap().text(), "one");
}
