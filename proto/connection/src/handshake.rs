//! The client's hello and handshake, replicated before we answer it.

use crate::client_leg::ClientTls;
use crate::connection::Connection;
use crate::exchange::RequestState;
use crate::replication::Replication;
use crate::timers::Timer;
use crate::tls_info::TlsInfo;
use crate::{Effect, Io};
use evergate_replication::{Entry, Established, Flight, Hello, Side, Urgency};
use evergate_tls::{
    Finished, Handshake, HandshakeParams, HelloStatus, NamedSession, Progress, SessionFacts, Version,
    flight_digest, hello_error, hello_status,
};

impl Connection {
    pub(crate) fn take_hello(&mut self, io: &mut Io<'_>, data: &[u8]) -> Option<usize> {
        match hello_status(data, self.listener().limits.hello_bytes_max) {
            HelloStatus::Partial => None,
            HelloStatus::Complete { len } => {
                let ClientTls::Hello(fresh) = std::mem::replace(&mut self.client.tls, ClientTls::Plain)
                else {
                    return None;
                };
                let (secret, accepted_unix_s) = (*fresh.0, fresh.1);
                let config = self.listener().tls.clone()?;
                let params = HandshakeParams {
                    secret,
                    accepted_unix_s,
                    generation: self.snapshot.generation,
                    client: self.client_address,
                    local: self.local_address,
                };
                match Handshake::new(&config, &params) {
                    Ok(mut handshake) => {
                        if self.listener().audit.seals() {
                            handshake.audit();
                        }
                        let bytes = &data[..len];
                        let found = handshake.session_wanted(bytes).and_then(|id| io.node.session(&id));
                        if let Some(remote) = &mut self.remote {
                            let (found, bytes, flights) = (found.clone(), bytes.to_vec(), Vec::new());
                            let hello = Hello { secret, accepted_unix_s, found, bytes, flights };
                            remote.log.push(Entry::Hello(hello));
                        }
                        if let Some(found) = found {
                            handshake.resume_from(found);
                        }
                        self.client.tls = ClientTls::Shaking(Box::new(handshake));
                        self.shake(io, &data[..len])
                    }
                    Err(_) => {
                        self.end_abruptly(io, "tls_internal");
                        None
                    }
                }
            }
            HelloStatus::PlainHttp => {
                self.client.tls = ClientTls::Plain;
                self.exchange.receiving = RequestState::Ended;
                self.refuse(io, 400, "plain_http_on_tls_port");
                Some(data.len())
            }
            refused => {
                let bytes_max = self.listener().limits.hello_bytes_max;
                self.refuse_hello(io, &hello_error(refused, bytes_max));
                Some(data.len())
            }
        }
    }

    pub(crate) fn take_handshake(&mut self, io: &mut Io<'_>, data: &[u8]) -> Option<usize> {
        if self.exchange.receiving == RequestState::Ended {
            self.client.in_pos += data.len() as u64;
            return Some(data.len());
        }
        self.shake(io, data)
    }

    /// Feeds the handshake; it buffers partial records itself, so all of `data` is used.
    fn shake(&mut self, io: &mut Io<'_>, data: &[u8]) -> Option<usize> {
        let ClientTls::Shaking(handshake) = &mut self.client.tls else { return None };
        let before = handshake.consumed();
        let mut flight = Vec::new();
        let outcome = handshake.handle_input(data, &mut flight);
        // What is refused has been read all the same.
        let given = self.client.in_pos + data.len() as u64;
        let after = if outcome.is_err() { given } else { handshake.consumed() };
        let had_hello = self.client.in_pos > 0;
        if let Some(remote) = &mut self.remote {
            remote.replicate_handshake_input(before, after, had_hello);
            remote.replicate_flight(&flight);
        }
        match outcome {
            Ok(Progress::NeedInput) => {
                self.client.in_pos += data.len() as u64;
                self.send_wire(io, &flight);
                Some(data.len())
            }
            Ok(Progress::Done) => {
                self.client.in_pos += data.len() as u64;
                self.finish_handshake(io, flight);
                Some(data.len())
            }
            Err(error) => {
                self.client.in_pos += data.len() as u64;
                self.send_wire(io, &flight);
                self.end_handshake(io, &error);
                Some(data.len())
            }
        }
    }

