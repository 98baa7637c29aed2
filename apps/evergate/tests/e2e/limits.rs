//! Limits: what a client may use, and the answer beyond each limit.

use super::backend::Backend;
use super::client::{Wire, connect, connect_from, get, is_refused, try_connect};
use super::node::{Folder, Node, eventually, plain, web};
use super::pki::{certificate, client, https, issue, tls};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

fn node(listener: &str, more: &str) -> (Backend, Node) {
    let backend = Backend::new("one");
    let node = Node::start(&format!("{}{more}", plain(&[backend.address()], listener, "")));
    (backend, node)
}

/// Number of connections and requests that a limit has ended, by its reason.
fn ended(node: &Node, reason: &str) -> u64 {
    node.metric(&format!("evergate_ended_total{{reason=\"{reason}\"}}"))
}

#[test]
fn late_head_or_body_is_answered_with_408() {
    let (backend, node) =
        node("", "[timeouts]\nrequest_head_ms = 300\nrequest_body_ms = 300\nkeep_alive_ms = 500\n");
    let started = Instant::now();
    let mut wire = connect(node.address("in"));
    wire.send("GET / HTTP/1.1\r\nHost: a\r\nX-").unwrap();
    let answer = String::from_utf8_lossy(&wire.until_closed()).into_owned();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer:?}");
    let mut silent = connect(node.address("in"));
    assert!(silent.is_closed(), "a silent connection ends without an answer");
    let mut begun = connect(node.address("in"));
    begun.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf").unwrap();
    assert_eq!(begun.response().unwrap().status, 408);
    assert_eq!((ended(&node, "request_head_timeout"), ended(&node, "request_body_timeout")), (1, 1));
    assert!(started.elapsed() > Duration::from_millis(300) && started.elapsed() < Duration::from_secs(10));
    assert!(backend.seen().is_empty(), "no request was whole");
}

#[test]
fn handshake_that_does_not_end_in_time_is_closed() {
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let backend = Backend::new("one");
    let config = format!(
        "{}{}{}[timeouts]\nhandshake_ms = 300\n",
        https(""),
        certificate("site"),
        web(&[backend.address()], "")
    );
    let node = Node::start_in(folder, &config);
    let mut silent = connect(node.address("in"));
    let mut begun = connect(node.address("in"));
    begun.send([22, 3, 1, 2, 0, 1, 0]).unwrap();
    for wire in [&mut silent, &mut begun] {
        assert!(wire.until_closed().len() < 100);
    }
    eventually("both are gone", || (node.metric("evergate_connections") == 0).then_some(()));
    assert_eq!(ended(&node, "handshake_timeout"), 2);
}

#[test]
fn bodies_heads_and_rates_beyond_their_bounds_are_refused() {
    let rule = "[[rules]]\nname = \"slow\"\nwhen = 'path == \"/slow\"'\n\
                rate_limit = { requests_per_s = 1, burst = 2 }\n";
    let limits = "limits = { body_bytes_max = 1000, headers_max = 20, head_bytes_max = 4096 }";
    let (backend, node) = node(limits, rule);
    let at = node.address("in");
    assert_eq!(connect(at).post("/echo", &[b'x'; 1000]).unwrap().status, 200);
    assert_eq!(connect(at).post("/echo", &[b'x'; 1001]).unwrap().status, 413);
    let mut chunked = connect(at);
    chunked.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    chunked.send(format!("258\r\n{0}\r\n258\r\n{0}\r\n0\r\n\r\n", "x".repeat(600))).unwrap();
    assert_eq!(chunked.response().unwrap().status, 413);
    for fields in ["X-A: b\r\n".repeat(30), format!("X-A: {}\r\n", "b".repeat(5000))] {
        let mut wire = connect(at);
        wire.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).unwrap();
        assert_eq!(wire.response().unwrap().status, 431);
    }
    let statuses: Vec<u16> = (0..6).map(|_| get(at, "/slow").status).collect();
    assert!(statuses[..2] == [200, 200] && statuses.contains(&429), "{statuses:?}");
    let refused = statuses.iter().filter(|status| **status == 429).count() as u64;
    assert_eq!(get(at, "/x").status, 200);
    assert_eq!(
        get(at, &format!("/{}", "x".repeat(9000))).status,
        431,
        "the head's bound is below the target's"
    );
    let counted = ["body_too_long", "too_many_headers", "head_too_large", "rate_limited"];
    assert_eq!(counted.map(|reason| ended(&node, reason)), [2, 1, 2, refused]);
    assert!(backend.seen().iter().all(|seen| seen.body.len() <= 1000));
}

