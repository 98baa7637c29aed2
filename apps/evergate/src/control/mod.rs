//! The control plane: signals, reload, the admin API, metrics and health checks, on one thread beside the workers.
//!
//! One loop owns the [`Daemon`] and does everything that changes it, one thing after the other. What is slow (reading a
//! configuration, looking at files) runs on threads of its own and comes back as a message; whoever only reads gets the
//! view that the loop published last.
//!
//! Not here: anything that a client's request waits for.

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
