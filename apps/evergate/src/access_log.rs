//! The access log: one JSON object per line, written by a separate thread so that a slow disk stalls no worker.
//!
//! Bound: workers that are [`BYTES_MAX`] bytes ahead of the writer lose lines. Lines that cannot be written are lost
//! too, because a full disk must not stop the node. All lost lines are counted. A message marks the beginning and the
//! end of a loss, not each line. The end of the process waits for the writer for a moment only.

mod open;

use crate::control::console;
use anyhow::{Result, anyhow};
use evergate_base::rfc3339;
use evergate_config::model::{AccessLog, LogFields, LogTime, Logs};
use evergate_connection::{Connection, LoggedHeaders, RequestLog};
use evergate_sys::BlockingWriter;
use evergate_worker::host;
pub use open::make;
use open::open;
use serde::Serialize;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Bound on the lines that wait for the writer, in bytes. Clients choose the length of a line.
const BYTES_MAX: usize = 16 << 20;
/// Time after a loss before which a writer does not count as fast enough: it may alternate.
const LOSS_MIN: Duration = Duration::from_secs(10);
/// Time after which a file that could not be reopened is tried again, with the next line.
const REOPEN_AGAIN: Duration = Duration::from_secs(1);

/// Longest wait of the process's end for the writer.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// A file, reopened on request so that it can be rotated.
    File(PathBuf),
}

impl Target {
    /// Where a configuration wants them, if anywhere.
    pub fn of(access: &AccessLog) -> Option<Target> {
        match access {
            AccessLog::Off => None,
            AccessLog::Stdout => Some(Target::Stdout),
            AccessLog::File(path) => Some(Target::File(path.clone())),
        }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    time: Time,
    id: &'a str,
    listener: &'a str,
    client: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<Tls<'a>>,
    method: &'a str,
    host: &'a str,
    target: &'a str,
    status: u16,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<&'a str>,
    retries: u32,
    bytes_in: u64,
    bytes_out: u64,
    first_byte_ms: f64,
    total_ms: f64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    audit: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    continued: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_subject: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    referer: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Time {
    Unix(f64),
    Iso(String),
}

impl Time {
    fn now(is_iso: bool) -> Time {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if is_iso { Time::Iso(iso(since)) } else { Time::Unix(since.as_secs_f64()) }
    }
}

/// RFC 3339 in UTC with milliseconds.
fn iso(since_1970: Duration) -> String {
    let date = rfc3339(since_1970.as_secs().cast_signed());
    format!("{}.{:03}Z", date.trim_end_matches('Z'), since_1970.subsec_millis())
}

/// Additional fields of a line. A reload changes them for all workers.
#[derive(Debug, Default)]
struct Format(AtomicU8);

impl Format {
    const CLIENT_SUBJECT: u8 = 1;
    const USER_AGENT: u8 = 2;
    const REFERER: u8 = 4;
    const ISO_TIME: u8 = 8;

    fn set(&self, logs: &Logs) {
        let LogFields { client_subject, user_agent, referer } = logs.fields;
        let bits = [
            (client_subject, Format::CLIENT_SUBJECT),
            (user_agent, Format::USER_AGENT),
            (referer, Format::REFERER),
            (logs.time == LogTime::Iso, Format::ISO_TIME),
        ];
        let bits = bits.into_iter().filter(|(is_wanted, _)| *is_wanted).fold(0, |all, (_, bit)| all | bit);
        self.0.store(bits, Ordering::Relaxed);
    }

    fn has(&self, bit: u8) -> bool {
        self.0.load(Ordering::Relaxed) & bit != 0
    }
}

#[derive(Serialize)]
struct Tls<'a> {
    version: &'a str,
    suite: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sni: Option<&'a str>,
    resumed: bool,
}

/// Lines of one turn of a worker's loop.
#[derive(Debug, Default)]
struct Batch {
    text: Vec<u8>,
    lines: u64,
}

impl Batch {
    fn memory(&self) -> usize {
        self.text.capacity() + size_of::<Batch>()
    }
}

/// Batches that wait for the writer, the batch that it writes included.
#[derive(Debug, Default)]
struct Backlog {
    bytes: AtomicUsize,
    lines: AtomicU64,
    /// Lines lost for lack of space since the warning about them; 0 without a loss.
    refused: AtomicU64,
}

impl Backlog {
    /// Whether there is room for a batch, which then is counted.
    fn add(&self, batch: &Batch) -> bool {
        let bytes = batch.memory();
        let has_room = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= BYTES_MAX;
        self.lines.fetch_add(batch.lines, Ordering::Relaxed);
        if !has_room {
            self.remove(batch);
        }
        has_room
    }

