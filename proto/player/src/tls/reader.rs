//! Reader of both directions: what a record means at its place.

use crate::event::{HoleCause, Note, Side};
use crate::limits::Limits;
use crate::session::SecretSource;
use crate::stream::{Ambiguous, PATIENCE_PACKETS, Piece};
use crate::tls::key_exchange::HandshakeBytes;
use crate::tls::messages::{
    CERTIFICATE, CLIENT_HELLO, COMPRESSED_CERTIFICATE, ENCRYPTED_EXTENSIONS, FINISHED, HELLO_REQUEST,
    KEY_UPDATE, Messages, SERVER_HELLO, chosen_protocol,
};
use crate::tls::runs::Runs;
use evergate_evidence::secrets::{Label, SecretList};
use evergate_tls::{
    CapturedDirection, HelloFacts, ServerHello, Suite, Version, read_hello_message, read_server_hello,
    record_len,
};

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const HEADER: usize = 5;
/// Longest record with its header.
const RECORD_BYTES_MAX: usize = HEADER + (16 << 10) + 256;
/// Bytes behind a hole in which the next record begins, and that record.
const WINDOW_BYTES: usize = 2 * RECORD_BYTES_MAX;
/// Most bytes that are tried behind one hole.
const TRIAL_BYTES_MAX: usize = 64 << 20;
/// Most bytes that are tried in a session.
const TRIAL_BYTES_TOTAL: usize = 1 << 30;
/// Most copies in one record of which every set is tried.
const SUBSETS_MAX: usize = 6;
/// Most records of early data that are skipped.
const EARLY_RECORDS_MAX: u64 = 1 << 16;

/// Plaintext of one direction, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plain {
    /// Content of one record, or a part of a connection in clear.
    Bytes(Vec<u8>),
    /// Missing plaintext: its length as far as it is known, without padding.
    Hole(Option<u64>, HoleCause),
    /// A fact.
    Note(Note),
    /// No byte follows.
    End,
}

/// Facts of the handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSummary {
    /// Random of the ClientHello; `None` if the connection is not TLS, or its hello was not captured.
    pub client_random: Option<[u8; 32]>,
    /// Random of the ServerHello.
    pub server_random: Option<[u8; 32]>,
    /// Host name of the ClientHello.
    pub sni: Option<String>,
    /// Protocol that the server chose, where it could be read.
    pub alpn: Option<Vec<u8>>,
    /// Negotiated version.
    pub version: Option<u16>,
    /// Negotiated cipher suite.
    pub suite: Option<u16>,
    /// Whether the handshake resumed a session: the server sent no certificate. `None` if it was not seen to its end.
    pub is_resumed: Option<bool>,
    /// Whether the secret source has secrets of this connection.
    pub has_secrets: bool,
}

/// Place of a direction in its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Before the first record.
    #[default]
    Begin,
    /// Records in clear.
    Hello,
    /// TLS 1.3, protected by the handshake secret.
    Handshake13,
    /// TLS 1.3 without the handshake secret: records are skipped until the traffic secret opens one.
    Skip13,
    /// Protected by the connection's keys.
    Open,
    /// Not TLS: everything is plaintext.
    Clear,
    /// Decryption has ended.
    Ended,
}

#[derive(Debug, Default)]
struct Direction {
    runs: Runs,
    phase: Phase,
    opener: Option<CapturedDirection>,
    messages: Messages,
    /// Time of the newest byte.
    time_ns: u64,
    has_fin: bool,
    has_ended: bool,
    /// Packets since the first record does not open.
    stalled: u32,
    /// Records in a row that did not open.
    unopened: u32,
    early: u64,
    opened: u64,
    /// Place, number of copies and bytes of the last trial with copies.
    tried: (u64, usize, usize),
    out: Vec<(u64, Plain)>,
}

/// Reader of both directions of one connection.
pub struct TlsReader {
    limit: usize,
    secrets: Option<SecretList>,
    /// Kept for a source with keys of servers, until the keys begin.
    handshake: Option<HandshakeBytes>,
    hello: Option<HelloFacts>,
    server: Option<ServerHello>,
    alpn: Option<Vec<u8>>,
    has_certificate: bool,
    has_server_finished: bool,
    directions: [Direction; 2],
    trial_bytes: usize,
}

impl std::fmt::Debug for TlsReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsReader").field("server", &self.server).finish_non_exhaustive()
    }
}