#[test]
fn target_beyond_its_bound_is_refused_with_414() {
    let (backend, node) = node("limits = { head_bytes_max = 32768 }", "");
    assert_eq!(get(node.address("in"), &format!("/{}", "x".repeat(9000))).status, 414);
    assert_eq!((ended(&node, "target_too_long"), backend.requests()), (1, 0));
}

/// Clients that do not read occupy buffers. At the limit the node ends one of them for the next, and the worker's
/// other clients continue.
#[test]
fn buffers_for_slow_clients_are_bounded() {
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let backend = Backend::new("one");
    let config = format!(
        "{}{}{}[node]\nworkers = 256\n[limits]\nbuffers_max_mb = 16\n", // 64 KiB for each worker
        https(""),
        certificate("site"),
        web(&[backend.address()], "")
    );
    let node = Node::start_in(folder, &config);
    let client = std::sync::Arc::new(client(None));
    let mut slow = Vec::new();
    eventually("the bound is met", || {
        let mut wire = tls(node.address("in"), &client, "site.example");
        wire.send("GET /bytes/30000000 HTTP/1.1\r\nHost: site.example\r\n\r\n").unwrap();
        slow.push(wire); // neither read nor closed
        let dropped = ended(&node, "buffers_full");
        (dropped > 0 && slow.len() as u64 > dropped + 1).then_some(())
    });
    eventually("all other connections are open", || {
        let dropped = ended(&node, "buffers_full");
        (node.metric("evergate_connections") + dropped == slow.len() as u64).then_some(())
    });
    drop(slow);
    eventually("their buffers are free again", || {
        let mut wire = tls(node.address("in"), &client, "site.example");
        (wire.get("/x").ok()?.status == 200).then_some(())
    });
}

/// A rule waits for bodies that never end. The node ends such requests at the limit, and serves other requests.
#[test]
fn buffers_for_unfinished_requests_are_bounded() {
    let rule = "[[rules]]\nname = \"r\"\nwhen = 'json(\"/a\") == \"x\"'\ndeny = 403\n";
    let (backend, node) = node(
        "",
        &format!("{rule}[node]\nworkers = 1\n[limits]\nbuffers_max_mb = 16\nbody_prefix_bytes = 4000000\n"),
    );
    let head = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
                Content-Length: 3000000\r\n\r\n{\"b\": \"";
    let mut unfinished = Vec::new();
    eventually("the bound is met", || {
        let mut wire = connect(node.address("in"));
        let _ = wire.send([head.as_bytes(), &[b'y'; 2_000_000]].concat()); // the node may end it meanwhile
        unfinished.push(wire);
        (ended(&node, "buffers_full") > 0).then_some(())
    });
    assert!(unfinished.len() > 4, "{} are more than allowed", unfinished.len());
    assert_eq!((get(node.address("in"), "/x").status, backend.requests()), (200, 1));
}

/// Many new clients do not delay a worker's existing clients: it makes `handshakes_per_turn` handshakes, and then
/// polls again.
#[test]
fn turn_makes_at_most_the_configured_number_of_handshakes() {
    const CLIENTS: u64 = 60;
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let backend = Backend::new("one");
    let config = format!(
        "{}{}{}[node]\nworkers = 1\n[limits]\nhandshakes_per_turn = 1\n",
        https(""),
        certificate("site"),
        web(&[backend.address()], "")
    );
    let node = Node::start_in(folder, &config);
    let client = std::sync::Arc::new(client(None));
    let before = node.metric("evergate_worker_turns_total");
    node.pause(); // all hellos have arrived when it continues
    let mut wires: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut wire = tls(node.address("in"), &client, "site.example");
            wire.stream.conn.write_tls(&mut wire.stream.sock).unwrap();
            wire
        })
        .collect();
    node.signal("CONT");
    for wire in &mut wires {
        let tls = &mut wire.stream;
        while tls.conn.is_handshaking() {
            assert!(tls.conn.read_tls(&mut tls.sock).unwrap() > 0);
            tls.conn.process_new_packets().unwrap();
        }
    }
    // No client has answered: only their handshakes have taken turns.
    let turns = node.metric("evergate_worker_turns_total") - before;
    assert!(turns >= CLIENTS, "{turns} turns for {CLIENTS} handshakes");
    for wire in &mut wires {
        assert_eq!(wire.get("/x").unwrap().status, 200);
    }
    assert_eq!(node.metric("evergate_handshakes_total"), CLIENTS);
}

