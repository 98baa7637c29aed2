//! Observer of a handshake between a client and a server that this process only relays.
//!
//! It reads what both sides send in clear, and reports once: whether the server resumed a session, and which sessions
//! it has. Nothing is reported before the handshake is complete by what the wire shows:
//!
//! * TLS 1.2 and older: ChangeCipherSpec and one encrypted handshake record (Finished) in both directions.
//! * TLS 1.3: a ServerHello, then encrypted records in both directions. A server accepts an identity only after it has
//!   verified its binder (RFC 8446 section 4.2.11), so early data of the client, which looks like its Finished, shows
//!   no false session.
//!
//! An alert after that is encrypted, and looks like any other record. It is not observed.
//!
//! Memory: one observer has at most 1 KiB with its hashes, and a hello while it arrives in pieces: 4 KiB of a server,
//! 16 KiB of a client after a HelloRetryRequest. Time: each byte is visited once, up to 256 KiB in each direction.

use evergate_base::Micros;
use evergate_base::session::{SessionHash, SessionHasher, SessionName};

use crate::client_hello::ClientHello;
use crate::flight::{ALERT, APPLICATION_DATA, Flight, HANDSHAKE, Passed};
use crate::message_stream::Message;
use crate::observation::{Completed, FailReason, NewSession, Observation, Timing};
use crate::server_hello::ServerHello;
use crate::session_offer::SessionOffer;

const TLS13: u16 = 0x0304;
/// Lengths of a TLS 1.3 record that holds an alert: two bytes, the content type, a tag of 16 or 8 bytes. No record that
/// ends a handshake is as short.
const ALERT_RECORD_LENGTHS: [usize; 2] = [19, 11];

/// Observer of one connection; see the module.
#[derive(Debug)]
pub struct SessionObserver {
    hasher: SessionHasher,
    offer: SessionOffer,
    client: Flight,
    server: Flight,
    stage: Stage,
    clock: Clock,
}

#[derive(Debug)]
enum Stage {
    /// No ServerHello yet.
    Hello {
        is_retried: bool,
    },
    Tls12(Tls12),
    Tls13(Tls13),
    Done,
}

/// A handshake of TLS 1.2 or older.
#[derive(Debug)]
struct Tls12 {
    version: u16,
    kind: Kind,
    /// The server's session id.
    id: Option<SessionHash>,
    ticket: Option<NewSession>,
    client: Half,
    server: Half,
}

/// Kind of a handshake of TLS 1.2, which the message after ServerHello and NewSessionTicket decides.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Undecided,
    Full,
    Resumed { session: SessionHash },
}

/// Progress of one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Half {
    Clear,
    /// ChangeCipherSpec passed.
    Changed,
    /// Finished passed.
    Finished,
}

#[derive(Debug)]
struct Tls13 {
    accepted: Accepted,
    has_server_record: bool,
}

#[derive(Clone, Copy, Debug)]
enum Accepted {
    /// No pre-shared key: a full handshake.
    Nothing,
    /// The identity; `None` for one that is not read.
    Identity(Option<SessionHash>),
}

impl SessionObserver {
    /// Starts at the end of a ClientHello; the bytes of both directions behind it follow. `now` is the time at which
    /// the hello was complete.
    pub fn new(hello: &ClientHello<'_>, hasher: SessionHasher, now: Micros) -> SessionObserver {
        SessionObserver {
            hasher,
            offer: SessionOffer::new(hello, &hasher),
            client: Flight::new(hasher),
            server: Flight::new(hasher),
            stage: Stage::Hello { is_retried: false },
            clock: Clock::new(now),
        }
    }

    /// Whether the result was reported. The observer reads no further byte; drop it.
    pub fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    /// Reads bytes of the client. Returns the result when they decide it.
    pub fn handle_client(&mut self, mut bytes: &[u8], now: Micros) -> Option<Observation> {
        if self.is_done() || bytes.is_empty() {
            return None;
        }
        self.clock.on_client(now);
        loop {
            let result = match self.client.next(&mut bytes) {
                Ok(Some(passed)) => self.on_client(passed),
                Ok(None) => return None,
                Err(reason) => Err(reason),
            };
            if let Some(observation) = self.conclude(result) {
                return Some(observation);
            }
        }
    }

    /// Reads bytes of the server. Returns the result when they decide it.
    pub fn handle_server(&mut self, mut bytes: &[u8], now: Micros) -> Option<Observation> {
        if self.is_done() || bytes.is_empty() {
            return None;
        }
        self.clock.on_server(now);
        loop {
            let result = match self.server.next(&mut bytes) {
                Ok(Some(passed)) => self.on_server(passed),
                Ok(None) => return None,
                Err(reason) => Err(reason),
            };
            if let Some(observation) = self.conclude(result) {
                return Some(observation);
            }
        }
    }

    /// A side closed its direction, or the connection.
    pub fn handle_close(&mut self) -> Option<Observation> {
        if self.is_done() { None } else { self.conclude(Err(FailReason::Closed)) }
    }