/// What to do after a record.
enum Next {
    /// The record is consumed.
    Consumed,
    /// Judge the record again: the phase has changed.
    Again,
    /// The other direction has to come first.
    Wait,
    /// The record does not open.
    Unopened,
    /// Decryption of the direction ends.
    Stop(&'static str),
}

impl TlsReader {
    /// A reader before the first byte.
    pub fn new(limits: &Limits) -> TlsReader {
        TlsReader {
            limit: limits.records,
            secrets: None,
            handshake: None,
            hello: None,
            server: None,
            alpn: None,
            has_certificate: false,
            has_server_finished: false,
            directions: Default::default(),
            trial_bytes: 0,
        }
    }

    /// Takes the next part of a direction.
    pub fn on_piece(&mut self, side: Side, piece: Piece) {
        let direction = &mut self.directions[side.index()];
        match piece {
            _ if direction.phase == Phase::Ended => {}
            Piece::Bytes { time_ns, bytes } => {
                direction.time_ns = time_ns;
                direction.runs.push_bytes(&bytes);
            }
            Piece::Hole(hole) => direction.runs.push_hole(hole),
            Piece::End => direction.has_fin = true,
        }
    }

    /// Counts a packet of the connection: a record that does not open may wait for another copy of its bytes.
    pub fn on_packet(&mut self) {
        for direction in &mut self.directions {
            direction.stalled = direction.stalled.saturating_add(u32::from(direction.stalled > 0));
        }
    }

    /// Opens what can be opened. `is_final`: no packet follows.
    pub fn advance(&mut self, copies: [&[Ambiguous]; 2], source: &dyn SecretSource, is_final: bool) {
        self.run(copies, source, false);
        if is_final {
            self.run(copies, source, true); // no direction waits for the other any longer
        }
        for side in Side::ALL {
            self.end(side, is_final);
        }
    }

    fn run(&mut self, copies: [&[Ambiguous]; 2], source: &dyn SecretSource, is_final: bool) {
        loop {
            let mut has_moved = false;
            for side in Side::ALL {
                while self.step(side, copies[side.index()], source, is_final) {
                    has_moved = true;
                }
            }
            if !has_moved {
                break;
            }
        }
    }

    /// Takes the plaintext of a direction, with times in nanoseconds since 1970.
    pub fn poll(&mut self, side: Side) -> Vec<(u64, Plain)> {
        std::mem::take(&mut self.directions[side.index()].out)
    }

    /// Facts of the handshake.
    pub fn summary(&self) -> TlsSummary {
        TlsSummary {
            client_random: self.hello.as_ref().map(|hello| hello.random),
            server_random: self.server.map(|server| server.random),
            sni: self.hello.as_ref().and_then(|hello| hello.sni.clone()),
            alpn: self.alpn.clone(),
            version: self.server.map(|server| server.version),
            suite: self.server.map(|server| server.suite),
            is_resumed: self.has_server_finished.then_some(!self.has_certificate),
            has_secrets: self.secrets.is_some(),
        }
    }

    /// Records of a direction that were opened, and its key generation.
    pub fn opened(&self, side: Side) -> (u64, u64) {
        let direction = &self.directions[side.index()];
        let position = direction.opener.as_ref().map(CapturedDirection::position);
        (direction.opened, position.map_or(0, |position| position.generation.into()))
    }

    /// Bytes of memory.
    pub fn buffered(&self) -> usize {
        let handshake = self.handshake.as_ref().map_or(0, HandshakeBytes::buffered);
        handshake + self.directions.iter().map(|direction| direction.runs.buffered()).sum::<usize>()
    }

    /// Moves a direction by one record or hole; false if it has to wait.
    fn step(&mut self, side: Side, copies: &[Ambiguous], source: &dyn SecretSource, is_final: bool) -> bool {
        let direction = &mut self.directions[side.index()];
        let must_decide = is_final || direction.has_fin || direction.runs.buffered() > self.limit;
        match direction.phase {
            Phase::Ended => return false,
            Phase::Begin => return self.begin(side, is_final),
            Phase::Clear => return direction.pass_clear(),
            _ => {}
        }
        let front = direction.runs.front();
        let length = match front.first_chunk::<HEADER>().map(record_len) {
            Some(Err(_)) => {
                // A copy of the bytes may have a valid header.
                return self.unopened(side, copies, must_decide);
            }
            Some(Ok(length)) => Some(length),
            None => None,
        };
        if let Some(record) = length.and_then(|length| front.get(..length)) {
            let record = record.to_vec();
            return self.on_whole(side, record, copies, source, must_decide, is_final);
        }
        match direction.runs.hole() {
            Some(_) => self.on_hole(side, length, must_decide),
            None => false,
        }
    }

