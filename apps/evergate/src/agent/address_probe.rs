//! Probes of the shared addresses: whether frames for the virtual MAC reach the node that should get them.
//!
//! A switch, hypervisor or cloud with port security drops frames from or to a MAC that it did not assign. Heartbeats
//! pass, so such a node is active and no client reaches it. So each node sends an ARP request to the virtual MAC now
//! and then, from its own address. Two nodes find the fault: a node that should get frames and sees none, and a node
//! whose requests stay without an answer.
//!
//! Bound: one frame on each network within [`INTERVAL`]. Nothing is decided by the result: it is a warning. Without an
//! IPv4 address of the network among both the shared and the node's own ones, that network is not probed.

use evergate_base::Micros;
use evergate_membership::Path;
use evergate_sys::{ArpFrame, ArpProbe};
use evergate_worker::Interface;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

/// Between two probes on a network.
const INTERVAL: Micros = Micros::from_ms(2000);
/// How long frames may be absent: some probes in a row were lost, or a failover was under way.
const MISSING_AFTER: Micros = Micros::from_ms(10_000);
/// Frames read in one turn; more wait for the next one.
const FRAMES_MAX: usize = 64;

/// A fault between the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// This node should get frames for the virtual MAC, other nodes send some, and none arrives.
    NoFrames,
    /// The node that answers for the shared addresses does not answer a frame to the virtual MAC.
    NoAnswer,
}

/// Absence of something that should come.
#[derive(Debug, Default)]
struct Watch {
    /// Since when it should come; `None` while it need not.
    since: Option<Micros>,
    seen_at: Option<Micros>,
}

impl Watch {
    /// Whether it has been absent for too long. `expected`: it should come now; `seen`: it has come since the last
    /// call.
    fn is_missing(&mut self, now: Micros, expected: bool, seen: bool) -> bool {
        if seen {
            self.seen_at = Some(now);
        }
        self.since = expected.then(|| self.since.unwrap_or(now));
        self.since
            .is_some_and(|since| now.since(since.max(self.seen_at.unwrap_or_default())) >= MISSING_AFTER)
    }
}

/// One network that is probed.
struct ProbedNetwork {
    path: Path,
    shared: Ipv4Addr,
    own: Ipv4Addr,
    probe: ArpProbe,
    sent_at: Option<Micros>,
    frames: Watch,
    answers: Watch,
    fault: Option<Fault>,
}

/// The agent's knowledge about a network.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProbeContext {
    /// This node is in a view with others.
    pub(crate) has_others: bool,
    /// This node should get frames for the virtual MAC, and another member is received on this network.
    pub(crate) expects_frames: bool,
    /// Another node answers for the shared addresses, and is received on this network.
    pub(crate) expects_answer: bool,
}

/// A fault that came or went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FaultChange {
    pub(crate) path: Path,
    pub(crate) shared: Ipv4Addr,
    pub(crate) fault: Option<Fault>,
}

/// Probes on both networks.
pub(crate) struct AddressProbes {
    networks: Vec<ProbedNetwork>,
    virtual_mac: [u8; 6],
}

impl AddressProbes {
    /// `places`: each network with its interface, this node's own address and the shared ones there.
    pub(crate) fn new(
        places: [(Path, Interface, IpAddr, &[IpAddr]); 2],
        virtual_mac: [u8; 6],
    ) -> io::Result<AddressProbes> {
        let mut networks = Vec::new();
        for (path, interface, own, shared) in places {
            let v4 = |ip: &IpAddr| if let IpAddr::V4(ip) = ip { Some(*ip) } else { None };
            let (Some(own), Some(shared)) = (v4(&own), shared.iter().find_map(v4)) else { continue };
            let probe = ArpProbe::new(interface.index, interface.mac, virtual_mac)?;
            let (frames, answers) = (Watch::default(), Watch::default());
            networks.push(ProbedNetwork {
                path,
                shared,
                own,
                probe,
                sent_at: None,
                frames,
                answers,
                fault: None,
            });
        }
        Ok(AddressProbes { networks, virtual_mac })
    }

    /// As people write it.
    pub(crate) fn virtual_mac(&self) -> String {
        self.virtual_mac.map(|byte| format!("{byte:02x}")).join(":")
    }

    /// Reads answers and sends due probes; returns the faults that began or ended.
    pub(crate) fn poll(&mut self, now: Micros, context: impl Fn(Path) -> ProbeContext) -> Vec<FaultChange> {
        self.networks.iter_mut().filter_map(|network| network.poll(now, context(network.path))).collect()
    }

    /// Faults that last.
    pub(crate) fn faults(&self) -> impl Iterator<Item = (Path, Ipv4Addr, Fault)> {
        self.networks.iter().filter_map(|network| Some((network.path, network.shared, network.fault?)))
    }
}

impl ProbedNetwork {
    fn poll(&mut self, now: Micros, context: ProbeContext) -> Option<FaultChange> {
        let (mut got_frame, mut got_answer) = (false, false);
        for _ in 0..FRAMES_MAX {
            match self.probe.receive() {
                Some(ArpFrame::ToVirtualMac) => got_frame = true,
                Some(ArpFrame::Answer(ip)) => got_answer |= ip == self.shared,
                Some(ArpFrame::Other) => {}
                None => break,
            }
        }
        if context.has_others && self.sent_at.is_none_or(|at| now.since(at) >= INTERVAL) {
            self.sent_at = Some(now);
            // A probe that cannot be sent is one that gets no answer.
            let _ = self.probe.send(self.own, self.shared);
        }
        let no_frames = self.frames.is_missing(now, context.expects_frames, got_frame);
        let no_answer = self.answers.is_missing(now, context.expects_answer, got_answer);
        let fault = match (no_frames, no_answer) {
            (true, _) => Some(Fault::NoFrames),
            (false, true) => Some(Fault::NoAnswer),
            (false, false) => None,
        };
        let has_changed = std::mem::replace(&mut self.fault, fault) != fault;
        has_changed.then_some(FaultChange { path: self.path, shared: self.shared, fault })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 100_000;

    #[test]
    fn absence_counts_from_the_last_frame_and_only_while_expected() {
        let mut watch = Watch::default();
        let at = |ms| Micros::from_ms(ms);
        assert!(!watch.is_missing(at(0), true, false));
        assert!(!watch.is_missing(at(9_999), true, false));
        assert!(watch.is_missing(at(10_000), true, false));
        assert!(!watch.is_missing(at(10_100), true, true), "a frame came");
        assert!(!watch.is_missing(at(20_000), true, false));
        assert!(watch.is_missing(at(20_100), true, false));
        assert!(!watch.is_missing(at(20_200), false, false), "a failover");
        assert!(!watch.is_missing(at(20_300), true, false), "it counts from here");
        assert!(watch.is_missing(at(30_300), true, false));
    }

    #[test]
    fn lost_probes_are_no_fault_while_one_in_four_arrives() {
        let mut watch = Watch::default();
        for turn in 0..10_000u64 {
            let arrives = turn % (4 * INTERVAL.0 / STEP) == 0;
            assert!(!watch.is_missing(Micros(turn * STEP), true, arrives), "{turn}");
        }
    }
}
