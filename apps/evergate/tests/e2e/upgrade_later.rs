//! Events after an upgrade: reloads around it, and the ends of both processes.

use super::backend::{Backend, pattern};
use super::client::{connect, get};
use super::node::{Node, eventually, has_ended, plain};
use super::upgrade_failed::{in_handshake, lingering};
use crate::support::evergate;

/// More bytes than all buffers on the way hold.
const LONG: usize = 24_000_000;

/// A reload alone has the same effect: the connection finishes its request and serves no other client.
#[test]
fn connection_to_a_removed_server_is_not_reused() {
    let (before, now) = (Backend::new("before"), Backend::new("now"));
    let node = Node::start(&format!("[node]\nworkers = 1\n{}", plain(&[before.address()], "", "")));
    let mut wire = connect(node.address("in"));
    wire.send(format!("GET /bytes/{LONG} HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
    wire.read_head().unwrap().unwrap();
    node.write(&format!("[node]\nworkers = 1\n{}", plain(&[now.address()], "", "")));
    node.reload();
    let upgraded = node.upgrade();
    assert_eq!((upgraded.passed, upgraded.waiting.len()), (1, 0));
    assert!(wire.exactly(LONG).unwrap() == pattern(LONG));
    for _ in 0..5 {
        assert_eq!(wire.get("/x").unwrap().text(), "now");
        assert_eq!(get(node.address("in"), "/x").text(), "now");
    }
    assert_eq!(before.connections(), 1);
}

/// Connections on their way to the new process refer to rules by number, so a reload waits for them.
#[test]
fn reload_waits_until_the_old_process_has_ended() {
    let backend = Backend::new("one");
    let node = lingering(&backend, "");
    let first = node.pid();
    let stays = in_handshake(node.address("in"));
    node.begin_upgrade();
    let before = node.status().generation;
    let socket = node.folder.path("admin.sock").to_str().unwrap().to_owned();
    let reload = std::thread::spawn(move || evergate(&["reload", "--socket", &socket]));
    node.line("reload: waiting for the end of the upgrade");
    assert!(!reload.is_finished() && node.status().generation == before && !has_ended(first));
    drop(stays);
    let reloaded = reload.join().unwrap();
    let generation = format!("generation {} is in force", before + 1);
    assert!(reloaded.code == Some(0) && reloaded.out.contains(&generation), "{reloaded:?}");
    eventually("the old process ends", || has_ended(first).then_some(()));
}

/// A stop of the new process ends the service, even if connections still follow from the old process.
#[test]
fn stop_of_the_new_process_does_not_revive_the_old_one() {
    let backend = Backend::new("one");
    for signals in [1, 2] {
        let mut node = lingering(&backend, "");
        let stays = in_handshake(node.address("in"));
        node.begin_upgrade();
        let new = node.pid();
        for _ in 0..signals {
            node.signal("TERM");
            node.line("SIGTERM");
        }
        if signals == 1 {
            drop(stays);
        }
        assert!(node.wait().success(), "the old process");
        eventually("the new process ends", || has_ended(new).then_some(()));
        let lines = node.lines();
        assert!(!lines.iter().any(|line| line.contains("serves again")), "{lines:#?}");
    }
}

#[test]
fn first_signal_to_the_old_process_drops_no_connection() {
    let backend = Backend::new("one");
    let mut node = lingering(&backend, "");
    let first = node.pid();
    let stays = in_handshake(node.address("in"));
    node.begin_upgrade();
    for _ in 0..2 {
        assert!(!has_ended(first));
        std::process::Command::new("kill").args(["-TERM", &first.to_string()]).status().unwrap();
        node.line("SIGTERM");
    }
    assert!(node.wait().success());
    assert!(node.lines().iter().any(|line| line.contains("still to be passed on")));
    drop(stays);
    assert_eq!(get(node.address("plain"), "/x").text(), "one");
}

/// A new process may have a lower descriptor limit. It loses the connections beyond the limit, and no other.
#[test]
fn new_process_without_descriptors_loses_only_the_excess() {
    let backend = Backend::new("one");
    let mut node = Node::start(&plain(&[backend.address()], "", ""));
    let idle: Vec<_> = (0..200).map(|_| connect(node.address("in"))).collect();
    eventually("all are taken", || (node.status().connections.open == 200).then_some(()));
    let few = format!("ulimit -n 128\nexec {} \"$@\"", env!("CARGO_BIN_EXE_evergate"));
    let few = node.script("few", &few);
    assert_eq!(node.begin_upgrade_with(&["--binary", &few]).passed, 200);
    assert!(node.wait().success(), "the old process");
    drop(idle);
    eventually("there is room", || (node.status().connections.open == 0).then_some(()));
    let lines = node.lines();
    assert!(lines.iter().any(|line| line.contains("may not have more file descriptors")), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.contains("cannot pass")), "{lines:#?}");
    assert_eq!(get(node.address("in"), "/x").text(), "one");
}

#[test]
fn upgrade_answer_counts_passed_connections_at_a_timeout() {
    let backend = Backend::new("one");
    let node = Node::start(&format!("[timeouts]\ndrain_ms = 1\n{}", plain(&[backend.address()], "", "")));
    let idle: Vec<_> = (0..300).map(|_| connect(node.address("in"))).collect();
    eventually("all are taken", || (node.status().connections.open == 300).then_some(()));
    let first = node.pid();
    let (ok, text) = node.cli(&["upgrade"]);
    eventually("the old process ends", || has_ended(first).then_some(()));
    let reported = if ok { "serves now: it has 300 connections" } else { "were ended" };
    assert!(text.contains(reported), "{text}");
    drop(idle);
    node.adopt();
}

#[test]
fn drains_during_an_upgrade_hold_in_the_new_process() {
    let backends = [Backend::new("one"), Backend::new("two")];
    let addresses: Vec<_> = backends.iter().map(Backend::address).collect();
    let node = Node::start(&plain(&addresses, "", ""));
    assert!(node.cli(&["servers", "drain", "web/s1"]).0);
    let go = node.folder.path("go");
    let text = format!(
        "while [ ! -e {} ]; do sleep 0.01; done\nexec {} \"$@\"",
        go.display(),
        env!("CARGO_BIN_EXE_evergate")
    );
    let slow = node.script("slow", &text);
    let socket = node.folder.path("admin.sock").to_str().unwrap().to_owned();
    let upgrade = std::thread::spawn(move || evergate(&["upgrade", "--binary", &slow, "--socket", &socket]));
    node.line("upgrade: starting");
    assert!(node.cli(&["servers", "drain", "web/s0"]).0);
    assert!(node.cli(&["servers", "ready", "web/s1"]).0);
    std::fs::write(&go, "").unwrap();
    let upgraded = upgrade.join().unwrap();
    assert_eq!(upgraded.code, Some(0), "{upgraded:?}");
    node.adopt();
    for _ in 0..4 {
        assert_eq!(get(node.address("in"), "/x").text(), "two");
    }
}

/// The requests wait in the new process until the passed request frees its server.
#[test]
fn upgrade_passes_waiting_requests_within_the_server_limit() {
    let backend = Backend::new("one");
    let server =
        format!("servers = [{{ name = \"s0\", address = \"{}\", connections_max = 1 }}]", backend.address());
    let config = plain(&[backend.address()], "", "queue_timeout_ms = 20000");
    let servers = config.lines().find(|line| line.starts_with("servers = ")).unwrap().to_owned();
    let node = Node::start(&format!("[node]\nworkers = 1\n{}", config.replace(&servers, &server)));
    let mut held: Vec<_> = (0..4).map(|_| connect(node.address("in"))).collect();
    for (index, wire) in held.iter_mut().enumerate() {
        wire.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let queued = index as u64;
        eventually("it waits", || {
            (node.metric("evergate_requests_queued") == queued && backend.requests() == 1).then_some(())
        });
    }
    let upgraded = node.upgrade();
    assert_eq!((upgraded.passed, upgraded.waiting.len()), (4, 0), "{upgraded:?}");
    eventually("they wait here", || (node.metric("evergate_requests_queued") == 3).then_some(()));
    assert_eq!(backend.requests(), 1);
    backend.open_gate();
    for mut wire in held {
        assert_eq!(wire.response().unwrap().text(), "one");
    }
}
