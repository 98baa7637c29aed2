//! Ranges of the values in entries. Within them the replay and a restored connection can add without overflow, and hold
//! bounded memory; no real connection comes near the ends.

use crate::{
    BoundLeg, ClientCheckpoint, ConnectionState, Entry, Established, Flight, Hello, LegTls, RecordKind,
    RecordLayout, RecordPosition, Route, ServerCheckpoint, SessionNews, Side, Stash,
};
use evergate_base::session::{SEALED_BYTES_MAX, Sealed};
use std::collections::BTreeMap;

/// Highest position in a stream, and highest sequence number of a record.
pub const POSITION_MAX: u64 = 1 << 62;
/// Highest number of an exchange, or of a server leg; a connection ends in order long before it overflows.
pub const NUMBER_MAX: u32 = 1 << 31;
/// Highest key generation that the record layer accepts. The record layer itself bounds the distance to the base
/// secret.
pub const GENERATION_MAX: u32 = 1 << 31;
/// Most plaintext of one record (RFC 8446 section 5.1), in bytes.
const RECORD_BYTES_MAX: u16 = 1 << 14;
/// Most plaintext of one run of boundaries, in bytes: a batch. A replay of a run first holds all of it.
pub const RUN_BYTES_MAX: usize = 1 << 18;
/// Longest flight of a handshake with a server that may have to be sent again, our certificates included.
pub const FLIGHT_BYTES_MAX: usize = 1 << 18;

/// Longest list of protocols that a server is offered to switch to, in bytes.
pub const OFFER_BYTES_MAX: usize = 256;

/// A value that no connection has.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{what} {value} out of range")]
pub struct OutOfRange {
    /// Name of the value.
    pub what: &'static str,
    /// The value.
    pub value: u64,
}

type Checked = Result<(), OutOfRange>;

fn within(what: &'static str, value: impl Into<u64>, max: impl Into<u64>) -> Checked {
    let value = value.into();
    if value <= max.into() { Ok(()) } else { Err(OutOfRange { what, value }) }
}

fn above_zero(what: &'static str, value: u64) -> Checked {
    if value > 0 { Ok(()) } else { Err(OutOfRange { what, value }) }
}

fn position(what: &'static str, value: u64) -> Checked {
    within(what, value, POSITION_MAX)
}

fn leg(value: u32) -> Checked {
    within("leg", value, NUMBER_MAX)
}

fn exchange(value: u32) -> Checked {
    within("exchange", value, NUMBER_MAX)
}

fn answered(value: u64) -> Checked {
    position("answered position", value)
}

fn on_leg(number: u32, of: u32) -> Checked {
    leg(number)?;
    exchange(of)
}

fn generation(value: u32) -> Checked {
    within("key generation", value, GENERATION_MAX)
}

impl Entry {
    pub(crate) fn check(&self) -> Checked {
        match self {
            Entry::Open(_) | Entry::Input(_) => Ok(()),
            Entry::Hello(hello) => hello.check(),
            Entry::Established(established) => established.check(),
            Entry::Route(route) => route.check(),
            Entry::Client(checkpoint) => checkpoint.check(),
            Entry::Server(checkpoint) => checkpoint.check(),
            Entry::Stash { position, bytes } => check_stash(*position, bytes),
            Entry::LegStash { exchange, leg, position, bytes } => {
                on_leg(*leg, *exchange)?;
                check_stash(*position, bytes)
            }
            Entry::Boundary(boundary) => boundary.check(),
            Entry::Generated { exchange: number, answered: input, .. } => {
                exchange(*number)?;
                answered(*input)
            }
            Entry::ServerEnd { exchange, leg, position: end } => {
                on_leg(*leg, *exchange)?;
                position("end of a server's stream", *end)
            }
            Entry::Close { plain, .. } => position("end of the connection", *plain),
            Entry::LegBoundary { exchange, leg, boundary } => {
                on_leg(*leg, *exchange)?;
                boundary.check()
            }
            Entry::Reserve { exchange: number, until } => {
                exchange(*number)?;
                until.check()
            }
            Entry::Flight(flight) => flight.check(),
            Entry::Keys { side, .. } => match side {
                Side::Client => Ok(()),
                Side::Server(number) => leg(*number),
            },
            Entry::Bound(bound) => bound.as_ref().map_or(Ok(()), |bound| bound.check()),
        }
    }
}

