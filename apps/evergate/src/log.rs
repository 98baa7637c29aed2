//! The access log: one JSON object a line, written by a thread of its own so that a slow disk stalls no worker.
//!
//! Bound: a worker that is so many batches ahead of the writer loses lines, and counts them.

use evergate_connection::{Connection, RequestLog};
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Batches that may wait for the writer.
const BATCHES_MAX: usize = 1024;

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// A file, opened anew on request so that it can be rotated.
    File(PathBuf),
}

#[derive(Serialize)]
struct Line<'a> {
    time: f64,
    id: &'a str,
    listener: &'a str,
    client: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<Tls<'a>>,
    method: &'a str,
    host: &'a str,
    target: &'a str,
    status: u16,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
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
}

#[derive(Serialize)]
struct Tls<'a> {
    version: &'a str,
    suite: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    sni: Option<&'a str>,
    resumed: bool,
}

/// A worker's end: lines of one turn of its loop are sent as one batch.
#[derive(Debug)]
pub struct LineSender {
    batch: Vec<u8>,
    lines: u64,
    to_writer: SyncSender<Vec<u8>>,
}

impl LineSender {
    /// Adds the line of one request.
    pub fn push(&mut self, log: &RequestLog, connection: &Connection) {
        let snapshot = log.snapshot.as_ref();
        let pool = log.pool.and_then(|pool| snapshot.and_then(|snapshot| snapshot.pools.get(pool as usize)));
        let server = log.server.and_then(|server| pool.and_then(|pool| pool.servers.get(server as usize)));
        let line = Line {
            time: now_s(),
            id: &log.id,
            listener: connection.listener_name(),
            client: connection.client_address().to_string(),
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
        };
        if serde_json::to_writer(&mut self.batch, &line).is_ok() {
            self.batch.push(b'\n');
            self.lines += 1;
        }
    }

    /// Sends the batch; the number of lines lost because the writer is behind.
    pub fn flush(&mut self) -> u64 {
        if self.batch.is_empty() {
            return 0;
        }
        let lines = std::mem::take(&mut self.lines);
        match self.to_writer.try_send(std::mem::take(&mut self.batch)) {
            Ok(()) => 0,
            Err(_) => lines,
        }
    }
}

fn now_s() -> f64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

/// The writer's thread.
#[derive(Debug)]
pub struct Writer {
    to_writer: SyncSender<Vec<u8>>,
    reopen: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Writer {
    /// Starts writing to `target`, which must be writable.
    pub fn start(target: &Target) -> io::Result<Writer> {
        let mut output = Output::open(target)?;
        let (to_writer, batches) = sync_channel(BATCHES_MAX);
        let reopen = Arc::new(AtomicBool::new(false));
        let asked = reopen.clone();
        let thread = std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || write_all(&batches, &mut output, &asked))?;
        Ok(Writer { to_writer, reopen, thread })
    }

    /// An end for one worker.
    pub fn sender(&self) -> LineSender {
        LineSender { batch: Vec::new(), lines: 0, to_writer: self.to_writer.clone() }
    }

    /// Opens the file anew before the next line.
    pub fn reopen(&self) {
        self.reopen.store(true, Ordering::Relaxed);
    }

    /// Waits until every line is written; all senders must be gone.
    pub fn finish(self) {
        drop(self.to_writer);
        let _ = self.thread.join();
    }
}

fn write_all(batches: &Receiver<Vec<u8>>, output: &mut Output, reopen: &AtomicBool) {
    while let Ok(batch) = batches.recv() {
        if reopen.swap(false, Ordering::Relaxed) {
            output.reopen();
        }
        output.write(&batch);
    }
}

struct Output {
    target: Target,
    file: Option<File>,
}

impl Output {
    fn open(target: &Target) -> io::Result<Output> {
        let file = match target {
            Target::Stdout => None,
            Target::File(path) => Some(OpenOptions::new().create(true).append(true).open(path)?),
        };
        Ok(Output { target: target.clone(), file })
    }

    fn reopen(&mut self) {
        if let Ok(fresh) = Output::open(&self.target) {
            *self = fresh; // else go on with the old file
        }
    }

    fn write(&mut self, batch: &[u8]) {
        // A full disk must not stop the switch: what cannot be written is lost.
        let _ = match &mut self.file {
            Some(file) => file.write_all(batch),
            None => io::stdout().lock().write_all(batch),
        };
    }
}