    fn remove(&self, batch: &Batch) {
        self.bytes.fetch_sub(batch.memory(), Ordering::Relaxed);
        self.lines.fetch_sub(batch.lines, Ordering::Relaxed);
    }

    /// Counts lines that had no room; whether they are the first.
    fn refuse(&self, lines: u64) -> bool {
        self.refused.fetch_add(lines, Ordering::Relaxed) == 0
    }

    /// How many lines had no room, once the writer keeps up again. `since` is when the writer first knew.
    fn recovered(&self, since: &mut Option<Instant>, now: Instant) -> Option<u64> {
        if self.refused.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let is_over = now.duration_since(*since.get_or_insert(now)) >= LOSS_MIN
            && self.bytes.load(Ordering::Relaxed) <= BYTES_MAX / 2;
        is_over.then(|| {
            *since = None;
            self.refused.swap(0, Ordering::Relaxed)
        })
    }
}

/// A worker's end: lines of one turn of its loop are sent as one batch.
#[derive(Debug)]
pub struct LineSender {
    batch: Batch,
    backlog: Arc<Backlog>,
    to_writer: Sender<Batch>,
    format: Arc<Format>,
}

impl host::AccessLog for LineSender {
    fn logged_headers(&self) -> LoggedHeaders {
        LoggedHeaders {
            user_agent: self.format.has(Format::USER_AGENT),
            referer: self.format.has(Format::REFERER),
        }
    }

    fn push(&mut self, log: &RequestLog, connection: &Connection) {
        let snapshot = log.snapshot.as_ref();
        let pool = log.pool.and_then(|pool| snapshot.and_then(|snapshot| snapshot.pools.get(pool as usize)));
        let server = log.server.and_then(|server| pool.and_then(|pool| pool.servers.get(server as usize)));
        let peer = connection.client_address().to_string();
        let line = Line {
            time: Time::now(self.format.has(Format::ISO_TIME)),
            id: &log.id,
            listener: connection.listener_name(),
            client: log.client.map_or_else(|| peer.clone(), |client| client.to_string()),
            proxy: connection.proxy().map(|proxy| proxy.to_string()).or(log.client.map(|_| peer)),
            tls: connection.session().map(|(version, suite, sni)| Tls {
                version,
                suite,
                sni,
                resumed: connection.session_resumed().unwrap_or(false),
            }),
            method: &log.method,
            host: &log.host,
            target: &log.target,
            status: log.status,
            reason: log.reason,
            detail: &log.detail,
            rule: log.rule.and_then(|rule| snapshot.map(|snapshot| snapshot.rules.name(rule))),
            pool: pool.map(|pool| pool.name.as_str()),
            server: server.map(|server| server.name.as_str()),
            retries: log.retries,
            bytes_in: log.bytes_in,
            bytes_out: log.bytes_out,
            first_byte_ms: log.first_byte.0 as f64 / 1000.0,
            total_ms: log.total.0 as f64 / 1000.0,
            audit: log.audit,
            class: log.class.as_deref(),
            continued: log.continued,
            client_subject: connection.client_subject().filter(|_| self.format.has(Format::CLIENT_SUBJECT)),
            user_agent: log.user_agent.as_deref(),
            referer: log.referer.as_deref(),
        };
        if serde_json::to_writer(&mut self.batch.text, &line).is_ok() {
            self.batch.text.push(b'\n');
            self.batch.lines += 1;
        }
    }

