//! The client leg's input: hello, handshake, records, and the plaintext they carry.

use crate::Io;
use crate::connection::{ClientTls, Connection, RequestState, Timer};
use evergate_base::Micros;
use evergate_replication::RecordKind;
use evergate_tls::{Opened, alert, record_len};

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
        let held = self.raw.len();
        if let Some(remote) = &mut self.remote {
            remote.client_input.append(self.in_pos + held as u64, &io.scratch.input[held..n]);
        }
        self.raw.clear();
        let mut input = std::mem::take(&mut io.scratch.input);
        let used = self.take_client(io, &mut input[..n]);
        self.keep_raw(&input[used..n]);
        io.scratch.input = input;
        if !self.raw.is_empty() {
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
        if self.receiving == RequestState::Head && self.timer == Timer::KeepAlive {
            self.arm(Timer::RequestHead, io.now);
        }
    }

    /// Part of a record has arrived: a client that sends a long record slowly makes progress too.
    fn note_partial(&mut self, io: &mut Io<'_>, bytes: usize) {
        let is_open = matches!(self.tls, ClientTls::Open(_));
        if is_open && self.timer == Timer::RequestBody && self.takes_input() {
            self.progress(Timer::RequestBody, bytes, io.now);
        }
    }

    fn keep_raw(&mut self, rest: &[u8]) {
        if rest.is_empty() {
            if self.raw.is_empty() && self.raw.capacity() > 0 {
                self.raw = Vec::new(); // an idle connection holds no buffer
            }
        } else {
            self.raw.extend_from_slice(rest);
        }
    }

    /// Processes input that was buffered because it had nowhere to go.
    pub(crate) fn resume_client(&mut self, io: &mut Io<'_>) {
        if !self.plain.is_empty() {
            self.consume_buffered(io);
        }
        if !self.plain_blocks() && !self.raw.is_empty() && matches!(self.tls, ClientTls::Open(_)) {
            self.take_leftover(io);
        }
    }

    /// Held plaintext that could not be consumed keeps further records from being decrypted, unless it grows towards a
    /// complete head or a body prefix.
    fn plain_blocks(&self) -> bool {
        let grows = matches!(self.receiving, RequestState::Head | RequestState::Prefix) && self.takes_input();
        !self.plain.is_empty() && !grows
    }

    /// Consumes as much of `input` as the state allows; returns the bytes used.
    fn take_client(&mut self, io: &mut Io<'_>, input: &mut [u8]) -> usize {
        let mut at = 0;
        loop {
            if self.closed || self.ignores_input {
                self.in_pos += (input.len() - at) as u64;
                return input.len();
            }
            let step = match &self.tls {
                ClientTls::Plain => {
                    self.in_pos += (input.len() - at) as u64;
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
        let mut raw = std::mem::take(&mut self.raw);
        let mut at = 0;
        while let Some(used) = self.take_record_from(io, &mut raw, at, false) {
            if used == 0 {
                break;
            }
            at += used;
        }
        raw.drain(..at);
        self.raw = raw;
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
        if !self.closing && (self.plain_blocks() || !self.takes_input() || self.request_waits()) {
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
        let ClientTls::Open(records) = &mut self.tls else { return None };
        let (rx, position) = (records.rx(), self.in_pos);
        records.forgive(seconds(io.now));
        match records.open(record) {
            Ok(Opened::Data(range)) => {
                self.in_pos += len as u64;
                let (mut start, end) = (at + range.start, at + range.end);
                if let Some(remote) = &mut self.remote {
                    remote.note_record(position, rx, end - start);
                    start += remote.skip_used(end - start);
                }
                let place = if shared { Place::Input(start) } else { Place::Elsewhere };
                self.take_plaintext(io, &input[start..end], place);
            }
            Ok(Opened::KeyUpdate { requested }) => {
                self.in_pos += len as u64;
                let generation = records.rx().generation;
                if requested {
                    self.owe_key_update(io, generation);
                }
            }
            Ok(Opened::Alert { fatal, description }) => {
                self.in_pos += len as u64;
                self.handle_client_alert(io, fatal, description);
            }
            Ok(Opened::Renegotiation) => {
                self.in_pos += len as u64;
                self.refuse_renegotiation(io);
            }
            Ok(Opened::Ignored) => self.in_pos += len as u64,
            Err(error) => {
                self.fail_records(io, error.alert());
                return None;
            }
        }
        Some(len)
    }

    /// A next request may not even be decrypted while the previous response is under way.
    fn request_waits(&self) -> bool {
        self.receiving == RequestState::Head && !self.head_is_due()
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
        if !self.client_ended {
            self.client_ended = true;
            self.end_of_client(io);
        }
        self.finish_call(io);
    }

    /// The node before us has taken the client's FIN: the restored connection knows what followed from it, and will not
    /// find it in its socket.
    pub fn handle_client_ended_before(&mut self, io: &mut Io<'_>) {
        self.catch_up(io);
        self.client_ended = true;
        self.finish_call(io);
    }

    /// The client's stream has ended: by close_notify, or by FIN where there is no TLS.
    fn end_of_client(&mut self, io: &mut Io<'_>) {
        if self.closing {
            return;
        }
        match self.receiving {
            RequestState::Tunnel if self.leg.is_some() && !self.is_handshaking() => {
                self.receiving = RequestState::Ended;
                self.shutdown_server(io);
            }
            RequestState::Head if self.leg.is_some() || self.request != self.response => {
                // The request is complete: the client may only have closed its sending side.
                self.receiving = RequestState::Ended;
                self.last_response = true;
            }
            RequestState::Ended if self.leg.is_some() => self.last_response = true,
            RequestState::Head if self.plain.is_empty() && !self.is_handshaking() => self.end_orderly(io, ""),
            // A port scan gets no log line.
            _ if self.in_pos == 0 && self.raw.is_empty() => self.end_abruptly(io, ""),
            _ => self.end_abruptly(io, "client_gone"),
        }
    }

    /// Plaintext in order: first what is held, then `data`.
    pub(crate) fn take_plaintext(&mut self, io: &mut Io<'_>, data: &[u8], place: Place) -> usize {
        if self.receiving == RequestState::Ended {
            self.consumed_plain(data.len());
            return data.len();
        }
        if self.plain.is_empty() {
            let used = self.consume(io, data, place);
            if used < data.len() {
                self.plain.extend_from_slice(&data[used..]);
            }
        } else {
            self.plain.extend_from_slice(data);
            self.consume_buffered(io);
        }
        if self.plain.is_empty() {
            if self.plain.capacity() > 0 {
                self.plain = Vec::new();
            }
        } else {
            self.begin_head(io);
        }
        data.len()
    }

    fn consume_buffered(&mut self, io: &mut Io<'_>) {
        let mut plain = std::mem::take(&mut self.plain);
        let used = self.consume(io, &plain, Place::Elsewhere);
        if used > 0 {
            plain.drain(..used);
        }
        if !plain.is_empty() && self.receiving != RequestState::Ended {
            self.plain = plain;
        }
    }

    pub(crate) fn consumed_plain(&mut self, bytes: usize) {
        if let Some(remote) = &mut self.remote {
            remote.consumed(bytes as u64);
        }
    }

    /// A client of TLS 1.2 asks for another handshake: a warning, and the connection stays as it is. A restored
    /// connection that repeats records sends none: the warning may be among them, and a client may be left without.
    fn refuse_renegotiation(&mut self, io: &mut Io<'_>) {
        let repeats = self.remote.as_ref().is_some_and(|remote| remote.is_repeating());
        if !repeats && !self.closing && !self.down_ended {
            self.send_alert(io, alert::NO_RENEGOTIATION);
        }
    }

    pub(crate) fn owe_key_update(&mut self, io: &mut Io<'_>, generation: u32) {
        if generation <= self.answered || self.closing || self.down_ended {
            return;
        }
        match self.remote.as_mut().filter(|remote| remote.is_repeating()) {
            Some(remote) => remote.owed = generation,
            None => self.send_key_update(io, generation),
        }
    }

    pub(crate) fn send_key_update(&mut self, io: &mut Io<'_>, answers: u32) {
        self.answered = self.answered.max(answers);
        let ClientTls::Open(records) = &mut self.tls else { return };
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
