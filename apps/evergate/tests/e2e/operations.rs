//! Changes and failures under load, which no client notices.

use super::backend::{Backend, pattern};
use super::client::{Wire, connect, get};
use super::node::{Node, eventually, plain};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Client threads that send requests over persistent connections until `finish`.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    fn start(at: SocketAddr) -> Load {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let client = |_| {
            let (stop, done) = (stop.clone(), done.clone());
            std::thread::spawn(move || {
                let mut failures = Vec::new();
                let mut wire = connect(at);
                while !stop.load(Ordering::SeqCst) {
                    match wire.get("/x") {
                        Ok(response) if response.status == 200 => {
                            if response.head.field("connection").is_some_and(|value| value == "close") {
                                wire = connect(at);
                            }
                        }
                        other => {
                            failures.push(format!("{other:?}"));
                            wire = connect(at);
                        }
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                }
                failures
            })
        };
        let threads = (0..8).map(client).collect();
        Load { stop, done, threads }
    }

    /// Waits until `count` more requests are done.
    fn more(&self, count: u64) {
        let until = self.done.load(Ordering::SeqCst) + count;
        eventually("requests continue", || (self.done.load(Ordering::SeqCst) >= until).then_some(()));
    }

    fn finish(self) -> Vec<String> {
        self.stop.store(true, Ordering::SeqCst);
        self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }
}

#[test]
fn reloads_under_load_fail_no_request() {
    let (one, two) = (Backend::new("one"), Backend::new("two"));
    let first = plain(&[one.address()], "", "");
    let second = plain(&[two.address(), one.address()], "", "");
    let node = Node::start(&first);
    let load = Load::start(node.address("in"));
    for round in 0..20 {
        let (config, valid) = match round % 3 {
            0 => (second.as_str(), true),
            1 => ("[[listeners]]\nname = \"in\"\n", false),
            _ => (first.as_str(), true),
        };
        node.write(config);
        let (ok, text) = node.cli(&["reload"]);
        assert_eq!(ok, valid, "{text}");
        load.more(20);
    }
    let failures = load.finish();
    assert!(failures.is_empty(), "{} failures: {:?}", failures.len(), failures.first());
    assert!(one.requests() > 0 && two.requests() > 0);
}

#[test]
fn connections_of_a_removed_listener_get_one_more_answer() {
    let backend = Backend::new("one");
    let first = plain(&[backend.address()], "", "");
    let node = Node::start(&first);
    let mut kept = connect(node.address("in"));
    let answer = kept.get("/x").unwrap();
    assert_eq!((answer.status, answer.head.field("connection")), (200, None));
    node.write(&first.replace("name = \"in\"", "name = \"other\""));
    node.reload();
    let last = kept.get("/x").unwrap();
    assert_eq!((last.status, last.head.field("connection").as_deref()), (200, Some("close")));
    assert!(kept.is_closed());
    assert_eq!(get(node.address("in"), "/x").status, 200, "of the other name, at the same port");
}

#[test]
fn server_that_dies_under_load_fails_no_get() {
    let (one, two) = (Backend::new("one"), Backend::new("two"));
    let node = Node::start(&plain(&[one.address(), two.address()], "", ""));
    let load = Load::start(node.address("in"));
    load.more(200);
    one.die();
    load.more(500);
    let failures = load.finish();
    assert!(failures.is_empty(), "{} failures: {:?}", failures.len(), failures.first());
}

#[test]
fn post_on_a_dying_server_is_answered_502_and_not_repeated() {
    let (one, two) = (Backend::new("one"), Backend::new("two"));
    let node = Node::start(&plain(&[one.address(), two.address()], "", ""));
    let mut wire = connect(node.address("in"));
    wire.send("POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc").unwrap();
    let has_it = eventually("the request arrives", || {
        [&one, &two].into_iter().find(|backend| !backend.seen().is_empty())
    });
    has_it.die();
    assert_eq!(wire.response().unwrap().status, 502);
    assert_eq!(one.requests() + two.requests(), 1);
    assert_eq!(get(node.address("in"), "/x").status, 200);
}

