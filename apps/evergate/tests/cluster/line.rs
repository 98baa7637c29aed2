//! One raw connection through the cluster's address to a server that sends back what it gets.

use crate::traffic::{Carrier, PATIENCE, Server, config};
use crate::world::{Node, World, eventually};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// How long nobody must answer to be taken for silent.
const SILENCE: Duration = Duration::from_secs(2);

/// Starts the server, and these nodes before it; `more`: further keys of `[cluster]`. What comes back: how each connection
/// of the server ended.
pub(crate) fn prepare(count: u8, more: &str) -> (World, Vec<Node>, String, Receiver<Option<ErrorKind>>) {
    prepare_in(World::new(count), count, more)
}

/// The same in a world that is there.
pub(crate) fn prepare_in(
    world: World,
    count: u8,
    more: &str,
) -> (World, Vec<Node>, String, Receiver<Option<ErrorKind>>) {
    let mut config = config(&world, count, more);
    if more.contains("majority") || more.contains("witness = ") {
        // In majority mode nobody asks it, and a file that names it is refused.
        config = config
            .lines()
            .filter(|line| !line.starts_with("witness =") || more.contains(line))
            .map(|line| format!("{line}\n"))
            .collect();
    }
    let (ended, ends) = channel();
    let at = Server::Plain.address(&world);
    world.switch.run(move || {
        let listener = TcpListener::bind(at).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let ended = ended.clone();
                std::thread::spawn(move || ended.send(echo(stream)));
            }
        });
    });
    let nodes: Vec<Node> = (1..=count).map(|number| world.start(number, &config)).collect();
    crate::world::settled(&nodes);
    (world, nodes, config, ends)
}

/// Sends back until the end; `None` for one in order. A zero asks it to break the connection.
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

/// The client's end.
pub(crate) struct Line {
    pub(crate) stream: TcpStream,
    reported: u8,
}

impl Line {
    /// A new connection; an error when nobody answers.
    pub(crate) fn open(world: &World) -> std::io::Result<Line> {
        let to = SocketAddr::new(world.family.address(), Carrier::Tcp.port(Server::Plain));
        let stream = world.switch.run(move || TcpStream::connect_timeout(&to, SILENCE))?;
        Ok(Line { stream, reported: 0 })
    }

    /// Something is said and comes back.
    pub(crate) fn continues(&mut self, when: &str) {
        self.state_text();
        self.is_reachable_from(when);
    }

    fn state_text(&mut self) {
        self.reported = self.reported % 200 + 1;
        self.stream.write_all(&[self.reported]).unwrap();
    }

    /// What was said last comes back.
    pub(crate) fn is_reachable_from(&mut self, when: &str) {
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut peer_input = [0];
        while peer_input[0] != self.reported {
            self.stream.read_exact(&mut peer_input).unwrap_or_else(|error| panic!("{when}: {error}"));
        }
    }

    /// Something is said, and neither an answer nor an end comes.
    pub(crate) fn is_silent(&mut self, when: &str) {
        self.state_text();
        self.stream.set_read_timeout(Some(SILENCE)).unwrap();
        let peer_input = self.stream.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(peer_input, Err(ErrorKind::WouldBlock), "{when}");
    }
}

/// Takes out the node that carries a connection.
pub(crate) fn carrier(nodes: &mut Vec<Node>) -> Node {
    let carries = |node: &Node| {
        let status: serde_json::Value = serde_json::from_str(&node.cli(&["status", "--json"]).out).unwrap();
        status["connections"]["open"].as_u64().is_some_and(|open| open > 0)
    };
    let place = eventually("a node carries the connection", || nodes.iter().position(carries));
    nodes.remove(place)
}
