//! Client with its own TLS sessions, on a blocking socket.
//!
//! The session store belongs to the client, so a client resumes only its own sessions. A connection is a handshake and
//! one small request; its answer comes after the tickets of TLS 1.3.

use super::SessionKind;
use anyhow::{Context, Result, bail, ensure};
use evergate_crypto::{ClientSettings, Verify, client_config};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustls::client::{ClientSessionMemoryCache, Resumption, Tls12Resumption};
use rustls::{ClientConfig, ClientConnection, HandshakeKind};
use rustls_pki_types::ServerName;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Name that clients ask for, in the certificates.
pub(super) const NAME: &str = "bench.example";
/// Limit of each wait for a server.
const PATIENCE: Duration = Duration::from_secs(10);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: bench.example\r\nConnection: close\r\n\r\n";
/// Limit of an answer, far beyond what the terminators send.
const ANSWER_MAX: usize = 4096;
/// Server names in the store of a client. Only one is in use.
const NAMES_MAX: usize = 1;
/// Flights of a server in a handshake that are timed.
pub(super) const FLIGHTS: usize = 2;

/// TLS settings of all clients.
#[derive(Clone)]
pub(super) struct Tls {
    config: ClientConfig,
    kind: SessionKind,
}

impl Tls {
    /// Clients that accept any certificate: its verification would take time of the processors that serve.
    pub(super) fn new(kind: SessionKind) -> Result<Tls> {
        let settings = ClientSettings { verify: Verify::InsecureNone, alpn: Vec::new(), certificate: None };
        let config = Arc::unwrap_or_clone(client_config(settings).context("cannot set up TLS clients")?);
        Ok(Tls { config, kind })
    }

    /// Settings with an empty session store.
    fn fresh(&self) -> Arc<ClientConfig> {
        let store = Arc::new(ClientSessionMemoryCache::new(NAMES_MAX));
        let by = match self.kind {
            SessionKind::Tls12Ids => Tls12Resumption::SessionIdOnly,
            SessionKind::Tls12Tickets | SessionKind::Tls13 => Tls12Resumption::SessionIdOrTickets,
        };
        let mut config = self.config.clone();
        config.resumption = Resumption::store(store).tls12_resumption(by);
        Arc::new(config)
    }
}

/// Client: a source address and the sessions that servers gave it.
pub(super) struct Client {
    tls: Tls,
    /// Own source address; otherwise that of the kernel's choice.
    source: Option<Ipv4Addr>,
    /// `None` before the first connection.
    config: Option<Arc<ClientConfig>>,
}

/// A connection that was served.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    /// Whether the client offered a session.
    pub(super) offered: bool,
    /// Whether the server resumed it.
    pub(super) resumed: bool,
    pub(super) steps: Steps,
}

/// Times of one handshake, as the client sees them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steps {
    /// TCP connection.
    pub(super) connect: Duration,
    /// Waits for the server's flights; zero for a flight that does not occur.
    pub(super) waits: [Duration; FLIGHTS],
    /// Client's computation between the flights and after the last one.
    pub(super) works: [Duration; FLIGHTS],
    /// From the ClientHello to the end of the handshake.
    pub(super) handshake: Duration,
}

impl Client {
    pub(super) fn new(tls: Tls, source: Option<Ipv4Addr>) -> Client {
        Client { tls, source, config: None }
    }

    /// Opens a connection, sends a request, and waits for the server to close. `reuse`: whether to offer the session
    /// of the connection before.
    pub(super) fn connect(&mut self, to: SocketAddr, reuse: bool) -> Result<Served> {
        let offered = reuse && self.config.is_some();
        let config = match self.config.take().filter(|_| reuse) {
            Some(config) => config,
            None => self.tls.fresh(),
        };
        // A connection that fails loses its session, like a browser's that does not trust the answer.
        let served = self.serve(to, &config)?;
        self.config = Some(config);
        Ok(Served { offered, ..served })
    }

    fn serve(&self, to: SocketAddr, config: &Arc<ClientConfig>) -> Result<Served> {
        let begun = Instant::now();
        let mut stream = self.open(to).with_context(|| format!("cannot connect to {to}"))?;
        let mut steps = Steps { connect: begun.elapsed(), ..Steps::default() };
        let mut tls = ClientConnection::new(config.clone(), ServerName::try_from(NAME)?)?;
        handshake(&mut tls, &mut stream, &mut steps).context("the handshake failed")?;
        let resumed = matches!(tls.handshake_kind(), Some(HandshakeKind::Resumed));
        request(&mut tls, &mut stream).context("the request failed")?;
        Ok(Served { offered: false, resumed, steps })
    }

    fn open(&self, to: SocketAddr) -> std::io::Result<TcpStream> {
        let stream = match self.source {
            None => TcpStream::connect_timeout(&to, PATIENCE)?,
            Some(source) => {
                let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
                bind(&socket, &SocketAddr::from((source, 0)))?;
                connect(&socket, &to)?;
                TcpStream::from(socket)
            }
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }
}

fn send(tls: &mut ClientConnection, stream: &mut TcpStream) -> std::io::Result<()> {
    while tls.wants_write() {
        tls.write_tls(stream)?;
    }
    Ok(())
}

fn handshake(tls: &mut ClientConnection, stream: &mut TcpStream, steps: &mut Steps) -> Result<()> {
    // Sending counts as part of the wait: the server may answer before this thread runs again.
    let begun = Instant::now();
    let mut waiting_since = begun;
    send(tls, stream)?;
    for flight in 0.. {
        let mut received;
        // A flight may come in parts.
        loop {
            ensure!(tls.read_tls(stream)? > 0, "the server closed the connection");
            received = Instant::now();
            tls.process_new_packets()?;
            if tls.wants_write() || !tls.is_handshaking() {
                break;
            }
        }
        let answered = Instant::now();
        send(tls, stream)?;
        if let (Some(wait), Some(work)) = (steps.waits.get_mut(flight), steps.works.get_mut(flight)) {
            (*wait, *work) = (received - waiting_since, answered - received);
        }
        waiting_since = answered;
        if !tls.is_handshaking() {
            break;
        }
    }
    steps.handshake = begun.elapsed();
    Ok(())
}

fn request(tls: &mut ClientConnection, stream: &mut TcpStream) -> Result<()> {
    tls.writer().write_all(REQUEST)?;
    send(tls, stream)?;
    let mut answer = Vec::new();
    loop {
        let received = tls.read_tls(stream)?;
        let state = tls.process_new_packets()?;
        let closed = state.peer_has_closed() || received == 0;
        let length = state.plaintext_bytes_to_read();
        ensure!(answer.len() + length <= ANSWER_MAX, "the answer is too long");
        tls.reader().take(length as u64).read_to_end(&mut answer)?;
        if closed {
            break;
        }
    }
    if !answer.starts_with(b"HTTP/1.1 200 ") {
        bail!("the answer is {:?}", String::from_utf8_lossy(&answer));
    }
    tls.send_close_notify();
    // The server may be gone, as it closes first.
    let _ = send(tls, stream);
    Ok(())
}
