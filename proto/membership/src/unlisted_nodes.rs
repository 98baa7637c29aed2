//! Nodes that speak from where none of the list is: they belong to this cluster by another list.
//!
//! A node that is new in some lists and missing in others must not found a second cluster beside the first. Those who hear it and do
//! not have it tell it that they act, in a word to no particular life of it: it proves nothing, and whoever overhears such
//! words founds nothing (see [`Node::handle_datagram`]).

use crate::message::{Body, Header, Heartbeat, Message, VERSION};
use crate::{Incarnation, Member, Node, NodeId};
use evergate_base::Micros;

/// For so long an overheard word counts as one that is still said.
const LATELY: Micros = Micros::from_ms(1000);

impl Node {
    /// Who a datagram says it is from, if it is of this cluster and under a key of it. It may be a recording.
    pub fn sender_of(&self, datagram: &[u8]) -> Option<NodeId> {
        self.open(datagram).ok().map(|message| message.header.from.id)
    }

    /// What keeps a node that is not in this one's list, or elsewhere in it, from founding a cluster beside this one's. Nothing as
    /// long as this node is in none.
    pub fn notify_unlisted(&self, now: Micros, to: NodeId) -> Option<Vec<u8>> {
        if !self.established || self.left {
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
            view: self.view,
            sequence: 0,
        };
        Message { header, body: Body::Heartbeat(heartbeat) }.encode(&self.keys).ok()
    }

    /// Whether a node that acts was heard just now that speaks to no life of this one in particular.
    pub fn saw_active_cluster(&self, now: Micros) -> bool {
        self.stray_at.is_some_and(|at| now.since(at) < LATELY)
    }
}
