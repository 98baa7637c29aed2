//! Scope of sessions: the nodes that can resume one.

use crate::table::Origin;
use evergate_base::Micros;

/// Nodes that can resume a session made by one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The node that made it: every node has its own cache (or ticket keys).
    Node,
    /// All nodes, `delay` after it was made: caches are broadcast, as in CSSL-SL (Hatsugai and Saito 2007).
    Broadcast {
        /// Time from making a session until all nodes have it.
        delay: Micros,
    },
    /// All nodes at once: they share ticket keys.
    Shared,
}

impl Scope {
    /// Whether `node`, up since `up_since` and then without sessions, can resume a session of this origin.
    pub fn is_resumable(self, origin: Origin, node: usize, up_since: Micros, now: Micros) -> bool {
        let made_here = origin.node == node && origin.since >= up_since;
        match self {
            Scope::Node => made_here,
            Scope::Broadcast { delay } => {
                let arrives = origin.since + delay;
                made_here || (arrives <= now && arrives >= up_since)
            }
            Scope::Shared => true,
        }
    }
}
