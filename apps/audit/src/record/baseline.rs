//! Baseline of the interface's counters, so that a later start knows what was missed while the Recorder was down.
//!
//! `recorder.state` is derived and is no evidence. Without it, or after a restart of the machine, the gap has count 0.

use crate::store::Store;
use evergate_evidence::statement::Counters;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

const FILE: &str = "recorder.state";
const PERIOD: Duration = Duration::from_secs(1);

/// Counters of the interface at the last commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Baseline {
    boot: String,
    interface: String,
    /// Received packets of the interface for which the record accounts.
    received: u64,
    time_ns: u64,
}

/// Writer of the baseline.
#[derive(Debug)]
pub(crate) struct BaselineFile {
    baseline: Baseline,
    /// Received packets of the interface when the ring opened.
    start: u64,
    /// Whether the record has all packets of the interface; a part of them counts by the interface instead.
    is_whole: bool,
    written: Option<Instant>,
}

impl BaselineFile {
    pub(crate) fn new(interface: &str, start: u64, is_whole: bool) -> BaselineFile {
        let baseline =
            Baseline { boot: boot(), interface: interface.to_owned(), received: start, time_ns: 0 };
        BaselineFile { baseline, start, is_whole, written: None }
    }

    /// Takes the counters of a statement that is on disk.
    pub(crate) fn on_commit(&mut self, store: &Store, counters: &Counters, time_ns: u64) {
        let accounted = if self.is_whole { counters.written + counters.dropped } else { counters.if_rx };
        self.baseline.received = self.start + accounted;
        self.baseline.time_ns = time_ns;
        if self.written.is_none_or(|written| written.elapsed() >= PERIOD) {
            self.written = Some(Instant::now());
            self.write(store);
        }
    }

    /// Writes the baseline.
    pub(crate) fn write(&self, store: &Store) {
        let text = serde_json::to_string(&self.baseline).unwrap_or_default();
        if let Err(error) = std::fs::write(store.root().join(FILE), text) {
            eprintln!("evergate-audit: store: cannot write {FILE}: {error}");
        }
    }
}

/// Packets that the interface received since the last baseline, and its time; `None` if nothing is known.
pub(crate) fn missed_since(store: &Store, interface: &str, received: u64) -> Option<(u64, u64)> {
    let text = std::fs::read_to_string(store.root().join(FILE)).ok()?;
    let baseline: Baseline = serde_json::from_str(&text).ok()?;
    let is_same = baseline.boot == boot() && baseline.interface == interface;
    is_same.then_some((received.checked_sub(baseline.received)?, baseline.time_ns))
}

fn boot() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim_end().to_owned()
}
