//! Audited capture: the Recorder and the tools on its store.
//!
//! Formats and decisions live in `proto/`; this crate has the processes, files and threads around them.

pub mod bundle;
pub mod cli;
#[cfg(feature = "cold")]
mod cold;
pub mod expire;
pub mod export;
pub mod find;
pub mod hold;
pub mod holds;
pub mod index;
pub mod lookup;
pub mod outbox;
mod output;
pub mod play;
mod progress;
pub mod query;
pub mod record;
pub mod reveal;
pub mod seal;
pub mod segment_file;
pub mod sessions;
pub mod status;
pub mod store;
pub mod test_points;
#[cfg(feature = "object-store")]
mod tier;
pub mod verify;
pub mod when;
