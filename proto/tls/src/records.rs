//! Record layer after the handshake: seals and opens in place, one whole record at a time, without allocating.
//!
//! Invariants: a sequence number is used for one record; every record of a peer is opened, refused with an error that
//! names the alert to send, or ignored within a limit. This module does not find record boundaries (see [`record_len`])
//! and does not decide when to send.
//!
//! An idle connection keeps one boxed structure and two cipher contexts.

use std::ops::Range;

use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;

use crate::aead::{AeadLibraries, installed_aead};
use crate::alert;
use crate::error::{RecordError, StateError};
use crate::keys::{Direction, Position, REBASE_AFTER, Role, Suite, Version};
use crate::opening::{EXPLICIT_NONCE, HEADER, TAG, has_explicit_nonce};
use crate::state::{DirectionState, RecordsState};

/// Most payload bytes in one record (RFC 8446 section 5.1).
pub const PAYLOAD_MAX: usize = 16384;
/// Most bytes after the header: RFC 8446 section 5.2 allows 256 for padding, type and tag. TLS 1.2 would allow 2,048,
/// but the supported ciphers add 24.
const FRAGMENT_MAX: usize = PAYLOAD_MAX + 256;
/// Limit of consecutive records without application data from a peer (empty, warnings, KeyUpdates, tickets,
/// renegotiations). Application data resets the count, and each second lowers it by one (see [`Records::forgive`]).
const FRUITLESS_MAX: u32 = 32;
/// Sequence numbers reserved for the alert or KeyUpdate that must still be possible after application data.
const SEQUENCE_RESERVE: u64 = 8;
/// Limit of session tickets from one upstream connection.
const TICKETS_MAX: u8 = 4;
const CLIENT_HELLO: u8 = 1;
const KEY_UPDATE: u8 = 24;
const NEW_SESSION_TICKET: u8 = 4;

/// Content type of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ContentType {
    /// Two bytes: level and description.
    Alert = 21,
    /// After the handshake: KeyUpdate only.
    Handshake = 22,
    /// Payload.
    ApplicationData = 23,
}

/// Bytes that a record needs around its payload, so that it can be sealed in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes before the payload.
    pub header: usize,
    /// Bytes after the payload.
    pub trailer: usize,
}

/// Content of an opened record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// Application data, at this range of the record; never empty.
    Data(Range<usize>),
    /// The peer changed its keys, and the keys for reading followed.
    KeyUpdate {
        /// Whether the peer wants the same: answer with [`Records::seal_key_update`]`(false, ..)`.
        requested: bool,
    },
    /// The peer ends the connection, or warns.
    Alert {
        /// Whether the connection is over without a clean close.
        fatal: bool,
        /// The number on the wire; 0 is close_notify.
        description: u8,
    },
    /// TLS 1.2: a client asks for another handshake. The answer is a warning no_renegotiation (RFC 5246 section 7.2.2);
    /// the connection is unchanged.
    Renegotiation,
    /// No action is needed.
    Ignored,
}

/// Both directions of one established connection.
pub struct Records {
    inner: Box<Inner>,
}

struct Inner {
    version: Version,
    role: Role,
    suite: Suite,
    tx: Direction,
    rx: Direction,
    fruitless: u32,
    /// Second up to which `fruitless` was lowered, by the caller's clock.
    forgiven_s: u32,
    /// Remaining bytes of a ticket or a ClientHello that spans records.
    message_rest: usize,
    /// Beginning of a message whose type and length span records: the number of bytes and the bytes.
    begun: (usize, [u8; 4]),
    tickets: Option<Box<Tickets>>,
}

/// With two AEAD contexts of 584 bytes at most, an idle connection stays within 1.5 KB.
const _: () = assert!(size_of::<Inner>() <= 320);

/// Destination of an upstream connection's session tickets.
struct Tickets {
    kernel: KernelConnection<ClientConnectionData>,
    left: u8,
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records")
            .field("version", &self.inner.version)
            .field("suite", &self.inner.suite)
            .field("tx", &self.tx())
            .field("rx", &self.rx())
            .finish_non_exhaustive()
    }
}

/// Length of the whole record that starts with `header`, header included. The minor version "MUST be ignored for all
/// purposes" (RFC 8446 section 5.1).
pub fn record_len(header: &[u8; HEADER]) -> Result<usize, RecordError> {
    let &[kind, major, _, hi, lo] = header;
    if !(20..=23).contains(&kind) || major != 3 {
        return Err(RecordError::Header(*header));
    }
    let len = HEADER + usize::from(u16::from_be_bytes([hi, lo]));
    if len > HEADER + FRAGMENT_MAX { Err(RecordError::TooLong(len)) } else { Ok(len) }
}

