//! Connections to a TLS server whose handshake is unfinished when the node dies. The next node dials again.

use crate::matrix::carrier;
use crate::traffic::{self, PATIENCE, Server, Transport, head, server_stream};
use crate::world::{World, privileged};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::channel;

/// The server leaves the first connection unanswered.
#[test]
fn unfinished_server_handshake_is_repeated_by_the_next_node() {
    if !privileged() {
        return;
    }
    for wire in [Transport::Http, Transport::Tls13] {
        let world = World::new(3);
        let (mut nodes, _) = traffic::three(&world);
        let (greeted, hello) = channel();
        let (at, tls) = (Server::Tls13.address(&world), Server::Tls13.config(&world));
        world.switch.run(move || {
            let listener = TcpListener::bind(at).unwrap();
            std::thread::spawn(move || {
                let mut silent = listener.accept().unwrap().0;
                let mut begun = [0; 5];
                silent.read_exact(&mut begun).unwrap();
                assert_eq!(begun[..3], [22, 3, 1], "a ClientHello");
                greeted.send(()).unwrap();
                // The dead node may have dialled more than once. None of those connections carries a byte of the
                // request.
                loop {
                    let stream = listener.accept().unwrap().0;
                    let mut stream = server_stream(stream, tls.clone());
                    let Ok(asked) = head(&mut stream) else { continue };
                    assert!(asked.starts_with("GET /only-once "), "{asked}");
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nserved").unwrap();
                    return;
                }
            });
        });
        let roots = Arc::new(traffic::roots(&world));
        let to = SocketAddr::new(world.family.address(), wire.port(Server::Tls13));
        let client = world.switch.spawn(move || {
            let mut stream = traffic::connect(wire, to, &roots).unwrap();
            stream.write_all(b"GET /only-once HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
            let reported = head(&mut stream).unwrap();
            assert!(reported.starts_with("HTTP/1.1 200"), "{reported}");
            let mut body = [0; 6];
            stream.read_exact(&mut body).unwrap();
            assert_eq!(&body, b"served");
        });
        hello.recv_timeout(PATIENCE).expect("the server receives a ClientHello");
        carrier(&mut nodes).kill();
        client.join().unwrap();
    }
}
