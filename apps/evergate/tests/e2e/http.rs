//! HTTP/1.1 between a client and a server, on the wire.

use super::backend::Backend;
use super::client::{connect, get};
use super::node::{Node, plain};
use std::process::Command;

fn pair() -> (Backend, Node) {
    let backend = Backend::new("one");
    let node = Node::start(&plain(&[backend.address()], "", ""));
    (backend, node)
}

#[test]
fn persistent_connections_share_few_server_connections() {
    let (backend, node) = pair();
    for _ in 0..5 {
        let mut wire = connect(node.address("in"));
        for _ in 0..40 {
            let response = wire.get("/x").unwrap();
            assert_eq!((response.status, response.text()), (200, "one".to_owned()));
        }
    }
    assert_eq!(backend.requests(), 200);
    assert!(backend.connections() <= 5, "{} server connections", backend.connections());
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let (_backend, node) = pair();
    let mut wire = connect(node.address("in"));
    let mut all = String::new();
    for index in 0..20 {
        let body = format!("number {index}");
        all += &format!("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    }
    wire.send(all).unwrap();
    for index in 0..20 {
        assert_eq!(wire.response().unwrap().text(), format!("number {index}"));
    }
}

#[test]
fn chunked_bodies_pass_both_ways_with_their_trailers() {
    let (backend, node) = pair();
    let mut wire = connect(node.address("in"));
    wire.send(
        "POST /chunked HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\nTrailer: X-Check\r\n\r\n\
         3\r\nabc\r\n4;name=\"v\"\r\ndefg\r\n0\r\nX-Check: 7\r\n\r\n",
    )
    .unwrap();
    let response = wire.response().unwrap();
    assert_eq!((response.status, response.text()), (200, "hello world".to_owned()));
    assert!(response.trailers.contains("X-Sum: 11"), "{response:?}");
    let seen = &backend.seen()[0];
    assert_eq!(seen.body, b"abcdefg");
    assert!(seen.trailers.contains("X-Check: 7"), "{seen:?}");
    assert_eq!(wire.get("/next").unwrap().status, 200);
}

#[test]
fn curl_gets_its_100_continue_and_its_answer() {
    let (backend, node) = pair();
    let body = "x".repeat(300_000);
    node.folder.write("body", &body);
    let output = Command::new("curl")
        .args(["-sS", "-v", "--max-time", "20", "--expect100-timeout", "15", "-H", "Expect: 100-continue"])
        .arg("--data-binary")
        .arg(format!("@{}", node.folder.path("body").display()))
        .arg(format!("http://{}/echo", node.address("in")))
        .output()
        .unwrap();
    let reported = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.stdout == body.as_bytes() && reported.contains("< HTTP/1.1 100"), "{reported}");
    assert_eq!(backend.requests(), 1);
}

#[test]
fn head_has_a_length_and_no_body() {
    let (_backend, node) = pair();
    let mut wire = connect(node.address("in"));
    wire.send("HEAD /bytes/1234 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let response = wire.response_to(true).unwrap();
    assert_eq!((response.status, response.head.field("content-length").as_deref()), (200, Some("1234")));
    assert_eq!(wire.get("/x").unwrap().text(), "one");
}

#[test]
fn upgraded_connection_stays_open_both_ways() {
    let (_backend, node) = pair();
    let mut wire = connect(node.address("in"));
    wire.send("GET /upgrade HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        .unwrap();
    let response = wire.response().unwrap();
    assert_eq!(response.status, 101);
    assert_eq!(response.head.field("upgrade").as_deref(), Some("websocket"));
    assert_eq!(wire.exactly(5).unwrap(), b"first");
    for round in 0..50 {
        let message = format!("message {round:04}");
        wire.send(&message).unwrap();
        assert_eq!(wire.exactly(message.len()).unwrap(), message.as_bytes());
    }
}

#[test]
fn server_cannot_switch_to_what_the_client_did_not_offer() {
    let (_backend, node) = pair();
    for (offered, taken, status) in [
        ("websocket", "websocket", 101),
        ("foo, WebSocket", "websocket", 101),
        ("websocket", "other", 502),
        ("websocket", "websocket,other", 502),
        ("websocket", "h2c", 502),
        ("h2c, websocket", "h2c", 502),
        ("foo, bar", "websocket", 502),
        ("websocket", "", 502),
    ] {
        let mut wire = connect(node.address("in"));
        let ask = format!("GET /switch/{taken} HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n");
        wire.send(format!("{ask}Upgrade: {offered}\r\n\r\n")).unwrap();
        assert_eq!(wire.response().unwrap().status, status, "{taken:?} of {offered:?}");
    }
}

/// RFC 9110 sections 2.5 and 9.1, RFC 9112 section 7.1.1, RFC 3986 section 3.2.2.
#[test]
fn every_request_of_the_grammar_reaches_the_server() {
    let (backend, node) = pair();
    let mut wire = connect(node.address("in"));
    let chunked = "Transfer-Encoding: chunked\r\n\r\n3;a=\"\\\"b\\\\\"\r\nabc\r\n0\r\n\r\n";
    let hosts = ["a!$&'()*+,;=b:80", "%61.test", "a%20%C3%BC", "[v1.a:b]:8080"];
    for (line, host, rest) in [
        ("GET /x HTTP/1.2", "a", "\r\n"),
        ("GET /x HTTP/1.9", "a", "\r\n"),
        ("get /x HTTP/1.1", "a", "\r\n"),
        ("!#$%&'*+-.^_`|~aZ9 /x HTTP/1.1", "a", "\r\n"),
        ("GET /minor HTTP/1.1", "a", "\r\n"),
        ("POST /x HTTP/1.7", "a", chunked),
        ("GET /x HTTP/1.1", hosts[0], "\r\n"),
        ("GET /x HTTP/1.1", hosts[1], "\r\n"),
        ("GET /x HTTP/1.1", hosts[2], "\r\n"),
        ("GET http://[V1.a:b]:8080/x HTTP/1.1", hosts[3], "\r\n"),
    ] {
        wire.send(format!("{line}\r\nHost: {host}\r\n{rest}")).unwrap();
        let response = wire.response().unwrap();
        assert_eq!(response.status, 200, "{line}, {host}");
        assert!(response.head.start.starts_with("HTTP/1.1 "), "{}", response.head.start);
        let seen = backend.seen().pop().unwrap();
        let (method, _) = line.split_once(' ').unwrap();
        assert!(seen.head.start.starts_with(&format!("{method} /")), "{}", seen.head.start);
        assert!(seen.head.start.ends_with(" HTTP/1.1"), "{}", seen.head.start);
        assert_eq!(seen.head.field("host").unwrap().to_lowercase(), host.to_lowercase());
        assert_eq!(seen.body, if rest == chunked { &b"abc"[..] } else { b"" });
    }
    assert_eq!(backend.connections(), 1, "every request left its connections as they were");
}

#[test]
fn rule_for_a_host_matches_every_spelling_of_it() {
    let backend = Backend::new("one");
    let rule = "[[rules]]\nname = \"no\"\nwhen = 'host == \"a.test\"'\ndeny = 403\n";
    let node = Node::start(&format!("{rule}{}", plain(&[backend.address()], "", "")));
    for (host, status) in [
        ("a.test", 403),
        ("%61.TEST.", 403),
        ("A%2Etest:80", 403),
        ("%41%2e%74%65%73%74", 403),
        ("a.test,b", 200),
        ("%2561.test", 200),
    ] {
        let mut wire = connect(node.address("in"));
        wire.send(format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n")).unwrap();
        assert_eq!(wire.response().unwrap().status, status, "{host}");
    }
}

#[test]
fn http_1_0_client_gets_its_answer_and_the_end() {
    let (_backend, node) = pair();
    let mut wire = connect(node.address("in"));
    wire.send("GET /chunked HTTP/1.0\r\nHost: a\r\n\r\n").unwrap();
    let answer = String::from_utf8(wire.until_closed()).unwrap();
    assert!(answer.ends_with("\r\n\r\nhello world"), "{answer}");
    assert!(!answer.to_lowercase().contains("transfer-encoding"), "{answer}");
}

#[test]
fn response_that_ends_with_its_connection_arrives_whole() {
    let (_backend, node) = pair();
    let mut wire = connect(node.address("in"));
    assert_eq!(wire.get("/close-delimited").unwrap().text(), "until the end");
    assert_eq!(get(node.address("in"), "/x").text(), "one");
}

#[test]
fn server_receives_client_address_without_hop_by_hop_fields() {
    let (backend, node) = pair();
    let mut wire = connect(node.address("in"));
    wire.send(
        "GET /head HTTP/1.1\r\nHost: example.com\r\nX-Forwarded-For: 6.6.6.6\r\nX-Forwarded-Proto: https\r\n\
         Connection: keep-alive, X-Hop\r\nX-Hop: secret\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n\
         X-End: kept\r\n\r\n",
    )
    .unwrap();
    assert_eq!(wire.response().unwrap().status, 200);
    let head = backend.seen()[0].head.clone();
    assert_eq!(head.field("x-forwarded-for").as_deref(), Some("127.0.0.1"), "{}", head.text);
    assert_eq!(head.field("x-forwarded-proto").as_deref(), Some("http"), "{}", head.text);
    assert_eq!(head.text.to_lowercase().matches("x-forwarded-for:").count(), 1, "{}", head.text);
    assert!(head.field("x-request-id").is_some_and(|id| !id.is_empty()), "{}", head.text);
    assert_eq!(head.field("x-end").as_deref(), Some("kept"));
    for name in ["x-hop", "keep-alive", "proxy-connection"] {
        assert_eq!(head.field(name), None, "{}", head.text);
    }
    let response = get(node.address("in"), "/chunked");
    assert_eq!(response.head.field("x-private"), None, "{}", response.head.text);
}
