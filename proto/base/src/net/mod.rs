//! What crosses the border to an operating system's network: results, parameters and positions, without system calls.

mod event;
mod flow;
mod gate;
mod keepalive;
mod network;
mod tcp_params;
mod tcp_probe;
mod transfer;

pub use event::Event;
pub use flow::Flow;
pub use gate::{DivertedSegment, GateEvents, Origin, PeerPosition, Restored, Strange, ahead_max};
pub use keepalive::Keepalive;
pub use network::{Network, NetworkError};
pub use tcp_params::{Restore, Stamp, TcpParams};
pub use tcp_probe::{Loss, Probe};
pub use transfer::Transfer;
