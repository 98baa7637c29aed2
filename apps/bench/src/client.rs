//! Echo clients: connections that each have one message under way.

use crate::frame;
use crate::server::field;
use crate::wire::{Wire, tls_config};
use anyhow::{Context, Result, bail, ensure};
use evergate_demo::websocket_accept;
use evergate_sys::Epoll;
use rustls::ClientConfig;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

const READ_BYTES: usize = 65_536;
const HEAD_MAX: usize = 4_096;
/// Time without an echo that counts as an error.
const SILENCE_MS: i32 = 5_000;
/// RFC 6455 section 1.3.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// Parameters of a load.
pub(crate) struct Load {
    pub(crate) address: SocketAddr,
    pub(crate) connections: usize,
    /// Payload of a message, in bytes.
    pub(crate) bytes: usize,
    /// Duration of sending.
    pub(crate) span: Duration,
    pub(crate) websocket: bool,
    pub(crate) tls: bool,
}

/// Completed work of a load.
pub(crate) struct Done {
    /// Messages whose echo is complete.
    pub(crate) echoes: u64,
    pub(crate) took: Duration,
}

struct Session {
    wire: Wire,
    message: Vec<u8>,
    echo: Vec<u8>,
    /// Bytes of the echo received so far.
    come: usize,
}

/// Opens all connections, then sends and receives until the time is over. Any byte that differs is an error.
pub(crate) fn run(load: &Load) -> Result<Done> {
    ensure!(load.connections > 0 && load.bytes > 0, "neither connections nor bytes may be 0");
    let config = tls_config()?;
    let mut epoll = Epoll::new(load.connections)?;
    let mut sessions = Vec::new();
    for index in 0..load.connections {
        let session = Session::open(load, &config, index).with_context(|| format!("connection {index}"))?;
        session.wire.socket().set_nonblocking(true)?;
        epoll.add(session.wire.socket().as_raw_fd(), index as u64)?;
        sessions.push(session);
    }
    let (started, mut echoes) = (Instant::now(), 0);
    for session in &mut sessions {
        session.send()?;
    }
    let mut buffer = vec![0; READ_BYTES];
    while started.elapsed() < load.span {
        let count = epoll.wait(SILENCE_MS)?;
        ensure!(count > 0, "no echo within {SILENCE_MS} ms");
        for index in 0..count {
            let event = epoll.event(index);
            if event.readable {
                echoes += sessions[event.token as usize].receive(&mut buffer)?;
            }
        }
    }
    Ok(Done { echoes, took: started.elapsed() })
}

impl Session {
    fn open(load: &Load, config: &Arc<ClientConfig>, index: usize) -> Result<Session> {
        let tls = load.tls.then_some((config, "bench.example"));
        let mut wire = Wire::open(load.address, tls, Duration::from_millis(SILENCE_MS as u64))?;
        // Each connection has its own payload, so that bytes of another connection are detected.
        let payload: Vec<u8> = (0..load.bytes).map(|at| (at * 31 + index * 7) as u8).collect();
        let (mut message, mut echo) = (Vec::new(), Vec::new());
        if load.websocket {
            upgrade(&mut wire)?;
            frame::encode(&payload, Some(MASK), &mut message)?;
            frame::encode(&payload, None, &mut echo)?;
        } else {
            (message, echo) = (payload.clone(), payload);
        }
        Ok(Session { wire, message, echo, come: 0 })
    }

    fn send(&mut self) -> Result<()> {
        self.wire.write_all(&self.message).and_then(|()| self.wire.flush()).context("sending a message")
    }

    /// Reads available bytes and sends the next message after a whole echo. Returns the number of whole echoes.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<u64> {
        let mut echoes = 0;
        loop {
            let count = match self.wire.read(buffer) {
                Ok(0) => bail!("the connection was closed"),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(echoes),
                Err(error) => return Err(error).context("receiving an echo"),
            };
            ensure!(self.echo.get(self.come..self.come + count) == Some(&buffer[..count]), "an echo differs");
            self.come += count;
            if self.come == self.echo.len() {
                self.come = 0;
                echoes += 1;
                self.send()?;
            }
            // Only one message is under way: a plain socket has nothing more.
            if matches!(self.wire, Wire::Plain(_)) && count < buffer.len() {
                return Ok(echoes);
            }
        }
    }
}

/// Upgrades the connection to a WebSocket (RFC 6455 section 4.1).
fn upgrade(wire: &mut Wire) -> Result<()> {
    let request = format!(
        "GET /ws HTTP/1.1\r\nHost: bench.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
    );
    wire.write_all(request.as_bytes())?;
    wire.flush()?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        ensure!(head.len() < HEAD_MAX && wire.read(&mut byte)? == 1, "no whole response head");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head)?;
    let accepted = field(&head, "sec-websocket-accept") == Some(&websocket_accept(KEY));
    ensure!(head.starts_with("HTTP/1.1 101 ") && accepted, "no WebSocket: {head:?}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::serve;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn client_counts_the_echoes_of_the_server() {
        let (raw, http) =
            (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let (raw_address, http_address) = (raw.local_addr().unwrap(), http.local_addr().unwrap());
        std::thread::spawn(move || serve(raw, http));
        for (address, websocket, bytes) in
            [(raw_address, false, 125), (raw_address, false, 300_000), (http_address, true, 4096)]
        {
            let span = Duration::from_millis(50);
            let load = Load { address, connections: 3, bytes, span, websocket, tls: false };
            assert!(run(&load).unwrap().echoes > 0, "{bytes} bytes");
        }
        // An upload and its hash: SHA-256 of "abc", FIPS 180-4, which comes in two parts.
        let mut stream = TcpStream::connect(http_address).unwrap();
        stream
            .write_all(b"POST /upload HTTP/1.1\r\nContent-Length: 4\r\n\r\nxxxxPOST /sha256 HTTP/1.1\r\n")
            .unwrap();
        stream.write_all(b"Content-Length: 3\r\n\r\na").unwrap();
        stream.write_all(b"bc").unwrap();
        let expected = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 64\r\n\r\n\
             ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let mut answer = vec![0; expected.len()];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(String::from_utf8(answer).unwrap(), expected);
    }
}
