//! One connection with a backup, its peers with their TCP, and the checks.

mod acts;
mod failover;
mod leg;
mod upgrade_state;

pub(crate) use acts::reference;

use crate::harness::peer::{Peer, without_tickets};
use crate::harness::rig::TestNode;
use crate::harness::secure::make_session;
use crate::harness::setup;
use crate::scenario::{Rng, Scenario, Session};
use evergate_base::Micros;
use evergate_base::seed::{Seed, scoped};
use evergate_base::session::{KeptSession, SessionId};
use evergate_connection::{Connection, Effect, Effects, Io, Scratch, Snapshot, Source};
use evergate_replication::{ConnectionState, Entry, Route, Side};
use leg::{Dial, Idle, Leg, Pace};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Pool whose servers are all down.
const DOWN: u32 = 2;
/// What a backup may hold of an idle connection, in bytes.
const IDLE_BYTES_MAX: usize = 256;
/// What a run may take.
const STEPS_MAX: u64 = 60_000;

/// A law broken on purpose, to show that the checks see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    None,
    /// Nothing is broken, but there is no backup.
    Alone,
    /// The gate acknowledges whatever has been read.
    EarlyAck,
    /// Output does not wait for the replication log.
    EarlyOutput,
    /// A backup loses the newest record boundary that it acknowledged.
    LostBoundary,
    /// A backup loses the newest boundary of a record towards a server that it acknowledged.
    LostLegBoundary,
    /// A backup loses the routes that it acknowledged.
    LostRoute,
    /// A backup loses the bound leg that idles.
    LostBound,
    /// A backup loses which records it agreed to expect without entries.
    LostReserve,
    /// A backup loses what it knows of our side of the handshake.
    LostFlights,
}

/// How much of what is on its way arrives when the node dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Least,
    Most,
    Random,
}

/// What the applications have seen at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) client: Vec<u8>,
    pub(crate) client_end: bool,
    pub(crate) aborted: bool,
    /// What servers got, in the order of the requests; and whether they saw the end.
    pub(crate) servers: Vec<(Vec<u8>, bool)>,
}

struct Client {
    peer: Peer,
    next: usize,
    sent: Vec<u8>,
    fin: bool,
    reset: bool,
    /// Acknowledged by our gate: forgotten.
    acked: u64,
    pace: Pace,
    /// Read by the present node.
    read: u64,
    end_reported: bool,
}

pub(crate) struct World<'a> {
    scenario: &'a Scenario,
    marks: Option<&'a [usize]>,
    pub(crate) rng: Rng,
    pub(crate) step: u64,
    mutation: Mutation,
    mirrors: bool,
    /// Segments, room and schedule vary; else everything moves as far as it can.
    varies: bool,
    node: TestNode,
    scratch: &'a mut Scratch,
    effects: Effects,
    conn: Connection,
    replicated: ConnectionState,
    pending: VecDeque<Vec<u8>>,
    queued: u64,
    applied: u64,
    acked: u64,
    client: Client,
    /// Everything ever written to the client, by position.
    wire: Vec<u8>,
    written: u64,
    delivered: u64,
    reported: u64,
    fin_waits: bool,
    fin_at: Option<u64>,
    fin_seen: bool,
    closed: Option<bool>,
    legs: BTreeMap<u32, Leg>,
    dials: Vec<Dial>,
    idle: Vec<Idle>,
    resumed: Option<u32>,
    /// The bound leg that idles.
    retained: Option<u32>,
    /// The client does nothing more, ever.
    silent: bool,
    /// A server has broken off once.
    flaked: bool,
    /// The session that the client names.
    named: Option<KeptSession>,
    /// Sessions that were to be kept, and to be withdrawn.
    pub(crate) kept: Vec<SessionId>,
    pub(crate) withdrawn: Vec<SessionId>,
    /// Envelopes for the Recorder, and the number of failovers before each.
    pub(crate) fed: Vec<(u32, Vec<u8>)>,
    /// When the node died, the backup had the envelope of an audited connection.
    pub(crate) envelope_was_replicated: bool,
    /// When the node died, the backup had the hello, and so many of our flights.
    pub(crate) hello_was_replicated: bool,
    pub(crate) flights_were_replicated: usize,
    /// The configuration of every other node, where it differs.
    other: Option<Arc<Snapshot>>,
    /// Why the present node answered, or ended the connection.
    pub(crate) reasons: Vec<&'static str>,
    now: Micros,
    pub(crate) crashes: u32,
}

