//! Counters of the gate, summed over all processors.

use crate::GateError;
use libbpf_rs::{MapCore, MapFlags, MapHandle};

/// Counted events, in the order of `enum counter` in the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Counter {
    /// Packets whose ACK was lowered to `committed`.
    Clamped,
    /// Pure ACKs without news after lowering, dropped.
    AckDropped,
    /// ACKs emitted on request.
    AckEmitted,
    /// SACK options hidden.
    SackHidden,
    /// Incoming ACKs lowered after a failover.
    AckLowered,
    /// Pure ACKs moved up to what the peer acknowledged, after a failover.
    SeqRaised,
    /// FINs withheld.
    FinHeld,
    /// RSTs withheld.
    RstHeld,
    /// Packets stopped by a lapsed lease.
    Fenced,
    /// Packets stopped because another node owns the bucket.
    Foreign,
    /// Packets of gated ports without a registered flow, stopped.
    Unregistered,
    /// Connections that could not start because every slot was in use.
    NoSlot,
    /// Events that found no ring, or a full one.
    EventLost,
    /// Incoming packets recorded and dropped on hold.
    Held,
    /// Incoming packets passed on to their owner.
    Steered,
    /// Incoming packets of buckets that we back up, recorded and dropped.
    Shadowed,
    /// Incoming packets of others' buckets, dropped.
    NotOurs,
    /// Packets for another owner whose hop limit was spent, dropped.
    TtlSpent,
    /// Fragments, truncated packets, and packets with options or extension headers, for our addresses, dropped.
    Unsteerable,
    /// ARP and neighbour solicitations answered.
    NeighbourAnswered,
    /// ARP and neighbour solicitations not answered here, and messages stopped: another node answers for the address.
    NeighbourHeld,
    /// SYNs answered without keeping state.
    CookieSent,
    /// Connections accepted from a cookie.
    CookieAccepted,
    /// ACKs of unknown connections without a valid cookie.
    CookieWrong,
    /// Early segments: segments of connections whose sockets do not exist yet, diverted to the worker.
    EarlySegment,
    /// SYNs with data to listeners with stateless accept, dropped: their senders repeat them without data.
    SynData,
}

impl Counter {
    /// All counters, in order.
    pub const ALL: [Counter; 26] = [
        Counter::Clamped,
        Counter::AckDropped,
        Counter::AckEmitted,
        Counter::SackHidden,
        Counter::AckLowered,
        Counter::SeqRaised,
        Counter::FinHeld,
        Counter::RstHeld,
        Counter::Fenced,
        Counter::Foreign,
        Counter::Unregistered,
        Counter::NoSlot,
        Counter::EventLost,
        Counter::Held,
        Counter::Steered,
        Counter::Shadowed,
        Counter::NotOurs,
        Counter::TtlSpent,
        Counter::Unsteerable,
        Counter::NeighbourAnswered,
        Counter::NeighbourHeld,
        Counter::CookieSent,
        Counter::CookieAccepted,
        Counter::CookieWrong,
        Counter::EarlySegment,
        Counter::SynData,
    ];
}

/// A snapshot of all counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters([u64; Counter::ALL.len()]);

impl Counters {
    pub(crate) fn read(map: &MapHandle) -> Result<Counters, GateError> {
        let mut values = [0; Counter::ALL.len()];
        for (counter, value) in Counter::ALL.into_iter().zip(&mut values) {
            let found = map.lookup_percpu(&(counter as u32).to_ne_bytes(), MapFlags::ANY);
            let found =
                found.map_err(|error| GateError::bpf(format!("reading counter {counter:?}"), &error))?;
            for bytes in found.into_iter().flatten() {
                *value += bytes.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes));
            }
        }
        Ok(Counters(values))
    }

    /// One counter's value.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }
}
