//! Report of a Recorder at its end.

use crate::record::digest::Counts;
use evergate_evidence::statement::Counters;
use serde::Serialize;

/// What the Recorder did since its start.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    /// Packet records.
    pub(crate) packets: u64,
    /// Captured bytes.
    pub(crate) bytes: u64,
    /// Packets that the record declares lost.
    pub(crate) declared_lost: u64,
    /// Packets that the sockets counted.
    pub(crate) seen: u64,
    /// Packets that the interface counted.
    pub(crate) interface_received: u64,
    /// Packets that the interface lost.
    pub(crate) interface_missed: u64,
    /// Whether every packet that the sockets counted is recorded or declared lost.
    pub(crate) balanced: bool,
    /// Time in emergency mode.
    pub(crate) emergency_ms: u32,
    /// Last batch on disk.
    pub(crate) last_batch: u64,
    /// Last batch with a receipt.
    pub(crate) acknowledged: u64,
    /// Last record.
    pub(crate) last_seq: u64,
}

impl Report {
    pub(crate) fn new(counts: &Counts, balanced: bool, last_seq: u64) -> Report {
        let Counts { packets, bytes, emergency_ms } = *counts;
        Report { packets, bytes, emergency_ms, balanced, last_seq, ..Report::default() }
    }

    pub(crate) fn set_counters(&mut self, counters: &Counters) {
        self.declared_lost = counters.dropped;
        self.seen = counters.seen;
        self.interface_received = counters.if_rx;
        self.interface_missed = counters.if_missed;
    }

    pub(crate) fn print(&self, is_json: bool) {
        if is_json {
            println!("{}", serde_json::to_string(self).unwrap_or_default());
            return;
        }
        println!(
            "recorded {} packets, {} MB; declared lost {}; interface received {}\nbatches {}, acknowledged {}; \
             emergency mode {} ms",
            self.packets,
            self.bytes / 1_000_000,
            self.declared_lost,
            self.interface_received,
            self.last_batch,
            self.acknowledged,
            self.emergency_ms
        );
        if !self.balanced {
            println!("warning: the record does not account for every packet that the sockets counted");
        }
    }
}
