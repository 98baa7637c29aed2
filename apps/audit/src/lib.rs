//! Audited capture: the Recorder and the tools on its store.
//!
//! Formats and decisions live in `proto/`; this crate has the processes, files and threads around them.

pub mod bundle;
pub mod cli;
pub mod find;
pub mod index;
mod output;
mod progress;
pub mod record;
pub mod segment_file;
pub mod store;
pub mod verify;
pub mod when;
