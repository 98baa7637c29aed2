//! The fold of a connection's entries: what a take-over starts from.

use crate::{
    Boundary, ClientCheckpoint, Entry, Established, Open, POSITION_MAX, RecordPosition, Route,
    ServerCheckpoint, Side,
};
use std::collections::{BTreeMap, VecDeque};

/// Raw input that is acknowledged but not yet passed on.
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
pub struct Mirrored {
    /// Set by the first entry.
    pub open: Option<Open>,
    /// Secret, accept time and raw client bytes of the handshake, until the client has acknowledged all of our flight.
    pub hello: Option<([u8; 32], u64, Vec<u8>)>,
    /// The handshake's result.
    pub established: Option<Established>,
    /// Requests whose responses are not checkpointed yet, by index.
    pub routes: BTreeMap<u32, Route>,
    /// Responses of our own that are not checkpointed yet, by request index.
    pub generated: BTreeMap<u32, (Vec<u8>, bool)>,
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
    pub boundaries: VecDeque<Boundary>,
    /// The connection ends at this plaintext position; by RST when the flag is set.
    pub closed: Option<(u64, bool)>,
    /// The highest number that a server leg has had: a number is used once.
    pub last_leg: u32,
}

impl Mirrored {
    /// Folds one entry in. Entries of one connection come in the order they were queued.
    pub fn apply(&mut self, entry: &Entry) {
        match entry {
            Entry::Open(open) => self.open = Some(open.clone()),
            Entry::Hello { secret, accepted_unix_s, bytes } => {
                self.hello = Some((*secret, *accepted_unix_s, bytes.clone()));
                self.advance_handshake(bytes.len());
            }
            Entry::Input(bytes) => {
                if let Some((_, _, raw)) = &mut self.hello {
                    raw.extend_from_slice(bytes);
                }
                self.advance_handshake(bytes.len());
            }
            Entry::Established(established) => self.establish(established),
            Entry::Route(route) => {
                self.last_leg = self.last_leg.max(route.leg);
                self.routes.insert(route.request, route.clone());
            }
            Entry::Client(checkpoint) => {
                self.client_stash.drop_before(checkpoint.input);
                self.client = checkpoint.clone();
            }
            Entry::Server(checkpoint) => self.checkpoint_server(checkpoint),
            Entry::Stash { side: Side::Client, position, bytes } => {
                self.client_stash.append(*position, bytes)
            }
            Entry::Stash { side: Side::Server(leg), position, bytes } => {
                self.server_stash.entry(*leg).or_default().append(*position, bytes);
            }
            Entry::Boundary(boundary) => self.boundaries.push_back(boundary.clone()),
            Entry::Generated { request, bytes, close } => {
                self.generated.insert(*request, (bytes.clone(), *close));
            }
            Entry::ServerEnd { leg, position } => {
                self.server_ends.insert(*leg, *position);
            }
            Entry::Close { plain, abort } => self.closed = Some((*plain, *abort)),
        }
    }

    /// The configuration generation that a connection must be restored under; any will do when there is none.
    pub fn generation(&self) -> Option<u64> {
        let route = self.routes.get(&self.server.request).map(|route| route.generation);
        let handshake = self.hello.as_ref().and(self.open.as_ref()).map(|open| open.generation);
        handshake.or(route)
    }

    /// Raw client input up to which we may acknowledge.
    pub fn client_frontier(&self) -> u64 {
        let handshake = self.hello.as_ref().map_or(0, |(_, _, raw)| raw.len() as u64);
        self.client.input.max(handshake).max(if self.client_stash.bytes.is_empty() {
            0
        } else {
            self.client_stash.end()
        })
    }

    /// Input of server leg `leg` up to which we may acknowledge.
    pub fn server_frontier(&self, leg: u32) -> u64 {
        let point = if self.server.leg == leg { self.server.input } else { 0 };
        self.server_stash.get(&leg).map_or(point, |stash| point.max(stash.end()))
    }

    /// Panics when a law is broken; for tests and the simulator.
    pub fn check_invariants(&self) {
        assert!(
            self.server.point_plain <= self.server.plain,
            "parser point after the checkpointed plaintext"
        );
        assert!(self.client_stash.bytes.is_empty() || self.client_stash.position >= self.client.input);
        let mut last: Option<RecordPosition> = None;
        for boundary in &self.boundaries {
            assert!(last.is_none_or(|l| l < boundary.first), "boundaries out of order");
            last = Some(boundary.first);
        }
        assert!(
            self.routes.keys().all(|request| *request >= self.server.request),
            "route kept after its response"
        );
        assert!(self.routes.len() <= 1, "two requests wait for their responses");
        assert!(
            self.generated.keys().all(|request| *request >= self.server.request),
            "answer kept after its end"
        );
        assert!(self.generated.len() <= 1, "two answers of our own wait for the client");
        assert!(self.server_stash.len() <= 1, "stashes of two server legs");
        for (leg, stash) in &self.server_stash {
            let point = if self.server.leg == *leg { self.server.input } else { 0 };
            assert!(stash.bytes.is_empty() || stash.position == point, "hole before a server stash");
        }
    }

    fn advance_handshake(&mut self, bytes: usize) {
        if self.established.is_none() {
            // Entries that say they are this far lie; the limit keeps what follows from them in range.
            self.client.input = (self.client.input + bytes as u64).min(POSITION_MAX);
            self.client_stash.drop_before(self.client.input);
        }
    }

    fn establish(&mut self, established: &Established) {
        self.client.input = established.consumed;
        self.client_stash.drop_before(self.client.input);
        if let Some((_, _, raw)) = &mut self.hello {
            raw.truncate(established.consumed as usize);
        }
        self.established = Some(established.clone());
    }

