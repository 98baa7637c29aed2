//! Servers with connection-based authentication (NTLM, Negotiate). One client's identity is never another's.

use super::client::{Wire, connect, get};
use super::node::{Folder, Node, eventually, plain};
use super::pki::issue;
use super::upstream::secure_config;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// Server whose connections remember the client that authenticated on them, as IIS does.
fn identifying_server(tls: Option<Arc<ServerConfig>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let tls = tls.clone();
            std::thread::spawn(move || match tls {
                Some(tls) => serve(Wire::new(StreamOwned::new(ServerConnection::new(tls).unwrap(), stream))),
                None => serve(Wire::new(stream)),
            });
        }
    });
    address
}

fn serve<S: Read + Write>(mut wire: Wire<S>) {
    let (mut challenged, mut user) = (false, None);
    while let Ok(Some(head)) = wire.read_head() {
        let credentials = head.field("authorization").unwrap_or_default();
        let token = credentials.split_once(' ').map_or("", |(_, token)| token);
        let mut challenge = "";
        if token == "one" {
            (challenged, challenge) = (true, " two");
        } else if std::mem::take(&mut challenged) && token.starts_with("three-") {
            user = token.strip_prefix("three-").map(str::to_owned);
        }
        let answer = match &user {
            Some(user) if challenge.is_empty() => {
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{user}", user.len())
            }
            _ => format!(
                "HTTP/1.1 401 X\r\nWWW-Authenticate: Negotiate{challenge}\r\nWWW-Authenticate: Basic realm=\"x\"\r\n\
                 Content-Length: 0\r\n\r\n"
            ),
        };
        if wire.send(answer).is_err() {
            return;
        }
    }
}

fn ask(wire: &mut Wire<TcpStream>, fields: &str) -> (u16, String) {
    wire.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).unwrap();
    let response = wire.response().unwrap();
    (response.status, response.text())
}

const FIRST: &str = "Authorization: Negotiate one\r\n";

fn last(user: &str) -> String {
    format!("Authorization: negotiate three-{user}\r\n")
}

/// Client that has authenticated.
fn log_in(address: SocketAddr, user: &str) -> Wire<TcpStream> {
    let mut wire = connect(address);
    assert_eq!(ask(&mut wire, FIRST).0, 401);
    assert_eq!(ask(&mut wire, &last(user)), (200, user.to_owned()));
    wire
}

/// Runs the test with a node in front of such a server, without TLS and with TLS.
fn on_each(test: impl Fn(&Node)) {
    test(&Node::start(&plain(&[identifying_server(None)], "", "")));
    let folder = Folder::new();
    issue(&folder, "ca", "ecdsa", "", None);
    issue(&folder, "orders", "ecdsa", "orders.internal", Some("ca"));
    let server = identifying_server(Some(secure_config(&folder, "orders")));
    let tls = "tls = { server_name = \"orders.internal\", ca = \"ca.pem\" }";
    test(&Node::start_in(folder, &plain(&[server], "", tls)));
}

#[test]
fn identity_belongs_to_one_client_and_handshakes_do_not_mix() {
    on_each(|node| {
        let web = node.address("in");
        let mut alice = log_in(web, "alice");
        let mut carol = connect(web);
        assert_eq!(ask(&mut carol, "").0, 401);
        assert_eq!(ask(&mut carol, FIRST).0, 401);
        let mut bob = connect(web);
        for _ in 0..10 {
            assert_eq!(ask(&mut bob, "").0, 401);
            assert_eq!(get(web, "/").status, 401);
            assert_eq!(ask(&mut alice, ""), (200, "alice".to_owned()));
        }
        assert_eq!(ask(&mut carol, &last("carol")), (200, "carol".to_owned()));
        assert_eq!(ask(&mut alice, ""), (200, "alice".to_owned()));
        drop((alice, carol));
        eventually("they are closed", || {
            let bound = node.status().total.bound;
            assert_eq!(get(web, "/").status, 401);
            (bound <= 1).then_some(())
        });
    });
}

