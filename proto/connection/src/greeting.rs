//! Passthrough: the ClientHello decides about the tunnel that it begins. The handshake behind it is read in passing.
//!
//! Nothing is sent and nothing is decided before the hello is whole. Its bytes then go to the server as they came. A
//! node that restores the connection before the decision is replicated receives the hello again, and decides again.

use crate::close::PROXY_HEADER;
use crate::connection::Connection;
use crate::exchange::RequestState;
use crate::{Effect, Io, OfferedSessions};
use evergate_base::Micros;
use evergate_http::After;
use evergate_rules::TlsFacts;
use evergate_tls::{
    ClientHello, HelloFault, HelloScan, HelloStatus, Observation, SessionObserver, alert, hello_error,
    hello_message,
};
use std::fmt::Display;

/// Longest list of protocols that rules see, in bytes.
const ALPN_BYTES_MAX: usize = 1024;

/// How far a passthrough connection has come. Nothing remains when the handshake was read, or no pool wants that.
#[derive(Debug)]
pub(crate) enum Greeting {
    /// The hello is not whole.
    Scanned(HelloScan),
    /// The hello has decided, and waits for its server.
    Decided {
        offered: OfferedSessions,
        /// Length of its records.
        hello_bytes: usize,
    },
    /// Both sides are read until the handshake is complete.
    Observed(Box<SessionObserver>),
    /// The handshake is complete, or failed.
    Concluded(Box<Observation>),
}

impl Connection {
    /// Takes what there is of the hello. Returns 0 while it is in use: the tunnel takes the bytes themselves.
    pub(crate) fn take_greeting(&mut self, io: &mut Io<'_>, data: &[u8]) -> usize {
        let bytes_max = self.listener().limits.hello_bytes_max;
        let greeting =
            self.greeting.get_or_insert_with(|| Box::new(Greeting::Scanned(HelloScan::new(bytes_max))));
        let Greeting::Scanned(scan) = &mut **greeting else { return 0 };
        match scan.advance(data) {
            HelloStatus::Partial => return 0,
            HelloStatus::Complete { len } => {
                let message = hello_message(data).unwrap_or_default();
                match read_strictly(&message) {
                    Ok(hello) => return self.greet(io, &hello, len, data.len()),
                    Err(fault) => self.refuse_greeting(io, "tls_handshake", Some(fault.alert()), fault),
                }
            }
            HelloStatus::PlainHttp => {
                let mut bytes = Vec::new();
                evergate_http::error_response(
                    &mut bytes,
                    400,
                    "plain_http_on_tls_port",
                    After::Close,
                    false,
                    &[],
                );
                self.exchange.status = (400, "plain_http_on_tls_port");
                self.answer_greeting(io, &bytes, "");
            }
            HelloStatus::ProxyHeader => self.refuse_greeting(io, PROXY_HEADER, None, ""),
            status => {
                let error = hello_error(status, bytes_max);
                let reason = if status == HelloStatus::NotTls { "not_tls" } else { "tls_handshake" };
                self.refuse_greeting(io, reason, error.alert(), &error);
            }
        }
        data.len()
    }

    /// The hello is whole: it decides.
    fn greet(
        &mut self,
        io: &mut Io<'_>,
        hello: &ClientHello<'_>,
        hello_bytes: usize,
        received: usize,
    ) -> usize {
        self.adopt_snapshot(io);
        self.begin_log(io, None);
        let offered = OfferedSessions::new(hello, &self.snapshot.session_hasher());
        let (name, alpn) = (offered.server_name.as_deref(), protocols_of(hello));
        if let (Some(log), Some(name)) = (&mut self.exchange.log, name) {
            name.clone_into(&mut log.host);
        }
        let version = version_of(hello);
        let facts = TlsFacts { sni: name, alpn: alpn.as_deref(), version, client_subject: None };
        let decision = self.decide_connection(&mut io.scratch.rules, Some(facts));
        self.greeting = Some(Box::new(Greeting::Decided { offered, hello_bytes }));
        self.exchange.receiving = RequestState::Tunnel;
        self.enter_tunnel(io, decision);
        // An answer of ours has used the bytes.
        if self.exchange.receiving == RequestState::Tunnel { 0 } else { received }
    }

    /// Sessions that the client of a passthrough connection offers; `None` before its whole ClientHello, after the
    /// server's choice, and for other connections.
    pub fn offered_sessions(&self) -> Option<&OfferedSessions> {
        match self.greeting.as_deref()? {
            Greeting::Decided { offered, .. } => Some(offered),
            _ => None,
        }
    }

    /// Whether both directions are still read: nothing may pass inside the kernel.
    pub(crate) fn is_observed(&self) -> bool {
        self.greeting.is_some()
    }

