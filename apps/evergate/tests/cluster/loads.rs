//! Connections with much work, all at one node. The other nodes receive some of them, and no request is lost.

use crate::traffic::{PATIENCE, Server, Transport, config, head};
use crate::world::{Node, World, eventually, privileged, settled};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Active connections, and the requests that each one pipelines. Responses must come in the order of the requests.
const ACTIVE: usize = 8;
const AT_ONCE: u64 = 16;

/// Answers each request with its path, one thread per connection.
fn serve(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        stream.set_nodelay(true).unwrap();
        std::thread::spawn(move || -> std::io::Result<()> {
            let mut reader = BufReader::new(stream.try_clone()?);
            let (mut stream, mut line) = (stream, String::new());
            let mut path = String::new();
            while reader.read_line(&mut line)? > 0 {
                if let Some(rest) = line.strip_prefix("GET ") {
                    path = rest.split(' ').next().unwrap_or_default().to_owned();
                } else if line == "\r\n" {
                    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len())?;
                }
                line.clear();
            }
            Ok(())
        });
    }
}

/// Client that sends requests without a pause.
struct ActiveClient {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl ActiveClient {
    fn start(mut stream: TcpStream) -> ActiveClient {
        let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, answered) = (stop.clone(), answers.clone());
        let thread = std::thread::spawn(move || {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut next = 0;
            while !stopped.load(Ordering::Relaxed) {
                let some: String =
                    (next..next + AT_ONCE).map(|n| format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
                stream.write_all(some.as_bytes()).unwrap();
                for number in next..next + AT_ONCE {
                    let response = head(&mut reader).unwrap();
                    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
                    let wanted = format!("/{number}");
                    let mut body = vec![0; wanted.len()];
                    reader.read_exact(&mut body).unwrap();
                    assert_eq!(body, wanted.as_bytes());
                }
                next += AT_ONCE;
                answered.store(next, Ordering::Relaxed);
            }
        });
        ActiveClient { stop, answers, thread }
    }
}

fn open(node: &Node) -> u64 {
    let status: serde_json::Value = serde_json::from_str(&node.cli(&["status", "--json"]).out).unwrap();
    status["connections"]["open"].as_u64().unwrap()
}

/// Connections that the first node carries. A connection that reaches another node is closed again.
fn all_at_the_first(world: &World, nodes: &[Node]) -> Vec<TcpStream> {
    let to = SocketAddr::new(world.family.address(), Transport::Http.port(Server::Plain));
    let mut carried: Vec<TcpStream> = Vec::new();
    while carried.len() < ACTIVE {
        let stream = world.switch.run(move || TcpStream::connect_timeout(&to, PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let one_more = carried.len() as u64 + 1;
        let there = eventually("a node has it", || {
            let counts: Vec<u64> = nodes.iter().map(open).collect();
            (counts.iter().sum::<u64>() == one_more).then_some(counts[0] == one_more)
        });
        if there {
            carried.push(stream);
        } else {
            drop(stream);
            eventually("it is gone", || (nodes.iter().map(open).sum::<u64>() < one_more).then_some(()));
        }
    }
    carried
}

#[test]
fn active_connections_move_to_less_loaded_nodes() {
    if !privileged() {
        return;
    }
    let world = World::alone(3);
    let config = config(&world, 3, "");
    let nodes: Vec<Node> = (1..=3).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    let at = Server::Plain.address(&world);
    world.switch.run(move || {
        let listener = TcpListener::bind(at).unwrap();
        std::thread::spawn(move || serve(&listener));
    });
    let active: Vec<ActiveClient> =
        all_at_the_first(&world, &nodes).into_iter().map(ActiveClient::start).collect();
    let spread =
        |counts: &[u64]| counts.iter().sum::<u64>() == ACTIVE as u64 && counts.iter().all(|open| *open > 0);
    let counts = eventually("every node carries some of them", || {
        let counts: Vec<u64> = nodes.iter().map(open).collect();
        spread(&counts).then_some(counts)
    });
    let before: Vec<u64> = active.iter().map(|one| one.answers.load(Ordering::Relaxed)).collect();
    eventually("all continue", || {
        let continues = |(one, before): (&ActiveClient, &u64)| one.answers.load(Ordering::Relaxed) > *before;
        active.iter().zip(&before).all(continues).then_some(())
    });
    active.iter().for_each(|one| one.stop.store(true, Ordering::Relaxed));
    active.into_iter().for_each(|one| one.thread.join().unwrap());
    println!("{counts:?}, {before:?} answers");
    for status in settled(&nodes) {
        assert_eq!(status.counts.connections_lost + status.counts.failovers, 0, "{:?}", status.counts);
        assert!(status.nodes.iter().all(|node| node.load.is_some_and(|load| load > 0)), "{status:?}");
    }
}
