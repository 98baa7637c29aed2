//! The client leg's input: hello, handshake, records, and the plaintext they carry.

use crate::Io;
use crate::connection::Connection;
use crate::exchange::RequestState;
use crate::outlet::Outlet;
use crate::timers::Timer;
use crate::tls_info::TlsInfo;
use evergate_base::Micros;
use evergate_replication::RecordKind;
use evergate_tls::{Handshake, Opened, Records, alert, record_len};
use zeroize::Zeroizing;

/// The client leg's cryptographic state.
pub(crate) enum ClientTls {
    /// No TLS: plaintext is the wire.
    Plain,
    /// Waiting for a whole ClientHello.
    Hello(Box<(Zeroizing<[u8; 32]>, u64)>),
    /// Handshake under way.
    Shaking(Box<Handshake>),
    /// Records.
    Open(Box<Records>),
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ClientTls::Plain => "Plain",
            ClientTls::Hello(_) => "Hello",
            ClientTls::Shaking(_) => "Shaking",
            ClientTls::Open(_) => "Open",
        })
    }
}

/// The client's TCP connection: its TLS, its bytes on their way in and out, and how far both directions have come.
#[derive(Debug)]
pub(crate) struct ClientLeg {
    pub(crate) tls: ClientTls,
    /// Properties of the TLS session, from the end of the handshake on.
    pub(crate) info: Option<Box<TlsInfo>>,
    /// Bytes as received, not decrypted yet.
    pub(crate) raw: Vec<u8>,
    /// Plaintext not consumed yet: a partial head, or input that waits for the server leg or the previous response.
    pub(crate) plain: Vec<u8>,
    /// Bytes of `plain` already searched for the end of a head.
    pub(crate) scanned: usize,
    /// Raw input position after everything decrypted.
    pub(crate) in_pos: u64,
    /// Cipher output position after everything sealed.
    pub(crate) out_pos: u64,
    /// Plaintext position after everything sealed.
    pub(crate) plain_pos: u64,
    /// The client's key generation whose KeyUpdate request is answered.
    pub(crate) answered_keys: u32,
    /// Session tickets, held back to leave with the first response; counted as sent.
    pub(crate) tickets: Vec<u8>,
    /// Output that waits for the socket, or for the backups.
    pub(crate) outlet: Outlet,
    /// The client's FIN is taken.
    pub(crate) ended: bool,
    /// The client's records make no sense any more: its bytes are dropped unread.
    pub(crate) ignores_input: bool,
    /// The client asked for the end after this response, and has sent nothing behind its request. Not part of an
    /// upgrade state: a process that does not know it waits for the client's end.
    pub(crate) done: bool,
}

impl ClientLeg {
    /// The leg of a connection that was just accepted.
    pub(crate) fn new(tls: ClientTls) -> ClientLeg {
        ClientLeg {
            tls,
            info: None,
            raw: Vec::new(),
            plain: Vec::new(),
            scanned: 0,
            in_pos: 0,
            out_pos: 0,
            plain_pos: 0,
            answered_keys: 0,
            tickets: Vec::new(),
            outlet: Outlet::default(),
            ended: false,
            ignores_input: false,
            done: false,
        }
    }
}

/// Where plaintext lies: in the worker's input buffer at an offset, or in memory of our own that must be copied.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Input(usize),
    Elsewhere,
}

/// The clock by which record layers forgive records without data.
pub(crate) fn seconds(now: Micros) -> u32 {
    u32::try_from(now.as_ms() / 1000).unwrap_or(u32::MAX)
}

impl Connection {
    /// The client's bytes: `scratch.input[..n]`, of which the first were put there by `begin_client_read`.
    pub fn handle_client_data(&mut self, io: &mut Io<'_>, n: usize) {
        let held = self.client.raw.len();
        if let Some(remote) = &mut self.remote {
            remote.client_input.retained.append(self.client.in_pos + held as u64, &io.scratch.input[held..n]);
        }
        self.client.raw.clear();
        let mut input = std::mem::take(&mut io.scratch.input);
        let used = self.take_client(io, &mut input[..n]);
        self.keep_raw(&input[used..n]);
        io.scratch.input = input;
        if !self.client.raw.is_empty() {
            self.begin_head(io);
        }
        self.linger_on(io);
        if used == 0 {
            self.note_partial(io, n - held);
        }
        self.finish_call(io);
    }

    /// Something of the next request has come.
    fn begin_head(&mut self, io: &Io<'_>) {
        if self.exchange.receiving == RequestState::Head && self.deadline.timer == Timer::KeepAlive {
            self.arm(Timer::RequestHead, io.now);
        }
    }

    /// Part of a record has arrived: a client that sends a long record slowly makes progress too.
    fn note_partial(&mut self, io: &mut Io<'_>, bytes: usize) {
        let is_open = matches!(self.client.tls, ClientTls::Open(_));
        if is_open && self.deadline.timer == Timer::RequestBody && self.takes_input() {
            self.progress(Timer::RequestBody, bytes, io.now);
        }
    }