    /// Decides whether the connection is TLS, by the first bytes of the client.
    fn begin(&mut self, side: Side, is_final: bool) -> bool {
        let other = self.directions[side.other().index()].phase;
        let direction = &mut self.directions[side.index()];
        let front = direction.runs.front();
        direction.phase = match (side, front) {
            (_, []) if direction.runs.hole().is_some() => Phase::Hello,
            (_, []) => return false,
            (Side::Client, [22, 3, ..]) => Phase::Hello,
            (Side::Client, [22]) if !is_final => return false,
            (Side::Client, _) => Phase::Clear,
            // Without TLS a server may be the first to send.
            (Side::Server, [20..=22, 3, ..]) => Phase::Hello,
            (Side::Server, [20..=22]) if !is_final => return false,
            (Side::Server, _) if other != Phase::Begin || is_final => Phase::Clear,
            (Side::Server, _) if direction.runs.buffered() > self.limit => Phase::Clear,
            (Side::Server, _) => return false,
        };
        true
    }

    fn on_whole(
        &mut self,
        side: Side,
        mut record: Vec<u8>,
        copies: &[Ambiguous],
        source: &dyn SecretSource,
        must_decide: bool,
        is_final: bool,
    ) -> bool {
        let length = record.len();
        match self.on_record(side, &mut record, source) {
            Next::Consumed => {
                let direction = &mut self.directions[side.index()];
                direction.runs.consume(length);
                (direction.stalled, direction.unopened) = (0, 0);
                true
            }
            Next::Again => true,
            Next::Wait if is_final || self.directions[side.index()].runs.buffered() > self.limit => {
                let reason = match self.hello {
                    Some(_) if self.handshake.is_some() => "the handshake was not captured whole",
                    Some(_) => "the server's hello is missing",
                    None => "the client's hello is missing",
                };
                self.stop(side, reason);
                true
            }
            Next::Wait => false,
            Next::Unopened => self.unopened(side, copies, must_decide),
            Next::Stop(reason) => {
                self.stop(side, reason);
                true
            }
        }
    }

    fn on_record(&mut self, side: Side, record: &mut [u8], source: &dyn SecretSource) -> Next {
        let kind = record[0];
        match self.directions[side.index()].phase {
            Phase::Hello => self.on_clear_record(side, kind, &record[HEADER..], source),
            Phase::Handshake13 | Phase::Skip13 | Phase::Open if kind == CHANGE_CIPHER_SPEC => {
                match self.version() {
                    Some(Version::Tls12) => {
                        Next::Stop("the keys change by a renegotiation, which is not followed")
                    }
                    _ => Next::Consumed, // RFC 8446 section 5: without meaning
                }
            }
            Phase::Handshake13 if kind == ALERT => {
                self.note_alert(side, &record[HEADER..]);
                Next::Consumed
            }
            Phase::Handshake13 | Phase::Skip13 if kind != APPLICATION_DATA => {
                Next::Stop("an unprotected record")
            }
            Phase::Handshake13 => self.on_handshake_record(side, record),
            Phase::Skip13 => match self.open(side, record) {
                Some((kind, content)) => {
                    self.directions[side.index()].phase = Phase::Open;
                    self.on_open_content(side, kind, &record[content])
                }
                None => Next::Consumed,
            },
            _ => match self.open(side, record) {
                Some((kind, content)) => self.on_open_content(side, kind, &record[content]),
                None => Next::Unopened,
            },
        }
    }