impl Records {
    pub(crate) fn new(
        version: Version,
        role: Role,
        suite: Suite,
        tx: Direction,
        rx: Direction,
        kernel: Option<KernelConnection<ClientConnectionData>>,
    ) -> Records {
        let tickets = kernel.map(|kernel| Box::new(Tickets { kernel, left: TICKETS_MAX }));
        let (fruitless, forgiven_s, message_rest, begun) = (0, 0, 0, (0, [0; 4]));
        let inner =
            Inner { version, role, suite, tx, rx, fruitless, forgiven_s, message_rest, begun, tickets };
        Records { inner: Box::new(inner) }
    }

    /// Protocol version.
    pub fn version(&self) -> Version {
        self.inner.version
    }

    /// Record protection.
    pub fn suite(&self) -> Suite {
        self.inner.suite
    }

    /// Bytes around the payload that [`seal`](Self::seal) needs.
    pub fn layout(&self) -> Layout {
        self.inner.layout()
    }

    /// Seals the payload in the middle of `slot`, which becomes the record.
    pub fn seal(&mut self, content: ContentType, slot: &mut [u8]) -> Result<(), RecordError> {
        self.inner.seal(content, slot)
    }

    /// Opens `record`, exactly one whole raw record with its header, in place. After an error the connection must end.
    pub fn open(&mut self, record: &mut [u8]) -> Result<Opened, RecordError> {
        self.inner.open(record)
    }

    /// Sets the time, in seconds of any monotonic clock: for each second since the last call, one record without
    /// application data is forgiven.
    pub fn forgive(&mut self, now_s: u32) {
        let inner = &mut *self.inner;
        if inner.fruitless > 0 {
            inner.fruitless = inner.fruitless.saturating_sub(now_s.saturating_sub(inner.forgiven_s));
        }
        inner.forgiven_s = inner.forgiven_s.max(now_s);
    }

    /// Appends a KeyUpdate and moves the sending keys forward. Appends nothing in TLS 1.2, nor while the base secret is
    /// 1,024 generations behind.
    pub fn seal_key_update(&mut self, request: bool, out: &mut Vec<u8>) {
        let inner = &mut *self.inner;
        if inner.version != Version::Tls13 || !inner.tx.may_update() {
            return;
        }
        let message = [KEY_UPDATE, 0, 0, 1, u8::from(request)];
        if inner.append(ContentType::Handshake, &message, out) {
            // The generation was checked above, so this cannot fail; otherwise the limit on records would still hold.
            let _ = inner.tx.update(inner.suite);
        }
        if request {
            inner.fruitless = 0; // a requested answer does not count
        }
    }

    /// Appends an alert; its level follows from its description.
    pub fn seal_alert(&mut self, description: u8, out: &mut Vec<u8>) {
        let warning =
            matches!(description, alert::CLOSE_NOTIFY | alert::USER_CANCELED | alert::NO_RENEGOTIATION);
        let level = if warning { 1 } else { 2 };
        self.inner.append(ContentType::Alert, &[level, description], out);
    }

    /// Whether to send a KeyUpdate now: half of the limit of one AES-GCM key is used.
    pub fn wants_key_update(&self) -> bool {
        let inner = &*self.inner;
        inner.version == Version::Tls13 && inner.tx.position.sequence >= inner.suite.records_max() / 2
    }

    /// Whether to close soon: TLS 1.2 cannot change keys, and sealing fails at the limit.
    pub fn wants_close(&self) -> bool {
        let inner = &*self.inner;
        inner.tx.position.sequence >= inner.suite.records_max() / 16 * 15
    }

    /// Position of sending.
    pub fn tx(&self) -> Position {
        self.inner.tx.position
    }

    /// Position of receiving.
    pub fn rx(&self) -> Position {
        self.inner.rx.position
    }

    /// Whether no handshake message of the peer is incomplete: receiving can continue on another node from here.
    pub fn is_between_messages(&self) -> bool {
        self.inner.is_between_messages()
    }

    /// Moves sending to another position. The caller must observe law 3 (`docs/internals/failover.md`): bytes sealed
    /// there must equal those sealed there before.
    pub fn seek_tx(&mut self, to: Position) -> Result<(), RecordError> {
        self.inner.tx.seek(self.inner.suite, to)
    }

