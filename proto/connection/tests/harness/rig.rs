//! The mini worker: sockets that are byte vectors, and one connection between them.

use super::peer::Peer;
use super::setup;
use evergate_base::Micros;
use evergate_base::session::{Sealed, SessionId};
use evergate_connection::{
    Birth, Connection, ConnectionHost, Effect, Effects, Failure, Io, LoggedHeaders, Piece, ReadPlan,
    RequestLog, Scratch, ServerHint, Slots, Snapshot, Source,
};
use evergate_rules::RuleId;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

pub(crate) struct TestNode {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) draining: bool,
    pub(crate) refuses: bool,
    pub(crate) crowded: bool,
    /// The one rate limit that is used up.
    pub(crate) refused_by: Option<RuleId>,
    /// What was taken of rate limits, and not given back.
    pub(crate) taken: i32,
    /// Sessions that it keeps.
    pub(crate) sessions: BTreeMap<SessionId, Sealed>,
    /// Headers that the log wants.
    pub(crate) logged: LoggedHeaders,
    /// Connections that were sealed.
    pub(crate) sealed: u64,
}

impl TestNode {
    pub(crate) fn new(snapshot: &Arc<Snapshot>) -> TestNode {
        TestNode {
            snapshot: snapshot.clone(),
            draining: false,
            crowded: false,
            refuses: false,
            refused_by: None,
            taken: 0,
            sessions: BTreeMap::new(),
            logged: LoggedHeaders::default(),
            sealed: 0,
        }
    }
}

impl ConnectionHost for TestNode {
    fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }
    fn is_draining(&self) -> bool {
        self.draining
    }
    fn is_crowded(&self) -> bool {
        self.crowded
    }
    fn allow(&mut self, _: &Snapshot, rule: RuleId, _: IpAddr, _: &[u8]) -> bool {
        let passes = !self.refuses && self.refused_by != Some(rule);
        self.taken += i32::from(passes);
        passes
    }
    fn give_back(&mut self, _: &Snapshot, _: RuleId, _: IpAddr, _: &[u8]) {
        self.taken -= 1;
    }
    fn session(&mut self, id: &SessionId) -> Option<Sealed> {
        self.sessions.get(id).cloned()
    }
    /// An envelope that shows its number, the client's random and the kinds of its secrets.
    fn seal(&mut self, birth: &Birth<'_>) -> Option<Vec<u8>> {
        self.sealed += 1;
        let kinds = birth.secrets.secrets.iter().map(|captured| captured.kind as u8).collect::<Vec<_>>();
        let number = self.sealed.to_be_bytes();
        Some([&number[..], &birth.secrets.client_random, &birth.secrets.server_random, &kinds].concat())
    }
    fn wants_logs(&self) -> bool {
        true
    }
    fn logged_headers(&self) -> LoggedHeaders {
        self.logged
    }
}

/// A server's socket.
#[derive(Debug, Default)]
pub(crate) struct Leg {
    pub(crate) pool: u32,
    pub(crate) server: u32,
    pub(crate) to_server: Vec<u8>,
    pub(crate) fin: bool,
    /// It is to end with RST.
    pub(crate) reset: bool,
    /// `Some(clean)` when the connection gave it back, and whether no other may use it.
    pub(crate) released: Option<bool>,
    pub(crate) spent: bool,
    /// The leg that idled on the same connection before.
    pub(crate) before: Option<u32>,
    from_server: Vec<u8>,
    read: usize,
    end: Option<bool>,
}

/// A dial that a test answers by itself.
#[derive(Debug)]
pub(crate) struct Dial {
    pub(crate) leg: u32,
    pub(crate) pool: u32,
    pub(crate) hint: ServerHint,
    pub(crate) tried: Vec<u32>,
    pub(crate) reuse: bool,
    /// The idle bound leg's server.
    pub(crate) bound: Option<u32>,
}

