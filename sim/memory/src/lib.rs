//! A host of workers in memory, for tests and fuzz targets.
//!
//! A [`Process`] is one worker of `proto/worker` over a [`MemoryHost`]. The test plays everything around it: clients
//! and servers are [`Peer`]s, and a backup is at the far end of a [`Wire`]. The clock moves when the test passes time,
//! and a little with each reading and idle turn. A socket is two vectors of bytes with a window, and its readiness is
//! reported as by epoll.
//!
//! The host checks laws that only a host sees, and records each violation ([`MemoryHost::violations`]): no byte follows
//! the end of a socket, and no input is acknowledged that the worker has not read.
//!
//! Not modelled: segments, retransmission, windows that a peer announces, holds of buckets, shortages of descriptors.
//! `sim/cluster` models them.

mod access_log;
mod channel;
mod gate;
mod generation;
mod host;
mod listener;
mod machine;
mod peer;
mod pipe;
mod poll;
mod process;
mod registrations;
mod reports;
mod restoring;
mod slot;
mod slot_table;
mod socket;
mod stream;
mod waker;

pub use access_log::MemoryLog;
pub use channel::{MemoryChannel, MemoryChannels, Wire};
pub use gate::MemoryGate;
pub use generation::{PoolOptions, generation};
pub use host::MemoryHost;
pub use listener::MemoryListener;
pub use machine::Dials;
pub use peer::Peer;
pub use pipe::MemoryPipe;
pub use poll::MemoryPoll;
pub use process::{BACKUP, BUCKET, NODE, Options, Process, SOURCE};
pub use registrations::{Readiness, Registrations};
pub use reports::MemoryReports;
pub use restoring::MemoryRestoring;
pub use slot::MemorySlot;
pub use socket::MemorySocket;
pub use stream::Closing;
pub use waker::MemoryWaker;
