//! One check of one server: connect, do the TLS handshake where the pool uses TLS, send the request, and check the
//! status. Then the rest of the response is read and the connection ends in order, because servers log a RST at each
//! check.
//!
//! The server is not trusted more than any peer: the response's head is bounded and parsed by the data path's parser.
//! The rest of the response is bounded too.

use evergate_base::{ProxyHeader, ProxyVersion};
use evergate_config::model::{HealthCheck, Server, StatusRange};
use evergate_connection::UpstreamTls;
use evergate_http::{Body, HeaderSlots, Limits, Parsed, parse_response};
use evergate_proxy_protocol::{Extras, encode_v1, encode_v2};
use evergate_tls::{error_text, foreign_answer};
use rustls::ClientConnection;
use rustls_pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Why a check has not found a server well.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The server, or the way to it.
    OfServer(String),
    /// This machine could not make the check, which shows nothing about the server.
    OfMachine(String),
}

impl From<String> for Failure {
    fn from(what: String) -> Failure {
        Failure::OfServer(what)
    }
}

/// Whether connecting failed because of this machine, which shows nothing about the server: no descriptor, no memory
/// for a socket, no local port.
pub(crate) fn is_of_machine(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS))
}

/// Cause of a failed connection attempt.
fn unconnected(error: &io::Error) -> Failure {
    let what = format!("cannot connect: {error}");
    if is_of_machine(error) { Failure::OfMachine(what) } else { Failure::OfServer(what) }
}

/// Bytes that are read behind an answer's head, at most; a longer answer is cut off by RST.
const REMAINDER_BYTES_MAX: usize = 1 << 20;

/// Parameters of a check.
pub(super) struct Probe {
    address: SocketAddr,
    /// PROXY header without addresses, where the pool's connections begin with one.
    header: Vec<u8>,
    /// With the name under which the server is asked for and verified.
    tls: Option<(UpstreamTls, ServerName<'static>)>,
    http: Option<Http>,
}

struct Http {
    request: Vec<u8>,
    expect: Vec<StatusRange>,
}

impl Probe {
    pub(super) fn new(
        server: &Server,
        check: &HealthCheck,
        tls: Option<(UpstreamTls, ServerName<'static>)>,
        header: Option<ProxyHeader>,
    ) -> Probe {
        let http = match check {
            HealthCheck::Tcp => None,
            HealthCheck::Http { path, host, expect } => {
                let host = host.clone().unwrap_or_else(|| authority(server));
                let version = env!("CARGO_PKG_VERSION");
                let request = format!(
                    "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: evergate-health/{version}\r\n\
                     Accept: */*\r\nConnection: close\r\n\r\n"
                );
                Some(Http { request: request.into_bytes(), expect: expect.clone() })
            }
        };
        Probe { address: server.address(), header: header.map(own_header).unwrap_or_default(), tls, http }
    }

    /// The address that is checked: the one that requests go to.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The result or its error, and the connection that is left to be closed. The caller bounds the time.
    pub(super) async fn run(&self) -> (Result<String, Failure>, Option<AnswerRemainder>) {
        let mut stream = match Stream::connect(self.address, &self.header, self.tls.as_ref()).await {
            Ok(stream) => stream,
            Err(failure) => return (Err(failure), None),
        };
        let Some(http) = &self.http else {
            let seen = if self.tls.is_some() { "TLS handshake completed" } else { "connected" };
            return (
                Ok(seen.to_owned()),
                Some(AnswerRemainder { stream, body: Body::Done, received: Vec::new() }),
            );
        };
        match http.ask(&mut stream).await {
            Ok(Answer { status, body, received }) => {
                (http.judge(status), Some(AnswerRemainder { stream, body, received }))
            }
            Err(what) => {
                (Err(what.into()), Some(AnswerRemainder { stream, body: Body::Done, received: Vec::new() }))
            }
        }
    }
}

/// The head of a final response, and the bytes received after it.
struct Answer {
    status: u16,
    body: Body,
    received: Vec<u8>,
}

impl Http {
    async fn ask(&self, stream: &mut Stream) -> Result<Answer, String> {
        stream.send(&self.request).await.map_err(|error| format!("cannot send the request: {error}"))?;
        answer(stream).await
    }

