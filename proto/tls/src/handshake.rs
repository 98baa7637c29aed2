//! Server side of a handshake: a function of the connection's secret, its parameters and the client's bytes.
//!
//! The handshake first waits for the whole ClientHello, because the seed is bound to it. Without that binding, or
//! without a secret of this connection alone, a replayed hello can make the server repeat keys and
//! nonces (see `seed_key`). Afterwards records are fed one by one, with the seed installed around each call.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use evergate_base::seed::{KeptSecrets, SecretKind, Seed, scoped};
use evergate_base::session::{Sealed, SessionId};
use hmac::{Hmac, KeyInit, Mac};
use rustls::server::UnbufferedServerConnection;
use rustls::{HandshakeKind, ProtocolVersion, ServerConfig};
use sha2::{Digest, Sha256};
use zeroize::{Zeroize, Zeroizing};

use crate::alert::{self, clear_alert};
use crate::alias::show_alias;
use crate::client_flight::{ClientFlight, seal_first_alert};
use crate::driver::Input;
use crate::error::{HandshakeError, RecordError};
use crate::extract::{AuditSecrets, Finished, NamedSession, SessionFacts, records};
use crate::hello::{HelloScan, HelloStatus};
use crate::hello_info::{HelloFacts, client_random, read_hello};
use crate::keys::Role;
use crate::server_hello::{ServerHelloSearch, find_server_hello};

/// Limit of a ClientHello in raw bytes; `rustls` accepts no longer message either.
const HELLO_BYTES_MAX: usize = 64 << 10;

