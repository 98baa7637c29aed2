//! The control plane: signals, reload, the admin API, metrics and health checks, on one thread beside the workers.
//!
//! One loop owns the [`Daemon`] and does everything that changes it, one thing after the other. What is slow (reading a
//! configuration, looking at files) runs on threads of its own and comes back as a message; whoever only reads gets the
//! view that the loop published last.
//!
//! Not here: anything that a client's request waits for.

mod api;
mod calendar;
pub mod client;
mod exposition;
pub mod message;
mod metrics;
mod metrics_cluster;
mod mirroring;
mod notify;
mod pid_file;
mod reload;
mod run;
mod server;
mod signals;
mod socket;
mod source;
mod state;
pub mod status;
mod upgrade;
mod watch;

pub(crate) use calendar::rfc3339;
pub use run::{Options, run};
pub use signals::Early;
pub use source::{Origin, Read, Source};