impl ConnectionState {
    pub(crate) fn check(&self) -> Checked {
        self.hello.as_ref().map_or(Ok(()), Hello::check)?;
        self.established.as_ref().map_or(Ok(()), Established::check)?;
        for (index, route) in &self.routes {
            route.check()?;
            if *index != route.exchange {
                return Err(OutOfRange { what: "index of a route", value: u64::from(*index) });
            }
        }
        self.generated.keys().try_for_each(|number| exchange(*number))?;
        answered(self.answered)?;
        self.client.check()?;
        self.server.check()?;
        self.client_stash.check()?;
        for (number, stash) in &self.server_stash {
            leg(*number)?;
            stash.check()?;
        }
        for (number, end) in &self.server_ends {
            leg(*number)?;
            position("end of a server's stream", *end)?;
        }
        self.boundaries.iter().try_for_each(RecordLayout::check)?;
        self.leg_boundaries.keys().try_for_each(|number| leg(*number))?;
        self.leg_boundaries.values().flatten().try_for_each(RecordLayout::check)?;
        self.closed.map_or(Ok(()), |(plain, _)| position("end of the connection", plain))?;
        if let Some((index, until)) = &self.reserved {
            exchange(*index)?;
            until.check()?;
        }
        self.response_from.as_ref().map_or(Ok(()), RecordPosition::check)?;
        self.bound.as_ref().map_or(Ok(()), |bound| bound.check())?;
        leg(self.last_leg)
    }
}

impl Stash {
    fn check(&self) -> Checked {
        check_stash(self.position, &self.bytes)
    }
}

/// Both ends: a position may be at the limit only where nothing follows it.
fn check_stash(from: u64, bytes: &[u8]) -> Checked {
    position("end of a stash", from.saturating_add(bytes.len() as u64))
}

impl Hello {
    fn check(&self) -> Checked {
        self.found.as_ref().map_or(Ok(()), check_sealed)?;
        self.flights.iter().try_for_each(Flight::check)
    }
}

impl Flight {
    fn check(&self) -> Checked {
        above_zero("length of our flight", u64::from(self.length))
    }
}

/// Rejects a session that no node would have stored.
fn check_sealed(sealed: &Sealed) -> Checked {
    within("length of a session", sealed.0.len() as u64, SEALED_BYTES_MAX as u64)
}

impl SessionNews {
    pub(crate) fn check(&self) -> Checked {
        match self {
            SessionNews::Kept(session) => check_sealed(&session.sealed),
            // Every value is valid: the receiver looks its server and its expiry up.
            SessionNews::Withdrawn(_) | SessionNews::Learned(_) | SessionNews::Forgotten { .. } => Ok(()),
        }
    }
}

/// Few and short settings: they are compared, and named where they differ.
pub(crate) fn check_settings(all: &BTreeMap<String, String>) -> Checked {
    within("settings", all.len() as u64, 64_u64)?;
    all.iter().try_for_each(|(key, value)| {
        within("length of a setting's name", key.len() as u64, 64_u64)?;
        within("length of a setting's value", value.len() as u64, 256_u64)
    })
}

impl Established {
    fn check(&self) -> Checked {
        position("end of the client's handshake", self.consumed)?;
        position("end of our handshake", self.sent)
    }
}

impl Route {
    fn check(&self) -> Checked {
        on_leg(self.leg, self.exchange)?;
        answered(self.answered)?;
        within("length of an offer", self.offer.len() as u64, OFFER_BYTES_MAX as u64)?;
        within("bytes of a body that were looked at", self.looked_at, POSITION_MAX)?;
        self.tls.as_ref().map_or(Ok(()), |tls| tls.check())
    }
}

impl BoundLeg {
    fn check(&self) -> Checked {
        self.route.check()?;
        position("input of a bound leg", self.input)?;
        position("output of a bound leg", self.output)
    }
}

