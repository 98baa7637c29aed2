//! Nodes that send from an unlisted address: they belong to this cluster by another list.
//!
//! A node that is new in some lists and missing in others must not bootstrap a second cluster beside the first. Members
//! that receive its datagrams without having it in their list answer with a heartbeat for an unknown incarnation. Such
//! a heartbeat proves nothing, and a node that receives one does not bootstrap (see [`Node::handle_datagram`]).

use crate::message::{Body, Header, Heartbeat, Message, VERSION};
use crate::{Incarnation, Member, Node, NodeId};
use evergate_base::Micros;

/// Time for which such a heartbeat counts as recent.
const LATELY: Micros = Micros::from_ms(1000);

impl Node {
    /// The sender that a datagram names, if it has this cluster's id and a valid tag. It may be a recording.
    pub fn sender_of(&self, datagram: &[u8]) -> Option<NodeId> {
        self.open(datagram).ok().map(|message| message.header.from.id)
    }

    /// The heartbeat that keeps a node with another address, or missing in this node's list, from bootstrapping beside
    /// this cluster. `None` while this node is in no view.
    pub fn notify_unlisted(&self, now: Micros, to: NodeId) -> Option<Vec<u8>> {
        if !self.phase.is_established() || self.phase.has_left() {
            return None;
        }
        let heartbeat = Heartbeat {
            clock_us: now.0,
            grants: false,
            includes_you: false,
            excludes_you: false,
            ..self.heartbeat(to, 0)
        };
        let header = Header {
            version: VERSION,
            key: self.keys.sending(),
            calm: false,
            cluster: self.config.cluster,
            from: self.me,
            to: Member { id: to, incarnation: Incarnation::UNKNOWN },
            view: self.phase.view(),
            sequence: 0,
        };
        Message { header, body: Body::Heartbeat(heartbeat) }.encode(&self.keys).ok()
    }

    /// Whether an active node was received lately that addresses no incarnation of this one in particular.
    pub fn saw_active_cluster(&self, now: Micros) -> bool {
        self.join.stray_at.is_some_and(|at| now.since(at) < LATELY)
    }
}
