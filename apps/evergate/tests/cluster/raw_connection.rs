//! Raw connection through the cluster's address to an echo server.

use crate::traffic::{PATIENCE, Server, Transport, config};
use crate::world::{Node, World, eventually};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Time without an answer after which a peer counts as silent.
const SILENCE: Duration = Duration::from_secs(2);

/// Starts the echo server and `count` nodes in front of it; `more`: further keys of `[cluster]`. The receiver yields
/// how each server connection ended.
pub(crate) fn prepare(count: u8, more: &str) -> (World, Vec<Node>, String, Receiver<Option<ErrorKind>>) {
    prepare_in(World::new(count), count, more)
}

/// [`prepare`] in an existing world.
pub(crate) fn prepare_in(
    world: World,
    count: u8,
    more: &str,
) -> (World, Vec<Node>, String, Receiver<Option<ErrorKind>>) {
    let mut config = config(&world, count, more);
    if more.contains("majority") || more.contains("witness = ") {
        // Majority mode has no witness, and the configuration check rejects a file with one.
        config = config
            .lines()
            .filter(|line| !line.starts_with("witness =") || more.contains(line))
            .map(|line| format!("{line}\n"))
            .collect();
    }
    let ends = serve(&world);
    let nodes: Vec<Node> = (1..=count).map(|number| world.start(number, &config)).collect();
    crate::world::settled(&nodes);
    (world, nodes, config, ends)
}

/// Starts the echo server. The receiver yields how each of its connections ended.
pub(crate) fn serve(world: &World) -> Receiver<Option<ErrorKind>> {
    let (ended, ends) = channel();
    let at = Server::Plain.address(world);
    world.switch.run(move || {
        let listener = TcpListener::bind(at).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let ended = ended.clone();
                std::thread::spawn(move || ended.send(echo(stream)));
            }
        });
    });
    ends
}

/// Echoes until the end; `None` for an orderly one. A zero byte asks the server to reset the connection.
fn echo(mut stream: TcpStream) -> Option<ErrorKind> {
    let mut piece = [0; 512];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return None,
            Ok(count) if piece[..count].contains(&0) => {
                evergate_sys::reset_on_close(std::os::fd::AsRawFd::as_raw_fd(&stream));
                return None;
            }
            Ok(count) => stream.write_all(&piece[..count]).ok()?,
            Err(error) => return Some(error.kind()),
        }
    }
}

/// Client end of the connection.
pub(crate) struct RawConnection {
    pub(crate) stream: TcpStream,
    last_sent: u8,
}

impl RawConnection {
    /// Connects; an error when no answer comes in time.
    pub(crate) fn open(world: &World) -> std::io::Result<RawConnection> {
        let to = SocketAddr::new(world.family.address(), Transport::Tcp.port(Server::Plain));
        let stream = world.switch.run(move || TcpStream::connect_timeout(&to, SILENCE))?;
        Ok(RawConnection { stream, last_sent: 0 })
    }

    /// Sends a byte and waits for its echo.
    pub(crate) fn continues(&mut self, when: &str) {
        self.send_byte();
        self.expect_echo(when);
    }

    pub(crate) fn send_byte(&mut self) {
        self.last_sent = self.last_sent % 200 + 1;
        self.stream.write_all(&[self.last_sent]).unwrap();
    }

    /// Waits for the echo of the last byte.
    pub(crate) fn expect_echo(&mut self, when: &str) {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut received = [0];
        while received[0] != self.last_sent {
            self.stream.read_exact(&mut received).unwrap_or_else(|error| panic!("{when}: {error}"));
        }
    }

    /// Sends a byte and checks that neither an answer nor an end comes.
    pub(crate) fn expect_silence(&mut self, when: &str) {
        self.send_byte();
        self.stream.set_read_timeout(Some(SILENCE)).unwrap();
        let received = self.stream.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(received, Err(ErrorKind::WouldBlock), "{when}");
    }
}

/// Removes the node that carries a connection from the list.
pub(crate) fn carrier(nodes: &mut Vec<Node>) -> Node {
    let carries = |node: &Node| {
        let status: serde_json::Value = serde_json::from_str(&node.cli(&["status", "--json"]).out).unwrap();
        status["connections"]["open"].as_u64().is_some_and(|open| open > 0)
    };
    let place = eventually("a node carries the connection", || nodes.iter().position(carries));
    nodes.remove(place)
}
