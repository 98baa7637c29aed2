//! The server's handshake: a function of the connection's secret, its parameters and the client's bytes.
//!
//! The whole ClientHello is awaited first, because the seed is bound to it: without that binding, or without a secret
//! of this connection alone, someone who replays a hello can make us repeat keys and nonces (see `seed_key`). From
//! then on records are fed one by one, with the seed installed around each call.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use evergate_base::seed::{Seed, scoped};
use evergate_base::session::{Sealed, SessionId};
use hmac::{Hmac, KeyInit, Mac};
use rustls::ServerConfig;
use rustls::server::UnbufferedServerConnection;
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, Zeroizing};

use crate::alert::{self, clear_alert};
use crate::driver::Input;
use crate::error::HandshakeError;
use crate::extract::{Finished, NamedSession, SessionFacts, records};
use crate::hello::{HelloScan, HelloStatus};
use crate::hello_facts::{HelloFacts, read_hello};
use crate::keys::Role;

/// Most raw bytes of a ClientHello; `rustls` takes no longer message either.
const HELLO_BYTES_MAX: usize = 64 << 10;

/// What a handshake depends on besides configuration and client bytes. Mirrored with the ClientHello.
#[derive(Clone)]
pub struct HandshakeParams {
    /// Fresh random bytes of this connection alone, erased with this.
    pub secret: [u8; 32],
    /// When the connection was accepted, in seconds since 1970: the handshake's idea of now.
    pub accepted_unix_s: u64,
    /// Generation of the configuration: another one would give other bytes.
    pub generation: u64,
    /// The client's address.
    pub client: SocketAddr,
    /// The address it connected to.
    pub local: SocketAddr,
}

impl std::fmt::Debug for HandshakeParams {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandshakeParams")
            .field("accepted_unix_s", &self.accepted_unix_s)
            .field("generation", &self.generation)
            .field("client", &self.client)
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

/// Names what was sent in a handshake: the first 8 bytes of its SHA-256. Over the bytes as they leave, so it tells who reads it
/// nothing that the wire does not, and needs no key; under one key and nonce they are the same if and only if the plaintext is.
pub fn flight_digest(flight: &[u8]) -> u64 {
    Sha256::digest(flight).first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

/// How far a handshake has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The peer's next bytes are awaited.
    NeedInput,
    /// Call `finish`.
    Done,
}

/// One connection's handshake on the server's side.
pub struct Handshake {
    config: Arc<ServerConfig>,
    params: HandshakeParams,
    stage: Stage,
    input: Input,
    sni: Option<String>,
    /// What the hello says, when that was read before the hello was fed.
    hello: Option<HelloFacts>,
    /// The session that the client named, where it was found.
    found: Option<Sealed>,
}

enum Stage {
    /// The ClientHello is not whole.
    Hello(HelloScan),
    /// `rustls` is at work.
    Running(Box<Running>),
    /// `rustls` has all it needs.
    Done(Box<Running>),
    /// An error was returned.
    Failed,
}

struct Running {
    conn: UnbufferedServerConnection,
    seed: SeedSlot,
}

/// A seed that leaves no trace.
#[derive(Default)]
pub(crate) struct SeedSlot(pub(crate) Option<Seed>);

impl Drop for SeedSlot {
    fn drop(&mut self) {
        if let Some(seed) = &mut self.0 {
            seed.key.zeroize();
            seed.captured.iter_mut().for_each(|captured| captured.secret.zeroize());
        }
    }
}

impl Drop for HandshakeParams {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl Handshake {
    /// Prepares a handshake; `rustls` is set up only when a ClientHello has come.
    ///
    /// `config` has to come from the deterministic provider's `server_config`. When it does not ignore the client's
    /// order of ciphers, that order counts only for a client that puts ChaCha20-Poly1305 first (it has no AES
    /// instructions); everyone else gets the first suite of the provider that both ends have.
    pub fn new(config: &Arc<ServerConfig>, params: &HandshakeParams) -> Result<Handshake, HandshakeError> {
        if !config.enable_secret_extraction {
            return Err(HandshakeError::Config("secret extraction is not enabled"));
        }
        Ok(Handshake {
            config: config.clone(),
            params: params.clone(),
            stage: Stage::Hello(HelloScan::new(HELLO_BYTES_MAX)),
            input: Input::default(),
            sni: None,
            hello: None,
            found: None,
        })
    }