impl LegTls {
    fn check(&self) -> Checked {
        position("end of a server's handshake", self.consumed)?;
        position("end of our handshake with a server", self.sent)?;
        within("length of a flight", self.flight.len() as u64, self.sent.min(FLIGHT_BYTES_MAX as u64))
    }
}

impl RecordPosition {
    fn check(&self) -> Checked {
        generation(self.generation)?;
        within("record sequence", self.sequence, POSITION_MAX)
    }
}

impl ClientCheckpoint {
    fn check(&self) -> Checked {
        position("client position", self.input)?;
        self.rx.check()?;
        within("used part of a record", self.used, RECORD_BYTES_MAX)?;
        exchange(self.exchange)?;
        leg(self.leg)?;
        position("position on a leg", self.output)?;
        self.tx.check()?;
        generation(self.answered_keys)?;
        generation(self.owed)
    }
}

impl ServerCheckpoint {
    fn check(&self) -> Checked {
        position("output position", self.output)?;
        self.tx.check()?;
        position("plaintext position", self.plain)?;
        leg(self.leg)?;
        position("server position", self.input)?;
        self.rx.check()?;
        within("plaintext position of a parser point", self.point_plain, self.plain)?;
        exchange(self.exchange)?;
        generation(self.answered_keys)
    }
}

