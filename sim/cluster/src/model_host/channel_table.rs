//! Ends of replication channels of one process. The world carries pieces of bytes between two ends.

use super::frame_tap::FrameTap;
use crate::event_queue::Time;
use crate::fault::Mutation;
use evergate_membership::NodeId;
use evergate_memory_host::Readiness;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};

/// Time from the first SYN until frames may flow: a few round trips.
const CONNECT: Time = 800;

/// Address of a node for replication channels.
pub(crate) fn replication_ip(node: NodeId) -> IpAddr {
    Ipv4Addr::new(10, 0, 2, 1 + node.0).into()
}

/// The node with this address.
pub(super) fn node_at(ip: IpAddr) -> Option<NodeId> {
    let number = match ip {
        IpAddr::V4(ip) => ip.octets()[3],
        IpAddr::V6(_) => 0,
    };
    number.checked_sub(1).map(NodeId)
}

/// Name of one end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ChannelId {
    /// The node at the other end.
    pub(crate) peer: NodeId,
    /// Number of the channel in the whole run.
    pub(crate) number: u64,
    /// Whether this end sends frames; the other one answers.
    pub(crate) outgoing: bool,
}

impl ChannelId {
    /// The other end, as it is named there; `me`: this node.
    pub(crate) fn other(self, me: NodeId) -> ChannelId {
        ChannelId { peer: me, outgoing: !self.outgoing, ..self }
    }
}

/// One end.
#[derive(Debug, Default)]
pub(crate) struct ChannelEnd {
    /// Time at which it is connected, while it is not.
    connects_at: Option<Time>,
    descriptor: Option<i32>,
    /// The process at the other end, from the first piece on.
    pub(crate) leads_to: Option<u64>,
    outbox: Vec<u8>,
    sent: u64,
    /// Pieces that arrived before earlier ones.
    early: BTreeMap<u64, Vec<u8>>,
    taken: u64,
    inbox: Vec<u8>,
    ended: bool,
    tap: Option<FrameTap>,
}

/// All ends: see the module's description.
#[derive(Debug, Default)]
pub(crate) struct ChannelTable {
    process: u64,
    opened: u64,
    mutation: Mutation,
    ends: BTreeMap<ChannelId, ChannelEnd>,
    unaccepted: VecDeque<ChannelId>,
    /// Ends that the process has closed, and those of which the world does not know.
    closed: BTreeSet<ChannelId>,
    hangups: Vec<ChannelId>,
    news: Vec<i32>,
}

impl ChannelTable {
    pub(super) fn new(process: u64, mutation: Mutation) -> ChannelTable {
        ChannelTable { process, mutation, ..ChannelTable::default() }
    }

    // ---- the process ----

    pub(super) fn connect(&mut self, now: Time, peer: NodeId) -> ChannelId {
        self.opened += 1;
        let id = ChannelId { peer, number: self.process << 16 | self.opened, outgoing: true };
        let tap = FrameTap::of(self.mutation);
        let end = ChannelEnd { connects_at: Some(now + CONNECT), tap, ..ChannelEnd::default() };
        self.ends.insert(id, end);
        id
    }

    pub(super) fn accept(&mut self) -> Option<ChannelId> {
        self.unaccepted.pop_front()
    }

    pub(super) fn set_descriptor(&mut self, id: ChannelId, descriptor: i32) {
        if let Some(end) = self.ends.get_mut(&id) {
            end.descriptor = Some(descriptor);
        }
    }

    pub(super) fn close(&mut self, id: ChannelId) {
        self.ends.remove(&id);
        self.closed.insert(id);
        self.hangups.push(id);
    }

    pub(super) fn send(&mut self, id: ChannelId, bytes: &[u8]) -> bool {
        let Some(end) = self.ends.get_mut(&id).filter(|end| !end.ended) else { return false };
        match &mut end.tap {
            None => end.outbox.extend_from_slice(bytes),
            Some(tap) => {
                tap.pass(bytes, &mut end.outbox, &mut end.inbox);
                self.news.extend(end.descriptor);
            }
        }
        true
    }

