//! Replay of a connection's entries: the state from which a failover starts.

use crate::{
    BoundLeg, ClientCheckpoint, Entry, Established, Hello, Kind, LegFacts, LegTls, Open, POSITION_MAX, Phase,
    RecordLayout, RecordPosition, Route, ServerCheckpoint, Side,
};
use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};

/// Raw input that is acknowledged but not yet forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Stash {
    /// Position of the first byte.
    pub position: u64,
    /// The bytes as received.
    pub bytes: Vec<u8>,
}

impl Stash {
    /// Position after the last byte.
    pub fn end(&self) -> u64 {
        self.position + self.bytes.len() as u64
    }

    fn drop_before(&mut self, position: u64) {
        if position <= self.position {
            return;
        }
        let cut = ((position - self.position) as usize).min(self.bytes.len());
        self.bytes.drain(..cut);
        self.position = position;
    }

    fn append(&mut self, position: u64, bytes: &[u8]) {
        if self.bytes.is_empty() {
            self.position = position;
        }
        let skip = self.end().saturating_sub(position) as usize;
        if position <= self.end() && skip <= bytes.len() {
            self.bytes.extend_from_slice(&bytes[skip..]);
        }
    }
}

/// A connection as a backup knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ConnectionState {
    /// Set by the first entry.
    pub open: Option<Open>,
    /// The client's side of the handshake, until the client has acknowledged all of our flight.
    pub hello: Option<Hello>,
    /// The handshake's result.
    pub established: Option<Established>,
    /// Exchanges at servers whose responses are not checkpointed yet.
    pub routes: BTreeMap<u32, Route>,
    /// Responses of our own that are not checkpointed yet, by exchange.
    pub generated: BTreeMap<u32, (Vec<u8>, bool)>,
    /// Client input that the newest route, or response of our own, answers: see [`Route::answered`].
    pub answered: u64,
    /// Client to server.
    pub client: ClientCheckpoint,
    /// Server to client.
    pub server: ServerCheckpoint,
    /// Client input that is acknowledged but not passed on.
    pub client_stash: Stash,
    /// Server input that is acknowledged but not passed on, by leg.
    pub server_stash: BTreeMap<u32, Stash>,
    /// Input positions at which server legs ended.
    pub server_ends: BTreeMap<u32, u64>,
    /// Decided records from the server checkpoint on.
    pub boundaries: VecDeque<RecordLayout>,
    /// Decided records towards servers from the client checkpoint on, by leg.
    pub leg_boundaries: BTreeMap<u32, VecDeque<RecordLayout>>,
    /// The connection ends at this plaintext position; by RST when the flag is set.
    pub closed: Option<(u64, bool)>,
    /// The highest number that a server leg has had: a number is used once.
    pub last_leg: u32,
    /// An exchange, and the record up to which those of it may have left without entries.
    pub reserved: Option<(u32, RecordPosition)>,
    /// Inside a response: the newest record position before it that is known.
    pub response_from: Option<RecordPosition>,
    /// The idle server connection that belongs to the client's connection.
    pub bound: Option<Box<BoundLeg>>,
}

impl ConnectionState {
    /// Removes legs that are no longer needed before `newest` begins. Legs are numbered upwards: only those that a
    /// route names, the idle bound one, and the client's stay.
    pub fn forget_legs(&self, legs: &mut BTreeMap<u32, LegFacts>, newest: u32) {
        let bound = self.bound.iter().map(|bound| bound.route.leg);
        let oldest = self.routes.values().map(|route| route.leg).chain(bound).min().unwrap_or(newest);
        legs.retain(|number, _| *number == 0 || *number >= oldest);
    }

