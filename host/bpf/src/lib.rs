//! The kernel side of fail-over: what may leave this node, and which packets are its own.
//!
//! Programs in C (`src/bpf`) run at the tc hooks of the node's interfaces:
//! - the **gate** withholds ACKs above `committed`, and FINs and RSTs, of every gated flow until the program releases
//!   them. A flow is gated from its first packet on; it stays gated when the process dies;
//! - the **owner table** decides for each of 1024 buckets whether a packet is ours, held, or another node's, and leases
//!   silence the node when nobody vouches for it any more;
//! - **neighbour answers** give the virtual MAC of the movable addresses, from one node only;
//! - the **stateless accept** ([`Accept`], optional) answers SYNs with cookies that any node can check.
//!
//! # Order of things
//! [`Gate::load`], then [`Gate::add_address`] and [`Gate::add_listener`], owners and leases, and [`Gate::attach`] last:
//! what is attached first lets packets of unknown addresses pass. Nothing is detached when the process ends.
//!
//! # Threads
//! [`Gate`], [`Owners`] and [`Leases`] may be shared by any threads: they are maps of the kernel and atomics in shared
//! memory. A [`Lane`] belongs to one worker thread: its ring of events and its batch of ACKs have no locks. A [`Slot`]
//! belongs to whoever drives the connection, may move between threads with it, and is given back with [`Lane::finish`].
//! ACKs are emitted with a test run, which looks up interfaces in the network namespace of the *calling thread*.
//!
//! # What it does not do
//! It decides nothing: when an ACK may go, who owns a bucket and until when a lease holds is said by the layers above.
//! It does not restore sockets (`evergate-sys`) and it knows nothing of what the bytes mean.

#![allow(unsafe_code)]

mod accept;
mod bucket;
mod clock;
mod cookie;
mod counters;
mod early_segment;
mod error;
mod feature;
mod flow;
mod gate;
mod libbpf_log;
mod owner_table;
mod pins;
mod skeleton;
mod slot;
mod slot_table;
mod table;
mod worker_port;

pub use accept::{Accept, CardState};
pub use bucket::{BucketKey, PortBlocks, bucket_of};
pub use cookie::CookieKey;
pub use counters::{Counter, Counters};
pub use early_segment::DivertedSegment;
pub use error::GateError;
pub use feature::missing_gate_features;
pub use flow::Flow;
pub use gate::{Address, Mode, Options, PacketGate, interface_index};
pub use owner_table::{BACKUPS_MAX, Leases, Owner, Owners};
pub use slot::{Origin, Restored, Slot, Strange, ahead_max};
pub use slot_table::PeerPosition;
pub use worker_port::{BATCH, Events, WorkerPort, WorkerPortId};
