//! Carrying out a connection's answer: entries first, then bytes, then effects, in order.

use super::{Client, Ending, Unsettled, Upstream, Worker};
use crate::event_queue::Time;
use crate::fault::Mutation;
use crate::gate::Slot;
use crate::kernel::Kernel;
use crate::leg::Leg;
use crate::segment::Flow;
use crate::tcp::Tcp;
use evergate_base::Micros;
use evergate_connection::{Effect, Failure, ServerHint, Source};
use evergate_replication::{ConnectionId, Frame, Side};
use evergate_tls::Records;
use std::net::SocketAddr;

/// Number of servers of a pool.
const SERVERS: u32 = 3;

/// Address of a server.
pub(crate) fn server_address(pool: u32, server: u32) -> SocketAddr {
    SocketAddr::from(([10, 0, 10 + pool as u8, 1 + server as u8], 80))
}

impl Worker {
    pub(super) fn perform(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) {
        // An existing server connection adds entries to those of this call: all go in one frame.
        let dials = self.effects.list.iter().any(|effect| matches!(effect, Effect::Dial { .. }));
        if !dials {
            self.replicate_entries(now, key);
        }
        self.send_down(now, kernel, key);
        self.send_up(now, kernel, key);
        self.effects.answered.clear();
        for effect in std::mem::take(&mut self.effects.list) {
            self.carry_out(now, kernel, key, effect);
        }
        if dials {
            self.replicate_entries(now, key);
        }
        self.send_fins(kernel, key);
    }

    /// Index of the entry that output at this moment waits for.
    fn after(&self, key: ConnectionId) -> u64 {
        match self.mutation {
            Mutation::EarlyOutput => 0,
            _ => self.clients.get(&key).map_or(0, |client| client.connection.newest_decision()),
        }
    }

    fn send_down(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) {
        let (first, second) = self.scratch.down.ready();
        let bytes = [first, second].concat();
        self.scratch.down.clear();
        let after = self.after(key);
        let Some(client) = self.clients.get_mut(&key).filter(|_| !bytes.is_empty()) else { return };
        let free = after <= client.connection.acknowledged()
            && client.connection.down().is_empty()
            && !client.leg.positions.has_undelivered_skip();
        let socket = kernel.socket(client.leg.flow).filter(|_| free);
        let written = socket.map_or(0, |socket| socket.write(&bytes));
        client.leg.positions.handle_written(written, Micros(now));
        if written < bytes.len() {
            client.connection.down().push(bytes[written..].to_vec(), after);
            client.connection.handle_blocked(Micros(now));
        }
    }

    fn send_up(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) {
        let mut bytes = Vec::new();
        for piece in self.effects.up.drain(..) {
            bytes.extend_from_slice(match piece.source {
                Source::Input => &self.scratch.input[piece.range],
                Source::Up => &self.scratch.up[piece.range],
            });
        }
        self.scratch.up.clear();
        let after = self.after(key);
        let Some(client) = self.clients.get_mut(&key).filter(|_| !bytes.is_empty()) else { return };
        let free = after <= client.connection.acknowledged() && client.connection.up().is_empty();
        let serves =
            |upstream: &&mut Upstream| !upstream.connecting && !upstream.leg.positions.has_undelivered_skip();
        let upstream = client.upstream.as_mut().filter(|_| free).filter(serves);
        let written = upstream.map_or(0, |upstream| {
            let written = kernel.socket(upstream.leg.flow).map_or(0, |socket| socket.write(&bytes));
            upstream.leg.positions.handle_written(written, Micros(now));
            written
        });
        if written < bytes.len() {
            client.connection.up().push(bytes[written..].to_vec(), after);
            client.connection.handle_blocked(Micros(now));
        }
    }