/// Clients whose requests the server holds until its gate opens.
fn busy(backend: &Backend, at: SocketAddr, count: usize) -> Vec<Wire<TcpStream>> {
    let before = backend.requests();
    let ask = |_| {
        let mut wire = connect(at);
        wire.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        wire
    };
    let wires = (0..count).map(ask).collect();
    eventually("the server has all requests", || (backend.requests() == before + count as u64).then_some(()));
    wires
}

/// Clients that were served once.
fn idle(at: SocketAddr, count: usize) -> Vec<Wire<TcpStream>> {
    let serve = |_| {
        let mut wire = connect(at);
        assert_eq!(wire.get("/x").unwrap().status, 200);
        wire
    };
    (0..count).map(serve).collect()
}

#[test]
fn connections_beyond_the_limit_are_refused_and_forgotten() {
    let (backend, node) = node("", "[limits]\nconnections_max = 50\n");
    let at = node.address("in");
    let mut kept = busy(&backend, at, 50);
    let extra: Vec<_> = (0..100).map(|_| try_connect(at)).collect();
    assert!(extra.into_iter().all(|wire| wire.map_or(true, |mut wire| wire.is_closed())));
    assert_eq!(node.metric("evergate_connections_refused_total"), 100);
    assert_eq!((ended(&node, "connections_max"), ended(&node, "evicted")), (100, 0));
    backend.open_gate();
    for wire in &mut kept {
        assert_eq!(wire.response().unwrap().status, 200);
    }
    drop(kept);
    eventually("room", || (node.metric("evergate_connections") == 0).then_some(()));
    assert_eq!(get(at, "/x").status, 200);
}

#[test]
fn longest_idle_connection_makes_room_for_a_new_one() {
    let (_backend, node) = node("", "[node]\nworkers = 1\n[limits]\nconnections_max = 4\n");
    let at = node.address("in");
    let mut kept = idle(at, 4);
    assert_eq!(node.metric("evergate_connections_evictable"), 4);
    kept.extend(idle(at, 1));
    assert!(!kept[0].fill().unwrap(), "the first one ends in order");
    assert_eq!(kept[1].get("/x").unwrap().status, 200); // from now on the newest
    kept.extend(idle(at, 1));
    assert!(!kept[2].fill().unwrap());
    for number in [1, 3, 4, 5] {
        assert_eq!(kept[number].get("/x").unwrap().status, 200);
    }
    assert_eq!(node.metric("evergate_connections_evicted_total{state=\"idle\"}"), 2);
    assert_eq!((ended(&node, "evicted"), ended(&node, "connections_max")), (2, 0));
    assert_eq!(node.metric("evergate_connections"), 4);
}

