//! Timers: ACKs that no segment carried, stalls, and ACKs of peers that arrived meanwhile.
//!
//! The model of the daemon's `worker/replication/timers.rs`.

use super::{Client, Upstream, Worker};
use crate::event_queue::Time;
use crate::kernel::Kernel;
use crate::leg::Leg;
use crate::segment::{Flow, number};
use evergate_base::Micros;
use evergate_replication::{ConnectionId, Delay, InputBoundary, Urgency};

/// Delay of a pooled server connection's outstanding ACK.
const POOLED_AFTER: Time = 5_000;
/// Window within which several of them are acknowledged at once.
const POOLED_TOGETHER: Time = 2_000;

impl Client {
    /// Schedules a check no later than after this delay.
    pub(super) fn schedule_timer(&mut self, delay: Delay, now: Time) {
        if self.timed.is_none_or(|(known, _)| known > delay) {
            self.timed = Some((delay, now + delay.span().0));
        }
    }

    /// The server leg in use.
    fn server(&self) -> Option<&Leg> {
        self.upstream.as_ref().filter(|upstream| !upstream.connecting).map(|upstream| &upstream.leg)
    }

    fn server_mut(&mut self) -> Option<&mut Leg> {
        self.upstream.as_mut().filter(|upstream| !upstream.connecting).map(|upstream| &mut upstream.leg)
    }
}

impl Worker {
    /// Before the worker leaves a connection: arms events for the ACKs of its peers, and schedules its timer. True when
    /// something has happened meanwhile.
    pub(super) fn arm_ack_events(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) -> bool {
        let Some(Client { connection, leg, .. }) = self.clients.get(&key) else { return false };
        // The next request of a client that did not wait for the response waits for its ACK.
        let (eager, server_partial) =
            connection.input_boundaries().map(|extent| extent == InputBoundary::Partial).into();
        let (client_inside, server_inside) = connection.expects_more();
        // ... or for entries in flight to the backups.
        let readable = kernel.sockets.get(&leg.flow).is_some_and(|socket| socket.has_input());
        let refuses = readable && !connection.wants_client();
        if eager || (refuses && !connection.is_active() && !connection.is_past_requests()) {
            self.batcher.hurry(Urgency::Full);
            self.replicate_all(key);
        }
        let Some(client) = self.clients.get_mut(&key) else { return false };
        let mut happened = arm_ack_event(kernel, &client.leg, eager, now);
        let mut due = next_ack_check(kernel, &client.leg, eager || client_inside, now);
        if let Some(server) = client.server() {
            happened |= arm_ack_event(kernel, server, false, now);
            let of_server = next_ack_check(kernel, server, server_partial || server_inside, now);
            due = [due, of_server].into_iter().flatten().min();
        }
        if let Some(delay) = due {
            client.schedule_timer(delay, now);
        }
        happened
    }

    /// Runs due timers: held ACKs are sent, old input is stashed, and ACKs of peers are handled.
    pub(super) fn run_timers(&mut self, now: Time, kernel: &mut Kernel) {
        let due = |client: &Client| client.timed.is_some_and(|(_, at)| at <= now);
        let keys: Vec<ConnectionId> =
            self.clients.iter().filter(|(_, client)| due(client)).map(|(key, _)| *key).collect();
        for key in keys {
            self.run_timer(now, kernel, key);
        }
        self.acknowledge_pooled(now, kernel);
    }

    /// Time of the next timer.
    pub(super) fn next_timer_at(&self) -> Option<Time> {
        let timed = self.clients.values().filter_map(|client| client.timed).map(|(_, at)| at);
        timed.chain(self.pooled.front().map(|(at, _)| at + POOLED_TOGETHER)).min()
    }