/// Parameters of a handshake besides configuration and client bytes. They are replicated with the ClientHello.
#[derive(Clone)]
pub struct HandshakeParams {
    /// Fresh random bytes of this connection alone, erased on drop.
    pub secret: [u8; 32],
    /// When the connection was accepted, in seconds since 1970: the current time for the handshake.
    pub accepted_unix_s: u64,
    /// Generation of the configuration: another one would change the bytes.
    pub generation: u64,
    /// The client's address.
    pub client: SocketAddr,
    /// The address that the client connected to.
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

/// Digest of the sent bytes of a handshake: the first 8 bytes of their SHA-256. It covers the bytes on the wire, so it
/// reveals nothing else and needs no key. Under one key and nonce, digests are equal if and only if the plaintexts are.
pub fn flight_digest(flight: &[u8]) -> u64 {
    Sha256::digest(flight).first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

/// Progress of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The handshake waits for bytes of the peer.
    NeedInput,
    /// The handshake is done: call `finish`.
    Done,
}

/// Server side of one connection's handshake.
pub struct Handshake {
    config: Arc<ServerConfig>,
    params: HandshakeParams,
    stage: Stage,
    input: Input,
    sni: Option<String>,
    /// Properties of the hello, if it was read before it was fed.
    hello: Option<HelloFacts>,
    /// The session that the client named, if it was found.
    found: Option<Sealed>,
    /// Randoms of an audited connection, as far as they are known.
    audit: Option<Box<Randoms>>,
}

/// Randoms of both hellos.
#[derive(Clone, Copy, Default)]
struct Randoms {
    client: [u8; 32],
    server: Option<[u8; 32]>,
}

enum Stage {
    /// The ClientHello is incomplete.
    Hello(HelloScan),
    /// `rustls` processes the handshake.
    Running(Box<Running>),
    /// `rustls` has received the whole handshake.
    Done(Box<Running>),
    /// An error was returned.
    Failed,
}

struct Running {
    conn: UnbufferedServerConnection,
    seed: SeedSlot,
    flight: ClientFlight,
}

/// A seed that is erased on drop.
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
    /// Prepares a handshake; `rustls` is set up only when a ClientHello has arrived.
    ///
    /// `config` must come from `server_config` of the deterministic provider. If it respects the client's order of
    /// ciphers, that order counts only for a client that prefers ChaCha20-Poly1305: it has no AES instructions. All
    /// others use the first common suite of the provider.
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
            audit: None,
        })
    }

    /// Keeps the secrets that open the connection's capture ([`Finished::audit`]). All resumptions of a TLS 1.2 session
    /// share one master secret, so such a session is never resumed. Call it before the hello is fed.
    pub fn audit(&mut self) {
        self.audit = Some(Box::default());
    }

    /// The TLS 1.2 session that this hello asks to resume by its id. Look it up and pass it to
    /// [`Handshake::resume_from`] before the bytes of `hello` are fed.
    pub fn session_wanted(&mut self, hello: &[u8]) -> Option<SessionId> {
        let facts = read_hello(hello)?;
        // Clients of TLS 1.3 send a random id (RFC 8446 section 4.1.2), and a ticket has priority over an id.
        let tls13 = facts.offers_tls13() && uses_tls13(&self.config);
        let ticket = facts.ticket_bytes.is_some_and(|bytes| bytes > 0);
        let is_resumable = !tls13 && !ticket && self.audit.is_none();
        let id = facts.session_id.as_slice().try_into().ok().filter(|_| is_resumable);
        self.hello = Some(facts);
        id
    }

    /// Sets the session that was found under the client's id. The flight is a function of it: a repeated handshake must
    /// receive the same session.
    pub fn resume_from(&mut self, found: Sealed) {
        self.found = Some(found);
    }

    /// Processes bytes from the client in any segmentation; appends the bytes to send to `out`, including the alert of
    /// a failure.
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

    /// The name that the client requested (SNI), once its hello has arrived.
    pub fn server_name(&self) -> Option<&str> {
        self.sni.as_deref()
    }

    /// Number of raw bytes of the client that belong to the handshake so far: whole records, or none yet.
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
        let Running { conn, mut seed, .. } = *running;
        let facts = SessionFacts::read(&conn, self.sni.take())?;
        let (secrets, _) = conn.dangerous_into_kernel_connection()?;
        let session = seed.0.as_mut().and_then(|seed| NamedSession::of(&mut seed.session, facts.resumed));
        let captured = seed.0.as_ref().map_or(&[][..], |seed| &seed.captured);
        let records = records(facts.version, Role::Server, &secrets, captured, None)?;
        let leftover = self.input.bytes.as_slice().to_vec(); // without the handshake's capacity
        let audit = self.audit.and_then(|randoms| {
            let secrets = seed.0.as_mut().map(|seed| std::mem::take(&mut seed.captured)).unwrap_or_default();
            let (client_random, server_random) = (randoms.client, randoms.server?);
            let accepted_unix_s = self.params.accepted_unix_s;
            Some(Box::new(AuditSecrets { accepted_unix_s, client_random, server_random, secrets }))
        });
        Ok(Finished { records, leftover, facts, consumed: self.input.consumed, session, audit })
    }

    fn await_hello(&mut self, mut scan: HelloScan, out: &mut Vec<u8>) -> Result<Progress, HandshakeError> {
        let len = match scan.advance(&self.input.bytes) {
            HelloStatus::Partial => {
                self.stage = Stage::Hello(scan);
                return Ok(Progress::NeedInput);
            }
            HelloStatus::Complete { len } => len,
            refused => return Err(answered(hello_error(refused, HELLO_BYTES_MAX), out)),
        };
        let hello = self.input.bytes.get(..len).unwrap_or_default();
        let mut seed = Seed::new(*seed_key(&self.params, hello), self.params.accepted_unix_s);
        self.params.secret.zeroize();
        let facts = self.hello.take().or_else(|| read_hello(hello)).unwrap_or_default();
        if let Some(error) = refusal(&self.config, &facts) {
            self.sni = facts.sni;
            return Err(answered(error, out));
        }
        let config = config_for(&self.config, &facts);
        seed.offers_tls13 = facts.offers_tls13();
        seed.offers_first_groups = facts.offers_first_groups();
        seed.session.found = self.found.take();
        // A client that accepts tickets stores its session itself.
        seed.session.wanted = facts.ticket_bytes.is_none() || !config.ticketer.enabled();
        if let Some(randoms) = &mut self.audit {
            randoms.client = client_random(hello).unwrap_or_default();
            seed.kept_secrets = KeptSecrets::Audit;
            seed.is_unresumable = !(facts.offers_tls13() && uses_tls13(&config));
            seed.session.wanted &= !seed.is_unresumable;
        }
        let early_data = facts.has_early_data;
        seed.alias = self.input.bytes.get_mut(..len).and_then(show_alias);
        self.sni = facts.sni;
        let conn = UnbufferedServerConnection::new(config)?;
        let flight = ClientFlight::new(early_data);
        self.feed(Box::new(Running { conn, seed: SeedSlot(Some(seed)), flight }), out)
    }

    fn feed(&mut self, mut running: Box<Running>, out: &mut Vec<u8>) -> Result<Progress, HandshakeError> {
        let Running { conn, seed, flight } = &mut *running;
        let (input, begin) = (&mut self.input, out.len());
        let done = scoped(&mut seed.0, || input.feed(conn, flight, out))
            .map_err(|error| running.answer(error, input.answered_from, out))?;
        if let Some(randoms) = self.audit.as_mut().filter(|randoms| randoms.server.is_none())
            && let ServerHelloSearch::Found(hello) = find_server_hello(&out[begin..])
        {
            randoms.server = Some(hello.random);
        }
        self.stage = if done { Stage::Done(running) } else { Stage::Running(running) };
        Ok(if done { Progress::Done } else { Progress::NeedInput })
    }
}