    fn on_clear_record(&mut self, side: Side, kind: u8, body: &[u8], source: &dyn SecretSource) -> Next {
        match kind {
            HANDSHAKE => {
                if self.secrets.is_none() && source.has_server_keys() {
                    self.handshake.get_or_insert_with(HandshakeBytes::new).push(side, body);
                }
                for (kind, message) in self.directions[side.index()].messages.push(body) {
                    match (side, kind) {
                        (Side::Client, CLIENT_HELLO) if self.hello.is_none() => {
                            self.on_client_hello(&message, source)
                        }
                        (Side::Server, SERVER_HELLO) => self.on_server_hello(&message),
                        (Side::Server, CERTIFICATE) => self.has_certificate = true,
                        _ => {}
                    }
                }
                Next::Consumed
            }
            ALERT => {
                self.note_alert(side, body);
                Next::Consumed
            }
            _ => match (kind, self.version()) {
                (_, None) if self.server.is_some() => Next::Stop("the version of TLS is not supported"),
                // Behind a HelloRetryRequest: without meaning (RFC 8446 appendix D.4).
                (CHANGE_CIPHER_SPEC, None) if side == Side::Server => Next::Consumed,
                (_, None) => Next::Wait,
                (CHANGE_CIPHER_SPEC, Some(Version::Tls13)) => Next::Consumed,
                (CHANGE_CIPHER_SPEC, Some(Version::Tls12)) => self
                    .find_secrets(source)
                    .and_then(|()| self.start_tls12(side))
                    .err()
                    .unwrap_or(Next::Consumed),
                (_, Some(Version::Tls13)) => self.start_tls13(side).err().unwrap_or(Next::Again),
                _ => Next::Stop("a protected record before the keys"),
            },
        }
    }

    fn on_client_hello(&mut self, message: &[u8], source: &dyn SecretSource) {
        self.hello = read_hello_message(message);
        if let Some(hello) = &self.hello {
            self.secrets = source.secrets(&hello.random);
        }
    }

    fn on_server_hello(&mut self, message: &[u8]) {
        match read_server_hello(message) {
            Some(hello) if hello.is_retry() => self.note(Side::Server, Note::HelloRetry),
            hello => self.server = self.server.or(hello),
        }
    }

    fn version(&self) -> Option<Version> {
        match self.server?.version {
            0x0304 => Some(Version::Tls13),
            0x0303 => Some(Version::Tls12),
            _ => None,
        }
    }

    fn suite(&self) -> Result<Suite, Next> {
        let number = self.server.map_or(0, |server| server.suite);
        let suite = self.version().and_then(|version| Suite::of_number(version, number));
        suite.ok_or(Next::Stop("the cipher suite is not supported"))
    }

    fn start_tls13(&mut self, side: Side) -> Result<(), Next> {
        if self.hello.is_none() {
            return Err(Next::Wait);
        }
        if self.secrets.is_none() {
            return Err(Next::Stop("no secrets of this connection"));
        }
        let direction_of = |label| self.opener(label);
        let (handshake, traffic) = labels(side);
        let (phase, opener) = match direction_of(handshake) {
            Ok(opener) => (Phase::Handshake13, opener),
            Err(_) => (Phase::Skip13, direction_of(traffic)?),
        };
        let direction = &mut self.directions[side.index()];
        (direction.phase, direction.opener) = (phase, Some(opener));
        direction.messages.forget();
        Ok(())
    }

    /// Opener of TLS 1.3 with the secret of this label.
    fn opener(&self, label: Label) -> Result<CapturedDirection, Next> {
        let suite = self.suite()?;
        let secret = self.secrets.as_ref().and_then(|secrets| secrets.get(label));
        let secret = secret.ok_or(Next::Stop("a traffic secret is missing"))?;
        CapturedDirection::tls13(suite, secret)
            .map_err(|_| Next::Stop("a secret does not fit the cipher suite"))
    }

    /// Asks a source with keys of servers for the secrets of this handshake.
    fn find_secrets(&mut self, source: &dyn SecretSource) -> Result<(), Next> {
        let (Some(handshake), Some(server)) = (&self.handshake, &self.server) else { return Ok(()) };
        let exchange = handshake.exchange(server).map_err(Next::Stop)?.ok_or(Next::Wait)?;
        self.secrets = source.exchange_secrets(&exchange);
        self.handshake = None;
        Ok(())
    }

    fn start_tls12(&mut self, side: Side) -> Result<(), Next> {
        let suite = self.suite()?;
        let (Some(hello), Some(server)) = (&self.hello, &self.server) else {
            return Err(Next::Wait);
        };
        let secrets = self.secrets.as_ref().ok_or(Next::Stop("no secrets of this connection"))?;
        let master = secrets.get(Label::MasterSecret).ok_or(Next::Stop("the master secret is missing"))?;
        let [client, other] = CapturedDirection::tls12(suite, master, &hello.random, &server.random)
            .map_err(|_| Next::Stop("a secret does not fit the cipher suite"))?;
        let direction = &mut self.directions[side.index()];
        direction.opener = Some(if side == Side::Client { client } else { other });
        direction.phase = Phase::Open;
        direction.messages.forget();
        Ok(())
    }