    /// The TLS 1.2 session that this hello asks to resume by its id: to be looked up and given to
    /// [`Handshake::resume_from`], before the very bytes of `hello` are fed.
    pub fn session_wanted(&mut self, hello: &[u8]) -> Option<SessionId> {
        let facts = read_hello(hello)?;
        let speaks_tls13 = |config: &ServerConfig| {
            config.crypto_provider().cipher_suites.iter().any(|suite| suite.tls13().is_some())
        };
        // Clients of TLS 1.3 send noise in the place of an id (RFC 8446 section 4.1.2), and a ticket comes before an id.
        let tls13 = facts.offers_tls13() && speaks_tls13(&self.config);
        let ticket = facts.ticket_bytes.is_some_and(|bytes| bytes > 0);
        let id = facts.session_id.as_slice().try_into().ok().filter(|_| !tls13 && !ticket);
        self.hello = Some(facts);
        id
    }

    /// What was found under the id that the client named. Part of what the flight is a function of: who makes the same
    /// handshake again must be given the same.
    pub fn resume_from(&mut self, found: Sealed) {
        self.found = Some(found);
    }

    /// Takes bytes from the client in any segmentation; appends what is to be sent to `out`, also the alert when it
    /// fails.
    pub fn handle_input(&mut self, data: &[u8], out: &mut Vec<u8>) -> Result<Progress, HandshakeError> {
        self.input.bytes.extend_from_slice(data);
        match std::mem::replace(&mut self.stage, Stage::Failed) {
            Stage::Hello(scan) => self.await_hello(scan, out),
            Stage::Running(running) => self.feed(running, out),
            Stage::Done(running) => {
                self.stage = Stage::Done(running);
                Ok(Progress::Done)
            }
            Stage::Failed => Err(HandshakeError::State("over: it failed before")),
        }
    }

    /// The name that the client asked for (SNI), once its hello is here.
    pub fn server_name(&self) -> Option<&str> {
        self.sni.as_deref()
    }

    /// Raw bytes of the client that belong to the handshake so far: whole records, or nothing yet.
    pub fn consumed(&self) -> u64 {
        self.input.consumed
    }

    /// Leaves `rustls` when the handshake is done.
    pub fn finish(mut self) -> Result<Finished, HandshakeError> {
        let running = match std::mem::replace(&mut self.stage, Stage::Failed) {
            Stage::Done(running) => running,
            Stage::Failed => return Err(HandshakeError::State("over: it failed before")),
            Stage::Hello(_) | Stage::Running(_) => return Err(HandshakeError::State("not done")),
        };
        let Running { conn, mut seed } = *running;
        let facts = SessionFacts::read(&conn, self.sni.take())?;
        let (secrets, _) = conn.dangerous_into_kernel_connection()?;
        let session = seed.0.as_mut().and_then(|seed| NamedSession::of(&mut seed.session, facts.resumed));
        let captured = seed.0.as_ref().map_or(&[][..], |seed| &seed.captured);
        let records = records(facts.version, Role::Server, &secrets, captured, None)?;
        let leftover = self.input.bytes.as_slice().to_vec(); // without the handshake's capacity
        Ok(Finished { records, leftover, facts, consumed: self.input.consumed, session })
    }

