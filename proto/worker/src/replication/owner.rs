//! Owner side of replication: sends entries to the backups before dependent output leaves, and handles
//! acknowledgements.

use super::outgoing::Notice;
use super::{ConnectionReplication, End, GatedLeg};
use crate::host::{Channel, Gate, Host, Law, Poll, Slot, Socket};
use crate::slab::{Key, Source};
use crate::upstreams::Upstream;
use crate::worker::Worker;
use evergate_base::net::Flow;
use evergate_membership::{Bucket, NodeId};
use evergate_replication::{ConnectionState, Delay, Entry, Frame, NextTurn, Side, Urgency};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

impl<H: Host> Worker<H> {
    /// The gate's slot of a connection just accepted; `None` for one that is not replicated. An error, the reason,
    /// refuses it.
    pub(crate) fn gate_client(
        &mut self,
        socket: &H::Socket,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<Option<ConnectionReplication<H>>, &'static str> {
        let now = self.now;
        let Some(cluster) = &mut self.cluster else { return Ok(None) };
        if !cluster.is_movable(local) {
            return Ok(None);
        }
        let bucket = cluster.bucket(local, remote);
        if !cluster.owns(bucket) {
            return Err("bucket_not_owned");
        }
        if cluster.handoffs.frozen.contains(&bucket) {
            // The next owner may already have the full state of the bucket, and accepts the client when it retransmits.
            return Err("bucket_handoff");
        }
        let slot = cluster.gate.slot(&Flow::new(local, remote)).ok_or("gate_table_full")?;
        match socket.tcp_params(Some((local, remote)), self.host.steady_clock_ms()) {
            Ok(facts) => {
                let leg = GatedLeg::new(slot, facts, 0, now);
                let counted = cluster.figures.census.count(bucket);
                Ok(Some(ConnectionReplication::new(bucket, leg, ConnectionState::default(), counted)))
            }
            Err(_) => {
                cluster.gate.finish(slot, None);
                Err("tcp_info_failed")
            }
        }
    }

    /// Resets a client just accepted, or a server just connected. No other node has state of the connection: the gate
    /// lets the RST leave, unless the bucket is about to move.
    pub(crate) fn reset_unreplicated(&mut self, socket: H::Socket, local: SocketAddr, remote: SocketAddr) {
        socket.reset_on_close();
        let Some(cluster) = &mut self.cluster else { return };
        let bucket = cluster.bucket(local, remote);
        // An address of this node alone has no slot: nothing holds its output back.
        let ours = cluster.owns(bucket) && !cluster.handoffs.frozen.contains(&bucket);
        let slot = ours.then(|| cluster.gate.slot(&Flow::new(local, remote))).flatten();
        if let Some(slot) = &slot {
            slot.open();
        }
        drop(socket);
        if let Some(slot) = slot {
            cluster.gate.finish(slot, None);
        }
    }

    /// Resets a client that has a slot in a cluster and no connection. No other node has state of it: the gate lets the
    /// RST leave, unless the bucket is about to move.
    pub(crate) fn refuse_gated(&mut self, socket: H::Socket, gated: Option<ConnectionReplication<H>>) {
        socket.reset_on_close();
        let (Some(cluster), Some(gated)) = (&mut self.cluster, gated) else { return };
        if cluster.owns(gated.bucket) && !cluster.handoffs.frozen.contains(&gated.bucket) {
            gated.leg.slot.open();
        }
        drop(socket);
        cluster.gate.finish(gated.leg.slot, None);
    }

    /// Drops a client that has a slot and no connection, without a packet: another node accepts it.
    pub(crate) fn drop_gated(&mut self, socket: H::Socket, gated: Option<ConnectionReplication<H>>) {
        skip_replication(&socket);
        drop(socket);
        if let (Some(cluster), Some(gated)) = (&mut self.cluster, gated) {
            cluster.gate.finish(gated.leg.slot, None);
        }
    }

