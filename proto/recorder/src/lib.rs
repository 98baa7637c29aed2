//! Decisions of the Recorder of audited capture.
//!
//! The crate is pure: packets, times and counters in, records and statements out. Ring, files and Master are the
//! business of `apps/audit`.

#![forbid(unsafe_code)]

pub mod batch;
pub mod connection_table;
pub mod emergency;
pub mod feed;
pub mod frame;
mod hellos;
pub mod losses;
mod prefix;
pub mod stream;