    fn flush(&mut self) -> u64 {
        if self.batch.text.is_empty() {
            return 0;
        }
        let batch = std::mem::take(&mut self.batch);
        if !self.backlog.add(&batch) {
            if self.backlog.refuse(batch.lines) {
                console::warning(
                    "access log: requests come faster than their lines are taken: 16 MiB wait, and more lines are \
                     lost (evergate_log_lines_lost_total); make what stores or reads them faster, or set \
                     logs.access to a file",
                );
            }
            return batch.lines;
        }
        match self.to_writer.send(batch) {
            Ok(()) => 0,
            Err(SendError(batch)) => {
                self.backlog.remove(&batch);
                batch.lines
            }
        }
    }
}

/// Starts writing to `target`, which must be writable, in a process that has become `user`, if there is one: root would
/// follow a link that the user has put in the file's place.
pub fn start_as(user: Option<&str>, target: &Target) -> Result<Writer> {
    Output::open(target, Arc::default()).and_then(Writer::start_with).map_err(|error| match user {
        Some(user) if error.kind() == io::ErrorKind::PermissionDenied => anyhow!(
            "cannot open access log {target} as user \"{user}\" (node.user): {error}; give the file to that user, or \
             remove it if it is a link that leads elsewhere"
        ),
        _ => anyhow!("cannot open access log {target}: {error}"),
    })
}

/// The writer's thread.
#[derive(Debug)]
pub struct Writer {
    target: Target,
    to_writer: Sender<Batch>,
    backlog: Arc<Backlog>,
    reopen: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
    format: Arc<Format>,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
}

impl Writer {
    fn start_with(mut output: Output) -> io::Result<Writer> {
        let (target, lost) = (output.target.clone(), output.lost.clone());
        let (to_writer, batches) = channel();
        let (backlog, reopen) = (Arc::new(Backlog::default()), Arc::new(AtomicBool::new(false)));
        let (waiting, asked) = (backlog.clone(), reopen.clone());
        let (end, ended) = channel::<()>();
        std::thread::Builder::new().name("access-log".to_owned()).spawn(move || {
            let _end = end;
            write_all(&batches, &mut output, &waiting, &asked);
        })?;
        Ok(Writer { target, to_writer, backlog, reopen, lost, format: Arc::default(), ended })
    }

    /// An end for one worker.
    pub fn sender(&self) -> LineSender {
        LineSender {
            batch: Batch::default(),
            backlog: self.backlog.clone(),
            to_writer: self.to_writer.clone(),
            format: self.format.clone(),
        }
    }

    /// Sets the additional fields of the next lines, in all workers.
    pub fn set_format(&self, logs: &Logs) {
        self.format.set(logs);
    }

    /// Reopens the file, before the next line.
    pub fn reopen(&self) {
        self.reopen.store(true, Ordering::Relaxed);
        // An empty batch wakes a writer that waits for lines. Without space for the batch, the writer is active.
        let wake = Batch::default();
        if self.backlog.add(&wake) {
            let _ = self.to_writer.send(wake);
        }
    }

    /// Lines that could not be written; the count continues.
    pub fn lost(&self) -> Arc<AtomicU64> {
        self.lost.clone()
    }

    /// Where the lines go.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Waits until every line is written, at most for `patience`; all senders must be dropped. A pipe without a reader
    /// blocks the thread until the process ends, and the remaining lines are lost.
    pub fn finish(self, patience: Duration) {
        drop(self.to_writer);
        if self.ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            let lines = self.backlog.lines.load(Ordering::Relaxed);
            self.lost.fetch_add(lines, Ordering::Relaxed);
            console::warning(format_args!(
                "access log: {} accepts nothing any more: the last {lines} lines are lost; use a reader that lives \
                 longer than this process, or set logs.access to a file",
                self.target
            ));
        }
    }
}