    /// Moves receiving to another position.
    pub fn seek_rx(&mut self, to: Position) -> Result<(), RecordError> {
        self.inner.rx.seek(self.inner.suite, to)
    }

    /// The complete state for another node.
    pub fn export(&self) -> RecordsState {
        let Inner { version, role, suite, tx, rx, .. } = &*self.inner;
        let direction = |direction: &Direction| DirectionState {
            base: direction.base().clone(),
            base_generation: direction.base_generation(),
            position: direction.position,
        };
        RecordsState { version: *version, role: *role, suite: *suite, tx: direction(tx), rx: direction(rx) }
    }

    /// Whether the base secrets are far behind the generations of these positions, the oldest still in use.
    pub fn wants_rebase(&self, tx: Position, rx: Position) -> bool {
        let behind = |direction: &Direction, oldest: Position| {
            oldest.generation.saturating_sub(direction.base_generation()) >= REBASE_AFTER
        };
        behind(&self.inner.tx, tx) || behind(&self.inner.rx, rx)
    }

    /// Moves the base secrets to the generations of these positions: no record before them can be sealed or opened
    /// again, here or on another node. The number of KeyUpdates in a connection's life is therefore unlimited.
    pub fn rebase(&mut self, tx: Position, rx: Position) {
        let inner = &mut *self.inner;
        inner.tx.rebase(inner.suite, tx.generation);
        inner.rx.rebase(inner.suite, rx.generation);
    }

    /// The complete state for another node to continue at these positions, or at any later ones.
    pub fn export_at(&self, tx: Position, rx: Position) -> RecordsState {
        let mut state = self.export();
        (state.tx.position, state.rx.position) = (tx, rx);
        state
    }

    /// A record layer that continues at the position of the exported one.
    pub fn import(state: &RecordsState) -> Result<Records, StateError> {
        Records::import_with(state, installed_aead())
    }

    /// Like [`import`](Self::import), with other libraries than the installed ones, which may differ from those of the
    /// exporter.
    pub fn import_with(state: &RecordsState, libraries: AeadLibraries) -> Result<Records, StateError> {
        let RecordsState { version, role, suite, tx, rx } = state;
        let library = libraries.of(*suite);
        let direction = |state: &DirectionState| {
            let mut direction = Direction::based(library, *suite, state.base.clone(), state.base_generation)?;
            direction.seek(*suite, state.position)?;
            Ok(direction)
        };
        let both = direction(tx).and_then(|tx| Ok((tx, direction(rx)?)));
        let (tx, rx) = both.map_err(StateError::Keys)?;
        Ok(Records::new(*version, *role, *suite, tx, rx, None))
    }
}

impl Inner {
    fn is_between_messages(&self) -> bool {
        self.message_rest == 0 && self.begun.0 == 0
    }

    fn explicit_nonce(&self) -> bool {
        has_explicit_nonce(self.version, self.suite)
    }

    fn layout(&self) -> Layout {
        let header = if self.explicit_nonce() { HEADER + EXPLICIT_NONCE } else { HEADER };
        let trailer = if self.version == Version::Tls13 { TAG + 1 } else { TAG };
        Layout { header, trailer }
    }

    fn seal(&mut self, content: ContentType, slot: &mut [u8]) -> Result<(), RecordError> {
        let Layout { header, trailer } = self.layout();
        let len = slot.len();
        let payload = match len.checked_sub(header + trailer) {
            None => return Err(RecordError::Slot { len, reason: "no room around the payload" }),
            Some(payload) if payload > PAYLOAD_MAX => {
                return Err(RecordError::Slot { len, reason: "payload too long" });
            }
            // RFC 8446 section 5.4: only application data may be empty.
            Some(0) if content != ContentType::ApplicationData => {
                return Err(RecordError::Slot { len, reason: "empty message" });
            }
            Some(payload) => payload,
        };
        let reserve = if content == ContentType::ApplicationData { SEQUENCE_RESERVE } else { 0 };
        if self.tx.position.sequence >= self.suite.records_max() - reserve {
            return Err(RecordError::Exhausted("sending key"));
        }
        let nonce = self.tx.nonce();
        let sequence = self.tx.position.sequence;
        let (head, rest) = slot.split_at_mut(header);
        let body_len = ((len - HEADER) as u16).to_be_bytes();
        if self.version == Version::Tls13 {
            head.copy_from_slice(&[ContentType::ApplicationData as u8, 3, 3, body_len[0], body_len[1]]);
            let (inner, tag_room) = rest.split_at_mut(payload + 1);
            inner[payload] = content as u8;
            tag_room.copy_from_slice(&self.tx.cipher.seal(nonce, head, inner)?);
        } else {
            head[..HEADER].copy_from_slice(&[content as u8, 3, 3, body_len[0], body_len[1]]);
            if header > HEADER {
                head[HEADER..].copy_from_slice(&nonce[4..]);
            }
            let (inner, tag_room) = rest.split_at_mut(payload);
            let aad = aad_tls12(sequence, content as u8, payload);
            tag_room.copy_from_slice(&self.tx.cipher.seal(nonce, &aad, inner)?);
        }
        self.tx.position.sequence = sequence + 1;
        Ok(())
    }

