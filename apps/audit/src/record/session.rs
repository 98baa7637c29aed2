//! One run of the Recorder, from its START mark to its STOP mark.

use crate::cli::Failure;
use crate::index::{IndexWriter, catch_up};
use crate::record::args::RecordArgs;
use crate::record::digest::{Outlet, Unanswered};
use crate::record::feed::{FeedListener, Uncovered};
use crate::record::link::{Link, Master};
use crate::record::metrics::{self, Metrics};
use crate::record::receipts::last_acknowledged;
use crate::record::recovery::Recovered;
use crate::record::report::Report;
use crate::record::reserve;
use crate::record::source::{Fed, Source};
use crate::record::writer::{Writer, commit};
use crate::segment_file::SegmentFile;
use crate::store::{Store, StoreInfo};
use evergate_capture::InterfaceStatistics;
use evergate_evidence::mark::MarkKind;
use evergate_evidence::statement::Partition;
use evergate_recorder::connection_table::Limits;
use evergate_recorder::stream::{Origin, RecordStream, SegmentLimits};
use evergate_submission::Identity;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Outputs that wait for the writer, at most a block of the ring each.
const OUTPUTS_MAX: usize = 16;
const POLL: Duration = Duration::from_millis(50);

/// Everything that a run needs.
pub(crate) struct Session<'a> {
    pub(crate) args: &'a RecordArgs,
    pub(crate) store: Store,
    pub(crate) info: StoreInfo,
    pub(crate) identity: Identity,
    pub(crate) recovered: Recovered,
    pub(crate) master: Option<Master>,
    pub(crate) source: Source,
    pub(crate) feed: Option<FeedListener>,
    /// Listener of `--metrics`.
    pub(crate) metrics: Option<TcpListener>,
}

/// Content of START and STOP: counters of the interface since it exists. JSON (RFC 8785): keys in order.
#[derive(Serialize)]
struct SourceMark<'a> {
    interface: &'a str,
    program: &'a str,
    rx_dropped_ambiguous: u64,
    rx_missed: u64,
    rx_packets: u64,
}