    fn keep_raw(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            if self.client.raw.is_empty() && self.client.raw.capacity() > 0 {
                self.client.raw = Vec::new(); // an idle connection holds no buffer
            }
        } else {
            self.client.raw.extend_from_slice(rest);
        }
    }

    /// Processes input that was buffered because it had nowhere to go.
    pub(crate) fn resume_client(&mut self, io: &mut Io<'_>) {
        if !self.client.plain.is_empty() {
            self.consume_buffered(io);
        }
        if !self.plain_blocks()
            && !self.client.raw.is_empty()
            && matches!(self.client.tls, ClientTls::Open(_))
        {
            self.take_leftover(io);
        }
    }

    /// Held plaintext that could not be consumed keeps further records from being decrypted, unless it grows towards a
    /// complete head or a body prefix.
    fn plain_blocks(&self) -> bool {
        let grows = matches!(self.exchange.receiving, RequestState::Head | RequestState::Prefix)
            && self.takes_input();
        !self.client.plain.is_empty() && !grows
    }

    /// Consumes as much of `input` as the state allows; returns the bytes used.
    fn take_client(&mut self, io: &mut Io<'_>, input: &mut [u8]) -> usize {
        let mut at = 0;
        loop {
            if self.end.is_closed() || self.client.ignores_input {
                self.client.in_pos += (input.len() - at) as u64;
                return input.len();
            }
            let step = match &self.client.tls {
                ClientTls::Plain => {
                    self.client.in_pos += (input.len() - at) as u64;
                    let used = self.take_plaintext(io, &input[at..], Place::Input(at));
                    debug_assert!(used <= input.len() - at);
                    return input.len();
                }
                ClientTls::Hello(_) => self.take_hello(io, &input[at..]),
                ClientTls::Shaking(_) => self.take_handshake(io, &input[at..]),
                ClientTls::Open(_) => self.take_record(io, input, at),
            };
            match step {
                Some(0) | None => return at,
                Some(used) => at += used,
            }
            if at == input.len() {
                return at;
            }
        }
    }

    /// Bytes that came with the handshake's end; the input buffer is on loan, so they are handled where they lie.
    pub(crate) fn take_leftover(&mut self, io: &mut Io<'_>) {
        let mut raw = std::mem::take(&mut self.client.raw);
        let mut at = 0;
        while let Some(used) = self.take_record_from(io, &mut raw, at, false) {
            if used == 0 {
                break;
            }
            at += used;
        }
        raw.drain(..at);
        self.client.raw = raw;
    }

    fn take_record(&mut self, io: &mut Io<'_>, input: &mut [u8], at: usize) -> Option<usize> {
        self.take_record_from(io, input, at, true)
    }

    /// Opens and consumes the record at `at`; `None` when it is incomplete or must wait.
    fn take_record_from(
        &mut self,
        io: &mut Io<'_>,
        input: &mut [u8],
        at: usize,
        shared: bool,
    ) -> Option<usize> {
        if !self.end.is_closing() && (self.plain_blocks() || !self.takes_input() || self.request_waits()) {
            return None;
        }
        let head: &[u8; 5] = input.get(at..at + 5)?.try_into().ok()?;
        let len = match record_len(head) {
            Ok(len) => len,
            Err(error) => {
                self.fail_records(io, error.alert());
                return None;
            }
        };
        let record = input.get_mut(at..at + len)?;
        let ClientTls::Open(records) = &mut self.client.tls else { return None };
        let (rx, position) = (records.rx(), self.client.in_pos);
        records.forgive(seconds(io.now));
        match records.open(record) {
            Ok(Opened::Data(range)) => {
                self.client.in_pos += len as u64;
                let (mut start, end) = (at + range.start, at + range.end);
                if let Some(remote) = &mut self.remote {
                    remote.client_input.note_record(position, rx, end - start);
                    start += remote.client_input.skip_used(end - start);
                }
                let place = if shared { Place::Input(start) } else { Place::Elsewhere };
                self.take_plaintext(io, &input[start..end], place);
            }
            Ok(Opened::KeyUpdate { requested }) => {
                self.client.in_pos += len as u64;
                let generation = records.rx().generation;
                if requested {
                    self.owe_key_update(io, generation);
                }
            }
            Ok(Opened::Alert { fatal, description }) => {
                self.client.in_pos += len as u64;
                self.handle_client_alert(io, fatal, description);
            }
            Ok(Opened::Renegotiation) => {
                self.client.in_pos += len as u64;
                self.refuse_renegotiation(io);
            }
            Ok(Opened::Ignored) => self.client.in_pos += len as u64,
            Err(error) => {
                self.fail_records(io, error.alert());
                return None;
            }
        }
        Some(len)
    }

    /// A next request may not even be decrypted while the previous response is under way.
    fn request_waits(&self) -> bool {
        self.exchange.receiving == RequestState::Head && !self.head_is_due()
    }

    fn handle_client_alert(&mut self, io: &mut Io<'_>, fatal: bool, description: u8) {
        if !fatal && description != 0 {
            return; // user_canceled: close_notify follows (RFC 8446 section 6.1)
        }
        if fatal {
            self.withdraw_session(io);
            self.end_abruptly(io, "client_alert");
        } else {
            self.end_of_client(io);
        }
    }

    /// The client's FIN (or RST, which the worker reports as an end too), after all bytes before it: call it where a
    /// read that [`Connection::wants_client`] asked for found the end.
    pub fn handle_client_end(&mut self, io: &mut Io<'_>) {
        self.catch_up(io);
        if !self.client.ended {
            self.client.ended = true;
            self.end_of_client(io);
        }
        self.finish_call(io);
    }

    /// The node before us has taken the client's FIN: the restored connection knows what followed from it, and will not
    /// find it in its socket.
    pub fn handle_client_ended_before(&mut self, io: &mut Io<'_>) {
        self.catch_up(io);
        self.client.ended = true;
        self.finish_call(io);
    }

    /// The client's stream has ended: by close_notify, or by FIN where there is no TLS.
    fn end_of_client(&mut self, io: &mut Io<'_>) {
        if self.end.is_closing() {
            return;
        }
        match self.exchange.receiving {
            RequestState::Tunnel if self.servers.leg.is_some() && !self.is_handshaking() => {
                self.exchange.receiving = RequestState::Ended;
                self.shutdown_server(io);
            }
            RequestState::Head if self.servers.leg.is_some() || self.exchange.order().is_ne() => {
                // The request is complete: the client may only have closed its sending side.
                self.exchange.receiving = RequestState::Ended;
                self.exchange.last_response = true;
            }
            RequestState::Ended if self.servers.leg.is_some() => self.exchange.last_response = true,
            RequestState::Head if self.client.plain.is_empty() && !self.is_handshaking() => {
                self.end_orderly(io, "")
            }
            // A port scan gets no log line.
            _ if self.client.in_pos == 0 && self.client.raw.is_empty() => self.end_abruptly(io, ""),
            _ => self.end_abruptly(io, "client_gone"),
        }
    }

    /// Plaintext in order: first what is held, then `data`.
    pub(crate) fn take_plaintext(&mut self, io: &mut Io<'_>, data: &[u8], place: Place) -> usize {
        if self.exchange.receiving == RequestState::Ended {
            self.consumed_plain(data.len());
            return data.len();
        }
        if self.client.plain.is_empty() {
            let used = self.consume(io, data, place);
            if used < data.len() {
                self.client.plain.extend_from_slice(&data[used..]);
            }
        } else {
            self.client.plain.extend_from_slice(data);
            self.consume_buffered(io);
        }
        if self.client.plain.is_empty() {
            if self.client.plain.capacity() > 0 {
                self.client.plain = Vec::new();
            }
        } else {
            self.begin_head(io);
        }
        data.len()
    }

    fn consume_buffered(&mut self, io: &mut Io<'_>) {
        let mut plain = std::mem::take(&mut self.client.plain);
        let used = self.consume(io, &plain, Place::Elsewhere);
        if used > 0 {
            plain.drain(..used);
        }
        if !plain.is_empty() && self.exchange.receiving != RequestState::Ended {
            self.client.plain = plain;
        }
    }

    pub(crate) fn consumed_plain(&mut self, bytes: usize) {
        if let Some(remote) = &mut self.remote {
            remote.client_input.consumed(bytes as u64);
        }
    }

    /// A client of TLS 1.2 asks for another handshake: a warning, and the connection stays as it is. A restored
    /// connection that repeats records sends none: the warning may be among them, and a client may be left without.
    fn refuse_renegotiation(&mut self, io: &mut Io<'_>) {
        let repeats = self.remote.as_ref().is_some_and(|remote| remote.replay.is_repeating());
        if !repeats && !self.end.is_closing() && !self.end.is_sent() {
            self.send_alert(io, alert::NO_RENEGOTIATION);
        }
    }

    pub(crate) fn owe_key_update(&mut self, io: &mut Io<'_>, generation: u32) {
        if generation <= self.client.answered_keys || self.end.is_closing() || self.end.is_sent() {
            return;
        }
        match self.remote.as_mut().filter(|remote| remote.replay.is_repeating()) {
            Some(remote) => remote.replay.owed = generation,
            None => self.send_key_update(io, generation),
        }
    }

    pub(crate) fn send_key_update(&mut self, io: &mut Io<'_>, answers: u32) {
        self.client.answered_keys = self.client.answered_keys.max(answers);
        let ClientTls::Open(records) = &mut self.client.tls else { return };
        let first = records.tx();
        let mut out = Vec::new();
        records.seal_key_update(false, &mut out);
        if out.is_empty() {
            return; // TLS 1.2, or all generations are used up
        }
        let tag = crate::framing::tag_of(&out);
        if let Some(remote) = &mut self.remote {
            remote.note_sealed(first, RecordKind::KeyUpdate(answers), 0, tag);
        }
        self.send_sealed(io, &out);
    }
}
