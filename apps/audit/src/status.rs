//! `evergate-audit status`: what a store has, what waits, and how long the disk lasts.

use crate::cli::Failure;
use crate::find::Source;
use crate::hold::selection_text;
use crate::holds::HoldFile;
use crate::index::receipts::ReceiptFile;
use crate::index::{IndexedSegment, SegmentTable, StatementFile};
use crate::outbox;
use crate::output::{print_json, shown_bytes};
use crate::store::{SegmentPath, Store, StoreInfo};
use crate::when;
use evergate_base::terminal::shown;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const DAY_NS: u64 = 86_400_000_000_000;
/// Shortest period that gives a rate.
const RATE_NS_MIN: u64 = 1_000_000_000;

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder of the store
    dir: PathBuf,
    /// Result as JSON
    #[arg(long)]
    json: bool,
}

/// State of a store.
struct Status {
    info: StoreInfo,
    is_recording: bool,
    segments: Segments,
    /// Number of the last batch; 0 without one.
    batches: u64,
    /// Number of the last batch with a receipt; 0 without one.
    acknowledged: u64,
    /// Entries that wait for the Master.
    waiting: u64,
    disk: Disk,
    /// Names and selections of the holds in force.
    holds: Vec<(String, String)>,
    /// Closed segments that the index does not have whole.
    unindexed: u64,
}

struct Segments {
    count: u64,
    deleted: u64,
    bytes: u64,
    times_ns: Option<(u64, u64)>,
    /// Bytes a day over the last day of the record.
    bytes_per_day: Option<u64>,
}

struct Disk {
    free: u64,
    total: u64,
    spill_files: u64,
    spill_bytes: u64,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let status = read(&Store::at(&args.dir))?;
    if args.json {
        print_json(&status.to_json())?
    } else {
        status.print(&args.dir)
    }
    Ok(ExitCode::SUCCESS)
}

fn read(store: &Store) -> Result<Status, Failure> {
    let info = store.require()?;
    let files = store.segments().map_err(|error| failure(&store.root().join("segments"), &error))?;
    let rows = SegmentTable::open_to_read(store)?.map_or(Ok(Vec::new()), |table| table.all())?;
    let deleted = store.deleted_segments().map_err(|error| failure(store.root(), &error))?;
    let statements =
        StatementFile::open(&store.statements()).map_err(|error| failure(&store.statements(), &error))?;
    let waiting = outbox::pending_names(store).map_err(|error| failure(&store.outbox(), &error))?;
    let holds = HoldFile::read(store)?;
    let holds = holds.in_force().iter().map(|hold| (hold.name.clone(), selection_text(hold))).collect();
    Ok(Status {
        info,
        is_recording: store.is_locked(),
        segments: segments(&files, &rows, deleted.len() as u64),
        batches: statements.count(),
        acknowledged: last_acknowledged(store, &files)?,
        waiting: waiting.len() as u64,
        disk: disk(store)?,
        holds,
        unindexed: Source::open(store.clone())?.incomplete()?.len() as u64,
    })
}

/// Free bytes of the store's disk, and the days that they last at the rate of the last day of the record.
pub(crate) struct Space {
    pub(crate) free: u64,
    pub(crate) days_left: Option<f64>,
}

/// Space for the store now.
pub(crate) fn space(store: &Store) -> Result<Space, Failure> {
    let files = store.segments().map_err(|error| failure(&store.root().join("segments"), &error))?;
    let rows = SegmentTable::open_to_read(store)?.map_or(Ok(Vec::new()), |table| table.all())?;
    let free = disk(store)?.free;
    Ok(Space { free, days_left: days_left(free, segments(&files, &rows, 0).bytes_per_day) })
}

/// Days until the disk is full.
fn days_left(free: u64, bytes_per_day: Option<u64>) -> Option<f64> {
    bytes_per_day.filter(|rate| *rate > 0).map(|rate| free as f64 / rate as f64)
}

fn segments(files: &[SegmentPath], rows: &[IndexedSegment], deleted: u64) -> Segments {
    let is_file =
        |row: &&IndexedSegment| files.binary_search_by_key(&row.row.number, |file| file.number).is_ok();
    let timed: Vec<(u64, u64, u64)> = rows
        .iter()
        .filter(is_file)
        .filter_map(|row| row.row.times_ns.map(|(first, last)| (first, last, row.row.bytes)))
        .collect();
    let first = timed.iter().map(|(first, ..)| *first).min();
    let last = timed.iter().map(|(_, last, _)| *last).max();
    let recent: Vec<_> =
        timed.iter().filter(|(_, end, _)| *end >= last.unwrap_or(0).saturating_sub(DAY_NS)).collect();
    let begin = recent.iter().map(|(first, ..)| *first).min();
    let period_ns = last.zip(begin).map_or(0, |(last, begin)| last.saturating_sub(begin));
    let bytes: u128 = recent.iter().map(|(.., bytes)| u128::from(*bytes)).sum();
    let bytes_per_day = (period_ns >= RATE_NS_MIN)
        .then(|| u64::try_from(bytes * u128::from(DAY_NS) / u128::from(period_ns)).unwrap_or(u64::MAX));
    Segments {
        count: files.len() as u64,
        deleted,
        bytes: files.iter().map(|file| file.bytes).sum(),
        times_ns: first.zip(last),
        bytes_per_day,
    }
}