#[test]
fn silent_connection_makes_room_for_a_new_one() {
    let (_backend, node) = node("", "[node]\nworkers = 1\n[limits]\nconnections_max = 3\n");
    let at = node.address("in");
    let mut silent: Vec<_> = (0..3).map(|_| connect(at)).collect();
    assert_eq!(connect(at).get("/x").unwrap().status, 200);
    assert!(!silent[0].fill().unwrap());
    for wire in &mut silent[1..] {
        assert_eq!(wire.get("/x").unwrap().status, 200);
    }
    assert_eq!(node.metric("evergate_connections_evicted_total{state=\"silent\"}"), 1);
}

#[test]
fn evicted_tls_connection_gets_close_notify() {
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let backend = Backend::new("one");
    let more = "[node]\nworkers = 1\n[limits]\nconnections_max = 1\n";
    let config = format!("{}{}{}{more}", https(""), certificate("site"), web(&[backend.address()], ""));
    let node = Node::start_in(folder, &config);
    let client = std::sync::Arc::new(client(None));
    let mut first = tls(node.address("in"), &client, "site.example");
    assert_eq!(first.get("/x").unwrap().status, 200);
    let mut second = tls(node.address("in"), &client, "site.example");
    assert_eq!(second.get("/x").unwrap().status, 200);
    assert!(!first.fill().unwrap(), "an end without close_notify would be an error");
}

#[test]
fn tunnels_and_requests_under_way_are_never_evicted() {
    let backend = Backend::new("one");
    let config = plain(&[backend.address()], "", "") + "[node]\nworkers = 1\n[limits]\nconnections_max = 3\n";
    let tunnel =
        "[[listeners]]\nname = \"raw\"\naddress = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"web\"\n";
    let node = Node::start(&format!("{config}{tunnel}"));
    let mut tunnels = idle(node.address("raw"), 2);
    let mut request = busy(&backend, node.address("in"), 1);
    assert!(is_refused(node.address("in")) && is_refused(node.address("raw")));
    assert_eq!((ended(&node, "connections_max"), ended(&node, "evicted")), (2, 0));
    backend.open_gate();
    assert_eq!(request[0].response().unwrap().status, 200);
    assert!(!is_refused(node.address("in")), "the connection is idle now");
    for tunnel in &mut tunnels {
        assert_eq!(tunnel.get("/x").unwrap().status, 200);
    }
}

#[test]
fn source_at_its_limit_evicts_its_own_connections_on_any_worker() {
    let (_backend, node) = node("limits = { connections_per_source_max = 5 }", "");
    let at = node.address("in");
    let mut other = connect_from([127, 0, 0, 7], at);
    assert_eq!(other.get("/x").unwrap().status, 200);
    let mut kept = idle(at, 5);
    for evicted in 1..=20 {
        kept.extend(idle(at, 1));
        eventually("one more is evicted", || (ended(&node, "evicted") == evicted).then_some(()));
    }
    assert_eq!(other.get("/x").unwrap().status, 200, "the longest idle one, but of another source");
    assert_eq!(node.metric("evergate_connections_refused_total"), 0);
    assert_eq!(node.metric("evergate_connections"), 6);
}

#[test]
fn listener_at_its_limit_evicts_connections_of_any_worker() {
    for (listener, more) in
        [("limits = { connections_max = 5 }", ""), ("", "[limits]\nconnections_max = 5\n")]
    {
        let (_backend, node) = node(listener, more);
        let at = node.address("in");
        let mut kept = idle(at, 5);
        for evicted in 1..=20 {
            kept.extend(idle(at, 1));
            eventually("one more is evicted", || (ended(&node, "evicted") == evicted).then_some(()));
        }
        assert_eq!(node.metric("evergate_connections_refused_total"), 0, "{more}");
        assert_eq!(node.metric("evergate_connections"), 5, "{more}");
    }
}

#[test]
fn responses_near_the_limit_carry_connection_close() {
    let (backend, node) = node("", "[node]\nworkers = 1\n[limits]\nconnections_max = 64\n");
    let at = node.address("in");
    let mut wires = busy(&backend, at, 63);
    wires.extend(busy(&backend, at, 1));
    backend.open_gate();
    for (number, wire) in wires.iter_mut().enumerate() {
        let response = wire.response().unwrap();
        let closes = response.head.field("connection").as_deref() == Some("close");
        assert_eq!((response.status, closes), (200, number == 63), "connection {number}");
    }
    assert!(!wires[63].fill().unwrap());
    assert_eq!(wires[0].get("/x").unwrap().head.field("connection"), None, "others could make room");
}