    /// Appends one small record; returns false when the key is used up.
    fn append(&mut self, content: ContentType, message: &[u8], out: &mut Vec<u8>) -> bool {
        let Layout { header, trailer } = self.layout();
        let start = out.len();
        out.resize(start + header, 0);
        out.extend_from_slice(message);
        out.resize(out.len() + trailer, 0);
        let sealed = self.seal(content, &mut out[start..]).is_ok();
        if !sealed {
            out.truncate(start);
        }
        sealed
    }

    fn open(&mut self, record: &mut [u8]) -> Result<Opened, RecordError> {
        let len = record.len();
        let Some((header, body)) = record.split_first_chunk_mut::<HEADER>() else {
            return Err(RecordError::Slot { len, reason: "not a whole record" });
        };
        if record_len(header)? != len {
            return Err(RecordError::Slot { len, reason: "not exactly one record" });
        }
        if header[1..3] != [3, 3] {
            return Err(RecordError::Header(*header));
        }
        if self.rx.position.sequence >= 1 << 62 {
            return Err(RecordError::Exhausted("receiving key"));
        }
        match (self.version, header[0]) {
            // RFC 8446 section 5: dropped only "before the peer's Finished message has been received".
            (_, 20) => return Err(RecordError::Unexpected("change_cipher_spec")),
            (Version::Tls13, kind) if kind != 23 => {
                return Err(RecordError::Unexpected("unprotected record"));
            }
            _ => {}
        }
        let (content, place) = self.rx.open(self.version, self.suite, header, body)?;
        self.dispatch(content, HEADER + place.start, &body[place])
    }

    /// Acts on an authenticated record's content, which begins at `start` in the record.
    fn dispatch(&mut self, content: u8, start: usize, payload: &[u8]) -> Result<Opened, RecordError> {
        if !self.is_between_messages() && content != ContentType::Handshake as u8 {
            // RFC 8446 section 5.1: "there MUST NOT be any other records between" a message's fragments.
            return Err(RecordError::Unexpected("record inside a handshake message"));
        }
        if content == ContentType::ApplicationData as u8 && !payload.is_empty() {
            self.fruitless = 0;
            return Ok(Opened::Data(start..start + payload.len()));
        }
        self.fruitless += 1;
        if self.fruitless > FRUITLESS_MAX {
            return Err(RecordError::Flood(self.fruitless));
        }
        match (content, payload) {
            (23, _) => Ok(Opened::Ignored),
            (21, &[level, description]) => {
                // RFC 8446 section 6: the level is ignored; all but these two are fatal.
                let fatal = match self.version {
                    Version::Tls13 => !matches!(description, alert::CLOSE_NOTIFY | alert::USER_CANCELED),
                    Version::Tls12 => level != 1,
                };
                Ok(Opened::Alert { fatal, description })
            }
            (21, []) => Err(RecordError::Unexpected("empty alert")), // RFC 8446 section 5.4
            (21, _) => Err(RecordError::Length("alert")),
            (22, _) if self.version == Version::Tls13 => self.handshake_message(payload),
            // HelloRequest: a client "MAY ignore it" (RFC 5246 section 7.4.1.1).
            (22, &[0, 0, 0, 0]) if self.role == Role::Client => Ok(Opened::Ignored),
            (22, _) if self.role == Role::Server => self.renegotiation(payload),
            (22, _) => Err(RecordError::Unexpected("handshake message")),
            _ => Err(RecordError::Unexpected("content type")),
        }
    }

