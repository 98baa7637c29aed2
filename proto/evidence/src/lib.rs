//! Evidence of audited capture: what a Recorder stores, what a Master signs, and what a third party verifies.
//!
//! A Recorder hashes its [records](record) into batches, stores them in [segments](segment), and sends one
//! [statement](statement) for each batch. The Master appends statements to a log of [entries](entry), whose
//! [Merkle tree](merkle) it signs as [checkpoints](checkpoint). A [receipt](proof) proves that an entry is in the log.
//! Traffic secrets wait in sealed [envelopes](envelope) under the keys of their [epoch](epochs), until a
//! [request](disclosure) opens one of them.
//! Files of the log have the places of C2SP tlog-tiles ([tile]), signed text is a C2SP signed note ([note]).
//!
//! # Guarantees
//! - The crate is pure: bytes in, values or errors out. Every byte that it reads is hostile.
//! - No input makes a function panic or allocate more than a small multiple of its length.
//! - Every format has one encoding: bytes that decode are the bytes that encoding yields. So a verifier finds any
//!   changed bit.
//!
//! Not done here: reading files or clocks, and signature algorithms (see [`note::SignatureVerifier`]).

#![forbid(unsafe_code)]

pub mod base64;
pub mod capture_file;
pub mod checkpoint;
pub mod connection_record;
pub mod cursor;
pub mod deletion;
pub mod disclosure;
pub mod entry;
pub mod envelope;
pub mod epochs;
pub mod extents;
pub mod feed;
pub mod hold;
pub mod mark;
pub mod merkle;
pub mod note;
pub mod partition;
pub mod pcapng;
pub mod program;
pub mod proof;
pub mod record;
pub mod retention;
pub mod secrets;
pub mod segment;
pub mod statement;
pub mod submission;
pub mod tile;
pub mod verify;
