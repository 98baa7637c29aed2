//! A cluster under virtual time.
//!
//! Real workers ([`evergate_worker`]) and the real membership protocol ([`evergate_membership`]) run between models of
//! kernels with TCP, the gate, networks, clients and servers. A run is a function of its set-up and seed; the set-up
//! fixes the moments of faults. After every step the world checks for violations:
//!
//! - two bytes at one position of a stream towards a peer, or bytes after a FIN (so: no nonce used twice);
//! - an ACK of input that a required backup does not hold;
//! - two nodes whose gates are open for one bucket;
//! - memory without bound; a broken invariant of a crate.
//!
//! The applications that a test brings check that both ends receive the right streams to their end.
//!
//! Not modelled: the daemon's threads, the kernel beyond `host/bpf` and `tcp`, and computing time except for restored
//! sockets. See `docs/internals/simulator.md`.

#![forbid(unsafe_code)]

mod bucket_words;
mod doings;
mod endpoint;
mod event_queue;
mod fault;
mod gate;
mod generation;
mod host;
mod kernel;
mod model_host;
mod network;
mod output_checker;
mod ports;
mod process;
mod random;
mod segment;
mod slot_table;
mod tcp;
mod world;

pub use endpoint::{Application, Pace, Paces, Seen, Sent};
pub use event_queue::Time;
pub use fault::{Fault, Mutation, Target};
pub use network::{Link, Weather};
pub use random::Random;
pub use segment::{Flow, Segment};
pub use tcp::{SEGMENT, Tcp};
pub use world::{Coverage, Serve, Setup, Template, World};
