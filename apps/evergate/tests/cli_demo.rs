//! Tests of `evergate demo servers`: the behaviour that demonstrations and tests depend on.

#![allow(missing_docs)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

struct Demo(Child, SocketAddr);

impl Demo {
    fn start() -> Demo {
        Demo::start_with(&[])
    }

    fn start_with(arguments: &[&str]) -> Demo {
        let mut child = Command::new(env!("CARGO_BIN_EXE_evergate"))
            .args(["demo", "servers", "--name", "one"])
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("demo server one on http://").unwrap().parse().unwrap();
        Demo(child, address)
    }

    /// Sends text and reads until the server closes.
    fn ask(&self, text: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.1).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        answer
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn demo_server_returns_its_name_and_the_request() {
    let demo = Demo::start();
    let answer = demo.ask(
        "POST /p?q=1 HTTP/1.1\r\nHost: h\r\nX-A: b\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n\
         HEAD /p HTTP/1.1\r\nHost: h\r\n\r\nGET /status?code=503 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    );
    let text = String::from_utf8(answer).unwrap();
    let described = text.lines().find(|line| line.starts_with('{')).unwrap();
    let described: serde_json::Value = serde_json::from_str(described).unwrap();
    assert_eq!((&described["server"], &described["method"]), (&"one".into(), &"POST".into()));
    assert_eq!((&described["target"], &described["headers"]["x-a"]), (&"/p?q=1".into(), &"b".into()));
    let statuses: Vec<&str> =
        text.lines().filter(|line| line.starts_with("HTTP/1.1 ")).map(|line| &line[9..12]).collect();
    assert_eq!(statuses, ["200", "200", "503"]);
    assert!(demo.ask("GET / HTTP/1.1\r\n\r\n").starts_with(b"HTTP/1.1 400 "));
}

#[test]
fn big_body_can_be_checked_byte_by_byte() {
    let demo = Demo::start();
    let answer = demo.ask("GET /big?bytes=200001 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    let body = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    assert_eq!(answer.len() - body, 200_001);
    assert!(answer[body..].iter().enumerate().all(|(position, byte)| usize::from(*byte) == position % 251));
}

#[test]
fn upgraded_connection_echoes() {
    let demo = Demo::start();
    let mut stream = TcpStream::connect(demo.1).unwrap();
    stream
        .write_all(b"GET /echo HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly")
        .unwrap();
    let head = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let mut answer = vec![0; head.len() + 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [&head[..], b"early"].concat());
    stream.write_all(b"\x00\xff later").unwrap();
    let mut echoed = [0; 8];
    stream.read_exact(&mut echoed).unwrap();
    assert_eq!(&echoed, b"\x00\xff later");
}

#[test]
fn demo_server_listens_on_the_given_address() {
    let demo = Demo::start_with(&["--listen", "127.0.0.2:0"]);
    assert_eq!(demo.1.ip().to_string(), "127.0.0.2");
    let answer = demo.ask("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
    let refused = Command::new(env!("CARGO_BIN_EXE_evergate"))
        .args(["demo", "servers", "--listen", "localhost"])
        .output()
        .unwrap();
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && text.contains("write it like 127.0.0.1:8080"), "{text}");
}
