//! What may happen next: reads, writes, acknowledgements, time.

use super::leg::{Dial, Idle, Leg, Pace};
use super::{DOWN, Mutation, Outcome, STEPS_MAX, World};
use crate::harness::peer::Peer;
use crate::harness::rig::fill;
use crate::harness::secure::ServerTls;
use crate::harness::setup::{answered_in_a_cluster, asked_in_a_cluster};
use crate::scenario::{Act, App, Scenario, Wire};
use evergate_base::Micros;
use evergate_connection::{Activity, Failure, ReadPlan, Scratch, ServerHint, Snapshot, Timer};
use evergate_tls::Records;
use std::sync::Arc;

impl World<'_> {
    /// Something that can happen happens; false when nothing can.
    pub(crate) fn advance(&mut self) -> bool {
        self.step += 1;
        assert!(self.step < STEPS_MAX, "the run does not end");
        if self.closed.is_none() && self.conn.deadline() <= self.now {
            self.call(|conn, io| conn.handle_timeout(io));
            return true;
        }
        if self.mirrors && self.closed.is_none() && self.rng.chance(2) {
            self.stall();
        }
        let acts = if self.mirrors { 14 } else { 13 }; // without backups there is no news
        let start = self.rng.below(acts);
        (0..acts).any(|offset| self.act((start + offset) % acts)) || self.unstall() || self.pass_time()
    }

    /// The client is silent and nothing moves: time passes until the connection's timer is due.
    fn pass_time(&mut self) -> bool {
        if !self.silent || self.closed.is_some() || self.conn.deadline() == Micros(u64::MAX) {
            return false;
        }
        // An eviction ends the connection as its keep-alive timeout does, with backups and through failovers.
        let is_idle = self.conn.timer() == Timer::KeepAlive && self.conn.activity() != Activity::Active;
        if self.mirrors && is_idle && self.rng.chance(50) {
            self.call(|conn, io| assert!(conn.handle_eviction(io)));
            return true;
        }
        self.now = self.now.max(self.conn.deadline());
        self.call(|conn, io| conn.handle_timeout(io));
        true
    }

    fn act(&mut self, which: usize) -> bool {
        match which {
            0 => self.act_client(),
            1 | 2 => self.read_client(),
            3 | 4 => self.read_server(),
            5 => self.replication(),
            6 => self.replication_ack(),
            7 => self.flush(),
            8 => self.deliver_client(),
            9 => self.send_client_ack(),
            10 => self.deliver_server(),
            11 => self.send_server_ack(),
            12 => self.dial(),
            _ => self.run_deferred(),
        }
    }

    fn stall(&mut self) {
        match self.rng.below(3) {
            0 => self.call(|conn, io| conn.handle_client_stall(io)),
            1 => self.call(|conn, io| conn.handle_tickets_due(io)),
            _ => self.call(|conn, io| conn.handle_server_stall(io)),
        }
    }

    /// Nothing moves: the timers that break stalls fire.
    fn unstall(&mut self) -> bool {
        if !self.mirrors || self.closed.is_some() {
            return false;
        }
        let before = self.queued;
        self.call(|conn, io| conn.handle_client_stall(io));
        self.call(|conn, io| conn.handle_server_stall(io));
        self.queued > before
    }

    fn act_client(&mut self) -> bool {
        let Some(step) = self.scenario.steps.get(self.client.next) else { return false };
        let received = self.client.peer.received().len();
        let answered = self.marks.is_none_or(|marks| received >= marks[self.client.next]);
        if (step.waits && !answered)
            || (!matches!(step.act, Act::Send(_)) && self.client.peer.is_handshaking())
        {
            return false;
        }
        let bytes = match &step.act {
            Act::Send(data) => match &mut self.client.peer {
                Peer::Ours(ours) => ours.send(data, self.scenario.record),
                peer => peer.send(data),
            },
            Act::KeyUpdate(request) => match &mut self.client.peer {
                Peer::Ours(ours) if self.scenario.wire == Wire::Tls13 => ours.key_update(*request),
                _ => Vec::new(),
            },
            Act::Renegotiate => match &mut self.client.peer {
                Peer::Ours(ours) if self.scenario.wire == Wire::Tls12 => ours.request_renegotiation(),
                _ => Vec::new(),
            },
            Act::Close => self.client.peer.close(),
            Act::Raw(bytes) => bytes.clone(),
            Act::Cut | Act::Reset => Vec::new(),
            Act::Silence => {
                self.silent = true;
                Vec::new()
            }
        };
        self.client.fin |= matches!(step.act, Act::Close | Act::Cut);
        self.client.reset |= matches!(step.act, Act::Reset);
        self.client.sent.extend_from_slice(&bytes);
        self.client.next += 1;
        true
    }

    fn read_client(&mut self) -> bool {
        if self.closed.is_some() {
            return false;
        }
        if self.client.reset && self.client.read == self.client.sent.len() as u64 {
            self.call(|conn, io| conn.handle_abort(io, "client_reset"));
            return true;
        }
        if !self.conn.wants_client() {
            return false;
        }
        let window = self.window();
        let client = &mut self.client;
        let most = client.pace.limit(window, (client.acked, client.read, client.sent.len() as u64)) as usize;
        if most == 0 {
            let ended = self.client.fin && self.client.read == self.client.sent.len() as u64;
            if ended && !self.client.end_reported {
                self.client.end_reported = true;
                self.call(|conn, io| conn.handle_client_end(io));
                return true;
            }
            return false;
        }
        let held = self.conn.begin_client_read(&mut self.scratch.input);
        let most = most.min(65_536).min(self.scratch.input.len() - held);
        let count = if self.varies { self.rng.amount(most) } else { most };
        let from = self.client.read as usize;
        self.scratch.input[held..held + count].copy_from_slice(&self.client.sent[from..from + count]);
        self.client.read += count as u64;
        self.call(|conn, io| conn.handle_client_data(io, held + count));
        true
    }

    /// How much a peer may send beyond what is acknowledged, and whether it has lost a packet and waits. `None`: no
    /// limit.
    fn window(&mut self) -> Option<(u64, bool)> {
        self.mirrors.then(|| (self.scenario.window as u64, self.rng.chance(2)))
    }

    fn read_server(&mut self) -> bool {
        let Some(id) = self.conn.leg_id().filter(|_| self.closed.is_none()) else { return false };
        let window = self.window();
        let Some(leg) = self.legs.get_mut(&id).filter(|leg| leg.open && leg.held) else { return false };
        let plan = self.conn.begin_server_read(self.scratch);
        if plan == ReadPlan::Nothing {
            return false;
        }
        let most = leg.pace.limit(window, (leg.acked, leg.read, leg.sent.len() as u64)) as usize;
        if most == 0 {
            let over = leg.read == leg.sent.len() as u64 && !leg.end_reported;
            if over && (leg.app.fin || leg.app.reset) {
                leg.end_reported = true;
                let reset = leg.app.reset;
                self.call(|conn, io| match reset {
                    true => conn.handle_server_reset(io, id),
                    false => conn.handle_server_end(io, id),
                });
                return true;
            }
            return false;
        }
        let count = if self.varies { self.rng.amount(most) } else { most };
        let from = leg.read as usize;
        let count = fill(self.scratch, plan, &leg.sent[from..from + count]);
        assert!(count > 0, "a read of nothing looks like an end");
        leg.read += count as u64;
        self.call(|conn, io| conn.handle_server_data(io, plan, count));
        true
    }

    fn replication(&mut self) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        let count = self.rng.amount(self.pending.len());
        self.apply(count);
        true
    }

    fn replication_ack(&mut self) -> bool {
        if self.acked == self.applied {
            return false;
        }
        let more = self.rng.amount((self.applied - self.acked) as usize) as u64;
        self.acked += more;
        let index = self.acked;
        if self.closed.is_none() {
            self.call(|conn, io| conn.on_replicated(io, index));
            if !self.learns() {
                self.run_deferred();
            }
        }
        true
    }

    /// Whether the event is recorded only, and handled with the next one.
    fn learns(&mut self) -> bool {
        self.varies && self.mirrors && self.rng.chance(50)
    }

    fn run_deferred(&mut self) -> bool {
        let reported = self.closed.is_none() && self.conn.has_deferred();
        if reported {
            self.call(|conn, io| conn.handle_deferred(io));
        }
        reported
    }

    fn flush(&mut self) -> bool {
        let acknowledged = self.conn.acknowledged();
        let mut moved = 0;
        let down = self.conn.down().front(acknowledged).to_vec();
        if !down.is_empty() && self.closed.is_none() {
            let count = if self.varies { self.rng.amount(down.len()) } else { down.len() };
            self.conn.down().advance(count);
            self.write_client(&down[..count]);
            moved += count;
        }
        let up = self.conn.up().front(acknowledged).to_vec();
        if !up.is_empty() && self.closed.is_none() {
            let count = if self.varies { self.rng.amount(up.len()) } else { up.len() };
            self.conn.up().advance(count);
            self.write_server(&up[..count]);
            moved += count;
        }
        if moved > 0 {
            self.call(|conn, io| conn.handle_flushed(io));
        }
        moved > 0
    }

    fn deliver_client(&mut self) -> bool {
        let most = (self.written.saturating_sub(self.delivered)) as usize;
        if most > 0 {
            let count = if self.varies { self.rng.amount(most) } else { most };
            self.deliver(count);
            return true;
        }
        let seen = self.fin_at == Some(self.delivered) && !self.fin_seen;
        self.fin_seen |= seen;
        seen
    }

    pub(super) fn deliver(&mut self, count: usize) {
        let from = self.delivered as usize;
        let answer = self.client.peer.receive(&self.wire[from..from + count]);
        self.delivered += count as u64;
        if !self.client.fin && !self.client.reset {
            self.client.sent.extend_from_slice(&answer);
        }
    }

    fn send_client_ack(&mut self) -> bool {
        if self.reported == self.delivered || self.closed.is_some() {
            return false;
        }
        while self.send_server_ack() {} // a server has the request before its client has the answer
        self.reported = self.delivered;
        let output = self.reported;
        match self.learns() {
            true => self.conn.learn_client_acked(output),
            false => self.call(|conn, io| conn.handle_client_acked(io, output)),
        }
        true
    }

    fn deliver_server(&mut self) -> bool {
        let varies = self.varies;
        for leg in self.legs.values_mut() {
            let most = leg.written.saturating_sub(leg.delivered) as usize;
            let fin = leg.fin_at == Some(leg.delivered) && !leg.fin_seen && leg.written == leg.delivered;
            if most > 0 || fin {
                leg.delivered += if varies { self.rng.amount(most.max(1)).min(most) } else { most } as u64;
                leg.fin_seen |= fin;
                leg.react(fin, &mut self.flaked);
                return true;
            }
        }
        false
    }

    fn send_server_ack(&mut self) -> bool {
        if self.closed.is_some() {
            return false;
        }
        let waiting =
            self.legs.iter_mut().find(|(_, leg)| leg.reported < leg.delivered && (leg.held || leg.released));
        let Some((id, leg)) = waiting else { return false };
        leg.reported = leg.delivered;
        let (id, output) = (*id, leg.reported);
        match self.learns() {
            true => self.conn.learn_server_acked(id, output),
            false => self.call(|conn, io| conn.handle_server_acked(io, id, output)),
        }
        true
    }

    fn dial(&mut self) -> bool {
        if self.closed.is_some() {
            return false;
        }
        if let Some(id) = self.resumed.take() {
            let leg = self.legs.get_mut(&id).unwrap();
            leg.open = true;
            leg.held = true;
            let server = leg.server;
            let idles = self.conn.bound_leg() == Some(id);
            self.call(|conn, io| conn.handle_leg_open(io, id, server, None));
            if idles {
                self.retained = Some(id);
                let leg = self.legs.get_mut(&id).unwrap();
                (leg.held, leg.released, leg.retained) = (false, true, true);
            }
            while self.send_server_ack() {} // what it has is asked before it is listened to
            return true;
        }
        let Some(Dial { leg: id, pool, hint, first, reuse, bound }) = self.dials.pop() else { return false };
        if bound {
            return self.use_retained(id);
        }
        if first && pool != DOWN && hint == ServerHint::Policy && self.varies && self.rng.chance(15) {
            self.call(|conn, io| conn.handle_leg_failed(io, id, Failure::Refused));
            return true;
        }
        if pool == DOWN {
            self.call(|conn, io| conn.handle_unavailable(io, id, "no_server"));
            return true;
        }
        let server = match hint {
            ServerHint::Server(server) => server,
            _ => self.rng.below(3) as u32,
        };
        let fits = |idle: &mut Idle| !matches!(hint, ServerHint::Server(wanted) if wanted != idle.server);
        let used = if reuse && self.rng.chance(70) { self.idle.pop_if(fits) } else { None };
        let (server, records, tls) = match used {
            Some(idle) => (idle.server, Some(idle.records), Some(idle.tls)),
            None => {
                let seed = self.legs.len() as u8;
                let (record, updates) = (self.scenario.record, self.scenario.server_updates);
                let tls = self.scenario.behind != Wire::Plain;
                (server, None, tls.then(|| ServerTls::new(record, updates, seed)))
            }
        };
        self.begin_leg(id, (App::new(self.scenario), tls, server), records);
        true
    }

    /// The bound leg carries the next request under another number.
    fn use_retained(&mut self, id: u32) -> bool {
        let before = self.retained.take().expect("a leg that idles");
        let leg = self.legs.get_mut(&before).unwrap();
        assert!(leg.delivered == leg.written && leg.read == leg.sent.len() as u64);
        leg.fin_seen = true;
        let app = App::known(self.scenario, leg.app.login);
        let (tls, server) = (leg.tls.as_mut().map(ServerTls::detach), leg.server);
        self.begin_leg(id, (app, tls, server), None);
        true
    }

    fn begin_leg(
        &mut self,
        id: u32,
        (app, tls, server): (App, Option<ServerTls>, u32),
        records: Option<Box<Records>>,
    ) {
        let mut leg = Leg {
            app,
            tls,
            taken: 0,
            server,
            open: true,
            held: true,
            released: false,
            retained: false,
            sent: Vec::new(),
            acked: 0,
            pace: Pace::default(),
            read: 0,
            end_reported: false,
            wire: Vec::new(),
            written: 0,
            delivered: 0,
            reported: 0,
            fin_waits: false,
            fin_at: None,
            fin_seen: false,
        };
        leg.react(false, &mut self.flaked);
        let old = self.legs.insert(id, leg);
        assert!(
            old.is_none_or(|old| old.received().is_empty()),
            "the number of a leg that was written to is used again"
        );
        self.call(|conn, io| conn.handle_leg_open(io, id, server, records));
    }

    fn finish_steps(&mut self, marks: &mut Vec<usize>) {
        loop {
            // Without marks a step is taken only when nothing else moves.
            while self.advance_server_side() {}
            marks.push(self.received());
            if !self.act_client() {
                return;
            }
        }
    }

    fn advance_server_side(&mut self) -> bool {
        self.step += 1;
        assert!(self.step < STEPS_MAX, "the run does not end");
        if self.closed.is_none() && self.conn.deadline() <= self.now {
            self.call(|conn, io| conn.handle_timeout(io));
            return true;
        }
        self.read_client()
            || self.read_server()
            || self.flush()
            || self.deliver_client()
            || self.deliver_server()
            || self.dial()
            || self.pass_time()
    }
}

/// An undisturbed run without backups: how much the client has received before each step, and what both peers are to
/// see.
pub(crate) fn reference(
    scenario: &Scenario,
    config: &Arc<Snapshot>,
    scratch: &mut Scratch,
) -> (Vec<usize>, Outcome) {
    let mut world = World::new(scenario, config, None, 1, Mutation::None, scratch);
    let mut marks = Vec::new();
    world.finish_steps(&mut marks);
    assert!(world.is_through(), "the script does not come to its end: {}", world.describe());
    let mut outcome = world.outcome();
    if let Some(whole) = answered_in_a_cluster(&outcome.client) {
        (outcome.client, outcome.client_end) = (whole, true);
    }
    if scenario.behind == Wire::Plain {
        outcome.servers.iter_mut().for_each(|(bytes, _)| *bytes = asked_in_a_cluster(bytes));
    }
    (marks, outcome)
}
