//! Driver that feeds `rustls` one record at a time, which hides the segmentation of the peer's bytes.
//!
//! Invariants: `rustls` always sees the bytes that it has seen and not discarded, from the same start, extended by
//! whole records only. A shorter slice than before makes it panic, and a peer could cause that. Its output is appended
//! to `out` in order, including the alert of a failure.

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use zeroize::Zeroize;

use crate::error::HandshakeError;
use crate::records::record_len;

/// Limit of a peer's handshake in raw bytes: certificate chains included, rejected early data excluded.
pub(crate) const HANDSHAKE_BYTES_MAX: u64 = 256 << 10;

/// The two kinds of `rustls` connection, which share their methods in name only.
pub(crate) trait Engine {
    type Data;
    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn is_handshaking(&self) -> bool;
    /// Whether the next call encodes output without reading the input.
    fn has_output(&self) -> bool;
}

impl Engine for UnbufferedServerConnection {
    type Data = ServerConnectionData;
    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(input)
    }
    fn is_handshaking(&self) -> bool {
        (**self).is_handshaking()
    }
    fn has_output(&self) -> bool {
        (**self).wants_write()
    }
}

impl Engine for UnbufferedClientConnection {
    type Data = ClientConnectionData;
    fn process<'c, 'i>(&'c mut self, input: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(input)
    }
    fn is_handshaking(&self) -> bool {
        (**self).is_handshaking()
    }
    fn has_output(&self) -> bool {
        (**self).wants_write()
    }
}

/// Verdict on a whole record before `rustls` sees it.
pub(crate) enum Verdict {
    /// `rustls` processes it.
    Show,
    /// `rustls` processes these bytes, of the same length, in its place.
    ShowAs(Vec<u8>),
    /// It is dropped, and `rustls` never sees it.
    Skip,
    /// The handshake ends.
    Refuse(HandshakeError),
}

/// Screen of the peer's records in front of `rustls`.
pub(crate) trait Screen<E> {
    fn judge(&mut self, conn: &E, record: &[u8]) -> Verdict;
}

/// A screen that passes every record.
pub(crate) struct NoScreen;

impl<E> Screen<E> for NoScreen {
    fn judge(&mut self, _: &E, _: &[u8]) -> Verdict {
        Verdict::Show
    }
}

/// Input buffer for `rustls`.
#[derive(Default)]
pub(crate) struct Input {
    /// `shown` bytes that `rustls` has seen and not discarded, then bytes that it has not seen.
    pub(crate) bytes: Vec<u8>,
    shown: usize,
    /// Raw bytes shown to `rustls` or skipped so far.
    pub(crate) consumed: u64,
    /// Number of these bytes that were skipped.
    skipped: u64,
    /// Length of the output before the newest record was processed.
    pub(crate) answered_from: usize,
}

impl Drop for Input {
    fn drop(&mut self) {
        self.bytes.zeroize(); // rustls decrypts in place
    }
}

impl Input {
    /// Feeds all complete records; returns true when the handshake is done.
    pub(crate) fn feed<E: Engine>(
        &mut self,
        conn: &mut E,
        screen: &mut impl Screen<E>,
        out: &mut Vec<u8>,
    ) -> Result<bool, HandshakeError> {
        let mut at = 0; // start of the view of rustls
        let result = self.feed_from(&mut at, conn, screen, out);
        self.bytes.drain(..at);
        result
    }