    fn conclude(&mut self, result: Result<Option<Observation>, FailReason>) -> Option<Observation> {
        let observation = match result {
            Ok(observation) => observation?,
            Err(reason) => Observation::failed(reason, self.accepted()),
        };
        self.stage = Stage::Done;
        Some(observation)
    }

    /// The session that the server accepted.
    fn accepted(&self) -> Option<SessionHash> {
        match &self.stage {
            Stage::Tls12(Tls12 { kind: Kind::Resumed { session }, .. }) => Some(*session),
            Stage::Tls13(Tls13 { accepted: Accepted::Identity(identity), .. }) => *identity,
            _ => None,
        }
    }

    fn on_client(&mut self, passed: Passed) -> Result<Option<Observation>, FailReason> {
        if let Some(reason) = fatal(&passed, &self.stage) {
            return Err(reason);
        }
        match (&mut self.stage, passed) {
            (Stage::Hello { is_retried: true }, Passed::Message(Message::ClientHello(message))) => {
                let hello = ClientHello::read(&message).and_then(|hello| hello.check().map(|()| hello));
                let hello = hello.map_err(|_| FailReason::Unexpected("second ClientHello"))?;
                self.offer = SessionOffer::new(&hello, &self.hasher);
                Ok(None)
            }
            (Stage::Tls12(tls), passed) => {
                if tls.client.advance(&passed)? == Some(Half::Changed) {
                    self.client.protect();
                }
                Ok(tls.completed(&self.clock))
            }
            (Stage::Tls13(tls), Passed::Protected { kind: APPLICATION_DATA, len })
                if tls.has_server_record =>
            {
                if ALERT_RECORD_LENGTHS.contains(&len) && !self.offer.has_early_data {
                    return Err(FailReason::ProtectedAlert);
                }
                Ok(Some(tls.completed(&self.clock)))
            }
            _ => Ok(None),
        }
    }

    fn on_server(&mut self, passed: Passed) -> Result<Option<Observation>, FailReason> {
        if let Some(reason) = fatal(&passed, &self.stage) {
            return Err(reason);
        }
        match (&mut self.stage, passed) {
            (Stage::Hello { .. }, Passed::Message(Message::ServerHello(hello))) => self.on_hello(&hello)?,
            // The compatibility mode of TLS 1.3 after a HelloRetryRequest (RFC 8446 appendix D.4).
            (Stage::Hello { is_retried: true }, Passed::ChangeCipherSpec) => {}
            (Stage::Hello { .. }, passed) if !is_warning(&passed) => {
                return Err(FailReason::Unexpected("bytes before the ServerHello"));
            }
            (Stage::Tls12(tls), passed) => {
                if let Passed::Message(message) = passed {
                    tls.on_server_message(&message)?;
                } else if let Some(half) = tls.server.advance(&passed)? {
                    tls.on_server_half(half, &self.offer, &mut self.clock)?;
                    self.server.protect();
                }
                return Ok(tls.completed(&self.clock));
            }
            (Stage::Tls13(tls), Passed::Protected { kind: APPLICATION_DATA, len }) => {
                if !tls.has_server_record && ALERT_RECORD_LENGTHS.contains(&len) {
                    return Err(FailReason::ProtectedAlert);
                }
                tls.has_server_record = true;
                self.clock.on_finished();
            }
            (Stage::Tls13(_), Passed::Message(_)) => {
                return Err(FailReason::Unexpected("message in clear after the ServerHello"));
            }
            _ => {}
        }
        Ok(None)
    }

    fn on_hello(&mut self, hello: &ServerHello) -> Result<(), FailReason> {
        if hello.is_retry() {
            if matches!(self.stage, Stage::Hello { is_retried: true }) {
                return Err(FailReason::Unexpected("second HelloRetryRequest"));
            }
            self.stage = Stage::Hello { is_retried: true };
            return Ok(());
        }
        self.stage = if hello.version == TLS13 {
            let accepted = match hello.selected_psk {
                None => Accepted::Nothing,
                Some(index) => Accepted::Identity(self.offer.identities.get(usize::from(index)).copied()),
            };
            Stage::Tls13(Tls13 { accepted, has_server_record: false })
        } else {
            let id = hello.session_id.as_slice();
            let id = (!id.is_empty()).then(|| self.hasher.hash(SessionName::Id, id));
            Stage::Tls12(Tls12 {
                version: hello.version,
                kind: Kind::Undecided,
                id,
                ticket: None,
                client: Half::Clear,
                server: Half::Clear,
            })
        };
        Ok(())
    }
}

