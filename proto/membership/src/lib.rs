//! Who owns a bucket: membership, views, leases and hand-over of a cluster's nodes, as a pure state machine.
//!
//! Client 4-tuples fall into [`BUCKETS`] buckets. In a *view* every bucket has one owner, which serves its connections,
//! and backups, which hold a mirror of them. A [`Node`] takes datagrams, time, the answers of a witness and the progress
//! of the mirrors, and answers with datagrams, the roles of this node, and the leases that the gate in the kernel checks
//! before it lets a packet out.
//!
//! # What holds
//! - Of two nodes at most one has an open gate for a bucket: an owner's gate is open only until the leases of all its
//!   backups and its own run out, counted from the *sending* time of what they answer; whoever replaces it waits longer.
//!   In majority mode under any partition; in witness mode as long as two live nodes that both reach the witness hear
//!   each other within [`Timing::take`].
//! - Only a node in sync resumes connections; any other begins a bucket empty, as a new [`Generation`].
//! - No clock is compared with another node's: a node reads its own, and its own as echoed.
//! - Nothing a peer sends makes it panic or grow without bound; forged, replayed, foreign and malformed datagrams are
//!   counted by reason ([`Rejected`]) and change nothing.
//!
//! # Who calls what
//! The shell runs one thread: read the clock, drain the sockets into [`Node::handle_datagram`], tell what mirrors hold
//! ([`Node::handle_stored`]), call [`Node::handle_timer`] with the clock read *before* draining, then act on
//! [`Node::poll_event`], write [`Node::leases`] to the gate, and send [`Node::poll_transmit`]. It need not wake up for
//! datagrams that may wait ([`is_calm`]): the next turn drains them.
//!
//! What it does not do: read clocks, use sockets, draw randomness, or know what a mirror contains.

#![forbid(unsafe_code)]

mod assignment;
mod bucket_ops;
mod bucket_state;
mod config;
mod config_compat;
mod event;
mod heartbeat;
mod ids;
mod invariants;
mod key;
mod lease;
mod load;
mod membership;
mod message;
mod network_loss;
mod node;
mod peer;
mod proposal_members;
mod rebalance;
mod rendezvous;
mod replay_window;
mod replica_placement;
mod unlisted_nodes;
mod view_change;

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
pub use node::{Node, TRANSMITS_MAX};
