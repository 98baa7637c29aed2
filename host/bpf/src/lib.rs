//! Packet gate: the kernel side of failover. It decides what may leave this node, and which packets are its own.
//!
//! Programs in C (`src/bpf`) run at the tc hooks of the node's interfaces:
//! - the **gate** withholds ACKs above `committed`, and FINs and RSTs, of every gated flow until the program releases
//!   them. A flow is gated from its first packet on; it stays gated when the process dies;
//! - the **owner table** decides for each of 1024 buckets whether a packet is ours, on hold, or another node's. Leases
//!   silence the node when its grants expire;
//! - **neighbour answers** give the virtual MAC of the movable addresses, from one node only;
//! - the **stateless accept** ([`Accept`], optional) answers SYNs with cookies that any node can check.
//!
//! # Order of calls
//! [`PacketGate::load`], then [`PacketGate::add_address`] and [`PacketGate::add_listener`], owners and leases, and
//! [`PacketGate::attach`] last: a gate without addresses lets packets of unknown addresses pass. Nothing is detached
//! when the process ends.
//!
//! # Threads
//! [`PacketGate`], [`Owners`] and [`Leases`] may be shared by any threads: they are maps of the kernel and atomics in
//! shared memory. A [`WorkerPort`] belongs to one worker thread: its ring of events and its batch of ACKs have no
//! locks. A [`Slot`] belongs to the driver of the connection, may move between threads with it, and is returned with
//! [`WorkerPort::finish`]. ACKs are emitted with a test run, which looks up interfaces in the network namespace of the
//! *calling thread*.
//!
//! # Limits
//! The gate makes no decisions: the layers above decide when an ACK may leave, which node owns a bucket and until when
//! a lease holds. It does not restore sockets (`evergate-sys`), and it does not read the bytes of a stream.

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
pub use error::GateError;
pub use evergate_base::net::{
    DivertedSegment, Flow, GateEvents, Origin, PeerPosition, Restored, Strange, ahead_max,
};
pub use feature::missing_gate_features;
pub use gate::{Address, Mode, Options, PacketGate, interface_index};
pub use owner_table::{BACKUPS_MAX, Leases, Owner, Owners};
pub use slot::Slot;
pub use worker_port::{BATCH, WorkerPort, WorkerPortId};
