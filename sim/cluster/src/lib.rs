//! A cluster under virtual time.
//!
//! Real protocol crates ([`evergate_connection`], [`evergate_mirror`], [`evergate_cluster`]) between models of what they
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
//! computations take. See `docs/simulator.md`.

#![forbid(unsafe_code)]

mod agenda;
mod agent;
mod channel;
mod fault;
mod gate;
mod host;
mod kernel;
mod ledger;
mod leg;
mod net;
mod peer;
mod random;
mod segment;
mod tcp;
mod worker;
mod world;

pub use agenda::Time;
pub use fault::{Fault, Mutation, Whom};
pub use net::{Link, Weather};
pub use peer::{Application, Pace, Paces, Said, Seen};
pub use random::Random;
pub use segment::{Flow, Segment};
pub use tcp::{SEGMENT, Tcp};
pub use world::{Serve, Setup, Tally, Template, World};