    fn judge(&self, status: u16) -> Result<String, Failure> {
        match self.expect.iter().any(|range| range.contains(status)) {
            true => Ok(format!("status {status}")),
            false => Err(format!("status {status}, expected {}", shown(&self.expect)).into()),
        }
    }
}

/// The connection of a check whose result is known, and how much of the answer is still to come.
pub(super) struct AnswerRemainder {
    stream: Stream,
    body: Body,
    received: Vec<u8>,
}

impl AnswerRemainder {
    /// Reads the answer to its end and closes: close_notify, FIN, and reads until the server's FIN. The
    /// caller bounds the time; when that is over, the connection is closed as it is.
    pub(super) async fn close(mut self) {
        let mut left = REMAINDER_BYTES_MAX;
        let limits = Limits::default();
        while !self.body.is_done() && self.body.advance(&self.received, &limits).is_ok() && left > 0 {
            if self.body.is_done() {
                break;
            }
            self.received.clear();
            match self.stream.receive(&mut self.received).await {
                Ok(count) if count > 0 => left = left.saturating_sub(count),
                _ => break,
            }
        }
        self.stream.close(left).await;
    }
}

/// Header of a connection of the node itself.
fn own_header(header: ProxyHeader) -> Vec<u8> {
    let mut out = Vec::new();
    match header.version {
        ProxyVersion::V1 => encode_v1(None, &mut out),
        ProxyVersion::V2 => {
            let _ = encode_v2(None, &Extras::default(), &mut out); // without fields it is short
        }
    }
    out
}

/// Host and port as the configuration names them.
fn authority(server: &Server) -> String {
    let port = server.address().port();
    if server.host.contains(':') {
        format!("[{}]:{port}", server.host)
    } else {
        format!("{}:{port}", server.host)
    }
}

fn shown(ranges: &[StatusRange]) -> String {
    let shown = |range: &StatusRange| match (range.first, range.last) {
        (first, last) if first == last => first.to_string(),
        (first, last) => format!("{first}-{last}"),
    };
    ranges.iter().map(shown).collect::<Vec<_>>().join(", ")
}

/// The final response as far as its head.
async fn answer(stream: &mut Stream) -> Result<Answer, String> {
    let limits = Limits::default();
    let mut slots = HeaderSlots::new();
    let mut received = Vec::new();
    loop {
        let seen = match parse_response(&received, &limits, &mut slots, false) {
            Err(refusal) => return Err(format!("the answer is not HTTP/1: {}", refusal.reason)),
            Ok(Parsed::Complete(head)) => Some((head.status, head.is_interim(), head.head_len, head.body())),
            Ok(Parsed::Partial) => None,
        };
        match seen {
            Some((_, true, length, _)) => {
                received.drain(..length);
            }
            Some((status, false, length, body)) => {
                received.drain(..length);
                return Ok(Answer { status, body, received });
            }
            None => match stream.receive(&mut received).await {
                Ok(0) => return Err("the connection ended before the answer's head".to_owned()),
                Ok(_) => {}
                Err(error) => return Err(format!("cannot read the answer: {error}")),
            },
        }
    }
}

/// A connection to a server, in clear or over TLS.
struct Stream {
    socket: TcpStream,
    tls: Option<Box<ClientConnection>>,
    /// The server has sent nothing yet.
    is_silent: bool,
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Stream {
    async fn connect(
        address: SocketAddr,
        header: &[u8],
        tls: Option<&(UpstreamTls, ServerName<'static>)>,
    ) -> Result<Stream, Failure> {
        let mut socket = TcpStream::connect(address).await.map_err(|error| unconnected(&error))?;
        let sent = socket.write_all(header).await;
        sent.map_err(|error| format!("cannot send the PROXY header: {error}"))?;
        let tls = match tls {
            None => None,
            Some((tls, name)) => {
                let made = ClientConnection::new(tls.config.clone(), name.clone());
                Some(Box::new(made.map_err(|error| format!("TLS: {}", error_text(&error)))?))
            }
        };
        let mut stream = Stream { socket, tls, is_silent: true };
        stream.shake_hands().await.map_err(|error| format!("TLS handshake: {error}"))?;
        Ok(stream)
    }

    async fn shake_hands(&mut self) -> io::Result<()> {
        while self.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
            self.flush().await?;
            if self.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) && !self.fill().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.flush().await
    }

    async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            None => self.socket.write_all(bytes).await,
            Some(tls) => {
                io::Write::write_all(&mut tls.writer(), bytes)?;
                self.flush().await
            }
        }
    }

    /// Appends the next bytes; 0 at the end of the stream.
    async fn receive(&mut self, to: &mut Vec<u8>) -> io::Result<usize> {
        if self.tls.is_none() {
            return self.socket.read_buf(to).await;
        }
        loop {
            if let Some(tls) = &mut self.tls {
                let mut buffer = [0; 4096];
                match io::Read::read(&mut tls.reader(), &mut buffer) {
                    Ok(length) => {
                        to.extend_from_slice(&buffer[..length]);
                        return Ok(length);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            self.flush().await?;
            if !self.fill().await? {
                return Ok(0);
            }
        }
    }

    /// Writes pending TLS records.
    async fn flush(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        let mut records = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut records)?;
        }
        self.socket.write_all(&records).await
    }

    /// Reads once and gives it to TLS; false at the end of the stream.
    async fn fill(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 4096];
        let length = self.socket.read(&mut buffer).await?;
        let Some(tls) = &mut self.tls else { return Ok(length > 0) };
        let mut records = &buffer[..length];
        if std::mem::take(&mut self.is_silent)
            && let Some(error) = foreign_answer(records)
        {
            return Err(invalid(error.to_string()));
        }
        while !records.is_empty() {
            tls.read_tls(&mut records)?;
            if let Err(error) = tls.process_new_packets() {
                let _ = self.flush().await; // the alert with the cause
                return Err(invalid(error_text(&error)));
            }
        }
        Ok(length > 0)
    }

    /// Sends close_notify and FIN, and reads until the server's FIN, at most `left` bytes.
    async fn close(mut self, mut left: usize) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
        }
        if self.flush().await.is_err() || self.socket.shutdown().await.is_err() {
            return;
        }
        let mut buffer = [0; 4096];
        while let Ok(count) = self.socket.read(&mut buffer).await
            && count > 0
            && left > 0
        {
            left = left.saturating_sub(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_shortage_is_no_failure_of_the_server() {
        let failure = |number| unconnected(&io::Error::from_raw_os_error(number));
        for number in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::EADDRNOTAVAIL] {
            assert!(matches!(failure(number), Failure::OfMachine(_)), "{number}");
        }
        for number in [libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::ENETUNREACH, libc::ETIMEDOUT] {
            assert!(matches!(failure(number), Failure::OfServer(_)), "{number}");
        }
    }
}