impl<'a> World<'a> {
    pub(crate) fn new(
        scenario: &'a Scenario,
        config: &Arc<Snapshot>,
        marks: Option<&'a [usize]>,
        seed: u64,
        mutation: Mutation,
        scratch: &'a mut Scratch,
    ) -> World<'a> {
        let by_id = without_tickets();
        let named = scenario.session.is_named().then(|| make_session(&by_id, seed));
        let (peer, hello) = match scenario.wire.version() {
            None => (Peer::plain(), Vec::new()),
            Some(_) if scenario.session != Session::Ticket => Peer::ours_with(&by_id, seed),
            Some(version) => Peer::ours(version, seed),
        };
        let now = Micros(1_000_000);
        let mut world = World {
            scenario,
            marks,
            rng: Rng::new(seed),
            step: 0,
            mutation,
            mirrors: marks.is_some() && mutation != Mutation::Alone,
            varies: marks.is_some(),
            node: TestNode::new(config),
            scratch,
            effects: Effects::default(),
            conn: Connection::new(config, &setup::accepted(scenario.listener()), now),
            replicated: ConnectionState::default(),
            pending: VecDeque::new(),
            queued: 0,
            applied: 0,
            acked: 0,
            client: Client {
                peer,
                next: 0,
                sent: hello,
                fin: false,
                reset: false,
                acked: 0,
                pace: Pace::default(),
                read: 0,
                end_reported: false,
            },
            wire: Vec::new(),
            written: 0,
            delivered: 0,
            reported: 0,
            fin_waits: false,
            fin_at: None,
            fin_seen: false,
            closed: None,
            legs: BTreeMap::new(),
            dials: Vec::new(),
            idle: Vec::new(),
            resumed: None,
            retained: None,
            silent: false,
            flaked: false,
            named,
            kept: Vec::new(),
            withdrawn: Vec::new(),
            fed: Vec::new(),
            envelope_was_replicated: false,
            hello_was_replicated: false,
            flights_were_replicated: 0,
            other: None,
            reasons: Vec::new(),
            now,
            crashes: 0,
        };
        if scenario.session == Session::Known {
            world.change_sessions();
        }
        if world.mirrors {
            world.conn.start_replication();
        }
        world.call(|conn, io| conn.handle_accepted(io));
        world
    }

    /// The node keeps the session that the client names if it did not, and else forgets it.
    fn change_sessions(&mut self) {
        let Some(KeptSession { id, sealed, .. }) = &self.named else { return };
        if self.node.sessions.remove(id).is_none() {
            self.node.sessions.insert(*id, sealed.clone());
        }
    }

    /// Every other node has this configuration, of the same generation.
    pub(crate) fn differ(&mut self, other: &Arc<Snapshot>) {
        self.other = Some(other.clone());
    }

    /// Before anything is sent: another client.
    pub(crate) fn replace_client(&mut self, config: &Arc<rustls::ClientConfig>, seed: u64) {
        (self.client.peer, self.client.sent) = Peer::ours_with(config, seed);
    }

    /// The alert that the client got.
    pub(crate) fn alert(&mut self) -> Option<u8> {
        self.client.peer.as_ours().alert
    }

    /// Whether the present connection resumed a session.
    pub(crate) fn is_resumed(&self) -> Option<bool> {
        self.conn.session_resumed()
    }

    fn call(&mut self, step: impl FnOnce(&mut Connection, &mut Io<'_>)) {
        let mut io =
            Io { now: self.now, scratch: self.scratch, effects: &mut self.effects, node: &mut self.node };
        // What handshakes with servers draw differs from node to node, and is the same in every run.
        let mut key = [self.crashes as u8; 32];
        key[..8].copy_from_slice(&self.step.to_le_bytes());
        let mut seed = Some(Seed::new(key, 1_700_000_000));
        scoped(&mut seed, || step(&mut self.conn, &mut io));
        self.perform();
    }

    /// What the worker does after each call.
    fn perform(&mut self) {
        for entry in self.conn.drain_entries().collect::<Vec<_>>() {
            let bytes = entry.encode().unwrap();
            assert_eq!(Entry::decode(&bytes).unwrap(), entry);
            self.pending.push_back(bytes);
            self.queued += 1;
        }
        let after = if self.mutation == Mutation::EarlyOutput { 0 } else { self.conn.newest_decision() };
        let free = after <= self.conn.acknowledged();
        let (first, second) = self.scratch.down.ready();
        let bytes = [first, second].concat();
        self.scratch.down.clear();
        let taken = match free && self.conn.down().is_empty() && !bytes.is_empty() {
            true => self.room(bytes.len()),
            false => 0,
        };
        self.write_client(&bytes[..taken]);
        if taken < bytes.len() {
            self.conn.down().push(bytes[taken..].to_vec(), after);
            self.conn.handle_blocked(self.now);
        }
        let pieces = std::mem::take(&mut self.effects.up);
        let mut up = Vec::new();
        for piece in pieces {
            up.extend_from_slice(match piece.source {
                Source::Input => &self.scratch.input[piece.range],
                Source::Up => &self.scratch.up[piece.range],
            });
        }
        self.scratch.up.clear();
        let taken = if free && self.conn.up().is_empty() && !up.is_empty() { self.room(up.len()) } else { 0 };
        self.write_server(&up[..taken]);
        if taken < up.len() {
            self.conn.up().push(up[taken..].to_vec(), after);
            self.conn.handle_blocked(self.now);
        }
        self.reasons.extend(self.effects.answered.drain(..).map(|request| request.reason));
        for effect in std::mem::take(&mut self.effects.list) {
            self.carry_out(effect);
        }
        self.send_fins();
        self.check();
    }

    fn room(&mut self, wanted: usize) -> usize {
        if self.varies && self.rng.chance(25) { self.rng.below(wanted) } else { wanted }
    }

    fn write_client(&mut self, bytes: &[u8]) {
        put("the client", &mut self.wire, &mut self.written, self.fin_at, bytes);
    }

    fn write_server(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let held = self.legs.iter_mut().rev().find(|(_, leg)| leg.held);
        let (id, leg) = held.expect("bytes without a server");
        assert!(leg.open && !leg.released, "bytes for a leg that is not ours");
        put(&format!("server leg {id}"), &mut leg.wire, &mut leg.written, leg.fin_at, bytes);
    }

    fn carry_out(&mut self, effect: Effect) {
        if std::env::var_os("TRACE").is_some() {
            eprintln!("{}: effect {effect:?}", self.step);
        }
        match effect {
            Effect::Dial { leg, pool, hint, tried, reuse, bound } => {
                assert!(!self.legs.contains_key(&leg) || self.mirrors, "a leg's number is used twice");
                let (first, bound) = (tried.is_empty(), bound.is_some());
                self.dials.push(Dial { leg, pool, hint, first, reuse, bound });
            }
            Effect::Retain { leg: id } => {
                assert_eq!(self.retained.replace(id), None, "two legs idle");
                let leg = self.legs.get_mut(&id).expect("a leg that idles");
                assert!(!leg.app.fin && !leg.app.reset);
                (leg.held, leg.released, leg.retained) = (false, true, true);
            }
            Effect::Release { leg: id, clean, spent, records, over } => {
                self.dials.retain(|dial| dial.leg != id);
                self.retained = self.retained.filter(|retained| *retained != id);
                let clean = clean && !spent;
                if let Some(leg) = self.legs.get_mut(&id) {
                    assert!(leg.tls.is_some() || records.is_none());
                    match records {
                        None => assert!(!clean || leg.tls.is_none()),
                        Some(records) if clean => {
                            assert!(leg.delivered == leg.written && leg.read == leg.sent.len() as u64);
                            let tls = leg.tls.as_mut().map(|tls| tls.detach()).unwrap();
                            self.idle.push(Idle { server: leg.server, records, tls });
                        }
                        Some(_) if over => {} // only if the backups know
                        Some(records) => leg.close_tls(id, *records),
                    }
                    leg.released = true;
                    leg.held = false;
                    leg.fin_waits = false;
                    leg.fin_seen = true; // its socket is closed, one way or another
                }
            }
            Effect::ShutdownServer { leg } => {
                self.legs.get_mut(&leg).expect("FIN without a server").fin_waits = true
            }
            Effect::ShutdownClient => self.fin_waits = true,
            Effect::CloseClient { abort } => {
                assert!(abort || self.conn.down().is_empty(), "closed with bytes waiting");
                assert!(
                    abort || !self.mirrors || self.delivered == self.written,
                    "closed with bytes on their way"
                );
                self.closed = Some(abort);
            }
            Effect::Acknowledge { side, position } => self.acknowledge(side, position),
            Effect::KeepSession(session) => self.kept.push(session.id),
            Effect::WithdrawSession(id) => self.withdrawn.push(id),
            Effect::SessionObserved { .. } => {}
            Effect::Sealed => {
                let sealed = self.conn.sealed_secrets().expect("an envelope").envelope.clone();
                self.fed.push((self.crashes, sealed));
            }
            Effect::Matched(_)
            | Effect::Logged(_)
            | Effect::ResetServer { .. }
            | Effect::ServerFailed { .. } => {}
        }
    }

    /// Our gate lets an ACK pass: the peer forgets. The backup must be able to do without.
    fn acknowledge(&mut self, side: Side, position: u64) {
        match side {
            Side::Client => {
                let position = if self.mutation == Mutation::EarlyAck { self.client.read } else { position };
                assert!(position <= self.client.read, "ACK of what the client has not sent");
                self.client.acked = self.client.acked.max(position);
                if self.mutation == Mutation::None {
                    let frontier = self.replicated.client_frontier();
                    assert!(
                        frontier >= position,
                        "ACK {position} to the client, but the backup needs {frontier} on"
                    );
                }
            }
            Side::Server(id) => {
                let leg = self.legs.get_mut(&id).expect("ACK to an unknown leg");
                let all = leg.tls.is_some() && position == u64::MAX;
                let position = if all { leg.sent.len() as u64 } else { position };
                assert!(position <= leg.read, "ACK of what the server has not sent");
                leg.acked = leg.acked.max(position);
                let server = &self.replicated.server;
                let over = self.replicated.closed.is_some_and(|(end, _)| server.plain >= end);
                let answered = |request| self.replicated.generated.contains_key(&request); // by ourselves
                let needs = |route: &Route| route.leg == id && !answered(route.exchange);
                let needed = !over && self.replicated.routes.values().any(needs);
                if needed && self.mutation == Mutation::None {
                    let frontier = self.replicated.server_frontier(id);
                    assert!(
                        frontier >= position,
                        "ACK {position} to leg {id}, but the backup needs {frontier} on"
                    );
                }
            }
        }
    }

    fn send_fins(&mut self) {
        if self.fin_waits && self.conn.down().is_empty() {
            self.fin_waits = false;
            assert!(
                self.fin_at.is_none_or(|at| at == self.written),
                "two FINs at different places to the client"
            );
            assert_eq!(self.written as usize, self.wire.len(), "FIN before bytes that were sent already");
            self.fin_at = Some(self.written);
        }
        if self.conn.up().is_empty() {
            for (id, leg) in self.legs.iter_mut().filter(|(_, leg)| leg.fin_waits) {
                leg.fin_waits = false;
                assert!(
                    leg.fin_at.is_none_or(|at| at == leg.written),
                    "two FINs at different places to leg {id}"
                );
                leg.fin_at = Some(leg.written);
            }
        }
    }

    fn check(&mut self) {
        assert!(
            self.conn.down().len() < 600_000 && self.conn.up().len() < 300_000,
            "an outlet without bound"
        );
        let held = self.replicated.client_stash.bytes.len()
            + self.replicated.server_stash.values().map(|stash| stash.bytes.len()).sum::<usize>();
        assert!(held <= 2 * self.scenario.window + 80_000, "{held} bytes stashed");
        let decided = self.replicated.leg_boundaries.values().map(|boundaries| boundaries.len());
        assert!(decided.sum::<usize>() < 4000, "a replica without bound");
        assert!(self.replicated.boundaries.len() < 4000 && self.queued < 100_000, "a replica without bound");
        let state = &self.replicated;
        let idle =
            state.routes.is_empty() && state.boundaries.is_empty() && state.hello.is_none() && held == 0;
        if idle && state.generated.is_empty() {
            let bytes = state.encode().unwrap().len();
            let sealed = self.conn.sealed_secrets().map_or(0, |sealed| sealed.envelope.len() + 40);
            let most = sealed + if state.bound.is_some() { 2 * IDLE_BYTES_MAX } else { IDLE_BYTES_MAX };
            assert!(bytes <= most, "{bytes} bytes for an idle connection");
        }
    }

    /// Hands the oldest entries that are on their way to the backup.
    fn apply(&mut self, count: usize) {
        for _ in 0..count {
            let Some(bytes) = self.pending.pop_front() else { return };
            let entry = Entry::decode(&bytes).unwrap();
            if std::env::var_os("TRACE").is_some() {
                eprintln!("{}: {entry:?}", self.step);
            }
            self.replicated.admit(entry).unwrap();
            self.replicated.check_invariants();
            self.applied += 1;
        }
    }

    pub(crate) fn outcome(&self) -> Outcome {
        let servers = self.legs.values().filter(|leg| !leg.received().is_empty());
        // Which server answers is each node's own decision: its cookie names one of three.
        let mut client = self.client.peer.received().to_vec();
        for at in 0..client.len().saturating_sub(6) {
            if &client[at..at + 5] == b"EG=c-" {
                client[at + 5] = b'?';
            }
        }
        let closed = match &self.client.peer {
            Peer::Ours(ours) => ours.closed,
            _ => true,
        };
        Outcome {
            client,
            client_end: self.fin_seen && closed,
            aborted: self.closed == Some(true),
            servers: servers.map(|leg| (leg.received().to_vec(), leg.fin_seen)).collect(),
        }
    }

    /// The client is through with its script.
    pub(crate) fn is_through(&self) -> bool {
        self.client.next == self.scenario.steps.len()
    }

    pub(crate) fn received(&self) -> usize {
        self.client.peer.received().len()
    }

    pub(crate) fn describe(&self) -> String {
        format!(
            "step {} closed {:?} timer {:?} leg {:?} in {}/{} (acked {}) out {}/{} script {}/{} replicated {:?}",
            self.step,
            self.closed,
            self.conn.timer(),
            self.conn.leg_id(),
            self.client.read,
            self.client.sent.len(),
            self.client.acked,
            self.delivered,
            self.written,
            self.client.next,
            self.scenario.steps.len(),
            self.replicated
        )
    }
}

/// Writes at an absolute position: what was written there before must be the same.
fn put(to: &str, wire: &mut Vec<u8>, written: &mut u64, fin_at: Option<u64>, bytes: &[u8]) {
    let at = *written as usize;
    *written += bytes.len() as u64;
    assert!(
        bytes.is_empty() || fin_at.is_none_or(|fin| *written <= fin),
        "bytes at {at} after the FIN to {to}"
    );
    let again = bytes.len().min(wire.len() - at);
    if bytes[..again] != wire[at..at + again] {
        let differs = bytes.iter().zip(&wire[at..]).position(|(a, b)| a != b).unwrap_or(0);
        panic!("another byte at position {} to {to}", at + differs);
    }
    wire.extend_from_slice(&bytes[again..]);
}
