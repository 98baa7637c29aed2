//! Raw streams whose server goes away.

use super::client::tcp;
use super::node::{Folder, Node, eventually, web};
use super::pki::{certificate, client, https, issue, tls};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// A node with a `tcp` listener `in` and a `tls` listener `secure` in front of this server.
fn node(server: SocketAddr, pool: &str, more: &str) -> Node {
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let secure = https("").replace("protocol = \"https\"", "protocol = \"tls\"");
    let secure = secure.replace("name = \"in\"", "name = \"secure\"");
    let plain =
        "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\nprotocol = \"tcp\"\npool = \"web\"\n";
    Node::start_in(folder, &format!("{plain}{secure}{}{}{more}", certificate("site"), web(&[server], pool)))
}

/// Writes until that fails: with a stream that swallows everything it does not.
fn writes_until_broken(mut stream: impl Write) {
    eventually("the client hears that nobody takes its bytes", || stream.write_all(&[b'x'; 1000]).err());
}

#[test]
fn a_client_hears_of_it_when_nobody_takes_what_it_sends_into_a_tunnel() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = node(listener.local_addr().unwrap(), "", "");
    let gone = |reset: bool| {
        let (server, _) = listener.accept().unwrap();
        if reset {
            evergate_sys::reset_on_close(server.as_raw_fd());
        }
    };
    for reset in [true, false] {
        let mut client_side = tcp(node.address("in"));
        client_side.write_all(b"hello").unwrap();
        gone(reset);
        writes_until_broken(client_side);
        let mut client_side = tls(node.address("secure"), &Arc::new(client(None)), "site.example").stream;
        client_side.write_all(b"hello").unwrap();
        gone(reset);
        writes_until_broken(client_side);
    }
}

/// While the client uploads, the first to learn of a server's RST is a write; what is read then looks like an end in order.
#[test]
fn a_servers_reset_during_an_upload_is_a_reset_for_the_client() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let node = node(listener.local_addr().unwrap(), "", "");
    let upload = |mut up: Box<dyn Write + Send>| {
        let writer = std::thread::spawn(move || while up.write_all(&[b'y'; 16_384]).is_ok() {});
        let (mut server, _) = listener.accept().unwrap();
        let mut piece = vec![0; 65_536];
        (0..20).for_each(|_| assert!(server.read(&mut piece).unwrap() > 0));
        evergate_sys::reset_on_close(server.as_raw_fd());
        drop(server);
        writer.join().unwrap();
    };
    for _ in 0..10 {
        let mut raw = tcp(node.address("in"));
        upload(Box::new(raw.try_clone().unwrap()));
        let heard = raw.read(&mut [0]).map_err(|error| error.kind());
        assert_ne!(heard, Ok(0), "an end in order");
        let secure = tls(node.address("secure"), &Arc::new(client(None)), "site.example").stream;
        upload(Box::new(secure));
    }
    assert_eq!(node.metric("evergate_connections"), 0);
}

#[test]
fn the_place_of_a_server_that_has_ended_is_free_before_a_tunnel_counts_as_idle() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let timeouts = "[timeouts]\nkeep_alive_ms = 300\nrequest_head_ms = 300\n";
    let node = node(listener.local_addr().unwrap(), "", timeouts);
    let mut silent = tcp(node.address("in"));
    silent.write_all(b"?").unwrap();
    drop(listener.accept().unwrap());
    assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0);
    eventually("the tunnel is over", || (node.metric("evergate_connections") == 0).then_some(()));
}