    /// Moves what has arrived to `input`; whether the other end is gone.
    pub(super) fn receive(&mut self, id: ChannelId, input: &mut Vec<u8>) -> bool {
        let Some(end) = self.ends.get_mut(&id) else { return true };
        input.append(&mut end.inbox);
        end.ended
    }

    pub(super) fn is_ended(&self, id: ChannelId) -> bool {
        self.ends.get(&id).is_none_or(|end| end.ended)
    }

    pub(super) fn has_unaccepted(&self) -> bool {
        !self.unaccepted.is_empty()
    }

    pub(super) fn readiness(&self, id: ChannelId) -> Readiness {
        let Some(end) = self.ends.get(&id) else { return Readiness::default() };
        let open = end.connects_at.is_none();
        Readiness {
            input: !end.inbox.is_empty() || end.ended,
            output: open || end.ended,
            end: end.ended,
            ..Readiness::default()
        }
    }

    pub(super) fn take_news(&mut self) -> Vec<i32> {
        std::mem::take(&mut self.news)
    }

    // ---- the world ----

    /// Time at which the next end is connected.
    pub(crate) fn next_at(&self) -> Option<Time> {
        self.ends.values().filter_map(|end| end.connects_at).min()
    }

    /// Connects the ends whose time has come.
    pub(crate) fn run_timers(&mut self, now: Time) {
        for end in self.ends.values_mut() {
            if end.connects_at.take_if(|at| *at <= now).is_some() {
                self.news.extend(end.descriptor);
            }
        }
    }

    /// Whether the world has something to carry.
    pub(crate) fn has_output(&self) -> bool {
        !self.hangups.is_empty() || self.ends.values().any(|end| !end.outbox.is_empty())
    }

    /// Takes the bytes of all connected ends. `process_of`: the present process of a node.
    pub(crate) fn take_pieces(&mut self, process_of: impl Fn(NodeId) -> u64) -> Vec<(ChannelId, Piece)> {
        let open =
            self.ends.iter_mut().filter(|(_, end)| end.connects_at.is_none() && !end.outbox.is_empty());
        let pieces = open.map(|(id, end)| {
            end.sent += 1;
            let process = *end.leads_to.get_or_insert_with(|| process_of(id.peer));
            (*id, Piece { process, number: end.sent, bytes: std::mem::take(&mut end.outbox) })
        });
        pieces.collect()
    }

    /// Ends that the process has closed since the last call.
    pub(crate) fn take_hangups(&mut self) -> Vec<ChannelId> {
        std::mem::take(&mut self.hangups)
    }

    /// All ends that are open.
    pub(crate) fn open_ends(&self) -> impl Iterator<Item = ChannelId> {
        self.ends.keys().copied()
    }

    /// A piece arrives. Frames on an unknown channel make its end; `from`: the process that sends them.
    pub(crate) fn arrive(&mut self, id: ChannelId, from: u64, piece: Piece) {
        if self.closed.contains(&id) || (id.outgoing && !self.ends.contains_key(&id)) {
            return;
        }
        let end = self.ends.entry(id).or_insert_with(|| {
            self.unaccepted.push_back(id);
            ChannelEnd { leads_to: Some(from), ..ChannelEnd::default() }
        });
        end.early.insert(piece.number, piece.bytes);
        while let Some(bytes) = end.early.remove(&(end.taken + 1)) {
            end.taken += 1;
            // Acknowledgements that a tap has given already are not given again.
            if end.tap.as_ref().is_none_or(|tap| !tap.answers()) {
                end.inbox.extend_from_slice(&bytes);
            }
            self.news.extend(end.descriptor);
        }
    }

    /// The other end is gone.
    pub(crate) fn hang_up(&mut self, id: ChannelId) {
        if let Some(end) = self.ends.get_mut(&id) {
            end.ended = true;
            self.news.extend(end.descriptor);
        }
    }
}

/// Some bytes on their way.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// The process that they are for.
    pub(crate) process: u64,
    /// Their number on the channel, in this direction.
    pub(crate) number: u64,
    pub(crate) bytes: Vec<u8>,
}