pub(crate) struct Rig {
    pub(crate) conn: Connection,
    pub(crate) node: TestNode,
    pub(crate) now: Micros,
    scratch: Scratch,
    effects: Effects,
    pub(crate) peer: Peer,
    /// Everything that reached the client's socket, and how much of it the client has read.
    pub(crate) to_client: Vec<u8>,
    delivered: usize,
    from_client: Vec<u8>,
    client_read: usize,
    client_end: bool,
    /// Whether the client reads what reaches it.
    pub(crate) client_reads: bool,
    pub(crate) client_fin: bool,
    client_fin_waits: bool,
    server_fin_waits: Option<u32>,
    /// `Some(abort)` when the client's socket was closed.
    pub(crate) closed: Option<bool>,
    pub(crate) legs: BTreeMap<u32, Leg>,
    /// The leg whose socket is in use.
    current: Option<u32>,
    /// The leg that idles for this client.
    pub(crate) retained: Option<u32>,
    pub(crate) dials: VecDeque<Dial>,
    /// Open legs as soon as they are asked for.
    pub(crate) opens: bool,
    /// Bytes at the end of what the client sent that have not come yet.
    held_back: usize,
    /// Most bytes of one read.
    pub(crate) segment: usize,
    /// Bytes that each socket still takes.
    pub(crate) client_room: usize,
    pub(crate) server_room: usize,
    pub(crate) logs: Vec<RequestLog>,
    pub(crate) matched: Vec<RuleId>,
    /// Legs that were reported as failures of their servers.
    pub(crate) failed: Vec<u32>,
    /// Reasons of what was answered, for the counters.
    pub(crate) reasons: Vec<&'static str>,
}

impl Rig {
    pub(crate) fn new(snapshot: &Arc<Snapshot>, listener: u32, peer: Peer) -> Rig {
        Rig::start(snapshot, listener, peer, true, usize::MAX)
    }

    /// A rig whose dials the test answers.
    pub(crate) fn new_closed(snapshot: &Arc<Snapshot>, listener: u32, peer: Peer) -> Rig {
        Rig::start(snapshot, listener, peer, false, usize::MAX)
    }

    /// A rig whose reads are of `segment` bytes from the first on.
    pub(crate) fn new_wired(snapshot: &Arc<Snapshot>, listener: u32, peer: Peer, segment: usize) -> Rig {
        Rig::start(snapshot, listener, peer, true, segment)
    }

    fn start(snapshot: &Arc<Snapshot>, listener: u32, peer: Peer, opens: bool, segment: usize) -> Rig {
        let now = Micros(1_000_000);
        let mut rig = Rig {
            conn: Connection::new(snapshot, &setup::accepted(listener), now),
            node: TestNode::new(snapshot),
            now,
            scratch: Scratch::new(),
            effects: Effects::default(),
            peer,
            to_client: Vec::new(),
            delivered: 0,
            from_client: Vec::new(),
            client_read: 0,
            client_end: false,
            client_reads: true,
            client_fin: false,
            client_fin_waits: false,
            server_fin_waits: None,
            closed: None,
            legs: BTreeMap::new(),
            current: None,
            retained: None,
            dials: VecDeque::new(),
            opens,
            segment,
            held_back: 0,
            client_room: usize::MAX,
            server_room: usize::MAX,
            logs: Vec::new(),
            matched: Vec::new(),
            failed: Vec::new(),
            reasons: Vec::new(),
        };
        rig.call(|conn, io| conn.handle_accepted(io));
        let first = rig.peer.receive(b"");
        let first = match &mut rig.peer {
            Peer::Rustls(conn, _) => super::peer::drain(conn).into_iter().chain(first).collect(),
            _ => first,
        };
        rig.wire(&first);
        rig.run();
        rig
    }

