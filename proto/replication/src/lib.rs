//! Replicated state of a connection at a backup, and the entries that change it.
//!
//! A connection is a value that can move: [`ConnectionState`] is that value at a backup, [`Entry`] one change of it.
//! The owner queues entries in a [`Log`]; output that depends on an entry leaves only after every backup of the bucket
//! has acknowledged the entry. `docs/internals/failover.md` lists which output waits for which entry, and why. The
//! connection crate applies these rules; this crate keeps the state and its invariants. Input that the backups hold may
//! be acknowledged to its peer: [`AckGate`] decides how much, and when.
//!
//! Invariants: positions are absolute and never move backwards. A record boundary, once queued, is irrevocable. The
//! replay of a prefix of the log is always a state from which a connection can be restored. This crate does not decide
//! when to replicate, and sends nothing.

mod ack_gate;
mod admission;
mod batching;
mod checkpoint_codec;
mod codec;
mod connection_state;
mod entry;
mod frame;
mod log;
mod record_layout;
mod replica_store;
mod sender;
mod validate;

pub use ack_gate::{AckGate, AckSlot, Delay, InputBoundary, Origin, ResumePoint};
pub use admission::EntryError;
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