    fn feed_from<E: Engine>(
        &mut self,
        at: &mut usize,
        conn: &mut E,
        screen: &mut impl Screen<E>,
        out: &mut Vec<u8>,
    ) -> Result<bool, HandshakeError> {
        loop {
            self.answered_from = out.len();
            let end = *at + self.shown;
            let Some(header) = self.bytes.get(end..).and_then(|rest| rest.first_chunk()) else {
                return Ok(false);
            };
            let (len, refused) = match record_len(header) {
                Ok(len) => (len, None),
                // rustls chooses the alert, for which the header is enough.
                Err(error) => (header.len(), Some(error)),
            };
            let Some(record) = self.bytes.get(end..end + len) else { return Ok(false) };
            self.consumed += len as u64;
            if refused.is_none() {
                match screen.judge(conn, record) {
                    Verdict::Show => {}
                    Verdict::ShowAs(other) => {
                        self.bytes.splice(end..end + len, other);
                    }
                    Verdict::Skip => {
                        self.skipped += len as u64;
                        self.bytes.drain(end..end + len);
                        continue;
                    }
                    Verdict::Refuse(error) => return Err(error),
                }
            }
            self.shown += len;
            if self.consumed - self.skipped > HANDSHAKE_BYTES_MAX {
                return Err(HandshakeError::HandshakeTooLong { bytes_max: HANDSHAKE_BYTES_MAX });
            }
            if let Err(error) = self.run(at, conn, out) {
                self.send_alert(at, conn, out);
                return Err(refused.map_or(error, HandshakeError::Record));
            }
            if let Some(error) = refused {
                return Err(HandshakeError::Record(error));
            }
            if !conn.is_handshaking() {
                return if self.shown == 0 { Ok(true) } else { Err(HandshakeError::TrailingMessages) };
            }
        }
    }

    /// One call of `rustls` on its view.
    fn process<E: Engine>(
        &mut self,
        at: &mut usize,
        conn: &mut E,
        out: &mut Vec<u8>,
    ) -> Result<bool, HandshakeError> {
        let view = self.bytes.get_mut(*at..*at + self.shown).unwrap_or_default();
        let UnbufferedStatus { discard, state, .. } = conn.process(view);
        let outcome = match state {
            Ok(ConnectionState::EncodeTlsData(data)) => encode(data, out).map(|()| true),
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done();
                Ok(true)
            }
            // WriteTraffic is also offered before the client's Finished, for 0.5-RTT data, which this server never
            // sends.
            Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => Ok(false),
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Err(HandshakeError::Closed),
            Ok(_) => Err(HandshakeError::Internal("rustls reported data that may not be sent yet")),
            Err(error) => Err(HandshakeError::Tls(error)),
        };
        let discard = discard.min(self.shown);
        self.shown -= discard;
        *at += discard;
        outcome
    }

    fn run<E: Engine>(
        &mut self,
        at: &mut usize,
        conn: &mut E,
        out: &mut Vec<u8>,
    ) -> Result<(), HandshakeError> {
        while self.process(at, conn, out)? {}
        Ok(())
    }

    /// Sends what an error queued, and earlier output. `rustls` is called only while it does not read the input again:
    /// a second error would queue a second alert (and trip one of its assertions).
    fn send_alert<E: Engine>(&mut self, at: &mut usize, conn: &mut E, out: &mut Vec<u8>) {
        while conn.has_output() {
            if !matches!(self.process(at, conn, out), Ok(true)) {
                return;
            }
        }
    }

    /// Runs `rustls` without input: a client's first flight.
    pub(crate) fn start<E: Engine>(&mut self, conn: &mut E, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
        self.run(&mut 0, conn, out)
    }
}

fn encode<D>(mut data: EncodeTlsData<'_, D>, out: &mut Vec<u8>) -> Result<(), HandshakeError> {
    let start = out.len();
    let len = match data.encode(&mut []) {
        Err(EncodeError::InsufficientSize(size)) => size.required_size,
        Ok(_) | Err(EncodeError::AlreadyEncoded) => return Ok(()),
    };
    out.resize(start + len, 0);
    match data.encode(&mut out[start..]) {
        Ok(written) => {
            out.truncate(start + written);
            Ok(())
        }
        Err(_) => {
            out.truncate(start);
            Err(HandshakeError::Internal("rustls did not encode into the room it asked for"))
        }
    }
}
