//! A connection is a value: restored from a replica, it continues as if nothing had happened.
//!
//! Each run drives one connection with backups under a random schedule: segments, delays of replication, blocked
//! sockets, stalls, KeyUpdates. At chosen steps the connection is dropped and restored from nothing but the entries
//! that its backup has applied so far. A byte written to a peer at an absolute position must be written there again.
//! Input that was acknowledged must never be needed again. Both applications must see what they see in an undisturbed
//! run. Connections without backups are exported and imported at random steps and at every step (`upgrade_states`). A
//! record's sequence number is a function of its position in the stream, and the client opens every record in order:
//! two plaintexts under one nonce would show as two different bytes at one position.

#[path = "../harness/mod.rs"]
mod harness;

mod astray;
mod audited;
mod differing;
mod exhaustive;
mod forwarded;
mod greetings;
mod mutations;
mod pair;
mod random;
mod repeated;
mod scenario;
mod sessions;
mod upgrade_states;
mod world;
