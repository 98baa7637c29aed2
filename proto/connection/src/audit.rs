//! Audited connections. When the handshake ends, the node seals the secrets that open its capture.
//!
//! The sealed envelope is part of the session's facts, so a node that continues the connection can send it to a
//! Recorder again. No node can open an envelope: the keys are those of the Revealer and of the Master.

use crate::client_leg::ClientTls;
use crate::connection::Connection;
use crate::routing;
use crate::{AuditScope, Effect, Io, RequestLog};
use evergate_tls::{AuditSecrets, Position};
use std::net::SocketAddr;

/// Longest envelope in bytes.
pub const ENVELOPE_BYTES_MAX: usize = 2048;

/// An audited connection whose handshake is done: what is sealed, and what names it.
#[derive(Clone, Copy, Debug)]
pub struct Birth<'a> {
    /// Number of the connection in the switch.
    pub connection: u64,
    /// The client's address.
    pub client: SocketAddr,
    /// The address that the client connected to.
    pub local: SocketAddr,
    /// Whether the version is TLS 1.3; otherwise it is TLS 1.2.
    pub is_tls13: bool,
    /// Registered number of the cipher suite.
    pub suite: u16,
    /// Server name that the client requested.
    pub sni: Option<&'a str>,
    /// Secrets and randoms.
    pub secrets: &'a AuditSecrets,
}

/// The sealed secrets of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedSecrets {
    /// Random of the client's hello.
    pub client_random: [u8; 32],
    /// The envelope, at most [`ENVELOPE_BYTES_MAX`] bytes.
    pub envelope: Vec<u8>,
}

impl Connection {
    /// Whether requests of this connection are recorded: all of its listener's, or the ones chosen by rules.
    pub fn is_audited(&self) -> bool {
        self.listener().audit.seals()
    }

    /// The sealed secrets, from the end of the handshake on.
    pub fn sealed_secrets(&self) -> Option<&SealedSecrets> {
        self.client.info.as_ref().and_then(|facts| facts.sealed.as_deref())
    }

    /// The id that the switch gives to a request, whatever id the client gave.
    pub fn own_request_id<'a>(&self, request: u32, out: &'a mut [u8; 24]) -> &'a str {
        routing::request_id(self.id.0, request, out)
    }

    /// The address that the client connected to.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Whether this request is recorded.
    pub fn records(&self, request: &RequestLog) -> bool {
        match self.listener().audit {
            AuditScope::Nothing => false,
            AuditScope::ChosenRequests => request.audit,
            AuditScope::AllRequests => true,
        }
    }

    /// Next records of the client, and for the client; `None` before the end of the handshake.
    pub fn record_positions(&self) -> Option<(Position, Position)> {
        match &self.client.tls {
            ClientTls::Open(records) => Some((records.rx(), records.tx())),
            _ => None,
        }
    }

    /// Has the secrets of a finished handshake sealed. `known` is an envelope of another node for the same handshake.
    pub(crate) fn seal(
        &mut self,
        io: &mut Io<'_>,
        secrets: Option<Box<AuditSecrets>>,
        known: Option<Box<SealedSecrets>>,
    ) {
        let (Some(secrets), Some(facts)) = (secrets, &mut self.client.info) else { return };
        let birth = Birth {
            connection: self.id.0,
            client: self.client_address,
            local: self.local_address,
            is_tls13: facts.is_tls13(),
            suite: facts.suite,
            sni: facts.sni.as_deref(),
            secrets: &secrets,
        };
        let client_random = secrets.client_random;
        facts.sealed = known.or_else(|| {
            let envelope = io.node.seal(&birth).filter(|envelope| envelope.len() <= ENVELOPE_BYTES_MAX)?;
            Some(Box::new(SealedSecrets { client_random, envelope }))
        });
        self.feed_envelope(io);
    }

    /// Has the envelope sent to the Recorder, if there is one.
    pub(crate) fn feed_envelope(&self, io: &mut Io<'_>) {
        if self.sealed_secrets().is_some() {
            io.effects.push(Effect::Sealed);
        }
    }
}
