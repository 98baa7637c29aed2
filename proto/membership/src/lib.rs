//! Ownership of buckets: membership, views, leases and handoff among the nodes of a cluster, as a pure state machine.
//!
//! Client 4-tuples fall into [`BUCKETS`] buckets. In a *view* every bucket has one owner, which serves its connections,
//! and backups, which hold replicas of them. The inputs of a [`Node`] are datagrams, time, the answers of a witness and
//! the progress of the replicas. Its outputs are datagrams, the roles of this node, and the leases that the gate in the
//! kernel checks before a packet may leave.
//!
//! # Guarantees
//! - Of two nodes at most one has an open gate for a bucket. An owner's gate is open until the first lease of its
//!   backups, or its own, expires. Leases count from the *sending* time of the heartbeat that they answer, and a node
//!   that replaces the owner waits longer. In majority mode this holds under any partition. In witness mode it holds
//!   while two live nodes that both reach the witness receive each other within [`Timing::take`].
//! - Only a node in sync resumes connections. Any other node begins a bucket empty, as a new [`DataEpoch`].
//! - Clocks of two nodes are never compared. A node reads its own clock, and its own clock as echoed.
//! - No input of a peer makes a node panic or grow without bound. Forged, replayed, foreign and malformed datagrams are
//!   counted by reason ([`Rejected`]) and change nothing.
//!
//! # Order of calls
//! The shell runs one thread. A turn reads the clock, drains the sockets into [`Node::handle_datagram`], reports the
//! positions of replicas ([`Node::handle_stored`]), and calls [`Node::handle_timer`] with the clock read *before*
//! draining. Then it acts on [`Node::poll_event`], writes [`Node::leases`] to the gate, and sends
//! [`Node::poll_transmit`]. A calm datagram ([`is_calm`]) needs no wake-up: the next turn drains it.
//!
//! Not done here: reading clocks, using sockets, drawing randomness, reading the contents of a replica.

#![forbid(unsafe_code)]

mod announcer;
mod assignment;
mod ballot;
mod bucket_ops;
mod bucket_state;
mod buckets;
mod clock;
mod config;
mod config_compat;
mod event;
mod heartbeat;
mod ids;
mod installed_view;
mod invariants;
mod join;
mod key;
mod lease;
mod load;
mod membership;
mod message;
mod network_loss;
mod node;
mod outbox;
mod peer;
mod peers;
mod phase;
mod phase_diagram;
mod phase_machine;
mod proposal_members;
mod rebalance;
mod rendezvous;
mod replay_window;
mod replica_placement;
mod transition_set;
mod unlisted_nodes;
mod view_change;
mod witness;

pub use config::{ClusterId, Config, ConfigError, Mode, Pace, Timing};
pub use config_compat::{CONFIGURATIONS, ROLLOUT};
pub use event::{Event, HandoffId, Leases, NodePhase, OwnershipStart, Rejected, Role, Transmit};
pub use ids::{
    BUCKETS, Bucket, DataEpoch, Incarnation, Member, MemberSet, Members, NODES_MAX, NodeId, Path, Reach,
    Term, ViewId,
};
pub use key::{KeyId, Keyring, TAG_BYTES};
pub use message::{
    AnnouncedPhase, Assignment, Body, CALM_AT, Change, Claim, ClaimedState, Commit, DATAGRAM_BYTES_MAX,
    DecodeError, Header, Heartbeat, Holds, Message, OPS_MAX, Op, Prepare, Promise, VERSION, is_calm,
};
pub use node::Node;
pub use outbox::TRANSMITS_MAX;
pub use phase::{PhaseEvent, PhaseName, TRANSITIONS, Transition};
pub use phase_diagram::{phase_diagram, phase_table};
pub use transition_set::TransitionSet;
