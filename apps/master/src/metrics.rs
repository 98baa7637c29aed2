//! Counters of the Master, and the page that Prometheus reads.

use evergate_evidence::submission::RefusalCode;
use evergate_metrics::{Kind, Page};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper bounds of the latency histogram, in ms.
const BOUNDS_MS: [u64; 8] = [5, 10, 25, 50, 100, 250, 1000, 5000];

/// Counters of one Master.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Entries appended since the start.
    pub entries: AtomicU64,
    /// Checkpoints signed since the start.
    pub signatures: AtomicU64,
    /// Signatures that failed.
    pub signature_failures: AtomicU64,
    /// Receipts sent.
    pub receipts: AtomicU64,
    /// Recorders connected now.
    pub connected: AtomicU64,
    /// Handshakes that failed.
    pub handshake_failures: AtomicU64,
    /// Requests to witnesses that failed.
    pub witness_failures: AtomicU64,
    /// Requests for time stamps that failed.
    pub tsa_failures: AtomicU64,
    /// Time stamps in the log since the start.
    pub timestamps: AtomicU64,
    /// Requests of disclosure that were logged.
    pub disclosures: AtomicU64,
    /// Requests of disclosure that were refused, and logged as such.
    pub disclosures_refused: AtomicU64,
    /// Times at which the clock was before the last entry.
    pub clock_steps: AtomicU64,
    /// Entries of the newest checkpoint.
    pub log_size: AtomicU64,
    refused: [AtomicU64; RefusalCode::ALL.len()],
    signature_ms: Mutex<Histogram>,
    receipt_ms: Mutex<Histogram>,
}

#[derive(Clone, Debug, Default)]
struct Histogram {
    buckets: [u64; BOUNDS_MS.len() + 1],
    sum_us: u64,
}

impl Histogram {
    fn record(&mut self, time: Duration) {
        let ms = time.as_millis() as u64;
        let bucket = BOUNDS_MS.iter().position(|&bound| ms <= bound).unwrap_or(BOUNDS_MS.len());
        self.buckets[bucket] += 1;
        self.sum_us += time.as_micros() as u64;
    }
}

/// Adds one to a counter.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Metrics {
    /// Records a refusal.
    pub fn record_refused(&self, code: RefusalCode) {
        count(&self.refused[code as usize - 1]);
    }

    /// Records how long a signature took.
    pub fn record_signature(&self, time: Duration) {
        count(&self.signatures);
        self.signature_ms.lock().unwrap_or_else(PoisonError::into_inner).record(time);
    }

    /// Records the time from the arrival of a statement to its receipt.
    pub fn record_receipt(&self, time: Duration) {
        count(&self.receipts);
        self.receipt_ms.lock().unwrap_or_else(PoisonError::into_inner).record(time);
    }

    /// Refusals by reason.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RefusalCode::ALL.into_iter().map(|code| (code.name(), get(&self.refused[code as usize - 1])))
    }

    /// The page.
    pub fn page(&self) -> String {
        use Kind::{Counter, Gauge};
        let mut page = Page::new("evergate_master");
        let mut put = |name, kind, help, counter| page.put(name, kind, help, get(counter));
        put("entries_total", Counter, "Entries appended to the log", &self.entries);
        put("signatures_total", Counter, "Checkpoints signed", &self.signatures);
        put("signature_failures_total", Counter, "Signatures that failed", &self.signature_failures);
        put("receipts_total", Counter, "Receipts sent", &self.receipts);
        put("recorders_connected", Gauge, "Recorders connected", &self.connected);
        put("handshake_failures_total", Counter, "Handshakes that failed", &self.handshake_failures);
        put("witness_failures_total", Counter, "Requests to witnesses that failed", &self.witness_failures);
        put("tsa_failures_total", Counter, "Requests for time stamps that failed", &self.tsa_failures);
        put("timestamps_total", Counter, "Time stamps in the log", &self.timestamps);
        put("disclosures_total", Counter, "Requests of disclosure logged", &self.disclosures);
        put(
            "disclosures_refused_total",
            Counter,
            "Requests of disclosure refused",
            &self.disclosures_refused,
        );
        put("clock_steps_total", Counter, "Times at which the clock went back", &self.clock_steps);
        put("log_size", Gauge, "Entries of the newest checkpoint", &self.log_size);
        page.put_labelled("refused_total", Counter, "Refusals by reason", "reason", self.refused());
        put_histogram(&mut page, "signature_seconds", "Time of a signature", &self.signature_ms);
        put_histogram(&mut page, "receipt_seconds", "Time from a statement to its receipt", &self.receipt_ms);
        page.into_text()
    }
}

fn put_histogram(page: &mut Page, name: &str, help: &str, histogram: &Mutex<Histogram>) {
    let histogram = histogram.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let bounds = BOUNDS_MS.map(|bound| bound as f64 / 1000.0);
    page.put_histogram(name, help, &bounds, &histogram.buckets, histogram.sum_us as f64 / 1e6);
}
