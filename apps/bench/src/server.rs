//! Echo server: one thread, one epoll.
//!
//! Memory per connection is bounded by an incomplete head or frame, and the echo of one read. While an echo waits, the
//! server does not read.

use crate::frame;
use anyhow::{Context, Result, bail};
use evergate_sys::{Epoll, Event};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

const EVENTS: usize = 512;
const READ_BYTES: usize = 262_144;
const HEAD_MAX: usize = 16_384;
const RAW: u64 = 0;
const HTTP: u64 = 1;

enum State {
    /// Every byte is sent back.
    Raw,
    /// The next input is a request head.
    Head,
    /// Remaining bytes of an upload; the response has their hash if the request asked for it.
    Upload { left: usize, hash: Option<Sha256> },
    /// Every WebSocket frame is sent back.
    Frames,
}

struct Peer {
    stream: TcpStream,
    state: State,
    /// Received and incomplete.
    input: Vec<u8>,
    /// To be sent.
    out: Vec<u8>,
}

/// Serves until the process ends.
pub(crate) fn serve(raw: TcpListener, http: TcpListener) -> Result<()> {
    let mut epoll = Epoll::new(EVENTS)?;
    for (listener, token) in [(&raw, RAW), (&http, HTTP)] {
        listener.set_nonblocking(true)?;
        epoll.add_input(listener.as_raw_fd(), token)?;
    }
    let mut peers: HashMap<u64, Peer> = HashMap::new();
    let mut next = HTTP + 1;
    let mut buffer = vec![0; READ_BYTES];
    loop {
        for index in 0..epoll.wait(-1)? {
            let event = epoll.event(index);
            let listener = match event.token {
                RAW => &raw,
                HTTP => &http,
                token => {
                    if let Some(peer) = peers.get_mut(&token)
                        && !peer.handle(event, &mut buffer).unwrap_or(false)
                    {
                        peers.remove(&token);
                    }
                    continue;
                }
            };
            while let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                epoll.add(stream.as_raw_fd(), next)?;
                let state = if event.token == RAW { State::Raw } else { State::Head };
                peers.insert(next, Peer { stream, state, input: Vec::new(), out: Vec::new() });
                next += 1;
            }
        }
    }
}

impl Peer {
    /// Reads and answers until the socket blocks. Returns false at the end of the stream.
    fn handle(&mut self, event: Event, buffer: &mut [u8]) -> Result<bool> {
        self.flush()?;
        while self.out.is_empty() {
            let count = match self.stream.read(buffer) {
                Ok(0) => return Ok(false),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            };
            self.take(&buffer[..count])?;
            self.flush()?;
            if count < buffer.len() && !event.ended {
                break;
            }
        }
        Ok(true)
    }

    fn flush(&mut self) -> Result<()> {
        while !self.out.is_empty() {
            match self.stream.write(&self.out) {
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.state {
            State::Raw => self.out.extend_from_slice(bytes),
            State::Upload { left, hash } if *left > bytes.len() => {
                *left -= bytes.len();
                if let Some(hash) = hash {
                    hash.update(bytes);
                }
            }
            _ => {
                self.input.extend_from_slice(bytes);
                while self.step()? {}
            }
        }
        Ok(())
    }

    /// Consumes one head, frame or end of an upload from the input; returns false when it is incomplete.
    fn step(&mut self) -> Result<bool> {
        match &mut self.state {
            State::Raw => Ok(false),
            State::Head => self.take_head(),
            State::Upload { left, hash } if *left > self.input.len() => {
                *left -= self.input.len();
                if let Some(hash) = hash {
                    hash.update(&self.input);
                }
                self.input.clear();
                Ok(false)
            }
            State::Upload { left, hash } => {
                let rest = self.input.split_off(*left);
                let body = hash.take().map_or_else(String::new, |mut hash| {
                    hash.update(&self.input);
                    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
                });
                self.input = rest;
                self.out.extend(
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).bytes(),
                );
                self.state = State::Head;
                Ok(true)
            }
            State::Frames => {
                let Some((payload, length)) = frame::decode(&self.input)? else { return Ok(false) };
                self.input.drain(..length);
                frame::encode(&payload, None, &mut self.out)?;
                Ok(true)
            }
        }
    }

    fn take_head(&mut self) -> Result<bool> {
        let Some(end) = self.input.windows(4).position(|window| window == b"\r\n\r\n") else {
            if self.input.len() > HEAD_MAX {
                bail!("a head of more than {HEAD_MAX} bytes");
            }
            return Ok(false);
        };
        let rest = self.input.split_off(end + 4);
        let head = String::from_utf8(std::mem::replace(&mut self.input, rest)).context("a head")?;
        if let Some(key) = field(&head, "sec-websocket-key") {
            let accept = evergate_demo::websocket_accept(key);
            self.out
                .extend(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n");
            self.out.extend(format!("Sec-WebSocket-Accept: {accept}\r\n\r\n").bytes());
            self.state = State::Frames;
        } else {
            let left = field(&head, "content-length").unwrap_or("0").parse().context("Content-Length")?;
            let hash = head.starts_with("POST /sha256 ").then(Sha256::new);
            self.state = State::Upload { left, hash };
        }
        Ok(true)
    }
}

/// Value of the first field of this name, given in lower case.
pub(crate) fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let fields = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
    fields.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
}