impl<'a> SourceMark<'a> {
    fn new(interface: &'a str, statistics: &InterfaceStatistics) -> SourceMark<'a> {
        SourceMark {
            interface,
            program: concat!("evergate-audit ", env!("CARGO_PKG_VERSION")),
            rx_dropped_ambiguous: statistics.rx_dropped,
            rx_missed: statistics.missed(),
            rx_packets: statistics.rx_packets,
        }
    }
}

impl Session<'_> {
    /// Runs until a signal, the time limit, or an error of a thread.
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let stop: Arc<AtomicBool> = Arc::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, stop.clone())
                .map_err(|error| Failure::wrong(format!("signals: {error}")))?;
        }
        let is_json = self.args.json;
        let (report, failure) = self.record(&stop)?;
        report.print(is_json);
        failure.map_or(Ok(ExitCode::SUCCESS), Err)
    }

    fn record(self, stop: &Arc<AtomicBool>) -> Result<(Report, Option<Failure>), Failure> {
        let unanswered = Unanswered::default();
        let link = Arc::new(self.link(unanswered.clone())?);
        let metrics = Arc::new(Metrics::new());
        let stream = self.stream(&metrics);
        let has_records = self.recovered.next_seq > 1;
        let Session { args, store, info, identity, source, feed, metrics: listener, .. } = self;
        let (name, baseline) = (source.name(), source.baseline(args.is_whole()));
        let (outputs, output_queue) = sync_channel(OUTPUTS_MAX);
        let (recycled, recycled_queue) = channel();
        let uncovered = Uncovered::default();
        let (commits, commit_queue) = channel();
        let writer = Writer::new(store.clone(), commits);
        let (commit_store, commit_link, link_thread) = (store.clone(), link.clone(), link.clone());

        let outlet = Outlet::new(unanswered, outputs, recycled_queue);
        let feed = feed.map(|feed| (feed, uncovered.clone()));
        let running = source.start(stream, outlet, &store, stop, &metrics, feed)?;
        let writer = spawn("writer", move || {
            let result = writer.run(&output_queue, &recycled);
            result.map_err(|error| format!("store: cannot write a segment: {error}"))
        })?;
        let committer = spawn("committer", move || {
            let result = commit(&commit_store, &commit_queue, &commit_link, &uncovered, baseline);
            result.map_err(|error| format!("store: cannot write the statements: {error}"))
        })?;
        let linked = spawn("link", move || link_thread.run(&identity))?;
        if let Some(listener) = listener {
            metrics::start(listener, &metrics, &link, &store)?;
        }
        reserve::start(&store, args.reserve_bytes(), stop)?;
        if has_records {
            catch_up_index(store.clone())?;
        }

        eprintln!(
            "evergate-audit: recording {name} into {} as Recorder {}",
            store.root().display(),
            info.recorder
        );
        let until = args.duration().map(|duration| Instant::now() + duration);
        let is_over = || {
            let has_ended = running.is_finished() || writer.is_finished() || committer.is_finished();
            has_ended
                || stop.load(Ordering::Relaxed)
                || (link.has_master() && linked.is_finished())
                || until.is_some_and(|until| Instant::now() >= until)
        };
        while !is_over() {
            std::thread::sleep(POLL);
        }
        stop.store(true, Ordering::Relaxed);

        let statistics = running.statistics();
        let (fed, ring_error) = running.join();
        let (report, digest_error) = match fed {
            Ok(fed) => (finish(fed, &name, &statistics), None),
            Err(error) => (Report::default(), Some(error)),
        };
        let errors = [ring_error, digest_error, join(writer).err(), join(committer).err()];
        link.stop();
        let failure = errors.into_iter().flatten().next().map(Failure::failed);
        let failure = failure.or(join(linked).err().map(Failure::wrong));
        let (last_batch, acknowledged) = link.batches();
        Ok((Report { last_batch, acknowledged, ..report }, failure))
    }

    /// The stream, continued where the store ends, up to its START mark.
    fn stream(&self, metrics: &Metrics) -> RecordStream {
        let Session { args, info, recovered, source, .. } = self;
        let now_ns = source.start_ns();
        let origin = Origin {
            recorder: self.identity.id(),
            partition: Partition { part: info.part, parts: info.parts },
            chain: recovered.chain,
            next_seq: recovered.next_seq,
            next_connection: recovered.next_connection,
            next_segment: recovered.next_segment,
            interfaces: vec![source.name()],
            filter: args.filter_text(),
            snaplen: args.snaplen,
        };
        let segments = SegmentLimits {
            bytes: u64::from(args.segment) << 20,
            age_ns: u64::from(args.segment_age) * 1_000_000_000,
        };
        let connections = Limits { hash_key: random_key(), ..Limits::default() };
        let mut stream = RecordStream::new(origin, connections, segments, now_ns);
        recovered.uncovered.iter().for_each(|record| stream.on_uncovered(record));
        if let Some(segment) = recovered.left_open {
            stream.end_left_open(segment.number, segment.bytes);
        }
        stream.on_mark(MarkKind::Start, &SourceMark::new(&source.name(), &source.before()));
        if recovered.next_seq > 1 {
            let (count, from_ns) = source.missed(&self.store).unwrap_or((0, now_ns));
            stream.on_down(count, from_ns);
            metrics.record_down(count);
        }
        stream
    }

    fn link(&self, unanswered: Unanswered) -> Result<Link, Failure> {
        let durable = self.recovered.chain.map_or(0, |chain| chain.batch);
        let acknowledged = last_acknowledged(&self.store)?;
        if acknowledged > durable {
            return Err(Failure::wrong(format!(
                "store: it has a receipt of batch {acknowledged}, and its statements end at batch {durable}: \
                 statements are missing; restore the newest copy, or record into a new folder with a new identity"
            )));
        }
        let mut starts = BTreeMap::new();
        if acknowledged < durable {
            for segment in self.store.segments().unwrap_or_default() {
                let first = SegmentFile::open(&segment.path).ok().and_then(|mut file| {
                    let located = file.read().ok()??;
                    Some(located.record.seq)
                });
                starts.extend(first.map(|seq| (seq, segment.number)));
            }
        }
        let index =
            IndexWriter::start(&self.store).map_err(|error| Failure::wrong(format!("index: {error}")))?;
        Ok(Link::new(
            self.store.clone(),
            self.master.clone(),
            unanswered,
            durable,
            acknowledged,
            starts,
            index,
        ))
    }
}

/// Indexes beside the Recorder what a crash or emergency mode left without rows. The thread ends with the process.
fn catch_up_index(store: Store) -> Result<(), Failure> {
    let thread = spawn("catch-up", move || {
        if let Err(error) = catch_up(&store) {
            eprintln!("evergate-audit: index: {error}; rows are missing until `evergate-audit index` runs");
        }
        Ok(())
    });
    thread.map(drop)
}

/// Ends the stream, and passes on the last output.
fn finish((mut stream, outlet, counts): Fed, name: &str, statistics: &InterfaceStatistics) -> Report {
    stream.stop(&SourceMark::new(name, statistics));
    let is_balanced = stream.losses().is_balanced();
    outlet.pass_on(&mut stream);
    let mut report = Report::new(&counts, is_balanced, stream.next_seq() - 1);
    report.set_counters(&stream.losses().counters());
    report
}

/// A key that no client knows, from the standard library's random state.
fn random_key() -> [u64; 2] {
    [0, 1].map(|word: u64| RandomState::new().hash_one(word))
}

pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<JoinHandle<Result<T, String>>, Failure> {
    let thread = Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(|error| Failure::wrong(format!("cannot start the {name} thread: {error}")))
}

pub(crate) fn join<T>(thread: JoinHandle<Result<T, String>>) -> Result<T, String> {
    let name = thread.thread().name().unwrap_or("a").to_owned();
    thread.join().unwrap_or_else(|_| Err(format!("the {name} thread panicked; please report it")))
}
