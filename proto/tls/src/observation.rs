//! What a handshake between others showed.

use evergate_base::Micros;
use evergate_base::session::SessionHash;

/// A session that a server made, or accepted, under the name by which a client will refer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewSession {
    /// Hash of its id, ticket or identity.
    pub hash: SessionHash,
    /// Lifetime that the server announced, in seconds; `None` if it announced none.
    pub lifetime_s: Option<u32>,
}

/// Times of a handshake, as the observer saw its bytes pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// From the ClientHello to the server's Finished.
    pub to_finished: Micros,
    /// The part of `to_finished` in which the server had all bytes of the client: its work and the way to it, without
    /// the client's.
    pub at_server: Micros,
}

/// A completed handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// Protocol version that the server chose: 0x0304 is TLS 1.3.
    pub version: u16,
    /// The session that was resumed; `None` for a full handshake, and for an identity that is not read.
    pub reused: Option<SessionHash>,
    /// The session that the server made. In TLS 1.3 it is encrypted, so it is never known.
    pub made: Option<NewSession>,
    /// Its times.
    pub timing: Timing,
}

/// A handshake without an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The reason.
    pub reason: FailReason,
    /// The session that the server had accepted before a fatal alert, which ends it (RFC 5246 section 7.2.2).
    pub forget: Option<SessionHash>,
}

/// Reason why no handshake was completed, or why it could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FailReason {
    /// A fatal alert in clear.
    #[error("fatal alert {0}")]
    Alert(u8),
    /// An encrypted alert before the end of the handshake.
    #[error("encrypted alert during the handshake")]
    ProtectedAlert,
    /// A side closed the connection.
    #[error("connection closed during the handshake")]
    Closed,
    /// Bytes that are not TLS records.
    #[error("not a TLS record")]
    NotTls,
    /// A malformed message, or one that is not allowed at this point.
    #[error("unexpected {0}")]
    Unexpected(&'static str),
    /// A hello, or the handshake, is longer than the limit.
    #[error("handshake is longer than the limit")]
    TooLong,
}

impl FailReason {
    fn is_fatal_alert(self) -> bool {
        matches!(self, FailReason::Alert(_) | FailReason::ProtectedAlert)
    }
}

/// Result of an observed handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// The server resumed a session of the client.
    Resumed(Completed),
    /// A full handshake.
    Full(Completed),
    /// Nothing was completed.
    Failed(Failed),
}

impl Observation {
    pub(crate) fn failed(reason: FailReason, accepted: Option<SessionHash>) -> Observation {
        Observation::Failed(Failed { reason, forget: accepted.filter(|_| reason.is_fatal_alert()) })
    }

    /// Sessions that the server has, to be remembered: the resumed one and the new one.
    pub fn learned(&self) -> impl Iterator<Item = NewSession> + use<> {
        let (reused, made) = match self {
            Observation::Resumed(completed) | Observation::Full(completed) => {
                (completed.reused, completed.made)
            }
            Observation::Failed(_) => (None, None),
        };
        reused.map(|hash| NewSession { hash, lifetime_s: None }).into_iter().chain(made)
    }
}
