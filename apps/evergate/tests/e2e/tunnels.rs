//! Raw streams whose server closes or resets.

use super::backend::pattern;
use super::client::tcp;
use super::node::{DEADLINE, Folder, Node, eventually, web};
use super::pki::{certificate, client, https, issue, tls};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

/// Node with a `tcp` listener `in` and a `tls` listener `secure` in front of this server.
fn node(server: SocketAddr, pool: &str, more: &str) -> Node {
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let secure = https("").replace("protocol = \"https\"", "protocol = \"tls\"");
    let secure = secure.replace("name = \"in\"", "name = \"secure\"");
    let plain =
        "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"web\"\n";
    Node::start_in(folder, &format!("{plain}{secure}{}{}{more}", certificate("site"), web(&[server], pool)))
}

/// Writes until a write fails; false if writes still succeed at the deadline.
fn write_fails(mut stream: impl Write) -> bool {
    let until = Instant::now() + DEADLINE;
    let mut writes = || stream.write_all(&[b'x'; 16_384]).and_then(|()| stream.flush());
    while writes().is_ok() {
        if Instant::now() > until {
            return false;
        }
    }
    true
}

#[test]
fn client_write_fails_after_the_server_of_a_tunnel_is_gone() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = node(listener.local_addr().unwrap(), "", "");
    let gone = |reset: bool| {
        let (mut server, _) = listener.accept().unwrap();
        server.read_exact(&mut [0; 5]).unwrap(); // without forwarded bytes the node would try another server
        if reset {
            evergate_sys::reset_on_close(server.as_raw_fd());
        }
    };
    for reset in [true, false] {
        let mut client_side = tcp(node.address("in"));
        client_side.write_all(b"hello").unwrap();
        gone(reset);
        assert!(write_fails(client_side), "reset {reset}");
        let mut client_side = tls(node.address("secure"), &Arc::new(client(None)), "site.example").stream;
        client_side.write_all(b"hello").unwrap();
        gone(reset);
        assert!(write_fails(client_side), "reset {reset}");
    }
}

/// An attacker between client and node replaces one record of the client.
#[test]
fn server_receives_a_reset_after_a_forged_client_record() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = node(listener.local_addr().unwrap(), "", "");
    let mut client_side = tls(node.address("secure"), &Arc::new(client(None)), "site.example").stream;
    client_side.write_all(b"hello").unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.read_exact(&mut [0; 5]).unwrap();
    client_side.sock.write_all(&[&[23, 3, 3, 0, 40][..], &[7; 40]].concat()).unwrap();
    let ended = server.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(ended.err(), Some(ErrorKind::ConnectionReset));
}

/// During an upload a write fails first after the server's RST. A read after that looks like an orderly end.
#[test]
fn server_reset_during_an_upload_resets_the_client() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = node(listener.local_addr().unwrap(), "", "");
    let upload = |up: Box<dyn Write + Send>| {
        let writer = std::thread::spawn(move || write_fails(up));
        let (mut server, _) = listener.accept().unwrap();
        let mut piece = vec![0; 65_536];
        (0..20).for_each(|_| assert!(server.read(&mut piece).unwrap() > 0));
        evergate_sys::reset_on_close(server.as_raw_fd());
        drop(server);
        assert!(writer.join().unwrap());
    };
    for _ in 0..10 {
        upload(Box::new(tcp(node.address("in"))));
        upload(Box::new(tls(node.address("secure"), &Arc::new(client(None)), "site.example").stream));
    }
    eventually("all are gone", || (node.metric("evergate_connections") == 0).then_some(()));
}

#[test]
fn tunnel_without_server_ends_before_it_counts_as_idle() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let timeouts = "[timeouts]\nkeep_alive_ms = 300\nrequest_head_ms = 300\n";
    let node = node(listener.local_addr().unwrap(), "", timeouts);
    let mut silent = tcp(node.address("in"));
    silent.write_all(b"?").unwrap();
    drop(listener.accept().unwrap());
    assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0);
    eventually("the tunnel is over", || (node.metric("evergate_connections") == 0).then_some(()));
}

/// The client does not read. The server resets while the node holds more bytes than the client's kernel takes.
#[test]
fn server_reset_behind_a_full_pipe_is_not_an_orderly_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = node(listener.local_addr().unwrap(), "", "");
    for size in [3_000_000, 4_500_000, 5_500_000, 6_500_000] {
        let mut client_side: TcpStream = tcp(node.address("in"));
        client_side.write_all(b"?").unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(&pattern(size)).unwrap();
        // The kernel's buffers have no fixed size: wait until it takes all bytes, or takes none for many polls.
        let (mut last, mut looks) = (u64::MAX, 0);
        eventually("the node has all that it takes", || {
            let left = evergate_sys::unacknowledged(server.as_raw_fd());
            looks = if left == last { looks + 1 } else { 0 };
            last = left;
            (left == 0 || looks > 50).then_some(())
        });
        evergate_sys::reset_on_close(server.as_raw_fd());
        drop(server);
        let mut all = Vec::new();
        let ended = client_side.read_to_end(&mut all).map_err(|error| error.kind());
        assert_eq!(ended.err(), Some(ErrorKind::ConnectionReset), "{size} bytes, {} came", all.len());
    }
}

