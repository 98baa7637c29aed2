//! Evidence formats of audited capture: what a Recorder stores, what a Master signs, and what a third party verifies.
//!
//! The crate is pure: bytes in, values or errors out. Every byte that it reads is hostile. A value has exactly one
//! encoding, and the decoders accept no other.

#![forbid(unsafe_code)]

mod reader;

pub mod connection_record;
pub mod deletion;
pub mod extents;
pub mod hold;
pub mod mark;
pub mod pcapng;
pub mod record;
pub mod retention;
pub mod segment;
