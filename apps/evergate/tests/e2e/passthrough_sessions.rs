//! Passthrough in front of a pool by session: third-party clients resume their sessions at servers that share none.
//! All clients have one address.

use super::client::tcp;
use super::node::{Node, eventually};
use super::pki::tls12;
use super::session_clients::{Driven, OpenSsl, REQUEST, Seen, SessionClient, Version, curl};
use super::terminators::{NAME, Sessions, Terminators};
use Version::{Tls12, Tls13};
use evergate::control::status::SessionStatus;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

/// Policies that remember sessions.
const POLICIES: [&str; 4] = ["session_only", "sticky_least_outstanding", "lard", "sslsard"];
const LISTENER: &str = "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\nprotocol = \"passthrough\"\n\
                        pool = \"web\"\n";

/// Three terminators behind a node.
struct Front {
    node: Node,
    terminators: Terminators,
}

impl Front {
    fn new(policy: &str, sessions: Sessions) -> Front {
        let terminators = Terminators::start(3, sessions);
        let node = Node::start(&format!("{LISTENER}{}", terminators.pool(policy)));
        Front { node, terminators }
    }

    fn address(&self) -> SocketAddr {
        self.node.address("in")
    }

    fn counts(&self) -> SessionStatus {
        self.node.status().pools[0].sessions.unwrap()
    }

    /// Waits until no connection to a server is open.
    fn settle(&self) {
        eventually("all tunnels end", || {
            let pools = self.node.status().pools;
            pools[0].servers.iter().all(|server| server.outstanding == 0).then_some(())
        });
    }

    fn openssl(&self, version: Version, name: &str) -> OpenSsl {
        OpenSsl::new(&self.terminators, self.address(), version, name)
    }

    /// First handshakes of two clients at different servers: the first one's server drains in between.
    fn part(&self, clients: &mut [Box<dyn SessionClient>; 2]) -> [usize; 2] {
        let [first, second] = clients;
        let first = first.connect();
        let name = format!("web/s{}", first.server);
        assert!(self.node.cli(&["servers", "drain", &name]).0);
        let second = second.connect();
        assert!(self.node.cli(&["servers", "ready", &name]).0);
        assert!(first.server != second.server && !first.reused && !second.reused, "{first:?} {second:?}");
        [first.server, second.server]
    }

    /// Both clients resume at their own server, in turn.
    fn resume(&self, clients: &mut [Box<dyn SessionClient>; 2], homes: [usize; 2], context: &str) {
        for round in 0..4 {
            for (client, server) in clients.iter_mut().zip(homes) {
                let seen = client.connect();
                let expected = Seen { server, reused: true, version: Tls12 };
                assert_eq!(seen, expected, "{context}, round {round}");
            }
        }
    }

    /// `first`: how many of the first hellos count as without a session, and with an unknown one.
    fn check_pair(&self, mut clients: [Box<dyn SessionClient>; 2], first: [u64; 2], context: &str) {
        let homes = self.part(&mut clients);
        self.resume(&mut clients, homes, context);
        let counts = self.counts();
        assert_eq!((counts.new + counts.missed, counts.returned), (2, 8), "{context}");
        let (decided, learned) = (counts.decided, counts.learned);
        assert_eq!((decided.session, decided.address, decided.sni), (8, 2, 0), "{context}");
        assert_eq!((learned.found, [learned.unoffered, learned.unknown]), (8, first), "{context}");
        assert_eq!((learned.learned, learned.entries), (2, 3), "two sessions and an address: {context}");
    }
}

fn openssl_pair(front: &Front, version: Version) -> [Box<dyn SessionClient>; 2] {
    ["one", "two"].map(|name| Box::new(front.openssl(version, name)) as Box<dyn SessionClient>)
}

/// All connections are at one server, and all but the first resume.
fn check_single(seen: &[Seen], version: Version, context: &str) {
    assert!(!seen[0].reused, "{context}: {seen:?}");
    let expected = Seen { server: seen[0].server, reused: true, version };
    assert!(seen.len() > 1 && seen[1..].iter().all(|seen| *seen == expected), "{context}: {seen:?}");
}

#[test]
fn tls12_clients_return_to_the_server_of_their_session() {
    for policy in POLICIES {
        for sessions in [Sessions::Ids, Sessions::Tickets] {
            let front = Front::new(policy, sessions);
            front.check_pair(openssl_pair(&front, Tls12), [2, 0], &format!("openssl {policy} {sessions:?}"));
        }
    }
}

