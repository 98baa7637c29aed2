//! The writer and the committer: segments to files, statements to the chain.
//!
//! Order on disk: the bytes of a batch, then its statement, then the Master receives it. The writer fills the page
//! cache; the committer waits for the disk, once for all statements that wait. A full disk holds the writer, and with
//! it the ring, until there is room: no record that has a number is lost.

use crate::record::baseline::BaselineFile;
use crate::record::feed::Uncovered;
use crate::record::link::Link;
use crate::record::rows::{BatchRows, Rows};
use crate::store::Store;
use crate::test_points::{Step, reached};
use evergate_evidence::statement::Statement;
use evergate_recorder::stream::{Event, Output};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

const FULL_WAIT: Duration = Duration::from_millis(100);
const FULL_WARNING: Duration = Duration::from_secs(10);

/// The writer's thread.
#[derive(Debug)]
pub(crate) struct Writer {
    store: Store,
    segment: Option<Arc<File>>,
    commits: Sender<Commit>,
    rows: Rows,
    warned: Option<Instant>,
}

/// A statement whose records are in the page cache.
#[derive(Debug)]
pub(crate) struct Commit {
    statement: Statement,
    /// Files that have records of the batch and are not closed yet.
    files: Vec<Arc<File>>,
    /// Segment of its first record.
    segment: u64,
    rows: BatchRows,
}

impl Writer {
    pub(crate) fn new(store: Store, commits: Sender<Commit>) -> Writer {
        Writer { store, segment: None, commits, rows: Rows::default(), warned: None }
    }

    /// Runs until the digest thread ends.
    pub(crate) fn run(mut self, outputs: &Receiver<Output>, recycled: &Sender<Output>) -> io::Result<()> {
        let mut files: Vec<Arc<File>> = Vec::new();
        while let Ok(output) = outputs.recv() {
            let mut at = 0;
            for (place, event) in &output.events {
                if !matches!(event, Event::Record(..) | Event::Packet(_)) {
                    self.write(&output.bytes[at..*place])?;
                    at = *place;
                }
                let rows = self.rows.on_event(event);
                match event {
                    Event::SegmentBegins(segment) => {
                        let file = self.open(*segment)?;
                        files.push(file.clone());
                        self.segment = Some(file);
                    }
                    Event::SegmentEnds { .. } => self.segment = None,
                    Event::Batch { statement, segment } => {
                        let (statement, segment) = ((**statement).clone(), *segment);
                        let rows = rows.unwrap_or_default();
                        let commit = Commit { statement, files: files.clone(), segment, rows };
                        files
                            .retain(|file| self.segment.as_ref().is_some_and(|open| Arc::ptr_eq(open, file)));
                        reached(Step::SegmentWritten);
                        if self.commits.send(commit).is_err() {
                            return Ok(()); // the committer ended with an error
                        }
                    }
                    Event::Record(..) | Event::Packet(_) | Event::Unindexed => {}
                }
            }
            self.write(&output.bytes[at..])?;
            let _ = recycled.send(output);
        }
        Ok(())
    }

    fn open(&self, number: u64) -> io::Result<Arc<File>> {
        let path = self.store.segment(number);
        let is_new = !path.exists();
        let file = File::options().create(true).append(true).open(path)?;
        if is_new {
            File::open(self.store.root().join("segments"))?.sync_all()?;
        }
        Ok(Arc::new(file))
    }

    /// Writes all bytes, and waits for room on a full disk.
    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let Some(file) = &self.segment else { return Ok(()) };
        let mut file = &**file;
        while !bytes.is_empty() {
            match file.write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                    if self.warned.is_none_or(|warned| warned.elapsed() >= FULL_WARNING) {
                        self.warned = Some(Instant::now());
                        eprintln!(
                            "evergate-audit: store: cannot write: {error}; the Recorder waits: free space"
                        );
                    }
                    std::thread::sleep(FULL_WAIT);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Waits for the disk, appends statements, and hands them to the Master's link. Runs until the writer ends.
pub(crate) fn commit(
    store: &Store,
    commits: &Receiver<Commit>,
    link: &Link,
    feeds: &Uncovered,
    mut baseline: Option<BaselineFile>,
) -> io::Result<()> {
    let mut statements = File::options().create(true).append(true).open(store.statements())?;
    while let Ok(first) = commits.recv() {
        let mut waiting = vec![first];
        waiting.extend(commits.try_iter());
        let mut synced: Vec<&Arc<File>> = Vec::new();
        for file in waiting.iter().flat_map(|commit| &commit.files) {
            if !synced.iter().any(|other| Arc::ptr_eq(other, file)) {
                synced.push(file);
                file.sync_data()?;
            }
        }
        reached(Step::SegmentsSynced);
        let bytes: Vec<u8> = waiting.iter().flat_map(|commit| commit.statement.encode()).collect();
        statements.write_all(&bytes)?;
        reached(Step::StatementsWritten);
        statements.sync_data()?;
        reached(Step::StatementsSynced);
        let mut last = None;
        for commit in waiting {
            feeds.on_durable(commit.statement.span.last_seq);
            last = Some((commit.statement.counters, commit.statement.span.last_ns));
            link.on_durable(&commit.statement, commit.segment, commit.rows);
        }
        if let (Some((counters, time_ns)), Some(baseline)) = (last, &mut baseline) {
            baseline.on_commit(store, &counters, time_ns);
        }
    }
    if let Some(baseline) = &baseline {
        baseline.write(store);
    }
    Ok(())
}