    /// Processes messages of a client of TLS 1.2: a ClientHello in one record or in several is skipped.
    fn renegotiation(&mut self, payload: &[u8]) -> Result<Opened, RecordError> {
        if payload.is_empty() {
            return Err(RecordError::Unexpected("empty handshake record")); // RFC 5246 section 6.2.1
        }
        let mut opened = Opened::Ignored;
        let mut payload = self.skip_message(payload);
        while let Some(([kind, a, b, c], rest)) = self.message_head(payload) {
            if kind != CLIENT_HELLO {
                return Err(RecordError::Unexpected("handshake message"));
            }
            self.message_rest = u32::from_be_bytes([0, a, b, c]) as usize;
            payload = self.skip_message(rest);
            opened = Opened::Renegotiation;
        }
        Ok(opened)
    }

    /// The part of `payload` after the current message.
    fn skip_message<'a>(&mut self, payload: &'a [u8]) -> &'a [u8] {
        let passed = self.message_rest.min(payload.len());
        self.message_rest -= passed;
        &payload[passed..]
    }

    /// Processes post-handshake messages of TLS 1.3. From a client only KeyUpdate is allowed, because this server never
    /// requests certificates after the handshake.
    fn handshake_message(&mut self, payload: &[u8]) -> Result<Opened, RecordError> {
        if payload.is_empty() {
            return Err(RecordError::Unexpected("empty handshake record")); // RFC 8446 section 5.4
        }
        let mut payload = self.skip_message(payload);
        while let Some(([kind, a, b, c], rest)) = self.message_head(payload) {
            let len = u32::from_be_bytes([0, a, b, c]) as usize;
            match (kind, rest) {
                (KEY_UPDATE, _) if len != 1 => return Err(RecordError::Length("key_update")),
                // RFC 8446 section 5.1: a message before a key change "MUST align with a record boundary".
                (KEY_UPDATE, &[request @ (0 | 1)]) => {
                    if !self.rx.may_update() {
                        return Err(RecordError::Flood(self.rx.position.generation));
                    }
                    self.rx.update(self.suite)?;
                    return Ok(Opened::KeyUpdate { requested: request == 1 });
                }
                // Section 4.6.3: "MUST terminate the connection with an "illegal_parameter" alert".
                (KEY_UPDATE, &[request]) => return Err(RecordError::KeyUpdateRequest(request)),
                // The message may itself be fragmented (section 5.1).
                (KEY_UPDATE, []) => {
                    self.begun = (4, [kind, a, b, c]);
                    return Ok(Opened::Ignored);
                }
                (KEY_UPDATE, _) => return Err(RecordError::Unexpected("message behind a key_update")),
                (NEW_SESSION_TICKET, _) if self.role == Role::Client => {
                    let whole = rest.len().min(len);
                    let (ticket, next) = rest.split_at(whole);
                    self.message_rest = len - whole;
                    if self.message_rest == 0 {
                        self.keep_ticket(ticket);
                    }
                    payload = next;
                }
                _ => return Err(RecordError::Unexpected("handshake message")),
            }
        }
        Ok(Opened::Ignored)
    }

    /// Type and length of the next message, and the bytes after them. An incomplete beginning is stored.
    fn message_head<'a>(&mut self, payload: &'a [u8]) -> Option<([u8; 4], &'a [u8])> {
        let (known, mut head) = std::mem::take(&mut self.begun);
        let taken = payload.len().min(head.len() - known);
        head[known..known + taken].copy_from_slice(&payload[..taken]);
        if known + taken < head.len() {
            self.begun = (known + taken, head);
            return None;
        }
        Some((head, &payload[taken..]))
    }

    /// Passes a ticket to the session store of `rustls`; a malformed one costs the peer only its resumption.
    fn keep_ticket(&mut self, ticket: &[u8]) {
        let Some(tickets) = &mut self.tickets else { return };
        let stored = tickets.kernel.handle_new_session_ticket(ticket).is_ok();
        tickets.left = tickets.left.saturating_sub(u8::from(stored));
        if !stored || tickets.left == 0 {
            self.tickets = None;
        }
    }
}

/// Additional data of TLS 1.2 (RFC 5246 section 6.2.3.3): sequence, type, version, length of the plaintext.
pub(crate) fn aad_tls12(sequence: u64, content: u8, len: usize) -> [u8; 13] {
    let mut aad = [0; 13];
    aad[..8].copy_from_slice(&sequence.to_be_bytes());
    aad[8..11].copy_from_slice(&[content, 3, 3]);
    aad[11..].copy_from_slice(&(len as u16).to_be_bytes());
    aad
}
