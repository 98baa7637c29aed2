//! Metrics of a running Recorder, and the page that Prometheus reads: `record --metrics ADDRESS`.
//!
//! The ring thread and the digest thread store counters here and never wait. The page reads batches from the link, and
//! the disk at the time of the request.

use crate::cli::Failure;
use crate::record::digest::Counts;
use crate::record::job::Totals;
use crate::record::link::Link;
use crate::record::session::spawn;
use crate::status;
use crate::store::Store;
use evergate_metrics::{Kind, Page, serve};
use evergate_recorder::stream::RecordStream;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// Counters of one Recorder since its start.
#[derive(Debug)]
pub(crate) struct Metrics {
    start: Instant,
    /// Bytes of spilled blocks that have no digest yet.
    pub(crate) spilled: Arc<AtomicUsize>,
    ring: Ring,
    stream: Stream,
}

/// State of the ring.
#[derive(Debug, Default)]
struct Ring {
    blocks: AtomicUsize,
    /// Blocks that wait for their digests.
    occupied: AtomicUsize,
    is_emergency: AtomicBool,
    emergency_ms: AtomicU64,
}

/// Counters of the stream.
#[derive(Debug, Default)]
struct Stream {
    packets: AtomicU64,
    bytes: AtomicU64,
    lost_in_ring: AtomicU64,
    lost_on_disk: AtomicU64,
    lost_at_interface: AtomicU64,
    lost_while_down: AtomicU64,
    open_connections: AtomicUsize,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let (start, spilled) = (Instant::now(), Arc::default());
        Metrics { start, spilled, ring: Ring::default(), stream: Stream::default() }
    }

    /// Takes the state of the ring.
    pub(crate) fn record_ring(&self, occupied: usize, blocks: usize, totals: &Totals) {
        self.ring.blocks.store(blocks, Relaxed);
        self.ring.occupied.store(occupied, Relaxed);
        self.ring.is_emergency.store(totals.is_emergency, Relaxed);
        self.ring.emergency_ms.store(totals.emergency_ms.into(), Relaxed);
        self.stream.lost_in_ring.store(totals.ring.dropped, Relaxed);
    }

    /// Takes the number of packets that arrived while no Recorder ran, at most.
    pub(crate) fn record_down(&self, packets: u64) {
        self.stream.lost_while_down.store(packets, Relaxed);
    }

    /// Takes the counters of the stream.
    pub(crate) fn record_stream(&self, counts: &Counts, stream: &RecordStream) {
        let counters = stream.losses().counters();
        self.stream.packets.store(counts.packets, Relaxed);
        self.stream.bytes.store(counts.bytes, Relaxed);
        self.stream.lost_on_disk.store(stream.losses().unwritten(), Relaxed);
        self.stream.lost_at_interface.store(counters.if_missed, Relaxed);
        self.stream.open_connections.store(stream.connections(), Relaxed);
    }

    /// The page.
    fn page(&self, link: &Link, store: &Store) -> String {
        use Kind::{Counter, Gauge};
        let Metrics { start, spilled, ring, stream } = self;
        let mut page = Page::new("evergate_audit");
        page.put("up_seconds", Gauge, "Time since the start", start.elapsed().as_secs());
        page.put("packets_total", Counter, "Packets recorded", stream.packets.load(Relaxed));
        page.put("bytes_total", Counter, "Captured bytes of these packets", stream.bytes.load(Relaxed));
        let lost = [
            ("ring", stream.lost_in_ring.load(Relaxed)),
            ("interface", stream.lost_at_interface.load(Relaxed)),
            ("disk", stream.lost_on_disk.load(Relaxed)),
            ("down", stream.lost_while_down.load(Relaxed)),
        ];
        page.put_labelled("lost_packets_total", Counter, "Packets lost by reason", "reason", lost);
        page.put("connections", Gauge, "Open TCP connections", stream.open_connections.load(Relaxed));
        page.put("ring_blocks", Gauge, "Blocks of the ring", ring.blocks.load(Relaxed));
        let occupied = ring.occupied.load(Relaxed);
        page.put("ring_blocks_occupied", Gauge, "Blocks of the ring that wait for digests", occupied);
        let is_emergency = u8::from(ring.is_emergency.load(Relaxed));
        page.put("emergency", Gauge, "1 in emergency mode", is_emergency);
        let emergency_s = ring.emergency_ms.load(Relaxed) as f64 / 1000.0;
        page.put("emergency_seconds_total", Counter, "Time in emergency mode", emergency_s);
        page.put("spilled_bytes", Gauge, "Bytes of spilled blocks without digests", spilled.load(Relaxed));
        put_link(&mut page, link);
        put_disk(&mut page, store);
        page.into_text()
    }
}

