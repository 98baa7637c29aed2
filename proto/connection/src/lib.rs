//! The composed state machine of one connection: events in, effects out.
//!
//! A [`Connection`] has one client leg and at most one server leg at a time. The worker passes events of sockets and
//! timers to it (`handle_*`), and performs the answer: bytes in the worker's buffers, and [`Effect`]s. It owns no
//! socket, clock or thread, so the simulator and the property tests run the very code that serves traffic.
//!
//! # A connection is a value
//! With backups ([`Connection::start_replication`]) every output that `docs/internals/failover.md` ("What waits for
//! what") lists has its entry queued first. The output waits in an [`Outlet`] until the entry is acknowledged.
//! [`Connection::restore`] builds a connection from the replay of those entries alone. With the input that was never
//! acknowledged it writes the same bytes at the same positions. Without backups nothing is queued and nothing waits.
//! FINs and [`Effect::Release`] come when all backups hold what they depend on, so the worker performs them at once. A
//! leg that may carry the next request is released before ([`Connection::is_unsettled`]). `tests/value` drops and
//! restores connections at every step and compares each byte. For a process upgrade the sockets move too, and
//! [`Connection::export`] gives the state itself.
//!
//! # Invariants
//! - Input is consumed in order, each byte once; what cannot be consumed yet stays in `raw` (as received) or `plain`.
//! - Request `n + 1` starts only when response `n` has ended. With backups the client must have the response, and the
//!   backups must know that before they know of another leg: a failover needs one leg at most. A leg serves one
//!   request.
//! - A server connection that was authenticated for this client is released for no other one: see `bound`.
//! - Output at a position depends on replicated decisions and peers' bytes only: never on time, segmentation, the
//!   node's randomness or the interleaving of the two directions.
//! - No byte of a peer can make it panic or grow without bound: each buffer has a limit and a named answer at it.
//!
//! What it does not do: choose servers, keep idle server connections, count, log, or know what a socket is.

mod audit;
mod bound;
mod certificate_subject;
mod checkpoint;
mod client_checkpoints;
mod client_input;
mod client_leg;
mod client_source;
mod close;
mod config_snapshot;
mod connection;
mod deterministic_records;
mod effect;
mod eviction;
mod exchange;
mod framing;
mod greeting;
mod handshake;
mod keys;
mod leg_attempt;
mod leg_records;
mod leg_releases;
mod offered_sessions;
mod outlet;
mod output_releases;
mod own_answer;
mod peer_acks;
mod pending_input;
mod proxy_header;
mod received_response;
mod record_buffer;
mod record_replay;
mod record_runs;
mod replication;
mod request;
mod request_body;
mod request_log;
mod request_replay;
mod response;
mod restore;
mod routing;
mod sent_request;
mod server_checkpoints;
mod server_end;
mod server_leg;
mod server_legs;
mod splice;
mod timers;
mod tls_info;
mod tunnel;
mod unacked_input;
mod upgrade_state;
mod upstream_tls;
mod write_stall;

pub use audit::{Birth, ENVELOPE_BYTES_MAX, SealedSecrets};
pub use client_source::ClientSourceError;
pub use close::printable;
pub use config_snapshot::{
    AuditScope, Limits, Listener, Pool, RequestKey, Server, Snapshot, Stickiness, Timeouts, UpstreamTls,
};
pub use connection::{Accepted, Connection, ReadPlan};
pub use effect::{
    Answered, ConnectionHost, Effect, Effects, INPUT_BYTES, Io, LoggedHeaders, Piece, RequestLog, Scratch,
    ServerHint, Source,
};
pub use eviction::{Activity, EvictionQueue, GROUPS_MAX, GroupId, Otherwise, SILENT_GRACE};
pub use offered_sessions::OfferedSessions;
pub use outlet::Outlet;
pub use record_buffer::{FIRST_READ, HEAD_ROOM, SLOTS, Slots};
pub use restore::{RestoreError, ResumedLeg};
pub use routing::undecided;
pub use server_leg::Failure;
pub use timers::Timer;
pub use unacked_input::UNDECIDED_MAX;
pub use upgrade_state::{UPGRADE_STATE_BYTES_MAX, UPGRADE_STATE_VERSION, UpgradeLeg, UpgradeStateError};