    /// Replicates a new connection; called directly after its slot in the worker is known.
    pub(crate) fn begin_replication(&mut self, key: Key) {
        let Some(client) = self.clients.get_mut(key) else { return };
        let connection = client.connection.id();
        let Some(replicated_state) = &mut client.replicated_state else { return };
        client.connection.start_replication();
        let Some(cluster) = &mut self.cluster else { return };
        cluster.index.note_slot(replicated_state.leg.slot.index(), key);
        let (bucket, facts) = (replicated_state.bucket, replicated_state.leg.replicated_info());
        replicated_state.legs.insert(0, facts);
        let legs = replicated_state.legs.clone();
        cluster.replicate(bucket, &Frame::Begin { connection, bucket, state: None, legs }, None);
        self.index_by_bucket(key, bucket);
    }

    /// Replicates the full state of one connection, before any further entry of it.
    pub(super) fn begin_again(&mut self, key: Key) {
        let Some(cluster) = &mut self.cluster else { return };
        let Some(client) = self.clients.get(key) else { return };
        let Some(replicated_state) = &client.replicated_state else { return };
        cluster.replicate(replicated_state.bucket, &replicated_state.whole(client.connection.id()), None);
    }

    /// Replicates an open (or reused) server leg: the backups need it before any entry that names it.
    pub(crate) fn gate_server(&mut self, client_key: Key, upstream_key: Key, leg: u32) {
        let now = self.now;
        // The backups need the release by the previous connection first: else two connections would resume it.
        let unsettled = self.upstreams.get(upstream_key).and_then(|upstream| upstream.unsettled.as_ref());
        if let Some(before) = unsettled
            .map(|unsettled| unsettled.client)
            .filter(|before| *before != client_key && !self.host.breaks(Law::SettlesFirst))
        {
            self.replicate_all(before);
        }
        let Some(client) = self.clients.get_mut(client_key) else { return };
        let connection = client.connection.id();
        let Some(replicated_state) = &mut client.replicated_state else { return };
        let Some(cluster) = &mut self.cluster else { return };
        let Some(upstream) = self.upstreams.get_mut(upstream_key) else { return };
        match &mut upstream.gated {
            Some(gated) => gated.restart(now),
            None => {
                let facts = upstream.socket.tcp_params(None, self.host.steady_clock_ms());
                let gated = facts.ok().and_then(|facts| {
                    let slot = cluster.gate.slot(&Flow::new(facts.local, facts.remote))?;
                    Some(Box::new(GatedLeg::new(slot, facts, 1, now)))
                });
                if gated.is_none() {
                    self.counters.reason("gate_table_full");
                }
                upstream.gated = gated;
            }
        }
        let Some(gated) = &upstream.gated else { return };
        cluster.index.note_slot(gated.slot.index(), client_key);
        let facts = gated.replicated_info();
        replicated_state.fold.forget_legs(&mut replicated_state.legs, leg);
        replicated_state.legs.insert(leg, facts);
        cluster.replicate(replicated_state.bucket, &Frame::Leg { connection, leg, facts }, None);
    }

    /// Sends the entries of the last call to the backups, and holds output that depends on them. Entries without
    /// dependent output go with the next ones of their connection, which a client's next request soon makes.
    pub(crate) fn replication(&mut self, key: Key) {
        match self.keeps_entries(key) {
            true => self.reached_for(key, "wait"),
            false => self.replicate_all(key),
        }
    }

    /// Whether queued entries may wait for more of the connection, with a timer that bounds the delay.
    fn keeps_entries(&mut self, key: Key) -> bool {
        let queued = self.shared.waiting.load(Ordering::Relaxed);
        let Some(cluster) = &mut self.cluster else { return false };
        let Some(client) = self.clients.get_mut(key) else { return false };
        let Some(replicated_state) = &mut client.replicated_state else { return false };
        let (connection, bucket) = (&client.connection, replicated_state.bucket);
        // A client without a next request may wait for acknowledgements, and requests for server connections.
        let may =
            connection.urgency() == Urgency::None && !replicated_state.leg.can_wait_for_ack() && queued == 0;
        let may = may && !connection.is_past_requests() && !cluster.handoffs.freezing.contains_key(&bucket);
        if !may || !connection.has_entries() || cluster.awaited(bucket).is_empty() {
            return false;
        }
        cluster.schedule(replicated_state, key, Delay::Medium, self.now);
        true
    }

