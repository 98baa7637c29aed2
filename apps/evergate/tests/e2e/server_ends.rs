//! Ends of server connections: in order with TLS, and by keep-alive where a peer has vanished.

use super::client::{Wire, connect, get, tcp};
use super::node::{DEADLINE, Folder, Node, eventually, plain, web};
use super::pki::issue;
use super::upstream::secure_config;
use crate::support::can_run;
use rustls::{ServerConnection, StreamOwned};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const CLOSES: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
const SWITCHES: &[u8] =
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";

/// TLS server that answers by path. It sends to the test how the input of each connection ended.
fn secure_server(folder: &Folder) -> (SocketAddr, Receiver<&'static str>) {
    let config = secure_config(folder, "site");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (ends, seen) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (config, ends) = (config.clone(), ends.clone());
            std::thread::spawn(move || {
                let mut wire = Wire::new(StreamOwned::new(ServerConnection::new(config).unwrap(), stream));
                while let Ok(Some(head)) = wire.read_head() {
                    let answer = match &head.start {
                        start if start.contains("/closes") => CLOSES,
                        start if start.contains("/tunnel") => SWITCHES,
                        _ => OK,
                    };
                    wire.send(answer).unwrap();
                    if answer != OK {
                        break;
                    }
                }
                let end = match wire.stream.read(&mut [0; 64]) {
                    Ok(0) => "close_notify",
                    Ok(_) => "data",
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => "FIN alone",
                    Err(error) if error.kind() == ErrorKind::InvalidData => "fatal alert",
                    Err(_) => "broken",
                };
                let _ = ends.send(end);
            });
        }
    });
    (address, seen)
}

fn start(pool: &str, more: &str) -> (Node, Receiver<&'static str>) {
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let (address, seen) = secure_server(&folder);
    let pool = format!("{pool}tls = {{ verify = false }}\n");
    (Node::start_in(folder, &format!("{}{more}", plain(&[address], "", &pool))), seen)
}

#[test]
fn tls_server_connection_ends_with_close_notify() {
    for (pool, path) in [
        ("keep_alive_idle_ms = 200\n", "/expires"),
        ("keep_alive_idle_max = 0\n", "/is-not-kept"),
        ("", "/closes"),
    ] {
        let (node, seen) = start(pool, "");
        assert_eq!(get(node.address("in"), path).status, 200);
        assert_eq!(seen.recv_timeout(DEADLINE), Ok("close_notify"), "{path}");
    }
}

#[test]
fn tls_server_connection_of_removed_server_ends_in_order() {
    let (node, seen) = start("", "");
    assert_eq!(get(node.address("in"), "/").status, 200);
    node.write(&plain(&["127.0.0.1:9".parse().unwrap()], "", ""));
    node.reload();
    assert_eq!(seen.recv_timeout(DEADLINE), Ok("close_notify"));
}

#[test]
fn tls_server_connection_ends_in_order_with_the_process() {
    let (mut node, seen) = start("", "");
    assert_eq!(get(node.address("in"), "/").status, 200);
    node.signal("TERM");
    assert_eq!(seen.recv_timeout(DEADLINE), Ok("close_notify"));
    assert!(node.wait().success());
}

#[test]
fn tls_server_connection_ends_in_order_after_an_upgrade() {
    let (node, seen) = start("", "");
    assert_eq!(get(node.address("in"), "/").status, 200);
    node.upgrade();
    assert_eq!(seen.recv_timeout(DEADLINE), Ok("close_notify"), "idle in the old process");
    assert_eq!(get(node.address("in"), "/closes").status, 200);
    assert_eq!(seen.recv_timeout(DEADLINE), Ok("close_notify"), "of the new process");
}

#[test]
fn untrusted_server_receives_a_fatal_alert() {
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    issue(&folder, "ca", "ecdsa", "", None);
    let (address, seen) = secure_server(&folder);
    let pool = "retries = 0\ntls = { server_name = \"site.example\", ca = \"ca.pem\" }\n";
    let node = Node::start_in(folder, &plain(&[address], "", pool));
    assert_eq!(get(node.address("in"), "/").status, 502);
    assert_eq!(seen.recv_timeout(DEADLINE), Ok("fatal alert"));
}