fn put_link(page: &mut Page, link: &Link) {
    let (last, acknowledged) = link.batches();
    page.put("last_batch", Kind::Gauge, "Number of the last batch on disk", last);
    let help = "Number of the last batch with a receipt";
    page.put("last_acknowledged_batch", Kind::Gauge, help, acknowledged);
    let unanswered = if link.has_master() { last.saturating_sub(acknowledged) } else { 0 };
    let help = "Batches on disk that wait for receipts; 0 without a Master";
    page.put("unanswered_batches", Kind::Gauge, help, unanswered);
    if link.has_master() {
        let is_connected = u8::from(link.is_connected());
        page.put("master_connected", Kind::Gauge, "1 while connected to the Master", is_connected);
    }
    let help = "Rows that the index lacks until it catches up";
    page.put("index_rows_lost_total", Kind::Counter, help, link.index_rows_lost());
}

/// Free bytes, and the days that they last; what cannot be read is left out.
fn put_disk(page: &mut Page, store: &Store) {
    let Ok(space) = status::space(store) else { return };
    page.put("disk_free_bytes", Kind::Gauge, "Free bytes of the store's disk", space.free);
    if let Some(days) = space.days_left {
        let help = "Days until that disk is full, at the rate of the last day";
        page.put("disk_days_left", Kind::Gauge, help, days);
    }
}

/// Listener of `--metrics`.
pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    if !address.ip().is_loopback() {
        eprintln!(
            "evergate-audit: warning: metrics: {address} is no loopback address: every machine that reaches it can \
             read them; use 127.0.0.1 and a proxy with authentication"
        );
    }
    TcpListener::bind(address).map_err(|error| {
        Failure::wrong(format!(
            "metrics: cannot listen on {address}: {error}; give --metrics another address"
        ))
    })
}

/// Serves the page. The thread ends with the process.
pub(crate) fn start(
    listener: TcpListener,
    metrics: &Arc<Metrics>,
    link: &Arc<Link>,
    store: &Store,
) -> Result<(), Failure> {
    if let Ok(address) = listener.local_addr() {
        eprintln!("evergate-audit: metrics on http://{address}/metrics");
    }
    let (metrics, link, store) = (Arc::clone(metrics), Arc::clone(link), store.clone());
    let thread = spawn("metrics", move || {
        serve(&listener, || metrics.page(&link, &store));
        Ok(())
    });
    thread.map(drop)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    fn file(name: &str) -> String {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn names(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("evergate_audit_")).collect()
    }

    /// Names in this file's calls of `put`.
    fn served() -> BTreeSet<String> {
        let source = include_str!("metrics.rs").split("mod tests").next().expect("code");
        let calls = source.split("page.put").skip(1);
        calls.filter_map(|call| Some(format!("evergate_audit_{}", call.split('"').nth(1)?))).collect()
    }

    #[test]
    fn alerts_and_reference_name_the_metrics_of_the_page() {
        let (reference, rules) = (file("docs/reference/audit-cli.md"), file("dist/evergate-audit.rules.yml"));
        let served = served();
        assert!(served.len() > 10);
        assert_eq!(names(&reference), served.iter().map(String::as_str).collect());
        assert!(names(&rules).iter().all(|name| served.contains(*name)), "{:?}", names(&rules));
        for alert in rules.lines().filter_map(|line| line.split("alert: ").nth(1)) {
            assert!(reference.contains(&format!("| {alert} |")), "{alert}");
        }
    }
}