    fn open(&mut self, side: Side, record: &mut [u8]) -> Option<(u8, std::ops::Range<usize>)> {
        let direction = &mut self.directions[side.index()];
        let opened = direction.opener.as_mut()?.open(record).ok()?;
        direction.opened += 1;
        Some(opened)
    }

    fn on_handshake_record(&mut self, side: Side, record: &mut [u8]) -> Next {
        let sealed = record.to_vec();
        if let Some((kind, content)) = self.open(side, record) {
            return self.on_handshake_content(side, kind, &record[content]);
        }
        let may_be_early =
            side == Side::Client && self.hello.as_ref().is_some_and(|hello| hello.has_early_data);
        let direction = &mut self.directions[side.index()];
        let is_first = direction.opener.as_ref().is_some_and(|opener| opener.position().sequence == 0);
        if may_be_early && is_first && direction.early < EARLY_RECORDS_MAX {
            direction.early += 1;
            return Next::Consumed;
        }
        // Behind a hole the direction may already use its traffic secret.
        let mut record = sealed;
        if let Ok(mut opener) = self.opener(labels(side).1)
            && let Ok((kind, content)) = opener.open(&mut record)
        {
            self.start_traffic(side, opener);
            self.directions[side.index()].opened += 1;
            return self.on_open_content(side, kind, &record[content]);
        }
        Next::Unopened
    }

    fn on_handshake_content(&mut self, side: Side, kind: u8, content: &[u8]) -> Next {
        let direction = &mut self.directions[side.index()];
        if direction.early > 0 && direction.opened == 1 {
            let note = Note::EarlyData(direction.early);
            direction.note(note);
        }
        if kind == ALERT {
            self.note_alert(side, content);
            return Next::Consumed;
        }
        if kind != HANDSHAKE {
            return Next::Stop("application data within the handshake");
        }
        for (kind, message) in self.directions[side.index()].messages.push(content) {
            match kind {
                CERTIFICATE | COMPRESSED_CERTIFICATE if side == Side::Server => self.has_certificate = true,
                ENCRYPTED_EXTENSIONS => self.alpn = chosen_protocol(&message),
                FINISHED => {
                    self.has_server_finished |= side == Side::Server;
                    match self.opener(labels(side).1) {
                        Ok(opener) => self.start_traffic(side, opener),
                        Err(next) => return next,
                    }
                }
                _ => {}
            }
        }
        Next::Consumed
    }

    fn start_traffic(&mut self, side: Side, opener: CapturedDirection) {
        let direction = &mut self.directions[side.index()];
        (direction.phase, direction.opener) = (Phase::Open, Some(opener));
        direction.messages.forget();
    }

    fn on_open_content(&mut self, side: Side, kind: u8, content: &[u8]) -> Next {
        let direction = &mut self.directions[side.index()];
        match kind {
            APPLICATION_DATA if content.is_empty() => {}
            APPLICATION_DATA => direction.push(Plain::Bytes(content.to_vec())),
            ALERT => self.note_alert(side, content),
            HANDSHAKE => return self.on_late_handshake(side, content),
            _ => return Next::Stop("a record of an unknown type"),
        }
        Next::Consumed
    }

    /// Handshake messages under the connection's keys.
    fn on_late_handshake(&mut self, side: Side, content: &[u8]) -> Next {
        let is_tls12 = self.version() == Some(Version::Tls12);
        let direction = &mut self.directions[side.index()];
        for (kind, _) in direction.messages.push(content) {
            match kind {
                KEY_UPDATE if !is_tls12 => {
                    let Some(opener) = &mut direction.opener else { continue };
                    if opener.update().is_err() {
                        return Next::Stop("more KeyUpdates than any connection has");
                    }
                    let generation = opener.position().generation.into();
                    direction.note(Note::KeyUpdate(generation));
                }
                FINISHED if is_tls12 => self.has_server_finished |= side == Side::Server,
                HELLO_REQUEST | CLIENT_HELLO if is_tls12 => direction.note(Note::Renegotiation),
                _ => {}
            }
        }
        Next::Consumed
    }

    fn note_alert(&mut self, side: Side, content: &[u8]) {
        match content {
            [_, 0] => self.note(side, Note::Closed),
            [level, description] => self.note(side, Note::Alert(*level, *description)),
            _ => {}
        }
    }

    fn note(&mut self, side: Side, note: Note) {
        self.directions[side.index()].note(note);
    }

