//! Checks of the client's records after its hello, where `rustls` deviates from the RFCs or charges a record twice.
//!
//! `rustls` decrypts a record of rejected early data again with each later record, and charges it again. This module
//! therefore opens records of early data with the client's handshake key, and `rustls` sees none of them. A copy of the
//! other protected records is kept to name the alert when the handshake fails.
//!
//! Invariants: a verdict is a function of the seed and the client's bytes, so that each node sends the same alert; at
//! most [`EARLY_DATA_MAX`] bytes of early data are skipped. `rustls` alone authenticates the client.

use evergate_base::seed::{Captured, SecretKind, with_current};
use rustls::server::UnbufferedServerConnection;
use rustls::{CipherSuite, HandshakeKind, ProtocolVersion};
use zeroize::Zeroize;

use crate::aead::AeadLibrary;
use crate::alert;
use crate::alias::show_alias;
use crate::driver::{Screen, Verdict};
use crate::error::{HandshakeError, RecordError};
use crate::keys::{Base, Direction, Role, Suite, Version};
use crate::records::{PAYLOAD_MAX, Records};
use crate::schedule::Secret;

/// Limit of skipped early data after a rejection (RFC 8446 section 4.2.10), in bytes of plaintext.
const EARLY_DATA_MAX: usize = 32 << 10;
/// Least charge of a skipped record in bytes, which also bounds the number of records.
const EARLY_RECORD_MIN: usize = 64;
const HEADER: usize = 5;
const TAG: usize = 16;
const EXPLICIT_NONCE: usize = 8;
/// Limit of the protected bytes kept to name an alert: a chain of certificates of several kilobytes, and a signature.
const PROTECTED_MAX: usize = 96 << 10;
/// Longest handshake message that `rustls` accepts.
const MESSAGE_MAX: usize = 0xffff;
const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const FINISHED: u8 = 20;
/// Certificate, CertificateVerify, Finished and CompressedCertificate: the messages that a client may send protected.
const FLIGHT: [u8; 4] = [11, 15, FINISHED, 25];
/// A Finished of TLS 1.2: type, length and 12 bytes (RFC 5246 section 7.4.9).
const FINISHED_TLS12: usize = 16;

/// The client's records after its hello.
pub(crate) struct ClientFlight {
    /// Early data that may still be skipped, in bytes; `None` once none can follow.
    early_data_left: Option<usize>,
    /// Protected records as received.
    protected: Vec<u8>,
    /// TLS 1.2: plaintext bytes of protected handshake records; `None` before change_cipher_spec.
    protected_tls12: Option<usize>,
}

impl Drop for ClientFlight {
    fn drop(&mut self) {
        self.protected.zeroize();
    }
}

/// Phase of the handshake on the server's side.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// A ClientHello is incomplete, or the version is TLS 1.2.
    Clear,
    /// A HelloRetryRequest asks for the second ClientHello.
    Retry,
    /// TLS 1.3: the client's records are protected.
    Protected,
}

impl ClientFlight {
    /// The records after a hello; `early_data`: the hello announces early data.
    pub(crate) fn new(early_data: bool) -> ClientFlight {
        let early_data_left = early_data.then_some(EARLY_DATA_MAX);
        ClientFlight { early_data_left, protected: Vec::new(), protected_tls12: None }
    }

    fn phase(conn: &UnbufferedServerConnection) -> Phase {
        if captured(SecretKind::ClientHandshake).is_some() {
            Phase::Protected
        } else if conn.handshake_kind() == Some(HandshakeKind::FullWithHelloRetryRequest) {
            Phase::Retry
        } else {
            Phase::Clear
        }
    }

    /// Charges one record of early data.
    fn skip(&mut self, record: &[u8]) -> Verdict {
        let charge = record.len().saturating_sub(HEADER + TAG + 1).max(EARLY_RECORD_MIN);
        match self.early_data_left.map(|left| left.checked_sub(charge)) {
            Some(Some(left)) => {
                self.early_data_left = Some(left);
                Verdict::Skip
            }
            Some(None) => Verdict::Refuse(HandshakeError::EarlyData { bytes_max: EARLY_DATA_MAX }),
            None => Verdict::Refuse(HandshakeError::Unexpected("application data")),
        }
    }