    /// Applies one entry. Entries of one connection come in the order in which they were queued.
    pub fn apply(&mut self, entry: Entry) {
        match entry {
            Entry::Open(open) => self.open = Some(open),
            Entry::Hello(hello) => {
                let taken = hello.bytes.len();
                self.hello = Some(hello);
                self.advance_handshake(taken);
            }
            Entry::Input(bytes) => {
                if let Some(hello) = &mut self.hello {
                    hello.bytes.extend_from_slice(&bytes);
                }
                self.advance_handshake(bytes.len());
            }
            Entry::Established(established) => self.establish(established),
            Entry::Route(route) => {
                self.last_leg = self.last_leg.max(route.leg);
                self.bound = None;
                self.answered = self.answered.max(route.answered);
                self.routes.insert(route.exchange, route);
                self.forget_old_legs();
            }
            Entry::Client(checkpoint) => self.checkpoint_client(checkpoint),
            Entry::Server(checkpoint) => self.checkpoint_server(checkpoint),
            Entry::Stash { position, bytes } => self.client_stash.append(position, &bytes),
            Entry::LegStash { leg, position, bytes, .. } => {
                self.server_stash.entry(leg).or_default().append(position, &bytes);
            }
            Entry::Boundary(boundary) => self.boundaries.push_back(boundary),
            Entry::Generated { exchange, answered, bytes, close } => {
                self.answered = self.answered.max(answered);
                self.generated.insert(exchange, (bytes, close));
            }
            Entry::ServerEnd { leg, position, .. } => {
                self.server_ends.insert(leg, position);
            }
            Entry::Close { plain, abort } => {
                self.closed = Some((plain, abort));
                self.bound = None;
            }
            Entry::Bound(bound) => self.bound = bound,
            Entry::LegBoundary { leg, boundary, .. } => {
                self.leg_boundaries.entry(leg).or_default().push_back(boundary);
            }
            Entry::Reserve { exchange, until } => self.reserved = Some((exchange, until)),
            Entry::Keys { side, records } => self.move_keys(side, records),
            Entry::Flight(flight) => {
                if let Some(hello) = &mut self.hello {
                    hello.flights.push(flight);
                }
            }
        }
    }

    /// Configuration generation under which the connection must be restored; any when there is none.
    pub fn generation(&self) -> Option<u64> {
        let route = self.routes.get(&self.server.exchange).map(|route| route.generation);
        let handshake = self.hello.as_ref().and(self.open.as_ref()).map(|open| open.generation);
        handshake.or(route)
    }

    /// The decision that may move to another generation with the same server, if there is one; and whether that
    /// generation must produce the same response head. The handshake is over, and the server has the request's head.
    /// The rest of the request is forwarded as it arrives, and so is a response that has begun.
    pub fn movable(&self) -> Option<(&Route, bool)> {
        let route = self.routes.get(&self.server.exchange).filter(|_| self.hello.is_none())?;
        let raw = self.open.as_ref().is_some_and(|open| open.kind != Kind::Http);
        let in_response = self.server.phase != Phase::Head;
        let of_this_leg = !in_response || self.server.leg == route.leg;
        let behind_head = match self.client.exchange.cmp(&self.server.exchange) {
            Ordering::Less => false,
            Ordering::Equal => self.client.phase != Phase::Head,
            Ordering::Greater => true,
        };
        (raw || (behind_head && of_this_leg)).then_some((route, !raw && !in_response))
    }

    /// Moves the decision to another generation, which has its server at these indexes.
    pub fn move_route(&mut self, generation: u64, pool: u32, server: u32) {
        if let Some(route) = self.routes.get_mut(&self.server.exchange) {
            (route.generation, route.pool, route.server) = (generation, pool, server);
        }
    }

    /// Raw client input up to which we may acknowledge.
    pub fn client_frontier(&self) -> u64 {
        let handshake = self.hello.as_ref().map_or(0, |hello| hello.bytes.len() as u64);
        self.client.input.max(handshake).max(if self.client_stash.bytes.is_empty() {
            0
        } else {
            self.client_stash.end()
        })
    }

    /// Input of server leg `leg` up to which we may acknowledge.
    pub fn server_frontier(&self, leg: u32) -> u64 {
        let point = self.leg_input(leg);
        self.server_stash.get(&leg).map_or(point, |stash| point.max(stash.end()))
    }

    /// Input position of server leg `leg` from which its bytes are read again, stashed ones first.
    pub fn leg_input(&self, leg: u32) -> u64 {
        if let Some(bound) = self.bound_at(leg) {
            return bound.input;
        }
        match self.server.leg == leg {
            true => self.server.input,
            false => self.leg_tls(leg).map_or(0, |tls| tls.consumed),
        }
    }

    /// Output position of server leg `leg` from which we send again: what is before it, the server has.
    pub fn leg_output(&self, leg: u32) -> u64 {
        if let Some(bound) = self.bound_at(leg) {
            return bound.output;
        }
        match self.client.leg == leg {
            true => self.client.output,
            false => self.leg_tls(leg).map_or(0, |tls| tls.sent.saturating_sub(tls.flight.len() as u64)),
        }
    }