    /// Calls the connection and performs what it answers.
    pub(crate) fn call(&mut self, step: impl FnOnce(&mut Connection, &mut Io<'_>)) {
        let mut io = Io {
            now: self.now,
            scratch: &mut self.scratch,
            effects: &mut self.effects,
            node: &mut self.node,
        };
        step(&mut self.conn, &mut io);
        self.perform();
    }

    fn perform(&mut self) {
        let (first, second) = self.scratch.down.ready();
        let bytes = [first, second].concat();
        self.scratch.down.clear();
        let taken = if self.conn.down().is_empty() { bytes.len().min(self.client_room) } else { 0 };
        self.write_client(&bytes[..taken]);
        if taken < bytes.len() {
            self.conn.down().push(bytes[taken..].to_vec(), 0);
            self.conn.handle_blocked(self.now);
        }
        let pieces: Vec<Piece> = std::mem::take(&mut self.effects.up);
        for Piece { source, range } in pieces {
            let bytes = match source {
                Source::Input => self.scratch.input[range].to_vec(),
                Source::Up => self.scratch.up[range].to_vec(),
            };
            let taken = if self.conn.up().is_empty() { bytes.len().min(self.server_room) } else { 0 };
            self.write_server(&bytes[..taken]);
            if taken < bytes.len() {
                self.conn.up().push(bytes[taken..].to_vec(), 0);
                self.conn.handle_blocked(self.now);
            }
        }
        self.scratch.up.clear();
        self.reasons.extend(self.effects.answered.drain(..).map(|request| request.reason));
        let effects: Vec<Effect> = std::mem::take(&mut self.effects.list);
        for effect in effects {
            self.carry_out(effect);
        }
        // FINs leave once the bytes before them have.
        if self.client_fin_waits && self.conn.down().is_empty() {
            self.client_fin_waits = false;
            self.client_fin = true;
        }
        if self.conn.up().is_empty()
            && let Some(leg) = self.server_fin_waits.take().and_then(|leg| self.legs.get_mut(&leg))
        {
            leg.fin = true;
        }
    }

    fn write_client(&mut self, bytes: &[u8]) {
        assert!(bytes.is_empty() || (!self.client_fin && self.closed.is_none()), "bytes after the end");
        self.client_room -= bytes.len();
        self.to_client.extend_from_slice(bytes);
    }

    fn write_server(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.server_room -= bytes.len();
        let id = self.current.expect("server-bound bytes without an open leg");
        let leg = self.legs.get_mut(&id).expect("an open leg");
        assert!(!leg.fin && leg.released.is_none(), "bytes after the end of leg {id}");
        leg.to_server.extend_from_slice(bytes);
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Dial { leg, pool, hint, tried, reuse, bound } => {
                self.dials.push_back(Dial { leg, pool, hint, tried, reuse, bound });
                if self.opens {
                    self.open_next();
                }
            }
            Effect::Retain { leg } => {
                assert_eq!((self.current.take(), self.retained.replace(leg)), (Some(leg), None));
            }
            Effect::Release { leg, clean, spent, .. } => {
                self.dials.retain(|dial| dial.leg != leg);
                self.retained = self.retained.filter(|retained| *retained != leg);
                self.current = self.current.filter(|current| *current != leg);
                if let Some(leg) = self.legs.get_mut(&leg) {
                    assert_eq!(leg.released, None);
                    (leg.released, leg.spent) = (Some(clean), spent);
                }
            }
            Effect::ResetServer { leg } => {
                let leg = self.legs.get_mut(&leg).expect("RST to an unknown leg");
                assert_eq!(leg.released, None);
                leg.reset = true;
            }
            Effect::ShutdownServer { leg } => {
                assert!(self.legs.contains_key(&leg), "FIN to an unknown leg");
                self.server_fin_waits = Some(leg);
            }
            Effect::ShutdownClient => {
                assert!(!self.client_fin && !self.client_fin_waits, "two FINs");
                self.client_fin_waits = true;
            }
            Effect::CloseClient { abort } => {
                assert!(abort || self.conn.down().is_empty(), "closed with bytes waiting");
                self.closed = Some(abort);
            }
            Effect::KeepSession(kept) => drop(self.node.sessions.insert(kept.id, kept.sealed)),
            Effect::WithdrawSession(id) => drop(self.node.sessions.remove(&id)),
            Effect::SessionObserved { .. } => {}
            Effect::Sealed => {}
            Effect::Matched(rules) => self.matched.extend(rules),
            Effect::Logged(log) => self.logs.push(*log),
            Effect::ServerFailed { leg } => self.failed.push(leg),
            Effect::Acknowledge { .. } => panic!("no backups, no acknowledgements"),
        }
    }

    /// Answers the oldest dial as the pool's policy would.
    pub(crate) fn open_next(&mut self) {
        self.open_dial(true);
    }

    /// The same with an idle connection.
    pub(crate) fn open_idle(&mut self) {
        self.open_dial(false);
    }

