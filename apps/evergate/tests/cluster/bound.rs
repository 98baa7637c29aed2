//! Server connections with connection-based authentication (NTLM). A client keeps its identity across failovers, and
//! no other client gets it.

use crate::matrix::carrier;
use crate::traffic::{self, PATIENCE, Server, Transport, head, server_stream};
use crate::world::{Node, World, privileged, settled};
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Starts a server that stores per connection the user and the state of the handshake.
fn serve(world: &World, server: Server) {
    let (at, tls) = (server.address(world), server.config(world));
    world.switch.run(move || {
        let listener = TcpListener::bind(at).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let tls = tls.clone();
                std::thread::spawn(move || {
                    let mut stream = server_stream(stream, tls);
                    let (mut challenged, mut user) = (false, "nobody");
                    while let Ok(asked) = head(&mut stream) {
                        let reports =
                            |token: &str| asked.contains(&format!("Authorization: NTLM {token}\r\n"));
                        let mut challenge = "";
                        if reports("one") {
                            (challenged, challenge) = (true, " dHdv");
                        } else if std::mem::take(&mut challenged) && reports("three") {
                            user = "alice";
                        }
                        let status = if user == "nobody" { 401 } else { 200 };
                        let answer = format!(
                            "HTTP/1.1 {status} X\r\nWWW-Authenticate: NTLM{challenge}\r\nX-User: {user}\r\n\
                             Content-Length: 0\r\n\r\n"
                        );
                        if stream.write_all(answer.as_bytes()).is_err() {
                            break;
                        }
                    }
                });
            }
        });
    });
}

/// Client that sends a request for each token and returns the user that the server reports.
struct Client {
    tokens: Sender<&'static str>,
    users: Receiver<String>,
}

impl Client {
    fn new(world: &World, wire: Transport, server: Server) -> Client {
        let (tokens, asked) = channel::<&'static str>();
        let (reported, users) = channel();
        let roots = Arc::new(traffic::roots(world));
        let to = SocketAddr::new(world.family.address(), wire.port(server));
        world.switch.spawn(move || {
            let mut stream = traffic::connect(wire, to, &roots).unwrap();
            for token in asked {
                let credentials =
                    if token.is_empty() { String::new() } else { format!("Authorization: NTLM {token}\r\n") };
                write!(stream, "GET / HTTP/1.1\r\nHost: shop.test\r\n{credentials}\r\n").unwrap();
                let answer = head(&mut stream).unwrap();
                let (_, user) = answer.split_once("X-User: ").expect("an answer of the server");
                reported.send(user.split("\r\n").next().unwrap_or_default().to_owned()).unwrap();
            }
        });
        Client { tokens, users }
    }

    fn ask(&self, token: &'static str) -> String {
        self.tokens.send(token).unwrap();
        self.users.recv_timeout(PATIENCE).expect("an answer")
    }
}

fn lose_carrier(nodes: &mut Vec<Node>) {
    carrier(nodes).kill();
    settled(nodes);
}

#[test]
fn ntlm_identity_survives_its_node_for_its_client_only() {
    if !privileged() {
        return;
    }
    for (wire, server) in [(Transport::Http, Server::Plain), (Transport::Tls13, Server::Tls13)] {
        let world = World::new(3);
        let (mut nodes, _) = traffic::three(&world);
        serve(&world, server);
        let alice = Client::new(&world, wire, server);
        assert_eq!(alice.ask(""), "nobody");
        assert_eq!(alice.ask("one"), "nobody");
        lose_carrier(&mut nodes);
        assert_eq!(alice.ask("three"), "alice", "the handshake continues on its server connection");
        let bob = Client::new(&world, wire, server);
        assert_eq!((bob.ask(""), alice.ask("")), ("nobody".to_owned(), "alice".to_owned()));
        drop(bob);
        lose_carrier(&mut nodes);
        for _ in 0..3 {
            let bob = Client::new(&world, wire, server);
            assert_eq!((bob.ask(""), alice.ask("")), ("nobody".to_owned(), "alice".to_owned()));
        }
    }
}