    fn carry_out(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId, effect: Effect) {
        match effect {
            Effect::Dial { leg, bound: Some(server), .. } => self.dial_bound(now, kernel, key, (leg, server)),
            Effect::Retain { .. } => self.retain(now, kernel, key),
            Effect::Dial { leg, pool, hint, tried, reuse, bound: None } => {
                self.dial(now, kernel, key, (leg, pool), hint, &tried, reuse)
            }
            Effect::Release { clean: true, spent: false, records, over: true, .. } => {
                if let Some(client) = self.clients.get_mut(&key) {
                    client.released = Some(records);
                }
            }
            Effect::Release { clean, spent, records, .. } => {
                self.release_server(now, kernel, key, clean && !spent, records);
            }
            Effect::ResetServer { .. } => {
                if let Some(upstream) = self.clients.get_mut(&key).and_then(|client| client.upstream.as_mut())
                {
                    upstream.resets = true;
                }
            }
            Effect::ShutdownServer { .. } => {
                if let Some(client) = self.clients.get_mut(&key) {
                    client.server_fin_waits = true;
                }
            }
            Effect::ShutdownClient => {
                if let Some(client) = self.clients.get_mut(&key) {
                    client.fin_waits = true;
                }
            }
            Effect::CloseClient { abort } => self.end_client(now, kernel, key, abort),
            Effect::Acknowledge { side, position } => self.release_input(now, kernel, key, side, position),
            Effect::KeepSession(_) | Effect::WithdrawSession(_) | Effect::Sealed => {} // clients here use tickets
            Effect::Matched(_) | Effect::Logged(_) | Effect::ServerFailed { .. } => {}
        }
    }

