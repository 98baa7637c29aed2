//! Writer of the index beside a running Recorder: one thread behind a queue of 65,536 rows.
//!
//! The Recorder never waits for the index. A row that finds the queue full, and a row that cannot be written, leave its
//! segment incomplete: `catch_up` reads that segment again. Rows become visible within 250 ms.

use crate::index::day_files::DayFiles;
use crate::index::rows::{IndexEvent, SegmentRow};
use crate::index::{IndexError, SegmentTable};
use crate::store::Store;
use crate::test_points::{Step, reached};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const QUEUE_ROWS: usize = 65_536;
const COMMIT_ROWS: usize = 20_000;
const COMMIT_PERIOD: Duration = Duration::from_millis(250);

/// Writer of the index. Dropping it writes what is in the queue.
#[derive(Debug)]
pub struct IndexWriter {
    sender: Option<SyncSender<Message>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    /// A row was lost since the last closed segment.
    has_lost: AtomicBool,
    /// Number of the newest segment before this writer: earlier rows of it are unknown here.
    segment_before: u64,
}

#[derive(Debug, Default)]
struct Shared {
    failure: Mutex<Option<IndexError>>,
    lost: AtomicU64,
}

#[derive(Debug)]
enum Message {
    Row(IndexEvent),
    Segment { row: SegmentRow, is_complete: bool },
    Flush(SyncSender<()>),
}

impl IndexWriter {
    /// Starts the thread. Start it before the first record of this run is written.
    pub fn start(store: &Store) -> Result<IndexWriter, IndexError> {
        let at = |error: std::io::Error| IndexError::new(&store.index(), error);
        std::fs::create_dir_all(store.index()).map_err(at)?;
        let segment_before = store.segments().map_err(at)?.last().map_or(0, |segment| segment.number);
        let shared = Arc::new(Shared::default());
        let (sender, receiver) = sync_channel(QUEUE_ROWS);
        let thread = Thread::new(store.clone(), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("index".into())
            .spawn(move || thread.run(&receiver))
            .map_err(|error| IndexError::new(&store.index(), error))?;
        Ok(IndexWriter {
            sender: Some(sender),
            thread: Some(thread),
            shared,
            has_lost: AtomicBool::new(false),
            segment_before,
        })
    }

    /// Passes a row to the thread and never waits. False: the queue is full and the row is lost; its segment is
    /// incomplete until `catch_up` reads it again.
    pub fn try_send(&self, event: IndexEvent) -> bool {
        let message = match event {
            IndexEvent::Segment(row) => {
                let is_whole = row.is_closed && row.number > self.segment_before;
                let has_lost = if row.is_closed { self.has_lost.swap(false, Relaxed) } else { false };
                Message::Segment { row, is_complete: is_whole && !has_lost }
            }
            event => Message::Row(event),
        };
        let is_sent = self.sender.as_ref().is_some_and(|sender| sender.try_send(message).is_ok());
        if !is_sent {
            self.record_lost();
        }
        is_sent
    }

    /// Notes that rows of the open segment were never sent. `catch_up` reads the segment again.
    pub fn record_lost(&self) {
        self.has_lost.store(true, Relaxed);
        self.shared.lost.fetch_add(1, Relaxed);
    }

    /// Rows lost since the start: the queue was full, or a file could not be written.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Relaxed)
    }

    /// The last error of a file, for a line in the log. It is returned once.
    pub fn take_failure(&self) -> Option<IndexError> {
        self.shared.failure.lock().ok()?.take()
    }

    /// Waits until every row sent so far is visible.
    pub fn flush(&self) {
        let (done, wait) = sync_channel(1);
        if self.sender.as_ref().is_some_and(|sender| sender.send(Message::Flush(done)).is_ok()) {
            let _ = wait.recv();
        }
    }
}

impl Drop for IndexWriter {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// State of the thread. Its files open at the first row, so that an error of one row is no error of the next.
#[derive(Debug)]
struct Thread {
    store: Store,
    shared: Arc<Shared>,
    files: Option<DayFiles>,
    segments: Option<SegmentTable>,
    /// End of the receipts written for each segment, since the last commit.
    proofs: BTreeMap<u64, u64>,
    /// A row could not be written since the last closed segment.
    has_failed: bool,
    /// Time of the next commit; `None` if there is nothing to commit.
    commit_at: Option<Instant>,
}

impl Thread {
    fn new(store: Store, shared: Arc<Shared>) -> Thread {
        Thread {
            store,
            shared,
            files: None,
            segments: None,
            proofs: BTreeMap::new(),
            has_failed: false,
            commit_at: None,
        }
    }

    fn run(mut self, receiver: &Receiver<Message>) {
        loop {
            let message = match self.commit_at {
                None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => receiver.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            let result = match message {
                Ok(Message::Row(event)) => self.write(&event),
                Ok(Message::Segment { row, is_complete }) => self.write_segment(&row, is_complete),
                Ok(Message::Flush(done)) => {
                    let result = self.commit();
                    let _ = done.send(());
                    result
                }
                Err(RecvTimeoutError::Timeout) => self.commit(),
                Err(RecvTimeoutError::Disconnected) => {
                    let result = self.commit().and_then(|()| self.files()?.sync());
                    self.note(result);
                    return;
                }
            };
            self.note(result);
        }
    }

    fn note(&mut self, result: Result<(), IndexError>) {
        if let Err(error) = result {
            self.has_failed = true;
            self.shared.lost.fetch_add(1, Relaxed);
            if let Ok(mut failure) = self.shared.failure.lock() {
                *failure = Some(error);
            }
        }
    }

    fn write(&mut self, event: &IndexEvent) -> Result<(), IndexError> {
        if let IndexEvent::Batch(batch) = event
            && let Some(proof) = batch.proof
        {
            let end = self.proofs.entry(proof.segment).or_default();
            *end = proof.end.max(*end);
        }
        let files = self.files()?;
        files.write(event)?;
        let is_full = files.pending() >= COMMIT_ROWS;
        self.commit_at.get_or_insert_with(|| Instant::now() + COMMIT_PERIOD);
        if is_full { self.commit() } else { Ok(()) }
    }

    fn write_segment(&mut self, row: &SegmentRow, is_complete: bool) -> Result<(), IndexError> {
        let result = self.commit().and_then(|()| self.files()?.sync());
        let is_written = result.is_ok() && !self.has_failed;
        if row.is_closed {
            self.has_failed = false;
        }
        self.segments()?.write(row, is_complete && is_written)?;
        result
    }

    fn commit(&mut self) -> Result<(), IndexError> {
        self.commit_at = None;
        if let Some(files) = &mut self.files {
            files.commit()?;
            reached(Step::IndexCommitted);
        }
        for (segment, end) in std::mem::take(&mut self.proofs) {
            self.segments()?.write_proofs(segment, end)?;
        }
        Ok(())
    }

    fn files(&mut self) -> Result<&mut DayFiles, IndexError> {
        match &mut self.files {
            Some(files) => Ok(files),
            files @ None => Ok(files.insert(DayFiles::new(&self.store)?)),
        }
    }

    fn segments(&mut self) -> Result<&SegmentTable, IndexError> {
        match &mut self.segments {
            Some(segments) => Ok(segments),
            segments @ None => Ok(segments.insert(SegmentTable::open(&self.store)?)),
        }
    }
}