#[test]
fn idle_server_connection_is_not_used_beyond_its_time() {
    let backend = Backend::new("one");
    let node = Node::start(&plain(&[backend.address()], "", "keep_alive_idle_ms = 1"));
    let mut wire = connect(node.address("in"));
    for count in 1..=20 {
        assert_eq!(wire.get("/x").unwrap().status, 200);
        assert_eq!(backend.connections(), count);
        std::thread::sleep(Duration::from_millis(3));
    }
}

#[test]
fn one_source_gets_no_more_than_its_share() {
    let (backend, node) = node("limits = { connections_per_source_max = 5 }", "");
    let at = node.address("in");
    let _kept = busy(&backend, at, 5);
    assert!(is_refused(at));
    backend.open_gate();
    eventually("a place of its own again", || try_connect(at).ok()?.get("/x").ok());
}

#[test]
fn new_per_source_limit_counts_existing_connections() {
    let backend = Backend::new("one");
    let config = |limits: &str| plain(&[backend.address()], limits, "");
    let node = Node::start(&config(""));
    let at = node.address("in");
    let set = |most: usize| {
        node.write(&config(&format!("limits = {{ connections_per_source_max = {most} }}")));
        node.reload();
    };
    let _kept = busy(&backend, at, 5);
    set(5);
    eventually("there is no sixth", || is_refused(at).then_some(()));
    set(6);
    eventually("the five count once each", || try_connect(at).ok()?.get("/x").ok());
    set(0);
    eventually("there is no bound", || {
        let mut wires = [try_connect(at).ok()?, try_connect(at).ok()?, try_connect(at).ok()?];
        wires.iter_mut().all(|wire| wire.get("/x").is_ok()).then_some(())
    });
}

