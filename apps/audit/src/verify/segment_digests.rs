//! Digests of segments, made on several threads and delivered in order.
//!
//! Each thread takes the next segment, digests it and passes chunks of digests through a queue of its own. A queue has
//! a bound; a thread that is ahead waits. Memory: the queues' share, and one window for each thread.

use crate::segment_file::{FileError, SegmentFile};
use evergate_evidence::verify::RecordDigest;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::Scope;

/// Digests that a chunk has.
const CHUNK_RECORDS: usize = 1024;

/// Part of a segment.
#[derive(Debug)]
pub(super) enum Part {
    /// Digests in order, and the place in the file behind them.
    Records(Vec<RecordDigest>, u64),
    /// The rest of the file has no records.
    Fault(FileError),
}

/// Segments under way.
pub(super) struct SegmentDigests {
    announced: Receiver<(usize, Receiver<Part>)>,
    ready: HashMap<usize, Receiver<Part>>,
}

impl SegmentDigests {
    /// Digests of these files, in order, by `threads` threads. Each file ends at its limit, if it has one.
    pub(super) fn start<'scope, 'env>(
        scope: &'scope Scope<'scope, 'env>,
        files: &'env [PathBuf],
        next: &'env AtomicUsize,
        threads: usize,
        memory: usize,
    ) -> SegmentDigests {
        let chunk_bytes = CHUNK_RECORDS * size_of::<RecordDigest>();
        let chunks = (memory / threads / chunk_bytes).max(2);
        let (announce, announced) = channel();
        for _ in 0..threads {
            let announce = announce.clone();
            scope.spawn(move || work(files, next, &announce, chunks));
        }
        SegmentDigests { announced, ready: HashMap::new() }
    }

    /// Parts of the file with this place in the list. Call it for each file, in order.
    pub(super) fn parts(&mut self, index: usize) -> impl Iterator<Item = Part> + use<> {
        while !self.ready.contains_key(&index) {
            let Ok((announced, parts)) = self.announced.recv() else { break };
            self.ready.insert(announced, parts);
        }
        self.ready.remove(&index).into_iter().flatten()
    }
}

fn work(files: &[PathBuf], next: &AtomicUsize, announce: &Sender<(usize, Receiver<Part>)>, chunks: usize) {
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let Some(path) = files.get(index) else { return };
        let (parts, receiver) = sync_channel(chunks);
        if announce.send((index, receiver)).is_err() {
            return;
        }
        let _ = digest(path, &parts); // an error: the receiver wants no more
    }
}

/// Error: the receiver is gone.
fn digest(path: &Path, parts: &SyncSender<Part>) -> Result<(), ()> {
    let fault = |error: FileError| parts.send(Part::Fault(error)).map_err(|_| ());
    let mut file = match SegmentFile::open(path) {
        Ok(file) => file,
        Err(error) => return fault(error.into()),
    };
    let (mut scratch, mut chunk, mut end) = (Vec::new(), Vec::with_capacity(CHUNK_RECORDS), 0);
    let result = loop {
        match file.read() {
            Ok(Some(located)) => {
                chunk.push(RecordDigest::of(&located.record, located.offset, &mut scratch));
                end = located.end;
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
        if chunk.len() == CHUNK_RECORDS {
            let full = std::mem::replace(&mut chunk, Vec::with_capacity(CHUNK_RECORDS));
            parts.send(Part::Records(full, end)).map_err(|_| ())?;
        }
    };
    parts.send(Part::Records(chunk, end)).map_err(|_| ())?;
    result.or_else(fault)
}