/// Client and server ends of a tunnel without TLS.
fn tunnel(node: &Node, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let mut client_side = tcp(node.address("in"));
    client_side.write_all(b"?").unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.set_nodelay(true).unwrap();
    server.set_read_timeout(Some(DEADLINE)).unwrap();
    server.read_exact(&mut [0]).unwrap();
    (client_side, server)
}

/// Number of pipe ends that a process has open.
fn pipe_ends(pid: u32) -> usize {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let targets = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("pipe:")).count()
}

/// Sends `bytes` from one end and receives them at the other.
fn carry(from: &TcpStream, to: &TcpStream, bytes: &[u8]) {
    let mut got = vec![0; bytes.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| { from }.write_all(bytes).unwrap());
        { to }.read_exact(&mut got).unwrap();
    });
    assert!(got == bytes, "{} bytes", bytes.len());
}

#[test]
fn plain_tunnel_copies_small_messages_and_splices_bulk() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = node(listener.local_addr().unwrap(), "", "");
    let before = pipe_ends(node.pid());
    let (client_side, server) = tunnel(&node, &listener);
    for size in [1, 125, 4_096].into_iter().cycle().take(60) {
        carry(&client_side, &server, &pattern(size));
        carry(&server, &client_side, &pattern(size));
    }
    assert_eq!(pipe_ends(node.pid()), before, "small messages need no pipe");
    carry(&client_side, &server, &pattern(3_000_000));
    assert!(pipe_ends(node.pid()) > before, "bulk data is spliced");
    // Small messages after bulk data, and bulk data after small messages, in both directions.
    for size in [125, 125, 125, 3_000_000, 125, 70_000, 4_096] {
        carry(&server, &client_side, &pattern(size));
        carry(&client_side, &server, &pattern(size));
    }
}

/// Sizes of writes: small ones, ones at the bounds of the modes, and bulk data.
const SIZES: [usize; 12] =
    [1, 125, 4_096, 8_191, 8_192, 16_383, 16_384, 125, 65_536, 700_001, 125, 1_500_000];

/// Both ends write pieces of all sizes until no write succeeds, and only then read: bytes wait in outlets and pipes.
#[test]
fn plain_tunnel_keeps_the_order_of_copied_and_spliced_bytes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = node(listener.local_addr().unwrap(), "", "");
    let whole = pattern(SIZES.iter().sum::<usize>() * 10);
    let write_all = |mut stream: &TcpStream| {
        let mut rest = &whole[..];
        for size in SIZES.iter().cycle() {
            let (piece, behind) = rest.split_at((*size).min(rest.len()));
            stream.write_all(piece).unwrap();
            rest = behind;
            if rest.is_empty() {
                return stream.shutdown(Shutdown::Write).unwrap();
            }
        }
    };
    // Reads pieces of an odd size, so that the sender stays ahead.
    let read_all = |mut stream: &TcpStream| {
        let (mut got, mut piece) = (Vec::new(), [0; 30_011]);
        while let count @ 1.. = stream.read(&mut piece).unwrap() {
            got.extend_from_slice(&piece[..count]);
        }
        assert!(got == whole, "{} of {} bytes", got.len(), whole.len());
    };
    // A recent kernel may take all bytes, so that none is left to write.
    let is_stuck = |stream: &TcpStream| {
        let (mut last, mut looks) = (u64::MAX, 0);
        eventually("the tunnel takes no more", || {
            let left = evergate_sys::unacknowledged(stream.as_raw_fd());
            looks = if left == last { looks + 1 } else { 0 };
            last = left;
            (looks > 50).then_some(())
        });
    };
    let (client_side, server) = tunnel(&node, &listener);
    carry(&client_side, &server, &pattern(125));
    std::thread::scope(|scope| {
        scope.spawn(|| write_all(&client_side));
        scope.spawn(|| write_all(&server));
        is_stuck(&client_side);
        is_stuck(&server);
        scope.spawn(|| read_all(&client_side));
        scope.spawn(|| read_all(&server));
    });
}

#[test]
fn plain_tunnel_half_closes_behind_mixed_sizes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = node(listener.local_addr().unwrap(), "", "");
    for last in [1, 125, 16_384, 1_000_000] {
        for from_client in [true, false] {
            let (client_side, server) = tunnel(&node, &listener);
            let (mut ends, mut receiver) =
                if from_client { (client_side, server) } else { (server, client_side) };
            for size in [125, 500_000, 125, last] {
                carry(&ends, &receiver, &pattern(size));
            }
            ends.write_all(b"last").unwrap();
            ends.shutdown(Shutdown::Write).unwrap();
            let mut rest = Vec::new();
            receiver.read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"last", "behind {last} bytes, from the client {from_client}");
            // The other direction continues.
            for size in [125, 500_000, 125] {
                carry(&receiver, &ends, &pattern(size));
            }
            receiver.shutdown(Shutdown::Write).unwrap();
            assert_eq!(ends.read(&mut [0]).unwrap(), 0);
        }
    }
    eventually("all tunnels are over", || (node.metric("evergate_connections") == 0).then_some(()));
}
