//! A client's connection: TLS 1.3 to the cluster's address, HTTP/1.1 on it.

use evergate_http::{HeaderSlots, Limits, Parsed, ResponseFraming, parse_response};
use rustls::{ClientConfig, ClientConnection, ProtocolVersion, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// A connection that is silent for so long is broken.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Read at a time while a head is incomplete.
const READ_BYTES: usize = 16_384;

/// Destination of a connection, and its trust settings.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) address: SocketAddr,
    pub(super) name: &'static str,
    pub(super) config: Arc<ClientConfig>,
}

/// A connection. Reading gives bodies and what follows a 101.
pub(super) struct Line {
    stream: StreamOwned<ClientConnection, TcpStream>,
    host: &'static str,
    /// Read behind a head, and not yet taken.
    behind: Vec<u8>,
}

/// The head of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) status: u16,
    pub(super) body_bytes: u64,
}

impl Line {
    /// Connects, with the whole handshake.
    pub(super) fn open(target: &Target) -> io::Result<Line> {
        let stream = TcpStream::connect_timeout(&target.address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let name = target.name.try_into().map_err(io::Error::other)?;
        let connection = ClientConnection::new(target.config.clone(), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(connection, stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        match stream.conn.protocol_version() {
            Some(ProtocolVersion::TLSv1_3) => Ok(Line { stream, host: target.name, behind: Vec::new() }),
            other => Err(io::Error::other(format!("not TLS 1.3 but {other:?}"))),
        }
    }

    /// Sends the head of a request. `more`: header lines, each with its end.
    pub(super) fn ask(&mut self, method: &str, target: &str, more: &str) -> io::Result<()> {
        let host = self.host;
        self.write_all(format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n").as_bytes())
    }

    /// Reads the head of the response.
    pub(super) fn head(&mut self) -> io::Result<Head> {
        let mut slots = HeaderSlots::new();
        let mut buffer = [0; READ_BYTES];
        loop {
            match parse_response(&self.behind, &Limits::default(), &mut slots, false) {
                Ok(Parsed::Complete(head)) => {
                    let body_bytes = match head.framing {
                        ResponseFraming::Length(length) => length,
                        ResponseFraming::None => 0,
                        _ => return Err(io::Error::other("a body without a length")),
                    };
                    let (status, length) = (head.status, head.head_len);
                    self.behind.drain(..length);
                    return Ok(Head { status, body_bytes });
                }
                Ok(Parsed::Partial) => {}
                Err(refusal) => return Err(io::Error::other(refusal.reason)),
            }
            let count = self.stream.read(&mut buffer)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.behind.extend_from_slice(&buffer[..count]);
        }
    }

    /// Reads the head of a response with this status, and its body.
    pub(super) fn response(&mut self, status: u16) -> io::Result<Vec<u8>> {
        let head = self.head()?;
        let mut body = vec![0; usize::try_from(head.body_bytes).map_err(io::Error::other)?];
        self.read_exact(&mut body)?;
        if head.status == status {
            return Ok(body);
        }
        Err(io::Error::other(format!("status {}: {}", head.status, String::from_utf8_lossy(&body).trim())))
    }
}

impl Read for Line {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.behind.is_empty() {
            return self.stream.read(buffer);
        }
        let length = self.behind.len().min(buffer.len());
        buffer[..length].copy_from_slice(&self.behind[..length]);
        self.behind.drain(..length);
        Ok(length)
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
