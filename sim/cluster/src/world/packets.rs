//! Packets between peers and nodes, and the gates on their way.

use super::{Event, World};
use crate::event_queue::Time;
use crate::host::Stamp;
use crate::network::Link;
use crate::ports::{PORT, bucket_of};
use crate::segment::{FIRST, Flow, Segment};
use crate::tcp::Tcp;
use evergate_membership::{Bucket, Role};

impl World {
    pub(super) fn bucket(&self, flow: Flow) -> Bucket {
        bucket_of(flow, self.template.config.buckets)
    }

    fn link(&self, flow: Flow) -> Link {
        if flow.ours.port() == PORT { self.weather.outside } else { self.weather.inside }
    }

    fn is_off(&self, host: usize, flow: Flow) -> bool {
        let cuts = self.hosts[host].cuts;
        !self.hosts[host].up || self.now < if flow.ours.port() == PORT { cuts.outside } else { cuts.inside }
    }

    // ---- from a node ----

    /// Sends a segment that has passed a node's gate onto the wire.
    pub(super) fn leave_host(&mut self, id: usize, segment: Segment, left_at: Time) {
        let flow = segment.flow;
        if !self.hosts[id].up {
            return;
        }
        self.log_line(|| format!("node {id} sends {segment}"));
        self.check_departure(id, &segment);
        self.mark(left_at);
        if self.is_off(id, flow) {
            return;
        }
        let (stamp, early) = (self.hosts[id].stamp(left_at), left_at - self.now);
        for delay in self.link(flow).carry(&mut self.random) {
            self.plan(early + delay, Event::ToPeer { segment: segment.clone(), from: id, stamp });
        }
    }

    pub(super) fn reach_peer(&mut self, segment: Segment, from: usize, stamp: Stamp) {
        if !self.hosts[from].has_left(stamp, false) {
            return;
        }
        let flow = segment.flow;
        let Some(index) = self.by_flow.get(&flow).copied() else {
            if segment.syn {
                let pace = self.paces.server;
                let mut tcp = Tcp::accept(flow, pace.buffer, segment.edge);
                tcp.handle(self.now, &segment);
                let app = (self.serve)();
                self.answer_syn(flow);
                self.add_peer(flow, tcp, app, pace);
            }
            return;
        };
        if segment.syn && segment.ack.is_none() {
            return self.answer_syn(flow);
        }
        let now = self.now;
        if self.peers[index].tcp.is_reset() && !segment.rst {
            // The peer's kernel does not know the connection any more.
            let seq = segment.ack.unwrap_or_default();
            return self
                .leave_peer(Segment { rst: true, ..Segment::bare(flow, seq, Some(segment.end()), 0) });
        }
        self.peers[index].tcp.handle(now, &segment);
        self.turn_peer(index);
    }

    fn answer_syn(&mut self, flow: Flow) {
        let edge = FIRST + self.paces.server.buffer as u64;
        let answer = Segment { syn: true, ..Segment::bare(flow, 0, Some(FIRST), edge) };
        self.leave_peer(answer);
    }

    // ---- from a peer ----

    /// One turn of a peer's application and endpoint.
    pub(super) fn turn_peer(&mut self, index: usize) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(index) else { return };
        let mut segments = Vec::new();
        if peer.turn(now) {
            segments.push(peer.tcp.abort());
        }
        peer.tcp.poll(now, &mut segments);
        if let Some(at) = peer.next_at() {
            let at = at.max(now + 1);
            if at < peer.timer_at {
                peer.timer_at = at;
                self.event_queue.plan(at, Event::Peer { index, at });
            }
        }
        if let Some(complaint) = self.peers.get(index).and_then(|peer| peer.app.complaint()) {
            self.fail(|| complaint);
        }
        for segment in segments {
            self.leave_peer(segment);
        }
    }

    fn leave_peer(&mut self, segment: Segment) {
        self.log_line(|| format!("     peer sends {segment}"));
        for delay in self.link(segment.flow).carry(&mut self.random) {
            self.plan(delay, Event::ToCluster { segment: segment.clone(), host: None });
        }
    }

    /// Delivers a packet to the cluster: to every node, or to one that passes it on.
    pub(super) fn reach_cluster(&mut self, segment: Segment, host: Option<usize>) {
        if let Some(host) = host {
            return self.reach_host(host, segment);
        }
        if !self.weather.steers {
            (0..self.hosts.len()).for_each(|host| self.reach_host(host, segment.clone()));
            return;
        }
        let announcer = self.announcer;
        let bucket = self.bucket(segment.flow);
        if self.is_off(announcer, segment.flow) || self.hosts[announcer].owns(bucket) {
            return self.reach_host(announcer, segment);
        }
        let owner = match self.hosts[announcer].node.role(bucket) {
            Role::Backup { owner, .. } => Some(owner),
            Role::Outside { owner, .. } => owner,
            Role::Owner { .. } => None,
        };
        if let Some(owner) = owner.filter(|owner| usize::from(owner.0) < self.hosts.len()) {
            let delay = self.weather.inside.delay(&mut self.random);
            self.plan(delay, Event::ToCluster { segment, host: Some(usize::from(owner.0)) });
        }
    }

    fn reach_host(&mut self, id: usize, segment: Segment) {
        let flow = segment.flow;
        let bucket = self.bucket(flow);
        if self.is_off(id, flow) || !self.hosts[id].owns(bucket) {
            return;
        }
        if self.hosts[id].halted {
            // The network card keeps some packets until the machine continues; most are lost.
            if self.random.chance(200) {
                self.plan(10_000, Event::ToCluster { segment, host: Some(id) });
            }
            return;
        }
        let now = self.now;
        // A repeated first ACK is no new connection: the model leaves out old SYN cookies.
        let stray =
            segment.seq == FIRST && segment.ack == Some(FIRST) && !self.output_checker.is_untouched(flow);
        let host = &self.hosts[id];
        let kernel = host.kernel();
        let known = kernel.sockets.contains_key(&flow) || kernel.slots.number(flow).is_some();
        if stray && !known && !kernel.words.held.contains(&bucket) {
            return;
        }
        drop(kernel);
        self.open_gate(id);
        self.hosts[id].kernel().handle(now, segment);
        self.run_turn(id);
    }
}
