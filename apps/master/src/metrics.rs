//! Counters of the Master, and the page that Prometheus reads.

use evergate_evidence::submission::RefusalCode;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
        let mut out = String::new();
        let rows = [
            ("entries_total", "counter", "Entries appended to the log", get(&self.entries)),
            ("signatures_total", "counter", "Checkpoints signed", get(&self.signatures)),
            ("signature_failures_total", "counter", "Signatures that failed", get(&self.signature_failures)),
            ("receipts_total", "counter", "Receipts sent", get(&self.receipts)),
            ("recorders_connected", "gauge", "Recorders connected", get(&self.connected)),
            ("handshake_failures_total", "counter", "Handshakes that failed", get(&self.handshake_failures)),
            (
                "witness_failures_total",
                "counter",
                "Requests to witnesses that failed",
                get(&self.witness_failures),
            ),
            (
                "tsa_failures_total",
                "counter",
                "Requests for time stamps that failed",
                get(&self.tsa_failures),
            ),
            ("timestamps_total", "counter", "Time stamps in the log", get(&self.timestamps)),
            ("clock_steps_total", "counter", "Times at which the clock went back", get(&self.clock_steps)),
            ("log_size", "gauge", "Entries of the newest checkpoint", get(&self.log_size)),
        ];
        for (name, kind, help, value) in rows {
            let name = format!("evergate_master_{name}");
            let _ = writeln!(out, "# HELP {name} {help}.\n# TYPE {name} {kind}\n{name} {value}");
        }
        let name = "evergate_master_refused_total";
        let _ = writeln!(out, "# HELP {name} Refusals by reason.\n# TYPE {name} counter");
        for (reason, value) in self.refused() {
            let _ = writeln!(out, "{name}{{reason=\"{reason}\"}} {value}");
        }
        put_histogram(&mut out, "signature_seconds", "Time of a signature", &self.signature_ms);
        put_histogram(&mut out, "receipt_seconds", "Time from a statement to its receipt", &self.receipt_ms);
        out
    }
}

fn put_histogram(out: &mut String, name: &str, help: &str, histogram: &Mutex<Histogram>) {
    let histogram = histogram.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let name = format!("evergate_master_{name}");
    let _ = writeln!(out, "# HELP {name} {help}.\n# TYPE {name} histogram");
    let mut sum = 0;
    for (bound, bucket) in BOUNDS_MS.iter().zip(histogram.buckets) {
        sum += bucket;
        let _ = writeln!(out, "{name}_bucket{{le=\"{}\"}} {sum}", *bound as f64 / 1000.0);
    }
    sum += histogram.buckets[BOUNDS_MS.len()];
    let seconds = histogram.sum_us as f64 / 1e6;
    let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {sum}\n{name}_sum {seconds}\n{name}_count {sum}");
}

/// Answers every request with the page, one after the other. A reader has one second.
pub fn serve(listener: &TcpListener, metrics: &Arc<Metrics>) {
    for socket in listener.incoming() {
        let Ok(socket) = socket else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let _ = answer(socket, metrics);
    }
}

fn answer(mut socket: TcpStream, metrics: &Metrics) -> std::io::Result<()> {
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    socket.set_write_timeout(Some(Duration::from_secs(1)))?;
    let mut head = [0; 4096];
    let mut len = 0;
    while len < head.len() && !head[..len].windows(4).any(|end| end == b"\r\n\r\n") {
        match socket.read(&mut head[len..])? {
            0 => return Ok(()),
            read => len += read,
        }
    }
    let (status, body) = match head.starts_with(b"GET /metrics ") {
        true => ("200 OK", metrics.page()),
        false => ("404 Not Found", "GET /metrics\n".to_owned()),
    };
    let kind = "text/plain; version=0.0.4";
    write!(
        socket,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}
