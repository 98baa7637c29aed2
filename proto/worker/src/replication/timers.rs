//! Timed work: ACKs that no output has carried, stalls, and acknowledgements of peers.

use super::{Cluster, ConnectionReplication, End, GatedLeg, POOLED_TOGETHER};
use crate::host::{Gate, Host};
use crate::slab::{Key, Source};
use crate::worker::Worker;
use evergate_base::Micros;
use evergate_replication::{Delay, InputBoundary, Urgency};

impl<H: Host> Worker<H> {
    /// Arms the events for a connection before the worker leaves it: gate events for its peers' acknowledgements, and
    /// timers for the rest. True when something has happened meanwhile.
    pub(crate) fn arm_ack_event(&mut self, key: Key) -> bool {
        let now = self.now;
        let Some(cluster) = &mut self.cluster else { return false };
        let Some(client) = self.clients.get_mut(key) else { return false };
        if client.replicated_state.is_none() {
            return false;
        }
        // The next request of a pipelining client waits for its acknowledgement.
        let (eager, server_partial) =
            client.connection.input_boundaries().map(|extent| extent == InputBoundary::Partial).into();
        let (client_inside, server_inside) = client.connection.expects_more();
        // Blocked input waits for the entries that the backups still lack.
        let refuses = client.readable && !client.connection.wants_client();
        if eager || (refuses && !client.connection.is_active() && !client.connection.is_past_requests()) {
            cluster.batcher.hurry(Urgency::Full);
            self.replicate_all(key);
        }
        let Some(cluster) = &mut self.cluster else { return false };
        let Some(client) = self.clients.get_mut(key) else { return false };
        let Some(replicated_state) = &mut client.replicated_state else { return false };
        let mut happened = replicated_state.leg.watch(&cluster.gate, eager, now);
        let mut due = replicated_state.leg.next_ack_check(eager || client_inside, now);
        let upstream = client.upstream.and_then(|upstream| self.upstreams.get_mut(upstream));
        if let Some(gated) = upstream.and_then(|upstream| upstream.gated.as_mut()) {
            happened |= gated.watch(&cluster.gate, false, now);
            due =
                [due, gated.next_ack_check(server_partial || server_inside, now)].into_iter().flatten().min();
        }
        if let Some(look) = due {
            cluster.schedule(replicated_state, key, look, now);
        }
        happened
    }

    /// Handles events of the gate: acknowledgements of peers, and early segments.
    pub(crate) fn lane_event(&mut self) {
        let Some(cluster) = &mut self.cluster else { return };
        let mut events = std::mem::take(&mut cluster.events);
        let _ = cluster.gate.events(&mut events); // timers replace lost events
        for diverted in events.early.drain(..) {
            if cluster.is_idle(&diverted.flow) {
                cluster.failovers.early.note(diverted);
            }
        }
        for index in events.woken.drain(..) {
            let found = self.cluster.as_ref().and_then(|cluster| cluster.index.of_slot(index));
            if let Some(key) = found {
                self.guarded(Some(Source::Client(key)), |worker| worker.pump(key));
            }
        }
        if let Some(cluster) = &mut self.cluster {
            cluster.events = events;
        }
    }

    /// Runs the due timers: delayed ACKs, stashes after long waits, and peers' acknowledgements.
    pub(crate) fn run_timers(&mut self) {
        let now = self.now;
        while let Some(cluster) = &mut self.cluster
            && let Some((due, key)) = cluster.timers.short.pop_front_if(|(due, _)| *due <= now)
        {
            self.guarded(Some(Source::Client(key)), |worker| worker.run_timer(key, (Delay::Short, due)));
        }
        // Requests may wait for server connections that are released once clients have acknowledged responses.
        let ahead = if self.counters.queued.get() > 0 {
            Delay::Medium.span() - Delay::Short.span()
        } else {
            Micros(0)
        };
        while let Some(cluster) = &mut self.cluster
            && let Some((due, key)) = cluster.timers.medium.pop_front_if(|(due, _)| *due <= now + ahead)
        {
            self.guarded(Some(Source::Client(key)), |worker| worker.run_timer(key, (Delay::Medium, due)));
        }
        while let Some(cluster) = &mut self.cluster
            && let Some((due, key)) = cluster.timers.long.pop_front_if(|(due, _)| *due <= now)
        {
            self.guarded(Some(Source::Client(key)), |worker| worker.run_timer(key, (Delay::Long, due)));
        }
        self.acknowledge_pooled();
        self.send_due_notices();
    }