fn write_all(batches: &Receiver<Batch>, output: &mut Output, backlog: &Backlog, reopen: &AtomicBool) {
    let mut losing_since = None;
    while let Ok(batch) = batches.recv() {
        if reopen.swap(false, Ordering::Relaxed) {
            output.reopen_at = Some(Instant::now());
        }
        if output.reopen_at.is_some_and(|at| Instant::now() >= at) {
            output.reopen();
        }
        output.write(&batch.text);
        backlog.remove(&batch);
        if let Some(lines) = backlog.recovered(&mut losing_since, Instant::now()) {
            console::info(format_args!(
                "access log: {} keeps up again; {lines} lines are lost",
                output.target
            ));
        }
    }
}

struct Output {
    target: Target,
    file: BlockingWriter,
    lost: Arc<AtomicU64>,
    /// When the file is to be reopened, if it is.
    reopen_at: Option<Instant>,
    /// The warning that it could not be reopened is logged.
    is_stuck: bool,
    /// Lines lost since the warning that writing fails; 0 while it works.
    failing: u64,
    /// The last line is there in part only.
    is_torn: bool,
}

impl Output {
    fn open(target: &Target, lost: Arc<AtomicU64>) -> io::Result<Output> {
        Ok(Output {
            file: open(target)?,
            target: target.clone(),
            lost,
            reopen_at: None,
            is_stuck: false,
            failing: 0,
            is_torn: false,
        })
    }

    fn reopen(&mut self) {
        match open(&self.target) {
            Ok(file) => {
                (self.file, self.reopen_at, self.is_torn) = (file, None, false);
                if std::mem::take(&mut self.is_stuck) {
                    console::info(format_args!("access log: {} is open again", self.target));
                }
            }
            Err(error) => {
                self.reopen_at = Some(Instant::now() + REOPEN_AGAIN);
                if !std::mem::replace(&mut self.is_stuck, true) {
                    console::warning(format_args!(
                        "access log: cannot reopen {}: {error}; lines go to the file as it was, which may have \
                         another name by now; let the user of this process write there: it is tried again every \
                         second",
                        self.target
                    ));
                }
            }
        }
    }

    fn write(&mut self, batch: &[u8]) {
        let mut left = batch;
        match self.write_from(&mut left) {
            Ok(()) => {
                if self.failing > 0 {
                    let lines = std::mem::take(&mut self.failing);
                    console::info(format_args!(
                        "access log: writing to {} works again; {lines} lines are lost",
                        self.target
                    ));
                }
            }
            Err(error) => {
                let lines = left.iter().filter(|byte| **byte == b'\n').count() as u64;
                self.lost.fetch_add(lines, Ordering::Relaxed);
                if self.failing == 0 {
                    console::warning(format_args!(
                        "access log: cannot write to {}: {error}; lines are lost (evergate_log_lines_lost_total) \
                         until it works again: make room, or rotate the file to another disk",
                        self.target
                    ));
                }
                self.failing += lines;
            }
        }
    }

