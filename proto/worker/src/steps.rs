//! Single steps of a worker, for tests that set the order of events themselves, and a view of its state between them.

use crate::command::ListenerSocket;
use crate::host::Host;
use crate::instruction::Instruction;
use crate::slab::Key;
use crate::upstreams::Upstream;
use crate::worker::Worker;
use evergate_base::Micros;
use evergate_connection::Connection;
use evergate_membership::{Bucket, NodeId};
use evergate_replication::ReplicaStore;
use evergate_tls::Records;
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Single steps of a worker. A method that names a step of the cluster does nothing in a worker without one.
pub struct Steps<'a, H: Host>(&'a mut Worker<H>);

impl<H: Host> Worker<H> {
    /// Its single steps.
    pub fn steps(&mut self) -> Steps<'_, H> {
        Steps(self)
    }
}

/// Steps.
impl<H: Host> Steps<'_, H> {
    /// Lets this time pass for the steps up to the next turn.
    pub fn pass_time(&mut self, span: Micros) {
        self.0.now = self.0.now + span;
    }

    /// Sets when the work of each second is due.
    pub fn set_next_second(&mut self, at: Micros) {
        self.0.next_second = at;
    }

    /// Sets the most client connections.
    pub fn set_connections_max(&mut self, max: usize) {
        self.0.settings.connections_max = max;
    }

    /// Adds listeners.
    pub fn listen(&mut self, listeners: Vec<ListenerSocket<H>>) {
        self.0.change_listeners(listeners, &[]);
    }

    /// Follows an instruction of the agent.
    pub fn instruct(&mut self, instruction: Instruction) {
        self.0.take_instruction(instruction);
    }

    /// Begins a drain.
    pub fn drain(&mut self) {
        self.0.drain();
    }

    /// Accepts what waits in the queues of all listeners.
    pub fn accept_all(&mut self) {
        self.0.empty_queues();
    }

    /// Accepts channels of other nodes.
    pub fn accept_channels(&mut self) {
        self.0.accept_channels();
    }

    /// Runs the timers that are due.
    pub fn run_timers(&mut self) {
        self.0.run_timers();
    }

    /// Does the timed work of the channels.
    pub fn tend_channels(&mut self) {
        self.0.tend_channels();
    }

    /// Freezes closed buckets, and reports those that the next owner holds completely.
    pub fn report_frozen(&mut self) {
        self.0.report_frozen();
    }

    /// Resumes all idle connections that may resume.
    pub fn resume_idle(&mut self) {
        self.0.resume_idle(false);
        while self.0.cluster.as_ref().is_some_and(|cluster| cluster.failovers.has_idle()) {
            self.0.resume_idle(false);
        }
    }

    /// Continues failovers whose peers are being probed, until the last peer has answered or counts as silent.
    pub fn end_probes(&mut self) {
        while self.0.cluster.as_ref().is_some_and(|cluster| cluster.failovers.is_probing()) {
            self.0.poll_probes();
        }
    }

    /// Serves waiting requests where there is a place now.
    pub fn serve_all_waiting(&mut self) {
        self.0.serve_all_waiting();
    }

    /// Drops a connection of a bucket that this node no longer owns.
    pub fn abandon(&mut self, key: Key) {
        self.0.abandon(key);
    }

    /// Calls a connection as if its client had reset it.
    pub fn reset_client(&mut self, key: Key) {
        self.0.with(key, |connection, io| connection.handle_abort(io, "client_reset"));
        self.0.perform(key);
    }

    /// Counts the client's next request as one that it sends without waiting for acknowledgements.
    pub fn note_next_request(&mut self, key: Key) {
        let client = self.0.clients.get_mut(key);
        if let Some(state) = client.and_then(|client| client.replicated_state.as_mut()) {
            state.leg.note_next();
        }
    }

    /// Gives an idle server connection this record layer.
    pub fn set_idle_records(&mut self, key: Key, records: Records) {
        if let Some(upstream) = self.0.upstreams.get_mut(key) {
            upstream.records = Some(Box::new(records));
        }
    }

    /// Backups acknowledge all frames so far.
    pub fn acknowledge_all(&mut self) {
        let Some(cluster) = &mut self.0.cluster else { return };
        let mut all = Vec::new();
        for (peer, outgoing) in &mut cluster.channels.outgoing {
            let (frames, mut notices) = (outgoing.feed.frames(), Vec::new());
            let answered = outgoing.feed.handle_answer(frames, |notice| notices.push(notice));
            if answered.is_ok() {
                all.push((peer.0, notices));
            }
        }
        for (node, notices) in all {
            self.0.take_notices(node, notices);
        }
    }
}