    fn open_dial(&mut self, connects: bool) {
        let Some(dial) = self.dials.pop_front() else { panic!("nothing was dialled") };
        if let Some(server) = dial.bound {
            let Some(before) = self.retained.take() else {
                return self.call(|conn, io| conn.handle_bound_lost(io));
            };
            assert_eq!(self.legs[&before].server, server);
            let leg = Leg { pool: dial.pool, server, before: Some(before), ..Leg::default() };
            self.legs.insert(dial.leg, leg);
            self.current = Some(dial.leg);
            return self.call(|conn, io| conn.handle_leg_open(io, dial.leg, server, None));
        }
        let server = match dial.hint {
            ServerHint::Server(server) if !dial.tried.contains(&server) => server,
            _ => (0..).find(|server| !dial.tried.contains(server)).unwrap(),
        };
        self.legs.insert(dial.leg, Leg { pool: dial.pool, server, ..Leg::default() });
        assert_eq!(self.current, None, "two legs at a time");
        self.current = Some(dial.leg);
        if connects {
            self.conn.handle_leg_connecting(self.now, dial.leg, server);
        }
        self.call(|conn, io| conn.handle_leg_open(io, dial.leg, server, None));
    }

    pub(crate) fn refuse_next(&mut self, failure: Failure) {
        let Some(dial) = self.dials.pop_front() else { panic!("nothing was dialled") };
        self.call(|conn, io| conn.handle_leg_failed(io, dial.leg, failure));
    }

    /// The server ends the connection of the leg that idles.
    pub(crate) fn end_retained(&mut self) {
        assert!(self.retained.is_some());
        self.call(|conn, io| conn.handle_bound_lost(io));
        self.run();
    }

    /// Bytes on the client's wire.
    pub(crate) fn wire(&mut self, bytes: &[u8]) {
        self.from_client.extend_from_slice(bytes);
    }

    /// The last `bytes` bytes of what the client sends are late.
    pub(crate) fn hold_back(&mut self, bytes: usize) {
        self.held_back = bytes;
    }

    /// The client's application sends; everything runs until nothing moves.
    pub(crate) fn send(&mut self, data: &[u8]) {
        let bytes = self.peer.send(data);
        self.wire(&bytes);
        self.run();
    }

    /// The client ends its stream: close_notify where there is TLS, then FIN.
    pub(crate) fn end_client(&mut self) {
        let bytes = self.peer.close();
        self.wire(&bytes);
        self.client_end = true;
        self.run();
    }

    /// The client's FIN without a word.
    pub(crate) fn cut_client(&mut self) {
        self.client_end = true;
        self.run();
    }

    pub(crate) fn serve(&mut self, leg: u32, data: &[u8]) {
        self.legs.get_mut(&leg).expect("no such leg").from_server.extend_from_slice(data);
        self.run();
    }

    pub(crate) fn end_server(&mut self, leg: u32) {
        self.legs.get_mut(&leg).expect("no such leg").end = Some(false);
        self.run();
    }

    pub(crate) fn reset_server(&mut self, leg: u32) {
        self.legs.get_mut(&leg).expect("no such leg").end = Some(true);
        self.run();
    }

    /// Lets time pass: fires the timer as often as it is due.
    pub(crate) fn wait(&mut self, ms: u64) {
        let until = self.now + Micros::from_ms(ms);
        for _ in 0..1000 {
            if self.closed.is_some() || self.conn.deadline() > until {
                self.now = until;
                return self.run();
            }
            self.now = self.now.max(self.conn.deadline());
            self.call(|conn, io| conn.handle_timeout(io));
            self.run();
        }
        panic!("the timer never rests: {:?}", self.conn.timer());
    }

    /// Everything that can move moves.
    pub(crate) fn run(&mut self) {
        for _ in 0..2_000_000 {
            let moved = self.flush() | self.read_client() | self.read_server() | self.deliver();
            if self.closed.is_some() {
                self.deliver();
                assert!(self.conn.is_closed());
                return;
            }
            if !moved && self.conn.deadline() <= self.now {
                self.call(|conn, io| conn.handle_timeout(io));
            } else if !moved {
                return self.check();
            }
        }
        panic!("it never comes to rest");
    }