#[test]
fn client_that_does_not_read_blocks_no_client_and_little_memory() {
    let (_backend, node) = node("", "");
    let at = node.address("in");
    let before = node.metric("process_resident_memory_bytes");
    let mut slow: Vec<_> = (0..8).map(|_| connect(at)).collect();
    for wire in &mut slow {
        wire.send("GET /bytes/30000000 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert!(wire.fill().unwrap());
    }
    for _ in 0..200 {
        assert_eq!(get(at, "/x").text(), "one");
    }
    let grown = node.metric("process_resident_memory_bytes").saturating_sub(before);
    assert!(grown < 64 << 20, "{} MiB for 240 MB that wait", grown >> 20);
}

#[test]
fn request_that_waits_too_long_for_a_server_is_answered_503() {
    let backend = Backend::new("one");
    // The wait is longer than the connect timeout.
    let pool = "queue_timeout_ms = 400\nconnect_timeout_ms = 50";
    let config = plain(&[backend.address()], "", pool).replace("\" }", "\", connections_max = 1 }");
    let node = Node::start(&config);
    let at = node.address("in");
    let mut first = connect(at);
    first.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("the server has its one request", || (backend.requests() == 1).then_some(()));
    let late = get(at, "/late");
    assert_eq!(late.status, 503, "{}", late.text());
    assert!(late.text().contains("queue_timeout"), "{}", late.text());
    assert_eq!(node.metric("evergate_pool_unavailable_total{pool=\"web\"}"), 1);
    eventually("the queue is empty", || (node.metric("evergate_requests_queued") == 0).then_some(()));
    backend.open_gate();
    assert_eq!(first.response().unwrap().text(), "one");
    eventually("there is room again", || (get(at, "/x").status == 200).then_some(()));
    assert_eq!(backend.requests(), 2, "the late request never got there");
}

#[test]
fn body_received_while_its_request_waits_is_forwarded_at_once() {
    let backend = Backend::new("one");
    let config = plain(&[backend.address()], "", "").replace("\" }", "\", connections_max = 1 }")
        + "[node]\nworkers = 1\n"
        + "[timeouts]\nrequest_body_ms = 3600000\n"; // no timer forwards the body
    let node = Node::start(&config);
    let at = node.address("in");
    let mut first = connect(at);
    first.send("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("the server has its one request", || (backend.requests() == 1).then_some(()));
    let mut second = connect(at);
    second.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n").unwrap();
    eventually("it waits", || (node.metric("evergate_requests_queued") == 1).then_some(()));
    let before = node.metric("evergate_worker_turns_total");
    second.send("hello").unwrap();
    eventually("the worker has read the body", || {
        (node.metric("evergate_worker_turns_total") > before + 10).then_some(())
    });
    backend.open_gate();
    assert_eq!(first.response().unwrap().text(), "one");
    assert_eq!(second.response().unwrap().text(), "hello");
}

#[test]
fn longest_waiting_request_of_any_worker_is_served_first() {
    const CLIENTS: u64 = 16; // all on one worker of two: once in 32,768 runs
    let backend = Backend::new("one");
    let config = plain(&[backend.address()], "", "").replace("\" }", "\", connections_max = 1 }")
        + "[node]\nworkers = 2\n";
    let node = Node::start(&config);
    let at = node.address("in");
    let ask = |path: &str| {
        let mut wire = connect(at);
        wire.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
        wire
    };
    let mut first = ask("/hold");
    eventually("the server has its one request", || (backend.requests() == 1).then_some(()));
    let mut waiting = Vec::new();
    for number in 1..=CLIENTS {
        waiting.push(ask(&format!("/{number}")));
        eventually("one more waits", || (node.metric("evergate_requests_queued") == number).then_some(()));
    }
    backend.open_gate();
    for wire in std::iter::once(&mut first).chain(&mut waiting) {
        assert_eq!(wire.response().unwrap().text(), "one");
    }
    let order: Vec<String> = backend.seen().iter().skip(1).map(|seen| seen.head.start.clone()).collect();
    let wanted: Vec<String> = (1..=CLIENTS).map(|number| format!("GET /{number} HTTP/1.1")).collect();
    assert_eq!(order, wanted);
}

#[test]
fn better_service_class_leaves_first_and_enters_a_full_queue() {
    let backend = Backend::new("one");
    let pool = "queue_max = 2\nqueue_classes = [\"gold\", \"silver\"]";
    let config = plain(&[backend.address()], "", pool).replace("\" }", "\", connections_max = 1 }")
        + "[node]\nworkers = 1\n" // queue_max is each worker's
        + "[[rules]]\nname = \"gold\"\nwhen = 'path == \"/gold\"'\nclass = \"gold\"\n"
        + "[[rules]]\nname = \"silver\"\nwhen = 'path == \"/silver\"'\nclass = \"silver\"\n";
    let node = Node::start(&config);
    let at = node.address("in");
    let ask = |path: &str| {
        let mut wire = connect(at);
        wire.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
        wire
    };
    let queued = |count| {
        eventually("requests wait", || (node.metric("evergate_requests_queued") == count).then_some(()));
    };
    let mut first = ask("/hold");
    eventually("the server has its one request", || (backend.requests() == 1).then_some(()));
    let mut plain = ask("/plain");
    queued(1);
    let mut silver = ask("/silver");
    queued(2);
    let mut gold = ask("/gold");
    let refused = plain.response().unwrap();
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("queue_outranked"), "{}", refused.text());
    let late = get(at, "/late");
    assert!(late.text().contains("queue_full"), "{}", late.text());
    backend.open_gate();
    for wire in [&mut first, &mut gold, &mut silver] {
        assert_eq!(wire.response().unwrap().text(), "one");
    }
    let order: Vec<String> = backend.seen().iter().map(|seen| seen.head.start.clone()).collect();
    let wanted = ["/hold", "/gold", "/silver"].map(|path| format!("GET {path} HTTP/1.1"));
    assert_eq!(order, wanted);
}
