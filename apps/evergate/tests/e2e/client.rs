//! Small HTTP/1.1 peer that shows the exact bytes on the wire.

use super::node::DEADLINE;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

/// Start line with its fields.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) start: String,
    pub(crate) text: String,
}

impl Head {
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let named =
            |line: &&str| line.split(':').next().is_some_and(|found| found.eq_ignore_ascii_case(name));
        let line = self.text.lines().skip(1).find(named)?;
        Some(line.split_once(':')?.1.trim().to_owned())
    }
}

/// Response, read whole.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: String,
}

impl Response {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Stream with its read-ahead buffer.
pub(crate) struct Wire<S> {
    pub(crate) stream: S,
    pub(crate) buffer: Vec<u8>,
}

pub(crate) fn tcp(address: SocketAddr) -> TcpStream {
    try_tcp(address).unwrap()
}

fn try_tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connection from another address of this machine, such as 127.0.0.7.
pub(crate) fn connect_from(source: impl Into<IpAddr>, address: SocketAddr) -> Wire<TcpStream> {
    let socket = match address {
        SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4().unwrap(),
        SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6().unwrap(),
    };
    socket.bind(SocketAddr::new(source.into(), 0)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let stream = runtime.block_on(socket.connect(address)).unwrap().into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    Wire::new(stream)
}

pub(crate) fn connect(address: SocketAddr) -> Wire<TcpStream> {
    Wire::new(tcp(address))
}

/// [`connect`] to a node that may refuse. Its reset may come before the kernel reports the connection as established.
pub(crate) fn try_connect(address: SocketAddr) -> io::Result<Wire<TcpStream>> {
    try_tcp(address).map(Wire::new)
}

/// Whether a new connection ends without an answer.
pub(crate) fn is_refused(address: SocketAddr) -> bool {
    match try_connect(address).and_then(|mut wire| wire.get("/x")) {
        Ok(_) => false,
        Err(error) => !is_timeout(&error),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Sends one GET on a new connection.
pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    connect(address).get(path).unwrap()
}

impl<S: Read + Write> Wire<S> {
    pub(crate) fn new(stream: S) -> Wire<S> {
        Wire { stream, buffer: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())?;
        self.stream.flush()
    }

    pub(crate) fn get(&mut self, path: &str) -> io::Result<Response> {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))?;
        self.response()
    }

    pub(crate) fn post(&mut self, path: &str, body: &[u8]) -> io::Result<Response> {
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
        self.send([head.as_bytes(), body].concat())?;
        self.response()
    }

    /// Next final response.
    pub(crate) fn response(&mut self) -> io::Result<Response> {
        loop {
            let response = self.response_to(false)?;
            if !(100..200).contains(&response.status) || response.status == 101 {
                return Ok(response);
            }
        }
    }

    /// Next response, interim ones included. A response to HEAD has no body.
    pub(crate) fn response_to(&mut self, head_only: bool) -> io::Result<Response> {
        let head = self.read_head()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let status: u16 =
            head.start.get(9..12).and_then(|code| code.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        let bodiless = head_only || status < 200 || status == 204 || status == 304;
        let (body, trailers) = if bodiless { Default::default() } else { read_body(self, &head, true)? };
        Ok(Response { status, head, body, trailers })
    }

    /// All bytes until the peer closes; a reset counts as a close.
    pub(crate) fn until_closed(&mut self) -> Vec<u8> {
        while matches!(self.fill(), Ok(true)) {}
        std::mem::take(&mut self.buffer)
    }

    /// Whether the peer closes without further bytes.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.fill() {
            Ok(more) => !more && self.buffer.is_empty(),
            Err(error) => !is_timeout(&error),
        }
    }

    /// Reads more bytes; false at the end.
    pub(crate) fn fill(&mut self) -> io::Result<bool> {
        let mut more = [0; 65_536];
        let count = self.stream.read(&mut more)?;
        self.buffer.extend_from_slice(&more[..count]);
        Ok(count > 0)
    }

    pub(crate) fn exactly(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < count {
            if !self.fill()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let rest = self.buffer.split_off(count);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    fn up_to(&mut self, end: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let mut from = 0;
        loop {
            if let Some(at) = self.buffer[from..].windows(end.len()).position(|part| part == end) {
                return self.exactly(from + at + end.len()).map(Some);
            }
            from = self.buffer.len().saturating_sub(end.len());
            if !self.fill()? {
                return if self.buffer.is_empty() {
                    Ok(None)
                } else {
                    Err(io::ErrorKind::UnexpectedEof.into())
                };
            }
        }
    }

    pub(crate) fn read_head(&mut self) -> io::Result<Option<Head>> {
        let Some(bytes) = self.up_to(b"\r\n\r\n")? else { return Ok(None) };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(Some(Head { start: text.lines().next().unwrap_or_default().to_owned(), text }))
    }
}

/// Body with its trailers. A response without a length ends with its connection.
pub(crate) fn read_body<S: Read + Write>(
    wire: &mut Wire<S>,
    head: &Head,
    to_end: bool,
) -> io::Result<(Vec<u8>, String)> {
    if head.field("transfer-encoding").is_some() {
        let mut body = Vec::new();
        loop {
            let line = wire.up_to(b"\r\n")?.ok_or(io::ErrorKind::UnexpectedEof)?;
            let line = String::from_utf8_lossy(&line).into_owned();
            let size = line.split([';', '\r']).next().unwrap_or_default();
            let size = usize::from_str_radix(size, 16).map_err(|_| io::ErrorKind::InvalidData)?;
            if size == 0 {
                break;
            }
            body.extend(wire.exactly(size)?);
            wire.exactly(2)?;
        }
        let mut trailers = String::new();
        loop {
            let line = wire.up_to(b"\r\n")?.ok_or(io::ErrorKind::UnexpectedEof)?;
            if line == b"\r\n" {
                return Ok((body, trailers));
            }
            trailers.push_str(&String::from_utf8_lossy(&line));
        }
    }
    match head.field("content-length") {
        Some(count) => {
            Ok((wire.exactly(count.parse().map_err(|_| io::ErrorKind::InvalidData)?)?, String::new()))
        }
        None if to_end => Ok((wire.until_closed(), String::new())),
        None => Ok((Vec::new(), String::new())),
    }
}