    /// Sends the owed ACKs of pooled server connections, several at once.
    fn acknowledge_pooled(&mut self) {
        let now = self.now;
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.timers.pooled.front().is_none_or(|(due, _)| now.since(*due) < POOLED_TOGETHER) {
            return;
        }
        let count = cluster.timers.pooled.iter().take_while(|(due, _)| *due <= now).count();
        let mut due: Vec<Key> = cluster.timers.pooled.drain(..count).map(|(_, key)| key).collect();
        due.sort_unstable();
        due.dedup(); // a connection released several times acknowledges once
        // A connection used meanwhile has carried its owed ACK, and is checked again.
        let gated = due.iter().filter_map(|key| self.upstreams.get(*key)?.gated.as_ref());
        let slots = gated.filter(|gated| gated.is_overdue(now)).map(|gated| &gated.slot);
        let _ = cluster.gate.emit_acks(slots); // a peer that misses its ACK sends again
    }

    fn run_timer(&mut self, key: Key, look: (Delay, Micros)) {
        let now = self.now;
        self.replicate_all(key);
        let Some(cluster) = &mut self.cluster else { return };
        let Some(client) = self.clients.get_mut(key) else { return };
        let answered = client.connection.acknowledged() >= client.connection.newest_entry();
        let Some(replicated_state) = &mut client.replicated_state else { return };
        if replicated_state.timed != Some(look) {
            return; // an earlier timer is set
        }
        replicated_state.timed = None;
        if cluster.handoffs.freezing.contains_key(&replicated_state.bucket) {
            return;
        }
        let upstream = client.upstream.and_then(|upstream| self.upstreams.get_mut(upstream));
        let mut server = upstream.and_then(|upstream| upstream.gated.as_mut());
        let overdue = replicated_state.leg.is_overdue(now);
        if overdue {
            replicated_state.leg.note_silence();
        }
        let tickets = overdue && client.connection.holds_tickets();
        if answered && (replicated_state.leg.ack_if_due(now) || overdue) && !tickets {
            cluster.timers.dirty.push((key, End::Client));
        }
        if answered && server.as_mut().is_some_and(|gated| gated.ack_if_due(now) || gated.is_overdue(now)) {
            cluster.timers.dirty.push((key, End::Server));
        }
        let [of_client, of_server] = client.connection.input_boundaries();
        let client_stalled = replicated_state.leg.is_stalled(of_client, now);
        let server_stalled = server.is_some_and(|gated| gated.is_stalled(of_server, now));
        if tickets {
            self.reached_for(key, "tickets");
            self.with(key, |connection, io| connection.handle_tickets_due(io)); // they carry the ACK
            self.perform(key);
        }
        if client_stalled {
            self.with(key, |connection, io| connection.handle_client_stall(io));
            self.perform(key);
        }
        if server_stalled {
            self.with(key, |connection, io| connection.handle_server_stall(io));
            self.perform(key);
        }
        if self.note_peers(key) | self.arm_ack_event(key) {
            self.mark_pending(key);
        } else if let Some(client) = self.clients.get_mut(key)
            && client
                .replicated_state
                .as_ref()
                .is_some_and(|replicated_state| replicated_state.timed.is_none())
        {
            client.connection.on_idle();
        }
    }
}

impl<H: Host> Cluster<H> {
    /// Schedules a check of the connection after this delay at the latest.
    pub(super) fn schedule(
        &mut self,
        replicated_state: &mut ConnectionReplication<H>,
        key: Key,
        look: Delay,
        now: Micros,
    ) {
        let known = replicated_state.timed.map(|(known, _)| known);
        if known.is_some_and(|known| known <= look) {
            return;
        }
        replicated_state.timed = Some((look, self.timers.add(key, look, now)));
    }

    /// Puts a server connection into the pool. False when the backups lack some of its input.
    pub(crate) fn on_pooled(&mut self, key: Key, gated: &mut GatedLeg<H>, now: Micros) -> bool {
        self.schedule_pooled_ack(key, now);
        gated.on_idle(now)
    }

    /// Schedules a check whether a pooled server connection owes an ACK.
    pub(crate) fn schedule_pooled_ack(&mut self, key: Key, now: Micros) {
        self.timers.add_pooled(key, now);
    }
}