    /// Reads client bytes that go to the server.
    pub(crate) fn observe_client(&mut self, data: &[u8], now: Micros) {
        let Some(greeting) = &mut self.greeting else { return };
        match &mut **greeting {
            Greeting::Decided { hello_bytes, .. } => {
                let (hello, rest) = data.split_at(data.len().min(*hello_bytes));
                let wanted = self.servers.leg.as_ref().is_some_and(|leg| {
                    let pool = self.snapshot.pools.get(leg.pool as usize);
                    pool.is_some_and(|pool| pool.by_session)
                });
                let message = hello_message(hello).unwrap_or_default();
                match read_strictly(&message).ok().filter(|_| wanted) {
                    Some(hello) => {
                        let observer = SessionObserver::new(&hello, self.snapshot.session_hasher(), now);
                        **greeting = Greeting::Observed(Box::new(observer));
                        self.observe_client(rest, now);
                    }
                    None => self.greeting = None,
                }
            }
            Greeting::Observed(observer) => {
                let observation = observer.handle_client(data, now);
                self.conclude(observation);
            }
            Greeting::Scanned(_) | Greeting::Concluded(_) => {}
        }
    }

    /// Reads server bytes that go to the client.
    pub(crate) fn observe_server(&mut self, data: &[u8], now: Micros) {
        let Some(greeting) = &mut self.greeting else { return };
        if let Greeting::Observed(observer) = &mut **greeting {
            let observation = observer.handle_server(data, now);
            self.conclude(observation);
        }
    }

    fn conclude(&mut self, observation: Option<Observation>) {
        if let (Some(greeting), Some(observation)) = (&mut self.greeting, observation) {
            **greeting = Greeting::Concluded(Box::new(observation));
        }
    }

    /// Reports what the handshake showed, once.
    pub(crate) fn report_session(&mut self, io: &mut Io<'_>) {
        if !self.greeting.as_deref().is_some_and(|greeting| matches!(greeting, Greeting::Concluded(_))) {
            return;
        }
        let greeting = self.greeting.take().map(|greeting| *greeting);
        if let (Some(Greeting::Concluded(observation)), Some(leg)) = (greeting, self.leg_id()) {
            io.effects.push(Effect::SessionObserved { leg, observation });
        }
    }

    /// A received state has the hello of a tunnel that waits for its server.
    pub(crate) fn read_greeting_again(&mut self) {
        let waits = self.servers.leg.as_ref().is_some_and(|leg| !leg.is_open());
        if !self.listener().protocol.is_greeted() || !waits || self.exchange.receiving != RequestState::Tunnel
        {
            return;
        }
        let mut scan = HelloScan::new(self.listener().limits.hello_bytes_max);
        let HelloStatus::Complete { len: hello_bytes } = scan.advance(&self.client.plain) else { return };
        let plain = std::mem::take(&mut self.client.plain);
        if let Ok(hello) = read_strictly(&hello_message(&plain).unwrap_or_default()) {
            let offered = OfferedSessions::new(&hello, &self.snapshot.session_hasher());
            self.greeting = Some(Box::new(Greeting::Decided { offered, hello_bytes }));
        }
        self.client.plain = plain;
    }

    /// No tunnel: an alert in clear, or RST without one.
    pub(crate) fn refuse_greeting(
        &mut self,
        io: &mut Io<'_>,
        reason: &'static str,
        alert: Option<u8>,
        detail: impl Display,
    ) {
        self.begin_log_of_end(io, reason);
        let detail = detail.to_string();
        if !detail.is_empty() {
            self.explain(detail);
        }
        match alert {
            Some(description) => self.answer_greeting(io, &alert::clear_alert(description), reason),
            None => self.end_abruptly(io, reason),
        }
    }

    /// Answers the client ourselves, in clear, and ends. Backups keep the answer.
    fn answer_greeting(&mut self, io: &mut Io<'_>, bytes: &[u8], reason: &'static str) {
        self.greeting = None;
        self.exchange.receiving = RequestState::Ended;
        if !reason.is_empty() {
            self.exchange.status = (0, reason);
        }
        self.begin_log_of_end(io, self.exchange.status.1);
        if let Some(remote) = &mut self.remote {
            remote.push_generated(self.exchange.number(), bytes.to_vec(), true);
        }
        self.emit_generated(io, bytes, true);
    }
}

/// A hello that the server cannot read in another way.
fn read_strictly(message: &[u8]) -> Result<ClientHello<'_>, HelloFault> {
    let hello = ClientHello::read(message)?;
    hello.check()?;
    Ok(hello)
}

/// Protocols that a hello offers, separated by commas.
fn protocols_of(hello: &ClientHello<'_>) -> Option<String> {
    let mut all = String::new();
    for name in hello.alpn().unwrap_or_default() {
        if all.len() + name.len() < ALPN_BYTES_MAX {
            let separator = if all.is_empty() { "" } else { "," };
            all.push_str(separator);
            all.push_str(&String::from_utf8_lossy(name));
        }
    }
    Some(all).filter(|all| !all.is_empty())
}

/// The newest version that a hello offers.
fn version_of(hello: &ClientHello<'_>) -> &'static str {
    match hello.versions().unwrap_or_default().into_iter().max().unwrap_or(hello.legacy_version) {
        0x0304.. => "TLSv1.3",
        0x0303 => "TLSv1.2",
        0x0302 => "TLSv1.1",
        _ => "TLSv1.0",
    }
}