    /// A record does not open: another copy of its bytes may, now or within the patience. Then it is missing.
    fn unopened(&mut self, side: Side, copies: &[Ambiguous], must_decide: bool) -> bool {
        if self.try_copies(side, copies) {
            return true;
        }
        let direction = &mut self.directions[side.index()];
        direction.stalled = direction.stalled.max(1);
        if !must_decide && direction.stalled < PATIENCE_PACKETS {
            return false;
        }
        direction.stalled = 0;
        direction.unopened += 1;
        let front = direction.runs.front();
        let length = front.first_chunk::<HEADER>().and_then(|header| record_len(header).ok());
        match (length, &mut direction.opener) {
            (None, _) => self.stop(side, "no record begins where one must begin"),
            _ if direction.opened == 0 => self.stop(side, "the secrets do not open this connection"),
            _ if direction.unopened > 1 => self.stop(side, "records do not open"),
            (Some(length), Some(opener)) => {
                let lost = length.saturating_sub(opener.overhead()) as u64;
                opener.skip(1);
                direction.runs.consume(length);
                direction.push(Plain::Hole(Some(lost), HoleCause::Unopened));
            }
            _ => self.stop(side, "records do not open"),
        }
        true
    }

    /// Opens the first record with other copies of bytes in it: every set of few copies, else each copy and all.
    fn try_copies(&mut self, side: Side, copies: &[Ambiguous]) -> bool {
        let direction = &mut self.directions[side.index()];
        if direction.phase != Phase::Open && direction.phase != Phase::Handshake13 {
            return false;
        }
        let (begin, front) = (direction.runs.offset(), direction.runs.front());
        let front = front[..front.len().min(RECORD_BYTES_MAX)].to_vec();
        let end = begin + front.len() as u64;
        let overlaps = |copy: &&Ambiguous| {
            !copy.copy.is_empty() && copy.offset < end && copy.offset + copy.length > begin
        };
        let copies: Vec<&Ambiguous> = copies.iter().filter(overlaps).take(64).collect();
        if copies.is_empty() || direction.tried == (begin, copies.len(), front.len()) {
            return false;
        }
        direction.tried = (begin, copies.len(), front.len());
        let all = u64::MAX >> (64 - copies.len());
        let sets: Vec<u64> = match copies.len() <= SUBSETS_MAX {
            true => (1..=all).collect(),
            false => (0..copies.len()).map(|number| 1 << number).chain([all]).collect(),
        };
        for set in sets {
            let chosen = copies.iter().enumerate().filter(|(number, _)| set >> number & 1 == 1);
            let chosen: Vec<&Ambiguous> = chosen.map(|(_, copy)| *copy).collect();
            let Some(record) = with_copies(&front, begin, &chosen) else { continue };
            if self.trial_bytes > TRIAL_BYTES_TOTAL {
                return false;
            }
            self.trial_bytes += record.len();
            if self.open_copy(side, record, &chosen) {
                return true;
            }
        }
        false
    }

    /// Opens a record that was put together from copies.
    fn open_copy(&mut self, side: Side, mut record: Vec<u8>, copies: &[&Ambiguous]) -> bool {
        let Some((kind, content)) = self.open(side, &mut record) else { return false };
        for copy in copies {
            self.note(side, Note::OtherCopyUsed { offset: copy.offset, length: copy.length });
        }
        let next = match self.directions[side.index()].phase {
            Phase::Handshake13 => self.on_handshake_content(side, kind, &record[content]),
            _ => self.on_open_content(side, kind, &record[content]),
        };
        let direction = &mut self.directions[side.index()];
        direction.runs.consume(record.len());
        (direction.stalled, direction.unopened) = (0, 0);
        if let Next::Stop(reason) = next {
            self.stop(side, reason);
        }
        true
    }