/// State.
impl<H: Host> Steps<'_, H> {
    /// Its client connections.
    pub fn clients(&self) -> Vec<Key> {
        self.0.clients.keys()
    }

    /// The state machine of a client connection.
    pub fn connection(&self, key: Key) -> Option<&Connection> {
        self.0.clients.get(key).map(|client| &client.connection)
    }

    /// The bucket of a replicated connection.
    pub fn bucket_of(&self, key: Key) -> Option<Bucket> {
        Some(self.0.clients.get(key)?.replicated_state.as_ref()?.bucket)
    }

    /// Whether the server connection of a client is still connecting; `None` without one.
    pub fn is_connecting(&self, key: Key) -> Option<bool> {
        let upstream: &Upstream<H> = self.0.upstreams.get(self.0.clients.get(key)?.upstream?)?;
        Some(upstream.connecting)
    }

    /// The server connection of a client.
    pub fn server_of(&self, key: Key) -> Option<Key> {
        self.0.clients.get(key)?.upstream
    }

    /// Bytes that wait for a client and for its server.
    pub fn waiting(&mut self, key: Key) -> Option<(usize, usize)> {
        let connection = &mut self.0.clients.get_mut(key)?.connection;
        Some((connection.down().len(), connection.up().len()))
    }

    /// Its pooled server connections.
    pub fn idle(&self) -> Vec<Key> {
        self.0.pool.idle.values().flatten().copied().collect()
    }

    /// The bucket of a connection between these ends.
    pub fn bucket(&self, local: SocketAddr, remote: SocketAddr) -> Option<Bucket> {
        self.0.cluster.as_ref().map(|cluster| cluster.bucket(local, remote))
    }

    /// Buckets that are frozen and reported.
    pub fn frozen(&self) -> BTreeSet<Bucket> {
        self.0.cluster.as_ref().map_or_else(BTreeSet::new, |cluster| cluster.handoffs.frozen.clone())
    }

    /// The worker's part of the gate.
    pub fn gate(&self) -> Option<&H::Gate> {
        self.0.cluster.as_ref().map(|cluster| &cluster.gate)
    }

    /// Replicas that it holds.
    pub fn store(&mut self) -> Option<&mut ReplicaStore> {
        self.0.cluster.as_mut().map(|cluster| &mut cluster.replicas.store)
    }

    /// Frames that wait to leave, as bytes, of each channel to a backup.
    pub fn unsent(&self) -> Vec<&[u8]> {
        let channels = self.0.cluster.iter().flat_map(|cluster| cluster.channels.outgoing.values());
        channels.map(|outgoing| outgoing.feed.unsent()).collect()
    }

    /// Frames sent to backups so far.
    pub fn frames(&self) -> u64 {
        let channels = self.0.cluster.iter().flat_map(|cluster| cluster.channels.outgoing.values());
        channels.map(|outgoing| outgoing.feed.frames()).sum()
    }

    /// Whether every channel to a backup carries the frames of every bucket without a gap.
    pub fn has_no_gap(&self) -> bool {
        let mut channels = self.0.cluster.iter().flat_map(|cluster| cluster.channels.outgoing.values());
        channels.all(|outgoing| outgoing.follows.iter().all(|follows| *follows))
    }

    /// How many channels come from the address of this node, or of none, and when the oldest was made.
    pub fn channels_from(&self, host: Option<NodeId>) -> (usize, Option<Micros>) {
        let all = self.0.cluster.iter().flat_map(|cluster| cluster.channels.incoming.iter().flatten());
        let theirs = all.filter(|incoming| incoming.host == host);
        (theirs.clone().count(), theirs.map(|incoming| incoming.since).min())
    }

    /// How many channels come from other nodes.
    pub fn channels(&self) -> usize {
        self.0.cluster.iter().flat_map(|cluster| cluster.channels.incoming.iter().flatten()).count()
    }

    /// The time of its last turn, and of the steps since then.
    pub fn now(&self) -> Micros {
        self.0.now
    }
}