    /// Server leg that resumes with the client's: that of the response under way, or the idle bound one.
    pub fn leg_in_use(&self) -> Option<u32> {
        let route = self.routes.get(&self.server.exchange);
        route.or(self.bound.as_ref().map(|bound| &bound.route)).map(|route| route.leg)
    }

    /// The idle bound leg, if it has this number and its response is over.
    fn bound_at(&self, leg: u32) -> Option<&BoundLeg> {
        let bound = self.bound.as_deref().filter(|bound| bound.route.leg == leg)?;
        self.routes.values().all(|route| route.leg != leg).then_some(bound)
    }

    /// TLS state of server leg `leg`, where it uses TLS and still needs it.
    pub fn leg_tls(&self, leg: u32) -> Option<&LegTls> {
        self.routes.values().find(|route| route.leg == leg)?.tls.as_deref()
    }

    /// Drops state of legs that no request needs any more.
    fn forget_old_legs(&mut self) {
        let oldest = self.routes.values().map(|route| route.leg).min().unwrap_or(u32::MAX);
        self.server_stash.retain(|leg, _| *leg >= oldest);
        self.server_ends.retain(|leg, _| *leg >= oldest);
        self.leg_boundaries.retain(|leg, _| *leg >= oldest);
    }

    /// Whether nothing is in flight: the connection waits for its client's next request.
    pub fn is_idle(&self) -> bool {
        let between = self.routes.is_empty() && self.hello.is_none() && self.closed.is_none();
        between && self.boundaries.is_empty() && self.generated.is_empty()
    }

    /// Panics when an invariant is broken; for tests and the simulator.
    pub fn check_invariants(&self) {
        assert!(
            self.server.point_plain <= self.server.plain,
            "parser point after the checkpointed plaintext"
        );
        assert!(self.client_stash.bytes.is_empty() || self.client_stash.position >= self.client.input);
        for boundaries in self.leg_boundaries.values().chain([&self.boundaries]) {
            let mut last: Option<RecordPosition> = None;
            for boundary in boundaries {
                assert!(last.is_none_or(|l| l < boundary.first), "boundaries out of order");
                last = Some(boundary.first);
            }
        }
        assert!(
            self.leg_boundaries.keys().all(|leg| self.leg_tls(*leg).is_some()),
            "records towards a server that is not needed, or without TLS"
        );
        assert!(
            self.routes.keys().all(|exchange| *exchange >= self.server.exchange),
            "route kept after its response"
        );
        assert!(self.routes.len() <= 1, "two requests wait for their responses");
        assert!(
            self.generated.keys().all(|exchange| *exchange >= self.server.exchange),
            "answer kept after its end"
        );
        assert!(self.generated.len() <= 1, "two answers of our own wait for the client");
        assert!(self.server_stash.len() <= 1, "stashes of two server legs");
        assert!(self.bound.is_none() || self.closed.is_none(), "a bound leg behind the end");
        for (leg, stash) in &self.server_stash {
            let point = self.leg_input(*leg);
            assert!(stash.bytes.is_empty() || stash.position == point, "hole before a server stash");
        }
    }

    fn advance_handshake(&mut self, bytes: usize) {
        if self.established.is_none() {
            // Entries beyond this position are invalid; the limit keeps derived positions in range.
            self.client.input = (self.client.input + bytes as u64).min(POSITION_MAX);
            self.client_stash.drop_before(self.client.input);
        }
    }

    fn establish(&mut self, established: Established) {
        self.client.input = established.consumed;
        self.client_stash.drop_before(self.client.input);
        if let Some(hello) = &mut self.hello {
            hello.bytes.truncate(established.consumed as usize);
        }
        self.established = Some(established);
    }

    fn move_keys(&mut self, side: Side, records: Vec<u8>) {
        let of_leg = |route: &&mut Route| side == Side::Server(route.leg);
        match side {
            Side::Client => self.established.iter_mut().for_each(|known| known.records.clone_from(&records)),
            Side::Server(_) => {
                let tls = self.routes.values_mut().find(of_leg).and_then(|route| route.tls.as_mut());
                tls.into_iter().for_each(|known| known.records.clone_from(&records));
            }
        }
    }

