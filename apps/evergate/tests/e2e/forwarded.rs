//! Clients behind a proxy of `trust_forwarded`: rules, stickiness, rate limits and the log have their addresses.

use super::backend::Backend;
use super::client::{connect, connect_from};
use super::node::{Folder, eventually};
use crate::support::{Port, Process, plain_at};
use std::net::SocketAddr;

const PROXIES: &str = "trust_forwarded = [\"127.0.1.0/24\", \"10.0.0.0/8\"]\n";
const RULES: &str = "[[rules]]\nname = \"denied\"\nwhen = 'client.ip == \"192.0.2.66\"'\ndeny = 403\n\
    [[rules]]\nname = \"slow\"\nwhen = 'path == \"/slow\"'\nrate_limit = { requests_per_s = 1, burst = 1 }\n";

struct Gateway {
    backends: Vec<Backend>,
    folder: Folder,
    at: SocketAddr,
    _process: Process,
}

fn start() -> Gateway {
    let backends: Vec<Backend> = ["one", "two", "three"].iter().map(|name| Backend::new(name)).collect();
    let (folder, port) = (Folder::new(), Port::new());
    let at = port.address();
    let addresses: Vec<_> = backends.iter().map(Backend::address).collect();
    let config = format!(
        "[node]\nworkers = 2\n[logs]\naccess = \"access.log\"\n[admin]\nsocket = \"admin.sock\"\n{}{RULES}",
        plain_at(&at.to_string(), &addresses, PROXIES, "sticky = \"source\"\n")
    );
    let file = folder.write("evergate.toml", &config);
    let process = Process::start(|command| command.arg(&file));
    process.line_after(0, "ready: ");
    Gateway { backends, folder, at, _process: process }
}

fn request(path: &str, client: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\n\r\n")
}

#[test]
fn requests_of_one_proxy_have_their_own_clients() {
    let gateway = start();
    let mut proxy = connect_from([127, 0, 1, 9], gateway.at);
    let mut ask = |path: &str, client: &str| {
        proxy.send(request(path, client)).unwrap();
        let response = proxy.response().unwrap();
        (response.status, response.text())
    };
    let mut used = std::collections::BTreeSet::new();
    for last in 1..=20 {
        let client = format!("6.6.6.6, 192.0.2.{last}, 10.9.9.9");
        let served = [ask("/x", &client), ask("/x", &client)];
        assert_eq!((served[0].0, &served[0]), (200, &served[1]), "one client returns to its server");
        used.insert(served[0].1.clone());
    }
    assert_eq!(used.len(), gateway.backends.len(), "clients of one connection are spread");
    assert_eq!(ask("/x", "192.0.2.66").0, 403);
    assert_eq!([ask("/slow", "192.0.2.1").0, ask("/slow", "192.0.2.1").0], [200, 429]);
    assert_eq!(ask("/slow", "192.0.2.2").0, 200, "another client has its own limit");
    let seen = gateway.backends.iter().flat_map(Backend::seen).next().unwrap();
    let forwarded = seen.head.field("x-forwarded-for").unwrap();
    assert!(
        forwarded.starts_with("6.6.6.6, ") && forwarded.ends_with(", 10.9.9.9, 127.0.1.9"),
        "{forwarded}"
    );
    eventually("the log has the client and its proxy", || {
        let log = std::fs::read_to_string(gateway.folder.path("access.log")).unwrap_or_default();
        let of_denied = log.lines().find(|line| line.contains("\"status\":403"))?;
        assert!(of_denied.contains("\"client\":\"192.0.2.66\",\"proxy\":\"127.0.1.9:"), "{of_denied}");
        Some(())
    });
}

#[test]
fn header_of_an_unlisted_peer_is_not_trusted() {
    let gateway = start();
    let mut wire = connect(gateway.at);
    wire.send(request("/x", "192.0.2.66")).unwrap();
    assert_eq!(wire.response().unwrap().status, 200);
    let seen = gateway.backends.iter().flat_map(Backend::seen).next().unwrap();
    assert_eq!(seen.head.field("x-forwarded-for").as_deref(), Some("127.0.0.1"));
    eventually("the log has the peer", || {
        let log = std::fs::read_to_string(gateway.folder.path("access.log")).unwrap_or_default();
        let line = log.lines().next()?;
        assert!(line.contains("\"client\":\"127.0.0.1:") && !line.contains("\"proxy\""), "{line}");
        Some(())
    });
}