    fn judge_protected(&mut self, suite: Option<Suite>, record: &[u8]) -> Verdict {
        match record.first() {
            // RFC 8446 section 5: an unprotected record where protection is expected.
            Some(&HANDSHAKE) => return Verdict::Refuse(HandshakeError::Unexpected("unprotected record")),
            Some(&APPLICATION_DATA) if self.early_data_left.is_some() => {
                // The first record that the handshake key opens ends the early data.
                let opens =
                    suite.and_then(Opener::new).is_some_and(|mut opener| opener.open(record).is_some());
                if !opens {
                    return self.skip(record);
                }
                self.early_data_left = None;
            }
            _ => {}
        }
        if self.protected.len() + record.len() <= PROTECTED_MAX {
            self.protected.extend_from_slice(record);
        } // otherwise the alert is that of `rustls`
        Verdict::Show
    }

    fn record_tls12(&mut self, suite: Option<Suite>, record: &[u8]) {
        match (record.first(), &mut self.protected_tls12) {
            (Some(&CHANGE_CIPHER_SPEC), protected @ None) => *protected = Some(0),
            (Some(&HANDSHAKE), Some(bytes)) => {
                let explicit = if suite == Some(Suite::Chacha20Poly1305) { 0 } else { EXPLICIT_NONCE };
                *bytes += record.len().saturating_sub(HEADER + TAG + explicit);
            }
            _ => {}
        }
    }

    /// The alert of the RFCs for this failure if `rustls` sends another or none; `None` if its alert is right.
    pub(crate) fn alert_for(
        &self,
        error: &HandshakeError,
        conn: &UnbufferedServerConnection,
        sent: Option<u8>,
    ) -> Option<u8> {
        let tls13 = conn.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        if let (Some(suite), false) = (suite_of(conn), self.protected.is_empty())
            && let Some(named) = alert_of_flight(suite, &self.protected)
        {
            return Some(named);
        }
        let is_short = self.protected_tls12.is_some_and(|bytes| bytes > 0 && bytes != FINISHED_TLS12);
        if sent == Some(alert::DECRYPT_ERROR) && is_short {
            return Some(alert::DECODE_ERROR);
        }
        named_alert(error, tls13, sent)
    }
}

impl Screen<UnbufferedServerConnection> for ClientFlight {
    fn judge(&mut self, conn: &UnbufferedServerConnection, record: &[u8]) -> Verdict {
        let phase = ClientFlight::phase(conn);
        // RFC 8446 section 5.1: only protected records may be longer.
        let early_data = phase == Phase::Retry && record.first() == Some(&APPLICATION_DATA);
        let clear = phase != Phase::Protected && self.protected_tls12.is_none() && !early_data;
        if clear && record.len() > HEADER + PAYLOAD_MAX {
            return Verdict::Refuse(HandshakeError::Record(RecordError::TooLong(record.len())));
        }
        match (phase, record.first()) {
            (Phase::Protected, _) => self.judge_protected(suite_of(conn), record),
            (Phase::Retry, Some(&APPLICATION_DATA)) => self.skip(record),
            (Phase::Retry, Some(&HANDSHAKE)) => {
                self.early_data_left = None; // no early data follows the second hello
                second_hello(record)
            }
            (Phase::Retry, _) => Verdict::Show,
            (Phase::Clear, _) => {
                self.record_tls12(suite_of(conn), record);
                Verdict::Show
            }
        }
    }
}

/// The second hello under the same alias as the first. `rustls` compares only the shown names, so another real name is
/// refused here. A second hello in several records under a name that needs an alias is refused as well.
fn second_hello(record: &[u8]) -> Verdict {
    let mut shown = record.to_vec();
    let second = show_alias(&mut shown);
    let first = with_current(|seed| seed.alias.take()).flatten();
    match (first, second) {
        (None, None) => Verdict::Show,
        (Some(first), Some(second)) if first.real.eq_ignore_ascii_case(&second.real) => {
            with_current(|seed| seed.alias = Some(second));
            Verdict::ShowAs(shown)
        }
        _ => Verdict::Refuse(HandshakeError::NameChanged),
    }
}

/// The protection of the handshake's cipher suite.
fn suite_of(conn: &UnbufferedServerConnection) -> Option<Suite> {
    match conn.negotiated_cipher_suite()?.suite() {
        CipherSuite::TLS13_AES_128_GCM_SHA256
        | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
        | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => Some(Suite::Aes128Gcm),
        CipherSuite::TLS13_AES_256_GCM_SHA384
        | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
        | CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => Some(Suite::Aes256Gcm),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
        | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
        | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => Some(Suite::Chacha20Poly1305),
        _ => None,
    }
}

/// A secret of the installed seed.
fn captured(kind: SecretKind) -> Option<Secret> {
    with_current(|seed| secret_of(&seed.captured, kind)).flatten()
}