    fn checkpoint_client(&mut self, checkpoint: ClientCheckpoint) {
        self.client_stash.drop_before(checkpoint.input);
        self.client = checkpoint;
        let checkpoint = &self.client;
        let leg = checkpoint.leg;
        if let Some(boundaries) = self.leg_boundaries.get_mut(&leg) {
            forget_before(boundaries, checkpoint.tx);
            if boundaries.is_empty() {
                self.leg_boundaries.remove(&leg);
            }
        }
        let tls =
            self.routes.values_mut().find(|route| route.leg == leg).and_then(|route| route.tls.as_mut());
        if let Some(tls) = tls.filter(|tls| checkpoint.output >= tls.sent) {
            tls.flight = Vec::new();
        }
    }

    fn checkpoint_server(&mut self, checkpoint: ServerCheckpoint) {
        match (&self.server.phase, &checkpoint.phase) {
            (_, Phase::Head) => self.response_from = None,
            (Phase::Head, _) => self.response_from = Some(self.server.tx),
            _ => {}
        }
        self.reserved = self.reserved.filter(|(exchange, _)| *exchange >= checkpoint.exchange);
        self.server = checkpoint;
        let live = self.server.exchange;
        // A tunnel whose server has ended keeps its route: the other direction still needs the leg.
        self.routes.retain(|exchange, _| *exchange >= live);
        self.generated.retain(|exchange, _| *exchange >= live);
        self.forget_old_legs();
        let checkpoint = &self.server;
        if let Some(stash) = self.server_stash.get_mut(&checkpoint.leg) {
            stash.drop_before(checkpoint.input);
        }
        forget_before(&mut self.boundaries, checkpoint.tx);
        if self.established.as_ref().is_some_and(|e| checkpoint.output >= e.sent) {
            self.hello = None;
        }
    }
}