    fn await_hello(&mut self, mut scan: HelloScan, out: &mut Vec<u8>) -> Result<Progress, HandshakeError> {
        let len = match scan.advance(&self.input.bytes) {
            HelloStatus::Partial => {
                self.stage = Stage::Hello(scan);
                return Ok(Progress::NeedInput);
            }
            HelloStatus::Complete { len } => len,
            HelloStatus::PlainHttp => return Err(HandshakeError::PlainHttp),
            HelloStatus::NotTls => {
                out.extend_from_slice(&clear_alert(alert::UNEXPECTED_MESSAGE));
                return Err(HandshakeError::NotTls);
            }
            HelloStatus::TooLong => {
                out.extend_from_slice(&clear_alert(alert::DECODE_ERROR));
                return Err(HandshakeError::HelloTooLong { bytes_max: HELLO_BYTES_MAX });
            }
        };
        let hello = self.input.bytes.get(..len).unwrap_or_default();
        let mut seed = Seed::new(*seed_key(&self.params, hello), self.params.accepted_unix_s);
        self.params.secret.zeroize();
        let facts = self.hello.take().or_else(|| read_hello(hello)).unwrap_or_default();
        if facts.is_too_old() {
            // `rustls` would miss an extension that such clients do not have, and answer with handshake_failure. RFC 8446
            // appendix D.2 and RFC 5246 appendix E.1 have protocol_version for it.
            self.sni = facts.sni;
            out.extend_from_slice(&clear_alert(alert::PROTOCOL_VERSION));
            return Err(HandshakeError::TooOld);
        }
        let config = config_for(&self.config, &facts);
        seed.offers_tls13 = facts.offers_tls13();
        seed.session.found = self.found.take();
        // A client that takes tickets keeps its session itself.
        seed.session.wanted = facts.ticket_bytes.is_none() || !config.ticketer.enabled();
        self.sni = facts.sni;
        let conn = UnbufferedServerConnection::new(config)?;
        self.feed(Box::new(Running { conn, seed: SeedSlot(Some(seed)) }), out)
    }

    fn feed(&mut self, mut running: Box<Running>, out: &mut Vec<u8>) -> Result<Progress, HandshakeError> {
        let Running { conn, seed } = &mut *running;
        let start = out.len();
        let fed = scoped(&mut seed.0, || self.input.feed(conn, out));
        let done = fed.map_err(|error| in_common(error, out.get_mut(start..).unwrap_or_default()))?;
        self.stage = if done { Stage::Done(running) } else { Stage::Running(running) };
        Ok(if done { Progress::Done } else { Progress::NeedInput })
    }
}

/// `rustls` takes a client that none of our certificates suits for one that may not come in, and for a fault of ours: RFC 8446
/// section 4.1.1 and RFC 5246 section 7.2.2 have handshake_failure for it. It answers a hello, so the alert is in clear.
fn in_common(error: HandshakeError, said: &mut [u8]) -> HandshakeError {
    match error {
        HandshakeError::Tls(rustls::Error::General(text))
            if text == "no server certificate chain resolved" =>
        {
            let said = said.last_chunk_mut().filter(|said| **said == clear_alert(alert::ACCESS_DENIED));
            if let Some(said) = said {
                *said = clear_alert(alert::HANDSHAKE_FAILURE);
            }
            HandshakeError::NothingInCommon
        }
        other => other,
    }
}

/// The configuration with the order of ciphers that this client gets.
fn config_for(config: &Arc<ServerConfig>, hello: &HelloFacts) -> Arc<ServerConfig> {
    if config.ignore_client_order || hello.prefers_chacha() {
        return config.clone();
    }
    let mut config = ServerConfig::clone(config);
    config.ignore_client_order = true;
    Arc::new(config)
}

/// The key of all randomness in one handshake.
///
/// Each part is needed: the secret makes it unguessable and unique to the connection; the ClientHello's hash gives
/// another key when a hello other than the mirrored one is answered; addresses, time and generation catch a mirror
/// that mixed up its entries.
fn seed_key(params: &HandshakeParams, hello: &[u8]) -> Zeroizing<[u8; 32]> {
    let mut context =
        <Hmac<Sha256> as KeyInit>::new_from_slice(&params.secret).expect("HMAC takes keys of every length");
    context.update(b"evergate handshake seed 1");
    for address in [params.client, params.local] {
        // One form for an IPv4 address, whichever kind of socket a node accepted it on.
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        context.update(&ip.octets());
        context.update(&address.port().to_be_bytes());
    }
    context.update(&params.accepted_unix_s.to_be_bytes());
    context.update(&params.generation.to_be_bytes());
    context.update(&Sha256::digest(hello));
    Zeroizing::new(context.finalize().into_bytes().into())
}
