//! `[cluster]`, validated.

use std::net::{IpAddr, SocketAddr};
use std::num::{NonZeroU8, NonZeroU16};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// `[cluster]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// Name that distinguishes clusters on one network.
    pub name: String,
    /// This node, one of `nodes`; `None` when the command line sets it.
    pub node: Option<NodeNumber>,
    /// File with the secret, which had 64 hexadecimal digits when checked.
    pub key_file: PathBuf,
    /// All nodes by number, at least one.
    pub nodes: Vec<ClusterNode>,
    /// Addresses that move, at least one.
    pub addresses: Vec<IpAddr>,
    /// Source addresses of server legs, at least one.
    pub server_source: Vec<IpAddr>,
    /// Interface towards the servers and the other nodes.
    pub inside_interface: String,
    /// Interface that clients come from.
    pub outside_interface: String,
    /// The addresses' Ethernet address; `None` = derived from the name.
    pub virtual_mac: Option<[u8; 6]>,
    /// Backups of each bucket; `None` = all other nodes.
    pub backups: Option<NonZeroU8>,
    /// Rule by which a node may act.
    pub mode: ClusterMode,
    /// Addresses that answer pings; not empty in [`ClusterMode::Witness`].
    pub witness: Vec<IpAddr>,
    /// Delivery of packets to their node.
    pub steering: Steering,
    /// UDP port of heartbeats; the TCP ports after it, one per worker, are for replication.
    pub port: NonZeroU16,
    /// First port of server legs; all blocks lie below 65536.
    pub server_ports_first: u16,
    /// Ports of server legs of each bucket.
    pub ports_per_bucket: u16,
    /// Folder on a BPF file system.
    pub pins: PathBuf,
    /// Timing profile: how exactly threads run on time.
    pub timing: ClusterTiming,
    /// Flows at a time.
    pub flows_max: u32,
    /// Whether SYNs are answered without keeping state, where the client sends first.
    pub stateless_accept: bool,
    /// Share of the load.
    pub weight: u16,
}

impl Cluster {
    /// The entry of a node.
    pub fn entry(&self, number: NodeNumber) -> Option<&ClusterNode> {
        self.nodes.iter().find(|node| node.number == number)
    }

    /// Whether connections to this local address move.
    pub fn moves(&self, at: SocketAddr) -> bool {
        self.addresses.contains(&at.ip())
    }
}

/// A node's number as people write it: 1 to 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeNumber(NonZeroU8);

impl NodeNumber {
    /// Most nodes of a cluster, and the highest number.
    pub const MAX: u8 = 32;

    /// The node of this number; `None` outside 1 to 32.
    pub fn new(number: u8) -> Option<NodeNumber> {
        NonZeroU8::new(number).filter(|number| number.get() <= NodeNumber::MAX).map(NodeNumber)
    }

    /// The number.
    pub fn get(self) -> u8 {
        self.0.get()
    }
}

/// `[[cluster.nodes]]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNode {
    /// Unique among the nodes.
    pub number: NodeNumber,
    /// Address on the inside network.
    pub inside: IpAddr,
    /// Address on the outside network.
    pub outside: IpAddr,
}

/// Rule by which a node may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClusterMode {
    /// A witness answers, or all nodes agree.
    Witness,
    /// More than half of the nodes agree.
    Majority,
}

/// Delivery of packets to their node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Steering {
    /// One node receives all packets and forwards them.
    Steer,
    /// Every node gets them and takes its own.
    Flood,
}

/// Timing profile: how exactly threads run on time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterTiming {
    /// Detected: virtual if the machine shows a sign of a hypervisor.
    Auto,
    /// Within a few milliseconds.
    BareMetal,
    /// Now and then up to a tenth of a second late.
    VirtualMachine,
}
