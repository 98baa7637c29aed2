//! Ambiguous requests, which two parsers could read differently. The node refuses them and serves no byte behind
//! them.

use super::backend::Backend;
use super::client::{connect, get};
use super::node::{Node, plain};

const CASES: [(&str, &str); 26] = [
    ("both framings", "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("both framings, turned", "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n"),
    ("two lengths", "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc"),
    ("a list of lengths", "Content-Length: 3, 4\r\n\r\nabc"),
    ("a length with a sign", "Content-Length: +3\r\n\r\nabc"),
    ("a negative length", "Content-Length: -3\r\n\r\nabc"),
    ("a hexadecimal length", "Content-Length: 0x3\r\n\r\nabc"),
    ("an empty length", "Content-Length:\r\n\r\nabc"),
    ("a length beyond 64 bits", "Content-Length: 18446744073709551619\r\n\r\nabc"),
    ("a length with a space", "Content-Length: 3 0\r\n\r\nabc"),
    ("identity after chunked", "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    ("chunked twice", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("almost chunked", "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    ("chunked in quotes", "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"),
    ("a space before the colon", "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
    ("a folded line", "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
    ("a line ended by LF", "X-A: b\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("a CR in a value", "X-A: b\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("a NUL in a value", "X-A: b\0c\r\n\r\n"),
    ("a line without a colon", "Transfer-Encoding chunked\r\n\r\n0\r\n\r\n"),
    ("a second host", "Host: b\r\n\r\n"),
    ("a chunk size that is none", "Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n"),
    (
        "a chunk size beyond 64 bits",
        "Transfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n\r\n",
    ),
    ("a chunk longer than its size", "Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n"),
    ("a chunk size ended by LF", "Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n"),
    ("a chunk size with a prefix", "Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n"),
];

#[test]
fn ambiguous_requests_are_refused_with_all_that_follows() {
    let backend = Backend::new("one");
    let node = Node::start(&plain(&[backend.address()], "", ""));
    for (what, rest) in CASES {
        let mut wire = connect(node.address("in"));
        let hidden = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
        wire.send(format!("POST /outer HTTP/1.1\r\nHost: a\r\n{rest}{hidden}")).unwrap();
        let answer = String::from_utf8_lossy(&wire.until_closed()).into_owned();
        assert!(
            answer.starts_with("HTTP/1.1 400 ") || answer.starts_with("HTTP/1.1 501 "),
            "{what}: {answer:?}"
        );
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{what}: {answer:?}");
    }
    for (what, all) in [
        (
            "chunked in HTTP/1.0",
            "POST /outer HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ),
        ("no host", "GET /outer HTTP/1.1\r\n\r\n"),
        ("two spaces", "GET  /outer HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("a tab in the request line", "GET\t/outer HTTP/1.1\r\nHost: a\r\n\r\n"),
        ("a start line folded", "GET /outer\r\n HTTP/1.1\r\nHost: a\r\n\r\n"),
    ] {
        let mut wire = connect(node.address("in"));
        wire.send(format!("{all}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
        let answer = String::from_utf8_lossy(&wire.until_closed()).into_owned();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{what}: {answer:?}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{what}: {answer:?}");
    }
    // No later request may use a server connection that received half a request.
    assert_eq!(get(node.address("in"), "/last").text(), "one");
    let starts: Vec<String> = backend.seen().into_iter().map(|seen| seen.head.start).collect();
    assert_eq!(starts, ["GET /last HTTP/1.1"]);
}