/// Forgets the records before `position`.
fn forget_before(boundaries: &mut VecDeque<RecordLayout>, position: RecordPosition) {
    while boundaries.front().is_some_and(|boundary| boundary.end() <= position) {
        boundaries.pop_front();
    }
    if let Some(front) = boundaries.front_mut() {
        front.drop_before(position);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Flight, RecordKind};

    fn boundary(sequence: u64, lengths: &[(u16, u32)]) -> Entry {
        Entry::Boundary(RecordLayout {
            first: RecordPosition { generation: 0, sequence },
            kind: RecordKind::Data,
            lengths: lengths.to_vec(),
            digest: 1,
        })
    }

    fn hello(bytes: Vec<u8>) -> Hello {
        Hello { secret: [0; 32], accepted_unix_s: 0, found: None, bytes, flights: Vec::new() }
    }

    #[test]
    fn a_server_checkpoint_drops_what_it_covers_and_nothing_else() {
        let mut state = ConnectionState::default();
        state.apply(boundary(1, &[(100, 1), (16384, 3)]));
        state.apply(boundary(5, &[(7, 1)]));
        let tx = RecordPosition { generation: 0, sequence: 3 };
        state.apply(Entry::Server(ServerCheckpoint { tx, ..Default::default() }));
        state.check_invariants();
        assert_eq!(state.boundaries[0].lengths, vec![(16384, 2)]);
        assert_eq!((state.boundaries[0].first.sequence, state.boundaries[0].digest), (3, 0));
        assert_eq!(state.boundaries[1].digest, 1);
    }

    #[test]
    fn stashes_extend_without_holes_and_shrink_with_the_checkpoint() {
        let mut state = ConnectionState::default();
        let stash = |position, bytes: &[u8]| Entry::Stash { position, bytes: bytes.to_vec() };
        state.apply(stash(10, b"abc"));
        state.apply(stash(12, b"cde"));
        state.apply(stash(16, b"g"));
        assert_eq!((state.client_stash.bytes.as_slice(), state.client_frontier()), (&b"abcde"[..], 15));
        state.apply(Entry::Client(ClientCheckpoint { input: 13, ..Default::default() }));
        assert_eq!((state.client_stash.position, state.client_stash.bytes.as_slice()), (13, &b"de"[..]));
        state.check_invariants();
    }

    fn route(exchange: u32, leg: u32) -> Entry {
        Entry::Route(Route {
            exchange,
            answered: 0,
            leg,
            generation: 7,
            pool: 0,
            server: 0,
            place: 9,
            rules: Vec::new(),
            shape: 0,
            flags: crate::RouteFlags::default(),
            offer: Vec::new(),
            looked_at: 0,
            hash: 0,
            tls: None,
        })
    }

    #[test]
    fn forwarded_request_alone_moves_to_another_generation() {
        let opened = |kind| {
            let mut state = ConnectionState::default();
            state.apply(Entry::Open(Open {
                generation: 7,
                listener: "in".to_owned(),
                kind,
                tls: false,
                proxied: None,
            }));
            state.apply(route(1, 3));
            state.server.exchange = 1;
            state
        };
        // The server's place, and whether the response head is still to be produced.
        let movable = |state: &ConnectionState| state.movable().map(|(route, made)| (route.place, made));
        assert_eq!(movable(&opened(Kind::Raw)), Some((9, false)), "a tunnel, whichever side has sent");
        let body = || Phase::Body(vec![1]);
        let http = |(asked, sent): (u32, Phase), (leg, server): (u32, Phase)| {
            let mut state = opened(Kind::Http);
            state.client = ClientCheckpoint { exchange: asked, phase: sent, ..Default::default() };
            state.server = ServerCheckpoint { exchange: 1, leg, phase: server, ..Default::default() };
            state
        };
        let answered = || (3, body());
        let (only_passed_on, head_to_make) = (Some((9, false)), Some((9, true)));
        let cases = [
            ((2, Phase::Head), answered(), only_passed_on, "only the response is left"),
            ((1, body()), answered(), only_passed_on, "inside both bodies"),
            ((1, Phase::Head), answered(), None, "the head is yet to be sent again"),
            ((0, body()), answered(), None, "of the request before"),
            ((1, body()), (3, Phase::Head), head_to_make, "inside an upload"),
            ((2, Phase::Head), (3, Phase::Head), head_to_make, "the server is busy"),
            ((2, Phase::Head), (0, body()), None, "an answer of another leg"),
            ((1, Phase::Head), (3, Phase::Head), None, "both heads"),
        ];
        for (sent, server, expected, why) in cases {
            assert_eq!(movable(&http(sent, server)), expected, "{why}");
        }
        let mut state = http((2, Phase::Head), answered());
        assert_eq!(state.generation(), Some(7));
        state.move_route(8, 4, 5);
        let moved = &state.routes[&1];
        assert_eq!((state.generation(), moved.pool, moved.server), (Some(8), 4, 5));
        state.hello = Some(hello(Vec::new()));
        assert_eq!(movable(&state), None, "the handshake may have to be made again");
    }

    #[test]
    fn tls_leg_resumes_at_the_positions_of_its_peers() {
        let tls = LegTls { records: vec![1; 69], consumed: 1200, sent: 600, flight: vec![9; 80] };
        let Entry::Route(mut route) = route(0, 3) else { unreachable!() };
        route.tls = Some(Box::new(tls));
        let mut state = ConnectionState::default();
        state.apply(Entry::Route(route));
        assert_eq!((state.leg_output(3), state.server_frontier(3)), (520, 1200));
        assert_eq!((state.leg_output(4), state.server_frontier(4)), (0, 0));
        for sequence in [0, 2] {
            let Entry::Boundary(boundary) = boundary(sequence, &[(100, 2)]) else { unreachable!() };
            state.apply(Entry::LegBoundary { exchange: 0, leg: 3, boundary });
        }
        state.check_invariants();
        let tx = RecordPosition { generation: 0, sequence: 2 };
        let point = ClientCheckpoint { leg: 3, output: 844, tx, ..ClientCheckpoint::default() };
        state.apply(Entry::Client(point));
        assert_eq!((state.leg_output(3), state.leg_boundaries[&3].len()), (844, 1));
        assert_eq!(state.leg_tls(3).map(|tls| tls.flight.len()), Some(0), "the server has the flight");
        state.apply(Entry::Server(ServerCheckpoint { exchange: 1, ..Default::default() }));
        state.check_invariants();
        assert!(state.leg_boundaries.is_empty() && state.leg_tls(3).is_none());
    }

    #[test]
    fn a_bound_leg_idles_until_another_request_or_the_end() {
        let mut state = ConnectionState::default();
        let Entry::Route(with_tls) = route(0, 3) else { unreachable!() };
        let bound = BoundLeg { route: with_tls, input: 70, output: 90, challenged: true };
        let answered = || Entry::Server(ServerCheckpoint { exchange: 1, ..Default::default() });
        state.apply(route(0, 3));
        state.apply(Entry::Bound(Some(Box::new(bound.clone()))));
        assert_eq!((state.leg_output(3), state.leg_input(3)), (0, 0), "its response is not over");
        state.apply(answered());
        state.check_invariants();
        assert!(state.is_idle() && state.generation().is_none());
        assert_eq!((state.leg_in_use(), state.leg_output(3), state.server_frontier(3)), (Some(3), 90, 70));
        let idle = state.clone();
        let facts = LegFacts {
            local: ([10, 0, 0, 1], 80).into(),
            remote: ([10, 0, 0, 2], 80).into(),
            sent: 1,
            received: 1,
            acknowledged: 1,
            mss: 1460,
            window_scales: None,
            sack: false,
            timestamp: None,
            interface: 0,
            next_hop: [0; 6],
        };
        let mut legs = BTreeMap::from([0, 3, 4].map(|leg| (leg, facts)));
        state.forget_legs(&mut legs, 4);
        assert_eq!(legs.len(), 3, "the next request is not known to use it");
        for over in [route(1, 4), Entry::Bound(None), Entry::Close { plain: 0, abort: false }] {
            let mut state = idle.clone();
            state.apply(over);
            state.check_invariants();
            assert_eq!((state.bound.is_none(), state.leg_output(3)), (true, 0));
        }
    }

    #[test]
    fn a_tunnel_keeps_its_route_when_its_server_has_ended() {
        let mut state = ConnectionState::default();
        state.apply(route(0, 3));
        let phase = crate::Phase::Ended;
        state.apply(Entry::Server(ServerCheckpoint { leg: 3, phase, ..Default::default() }));
        state.check_invariants();
        assert_eq!((state.routes.len(), state.generation(), state.last_leg), (1, Some(7), 3));
        state.apply(Entry::Server(ServerCheckpoint { exchange: 1, ..Default::default() }));
        assert_eq!((state.routes.len(), state.generation(), state.last_leg), (0, None, 3));
    }

    #[test]
    fn flights_stay_until_the_handshake_needs_no_replay() {
        let mut state = ConnectionState::default();
        let flight = |length| Flight { length, digest: 7 };
        state.apply(Entry::Flight(flight(9)));
        state.apply(Entry::Hello(hello(vec![1; 10])));
        state.apply(Entry::Flight(flight(900)));
        state.apply(Entry::Input(vec![2; 80]));
        state.apply(Entry::Flight(flight(200)));
        let established = Established { records: Vec::new(), consumed: 90, sent: 1100, facts: Vec::new() };
        state.apply(Entry::Established(established));
        let server = |output| Entry::Server(ServerCheckpoint { output, ..ServerCheckpoint::default() });
        state.apply(server(1099));
        assert_eq!(
            state.hello.as_ref().map(|hello| &hello.flights[..]),
            Some(&[flight(900), flight(200)][..])
        );
        state.apply(server(1100));
        assert_eq!(state.hello, None);
    }

    #[test]
    fn handshake_input_replaces_its_stash() {
        let mut state = ConnectionState::default();
        state.apply(Entry::Hello(hello(vec![1; 10])));
        state.apply(Entry::Stash { position: 10, bytes: vec![2; 5] });
        assert_eq!(state.client_frontier(), 15);
        state.apply(Entry::Input(vec![2; 8]));
        state.check_invariants();
        assert_eq!((state.client_frontier(), state.client_stash.bytes.len()), (18, 0));
    }

    #[test]
    fn moved_keys_replace_those_of_their_record_layer() {
        let mut state = ConnectionState::default();
        let keys = |side, fill| Entry::Keys { side, records: vec![fill] };
        state.apply(keys(Side::Client, 1));
        assert_eq!(state, ConnectionState::default(), "no record layer yet");
        let established = Established { records: vec![2], consumed: 90, sent: 1100, facts: Vec::new() };
        state.apply(Entry::Established(established));
        state.apply(keys(Side::Server(1), 3));
        assert_eq!(state.established.as_ref().map(|known| &known.records[..]), Some(&[2][..]));
        state.apply(keys(Side::Client, 4));
        assert_eq!(state.established.as_ref().map(|known| &known.records[..]), Some(&[4][..]));
    }
}