    /// Sends all queued entries of the connection to the backups.
    pub(crate) fn replicate_all(&mut self, key: Key) {
        let Some(cluster) = &mut self.cluster else { return };
        let Some(client) = self.clients.get_mut(key) else { return };
        let Some(replicated_state) = &mut client.replicated_state else { return };
        if !client.connection.has_entries() {
            return;
        }
        cluster.batcher.hurry(client.connection.urgency());
        let mut entries = std::mem::take(&mut cluster.entries);
        entries.extend(client.connection.drain_entries());
        let (bucket, index) = (replicated_state.bucket, replicated_state.queued + entries.len() as u64);
        // Some clients send nothing more before their data is acknowledged. Tickets carry the ACK of the handshake's
        // end.
        let connection = &client.connection;
        let waits = replicated_state.leg.can_wait_for_ack()
            && !connection.is_past_requests()
            && !connection.holds_tickets();
        if waits && entries.iter().any(|entry| matches!(entry, Entry::Client(_))) {
            cluster.batcher.hurry(Urgency::Full);
        }
        let connection = client.connection.id();
        if let Some(facts) = replicated_state.learn_next_hop() {
            cluster.replicate(bucket, &Frame::Leg { connection, leg: 0, facts }, None);
        }
        let frame = Frame::Entries { connection, entries };
        cluster.replicate(bucket, &frame, Some(Notice::Entry { key, index }));
        if let Frame::Entries { mut entries, .. } = frame {
            entries.drain(..).for_each(|entry| replicated_state.apply(entry));
            cluster.entries = entries;
        }
        if cluster.awaited(bucket).is_empty() {
            client.connection.count_as_replicated(); // no backup is left
            if !replicated_state.listed {
                replicated_state.listed = true;
                cluster.timers.acknowledged.push(key);
            }
        }
    }

    /// Delivers the backups' acknowledgements, until nothing follows from them.
    pub(crate) fn deliver_acknowledged(&mut self) {
        let unawaited = self.cluster.as_mut().map(|cluster| std::mem::take(&mut cluster.timers.unawaited));
        for bucket in unawaited.into_iter().flatten() {
            self.mark_all_dirty(bucket);
        }
        loop {
            let Some(cluster) = &mut self.cluster else { return };
            let keys = std::mem::take(&mut cluster.timers.acknowledged);
            if keys.is_empty() {
                return;
            }
            for key in keys {
                self.guarded(Some(Source::Client(key)), |worker| worker.on_replicated(key));
            }
        }
    }

    fn on_replicated(&mut self, key: Key) {
        let Some(cluster) = &mut self.cluster else { return };
        let Some(client) = self.clients.get_mut(key) else { return };
        let Some(replicated_state) = &mut client.replicated_state else { return };
        replicated_state.listed = false;
        if cluster.handoffs.freezing.contains_key(&replicated_state.bucket) {
            return; // handled by the next owner
        }
        let held = replicated_state.replicated_by(cluster.awaited(replicated_state.bucket));
        if replicated_state.client_end.is_some_and(|index| index <= held)
            && replicated_state.leg.release_end()
        {
            cluster.timers.dirty.push((key, End::Client));
        }
        if let Some((_, index)) = replicated_state.server_end
            && index <= held
            && let Some(upstream) = client.upstream.and_then(|upstream| self.upstreams.get_mut(upstream))
            && let Some(gated) = &mut upstream.gated
            && gated.release_end()
        {
            cluster.timers.dirty.push((key, End::Server));
        }
        let tickets = client.connection.holds_tickets();
        client.readable |= tickets; // its request may have arrived
        self.with(key, |connection, io| connection.on_replicated(io, held));
        self.carry_out_all(key);
        self.pump(key);
        if tickets {
            self.send_tickets(key);
        }
        self.run_deferred(key); // for a connection whose bucket is about to move
    }