#[test]
fn upgrade_passes_identities_and_handshakes() {
    on_each(|node| {
        let web = node.address("in");
        let mut alice = log_in(web, "alice");
        let mut carol = connect(web);
        assert_eq!(ask(&mut carol, FIRST).0, 401);
        node.upgrade();
        assert_eq!(ask(&mut carol, &last("carol")), (200, "carol".to_owned()));
        assert_eq!(ask(&mut alice, ""), (200, "alice".to_owned()));
        assert_eq!(get(web, "/").status, 401);
        eventually("both are kept", || (node.metric("evergate_server_connections_bound") >= 2).then_some(()));
    });
}

#[test]
fn bound_connection_counts_at_its_server() {
    let server = identifying_server(None);
    let config = plain(&[server], "", "queue_timeout_ms = 60000");
    let node = Node::start(&config.replace("{ name = \"s0\",", "{ connections_max = 1, name = \"s0\","));
    let mut alice = log_in(node.address("in"), "alice");
    assert_eq!(node.metric("evergate_server_outstanding"), 1);
    let mut bob = connect(node.address("in"));
    bob.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("bob waits", || (node.metric("evergate_requests_queued") == 1).then_some(()));
    assert_eq!(ask(&mut alice, ""), (200, "alice".to_owned()));
    drop(alice);
    assert_eq!(bob.response().unwrap().status, 401);
}

#[test]
fn drained_server_keeps_no_bound_connection() {
    let node = Node::start(&plain(&[identifying_server(None), identifying_server(None)], "", ""));
    let mut alice = log_in(node.address("in"), "alice");
    for server in ["s0", "s1"] {
        assert!(node.cli(&["servers", "drain", &format!("web/{server}")]).0);
    }
    eventually("it is closed", || (node.metric("evergate_server_outstanding") == 0).then_some(()));
    for server in ["s0", "s1"] {
        assert!(node.cli(&["servers", "ready", &format!("web/{server}")]).0);
    }
    assert_eq!(ask(&mut alice, "").0, 401, "she authenticates again");
    assert_eq!(ask(&mut alice, FIRST).0, 401);
    assert_eq!(ask(&mut alice, &last("alice")), (200, "alice".to_owned()));
}

/// The node finds a response and the end of its bound connection in one event. The next request waits behind it, and
/// the pool has an idle connection.
#[test]
fn request_behind_a_closing_bound_connection_runs_once() {
    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Idle server connections belong to a worker.
    let config = plain(&[listener.local_addr().unwrap()], "", "retries = 0") + "[node]\nworkers = 1\n";
    let node = Node::start(&config);
    let mut pooled: Vec<_> = (0..2)
        .map(|_| {
            let mut client = connect(node.address("in"));
            client.send("GET /warm HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            let mut server = Wire::new(listener.accept().unwrap().0);
            assert!(server.read_head().unwrap().is_some());
            (client, server)
        })
        .collect();
    for (client, server) in &mut pooled {
        server.send(OK).unwrap();
        assert_eq!(client.response().unwrap().status, 200);
    }
    // The pool uses the connection first that became idle last.
    let (mut first, mut second) = (pooled.pop().unwrap().1, pooled.pop().unwrap().1);
    let mut client = connect(node.address("in"));
    let get = "GET /a HTTP/1.1\r\nHost: a\r\nAuthorization: Negotiate x\r\n\r\n";
    client.send(format!("{get}POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")).unwrap();
    assert!(first.read_head().unwrap().unwrap().start.starts_with("GET /a"));
    node.pause();
    first.send(OK).unwrap();
    drop(first);
    node.signal("CONT");
    assert!(second.read_head().unwrap().unwrap().start.starts_with("POST "));
    second.send(OK).unwrap();
    assert_eq!((client.response().unwrap().status, client.response().unwrap().status), (200, 200));
    drop(client);
    assert!(second.read_head().unwrap().is_none(), "the POST was sent twice");
}