/// Server that answers the first request of a connection for `/warm`, and executes each request for `/once` without
/// an answer.
fn forgetful(executed: Arc<AtomicU64>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let executed = executed.clone();
            std::thread::spawn(move || {
                let mut wire = Wire::new(stream);
                while let Ok(Some(head)) = wire.read_head() {
                    if head.start.contains("/once") {
                        executed.fetch_add(1, Ordering::SeqCst);
                        return;
                    }
                    let _ = wire.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                }
            });
        }
    });
    address
}

#[test]
fn retries_count_executions_on_persistent_connections() {
    for retries in 0..=2 {
        let executed = Arc::new(AtomicU64::new(0));
        let server = forgetful(executed.clone());
        let pool = format!("retries = {retries}");
        let node = Node::start(&format!("[node]\nworkers = 1\n{}", plain(&[server], "", &pool)));
        let at = node.address("in");
        for kept in [false, true] {
            if kept {
                assert_eq!(get(at, "/warm").status, 200);
            }
            executed.store(0, Ordering::SeqCst);
            assert_eq!(get(at, "/once").status, 502);
            assert_eq!(executed.load(Ordering::SeqCst), retries + 1, "kept: {kept}");
        }
        assert_eq!(node.metric("evergate_connections_reused_total"), 1);
    }
}

#[test]
fn server_failures_are_counted_without_stale_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // One whole answer per connection: a second request finds it closed. `/short` is answered with a
            // truncated body.
            let mut wire = Wire::new(stream);
            let Ok(Some(head)) = wire.read_head() else { continue };
            let length = if head.start.contains("/short") { 10 } else { 3 };
            wire.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nabc")).unwrap();
            if length == 3 {
                let _ = wire.read_head();
            }
        }
    });
    let node = Node::start(&format!("[node]\nworkers = 1\n{}", plain(&[server], "", "")));
    let at = node.address("in");
    let counts = || {
        let metric = |name| node.metric(&format!("evergate_{name}_total"));
        (metric("connections_reused"), metric("server_failures"))
    };
    assert_eq!((get(at, "/x").status, get(at, "/x").status), (200, 200));
    assert_eq!(counts(), (1, 0), "the second was tried on the first one's connection");
    assert!(connect(at).get("/short").is_err());
    assert_eq!(counts().1, 1);
}

#[test]
fn terminated_node_finishes_downloads_and_refuses_clients() {
    const COUNT: usize = 20_000_000;
    let backend = Backend::new("one");
    let mut node = Node::start(&plain(&[backend.address()], "", ""));
    let at = node.address("in");
    let mut download = connect(at);
    download.send(format!("GET /bytes/{COUNT} HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
    assert!(download.fill().unwrap());
    node.signal("TERM");
    node.line("draining");
    eventually("connects are refused", || TcpStream::connect(at).is_err().then_some(()));
    assert!(download.response().unwrap().body == pattern(COUNT));
    assert!(download.is_closed());
    assert!(node.wait().success());
}

#[test]
fn drained_server_gets_no_new_requests_and_finishes_the_old() {
    let (one, two) = (Backend::new("one"), Backend::new("two"));
    let node = Node::start(&plain(&[one.address(), two.address()], "", ""));
    let at = node.address("in");
    let mut held = connect(at);
    held.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let on_one = eventually("the request arrives", || match (one.requests(), two.requests()) {
        (0, 0) => None,
        (on_one, _) => Some(on_one == 1),
    });
    let (drained, other, name) = if on_one { (&one, "two", "web/s0") } else { (&two, "one", "web/s1") };
    let (ok, text) = node.cli(&["servers", "drain", name]);
    assert!(ok, "{text}");
    for _ in 0..50 {
        assert_eq!(get(at, "/x").text(), other);
    }
    drained.open_gate();
    assert_eq!(held.response().unwrap().status, 200);
    assert_eq!(drained.requests(), 1);
    assert!(node.cli(&["servers", "ready", name]).0);
    eventually("it serves again", || (get(at, "/x").text() != other).then_some(()));
}
