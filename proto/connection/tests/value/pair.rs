//! A connection with a backup, its peers played by a test.

use crate::harness::rig::{TestNode, fill};
use crate::harness::setup;
use evergate_base::Micros;
use evergate_base::seed::{Seed, scoped};
use evergate_connection::{
    Connection, Effect, Effects, Io, RequestLog, RestoreError, ResumedLeg, Scratch, Snapshot, Source,
};
use evergate_replication::ConnectionState;
use std::sync::Arc;

/// A connection with a backup that acknowledges at once, and peers that a test plays.
pub(crate) struct Pair {
    pub(crate) conn: Connection,
    pub(crate) node: TestNode,
    pub(crate) scratch: Scratch,
    pub(crate) effects: Effects,
    pub(crate) now: Micros,
    pub(crate) replicated: ConnectionState,
    pub(crate) entries: u64,
    pub(crate) to_client: Vec<u8>,
    pub(crate) to_server: Vec<u8>,
    pub(crate) dialled: Option<u32>,
    pub(crate) reasons: Vec<&'static str>,
    pub(crate) logs: Vec<RequestLog>,
    /// Whether the client's socket was closed by RST.
    pub(crate) closed: Option<bool>,
    /// Legs that are given back, whether nothing is on its way on their connections, and whether these are spent.
    pub(crate) released: Vec<(u32, bool, bool)>,
}

impl Pair {
    pub(crate) fn new(config: &Arc<Snapshot>, listener: u32) -> Pair {
        let now = Micros(1_000_000);
        let mut conn = Connection::new(config, &setup::accepted(listener), now);
        conn.start_replication();
        let mut pair = Pair::around(conn, config, Scratch::new(), Effects::default());
        pair.call(|conn, io| conn.handle_accepted(io));
        pair
    }

    /// Another node recovers the connection; the leg's socket is there.
    pub(crate) fn restore(state: &ConnectionState, config: &Arc<Snapshot>) -> Pair {
        let (mut pair, leg) = restore(state, config).unwrap();
        let leg = leg.unwrap();
        pair.call(|conn, io| conn.handle_leg_open(io, leg.route.leg, leg.route.server, None));
        pair
    }

    pub(crate) fn around(
        conn: Connection,
        config: &Arc<Snapshot>,
        scratch: Scratch,
        effects: Effects,
    ) -> Pair {
        Pair {
            conn,
            node: TestNode::new(config),
            scratch,
            effects,
            now: Micros(1_000_000),
            replicated: ConnectionState::default(),
            entries: 0,
            to_client: Vec::new(),
            to_server: Vec::new(),
            dialled: None,
            reasons: Vec::new(),
            logs: Vec::new(),
            closed: None,
            released: Vec::new(),
        }
    }

    pub(crate) fn call(&mut self, step: impl FnOnce(&mut Connection, &mut Io<'_>)) {
        let Pair { conn, node, scratch, effects, now, .. } = self;
        let mut seed = Some(Seed::new([5; 32], 1_700_000_000)); // for handshakes with servers
        scoped(&mut seed, || step(conn, &mut Io { now: *now, scratch, effects, node }));
        self.perform();
    }

    pub(crate) fn perform(&mut self) {
        let before = self.entries;
        for entry in self.conn.drain_entries() {
            self.replicated.admit(entry).unwrap();
            self.entries += 1;
        }
        let more = self.entries > before;
        self.replicated.check_invariants();
        let (first, second) = self.scratch.down.ready();
        self.to_client.extend_from_slice(&[first, second].concat());
        self.scratch.down.clear();
        for piece in std::mem::take(&mut self.effects.up) {
            self.to_server.extend_from_slice(match piece.source {
                Source::Input => &self.scratch.input[piece.range],
                Source::Up => &self.scratch.up[piece.range],
            });
        }
        self.scratch.up.clear();
        self.reasons.extend(self.effects.answered.drain(..).map(|request| request.reason));
        for effect in std::mem::take(&mut self.effects.list) {
            match effect {
                Effect::Dial { leg, .. } => self.dialled = Some(leg),
                Effect::CloseClient { abort } => self.closed = Some(abort),
                Effect::Release { leg, clean, spent, .. } => self.released.push((leg, clean, spent)),
                Effect::Logged(log) => self.logs.push(*log),
                _ => {}
            }
        }
        let entries = self.entries;
        if more && self.closed.is_none() {
            self.call(|conn, io| {
                conn.on_replicated(io, entries);
                conn.handle_deferred(io);
            });
        }
    }

    pub(crate) fn open(&mut self) -> u32 {
        let leg = self.dialled.take().expect("a server is asked for");
        self.call(|conn, io| conn.handle_leg_open(io, leg, 0, None));
        leg
    }

    pub(crate) fn client_sends(&mut self, bytes: &[u8]) {
        let held = self.conn.begin_client_read(&mut self.scratch.input);
        self.scratch.input[held..held + bytes.len()].copy_from_slice(bytes);
        self.call(|conn, io| conn.handle_client_data(io, held + bytes.len()));
    }

    /// The server's bytes, as long as they are wanted.
    pub(crate) fn server_sends(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.closed.is_none() {
            let plan = self.conn.begin_server_read(&mut self.scratch);
            let count = fill(&mut self.scratch, plan, bytes);
            assert!(count > 0, "the server is not listened to: {plan:?}");
            bytes = &bytes[count..];
            self.call(|conn, io| conn.handle_server_data(io, plan, count));
        }
    }

    /// Time passes to the deadline.
    pub(crate) fn expire(&mut self) {
        self.now = self.now.max(self.conn.deadline());
        self.call(|conn, io| conn.handle_timeout(io));
    }
}

/// Another node recovers the connection, with the leg that it needs.
pub(crate) fn restore(
    state: &ConnectionState,
    config: &Arc<Snapshot>,
) -> Result<(Pair, Option<ResumedLeg>), RestoreError> {
    let now = Micros(1_000_000);
    let (mut scratch, mut effects) = (Scratch::new(), Effects::default());
    let mut node = TestNode::new(config);
    let mut io = Io { now, scratch: &mut scratch, effects: &mut effects, node: &mut node };
    let fresh = setup::accepted(setup::TLS);
    let (conn, leg) = Connection::restore(config, state, &fresh, &mut io)?;
    let mut pair = Pair::around(conn, config, scratch, effects);
    pair.replicated = state.clone();
    pair.perform();
    Ok((pair, leg))
}
