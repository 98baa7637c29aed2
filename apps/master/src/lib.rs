//! Master of audited capture: receives statements of Recorders, appends them to its log, signs the log, answers with
//! receipts.
//!
//! # Threads
//! - One accepts connections; two per Recorder receive and send ([`server`]).
//! - The sequencer checks, orders and logs what waits, and makes it durable ([`sequencer`]).
//! - The publisher signs the newest head and answers ([`publisher`]). While it waits for the HSM, the sequencer logs
//!   more; one signature covers all of it.
//! - One has the escrow keys: it opens outer layers of requests that are logged and signed ([`escrow`]).
//! - One per witness and one for time stamps ([`witness`], [`timestamping`]). Their peers may be away.
//!
//! # Order of durable steps
//! Entries in the journal (fsync), tiles, signature, checkpoint (fsync, rename, fsync of the folder), answers.

#![forbid(unsafe_code)]

pub mod checkpoint_file;
pub mod cli;
pub mod config;
pub mod disclosures;
pub mod escrow;
pub mod http;
pub mod journal;
pub mod log;
pub mod metrics;
pub mod pkcs11;
pub mod problem;
pub mod publisher;
pub mod recorders;
pub mod reply;
pub mod run;
pub mod sequencer;
pub mod server;
pub mod signer;
pub mod snapshot;
pub mod status;
pub mod test_points;
pub mod tiles;
pub mod timestamping;
pub mod witness;
