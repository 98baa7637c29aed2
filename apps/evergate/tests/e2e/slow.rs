//! Slow peers, and peers that do not read.

use super::backend::{Backend, pattern};
use super::client::connect;
use super::node::{Node, plain};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const STALL: Duration = Duration::from_millis(600);

/// Reads at an even pace for `span`, far less than the amount after which the node's kernel reports a writable
/// socket.
fn read_slowly(mut stream: &TcpStream, span: Duration) -> Vec<u8> {
    let (mut all, mut piece) = (Vec::new(), vec![0; 8192]);
    let until = Instant::now() + span;
    while Instant::now() < until {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "the end came early");
        all.extend_from_slice(&piece[..count]);
        std::thread::sleep(Duration::from_millis(20));
    }
    all
}

#[test]
fn client_that_reads_slowly_and_steadily_gets_everything() {
    const SIZE: usize = 20_000_000;
    let backend = Backend::new("one");
    let timeouts = format!("[timeouts]\nwrite_stall_ms = {}\n", STALL.as_millis());
    let node = Node::start(&format!("{}{timeouts}", plain(&[backend.address()], "", "")));
    let mut wire = connect(node.address("in"));
    wire.send(format!("GET /bytes/{SIZE} HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
    wire.read_head().unwrap().unwrap();
    // A fast start makes the kernel buffer many bytes.
    let mut body = wire.exactly(SIZE / 2).unwrap();
    body.append(&mut wire.buffer);
    body.extend(read_slowly(&wire.stream, STALL * 5));
    let rest = SIZE - body.len();
    body.extend(wire.exactly(rest).unwrap());
    assert!(body == pattern(SIZE));
}

#[test]
fn server_that_reads_an_upload_slowly_gets_everything() {
    const SIZE: usize = 3_000_000;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut got = read_slowly(&stream, STALL * 5).len();
        let (mut stream, mut piece) = (stream, vec![0; 65_536]);
        while got < SIZE {
            got += stream.read(&mut piece).unwrap();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").unwrap();
    });
    let timeouts = format!(
        "[timeouts]\nwrite_stall_ms = {0}\nresponse_ms = {0}\nrequest_body_ms = {0}\n",
        STALL.as_millis()
    );
    let node = Node::start(&format!("{}{timeouts}", plain(&[address], "", "")));
    let answer = connect(node.address("in")).post("/up", &vec![b'x'; SIZE]).unwrap();
    assert_eq!((answer.status, answer.text()), (200, "ok".to_owned()));
    server.join().unwrap();
}
