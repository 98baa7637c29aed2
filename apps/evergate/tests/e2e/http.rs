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
fn kept_alive_connections_share_few_server_connections() {
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
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.stdout == body.as_bytes() && said.contains("< HTTP/1.1 100"), "{said}");
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
fn an_upgraded_connection_stays_open_both_ways() {
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
fn an_http_1_0_client_gets_its_answer_and_the_end() {
    let (_backend, node) = pair();
    let mut wire = connect(node.address("in"));
    wire.send("GET /chunked HTTP/1.0\r\nHost: a\r\n\r\n").unwrap();
    let answer = String::from_utf8(wire.until_closed()).unwrap();
    assert!(answer.ends_with("\r\n\r\nhello world"), "{answer}");
    assert!(!answer.to_lowercase().contains("transfer-encoding"), "{answer}");
}

#[test]
fn a_response_that_ends_with_its_connection_arrives_whole() {
    let (_backend, node) = pair();
    let mut wire = connect(node.address("in"));
    assert_eq!(wire.get("/close-delimited").unwrap().text(), "until the end");
    assert_eq!(get(node.address("in"), "/x").text(), "one");
}

#[test]
fn the_server_is_told_who_asked_and_hop_by_hop_fields_stay_behind() {
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