    /// Writes; after a failure the rest stays in `left`.
    fn write_from(&mut self, left: &mut &[u8]) -> io::Result<()> {
        if self.is_torn {
            // The partial line ends here, so that no other line is spoilt.
            self.file.write_all(b"\n")?;
            self.is_torn = false;
        }
        while !left.is_empty() {
            match self.file.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.is_torn = left[count - 1] != b'\n';
                    *left = &left[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Stdout => f.write_str("standard output"),
            Target::File(path) => path.display().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::host::AccessLog as _;
    use super::*;
    use std::fs::File;

    #[test]
    fn iso_time_has_milliseconds_in_utc() {
        assert_eq!(iso(Duration::from_millis(1_709_210_096_007)), "2024-02-29T12:34:56.007Z");
        assert_eq!(iso(Duration::ZERO), "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn lines_beyond_the_bytes_that_may_wait_for_the_writer_are_lost() {
        let (to_writer, batches) = channel();
        let mut sender = LineSender {
            batch: Batch::default(),
            backlog: Arc::default(),
            to_writer,
            format: Arc::default(),
        };
        let mut lost_of = |bytes: usize| {
            sender.batch = Batch { text: vec![b'\n'; bytes], lines: 3 };
            sender.flush()
        };
        let all = BYTES_MAX - size_of::<Batch>();
        assert_eq!((lost_of(all / 2), lost_of(all / 2), lost_of(1), lost_of(1)), (0, 3, 0, 0));
        let backlog = sender.backlog.clone();
        assert_eq!((backlog.lines.load(Ordering::Relaxed), backlog.refused.load(Ordering::Relaxed)), (9, 3));
        drop(sender);
        let mut output = full();
        output.file = BlockingWriter(File::create("/dev/null").unwrap());
        write_all(&batches, &mut output, &backlog, &AtomicBool::new(false));
        let left = (backlog.bytes.load(Ordering::Relaxed), backlog.lines.load(Ordering::Relaxed));
        assert_eq!(left, (0, 0));
    }

    #[test]
    fn short_batches_wait_in_any_number() {
        let (to_writer, batches) = channel();
        let mut sender = LineSender {
            batch: Batch::default(),
            backlog: Arc::default(),
            to_writer,
            format: Arc::default(),
        };
        for _ in 0..20_000 {
            sender.batch = Batch { text: vec![b'\n'; 500], lines: 1 };
            assert_eq!(sender.flush(), 0);
        }
        drop(sender);
        assert_eq!(batches.iter().count(), 20_000);
    }

    #[test]
    fn slow_writer_is_reported_once_until_it_keeps_up_again() {
        let (backlog, mut since, now) = (Backlog::default(), None, Instant::now());
        assert_eq!(backlog.recovered(&mut since, now), None);
        backlog.bytes.store(BYTES_MAX, Ordering::Relaxed);
        assert_eq!((backlog.refuse(3), backlog.refuse(4)), (true, false));
        assert_eq!(backlog.recovered(&mut since, now), None);
        assert_eq!(backlog.recovered(&mut since, now + LOSS_MIN), None, "it is still behind");
        backlog.bytes.store(0, Ordering::Relaxed);
        assert_eq!(backlog.recovered(&mut since, now + LOSS_MIN / 2), None, "it may fall back again");
        assert_eq!(backlog.recovered(&mut since, now + LOSS_MIN), Some(7));
        assert_eq!((backlog.recovered(&mut since, now + 2 * LOSS_MIN), backlog.refuse(1)), (None, true));
    }

    fn full() -> Output {
        let target = Target::File("/dev/full".into());
        Output::open(&target, Arc::default()).unwrap()
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let mut output = full();
        output.write(b"{1}\n{2}\n");
        output.write(b"{3}\n");
        assert_eq!((output.lost.load(Ordering::Relaxed), output.failing), (3, 3));
        // Room again.
        output.file = BlockingWriter(File::create("/dev/null").unwrap());
        output.write(b"{4}\n");
        assert_eq!((output.lost.load(Ordering::Relaxed), output.failing), (3, 0));
    }

    #[test]
    fn stuck_writer_is_not_awaited_and_its_lines_are_lost() {
        let (reader, writer) = io::pipe().unwrap();
        let mut output = full();
        output.file = BlockingWriter(File::from(std::os::fd::OwnedFd::from(writer)));
        let writer = Writer::start_with(output).unwrap();
        let mut sender = writer.sender();
        sender.batch = Batch { text: vec![b'\n'; 1 << 20], lines: 1 << 20 }; // more than any pipe holds
        assert_eq!(sender.flush(), 0);
        drop(sender);
        let lost = writer.lost();
        writer.finish(Duration::from_millis(1));
        assert_eq!(lost.load(Ordering::Relaxed), 1 << 20);
        drop(reader); // ends the thread
    }

    #[test]
    fn cut_line_spoils_no_other_line() {
        let (reader, writer) = io::pipe().unwrap();
        let mut output = full();
        output.file = BlockingWriter(File::from(std::os::fd::OwnedFd::from(writer)));
        output.write(b"{1}\n{2");
        assert!(output.is_torn);
        output.write(b"{3}\n");
        assert!(!output.is_torn);
        drop(output);
        assert_eq!(io::read_to_string(reader).unwrap(), "{1}\n{2\n{3}\n");
    }
}