    /// Tickets of a client that has asked nothing yet.
    fn send_tickets(&mut self, key: Key) {
        if self.clients.get(key).is_some_and(|client| client.connection.may_send_tickets()) {
            self.with(key, |connection, io| connection.handle_tickets_due(io));
            self.perform(key);
            self.pump(key);
        }
    }

    /// Sends tickets at once to clients whose long first request is acknowledged before its response. Without tickets
    /// at the client, a backup would have to repeat the handshake, with certificate files that may have changed.
    fn send_tickets_along(&mut self) {
        let Some(cluster) = &self.cluster else { return };
        let holds =
            |key: &Key| self.clients.get(*key).is_some_and(|client| client.connection.holds_tickets());
        let clients =
            cluster.timers.dirty.iter().filter(|(_, end)| matches!(end, End::Client)).map(|(key, _)| *key);
        let due: Vec<Key> = clients.filter(holds).filter(|key| !self.is_frozen(*key)).collect();
        for key in due {
            self.guarded(Some(Source::Client(key)), |worker| {
                worker.reached_for(key, "tickets");
                worker.with(key, |connection, io| connection.handle_tickets_due(io));
                worker.perform(key);
                worker.pump(key);
            });
        }
    }

    /// The input of a leg up to `position` is safe.
    pub(crate) fn release_input(&mut self, key: Key, side: Side, position: u64) {
        let now = self.now;
        if let Side::Server(leg) = side
            && self.finish_upstream(key, leg, position)
        {
            return;
        }
        let Some(cluster) = &mut self.cluster else { return };
        let Some(client) = self.clients.get_mut(key) else { return };
        let (released, end) = match side {
            Side::Client if position == 0 => {
                // The PROXY header before position 0: its proxy may wait for the ACK before it sends more.
                let leg = client.replicated_state.as_mut().map(|replicated_state| &mut replicated_state.leg);
                let released = leg.map(|leg| leg.allow_ack(leg.received().0, now)).is_some();
                (released, End::Client)
            }
            Side::Client => {
                // The response, the end or the tickets carry the ACK.
                let connection = &client.connection;
                let answers =
                    connection.is_active() || connection.is_past_requests() || connection.holds_tickets();
                let leg = client.replicated_state.as_mut().map(|replicated_state| &mut replicated_state.leg);
                let at_once = |leg: &mut GatedLeg<H>| {
                    leg.release(position, now) || (!answers && leg.can_wait_for_ack())
                };
                (leg.is_some_and(at_once), End::Client)
            }
            Side::Server(leg) => {
                let upstream = client.upstream.and_then(|upstream| self.upstreams.get_mut(upstream));
                let upstream = upstream.filter(|upstream| upstream.owner.is_some_and(|(_, of)| of == leg));
                let gated = upstream.and_then(|upstream| upstream.gated.as_mut());
                (gated.is_some_and(|gated| gated.release(position, now)), End::Server)
            }
        };
        if released {
            cluster.timers.dirty.push((key, end));
        }
    }

    /// Passes the peers' acknowledgements to the connection; whether there was a new one.
    pub(crate) fn note_peers(&mut self, key: Key) -> bool {
        self.learn_from_peers(key);
        self.run_deferred(key)
    }

    /// [`Worker::note_peers`] before another call, with which the connection does what follows.
    pub(crate) fn learn_from_peers(&mut self, key: Key) {
        let Some(client) = self.clients.get_mut(key) else { return };
        let Some(replicated_state) = &mut client.replicated_state else { return };
        // A server has the request before its client has the response.
        let upstream = client.upstream.and_then(|upstream| self.upstreams.get_mut(upstream));
        if let Some(upstream) = upstream
            && let Some((_, leg)) = upstream.owner
            && let Some(output) = upstream.gated.as_mut().and_then(|gated| gated.newly_acked())
        {
            client.connection.learn_server_acked(leg, output);
        }
        if let Some(output) = replicated_state.leg.newly_acked() {
            client.connection.learn_client_acked(output);
        }
    }

