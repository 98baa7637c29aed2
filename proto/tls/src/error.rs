//! Errors by origin: only a peer can cause its kind from outside. Each has the alert to send.

use crate::alert;
use crate::error_text::error_text;

/// Origin of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The peer: count it, send the alert, close.
    Peer,
    /// The calling code, or the state that it passed.
    Caller,
    /// This crate, its libraries, or the configuration.
    Us,
}

/// Reason why a handshake cannot continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The first bytes are an HTTP request in clear.
    #[error("peer sends plain http on a tls port")]
    PlainHttp,
    /// The first bytes are a header of the PROXY protocol.
    #[error("peer sends a PROXY protocol header, which this listener does not accept")]
    ProxyHeader,
    /// The first bytes of a server are an HTTP response in clear.
    #[error("server answered in plain HTTP, not in TLS")]
    PlainHttpAnswer,
    /// The first bytes of a server are not a TLS record.
    #[error("server does not use TLS")]
    NotTlsAnswer,
    /// The first bytes are not a TLS record with a ClientHello.
    #[error("peer does not use tls")]
    NotTls,
    /// A record or message out of order.
    #[error("unexpected {0} during the handshake")]
    Unexpected(&'static str),
    /// The ClientHello does not end within the limit.
    #[error("client hello is longer than {bytes_max} bytes")]
    HelloTooLong {
        /// The limit.
        bytes_max: usize,
    },
    /// The peer's handshake does not end within the limit.
    #[error("handshake is longer than {bytes_max} bytes")]
    HandshakeTooLong {
        /// The limit.
        bytes_max: u64,
    },
    /// The record that ended the handshake contained more messages.
    #[error("handshake messages after the end of the handshake in the same record")]
    TrailingMessages,
    /// More rejected early data than the limit.
    #[error("more than {bytes_max} bytes of early data, which no ticket of this server allows")]
    EarlyData {
        /// The limit.
        bytes_max: usize,
    },
    /// A record header that cannot be right.
    #[error("record during the handshake: {0}")]
    Record(RecordError),
    /// The client's newest version is older than the oldest supported one.
    #[error("handshake refused: the client supports nothing newer than TLS 1.1")]
    TooOld,
    /// The ClientHello is one of SSL 3.0, whatever else it offers.
    #[error("handshake refused: the client's hello is one of SSL 3.0")]
    Ssl3,
    /// The ClientHello offers TLS 1.3 without a required extension.
    #[error("handshake refused: the client offers TLS 1.3 without the extension {0}")]
    MissingExtension(&'static str),
    /// The second ClientHello names another host than the first (RFC 8446 section 4.1.2).
    #[error("handshake refused: the client's second hello has another server name")]
    NameChanged,
    /// No configured certificate is usable with the peer's offer.
    #[error("handshake refused: no cipher suite or signature algorithm in common for any certificate")]
    NothingInCommon,
    /// The peer closed before the handshake was done.
    #[error("peer closed during the handshake")]
    Closed,
    /// `rustls` refused the handshake.
    #[error("handshake refused: {}", error_text(.0))]
    Tls(#[from] rustls::Error),
    /// The handshake is not in a state for this call: not done, or already failed.
    #[error("handshake is {0}")]
    State(&'static str),
    /// The configuration lacks something that this driver relies on.
    #[error("tls configuration: {0}")]
    Config(&'static str),
    /// `rustls` and this crate's key schedule disagree, or `rustls` reported an impossible state.
    #[error("tls internals: {0}")]
    Internal(&'static str),
}

impl HandshakeError {
    /// Origin of the error.
    pub fn blame(&self) -> Blame {
        use rustls::Error as E;
        match self {
            HandshakeError::State(_) => Blame::Caller,
            HandshakeError::Config(_) | HandshakeError::Internal(_) => Blame::Us,
            HandshakeError::Tls(
                E::General(_)
                | E::EncryptError
                | E::FailedToGetCurrentTime
                | E::FailedToGetRandomBytes
                | E::HandshakeNotComplete
                | E::BadMaxFragmentSize
                | E::InconsistentKeys(_)
                | E::InvalidCertRevocationList(_)
                | E::Other(_),
            ) => Blame::Us,
            _ => Blame::Peer,
        }
    }

    /// The alert for this error, if this crate chooses it. `None` when `rustls` chose it, when none fits (plain HTTP),
    /// or when the peer is gone. Informative: an alert that can be sent is already in `out`.
    pub fn alert(&self) -> Option<u8> {
        match self {
            HandshakeError::HelloTooLong { .. } | HandshakeError::HandshakeTooLong { .. } => {
                Some(alert::DECODE_ERROR)
            }
            HandshakeError::NotTls | HandshakeError::TrailingMessages | HandshakeError::Unexpected(_) => {
                Some(alert::UNEXPECTED_MESSAGE)
            }
            HandshakeError::TooOld | HandshakeError::Ssl3 => Some(alert::PROTOCOL_VERSION),
            // RFC 8446 section 5.2: a record that cannot be deprotected.
            HandshakeError::EarlyData { .. } => Some(alert::BAD_RECORD_MAC),
            HandshakeError::MissingExtension(_) => Some(alert::MISSING_EXTENSION),
            HandshakeError::NameChanged => Some(alert::ILLEGAL_PARAMETER),
            HandshakeError::NothingInCommon => Some(alert::HANDSHAKE_FAILURE),
            HandshakeError::Record(error) => error.alert(),
            HandshakeError::Config(_) | HandshakeError::Internal(_) => Some(alert::INTERNAL_ERROR),
            HandshakeError::PlainHttp
            | HandshakeError::ProxyHeader
            | HandshakeError::PlainHttpAnswer
            | HandshakeError::NotTlsAnswer
            | HandshakeError::Closed
            | HandshakeError::Tls(_)
            | HandshakeError::State(_) => None,
        }
    }
}

/// Reason why a record cannot be sealed or opened. Every error is final for its direction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// A content type or version that is not valid here.
    #[error("record header {0:02x?} is not one of tls")]
    Header([u8; 5]),
    /// A record longer than RFC 8446 section 5.2 allows.
    #[error("record of {0} bytes is too long")]
    TooLong(usize),
    /// A record too short for its mandatory parts.
    #[error("record of {0} bytes is too short")]
    TooShort(usize),
    /// The authentication tag is wrong.
    #[error("record {sequence} of key generation {generation} does not decrypt")]
    Decrypt {
        /// Key generation of the attempt.
        generation: u32,
        /// Sequence number of the attempt.
        sequence: u64,
    },
    /// Padding without an inner content type.
    #[error("record without a content type")]
    NoContentType,
    /// A content type, alert or handshake message that is not allowed after the handshake.
    #[error("unexpected {0} after the handshake")]
    Unexpected(&'static str),
    /// A KeyUpdate whose request is neither 0 nor 1.
    #[error("key_update asks for {0}, which is neither 0 nor 1")]
    KeyUpdateRequest(u8),
    /// A message whose length does not fit its type.
    #[error("{0} of a wrong length")]
    Length(&'static str),
    /// Too many consecutive records without application data.
    #[error("{0} records in a row without application data")]
    Flood(u32),
    /// A sequence number or key generation at its limit.
    #[error("{0} used up")]
    Exhausted(&'static str),
    /// The buffer does not fit one record.
    #[error("slot of {len} bytes cannot hold a record: {reason}")]
    Slot {
        /// Its length.
        len: usize,
        /// The fault.
        reason: &'static str,
    },
    /// A position that cannot be reached.
    #[error("cannot move to key generation {generation}: {reason}")]
    Seek {
        /// The requested generation.
        generation: u32,
        /// The reason.
        reason: &'static str,
    },
    /// The cipher failed, which should be impossible.
    #[error("cipher failed: {0}")]
    Cipher(&'static str),
}

impl RecordError {
    /// Origin of the error.
    pub fn blame(&self) -> Blame {
        match self {
            RecordError::Slot { .. } | RecordError::Seek { .. } => Blame::Caller,
            RecordError::Exhausted(_) | RecordError::Cipher(_) => Blame::Us,
            _ => Blame::Peer,
        }
    }

    /// The alert to send before closing; `None` for errors of this side that need none.
    pub fn alert(&self) -> Option<u8> {
        match self {
            RecordError::Header(_)
            | RecordError::NoContentType
            | RecordError::Unexpected(_)
            | RecordError::Flood(_) => Some(alert::UNEXPECTED_MESSAGE),
            RecordError::TooLong(_) => Some(alert::RECORD_OVERFLOW),
            // RFC 8446 section 5.2: a record that fails to decrypt, also because it is too short, is answered with
            // bad_record_mac.
            RecordError::TooShort(_) | RecordError::Decrypt { .. } => Some(alert::BAD_RECORD_MAC),
            RecordError::KeyUpdateRequest(_) => Some(alert::ILLEGAL_PARAMETER),
            RecordError::Length(_) => Some(alert::DECODE_ERROR),
            RecordError::Exhausted(_) => Some(alert::INTERNAL_ERROR),
            RecordError::Slot { .. } | RecordError::Seek { .. } | RecordError::Cipher(_) => None,
        }
    }
}

/// Reason why exported state cannot be read or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The bytes are too short or too long.
    #[error("record state of {0} bytes has the wrong length")]
    Length(usize),
    /// A format, version or suite that this build does not know.
    #[error("record state starts with unknown byte {0:#04x}")]
    Unknown(u8),
    /// A position that no connection reaches.
    #[error("record state names an impossible position")]
    Position,
    /// The keys are refused.
    #[error("record state: {0}")]
    Keys(RecordError),
}
