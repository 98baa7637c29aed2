//! What a backup holds of a connection, and the entries it is made of.
//!
//! A connection is a value that can move: [`Replicated`] is that value as a backup knows it, [`Entry`] one change of it.
//! The owner queues entries in a [`Log`]; an output that depends on an entry leaves only after every backup of the
//! bucket acknowledged it. Which output waits for which entry, and the laws behind that, are in `docs/internals/failover.md`; the
//! connection crate applies them, this crate keeps the state and its invariants. What backups hold of a peer's stream may be
//! acknowledged: how much of it is, and when, [`Positions`] decides.
//!
//! Invariants: positions are absolute and never move backwards; a record boundary, once queued, is irrevocable; the
//! fold of a prefix of the log is always a state that a connection can be restored from.
//! This crate does not decide when to mirror, and it does not send anything.

mod ack_gate;
mod batching;
mod checkpoint_codec;
mod codec;
mod connection_state;
mod entry;
mod frame;
mod log;
mod replica_store;
mod sender;
mod validate;

pub use ack_gate::{AckGate, AckSlot, Delay, InputBoundary, Origin, ResumePoint};
pub use batching::{FrameBatcher, NextTurn, Urgency};
pub use codec::{ENTRY_BYTES_MAX, STATE_BYTES_MAX, WireError};
pub use connection_state::{ConnectionState, Stash};
pub use entry::{
    BoundLeg, ClientCheckpoint, ConnectionId, Entry, Established, Flight, Hello, Kind, LegTls, Open, Phase,
    RecordKind, RecordLayout, RecordPosition, Route, RouteFlags, ServerCheckpoint, Side,
};
pub use frame::{Answer, FRAME_BYTES_MAX, FRAME_VERSION, Frame, LegFacts, SessionNews};
pub use log::{Log, OUTSTANDING_MAX};
pub use replica_store::{Announced, Recovered, ReplicaError, ReplicaStore, ReplicatedConnection};
pub use sender::{ANSWERS_WITHIN, SENDER_BYTES_MAX, SENDER_FRAMES_MAX, Sender, SenderError};
pub use validate::{
    FLIGHT_BYTES_MAX, GENERATION_MAX, NUMBER_MAX, OFFER_BYTES_MAX, OutOfRange, POSITION_MAX, RUN_BYTES_MAX,
};