    fn checkpoint_server(&mut self, checkpoint: &ServerCheckpoint) {
        self.server = checkpoint.clone();
        let request = checkpoint.request;
        // A tunnel whose server has ended keeps its route: the other direction still needs the leg.
        self.routes.retain(|index, _| *index >= request);
        self.generated.retain(|index, _| *index >= request);
        let oldest = self.routes.values().map(|route| route.leg).min().unwrap_or(u32::MAX);
        self.server_stash.retain(|leg, _| *leg >= oldest);
        self.server_ends.retain(|leg, _| *leg >= oldest);
        if let Some(stash) = self.server_stash.get_mut(&checkpoint.leg) {
            stash.drop_before(checkpoint.input);
        }
        while self.boundaries.front().is_some_and(|b| b.end() <= checkpoint.tx) {
            self.boundaries.pop_front();
        }
        if let Some(front) = self.boundaries.front_mut() {
            front.drop_before(checkpoint.tx);
        }
        if self.established.as_ref().is_some_and(|e| checkpoint.output >= e.sent) {
            self.hello = None;
        }
    }
}

impl Boundary {
    /// Number of records.
    pub fn count(&self) -> u64 {
        self.lengths.iter().map(|(_, count)| u64::from(*count)).sum()
    }

    /// Position after the last record.
    pub fn end(&self) -> RecordPosition {
        match self.kind {
            crate::RecordKind::KeyUpdate(_) => {
                RecordPosition { generation: self.first.generation + 1, sequence: 0 }
            }
            _ => RecordPosition {
                generation: self.first.generation,
                sequence: self.first.sequence + self.count(),
            },
        }
    }

    /// Forgets the records before `position`; the digest then covers none of the rest and is not checked.
    fn drop_before(&mut self, position: RecordPosition) {
        if position.generation != self.first.generation || position.sequence <= self.first.sequence {
            return;
        }
        let mut skip = position.sequence - self.first.sequence;
        while let Some((_, count)) = self.lengths.first_mut() {
            if u64::from(*count) > skip {
                *count -= skip as u32;
                break;
            }
            skip -= u64::from(*count);
            self.lengths.remove(0);
        }
        self.first = position;
        self.digest = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecordKind;

    fn boundary(sequence: u64, lengths: &[(u16, u32)]) -> Entry {
        Entry::Boundary(Boundary {
            first: RecordPosition { generation: 0, sequence },
            kind: RecordKind::Data,
            lengths: lengths.to_vec(),
            digest: 1,
        })
    }

    #[test]
    fn a_server_checkpoint_drops_what_it_covers_and_nothing_else() {
        let mut state = Mirrored::default();
        state.apply(&boundary(1, &[(100, 1), (16384, 3)]));
        state.apply(&boundary(5, &[(7, 1)]));
        let tx = RecordPosition { generation: 0, sequence: 3 };
        state.apply(&Entry::Server(ServerCheckpoint { tx, ..Default::default() }));
        state.check_invariants();
        assert_eq!(state.boundaries[0].lengths, vec![(16384, 2)]);
        assert_eq!((state.boundaries[0].first.sequence, state.boundaries[0].digest), (3, 0));
        assert_eq!(state.boundaries[1].digest, 1);
    }

    #[test]
    fn stashes_extend_without_holes_and_shrink_with_the_checkpoint() {
        let mut state = Mirrored::default();
        let stash =
            |position, bytes: &[u8]| Entry::Stash { side: Side::Client, position, bytes: bytes.to_vec() };
        state.apply(&stash(10, b"abc"));
        state.apply(&stash(12, b"cde"));
        assert_eq!((state.client_stash.bytes.as_slice(), state.client_frontier()), (&b"abcde"[..], 15));
        state.apply(&Entry::Client(ClientCheckpoint { input: 13, ..Default::default() }));
        assert_eq!((state.client_stash.position, state.client_stash.bytes.as_slice()), (13, &b"de"[..]));
        state.check_invariants();
    }

    fn route(request: u32, leg: u32) -> Entry {
        Entry::Route(Route {
            request,
            leg,
            generation: 7,
            pool: 0,
            server: 0,
            rules: Vec::new(),
            flags: crate::RouteFlags::default(),
            head_hash: 0,
        })
    }

    #[test]
    fn a_tunnel_keeps_its_route_when_its_server_has_ended() {
        let mut state = Mirrored::default();
        state.apply(&route(0, 3));
        let phase = crate::Phase::Ended;
        state.apply(&Entry::Server(ServerCheckpoint { leg: 3, phase, ..Default::default() }));
        state.check_invariants();
        assert_eq!((state.routes.len(), state.generation(), state.last_leg), (1, Some(7), 3));
        state.apply(&Entry::Server(ServerCheckpoint { request: 1, ..Default::default() }));
        assert_eq!((state.routes.len(), state.generation(), state.last_leg), (0, None, 3));
    }

    #[test]
    fn handshake_input_replaces_its_stash() {
        let mut state = Mirrored::default();
        state.apply(&Entry::Hello { secret: [0; 32], accepted_unix_s: 0, bytes: vec![1; 10] });
        state.apply(&Entry::Stash { side: Side::Client, position: 10, bytes: vec![2; 5] });
        assert_eq!(state.client_frontier(), 15);
        state.apply(&Entry::Input(vec![2; 8]));
        state.check_invariants();
        assert_eq!((state.client_frontier(), state.client_stash.bytes.len()), (18, 0));
    }
}