    /// ACKs leave, and frames: once a turn.
    pub(crate) fn end_turn(&mut self, next: NextTurn) {
        self.send_tickets_along();
        let Some(cluster) = &mut self.cluster else { return };
        cluster.answer();
        cluster.send_new_sessions();
        if self.counters.queued.get() > 0 {
            cluster.batcher.hurry(Urgency::Full); // requests wait for released server connections
        }
        cluster.flush(next, self.now);
        if !cluster.send_final_acks(self.now) {
            self.counters.reason("ack_send_failed");
        }
        if cluster.timers.dirty.is_empty() {
            return;
        }
        let dirty = std::mem::take(&mut cluster.timers.dirty);
        let slots = dirty.iter().filter_map(|(key, end)| {
            let client = self.clients.get(*key)?;
            match end {
                End::Client => Some(&client.replicated_state.as_ref()?.leg.slot),
                End::Server => {
                    let upstream = self.upstreams.get(client.upstream?)?;
                    Some(&upstream.gated.as_ref()?.slot)
                }
            }
        });
        if cluster.gate.emit_acks(slots.filter(|slot| slot.owes_ack())).is_err() {
            self.counters.reason("ack_send_failed");
        }
        cluster.timers.dirty = dirty;
        cluster.timers.dirty.clear();
    }

    /// A channel to a backup can be written, or has answers.
    pub(crate) fn outgoing_event(&mut self, (node, worker): (u8, usize), ends: bool) {
        let Some(cluster) = &mut self.cluster else { return };
        let peer = (NodeId(node), worker);
        let Some(outgoing) = cluster.channels.outgoing.get_mut(&peer) else { return };
        if outgoing.connecting {
            match outgoing.channel.connect_error() {
                Ok(()) => outgoing.connecting = false,
                Err(error) => return cluster.lose(peer, &error.to_string()),
            }
        }
        let notices = match outgoing.answers(ends, self.now) {
            Ok(notices) => notices,
            Err(error) => return cluster.lose(peer, &error.to_string()),
        };
        if outgoing.channel.has_more() {
            let token = Source::Outgoing(node, worker as u16).token();
            let _ = self.poll.report_again(outgoing.channel.descriptor(), token);
        }
        self.take_notices(peer.0, notices);
    }

    /// A backup has acknowledged the frames of these conditions.
    pub(crate) fn take_notices(&mut self, node: NodeId, notices: Vec<Notice>) {
        let Some(cluster) = &mut self.cluster else { return };
        let mut replicated = false;
        for notice in notices {
            match notice {
                Notice::Entry { key, index } => {
                    let replicated_state =
                        self.clients.get_mut(key).and_then(|client| client.replicated_state.as_mut());
                    if let Some(replicated_state) = replicated_state {
                        replicated_state.note(node, index);
                        if !replicated_state.listed {
                            replicated_state.listed = true;
                            cluster.timers.acknowledged.push(key);
                        }
                    }
                }
                Notice::Taken { bucket, stage, round } => {
                    cluster.record_replicated(stage, bucket, node, round);
                    replicated = true;
                }
                Notice::Reported { bucket, term } => cluster.note_caught_up(bucket, term, node),
                Notice::Complete { bucket, term } => cluster.note_named(bucket, term, node),
            }
        }
        if replicated {
            self.poll_failovers();
        }
    }

