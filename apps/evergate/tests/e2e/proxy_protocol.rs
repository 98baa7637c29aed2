//! PROXY protocol: headers from trusted proxies, from untrusted peers, from HAProxy, and to servers.

use super::backend::Backend;
use super::client::{Wire, connect, tcp};
use super::node::{ANY, DEADLINE, Folder, Node, eventually, web};
use super::pki::{Tls, certificate, client, https, issue};
use evergate_proxy_protocol::{Decoded, Endpoints, decode};
use rustls::{ClientConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::sync::Arc;

const TRUSTS: &str = "proxy_protocol = true\ntrusted_proxies = [\"127.0.0.0/8\", \"::1\"]\n";
const TEXT: &[u8] = b"PROXY TCP4 203.0.113.9 203.0.113.80 5555 443\r\n";
const BINARY: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\0\x71\x09\xcb\0\x71\x50\x15\xb3\x01\xbb";

/// A listener of this protocol for trusted proxies.
fn listener(name: &str, protocol: &str, more: &str) -> String {
    format!(
        "[[listeners]]\nname = \"{name}\"\naddress = \"{ANY}\nprotocol = \"{protocol}\"\npool = \"web\"\n{more}\n"
    )
}

/// Whether the peer resets or ends the connection without a byte.
fn is_refused(mut stream: TcpStream) -> bool {
    match stream.read(&mut [0; 100]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn forwarded_for(server: &Backend) -> Option<String> {
    server.seen().last().unwrap().head.field("x-forwarded-for")
}

#[test]
fn header_names_the_client_of_requests() {
    let server = Backend::new("one");
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let secure = https(TRUSTS).replace("name = \"in\"", "name = \"secure\"");
    let config = format!(
        "{}{secure}{}{}",
        listener("in", "http", TRUSTS),
        certificate("site"),
        web(&[server.address()], "")
    );
    let node = Node::start_in(folder, &config);
    for header in [TEXT, BINARY] {
        let mut plain = connect(node.address("in"));
        plain.send(header).unwrap();
        assert_eq!(plain.get("/x").unwrap().text(), "one");
        assert_eq!(forwarded_for(&server).as_deref(), Some("203.0.113.9"));
        assert_eq!(plain.get("/x").unwrap().text(), "one", "the header comes once");

        let mut stream = tcp(node.address("secure"));
        for byte in header {
            stream.write_all(&[*byte]).unwrap();
        }
        let name = "site.example".try_into().unwrap();
        let session = ClientConnection::new(Arc::new(client(None)), name).unwrap();
        let mut secure: Tls = Wire::new(StreamOwned::new(session, stream));
        assert_eq!(secure.get("/x").unwrap().text(), "one");
        assert_eq!(forwarded_for(&server).as_deref(), Some("203.0.113.9"));
    }
    for local in [&b"PROXY UNKNOWN\r\n"[..], b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"] {
        let mut plain = connect(node.address("in"));
        plain.send(local).unwrap();
        assert_eq!(plain.get("/x").unwrap().text(), "one");
        assert_eq!(forwarded_for(&server).as_deref(), Some("127.0.0.1"));
    }
}

#[test]
fn header_before_a_tunnel_is_not_forwarded() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = Node::start(&format!(
        "{}{}",
        listener("in", "tcp", TRUSTS),
        web(&[server.local_addr().unwrap()], "")
    ));
    for header in [TEXT, BINARY] {
        let mut proxy = tcp(node.address("in"));
        proxy.write_all(header).unwrap();
        let (mut at_server, _) = server.accept().unwrap(); // the server may send first
        at_server.write_all(b"hello").unwrap();
        let mut bytes = [0; 5];
        proxy.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
        proxy.write_all(b"world").unwrap();
        at_server.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"world");
    }
}

#[test]
fn missing_malformed_and_untrusted_headers_are_counted() {
    let server = Backend::new("one");
    let node = Node::start(&format!(
        "{}{}{}[timeouts]\nhandshake_ms = 300\n",
        listener("in", "http", TRUSTS),
        listener("far", "http", &TRUSTS.replace("\"127.0.0.0/8\", \"::1\"", "\"10.0.0.0/8\"")),
        web(&[server.address()], "")
    ));
    let counted = |reason: &str| node.metric(&format!("evergate_ended_total{{reason=\"{reason}\"}}"));
    for (listener, bytes, reason) in [
        ("far", TEXT, "proxy_untrusted"),
        ("far", b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n", "proxy_untrusted"),
        ("in", b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n", "proxy_header_missing"),
        ("in", b"PROXY TCP4 203.0.113.9\r\n", "proxy_header_malformed"),
        ("in", b"PROXY TCP4 203.", "proxy_header_timeout"),
    ] {
        let before = counted(reason);
        let mut stream = tcp(node.address(listener));
        let _ = stream.write_all(bytes); // the reset may come first
        assert!(is_refused(stream), "{reason}");
        eventually(reason, || (counted(reason) == before + 1).then_some(()));
    }
    assert_eq!(server.requests(), 0);
}

/// The first half of a header is sent before an upgrade, and the rest after it began.
#[test]
fn header_survives_an_upgrade() {
    let server = Backend::new("one");
    let node = Node::start(&format!("{}{}", listener("in", "http", TRUSTS), web(&[server.address()], "")));
    let mut idle = connect(node.address("in"));
    idle.send(TEXT).unwrap();
    assert_eq!(idle.get("/x").unwrap().text(), "one");
    let mut half = connect(node.address("in"));
    half.send(&BINARY[..10]).unwrap();
    let old = node.pid();
    node.begin_upgrade();
    half.send(&BINARY[10..]).unwrap();
    eventually("the old process ends", || super::node::has_ended(old).then_some(()));
    for wire in [&mut idle, &mut half] {
        assert_eq!(wire.get("/x").unwrap().text(), "one");
        assert_eq!(forwarded_for(&server).as_deref(), Some("203.0.113.9"));
    }
}

/// A proxy in front of the node, which ends with the test.
struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts HAProxy, which sends headers of this kind, and waits until it listens.
fn haproxy(folder: &Folder, to: SocketAddr, kind: &str) -> Option<(Proxy, SocketAddr)> {
    let port = super::support::Port::new();
    let at = port.address();
    let config = folder.write(
        &format!("{kind}.cfg"),
        &format!(
            "defaults\n mode tcp\n timeout connect 5s\n timeout client 30s\n timeout server 30s\n\
             listen in\n bind {at}\n server node {to} {kind}\n"
        ),
    );
    let child = Command::new("haproxy").arg("-q").arg("-db").arg("-f").arg(config).spawn().ok()?;
    let proxy = Proxy(child);
    eventually("HAProxy listens", || TcpStream::connect(at).ok());
    Some((proxy, at))
}

#[test]
fn haproxy_in_front_names_its_clients() {
    if !super::support::can_run(Command::new("haproxy").arg("-v").output().is_ok(), "HAProxy") {
        return;
    }
    let server = Backend::new("one");
    let node = Node::start(&format!("{}{}", listener("in", "http", TRUSTS), web(&[server.address()], "")));
    for kind in ["send-proxy", "send-proxy-v2"] {
        let (_proxy, at) = haproxy(&node.folder, node.address("in"), kind).unwrap();
        let mut client = super::client::connect_from([127, 0, 0, 77], at);
        client.stream.set_read_timeout(Some(DEADLINE)).unwrap();
        assert_eq!(client.get("/x").unwrap().text(), "one", "{kind}");
        assert_eq!(forwarded_for(&server).as_deref(), Some("127.0.0.77"), "{kind}");
    }
}

/// Reads a header of version 2, with its length, and returns its addresses and fields.
fn header_of(stream: &mut TcpStream) -> Vec<u8> {
    let mut head = [0; 16];
    stream.read_exact(&mut head).unwrap();
    let mut rest = vec![0; usize::from(u16::from_be_bytes([head[14], head[15]]))];
    stream.read_exact(&mut rest).unwrap();
    [&head[..], &rest].concat()
}

#[test]
fn tunnel_begins_with_a_header_for_its_server() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    for version in ["v1", "v2"] {
        let pool = web(&[server.local_addr().unwrap()], &format!("proxy_protocol = \"{version}\""));
        let node = Node::start(&format!("{}{pool}", listener("in", "tcp", "")));
        let mut client = tcp(node.address("in"));
        client.write_all(b"ping").unwrap();
        let (from, to) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let (mut at_server, _) = server.accept().unwrap();
        if version == "v1" {
            let line = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {} {}\r\n", from.port(), to.port());
            let mut seen = vec![0; line.len()];
            at_server.read_exact(&mut seen).unwrap();
            assert_eq!(String::from_utf8(seen).unwrap(), line);
        } else {
            let header = header_of(&mut at_server);
            let Ok(Decoded::Header(decoded)) = decode(&header) else { panic!("{header:?}") };
            assert_eq!(decoded.endpoints, Some(Endpoints::new(from, to)));
        }
        let mut bytes = [0; 4];
        at_server.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"ping");
    }
}

/// Each client has its own server connection, which its requests share.
#[test]
fn pooled_connections_with_a_header_serve_one_client() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let fields = "proxy_protocol = \"v2\"\nproxy_protocol_tlvs = [\"authority\", \"alpn\", \"unique_id\"]";
    let pool = web(&[server.local_addr().unwrap()], fields);
    let node = Node::start_in(folder, &format!("{}{}{pool}", https(""), certificate("site")));
    let mut clients: Vec<Tls> = (0..2)
        .map(|_| {
            let (config, address) = (Arc::new(client(None)), node.address("in"));
            super::pki::tls(address, &config, "site.example")
        })
        .collect();
    let mut ids = Vec::new();
    for client in &mut clients {
        let from = client.stream.sock.local_addr().unwrap();
        client.send("GET /1 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let (mut at_server, _) = server.accept().unwrap();
        at_server.set_read_timeout(Some(DEADLINE)).unwrap();
        let header = header_of(&mut at_server);
        let Ok(Decoded::Header(decoded)) = decode(&header) else { panic!("{header:?}") };
        assert_eq!(decoded.endpoints.unwrap().source(), from);
        assert_eq!(decoded.tlvs.authority(), Some(&b"site.example"[..]));
        ids.push(decoded.tlvs.unique_id().unwrap().to_vec());
        for request in 1..3 {
            let mut seen = Vec::new();
            while !seen.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                at_server.read_exact(&mut byte).unwrap();
                seen.push(byte[0]);
            }
            assert!(seen.starts_with(format!("GET /{request} ").as_bytes()));
            at_server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
            assert_eq!(client.response().unwrap().text(), "ok");
            if request == 1 {
                client.send("GET /2 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            }
        }
    }
    assert_ne!(ids[0], ids[1]);
    assert_eq!(ids[0].len(), 16);
}