/// A tunnel that its client resets must not look complete to the server, so no close_notify is sent.
#[test]
fn tls_tunnel_ends_with_close_notify_unless_it_breaks() {
    let ask = "GET /tunnel HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    for (breaks, more, end) in [
        (false, "[timeouts]\ntunnel_idle_ms = 300\nwrite_stall_ms = 300\n", "close_notify"),
        (true, "", "broken"),
    ] {
        let (node, seen) = start("", more);
        let mut wire = connect(node.address("in"));
        wire.send(ask).unwrap();
        assert!(wire.read_head().unwrap().unwrap().start.contains("101"));
        if breaks {
            evergate_sys::reset_on_close(wire.stream.as_raw_fd());
            drop(wire);
        }
        assert_eq!(seen.recv_timeout(DEADLINE), Ok(end), "broken by its client: {breaks}");
    }
}

/// Whether the keep-alive timer runs on the connection between these ports of 127.0.0.1; `None` while another timer
/// runs.
fn is_probed(local: u16, remote: u16) -> Option<bool> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let ends = format!(" 0100007F:{local:04X} 0100007F:{remote:04X} 01 ");
    let line = table.lines().find(|line| line.contains(&ends)).unwrap();
    match line.split_whitespace().nth(5).unwrap().split(':').next().unwrap() {
        "00" => Some(false),
        "02" => Some(true),
        _ => None,
    }
}

/// Tunnel through a node: its client end and its server end.
fn tunnel(node: &Node, server: &TcpListener) -> (TcpStream, TcpStream) {
    let mut client = tcp(node.address("in"));
    client.write_all(b"hello").unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    accepted.read_exact(&mut [0; 5]).unwrap();
    accepted.write_all(b"hello").unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
    (client, accepted)
}

fn tcp_listener(server: &TcpListener, more: &str) -> String {
    let listener =
        "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"web\"\n";
    format!("{listener}{}{more}", web(&[server.local_addr().unwrap()], ""))
}

#[test]
fn keepalive_runs_on_both_sides_of_tunnels_as_configured() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = Node::start(&tcp_listener(&server, ""));
    let probed = |(client, accepted): &(TcpStream, TcpStream)| {
        let ports =
            |stream: &TcpStream| (stream.peer_addr().unwrap().port(), stream.local_addr().unwrap().port());
        [ports(client), ports(accepted)]
            .map(|(ours, theirs)| eventually("no other timer runs", || is_probed(ours, theirs)))
    };
    let first = tunnel(&node, &server);
    assert_eq!(probed(&first), [true, true]);
    node.write(&tcp_listener(&server, "[timeouts]\ntcp_keepalive_s = 0\n"));
    node.reload();
    // A worker may not have applied the reload yet.
    let becomes = |expected: [bool; 2]| {
        eventually("new connections follow the reload", || {
            (probed(&tunnel(&node, &server)) == expected).then_some(())
        })
    };
    becomes([false, false]);
    assert_eq!(probed(&first), [true, true], "the reload is for new connections");
    node.write(&tcp_listener(&server, "[timeouts]\ntcp_keepalive_s = 5\n"));
    node.reload();
    becomes([true, true]);
    node.upgrade();
    assert_eq!(probed(&first), [true, true]);
    assert_eq!(probed(&tunnel(&node, &server)), [true, true]);
}

#[test]
fn vanished_peer_of_a_tunnel_is_found() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let timeouts = "[timeouts]\ntcp_keepalive_s = 1\nwrite_stall_ms = 1000\n";
    let node = Node::start(&tcp_listener(&server, timeouts));
    let (client, mut accepted) = tunnel(&node, &server);
    if !can_run(evergate_sys::forget(OwnedFd::from(client)).is_ok(), "CAP_NET_ADMIN") {
        return;
    }
    assert!(!matches!(accepted.read(&mut [0; 1]), Ok(1..)), "the server has the end of the client");
    let (mut client, accepted) = tunnel(&node, &server);
    evergate_sys::forget(OwnedFd::from(accepted)).unwrap();
    assert!(!matches!(client.read(&mut [0; 1]), Ok(1..)), "the client has the end of the server");
}