    /// A gated server connection is closed. Where both streams are complete and this end sent its FIN first, TIME_WAIT
    /// would hold one of the bucket's few ports for a minute. The server gets the ACK of its FIN before TIME_WAIT ends:
    /// it has received everything, and nothing of it is outstanding.
    pub(crate) fn end_gated(&mut self, mut gated: GatedLeg<H>) {
        let Some(cluster) = &mut self.cluster else { return };
        cluster.index.forget_slot(gated.slot.index());
        let end = gated.end_sequence();
        let is_gone = gated.slot.is_over(end.wrapping_add(1)); // a RST is the only way past the end
        if gated.is_complete() && !is_gone {
            gated.finish_end();
            let acknowledged =
                !gated.slot.owes_ack() || cluster.gate.emit_acks(std::iter::once(&gated.slot)).is_ok();
            if acknowledged {
                self.host.end_time_wait(gated.facts.local, gated.facts.remote);
            }
        }
        cluster.gate.finish(gated.slot, Some(end));
    }

    /// Drops a connection of a bucket that this node no longer owns: nothing of it leaves, and its kernel keeps no
    /// unsent data.
    pub(crate) fn abandon(&mut self, key: Key) {
        let now = self.now;
        let Some(client) = self.clients.get_mut(key) else { return };
        if let Some(log) = client.connection.part(now) {
            self.counters.reason(log.reason);
            if let Some(access_log) = &mut self.observers.access_log {
                access_log.push(&log, &client.connection);
            }
        }
        let replicated_state = client.replicated_state.take();
        skip_replication(&client.socket);
        let upstream = client.upstream.and_then(|upstream| self.upstreams.get_mut(upstream));
        let gated = upstream.and_then(|upstream| {
            skip_replication(&upstream.socket);
            upstream.gated.take()
        });
        let unsettled = client.unsettled.and_then(|upstream| self.upstreams.get_mut(upstream));
        let is_its =
            |upstream: &&mut Upstream<H>| upstream.unsettled.as_ref().is_some_and(|of| of.client == key);
        let unsettled = unsettled.filter(|upstream| upstream.owner.is_none()).filter(is_its);
        let unsettled = unsettled.and_then(|upstream| {
            skip_replication(&upstream.socket);
            upstream.records = None; // close_notify must not leave either
            upstream.gated.take()
        });
        let Some(cluster) = &mut self.cluster else { return };
        let servers = [gated, unsettled].into_iter().flatten().map(|gated| gated.slot);
        let slots: Vec<_> = replicated_state
            .map(|replicated_state| replicated_state.leg.slot)
            .into_iter()
            .chain(servers)
            .collect();
        for slot in &slots {
            cluster.index.forget_slot(slot.index());
        }
        self.stop_waiting(key);
        self.forget(key);
        let Some(cluster) = &mut self.cluster else { return };
        for slot in slots {
            cluster.gate.finish(slot, None);
        }
    }

    /// Drops pooled server connections of a bucket that this node no longer owns, or of all buckets, and what is left
    /// of closed flows. Their peers' segments go to another node, so the pooled ones only look open.
    pub(super) fn abandon_pool(&mut self, bucket: Option<Bucket>) {
        if let Some(cluster) = &mut self.cluster {
            cluster.forget_finished(bucket);
        }
        let mut gone = Vec::new();
        self.pool.idle.retain(|(_, of), keys| {
            let stays = of.is_none() || bucket.is_some_and(|bucket| *of != Some(bucket));
            if !stays {
                gone.append(keys);
            }
            stays
        });
        for key in gone {
            let Some(mut upstream) = self.upstreams.remove(key) else { continue };
            let gated = upstream.gated.take();
            skip_replication(&upstream.socket);
            drop(upstream);
            if let (Some(gated), Some(cluster)) = (gated, &mut self.cluster) {
                cluster.index.forget_slot(gated.slot.index());
                cluster.gate.finish(gated.slot, None);
            }
        }
    }
}

/// Makes the socket close silently: orphans with full queues would stay for minutes. If the kernel refuses, the gate
/// drops the socket's output, as it does until then.
fn skip_replication(socket: &impl Socket) {
    let _ = socket.forget_on_close();
}