#[test]
fn go_clients_return_to_the_server_of_their_ticket() {
    let front = Front::new("sslsard", Sessions::Tickets);
    let client =
        || Box::new(Driven::go(&front.terminators, front.address(), Tls12)) as Box<dyn SessionClient>;
    // Go's client sends a random session id before it has a ticket.
    front.check_pair([client(), client()], [0, 2], "go");
}

#[test]
fn openssl_reconnects_with_its_session() {
    for sessions in [Sessions::Ids, Sessions::Tickets] {
        let front = Front::new("sticky_least_outstanding", sessions);
        let output = front.openssl(Tls12, "one").with(&["-reconnect"]).run(REQUEST);
        let count = |part: &str| output.matches(part).count();
        assert_eq!((count("New, TLSv1.2"), count("Reused, TLSv1.2")), (1, 5), "{sessions:?}: {output}");
        let learned = front.counts().learned;
        assert_eq!((learned.unoffered, learned.found, learned.unknown), (1, 5, 0), "{sessions:?}");
    }
}

#[test]
fn curl_resumes_within_one_process() {
    for sessions in [Sessions::Ids, Sessions::Tickets] {
        let front = Front::new("sslsard", sessions);
        let seen = curl(&front.terminators, front.address(), Tls12, 6);
        check_single(&seen, Tls12, &format!("{sessions:?}"));
        let counts = front.counts();
        assert_eq!(
            (counts.learned.found, counts.decided.session, counts.returned),
            (5, 5, 5),
            "{sessions:?}"
        );
    }
}

/// The tests above can fail.
#[test]
fn blind_dispatch_resumes_hardly_any_session() {
    let terminators = Terminators::start(3, Sessions::Ids);
    let one_worker = "[node]\nworkers = 1\n"; // each worker has its own turn
    let node = Node::start(&format!("{one_worker}{LISTENER}{}", terminators.pool("round_robin")));
    let mut client = OpenSsl::new(&terminators, node.address("in"), Tls12, "one");
    let seen: Vec<Seen> = (0..9).map(|_| client.connect()).collect();
    assert_eq!(seen.iter().filter(|seen| seen.reused).count(), 0, "{seen:?}");
    let seen = curl(&terminators, node.address("in"), Tls12, 9);
    assert!(seen.iter().filter(|seen| seen.reused).count() <= 2, "{seen:?}");
}

/// Servers with TLS 1.3 send tickets encrypted. A client uses each one once, so its address leads it back.
#[test]
fn tls13_client_returns_by_its_address() {
    for policy in POLICIES {
        let front = Front::new(policy, Sessions::Tls13);
        let mut client = front.openssl(Tls13, "one");
        let seen: Vec<Seen> = (0..6).map(|_| client.connect()).collect();
        check_single(&seen, Tls13, policy);
        let counts = front.counts();
        assert_eq!((counts.new, counts.returned, counts.missed), (1, 5, 0), "{policy}");
        assert_eq!((counts.learned.found, counts.learned.unknown), (0, 5), "{policy}");
        assert_eq!((counts.decided.session, counts.decided.address), (0, 6), "{policy}");
    }
}

#[test]
fn go_and_curl_return_by_their_address_with_tls13() {
    let front = Front::new("sslsard", Sessions::Tls13);
    let mut client = Driven::go(&front.terminators, front.address(), Tls13);
    let seen: Vec<Seen> = (0..6).map(|_| client.connect()).collect();
    check_single(&seen, Tls13, "go");
    check_single(&curl(&front.terminators, front.address(), Tls13, 6), Tls13, "curl");
}

/// The address of both clients leads to the server of the last handshake from it.
#[test]
fn tls13_clients_of_one_address_meet_at_one_server() {
    let front = Front::new("sticky_least_outstanding", Sessions::Tls13);
    let mut clients = openssl_pair(&front, Tls13);
    let [_, server] = front.part(&mut clients);
    let seen = clients[0].connect();
    assert_eq!(seen, Seen { server, reused: false, version: Tls13 }, "a session of another server");
    for _ in 0..3 {
        for client in &mut clients {
            assert_eq!(client.connect(), Seen { server, reused: true, version: Tls13 });
        }
    }
}

