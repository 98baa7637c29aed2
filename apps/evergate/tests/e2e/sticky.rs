//! Sticky pools: a client returns to its server by cookie or by address, also while the server is full, but not after
//! it is gone.

use super::backend::Backend;
use super::client::{Wire, connect, connect_from, get};
use super::node::{Node, eventually, plain};
use std::net::TcpStream;

const NAMES: [&str; 3] = ["one", "two", "three"];

/// Servers and a node in front of them. `limit`: concurrent requests per server.
fn start(pool: &str, limit: Option<u32>) -> (Vec<Backend>, Node) {
    let backends: Vec<Backend> = NAMES.iter().map(|name| Backend::new(name)).collect();
    let addresses: Vec<_> = backends.iter().map(Backend::address).collect();
    let config = plain(&addresses, "", pool) + "[node]\nworkers = 2\n";
    let config = match limit {
        Some(limit) => config.replace("\" }", &format!("\", connections_max = {limit} }}")),
        None => config,
    };
    (backends, Node::start(&config))
}

fn ask(wire: &mut Wire<TcpStream>, path: &str, cookie: &str) {
    wire.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nCookie: {cookie}\r\n\r\n")).unwrap();
}

/// Sends a request with a cookie on a new connection; the server's name, and the cookie that it set.
fn served(node: &Node, cookie: &str) -> (String, Option<String>) {
    let mut wire = connect(node.address("in"));
    ask(&mut wire, "/x", cookie);
    let response = wire.response().unwrap();
    let set = response.head.field("set-cookie");
    (response.text(), set.map(|set| set.split(';').next().unwrap().to_owned()))
}

#[test]
fn cookie_leads_to_its_server_and_a_forged_one_is_ignored() {
    let (_backends, node) = start("sticky = \"cookie\"", None);
    let mut known = Vec::new();
    eventually("each server has set its cookie", || {
        let (name, set) = served(&node, "");
        let cookie = set.expect("a client without a cookie gets one");
        if !known.iter().any(|(of, _)| *of == name) {
            known.push((name, cookie));
        }
        (known.len() == NAMES.len()).then_some(())
    });
    for (name, cookie) in &known {
        for _ in 0..4 {
            assert_eq!(served(&node, &format!("a=b; {cookie}")), (name.clone(), None), "{cookie}");
        }
    }
    let (_, set) = served(&node, "EVERGATE_web=forged");
    assert!(known.iter().any(|(_, cookie)| set.as_ref() == Some(cookie)), "{set:?}");
}

#[test]
fn address_leads_to_one_server() {
    let (_backends, node) = start("sticky = \"source\"", None);
    let mut used = std::collections::BTreeSet::new();
    for last in 1..=20 {
        let served: Vec<String> = (0..3)
            .map(|_| {
                let mut wire = connect_from([127, 0, 1, last], node.address("in"));
                wire.get("/x").unwrap().text()
            })
            .collect();
        assert!(served.iter().all(|name| *name == served[0]), "{last}: {served:?}");
        used.insert(served[0].clone());
    }
    assert_eq!(used.len(), NAMES.len(), "20 clients are spread");
}

/// A server that one request of a client occupies until the gate opens, and a second request of this client that
/// waits.
fn one_waits(backends: &[Backend], node: &Node) -> (usize, Wire<TcpStream>, Wire<TcpStream>) {
    let (name, cookie) = served(node, "");
    let cookie = cookie.unwrap();
    let at = NAMES.iter().position(|known| *known == name).unwrap();
    let mut first = connect(node.address("in"));
    let before = backends[at].requests();
    ask(&mut first, "/hold", &cookie);
    eventually("it is busy", || (backends[at].requests() == before + 1).then_some(()));
    let mut second = connect(node.address("in"));
    ask(&mut second, "/second", &cookie);
    eventually("it waits", || (node.metric("evergate_requests_queued") == 1).then_some(()));
    (at, first, second)
}

#[test]
fn client_with_a_sticky_server_waits_while_it_is_full() {
    let (backends, node) = start("sticky = \"cookie\"", Some(1));
    let (at, mut first, mut second) = one_waits(&backends, &node);
    let name = NAMES[at];
    // A request that another server may serve does not wait.
    assert_ne!(get(node.address("in"), "/x").text(), name);
    backends[at].open_gate();
    assert_eq!(first.response().unwrap().text(), name);
    let answer = second.response().unwrap();
    assert_eq!((answer.text(), answer.head.field("set-cookie")), (name.to_owned(), None));
    eventually("the queue is empty", || (node.metric("evergate_requests_queued") == 0).then_some(()));
}

#[test]
fn client_of_a_drained_sticky_server_moves_to_another() {
    let (backends, node) = start("sticky = \"cookie\"", Some(1));
    let (at, mut first, mut second) = one_waits(&backends, &node);
    let name = NAMES[at];
    let (done, reported) = node.cli(&["servers", "drain", &format!("web/s{at}")]);
    assert!(done, "{reported}");
    let answer = second.response().unwrap();
    assert_ne!(answer.text(), name);
    assert!(answer.head.field("set-cookie").is_some());
    backends[at].open_gate();
    assert_eq!(first.response().unwrap().text(), name);
}