/// Number of the last batch with a receipt. Receipts come in the order of batches.
fn last_acknowledged(store: &Store, files: &[SegmentPath]) -> Result<u64, Failure> {
    for segment in files.iter().rev() {
        let path = store.proofs(segment.number);
        let at = |error: std::io::Error| failure(&path, &error);
        let (mut receipts, mut last) = (ReceiptFile::open(&path).map_err(at)?, 0);
        while let Some(receipt) = receipts.read().map_err(at)? {
            last = receipt.statement.batch.max(last);
        }
        if last > 0 {
            return Ok(last);
        }
    }
    Ok(0)
}

fn disk(store: &Store) -> Result<Disk, Failure> {
    let at = |error: std::io::Error| failure(store.root(), &error);
    let space = rustix::fs::statvfs(store.root()).map_err(|error| at(error.into()))?;
    let mut disk = Disk {
        free: space.f_bavail.saturating_mul(space.f_frsize),
        total: space.f_blocks.saturating_mul(space.f_frsize),
        spill_files: 0,
        spill_bytes: 0,
    };
    for entry in std::fs::read_dir(store.root()).map_err(at)? {
        let entry = entry.map_err(at)?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with("spill-")) {
            disk.spill_files += 1;
            disk.spill_bytes += entry.metadata().map_or(0, |file| file.len());
        }
    }
    Ok(disk)
}

fn failure(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::wrong(format!("status: {}: {error}", path.display()))
}

impl Status {
    /// Days until the disk is full at the rate of the last day of the record.
    fn days_left(&self) -> Option<f64> {
        days_left(self.disk.free, self.segments.bytes_per_day)
    }

    fn to_json(&self) -> Value {
        let holds: Vec<Value> = self
            .holds
            .iter()
            .map(|(name, selection)| json!({"name": name, "selection": selection}))
            .collect();
        let (first, last) = self.segments.times_ns.unzip();
        json!({
            "recorder": self.info.recorder, "installation": self.info.installation,
            "part": self.info.part, "parts": self.info.parts, "recording": self.is_recording,
            "segments": self.segments.count, "deleted_segments": self.segments.deleted,
            "bytes": self.segments.bytes, "bytes_per_day": self.segments.bytes_per_day,
            "first": first.map(when::shown_ns), "last": last.map(when::shown_ns),
            "last_batch": self.batches, "last_acknowledged": self.acknowledged,
            "pending_batches": self.batches.saturating_sub(self.acknowledged), "waiting_entries": self.waiting,
            "disk_free": self.disk.free, "disk_total": self.disk.total, "days_left": self.days_left(),
            "spill_files": self.disk.spill_files, "spill_bytes": self.disk.spill_bytes,
            "holds": holds, "unindexed_segments": self.unindexed,
        })
    }

    fn print(&self, dir: &Path) {
        let line = |label: &str, text: String| println!("{label:<14}{text}");
        line("store", dir.display().to_string());
        let recorder = shown(&self.info.recorder).into_owned();
        line("recorder", format!("{recorder}, part {} of {}", self.info.part, self.info.parts));
        line("recording", if self.is_recording { "yes".into() } else { "no".into() });
        line(
            "master",
            match self.info.installation.as_str() {
                "" => "none so far".into(),
                origin => shown(origin).into_owned(),
            },
        );
        let segments = &self.segments;
        line(
            "segments",
            format!("{} with {}, {} deleted", segments.count, shown_bytes(segments.bytes), segments.deleted),
        );
        if let Some((first, last)) = segments.times_ns {
            line("period", format!("{} to {} (UTC)", when::shown_short(first), when::shown_short(last)));
        }
        line(
            "batches",
            format!(
                "{}; acknowledged {}, pending {}",
                self.batches,
                self.acknowledged,
                self.batches.saturating_sub(self.acknowledged)
            ),
        );
        let days = self.days_left().map(|days| format!(", {days:.1} days at the rate of the last day"));
        line(
            "disk",
            format!(
                "{} free of {}{}",
                shown_bytes(self.disk.free),
                shown_bytes(self.disk.total),
                days.unwrap_or_default()
            ),
        );
        line("spill", format!("{} files with {}", self.disk.spill_files, shown_bytes(self.disk.spill_bytes)));
        line("outbox", format!("entries that wait for the Master: {}", self.waiting));
        if self.unindexed > 0 {
            line("index", format!("lacks rows of {} segments; run `evergate-audit index`", self.unindexed));
        }
        line("holds", self.holds.len().to_string());
        for (name, selection) in &self.holds {
            line("", format!("{name}  {selection}"));
        }
    }
}