    /// Sends FINs once the bytes before them have left.
    fn send_fins(&mut self, kernel: &mut Kernel, key: ConnectionId) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        if client.fin_waits && client.connection.down().is_empty() {
            client.fin_waits = false;
            send_fin(kernel, &mut client.leg);
        }
        if client.server_fin_waits && client.connection.up().is_empty() {
            client.server_fin_waits = false;
            if let Some(upstream) = client.upstream.as_mut().filter(|upstream| !upstream.connecting) {
                send_fin(kernel, &mut upstream.leg);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what a dial names")]
    fn dial(
        &mut self,
        now: Time,
        kernel: &mut Kernel,
        key: ConnectionId,
        (leg, pool): (u32, u32),
        hint: ServerHint,
        tried: &[u32],
        reuse: bool,
    ) {
        if pool == self.down_pool {
            return self.call(now, kernel, key, |connection, io| {
                connection.handle_unavailable(io, leg, "no_server_up")
            });
        }
        self.dialled += 1;
        let server = match hint {
            ServerHint::Server(server) if !tried.contains(&server) => server,
            _ => (self.dialled..)
                .map(|n| n % SERVERS)
                .find(|n| !tried.contains(n) || tried.len() > 2)
                .unwrap_or(0),
        };
        let Some(client) = self.clients.get_mut(&key) else { return };
        let bucket = client.bucket;
        let idle = self.idle.get_mut(&(pool, server, bucket)).filter(|_| reuse).and_then(Vec::pop);
        if let Some(mut upstream) = idle {
            upstream.leg.positions.restart(Micros(now));
            upstream.number = leg;
            self.by_flow.insert(upstream.leg.flow, key);
            client.upstream = Some(upstream);
            return self.open_server(now, kernel, key);
        }
        client.connection.handle_leg_connecting(Micros(now), leg, server);
        let flow = Flow { ours: self.source(bucket), theirs: server_address(pool, server) };
        kernel.sockets.insert(flow, Tcp::connect(flow, kernel.buffer));
        self.by_flow.insert(flow, key);
        if let Some(client) = self.clients.get_mut(&key) {
            let (number, leg) = (leg, Leg::new(flow, now));
            client.upstream = Some(Upstream {
                leg,
                number,
                pool,
                server,
                connecting: true,
                ended: false,
                resets: false,
                records: None,
            });
        }
    }

    /// Retains the server connection after a response: it idles for this client alone.
    fn retain(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        client.server_fin_waits = false;
        let Some(upstream) = &mut client.upstream else { return };
        let flow = upstream.leg.flow;
        if let Some(slot) = kernel.slots.get_mut(&flow) {
            upstream.leg.positions.on_idle(slot, Micros(now));
            self.schedule_pooled(flow, now);
        }
    }

    /// Carries the next request over the idle bound leg, or notifies the connection of its loss.
    fn dial_bound(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId, (leg, server): (u32, u32)) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        let socket = client.upstream.as_ref().and_then(|upstream| kernel.socket(upstream.leg.flow));
        let quiet = socket.is_some_and(|socket| !socket.has_input() && !socket.is_ended());
        let Some(upstream) = client.upstream.as_mut().filter(|_| quiet) else {
            return self.call(now, kernel, key, |connection, io| connection.handle_bound_lost(io));
        };
        if client.connection.is_unsettled(upstream.number) {
            let (origin, end) = upstream.leg.received();
            let number = upstream.number;
            self.unsettled.insert(upstream.leg.flow, Unsettled { key, number, origin, end, ends: false });
        }
        upstream.leg.positions.restart(Micros(now));
        (upstream.number, upstream.server) = (leg, server);
        self.open_server(now, kernel, key);
    }

    /// Opens a server connection: the backups hold it before any entry names it.
    pub(super) fn open_server(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        let Some(upstream) = &mut client.upstream else { return };
        // The previous user must be known to be done with it first.
        if let Some(before) = self.unsettled.get(&upstream.leg.flow).map(|left| left.key)
            && before != key
            && self.mutation != Mutation::SharesEarly
        {
            self.replicate_all(before);
        }
        let Some(client) = self.clients.get_mut(&key) else { return };
        let Some(upstream) = &mut client.upstream else { return };
        upstream.connecting = false;
        let (facts, server, number) = (upstream.leg.facts(), upstream.server, upstream.number);
        let records = upstream.records.take();
        self.replicate_leg(key, number, facts);
        self.call(now, kernel, key, |connection, io| connection.handle_leg_open(io, number, server, records));
    }

    /// Handles a server's refusal.
    pub(super) fn fail_server(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        let Some(upstream) = client.upstream.take() else { return };
        self.by_flow.remove(&upstream.leg.flow);
        drop_server(kernel, upstream.leg.flow, false);
        self.call(now, kernel, key, |connection, io| {
            connection.handle_leg_failed(io, upstream.number, Failure::Refused)
        });
    }

    fn release_server(
        &mut self,
        now: Time,
        kernel: &mut Kernel,
        key: ConnectionId,
        clean: bool,
        records: Option<Box<Records>>,
    ) {
        let Some(client) = self.clients.get_mut(&key) else { return };
        client.server_fin_waits = false;
        let bucket = client.bucket;
        let Some(mut upstream) = client.upstream.take() else { return };
        let unsettled = client.connection.is_unsettled(upstream.number);
        let flow = upstream.leg.flow;
        self.by_flow.remove(&flow);
        let quiet = kernel.socket(flow).is_some_and(|socket| !socket.has_input() && !socket.is_ended());
        let (number, mut whole) = (upstream.number, true);
        if clean && let Some(slot) = kernel.slots.get_mut(&flow) {
            whole = upstream.leg.positions.on_idle(slot, Micros(now));
            self.schedule_pooled(flow, now);
        }
        if clean && unsettled {
            let (origin, end) = upstream.leg.received();
            self.unsettled.insert(flow, Unsettled { key, number, origin, end, ends: false });
            whole = true; // the rest follows
        }
        if clean && quiet && whole && !upstream.ended && !upstream.connecting {
            upstream.records = records;
            self.idle.entry((upstream.pool, upstream.server, bucket)).or_default().push(upstream);
        } else if upstream.leg.positions.has_undelivered_skip() || is_behind(kernel, flow) {
            // The server has more from the previous node than was replayed, or this side's FIN: nothing is left to
            // send.
            kernel.silence(flow);
        } else {
            self.end_server(kernel, flow, upstream.resets);
        }
    }

    /// Closes a server connection, once the backups know that its last response has arrived.
    fn end_server(&mut self, kernel: &mut Kernel, flow: Flow, abort: bool) {
        match self.unsettled.get_mut(&flow) {
            Some(unsettled) => unsettled.ends = true,
            None => drop_server(kernel, flow, abort),
        }
    }

    /// The backups know the last response of a released leg: its input may be acknowledged up to `position`.
    fn settle_server(
        &mut self,
        now: Time,
        kernel: &mut Kernel,
        key: ConnectionId,
        number: u32,
        position: u64,
    ) -> bool {
        let is_it = |unsettled: &Unsettled| unsettled.key == key && unsettled.number == number;
        let found = self.unsettled.iter().find(|(_, unsettled)| is_it(unsettled)).map(|(flow, _)| *flow);
        let Some((flow, unsettled)) = found.and_then(|flow| Some((flow, self.unsettled.get(&flow)?))) else {
            return false;
        };
        let (settled, end, ends) = (unsettled.origin + position, unsettled.end, unsettled.ends);
        self.allow_ack(now, kernel, flow, settled);
        if settled >= end {
            self.unsettled.remove(&flow);
            if ends {
                drop_server(kernel, flow, false);
            }
        }
        true
    }

    /// Checks an idle connection, which has no event but its end.
    pub(super) fn check_idle(&mut self, kernel: &mut Kernel, flow: Flow) {
        let noisy = match kernel.sockets.get(&flow) {
            Some(socket) => socket.has_input() || socket.is_ended() || socket.is_reset(),
            None => true,
        };
        let mut found = false;
        for idle in self.idle.values_mut().filter(|_| noisy) {
            if let Some(at) = idle.iter().position(|upstream| upstream.leg.flow == flow) {
                idle.remove(at);
                found = true;
            }
        }
        if found {
            self.end_server(kernel, flow, false);
        }
    }

    /// Keeps the server connection of a finished connection for other clients, once the backups know its end. Returns
    /// whether there is one.
    fn keep_server(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) -> bool {
        let Some(client) = self.clients.get_mut(&key) else { return false };
        let (Some(records), Some(mut upstream)) = (client.released.take(), client.upstream.take()) else {
            return false;
        };
        let (bucket, flow) = (client.bucket, upstream.leg.flow);
        self.replicate(bucket, &Frame::End { connection: key }, None);
        self.by_flow.remove(&flow);
        let quiet = kernel.socket(flow).is_some_and(|socket| !socket.has_input() && !socket.is_ended());
        if !quiet || upstream.ended || upstream.connecting {
            self.end_server(kernel, flow, false);
            return true;
        }
        let read = upstream.leg.received().1;
        upstream.records = records;
        self.idle.entry((upstream.pool, upstream.server, bucket)).or_default().push(upstream);
        self.allow_ack(now, kernel, flow, read); // no node needs its last response any more
        true
    }

    fn has_our_end(&self, kernel: &Kernel, key: ConnectionId) -> bool {
        let Some(leg) = self.clients.get(&key).map(|client| &client.leg) else { return false };
        kernel.slots.get(&leg.flow).is_some_and(|slot| slot.snd_una >= leg.end())
    }

    /// Ends a client's connection.
    pub(super) fn end_client(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId, abort: bool) {
        let over = abort || self.has_our_end(kernel, key);
        let is_kept = over && self.keep_server(now, kernel, key);
        self.release_server(now, kernel, key, false, None);
        // No node will replicate the arrival of its last response any more: an unused server connection is closed.
        let left: Vec<Flow> =
            self.unsettled.iter().filter(|(_, left)| left.key == key).map(|(flow, _)| *flow).collect();
        for flow in left {
            let Some(Unsettled { end, ends, .. }) = self.unsettled.remove(&flow) else { continue };
            if is_kept && !ends {
                self.allow_ack(now, kernel, flow, end);
                continue;
            }
            let mut idle = false;
            for of in self.idle.values_mut() {
                let before = of.len();
                of.retain(|upstream| upstream.leg.flow != flow);
                idle |= of.len() < before;
            }
            if idle || ends {
                drop_server(kernel, flow, false);
            }
        }
        let Some(mut client) = self.clients.remove(&key) else { return };
        let flow = client.leg.flow;
        self.by_flow.remove(&flow);
        if !abort {
            send_fin(kernel, &mut client.leg);
        }
        // While the client may lack this side's FIN, only replicated bytes are acknowledged.
        if over {
            let slot = kernel.slots.get_mut(&flow).filter(|_| !abort);
            if slot.is_some_and(|slot| client.leg.positions.finish_end(slot)) {
                self.dirty.insert(flow); // its FIN came after this side's: no segment carries the ACK
            }
            open_slot(kernel, flow);
        }
        kernel.close(flow, abort);
        let end = if abort { 0 } else { client.leg.end() };
        let Client { bucket, replicated, legs, .. } = client;
        if !is_kept {
            self.ending.insert(flow, Ending { key, bucket, end, replicated, legs });
        }
    }

    /// Drops a connection of a bucket that this node does not own any more: nothing of it leaves.
    pub(super) fn drop_client(&mut self, kernel: &mut Kernel, key: ConnectionId) {
        let Some(client) = self.clients.remove(&key) else { return };
        let server = client.upstream.map(|upstream| upstream.leg.flow);
        for flow in server.into_iter().chain([client.leg.flow]) {
            self.by_flow.remove(&flow);
            kernel.silence(flow);
        }
    }

    fn release_input(
        &mut self,
        now: Time,
        kernel: &mut Kernel,
        key: ConnectionId,
        side: Side,
        position: u64,
    ) {
        if let Side::Server(number) = side
            && self.settle_server(now, kernel, key, number, position)
        {
            return;
        }
        let Some(client) = self.clients.get_mut(&key) else { return };
        // The response carries the ACK, or the FIN, or tickets.
        let connection = &client.connection;
        let answers = connection.is_active() || connection.is_past_requests() || connection.holds_tickets();
        let (leg, waits) = match side {
            Side::Client => (Some(&mut client.leg), !answers),
            Side::Server(number) => {
                let upstream = client.upstream.as_mut().filter(|upstream| upstream.number == number);
                (upstream.map(|upstream| &mut upstream.leg), false)
            }
        };
        let Some(leg) = leg else { return };
        let Some(slot) = kernel.slots.get_mut(&leg.flow) else { return };
        if leg.positions.release(slot, position, Micros(now)) || (waits && leg.positions.can_wait_for_ack()) {
            self.dirty.insert(leg.flow);
        }
    }
}

fn send_fin(kernel: &mut Kernel, leg: &mut Leg) {
    if let Some(slot) = kernel.slots.get_mut(&leg.flow) {
        slot.fin_allowed = true;
    }
    let Some(socket) = kernel.socket(leg.flow) else { return };
    // The peer's surplus beyond all output is the FIN of the previous node.
    match leg.positions.skip_delivered(1) {
        0 => socket.shutdown(),
        _ => socket.note_end(),
    }
}

pub(super) fn open_slot(kernel: &mut Kernel, flow: Flow) {
    if let Some(slot) = kernel.slots.get_mut(&flow) {
        slot.open = true;
    }
}

/// Whether the peer has more from the previous node than was replayed.
fn is_behind(kernel: &Kernel, flow: Flow) -> bool {
    kernel.slots.get(&flow).is_some_and(Slot::peer_is_ahead)
}

fn drop_server(kernel: &mut Kernel, flow: Flow, abort: bool) {
    open_slot(kernel, flow);
    kernel.close(flow, abort);
}
