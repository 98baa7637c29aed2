//! Large bodies, compared byte by byte.

use super::backend::{Backend, pattern};
use super::client::{Wire, connect, tcp};
use super::node::{Folder, Node, web};
use super::pki::{certificate, client, https, issue, tls};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

const LARGE: usize = 10_000_000;

fn exchange<S: Read + Write>(wire: &mut Wire<S>) {
    let body = pattern(LARGE);
    assert!(wire.get(&format!("/bytes/{LARGE}")).unwrap().body == body, "download");
    assert!(wire.post("/echo", &body).unwrap().body == body, "upload and download");
    assert_eq!(wire.get("/x").unwrap().text(), "one");
}

/// A reset would destroy the bytes that the client has not read yet.
#[test]
fn bytes_behind_the_last_request_do_not_truncate_the_response() {
    let backend = Backend::new("one");
    let node = Node::start(&super::node::plain(&[backend.address()], "", ""));
    for (before, read_first) in [(true, 0), (false, 0), (false, 1_000_000), (false, LARGE - 500_000)] {
        let mut wire = connect(node.address("in"));
        wire.send(format!("GET /bytes/{LARGE} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")).unwrap();
        if before {
            wire.send("more").unwrap();
        }
        let head = wire.read_head().unwrap().unwrap();
        assert_eq!(head.field("content-length").unwrap(), LARGE.to_string());
        let mut body = wire.exactly(read_first).unwrap();
        wire.send("still more").unwrap();
        body.extend(wire.exactly(LARGE - read_first).unwrap());
        assert!(body == pattern(LARGE));
    }
}

#[test]
fn ten_megabytes_pass_unchanged_over_tls_and_plain() {
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let backend = Backend::new("one");
    let plain =
        "[[listeners]]\nname = \"plain\"\naddress = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"web\"\n";
    let config = format!("{}{plain}{}{}", https(""), certificate("site"), web(&[backend.address()], ""));
    let node = Node::start_in(folder, &config);
    exchange(&mut connect(node.address("plain")));
    exchange(&mut tls(node.address("in"), &Arc::new(client(None)), "site.example"));
}

/// The last bytes of such a body wait in the kernel when the client resumes reading.
#[test]
fn downloads_read_with_pauses_arrive_whole() {
    let backend = Backend::new("one");
    let node = Node::start(&super::node::plain(&[backend.address()], "", ""));
    let at = node.address("in");
    let download = move |size: usize| {
        let mut wire = connect(at);
        wire.send(format!("GET /bytes/{size} HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
        for _ in 0..5 {
            assert!(wire.fill().unwrap());
            connect(at).get("/x").unwrap();
        }
        assert!(wire.response().unwrap().body == pattern(size), "{size}");
        assert_eq!(wire.get("/x").unwrap().text(), "one");
    };
    let client = |first: usize| {
        std::thread::spawn(move || (0..16).for_each(|step| download(5_000_000 + (4 * step + first) * 20_011)))
    };
    let clients: Vec<_> = (0..4).map(client).collect();
    for client in clients {
        client.join().unwrap();
    }
}

#[test]
fn raw_listener_forwards_bytes_and_the_end_of_each_direction() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    // Echoes everything after the client has ended its direction.
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&all).unwrap();
    });
    let node = Node::start(&format!(
        "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"web\"\n{}",
        web(&[server], "")
    ));
    let mut stream = tcp(node.address("in"));
    let body = pattern(LARGE);
    stream.write_all(&body).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    assert!(back == body, "{} of {} bytes", back.len(), body.len());
    echo.join().unwrap();
}

/// A truncated transfer must not look complete.
#[test]
fn reset_of_a_raw_stream_is_a_reset_at_the_other_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    let node = Node::start(&format!(
        "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"web\"\n{}",
        web(&[server], "")
    ));
    // Short streams are copied and long ones spliced. Some have ended in one direction already.
    for (size, half_closed) in [(100, false), (1_000_000, false), (100, true), (1_000_000, true)] {
        for from_client in [true, false] {
            let mut client = tcp(node.address("in"));
            client.write_all(b"?").unwrap();
            let (mut theirs, _) = listener.accept().unwrap();
            theirs.read_exact(&mut [0]).unwrap();
            let (mut breaks, mut receiver) = if from_client { (client, theirs) } else { (theirs, client) };
            if half_closed {
                receiver.shutdown(Shutdown::Write).unwrap();
                assert_eq!(breaks.read(&mut [0]).unwrap(), 0);
            }
            let writer = std::thread::spawn(move || {
                breaks.write_all(&pattern(size)).unwrap();
                breaks
            });
            let mut all = vec![0; size];
            receiver.read_exact(&mut all).unwrap();
            evergate_sys::reset_on_close(writer.join().unwrap().as_raw_fd());
            let received = receiver.read(&mut [0]).map_err(|error| error.kind());
            assert_eq!(
                received,
                Err(ErrorKind::ConnectionReset),
                "{size} bytes, half closed {half_closed}, from the client {from_client}"
            );
        }
    }
}

/// Both ends have closed while the server still has bytes to read. The node must not reset the connection.
#[test]
fn bytes_after_the_servers_end_arrive_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    let taken = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let (mut all, mut piece) = (Vec::new(), vec![0; 65_536]);
        while let count @ 1.. = stream.read(&mut piece).unwrap() {
            all.extend_from_slice(&piece[..count]);
            std::thread::sleep(Duration::from_millis(2)); // slower than the client
        }
        all
    });
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let listener = https("").replace("protocol = \"https\"", "protocol = \"tls\"");
    let node = Node::start_in(folder, &format!("{listener}{}{}", certificate("site"), web(&[server], "")));
    let mut stream = tls(node.address("in"), &Arc::new(client(None)), "site.example").stream;
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    let body = pattern(LARGE);
    stream.write_all(&body).unwrap();
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    drop(stream);
    let taken = taken.join().unwrap();
    assert!(taken == body, "{} of {} bytes", taken.len(), body.len());
}