impl Running {
    /// Replaces the alert of `rustls` with that of the RFCs, after a failure at the record whose answer starts at
    /// `start` in `out`.
    fn answer(&mut self, error: HandshakeError, start: usize, out: &mut Vec<u8>) -> HandshakeError {
        let Running { conn, seed, flight } = self;
        let error = in_common(error);
        let tls13 = conn.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        let captured = seed.0.as_ref().map_or(&[][..], |seed| &seed.captured);
        let protected = tls13 && captured.iter().any(|captured| captured.kind == SecretKind::ServerTraffic);
        let clear =
            out.get(start..).and_then(|reported| reported.last_chunk()).copied().and_then(clear_description);
        let sent = if protected { (out.len() > start).then_some(alert::INTERNAL_ERROR) } else { clear };
        let named = scoped(&mut seed.0, || flight.alert_for(&error, conn, sent));
        let Some(named) = named else { return error };
        if !tls13 && conn.handshake_kind() == Some(HandshakeKind::Resumed) {
            return error; // this side is protected by keys that only `rustls` has
        }
        match (protected, clear) {
            (false, Some(_)) => out.truncate(out.len() - clear_alert(named).len()),
            (false, None) => {}
            // The record that `rustls` sealed there has the same nonce, and is never sent.
            (true, _) => out.truncate(start),
        }
        let captured = seed.0.as_ref().map_or(&[][..], |seed| &seed.captured);
        if protected {
            seal_first_alert(conn, captured, named, out);
        } else if clear.is_some() || out.len() == start {
            out.extend_from_slice(&clear_alert(named));
        }
        error
    }
}

/// The description of a fatal alert in clear.
fn clear_description(record: [u8; 7]) -> Option<u8> {
    let description = record[6];
    (record == clear_alert(description)).then_some(description)
}

/// Appends the alert of an error from before `rustls` was set up.
fn answered(error: HandshakeError, out: &mut Vec<u8>) -> HandshakeError {
    if let Some(description) = error.alert() {
        out.extend_from_slice(&clear_alert(description));
    }
    error
}

/// The error for bytes that are not a ClientHello; `bytes_max` is the limit of the check.
pub fn hello_error(status: HelloStatus, bytes_max: usize) -> HandshakeError {
    match status {
        HelloStatus::PlainHttp => HandshakeError::PlainHttp,
        HelloStatus::ProxyHeader => HandshakeError::ProxyHeader,
        HelloStatus::Unexpected => {
            HandshakeError::Unexpected("record or message before the client hello's end")
        }
        HelloStatus::Overflow { len } => HandshakeError::Record(RecordError::TooLong(len)),
        HelloStatus::TooLong => HandshakeError::HelloTooLong { bytes_max },
        HelloStatus::NotTls | HelloStatus::Partial | HelloStatus::Complete { .. } => HandshakeError::NotTls,
    }
}

/// The error for a hello to which `rustls` answers with another alert than the RFCs.
fn refusal(config: &ServerConfig, hello: &HelloFacts) -> Option<HandshakeError> {
    if hello.is_ssl3() {
        return Some(HandshakeError::Ssl3); // RFC 8446 appendix D.5
    }
    if hello.is_too_old() {
        return Some(HandshakeError::TooOld); // RFC 8446 appendix D.2, RFC 5246 appendix E.1
    }
    let tls13 = hello.offers_tls13() && uses_tls13(config);
    hello.missing_extension().filter(|_| tls13).map(HandshakeError::MissingExtension)
}

fn uses_tls13(config: &ServerConfig) -> bool {
    config.crypto_provider().cipher_suites.iter().any(|suite| suite.tls13().is_some())
}

/// `rustls` reports a client without a suitable certificate as a fault of the server; RFC 8446 section 4.1.1 and RFC
/// 5246 section 7.2.2 require handshake_failure.
fn in_common(error: HandshakeError) -> HandshakeError {
    match error {
        HandshakeError::Tls(rustls::Error::General(text))
            if text == "no server certificate chain resolved" =>
        {
            HandshakeError::NothingInCommon
        }
        other => other,
    }
}

/// The configuration with the order of ciphers for this client.
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
/// Each part is needed. The secret makes the key unguessable and unique to the connection. The hash of the ClientHello
/// changes the key when a hello other than the replicated one is answered. Addresses, time and generation reveal
/// replication entries of another connection.
fn seed_key(params: &HandshakeParams, hello: &[u8]) -> Zeroizing<[u8; 32]> {
    let mut context =
        <Hmac<Sha256> as KeyInit>::new_from_slice(&params.secret).expect("HMAC takes keys of every length");
    context.update(b"evergate handshake seed 1");
    for address in [params.client, params.local] {
        // One representation for an IPv4 address, for any kind of socket that accepted it.
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