impl Half {
    /// Notes what passed. Returns the new state if it changed.
    fn advance(&mut self, passed: &Passed) -> Result<Option<Half>, FailReason> {
        let next = match (*self, passed) {
            (Half::Clear, Passed::ChangeCipherSpec) => Half::Changed,
            (Half::Changed, Passed::Protected { kind: HANDSHAKE, .. }) => Half::Finished,
            (Half::Clear, Passed::Message(_) | Passed::Alert { .. }) | (Half::Finished, _) => {
                return Ok(None);
            }
            _ => return Err(FailReason::Unexpected("record before Finished")),
        };
        *self = next;
        Ok(Some(next))
    }
}

impl Tls12 {
    fn on_server_message(&mut self, message: &Message) -> Result<(), FailReason> {
        match (self.kind, message) {
            (_, Message::ServerHello(_)) => return Err(FailReason::Unexpected("second ServerHello")),
            // RFC 5077 section 3.3: before ChangeCipherSpec, in a full handshake too.
            (Kind::Undecided | Kind::Full, Message::Ticket(ticket)) => self.ticket = *ticket,
            (Kind::Undecided, _) => self.kind = Kind::Full,
            _ => {}
        }
        Ok(())
    }

    fn on_server_half(
        &mut self,
        half: Half,
        offer: &SessionOffer,
        clock: &mut Clock,
    ) -> Result<(), FailReason> {
        match half {
            // ChangeCipherSpec directly after the ServerHello: RFC 5246 figure 2.
            Half::Changed if self.kind == Kind::Undecided => {
                // RFC 5077 section 3.4: the server does not use the id beside a ticket, but repeats it.
                let repeats = offer.id.is_none() || offer.id == self.id;
                let session = offer.ticket.or(offer.id).filter(|_| repeats);
                let session =
                    session.ok_or(FailReason::Unexpected("ChangeCipherSpec without a key exchange"))?;
                self.kind = Kind::Resumed { session };
            }
            Half::Finished => clock.on_finished(),
            _ => {}
        }
        Ok(())
    }

    fn completed(&self, clock: &Clock) -> Option<Observation> {
        if (self.client, self.server) != (Half::Finished, Half::Finished) {
            return None;
        }
        let Tls12 { version, ticket, .. } = *self;
        Some(match self.kind {
            Kind::Resumed { session } => Observation::Resumed(Completed {
                version,
                reused: Some(session),
                made: ticket,
                timing: clock.timing,
            }),
            Kind::Undecided | Kind::Full => {
                // RFC 5077 section 3.4: a client with a ticket "discards any Session ID that was sent".
                let id = self.id.map(|hash| NewSession { hash, lifetime_s: None });
                Observation::Full(Completed {
                    version,
                    reused: None,
                    made: ticket.or(id),
                    timing: clock.timing,
                })
            }
        })
    }
}

impl Tls13 {
    fn completed(&self, clock: &Clock) -> Observation {
        let completed = |reused| Completed { version: TLS13, reused, made: None, timing: clock.timing };
        match self.accepted {
            Accepted::Nothing => Observation::Full(completed(None)),
            Accepted::Identity(identity) => Observation::Resumed(completed(identity)),
        }
    }
}

/// The reason that an alert is for the end of the handshake. A warning of TLS 1.2 is none.
fn fatal(passed: &Passed, stage: &Stage) -> Option<FailReason> {
    const WARNING: u8 = 1;
    match *passed {
        Passed::Alert { description: 0 | 90, .. } => Some(FailReason::Closed), // close_notify, user_canceled
        Passed::Alert { level: WARNING, .. } if !matches!(stage, Stage::Tls13(_)) => None,
        Passed::Alert { description, .. } => Some(FailReason::Alert(description)),
        Passed::Protected { kind: ALERT, .. } => Some(FailReason::ProtectedAlert),
        _ => None,
    }
}

fn is_warning(passed: &Passed) -> bool {
    matches!(passed, Passed::Alert { .. })
}

/// Times of both directions.
#[derive(Debug)]
struct Clock {
    hello: Micros,
    /// When bytes of either side passed last.
    last: Micros,
    at_server: Micros,
    timing: Timing,
}

impl Clock {
    fn new(now: Micros) -> Clock {
        Clock { hello: now, last: now, at_server: Micros(0), timing: Timing::default() }
    }

    fn on_client(&mut self, now: Micros) {
        self.last = now;
    }

    /// The time since the last bytes was the server's.
    fn on_server(&mut self, now: Micros) {
        self.at_server = self.at_server + now.since(self.last);
        self.last = now;
    }

    /// The server's Finished passed, or, in TLS 1.3, may have passed.
    fn on_finished(&mut self) {
        self.timing = Timing { to_finished: self.last.since(self.hello), at_server: self.at_server };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session_offer::PSK_IDENTITIES_MAX;

    #[test]
    fn observer_has_at_most_a_kibibyte() {
        let ticket_bytes = 128; // boxed in both directions while one arrives
        let hashes = PSK_IDENTITIES_MAX * size_of::<SessionHash>();
        let bytes = size_of::<SessionObserver>() + hashes + 2 * ticket_bytes;
        assert!((400..=1024).contains(&bytes), "{bytes} bytes");
    }
}
