//! Where a session can be resumed.

use crate::table::Origin;
use evergate_base::Micros;

/// Which nodes can resume a session that one of them made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The node that made it: every node has a cache (or ticket keys) of its own.
    Node,
    /// All nodes, so long after it was made: caches are broadcast, as in CSSL-SL (Hatsugai and Saito 2007).
    Broadcast {
        /// Time from making a session to all nodes having it.
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