    fn run_timer(&mut self, now: Time, kernel: &mut Kernel, key: ConnectionId) {
        self.replicate_all(key);
        let Some(client) = self.clients.get_mut(&key) else { return };
        client.timed = None;
        if self.freezing.contains_key(&client.bucket) {
            return;
        }
        let answered = client.connection.acknowledged() >= client.connection.newest_entry();
        let overdue = is_overdue(kernel, &client.leg, now);
        if overdue {
            client.leg.positions.note_silence();
        }
        let tickets = overdue && client.connection.holds_tickets();
        if answered && (ack_if_due(kernel, &mut client.leg, now) || overdue) && !tickets {
            self.dirty.insert(client.leg.flow);
        }
        if answered
            && let Some(server) = client.server_mut()
            && (ack_if_due(kernel, server, now) || is_overdue(kernel, server, now))
        {
            self.dirty.insert(server.flow);
        }
        let [of_client, of_server] = client.connection.input_boundaries();
        let client_stalled = client.leg.positions.is_stalled(of_client, Micros(now));
        let stalls = |server: &Leg| server.positions.is_stalled(of_server, Micros(now));
        let server_stalled = client.server().is_some_and(stalls);
        if tickets {
            self.tickets_with_acks += 1;
            self.call(now, kernel, key, |connection, io| connection.handle_tickets_due(io));
        }
        if client_stalled {
            self.call(now, kernel, key, |connection, io| connection.handle_client_stall(io));
        }
        if server_stalled {
            self.call(now, kernel, key, |connection, io| connection.handle_server_stall(io));
        }
        self.pass_acks(kernel, key);
        if self.run_deferred(now, kernel, key) | self.arm_ack_events(now, kernel, key) {
            self.to_pump.insert(key);
        } else if let Some(client) = self.clients.get_mut(&key).filter(|client| client.timed.is_none()) {
            client.connection.on_idle();
        }
    }

    // ---- idle server connections ----

    /// Schedules a check whether a pooled server connection owes an ACK.
    pub(super) fn schedule_pooled(&mut self, flow: Flow, now: Time) {
        self.pooled.push_back((now + POOLED_AFTER, flow));
    }

    /// Acknowledges the input of pooled server connections that send no segment, several at once. A connection that was
    /// used meanwhile has acknowledged it then, and is checked again.
    fn acknowledge_pooled(&mut self, now: Time, kernel: &Kernel) {
        if self.pooled.front().is_none_or(|(at, _)| now < at + POOLED_TOGETHER) {
            return;
        }
        while let Some((_, flow)) = self.pooled.pop_front_if(|(at, _)| *at <= now) {
            if self.server_leg(flow).is_some_and(|leg| is_overdue(kernel, leg, now)) {
                self.dirty.insert(flow);
            }
        }
    }

    /// A server connection's leg, in use or not.
    fn server_leg(&mut self, flow: Flow) -> Option<&mut Leg> {
        let used = self.clients.values_mut().filter_map(|client| client.upstream.as_mut());
        let legs = used.chain(self.idle.values_mut().flatten()).map(|Upstream { leg, .. }| leg);
        legs.into_iter().find(|leg| leg.flow == flow)
    }

    /// Allows the ACK of a released server connection's input up to this number.
    pub(super) fn allow_ack(&mut self, now: Time, kernel: &mut Kernel, flow: Flow, ack: u64) {
        let Some(slot) = kernel.slots.get_mut(&flow) else { return };
        match self.server_leg(flow) {
            Some(leg) => leg.positions.allow_ack(slot, crate::segment::sequence(ack), Micros(now)),
            None => slot.committed = slot.committed.max(ack), // it is to be closed
        }
        if self.idle.values().flatten().any(|upstream| upstream.leg.flow == flow) {
            self.schedule_pooled(flow, now);
        }
    }
}

fn arm_ack_event(kernel: &mut Kernel, leg: &Leg, eager: bool, now: Time) -> bool {
    let ack = leg.positions.watched(eager, Micros(now)).map(number);
    let slot = kernel.slots.get_mut(&leg.flow);
    ack.zip(slot).is_some_and(|(ack, slot)| !slot.wake_at(ack))
}

fn next_ack_check(kernel: &Kernel, leg: &Leg, inside: bool, now: Time) -> Option<Delay> {
    leg.positions.next_ack_check(kernel.slots.get(&leg.flow)?, inside, Micros(now))
}

fn is_overdue(kernel: &Kernel, leg: &Leg, now: Time) -> bool {
    kernel.slots.get(&leg.flow).is_some_and(|slot| leg.positions.is_overdue(slot, Micros(now)))
}

fn ack_if_due(kernel: &mut Kernel, leg: &mut Leg, now: Time) -> bool {
    kernel.slots.get_mut(&leg.flow).is_some_and(|slot| leg.positions.ack_if_due(slot, Micros(now)))
}