    pub(crate) fn finish_handshake(&mut self, io: &mut Io<'_>, flight: Vec<u8>) {
        let ClientTls::Shaking(handshake) = std::mem::replace(&mut self.client.tls, ClientTls::Plain) else {
            return;
        };
        let Ok(Finished { records, leftover, facts, consumed, session, audit }) = handshake.finish() else {
            return self.end_abruptly(io, "tls_internal");
        };
        let tickets_wait = facts.version == Version::Tls13;
        self.note_session(io, facts, session);
        self.seal(io, audit, None);
        let sent = self.client.out_pos + flight.len() as u64;
        if let Some(remote) = &mut self.remote {
            let mut state = Vec::new();
            records.export().encode(&mut state);
            let facts = self.client.info.as_ref().map(|facts| facts.encode()).unwrap_or_default();
            remote.push_established(Established { records: state, consumed, sent, facts });
        }
        self.client.tls = ClientTls::Open(Box::new(records));
        self.client.in_pos = consumed;
        if tickets_wait && self.exchange.receiving == RequestState::Head {
            self.client.out_pos += flight.len() as u64;
            self.client.tickets = flight;
            if let Some(remote) = &mut self.remote {
                remote.log.calm(Urgency::Some); // the request may be close behind
            }
        } else {
            self.send_wire(io, &flight);
        }
        self.note_record_end(); // once the client has this, no node needs the handshake's bytes
        if self.exchange.receiving == RequestState::Tunnel {
            self.open_tunnel(io);
        } else {
            self.arm(Timer::KeepAlive, io.now);
        }
        self.client.raw = leftover;
        if !self.client.raw.is_empty() {
            self.take_leftover(io);
        }
    }
}

impl Connection {
    /// Whether tickets wait for the first response.
    pub fn holds_tickets(&self) -> bool {
        !self.client.tickets.is_empty()
    }

    /// Whether the backups have the client's last handshake message, and the client has sent no request yet: tickets
    /// need not wait. Without that message the backups would have to replay the handshake, so tickets may wait for the
    /// ack.
    pub fn may_send_tickets(&self) -> bool {
        let all = self.acknowledged() >= self.newest_entry();
        all && self.holds_tickets() && !self.is_active() && !self.is_past_requests()
    }

    /// The first response takes long: tickets leave without it, and the backups need not keep the handshake for it.
    pub fn handle_tickets_due(&mut self, io: &mut Io<'_>) {
        self.catch_up(io);
        let tickets = std::mem::take(&mut self.client.tickets);
        io.scratch.down.extra().extend_from_slice(&tickets);
        self.finish_call(io);
    }

    /// What a finished handshake leaves for rules, logs and later handshakes.
    pub(crate) fn note_session(
        &mut self,
        io: &mut Io<'_>,
        facts: SessionFacts,
        session: Option<NamedSession>,
    ) {
        let policy = self.listener().client_policy;
        self.client.info = Some(Box::new(TlsInfo::of(facts, session.as_ref().map(NamedSession::id), policy)));
        if let Some(NamedSession::New(kept)) = session {
            io.effects.push(Effect::KeepSession(Box::new(kept)));
        }
    }

    /// A session ends with the fatal alert that ends its connection (RFC 5246 section 7.2.2), whichever side sends it.
    pub(crate) fn withdraw_session(&mut self, io: &mut Io<'_>) {
        if let Some(id) = self.client.info.as_mut().and_then(|facts| facts.session.take()) {
            io.effects.push(Effect::WithdrawSession(*id));
        }
    }
}

impl Replication {
    /// The client's handshake bytes between two positions, from the retained input.
    fn replicate_handshake_input(&mut self, before: u64, after: u64, had_hello: bool) {
        if had_hello && after > before {
            let bytes = self.client_input.retained.slice(before, after);
            self.log.push(Entry::Input(bytes));
        }
        self.release(Side::Client, after);
        self.client_input.retained.drop_before(after);
    }

    /// Our answer to the input before. A node that restores the connection makes it again, or ends the connection.
    pub(crate) fn replicate_flight(&mut self, flight: &[u8]) {
        if !flight.is_empty() {
            self.log.push(Entry::Flight(flight_of(flight)));
        }
    }
}

pub(crate) fn flight_of(bytes: &[u8]) -> Flight {
    Flight { length: bytes.len() as u32, digest: flight_digest(bytes) }
}

/// Our side of a replayed handshake: the part that no flight names, or `None` when it differs from a flight. `whole`:
/// there was no more.
pub(crate) fn beyond_flights<'a>(mut made: &'a [u8], flights: &[Flight], whole: bool) -> Option<&'a [u8]> {
    for flight in flights {
        let (again, rest) = made.split_at_checked(flight.length as usize)?;
        if flight_of(again) != *flight {
            return None;
        }
        made = rest;
    }
    (made.is_empty() || !whole).then_some(made)
}