    /// A hole lies in the first record, or directly before it. `length` is that of the record, if its header is there.
    fn on_hole(&mut self, side: Side, length: Option<usize>, must_decide: bool) -> bool {
        let direction = &mut self.directions[side.index()];
        let Some(hole) = direction.runs.hole() else { return false };
        let before = direction.runs.front().len() as u64;
        let (behind, has_second) = direction.runs.behind_hole();
        if let Some(length) = length
            && length as u64 >= before + hole.length
        {
            // The hole ends within this record, so the next one has a known place and number.
            let rest = (length as u64 - before - hole.length) as usize;
            if behind.len() >= rest {
                return self.lose_record(side, length, rest, hole.cause);
            }
            if !has_second && !must_decide {
                return false;
            }
        } else if behind.len() < WINDOW_BYTES && !has_second && !must_decide {
            return false;
        }
        let direction = &self.directions[side.index()];
        if direction.phase == Phase::Hello && (self.server.is_none() || self.hello.is_none()) {
            self.stop(side, "a hello is missing");
            return true;
        }
        if self.resume(side, before, hole.length, hole.cause) {
            return true;
        }
        if has_second {
            self.directions[side.index()].runs.merge_holes();
            return true;
        }
        if behind_is_empty(&self.directions[side.index()]) && must_decide {
            let direction = &mut self.directions[side.index()];
            let lost = match direction.phase {
                Phase::Open => estimate(before + hole.length, direction),
                _ => None,
            };
            direction.push(Plain::Hole(lost, hole.cause));
            direction.runs.clear();
            direction.phase = Phase::Ended;
            return true;
        }
        self.stop(side, "no record opens behind a hole");
        true
    }

    /// Leaves out one record with a hole in it.
    fn lose_record(&mut self, side: Side, length: usize, rest: usize, cause: HoleCause) -> bool {
        let is_blind = self.server.is_none() || self.hello.is_none();
        let direction = &mut self.directions[side.index()];
        if direction.phase == Phase::Hello && is_blind {
            self.stop(side, "a hello is missing");
            return true;
        }
        direction.messages.forget();
        direction.runs.consume_hole(rest);
        if let (Phase::Open | Phase::Handshake13, Some(opener)) = (direction.phase, &mut direction.opener) {
            opener.skip(1);
            let lost = length.saturating_sub(opener.overhead()) as u64;
            if direction.phase == Phase::Open {
                direction.push(Plain::Hole(Some(lost), cause));
            }
        }
        true
    }

    /// Finds the next record behind the first hole by trial: its place, its number, and the keys.
    fn resume(&mut self, side: Side, before: u64, hole: u64, cause: HoleCause) -> bool {
        let version = self.version();
        let mut openers = self.openers_behind_hole(side);
        let direction = &self.directions[side.index()];
        let (behind, _) = direction.runs.behind_hole();
        let window = &behind[..behind.len().min(WINDOW_BYTES)];
        let is_current = matches!(direction.phase, Phase::Open | Phase::Handshake13);
        let granted = TRIAL_BYTES_MAX.min(TRIAL_BYTES_TOTAL.saturating_sub(self.trial_bytes));
        let (mut budget, mut found) = (granted, None);
        'places: for at in 0..window.len().min(RECORD_BYTES_MAX) {
            let Some(header) = window[at..].first_chunk::<HEADER>() else { break };
            let is_kind = match version {
                Some(Version::Tls13) => header[0] == APPLICATION_DATA,
                _ => (ALERT..=APPLICATION_DATA).contains(&header[0]),
            };
            if !is_kind || header[1..3] != [3, 3] {
                continue;
            }
            let Ok(length) = record_len(header) else { continue };
            let Some(sealed) = window.get(at..at + length) else { continue };
            let raw = before + hole + at as u64;
            for (place, (_, opener)) in openers.iter_mut().enumerate() {
                let (fewest, most) = (raw.div_ceil(RECORD_BYTES_MAX as u64), raw / opener.overhead() as u64);
                let first = opener.position().sequence;
                // Other keys begin with number 0; the hole may have none of their records.
                let fewest = if place == 0 && is_current { fewest } else { 0 };
                for lost in fewest..=most {
                    let Some(left) = budget.checked_sub(length) else { break 'places };
                    budget = left;
                    let mut record = sealed.to_vec();
                    opener.skip(lost);
                    if opener.open(&mut record).is_ok() {
                        opener.rewind(first + lost);
                        found = Some((place, at, raw, lost));
                        break 'places;
                    }
                    opener.rewind(first);
                }
            }
        }
        self.trial_bytes += granted - budget;
        let direction = &mut self.directions[side.index()];
        let Some((place, at, raw, lost)) = found else {
            direction.opener = openers.into_iter().next().filter(|_| is_current).map(|(_, opener)| opener);
            return false;
        };
        let (phase, opener) = openers.swap_remove(place);
        let plain = raw.saturating_sub(lost * opener.overhead() as u64);
        let was_open = direction.phase == Phase::Open && place == 0;
        direction.messages.forget();
        direction.runs.consume_hole(at);
        (direction.phase, direction.opener) = (phase, Some(opener));
        if phase == Phase::Open {
            direction.push(Plain::Hole(was_open.then_some(plain), cause));
        }
        true
    }

