//! A cluster under virtual time.
//!
//! Real protocol crates ([`evergate_connection`], [`evergate_replication`], [`evergate_membership`]) between models of what they
//! stand on: kernels with TCP, the gate, networks, clients and servers. A run is a function of its set-up and seed; faults
//! happen at moments that the set-up names. After every step the world checks what must never happen:
//!
//! - two bytes at one position of a stream towards a peer, bytes after a FIN (so: no nonce used twice);
//! - an ACK of input that a backup which commits wait for does not hold;
//! - two nodes whose gates are open for one bucket;
//! - memory without bound; an invariant of a crate broken.
//!
//! Whether both ends saw the right streams to their end is for the applications that a test brings to say.
//!
//! What it is not: a model of the daemon's threads, of the kernel beyond what `host/bpf` and `tcp` say, or of time that
//! computations take. See `docs/internals/simulator.md`.

#![forbid(unsafe_code)]

mod agent;
mod channel;
mod endpoint;
mod event_queue;
mod fault;
mod gate;
mod host;
mod kernel;
mod leg;
mod network;
mod output_checker;
mod random;
mod segment;
mod tcp;
mod worker;
mod world;

pub use endpoint::{Application, Pace, Paces, Seen, Sent};
pub use event_queue::Time;
pub use fault::{Fault, Mutation, Whom};
pub use network::{Link, Weather};
pub use random::Random;
pub use segment::{Flow, Segment};
pub use tcp::{SEGMENT, Tcp};
pub use world::{Serve, Setup, Tally, Template, World};
