//! HTTP server in this process: it has a thread per connection, records requests, and can die at once.

use super::client::{Head, Wire, read_body};
use super::node::eventually;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: String,
}

#[derive(Default)]
struct State {
    name: String,
    dead: AtomicBool,
    connections: AtomicU64,
    requests: AtomicU64,
    seen: Mutex<Vec<Seen>>,
    open: Mutex<Vec<TcpStream>>,
    gate: Mutex<bool>,
    opened: Condvar,
}

pub(crate) struct Backend {
    address: SocketAddr,
    state: Arc<State>,
}

impl Backend {
    pub(crate) fn new(name: &str) -> Backend {
        Backend::at(name, "127.0.0.1:0".parse().unwrap())
    }

    /// Server at the address of a dead one.
    pub(crate) fn at(name: &str, address: SocketAddr) -> Backend {
        // The thread of the previous server may still hold the port.
        let listener = eventually("the address is free", || TcpListener::bind(address).ok());
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { name: name.to_owned(), ..State::default() });
        let shared = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if shared.dead.load(Ordering::SeqCst) {
                    return;
                }
                let _ = stream.set_nodelay(true);
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let mut open = shared.open.lock().unwrap();
                open.push(stream.try_clone().unwrap());
                let state = shared.clone();
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        Backend { address, state }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn connections(&self) -> u64 {
        self.state.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::SeqCst)
    }

    /// Requests that arrived whole, in order.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    /// Releases the answers to requests for `/hold`.
    pub(crate) fn open_gate(&self) {
        *self.state.gate.lock().unwrap() = true;
        self.state.opened.notify_all();
    }

    /// Closes the listener and all connections at once.
    pub(crate) fn die(&self) {
        if self.state.dead.swap(true, Ordering::SeqCst) {
            return;
        }
        let _ = TcpStream::connect(self.address); // ends the wait in accept
        for stream in self.state.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.open_gate();
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.die();
    }
}

/// Bytes of the answer to `/bytes/N`.
pub(crate) fn pattern(count: usize) -> Vec<u8> {
    // The period is a prime, so that a part at a wrong place shows.
    let period: Vec<u8> = (0..65_521).map(|index| (index * 31 + (index >> 8) * 7) as u8).collect();
    let mut all = period.repeat(count / period.len() + 1);
    all.truncate(count);
    all
}

fn serve(stream: TcpStream, state: &State) {
    let mut wire = Wire::new(stream);
    while let Ok(Some(head)) = wire.read_head() {
        state.requests.fetch_add(1, Ordering::SeqCst);
        if head.field("expect").is_some() && write!(wire.stream, "HTTP/1.1 100 Continue\r\n\r\n").is_err() {
            return;
        }
        let Ok((body, trailers)) = read_body(&mut wire, &head, false) else { return };
        state.seen.lock().unwrap().push(Seen { head: head.clone(), body: body.clone(), trailers });
        if answer(&mut wire, state, &head, body).is_err() {
            return;
        }
    }
}

fn answer(wire: &mut Wire<TcpStream>, state: &State, head: &Head, body: Vec<u8>) -> std::io::Result<()> {
    let target = head.start.split(' ').nth(1).unwrap_or_default();
    let is_head = head.start.starts_with("HEAD ");
    let content = match target {
        "/echo" => body,
        "/head" => head.text.clone().into_bytes(),
        "/hold" => {
            let mut gate = state.gate.lock().unwrap();
            while !*gate {
                gate = state.opened.wait(gate).unwrap();
            }
            state.name.clone().into_bytes()
        }
        "/chunked" => {
            return wire.stream.write_all(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\
                  Connection: X-Private\r\nX-Private: 1\r\n\r\n\
                  5;ext=1\r\nhello\r\n6\r\n world\r\n0\r\nX-Sum: 11\r\n\r\n",
            );
        }
        "/close-delimited" => {
            wire.stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nuntil the end")?;
            wire.stream.shutdown(Shutdown::Both)?;
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        "/upgrade" => {
            wire.stream.write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nfirst",
            )?;
            let early = std::mem::take(&mut wire.buffer);
            wire.stream.write_all(&early)?;
            let mut buffer = [0; 4096];
            loop {
                match wire.stream.read(&mut buffer)? {
                    0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                    count => wire.stream.write_all(&buffer[..count])?,
                }
            }
        }
        "/minor" => {
            return wire.stream.write_all(b"HTTP/1.3 200 OK\r\nContent-Length: 5\r\n\r\nminor");
        }
        other => match (other.strip_prefix("/bytes/"), other.strip_prefix("/switch/")) {
            (Some(count), _) => pattern(count.parse().unwrap_or(0)),
            (_, Some(protocol)) => {
                let named = format!("Upgrade: {protocol}\r\n");
                let field = if protocol.is_empty() { "" } else { &named };
                let head = format!("HTTP/1.1 101 X\r\nConnection: Upgrade\r\n{field}\r\n");
                wire.stream.write_all(head.as_bytes())?;
                return Err(std::io::ErrorKind::ConnectionAborted.into());
            }
            _ => state.name.clone().into_bytes(),
        },
    };
    let mut response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", content.len()).into_bytes();
    if !is_head {
        response.extend_from_slice(&content);
    }
    wire.stream.write_all(&response)
}