fn secret_of(captured: &[Captured], kind: SecretKind) -> Option<Secret> {
    captured.iter().find(|captured| captured.kind == kind).and_then(|captured| Secret::new(&captured.secret))
}

/// Appends a fatal alert under the server's first application key, as the first record under it. The caller has
/// discarded other records sealed there. Returns whether the alert was appended.
pub(crate) fn seal_first_alert(
    conn: &UnbufferedServerConnection,
    secrets: &[Captured],
    description: u8,
    out: &mut Vec<u8>,
) -> bool {
    let direction = |kind| {
        let suite = suite_of(conn)?;
        Direction::new(AeadLibrary::AwsLc, suite, Base::Tls13(secret_of(secrets, kind)?), 0)
            .ok()
            .map(|direction| (suite, direction))
    };
    let both = direction(SecretKind::ServerTraffic).zip(direction(SecretKind::ClientTraffic));
    let Some(((suite, tx), (_, rx))) = both else { return false };
    let before = out.len();
    Records::new(Version::Tls13, Role::Server, suite, tx, rx, None).seal_alert(description, out);
    out.len() > before
}

/// Opener of copies of the client's protected records, in order from the first on.
struct Opener {
    direction: Direction,
}

impl Opener {
    fn new(suite: Suite) -> Option<Opener> {
        let secret = captured(SecretKind::ClientHandshake)?;
        Some(Opener { direction: Direction::new(AeadLibrary::AwsLc, suite, Base::Tls13(secret), 0).ok()? })
    }

    /// The inner plaintext with its content type and padding.
    fn open(&mut self, record: &[u8]) -> Option<Vec<u8>> {
        let (header, body) = record.split_at_checked(HEADER)?;
        let (inner, tag) = body.split_at_checked(body.len().checked_sub(TAG)?)?;
        let mut plain = inner.to_vec();
        let direction = &mut self.direction;
        let opened = direction.cipher.open(direction.nonce(), header, tag, &mut plain);
        direction.position.sequence += u64::from(opened);
        opened.then_some(plain)
    }
}

/// The alert of RFC 8446 for the first fault of the client's protected records; `None` if the records alone show no
/// fault.
fn alert_of_flight(suite: Suite, mut records: &[u8]) -> Option<u8> {
    let mut opener = Opener::new(suite)?;
    let mut messages = Messages { finished: suite.secret_len(), pending: Vec::new() };
    while let &[kind, _, _, hi, lo, ..] = records {
        let len = HEADER + usize::from(u16::from_be_bytes([hi, lo]));
        let (record, rest) = records.split_at_checked(len)?;
        records = rest;
        if kind != APPLICATION_DATA {
            if !messages.pending.is_empty() {
                return Some(alert::UNEXPECTED_MESSAGE);
            }
            continue;
        }
        let inner = opener.open(record)?;
        // Section 5.4: "the full encoded TLSInnerPlaintext MUST NOT exceed 2^14 + 1 octets".
        if inner.len() > PAYLOAD_MAX + 1 {
            return Some(alert::RECORD_OVERFLOW);
        }
        let Some(end) = inner.iter().rposition(|&byte| byte != 0) else {
            return Some(alert::UNEXPECTED_MESSAGE);
        };
        if let Some(named) = messages.take(inner[end], &inner[..end]) {
            return Some(named);
        }
    }
    None
}

/// The handshake messages in a client's protected records.
struct Messages {
    /// Length of a Finished's body, in bytes.
    finished: usize,
    /// The beginning of a message.
    pending: Vec<u8>,
}

impl Messages {
    fn take(&mut self, content: u8, payload: &[u8]) -> Option<u8> {
        match (content, payload.len()) {
            (HANDSHAKE | ALERT, 0) => Some(alert::UNEXPECTED_MESSAGE), // section 5.4
            (HANDSHAKE, _) => {
                self.pending.extend_from_slice(payload);
                self.check()
            }
            _ if !self.pending.is_empty() => Some(alert::UNEXPECTED_MESSAGE), // section 5.1
            (ALERT, 2) => None,
            (ALERT, _) => Some(alert::DECODE_ERROR),
            _ => Some(alert::UNEXPECTED_MESSAGE),
        }
    }

