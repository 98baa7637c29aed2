//! The control plane: signals, reload, the admin API, metrics and health checks, on one thread beside the workers.
//!
//! One loop owns the [`crate::daemon::Daemon`] and makes all changes to it, one after the other. Slow work (reading a
//! configuration, checking files) runs on threads of its own and returns a message. Readers get the view that the loop
//! published last.
//!
//! Not here: work that a client's request waits for.

mod api;
pub mod client;
mod config_source;
pub mod console;
mod exposition;
mod file_watch;
mod main_loop;
mod metrics;
mod metrics_cluster;
mod notify;
mod pid_file;
mod published;
mod replication_status;
mod server;
mod signals;
mod socket;
pub mod status;

pub use config_source::{Origin, Read, Source};
pub use main_loop::{Options, run};
pub use signals::EarlySignals;
