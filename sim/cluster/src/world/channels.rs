//! Bytes of replication channels, between the ends that workers have.

use super::nodes::AGAIN;
use super::{Event, World};
use crate::event_queue::Time;
use crate::model_host::ChannelId;
use crate::network::Cuts;
use evergate_membership::NodeId;

impl World {
    fn is_cut(&self, to: usize, from: usize) -> bool {
        self.now < self.hosts[to].cuts.inside
            || self.now < self.hosts[from].cuts.inside
            || self.now < self.hosts[from].cuts.output
    }

    /// The earliest arrival of a stuck channel's data: the sender's next retransmission, whose interval grows with the
    /// time without progress. `None` without a fault.
    fn stuck(&self, to: usize, from: usize, channel: u64) -> Option<Time> {
        let cuts = [self.hosts[to].cuts, self.hosts[from].cuts];
        let of = |cuts: &Cuts| (cuts.channels, channel.wrapping_mul(0x9e37_79b9) % cuts.channels_for.max(1));
        let (until, later) = cuts.iter().map(of).max()?;
        (self.now < until).then(|| until - self.now + later)
    }

    /// Sends what the worker has put into its channels, and the ends of those that it has closed.
    pub(super) fn send_pieces(&mut self, id: usize, left_at: &mut Time) {
        if !self.hosts[id].machine.borrow().channels.has_output() {
            return;
        }
        let me = NodeId(id as u8);
        let processes: Vec<u64> = self.hosts.iter().map(|host| host.process_number()).collect();
        let process_of = |node: NodeId| processes.get(usize::from(node.0)).copied().unwrap_or(0);
        let mut machine = self.hosts[id].machine.borrow_mut();
        let (pieces, hangups) = (machine.channels.take_pieces(process_of), machine.channels.take_hangups());
        drop(machine);
        for (end, piece) in pieces {
            *left_at += 1;
            self.mark(*left_at);
            let to = usize::from(end.peer.0);
            let stamp = self.hosts[id].stamp(*left_at);
            let delay = self.weather.inside.delay(&mut self.random) + (*left_at - self.now);
            let delay = self.in_order(id, to, way(end), delay);
            self.plan(delay, Event::Piece { to, from: id, stamp, end: end.other(me), piece });
        }
        for end in hangups {
            let to = usize::from(end.peer.0);
            // After everything that was sent on the channel.
            let delay = self.in_order(id, to, way(end), 200);
            self.plan(delay, Event::Hangup { to, end: end.other(me) });
        }
    }

    pub(super) fn take_piece(&mut self, event: Event) {
        let Event::Piece { to, from, stamp, end, ref piece } = event else { return };
        if self.is_cut(to, from) || (self.hosts[to].paused && self.hosts[to].up) {
            return self.plan(AGAIN, event);
        }
        if let Some(after) = self.stuck(to, from, end.number) {
            return self.plan(after, event);
        }
        if !self.hosts[from].has_left(stamp, true) {
            return;
        }
        if self.hosts[to].up && self.hosts[to].process_number() != piece.process {
            // The process at the channel's other end is gone.
            return self.plan(200, Event::Hangup { to: from, end: end.other(NodeId(to as u8)) });
        }
        self.log_line(|| format!("node {to}: {} bytes on a channel from node {from}", piece.bytes.len()));
        let process = self.hosts[from].process_number();
        let Event::Piece { piece, .. } = event else { return };
        if self.hosts[to].runs() {
            self.hosts[to].machine.borrow_mut().channels.arrive(end, process, piece);
            self.turn(to);
        }
    }

    pub(super) fn take_hangup(&mut self, to: usize, end: ChannelId) {
        if self.hosts[to].paused {
            return self.plan(AGAIN, Event::Hangup { to, end });
        }
        if let Some(after) = self.stuck(to, usize::from(end.peer.0), end.number) {
            return self.plan(after, Event::Hangup { to, end });
        }
        self.hosts[to].machine.borrow_mut().channels.hang_up(end);
        self.turn(to);
    }
}

/// Number of one direction of a channel among all ways between two nodes.
fn way(end: ChannelId) -> u64 {
    end.number << 1 | u64::from(!end.outgoing)
}
