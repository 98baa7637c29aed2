//! A model of the gate in a node's kernel (`host/bpf`): the packets that may leave for one flow, and the gate's memory
//! of its peer.
//!
//! Invariants: no ACK above `committed` leaves unless the slot is open. No FIN or RST leaves without permission, even
//! after the program has ended. The node checks ownership and leases, not this module.

use crate::event_queue::Time;
use crate::segment::{FIRST, Segment, number};
use evergate_base::net::Restored;

/// Least time between repeated ACKs that answer the peer.
const REPEAT: Time = 50_000;

/// The gate's memory of one flow.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    /// The highest ACK that may leave, set by the program.
    pub(crate) committed: u64,
    pub(crate) fin_allowed: bool,
    pub(crate) rst_allowed: bool,
    /// Whether nothing is withheld any more.
    pub(crate) open: bool,
    /// Whether the peer may acknowledge more than this kernel has sent.
    restored: bool,
    /// The kernel's newest ACK.
    kernel_ack: u64,
    kernel_edge: u64,
    snd_nxt: u64,
    /// The newest ACK that left.
    pub(crate) sent_ack: u64,
    sent_edge: u64,
    answered_at: Option<Time>,
    /// The peer's ACK as this kernel may know it; `peer_ack` is the true one.
    pub(crate) snd_una: u64,
    peer_ack: u64,
    /// Position whose ACK by the peer the program waits for.
    wakes_at: Option<u64>,
    /// One of both ends has sent RST.
    gone: bool,
}

impl Slot {
    /// The slot of a newly established flow.
    pub(crate) fn new(edge: u64) -> Slot {
        Slot {
            committed: FIRST,
            fin_allowed: false,
            rst_allowed: false,
            open: false,
            restored: false,
            kernel_ack: FIRST,
            kernel_edge: edge,
            snd_nxt: FIRST,
            sent_ack: FIRST,
            sent_edge: edge,
            answered_at: None,
            snd_una: FIRST,
            peer_ack: FIRST,
            wakes_at: None,
            gone: false,
        }
    }

    /// The slot of a flow that lived on another node.
    pub(crate) fn restored(from: &Restored) -> Slot {
        let (send, receive) = (number(from.send), number(from.receive));
        Slot {
            committed: receive,
            restored: true,
            kernel_ack: receive,
            snd_nxt: send,
            sent_ack: receive,
            snd_una: send,
            peer_ack: number(from.peer_has),
            ..Slot::new(receive + u64::from(from.window))
        }
    }

    /// Arms an event for the peer's ACK of `ack`. False when the peer has sent it already: then no event may come.
    pub(crate) fn wake_at(&mut self, ack: u64) -> bool {
        self.wakes_at = Some(ack);
        self.snd_una < ack
    }

    /// Whether the armed event occurred.
    pub(crate) fn wakes(&mut self) -> bool {
        let una = self.snd_una;
        self.wakes_at.take_if(|at| *at <= una).is_some()
    }

    /// Whether everything up to `end` is done with: the peer has acknowledged it, or one of both ends has sent RST.
    pub(crate) fn is_over(&self, end: u64) -> bool {
        self.gone || self.snd_una >= end
    }

    /// Whether less has been acknowledged than may be.
    pub(crate) fn owes_ack(&self) -> bool {
        self.sent_ack != self.committed
    }

    /// An ACK at the committed position, independent of the kernel's.
    pub(crate) fn template(&self, flow: crate::Flow) -> Segment {
        Segment::bare(flow, self.snd_nxt, Some(self.committed), self.kernel_edge)
    }

    /// The segment that leaves in place of `segment`, if any.
    pub(crate) fn egress(&mut self, now: Time, mut segment: Segment) -> Option<Segment> {
        if segment.rst && !(self.rst_allowed || self.open) {
            return None;
        }
        self.gone |= segment.rst;
        if segment.fin && !(self.fin_allowed || self.open) {
            if segment.data.is_empty() {
                return None;
            }
            segment.fin = false;
        }
        let Some(ack) = segment.ack else { return Some(segment) };
        let again = ack == self.kernel_ack && segment.edge == self.kernel_edge;
        if ack >= self.kernel_ack {
            self.kernel_ack = ack;
            self.kernel_edge = segment.edge;
        }
        if !segment.probe {
            self.snd_nxt = self.snd_nxt.max(segment.end());
        }
        let out = if self.open { ack } else { ack.min(self.committed) };
        // A restored flow that is given up while its peer has more than was made again: an end below would be ignored.
        let gives_up = (segment.fin || segment.rst) && segment.data.is_empty() && self.open && self.restored;
        if (segment.is_pure() || gives_up) && segment.seq < self.peer_ack {
            // The peer may be ahead of this kernel and would ignore its ACKs as old.
            segment.seq = self.peer_ack;
        }
        if out < ack && segment.is_pure() && out == self.sent_ack && self.is_silent(now, &segment, again) {
            return None;
        }
        segment.ack = Some(out);
        if out >= self.sent_ack {
            self.sent_ack = out;
            self.sent_edge = self.sent_edge.max(segment.edge);
        }
        Some(segment)
    }

    /// Whether to drop a lowered ACK without news. It passes if the peer runs short of window or waits for an answer.
    fn is_silent(&mut self, now: Time, segment: &Segment, again: bool) -> bool {
        let ack = segment.ack.unwrap_or_default();
        let left = self.sent_edge.saturating_sub(ack);
        if segment.edge > self.sent_edge && 2 * left < segment.edge - ack {
            return false;
        }
        if again && self.answered_at.is_none_or(|at| now > at + REPEAT) {
            self.answered_at = Some(now);
            return false;
        }
        true
    }

    /// Records the peer's position, and lowers ACKs that this kernel could not accept.
    pub(crate) fn ingress(&mut self, segment: &mut Segment) {
        if segment.rst && segment.seq == self.sent_ack {
            // A peer whose socket is gone refuses by the ACK that it received; this kernel knows only its own.
            segment.seq = self.kernel_ack;
        }
        self.gone |= segment.rst && segment.seq == self.kernel_ack;
        let plausible = segment.end() >= self.kernel_ack && segment.seq <= self.kernel_edge;
        let Some(ack) = segment.ack.filter(|_| plausible && !segment.syn && !segment.rst) else { return };
        let mut known = ack;
        if ack > self.snd_nxt {
            if !self.restored {
                return;
            }
            known = self.snd_nxt;
            segment.ack = Some(known);
        }
        self.peer_ack = self.peer_ack.max(ack);
        self.snd_una = self.snd_una.max(known);
    }
}