    fn flush(&mut self) -> bool {
        let mut moved = 0;
        loop {
            let front = self.conn.down().front(u64::MAX);
            let taken = front.len().min(self.client_room);
            if taken == 0 {
                break;
            }
            let bytes = front[..taken].to_vec();
            self.conn.down().advance(taken);
            self.write_client(&bytes);
            moved += taken;
        }
        loop {
            let front = self.conn.up().front(u64::MAX);
            let taken = front.len().min(self.server_room);
            if taken == 0 {
                break;
            }
            let bytes = front[..taken].to_vec();
            self.conn.up().advance(taken);
            self.write_server(&bytes);
            moved += taken;
        }
        if moved > 0 {
            self.call(|conn, io| conn.handle_flushed(io));
        }
        moved > 0
    }

    fn read_client(&mut self) -> bool {
        if self.closed.is_some() || !self.conn.wants_client() {
            return false;
        }
        let end = self.from_client.len().saturating_sub(self.held_back).max(self.client_read);
        let waiting = &self.from_client[self.client_read..end];
        if waiting.is_empty() {
            if self.client_end {
                self.client_end = false;
                self.call(|conn, io| conn.handle_client_end(io));
                return true;
            }
            return false;
        }
        let held = self.conn.begin_client_read(&mut self.scratch.input);
        let count = waiting.len().min(self.segment).min(65_536).min(self.scratch.input.len() - held);
        self.scratch.input[held..held + count].copy_from_slice(&waiting[..count]);
        self.client_read += count;
        self.call(|conn, io| conn.handle_client_data(io, held + count));
        true
    }

    fn read_server(&mut self) -> bool {
        let Some(id) = self.conn.leg_id().filter(|_| self.closed.is_none()) else { return false };
        let Some(leg) = self.legs.get_mut(&id) else { return false };
        let plan = self.conn.begin_server_read(&mut self.scratch);
        let waiting = &leg.from_server[leg.read..];
        if plan == ReadPlan::Nothing {
            return false;
        }
        if waiting.is_empty() {
            let Some(reset) = leg.end.take() else { return false };
            self.call(|conn, io| match reset {
                true => conn.handle_server_reset(io, id),
                false => conn.handle_server_end(io, id),
            });
            return true;
        }
        let count = fill(&mut self.scratch, plan, &waiting[..waiting.len().min(self.segment)]);
        assert!(count > 0, "a read of nothing looks like an end");
        leg.read += count;
        self.call(|conn, io| conn.handle_server_data(io, plan, count));
        true
    }

    /// Bytes at the client's socket reach the client; the wire gets its answer.
    fn deliver(&mut self) -> bool {
        if !self.client_reads || self.delivered == self.to_client.len() {
            return false;
        }
        let end = self.to_client.len().min(self.delivered.saturating_add(self.segment));
        let answer = self.peer.receive(&self.to_client[self.delivered..end]);
        self.delivered = end;
        self.wire(&answer);
        true
    }

    fn check(&mut self) {
        assert!(self.conn.down().len() <= 1 << 20 && self.conn.up().len() <= 1 << 20, "unbounded outlet");
    }

    /// What the client's application has received since the last call.
    pub(crate) fn received(&mut self) -> Vec<u8> {
        self.run();
        let received = self.peer.received().to_vec();
        self.peer.forget_received();
        received
    }

    /// What a server has received since the last call.
    pub(crate) fn server_got(&mut self, leg: u32) -> Vec<u8> {
        std::mem::take(&mut self.legs.get_mut(&leg).expect("no such leg").to_server)
    }
}

/// Places a server's bytes as the plan asks; returns how many.
pub(crate) fn fill(scratch: &mut Scratch, plan: ReadPlan, waiting: &[u8]) -> usize {
    match plan {
        ReadPlan::Nothing => 0,
        ReadPlan::Head { layout, held, room } => {
            let count = waiting.len().min(room);
            let start = Slots::payload(layout, 0).start + held;
            scratch.down.memory()[start..start + count].copy_from_slice(&waiting[..count]);
            count
        }
        ReadPlan::Body { layout, held, slots } => {
            let mut at = 0;
            for index in 0..slots {
                let payload = Slots::body(layout, index, held);
                let count = (waiting.len() - at).min(payload.len());
                scratch.down.memory()[payload.start..payload.start + count]
                    .copy_from_slice(&waiting[at..at + count]);
                at += count;
            }
            at
        }
        ReadPlan::Records { held } => {
            let count = waiting.len().min(scratch.input.len() - held).min(65_536);
            scratch.input[held..held + count].copy_from_slice(&waiting[..count]);
            count
        }
    }
}