    /// Keys that the direction may use behind a hole, the current ones first.
    fn openers_behind_hole(&mut self, side: Side) -> Vec<(Phase, CapturedDirection)> {
        let mut openers = Vec::new();
        let direction = &mut self.directions[side.index()];
        let generation = direction.opener.as_ref().map_or(0, |opener| opener.position().generation);
        let phase = direction.phase;
        if let (Phase::Open | Phase::Handshake13, Some(opener)) = (phase, direction.opener.take()) {
            openers.push((phase, opener));
        }
        match (self.version(), phase) {
            (Some(Version::Tls13), Phase::Open) => {
                // One KeyUpdate may lie in the hole.
                if let Ok(mut opener) = self.opener(labels(side).1)
                    && (0..=generation).all(|_| opener.update().is_ok())
                {
                    openers.push((Phase::Open, opener));
                }
            }
            (Some(Version::Tls13), _) => {
                let (handshake, traffic) = labels(side);
                if phase == Phase::Hello {
                    openers.extend(self.opener(handshake).ok().map(|opener| (Phase::Handshake13, opener)));
                }
                openers.extend(self.opener(traffic).ok().map(|opener| (Phase::Open, opener)));
            }
            (Some(Version::Tls12), Phase::Hello) if self.start_tls12(side).is_ok() => {
                let direction = &mut self.directions[side.index()];
                direction.phase = Phase::Hello;
                openers.extend(direction.opener.take().map(|opener| (Phase::Open, opener)));
            }
            _ => {}
        }
        openers
    }

    fn stop(&mut self, side: Side, reason: &'static str) {
        let direction = &mut self.directions[side.index()];
        direction.note(Note::DecryptionEnds(reason));
        direction.phase = Phase::Ended;
        direction.runs.clear();
    }

    /// Ends a direction once nothing of it is left.
    fn end(&mut self, side: Side, is_final: bool) {
        let direction = &mut self.directions[side.index()];
        if direction.has_ended || !(is_final || direction.has_fin) {
            return;
        }
        let is_waiting = direction.runs.buffered() > 0 && direction.phase != Phase::Ended;
        if is_waiting && !is_final {
            return;
        }
        if is_waiting {
            direction.note(Note::DecryptionEnds("the capture ends within a record"));
            direction.runs.clear();
        }
        direction.has_ended = true;
        direction.push(Plain::End);
    }
}

impl Direction {
    fn push(&mut self, plain: Plain) {
        self.out.push((self.time_ns, plain));
    }

    fn note(&mut self, note: Note) {
        self.push(Plain::Note(note));
    }

    fn pass_clear(&mut self) -> bool {
        let front = self.runs.front();
        if !front.is_empty() {
            let bytes = front.to_vec();
            self.runs.consume(bytes.len());
            self.push(Plain::Bytes(bytes));
            return true;
        }
        match self.runs.consume_hole(0) {
            Some(hole) => {
                self.push(Plain::Hole(Some(hole.length), hole.cause));
                true
            }
            None => false,
        }
    }
}

/// The record at the front with these copies in it; `None` if it is not whole.
fn with_copies(front: &[u8], begin: u64, copies: &[&Ambiguous]) -> Option<Vec<u8>> {
    let mut bytes = front.to_vec();
    for copy in copies {
        for (at, byte) in (copy.offset..).zip(&copy.copy) {
            if let Some(place) = at.checked_sub(begin).and_then(|at| bytes.get_mut(at as usize)) {
                *place = *byte;
            }
        }
    }
    let length = record_len(bytes.first_chunk::<HEADER>()?).ok()?;
    bytes.truncate(length);
    (bytes.len() == length).then_some(bytes)
}

/// Labels of a side's handshake secret and traffic secret.
fn labels(side: Side) -> (Label, Label) {
    match side {
        Side::Client => (Label::ClientHandshake, Label::ClientTraffic),
        Side::Server => (Label::ServerHandshake, Label::ServerTraffic),
    }
}

fn behind_is_empty(direction: &Direction) -> bool {
    direction.runs.behind_hole().0.is_empty()
}

/// Most plaintext that this many raw bytes have.
fn estimate(raw: u64, direction: &Direction) -> Option<u64> {
    let overhead = direction.opener.as_ref()?.overhead() as u64;
    Some(raw.saturating_sub(raw.div_ceil(RECORD_BYTES_MAX as u64) * overhead))
}