    fn check(&mut self) -> Option<u8> {
        let mut read = 0;
        while let Some(&[kind, a, b, c, ..]) = self.pending.get(read..) {
            let len = u32::from_be_bytes([0, a, b, c]) as usize;
            if !FLIGHT.contains(&kind) {
                return Some(alert::UNEXPECTED_MESSAGE);
            }
            if len > MESSAGE_MAX || (kind == FINISHED && len != self.finished) {
                return Some(alert::DECODE_ERROR);
            }
            if self.pending.len() - read < 4 + len {
                break;
            }
            read += 4 + len;
            if kind == FINISHED && read < self.pending.len() {
                return Some(alert::UNEXPECTED_MESSAGE); // section 5.1: the keys change after it
            }
        }
        self.pending.drain(..read);
        None
    }
}

/// The alert for an error of `rustls` that sent another one, or none (`sent`).
fn named_alert(error: &HandshakeError, tls13: bool, sent: Option<u8>) -> Option<u8> {
    use rustls::{Error as E, InvalidMessage as M, PeerIncompatible as I, PeerMisbehaved as P};
    let HandshakeError::Tls(error) = error else { return error.alert() };
    match error {
        E::PeerIncompatible(I::SignatureAlgorithmsExtensionRequired | I::KeyShareExtensionRequired)
            if tls13 =>
        {
            Some(alert::MISSING_EXTENSION)
        }
        E::InvalidMessage(M::InvalidContentType | M::InvalidEmptyPayload)
        | E::PeerMisbehaved(
            P::IllegalTlsInnerPlaintext
            | P::IllegalMiddleboxChangeCipherSpec
            | P::KeyEpochWithPendingFragment
            | P::MessageInterleavedWithHandshakeMessage
            | P::RejectedEarlyDataInterleavedWithHandshakeMessage
            | P::TooManyEmptyFragments
            | P::TooManyWarningAlertsReceived,
        ) => Some(alert::UNEXPECTED_MESSAGE),
        E::InvalidMessage(M::MessageTooLarge) | E::PeerSentOversizedRecord => Some(alert::RECORD_OVERFLOW),
        _ if sent.is_some() => None,
        E::AlertReceived(_) => None,
        E::InvalidMessage(_) => Some(alert::DECODE_ERROR),
        E::PeerMisbehaved(_) => Some(alert::ILLEGAL_PARAMETER),
        E::PeerIncompatible(_) => Some(alert::HANDSHAKE_FAILURE),
        E::InappropriateMessage { .. } | E::InappropriateHandshakeMessage { .. } => {
            Some(alert::UNEXPECTED_MESSAGE)
        }
        _ => Some(alert::INTERNAL_ERROR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_base::seed::{Seed, scoped};

    /// A ClientHello with this name in one record.
    fn hello(name: &str) -> Vec<u8> {
        let len = name.len() as u8;
        let names = [&[0, 0, 0, len + 5, 0, len + 3, 0, 0, len], name.as_bytes()].concat();
        let head = [&[3, 3][..], &[9; 32], &[0, 0, 2, 0x13, 1, 1, 0, 0, names.len() as u8]].concat();
        let body = [&head[..], &names].concat();
        let message = [&[1, 0, 0, body.len() as u8], &body[..]].concat();
        [&[22, 3, 1, 0, message.len() as u8], &message[..]].concat()
    }

    /// All of these names except the last are shown to `rustls` as `_a.test`.
    #[test]
    fn second_hello_with_another_name_is_refused() {
        for (first, second, passes) in [
            ("-a.test", "-a.test", true),
            ("-a.test", "-A.test", true),
            ("-a.test", "+a.test", false),
            ("-a.test", "_a.test", false),
            ("_a.test", "-a.test", false),
            ("_a.test", "_a.test", true),
            ("a.test", "b.test", true), // `rustls` compares these
        ] {
            let mut seed = Some(Seed::new([1; 32], 0));
            scoped(&mut seed, || {
                let mut raw = hello(first);
                let alias = show_alias(&mut raw);
                with_current(|seed| seed.alias = alias);
                let refused =
                    matches!(second_hello(&hello(second)), Verdict::Refuse(HandshakeError::NameChanged));
                assert_eq!(refused, !passes, "{first} {second}");
            });
        }
    }

    #[test]
    fn many_messages_in_one_record_are_read_once() {
        let mut messages = Messages { finished: 32, pending: Vec::new() };
        assert_eq!(messages.take(HANDSHAKE, &[11, 0, 0, 0].repeat(4_000)), None);
        assert!(messages.pending.is_empty());
        assert_eq!(messages.take(HANDSHAKE, &[11, 0, 0, 2, 7]), None);
        assert_eq!(messages.pending, [11, 0, 0, 2, 7], "an incomplete message stays");
        assert_eq!(messages.take(HANDSHAKE, &[7, 20, 0, 0, 1]), Some(alert::DECODE_ERROR));
    }
}