impl RecordLayout {
    /// A run has records, each with the bytes that its kind has, and is not longer than a batch.
    fn check(&self) -> Checked {
        self.first.check()?;
        if let RecordKind::KeyUpdate(answers) = self.kind {
            generation(answers)?;
        }
        above_zero("number of runs", self.lengths.len() as u64)?;
        let mut bytes = 0u64;
        for (length, count) in &self.lengths {
            above_zero("number of records", u64::from(*count))?;
            within("length of a record", *length, RECORD_BYTES_MAX)?;
            bytes = bytes.saturating_add(u64::from(*length).saturating_mul(u64::from(*count)));
        }
        if self.kind == RecordKind::Data {
            let shortest = self.lengths.iter().map(|(length, _)| u64::from(*length)).min();
            above_zero("length of a record", shortest.unwrap_or(0))?;
        } else {
            within("number of records of this kind", self.count(), 1u64)?;
        }
        within("length of a run", bytes, RUN_BYTES_MAX as u64)?;
        position("end of a run", self.first.sequence.saturating_add(self.count()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Frame, Phase, RouteFlags, WireError};
    use evergate_base::session::KeptSession;
    use std::collections::BTreeMap;

    const OVER: u64 = GENERATION_MAX as u64 + 1;

    /// Checks that only rejected values differ from accepted ones.
    #[track_caller]
    fn limit(what: &'static str, good: Entry, bad: Entry, value: u64) {
        let read = |entry: &Entry| Entry::decode(&entry.encode().unwrap());
        assert_eq!(read(&good), Ok(good));
        let refused = WireError::Value { what: "log entry", source: OutOfRange { what, value } };
        assert_eq!(read(&bad), Err(refused), "{bad:?}");
    }

    fn run(sequence: u64, kind: RecordKind, lengths: &[(u16, u32)]) -> Entry {
        let first = RecordPosition { generation: 3, sequence };
        Entry::Boundary(RecordLayout { first, kind, lengths: lengths.to_vec(), digest: 1 })
    }

    fn route(exchange: u32, leg: u32) -> Route {
        Route {
            exchange,
            answered: 0,
            leg,
            generation: u64::MAX, // of the configuration: any
            pool: 0,
            server: 0,
            place: 0,
            rules: Vec::new(),
            shape: 0,
            flags: RouteFlags::default(),
            offer: Vec::new(),
            looked_at: 0,
            hash: 0,
            tls: None,
        }
    }

    #[test]
    fn a_run_without_records_or_longer_than_a_batch_is_refused() {
        use RecordKind::{Alert, Data, KeyUpdate};
        let good = || run(0, Data, &[(16384, 16)]);
        limit("number of runs", good(), run(0, Data, &[]), 0);
        limit("number of records", good(), run(0, Data, &[(1, 1), (2, 0)]), 0);
        limit("length of a record", good(), run(0, Data, &[(0, 1)]), 0);
        limit("length of a record", good(), run(0, Data, &[(16385, 1)]), 16385);
        limit("length of a run", good(), run(0, Data, &[(16384, 16), (1, 1)]), (1 << 18) + 1);
        limit("length of a run", good(), run(0, Data, &[(3, u32::MAX)]), 3 * u64::from(u32::MAX));
        limit("number of records of this kind", run(0, Alert(0), &[(2, 1)]), run(0, Alert(0), &[(2, 2)]), 2);
        let (good, bad) = (run(0, KeyUpdate(1), &[(0, 1)]), run(0, KeyUpdate(1), &[(0, 1), (1, 1)]));
        limit("number of records of this kind", good, bad, 2);
    }

    #[test]
    fn an_offer_of_protocols_is_short() {
        let with = |length| Entry::Route(Route { offer: vec![b'x'; length], ..route(1, 1) });
        let (most, over) = (OFFER_BYTES_MAX, OFFER_BYTES_MAX + 1);
        limit("length of an offer", with(most), with(over), over as u64);
    }

    #[test]
    fn record_positions_stay_far_from_their_ends() {
        use RecordKind::{Data, KeyUpdate};
        let far = POSITION_MAX;
        limit("end of a run", run(far - 1, Data, &[(1, 1)]), run(far - 1, Data, &[(1, 2)]), far + 1);
        limit("record sequence", run(0, Data, &[(1, 1)]), run(u64::MAX, Data, &[(1, 1)]), u64::MAX);
        let update = |answers| run(0, KeyUpdate(answers), &[(0, 1)]);
        limit("key generation", update(GENERATION_MAX), update(GENERATION_MAX + 1), OVER);
        let tx = |generation| RecordPosition { generation, sequence: 0 };
        let server = |generation| {
            Entry::Server(ServerCheckpoint { tx: tx(generation), ..ServerCheckpoint::default() })
        };
        limit("key generation", server(GENERATION_MAX), server(GENERATION_MAX + 1), OVER);
        let client = |generation| {
            Entry::Client(ClientCheckpoint { rx: tx(generation), ..ClientCheckpoint::default() })
        };
        limit("key generation", client(GENERATION_MAX), client(GENERATION_MAX + 1), OVER);
    }

    #[test]
    fn stream_positions_stay_far_from_their_ends() {
        let far = POSITION_MAX;
        let client = |input, output, used| {
            Entry::Client(ClientCheckpoint { input, output, used, ..ClientCheckpoint::default() })
        };
        limit("client position", client(far, far, 16384), client(far + 1, 0, 0), far + 1);
        limit("position on a leg", client(0, 0, 0), client(0, u64::MAX, 0), u64::MAX);
        limit("used part of a record", client(0, 0, 0), client(0, 0, 16385), 16385);
        let server = |output, plain, input, point_plain| {
            let phase = Phase::Tunnel;
            Entry::Server(ServerCheckpoint { output, plain, input, point_plain, phase, ..Default::default() })
        };
        let good = || server(far, far, far, far);
        limit("output position", good(), server(far + 1, 0, 0, 0), far + 1);
        limit("plaintext position", good(), server(0, far + 1, 0, 0), far + 1);
        limit("server position", good(), server(0, 0, far + 1, 0), far + 1);
        limit("plaintext position of a parser point", good(), server(9, 9, 9, 10), 10);
        let stash = |position, bytes: &[u8]| Entry::Stash { position, bytes: bytes.to_vec() };
        limit("end of a stash", stash(far - 2, b"ab"), stash(far - 2, b"abc"), far + 1);
        let end = |position| Entry::ServerEnd { exchange: 0, leg: 1, position };
        limit("end of a server's stream", end(far), end(far + 1), far + 1);
        let close = |plain| Entry::Close { plain, abort: false };
        limit("end of the connection", close(far), close(far + 1), far + 1);
        let established = |consumed, sent| {
            Entry::Established(Established { records: Vec::new(), consumed, sent, facts: Vec::new() })
        };
        limit("end of the client's handshake", established(far, far), established(far + 1, 0), far + 1);
        limit("end of our handshake", established(0, 0), established(0, far + 1), far + 1);
    }

    #[test]
    fn sessions_are_no_longer_than_stored_ones() {
        let hello = |length| {
            let found = Some(Sealed(vec![0; length]));
            let flights = Vec::new();
            Entry::Hello(Hello { secret: [0; 32], accepted_unix_s: 0, found, bytes: vec![1], flights })
        };
        let (most, over) = (SEALED_BYTES_MAX, SEALED_BYTES_MAX + 1);
        limit("length of a session", hello(most), hello(over), over as u64);
        let decoded = |length| {
            let sealed = Sealed(vec![0; length]);
            let kept = SessionNews::Kept(KeptSession { id: [1; 32], until_unix_s: u64::MAX, sealed });
            let frame = Frame::Sessions(vec![SessionNews::Withdrawn([2; 32]), kept]);
            let mut wire = Vec::new();
            frame.encode(&mut wire).unwrap();
            Frame::decode(&wire).map(|read| assert_eq!(read, Some((frame, wire.len()))))
        };
        assert_eq!(decoded(most), Ok(()));
        assert!(matches!(decoded(over), Err(WireError::Value { .. })));
    }

    #[test]
    fn a_flight_has_bytes() {
        let flight = |length| Flight { length, digest: 0 };
        let keys = |number| Entry::Keys { side: Side::Server(number), records: Vec::new() };
        limit("leg", keys(NUMBER_MAX), keys(NUMBER_MAX + 1), u64::from(NUMBER_MAX) + 1);
        limit("length of our flight", Entry::Flight(flight(1)), Entry::Flight(flight(0)), 0);
        let hello = |length| {
            let (found, flights) = (None, vec![flight(1), flight(length)]);
            Entry::Hello(Hello { secret: [0; 32], accepted_unix_s: 0, found, bytes: vec![1], flights })
        };
        limit("length of our flight", hello(u32::MAX), hello(0), 0);
    }

    #[test]
    fn the_tls_of_a_leg_keeps_its_limits() {
        let far = POSITION_MAX;
        let with = |consumed, sent, flight: usize| {
            let flight = vec![0; flight];
            let tls = Some(Box::new(LegTls { records: Vec::new(), consumed, sent, flight }));
            Entry::Route(Route { tls, ..route(1, 1) })
        };
        limit("end of a server's handshake", with(far, far, 0), with(far + 1, 0, 0), far + 1);
        limit("end of our handshake with a server", with(0, far, 0), with(0, far + 1, 0), far + 1);
        let most = FLIGHT_BYTES_MAX;
        limit("length of a flight", with(0, far, most), with(0, far, most + 1), most as u64 + 1);
        limit("length of a flight", with(0, 3, 3), with(0, 3, 4), 4);
        let on_leg = |leg, generation| {
            let first = RecordPosition { generation, sequence: 0 };
            let lengths = vec![(1, 1)];
            let boundary = RecordLayout { first, kind: RecordKind::Data, lengths, digest: 1 };
            Entry::LegBoundary { exchange: 0, leg, boundary }
        };
        limit("leg", on_leg(NUMBER_MAX, 0), on_leg(u32::MAX, 0), u64::from(u32::MAX));
        limit("key generation", on_leg(1, GENERATION_MAX), on_leg(1, GENERATION_MAX + 1), OVER);
        let client = |generation, answered_keys| {
            let tx = RecordPosition { generation, sequence: 0 };
            Entry::Client(ClientCheckpoint { tx, answered_keys, ..ClientCheckpoint::default() })
        };
        limit("key generation", client(GENERATION_MAX, GENERATION_MAX), client(GENERATION_MAX + 1, 0), OVER);
        limit("key generation", client(0, 0), client(0, GENERATION_MAX + 1), OVER);
        let server = |generation| {
            let rx = RecordPosition { generation, sequence: 0 };
            Entry::Server(ServerCheckpoint { rx, ..ServerCheckpoint::default() })
        };
        limit("key generation", server(GENERATION_MAX), server(GENERATION_MAX + 1), OVER);
    }

    #[test]
    fn numbers_of_legs_and_exchanges_can_still_be_counted_up() {
        let most = NUMBER_MAX;
        let over = u64::from(most) + 1;
        let good = || Entry::Route(route(most, most));
        limit("exchange", good(), Entry::Route(route(most + 1, 1)), over);
        limit("leg", good(), Entry::Route(route(1, u32::MAX)), u64::from(u32::MAX));
        let stash = |leg| Entry::LegStash { exchange: 0, leg, position: 0, bytes: vec![0] };
        limit("leg", stash(most), stash(most + 1), over);
        let end = |leg| Entry::ServerEnd { exchange: 0, leg, position: 0 };
        limit("leg", end(most), end(most + 1), over);
        let generated =
            |exchange| Entry::Generated { exchange, answered: 0, bytes: Vec::new(), close: false };
        limit("exchange", generated(most), generated(most + 1), over);
        let client =
            |exchange, leg| Entry::Client(ClientCheckpoint { exchange, leg, ..ClientCheckpoint::default() });
        limit("exchange", client(most, most), client(most + 1, 0), over);
        limit("leg", client(0, 0), client(0, most + 1), over);
        let server =
            |exchange, leg| Entry::Server(ServerCheckpoint { exchange, leg, ..ServerCheckpoint::default() });
        limit("exchange", server(most, most), server(most + 1, 0), over);
        limit("leg", server(0, 0), server(0, most + 1), over);
    }

    #[test]
    fn a_state_keeps_the_limits_of_its_entries() {
        let entry = |edit: &dyn Fn(&mut ConnectionState)| {
            let mut state = ConnectionState::default();
            edit(&mut state);
            ConnectionState::decode(&state.encode().unwrap())
        };
        let far = POSITION_MAX + 1;
        let bad_run = RecordLayout {
            first: RecordPosition::default(),
            kind: RecordKind::Data,
            lengths: Vec::new(),
            digest: 0,
        };
        let edits: [&dyn Fn(&mut ConnectionState); 11] = [
            &|state| state.client.input = far,
            &|state| state.server.output = far,
            &|state| state.boundaries.push_back(bad_run.clone()),
            &|state| state.last_leg = u32::MAX,
            &|state| state.closed = Some((far, false)),
            &|state| state.server_ends = BTreeMap::from([(1, far)]),
            &|state| state.client_stash = Stash { position: far, bytes: Vec::new() },
            &|state| state.server_stash = BTreeMap::from([(u32::MAX, Stash::default())]),
            &|state| state.routes = BTreeMap::from([(4, route(5, 1))]),
            &|state| state.leg_boundaries = BTreeMap::from([(u32::MAX, Default::default())]),
            &|state| state.leg_boundaries = BTreeMap::from([(1, [bad_run.clone()].into())]),
        ];
        assert_eq!(entry(&|_| {}), Ok(ConnectionState::default()));
        for (index, edit) in edits.into_iter().enumerate() {
            assert!(matches!(entry(edit), Err(WireError::Value { .. })), "edit {index} is accepted");
        }
    }

    #[test]
    fn replay_of_entries_at_their_limits_round_trips() {
        let far = POSITION_MAX;
        let mut state = ConnectionState::default();
        let entries = [
            Entry::Client(ClientCheckpoint { input: far, ..ClientCheckpoint::default() }),
            Entry::Input(vec![0; 9]), // before the handshake's end: advances the client's position
            Entry::Route(route(NUMBER_MAX, NUMBER_MAX)),
            run(far - 2, RecordKind::Data, &[(1, 2)]),
            Entry::LegStash { exchange: 0, leg: 1, position: far - 1, bytes: vec![0] },
            Entry::LegStash { exchange: 0, leg: 1, position: far - 2, bytes: vec![0; 2] },
        ];
        for entry in &entries {
            state.apply(Entry::decode(&entry.encode().unwrap()).unwrap());
        }
        assert_eq!(ConnectionState::decode(&state.encode().unwrap()), Ok(state));
    }
}