#[test]
fn reload_keeps_learned_sessions() {
    let front = Front::new("sslsard", Sessions::Ids);
    let mut clients = openssl_pair(&front, Tls12);
    let homes = front.part(&mut clients);
    let changed =
        format!("{LISTENER}{}[pools.sessions]\nslice_ms = 500\n", front.terminators.pool("sslsard"));
    front.node.write(&changed);
    front.node.reload();
    front.resume(&mut clients, homes, "after a reload");
    assert_eq!(front.counts().learned.found, 8);
}

/// Documented in docs/guide/upgrade.md: the new process learns again.
#[test]
fn upgrade_starts_without_learned_sessions() {
    let front = Front::new("sticky_least_outstanding", Sessions::Ids);
    let mut client = front.openssl(Tls12, "one");
    assert!(!client.connect().reused);
    let before = client.connect();
    assert!(before.reused);
    front.settle();
    front.node.upgrade();
    assert_eq!(front.counts().learned.entries, 0);
    let first = client.connect();
    assert_eq!(first.reused, first.server == before.server);
    assert_eq!(front.counts().learned.unknown, 1);
    for _ in 0..3 {
        assert_eq!(client.connect(), Seen { reused: true, ..first });
    }
    assert_eq!(front.counts().learned.found, 3);
}

#[test]
fn refused_certificate_teaches_nothing() {
    for (sessions, version) in [(Sessions::Ids, Tls12), (Sessions::Tickets, Tls12), (Sessions::Tls13, Tls13)]
    {
        let front = Front::new("sticky_least_outstanding", sessions);
        let output = front.openssl(version, "one").with(&["-verify_return_error"]).run(REQUEST);
        assert!(output.contains("certificate verify failed"), "{sessions:?}: {output}");
        front.settle();
        let status = front.node.status();
        let counts = status.pools[0].sessions.unwrap();
        assert_eq!((counts.new, counts.learned.unoffered), (1, 1), "{sessions:?}");
        assert_eq!((counts.learned.learned, counts.learned.entries), (0, 0), "{sessions:?}");
        assert!(status.pools[0].servers.iter().all(|server| server.handshakes.is_none()), "{sessions:?}");
    }
}

/// A client that gives up behind the server's abbreviated flight (RFC 5246 section 7.2.2).
#[test]
fn fatal_alert_ends_a_learned_session() {
    let front = Front::new("sticky_least_outstanding", Sessions::Ids);
    let config = Arc::new(tls12(&front.terminators.folder));
    let mut wire = super::pki::tls(front.address(), &config, NAME);
    let Seen { server, .. } = Seen::read(&wire.get("/").unwrap().text());
    let mut stream = tcp(front.address());
    let mut connection = rustls::ClientConnection::new(config.clone(), NAME.try_into().unwrap()).unwrap();
    connection.write_tls(&mut stream).unwrap();
    let mut flight = [0; 4096];
    assert!(stream.read(&mut flight).unwrap() > 0);
    stream.write_all(&[21, 3, 3, 0, 2, 2, 40]).unwrap();
    eventually("the session is forgotten", || (front.counts().learned.forgotten == 1).then_some(()));
    drop(stream);
    let counts = front.counts();
    assert_eq!((counts.learned.found, counts.learned.entries), (1, 1), "the address is left");
    let mut wire = super::pki::tls(front.address(), &config, NAME);
    let seen = Seen::read(&wire.get("/").unwrap().text());
    assert_eq!((seen.server, seen.reused), (server, false), "the server has ended it as well");
    assert_eq!(front.counts().learned.unknown, 1);
}

#[test]
#[ignore = "needs Java: make foreign-clients"]
fn java_clients_return_to_the_server_of_their_session() {
    let java = |front: &Front, version| Driven::java(&front.terminators, front.address(), version);
    for sessions in [Sessions::Ids, Sessions::Tickets] {
        let front = Front::new("sslsard", sessions);
        let pair = [(); 2].map(|()| Box::new(java(&front, Tls12)) as Box<dyn SessionClient>);
        front.check_pair(pair, [2, 0], &format!("java {sessions:?}"));
    }
    let front = Front::new("sslsard", Sessions::Tls13);
    let mut client = java(&front, Tls13);
    let seen: Vec<Seen> = (0..6).map(|_| client.connect()).collect();
    check_single(&seen, Tls13, "java");
}
