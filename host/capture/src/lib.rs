//! Packet capture: TPACKET_V3 rings, classic BPF, counters and features of interfaces.
//!
//! A [`Ring`] receives packets from one interface in blocks that the kernel shares. A [`Block`] may go to another
//! thread; dropping it gives the memory back. The losses are exact: between [`Ring::open`] and the end of a drain,
//! packets in blocks + [`Counters::dropped`] = [`Counters::seen`].
//!
//! Thin, checked wrappers over system calls. Each unsafe block states why its arguments are valid. The contents of
//! blocks are read as untrusted bytes, so that no offset leaves the block.

#![allow(unsafe_code)]

mod block;
mod error;
mod ethtool;
mod filter;
#[cfg(feature = "generator")]
pub mod generator;
mod interface;
mod mapping;
mod privileges;
mod ring;
mod sockopt;
mod statistics;

pub use block::{BlockView, PacketType, Packets, RawPacket, Status, VlanTag};
pub use error::CaptureError;
pub use ethtool::Offloads;
pub use filter::Filter;
pub use interface::Interface;
pub use mapping::Block;
pub use privileges::{drop_privileges, has_net_raw};
pub use ring::{Counters, Group, Ring, RingOptions, Wait};
pub use statistics::InterfaceStatistics;
