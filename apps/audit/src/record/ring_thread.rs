//! The ring thread: takes every ready block before it does anything else, and hands blocks to the digest thread.
//!
//! In emergency mode it writes blocks to a spill file as they are, and frees the ring. Bounds: the ring's blocks, and
//! [`SPILL_BYTES_MAX`] of spill files. Beyond both the kernel drops packets and counts them.

use crate::record::job::{HeldBlock, Interface, Job, Spilled, Totals};
use crate::record::metrics::Metrics;
use evergate_capture::{CaptureError, InterfaceStatistics, Ring, Wait};
use evergate_recorder::emergency::{Change, Emergency};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(100);
const WAIT: Duration = Duration::from_millis(20);
/// Bytes at which a spill file is closed and the next one begins.
const SPILL_FILE_BYTES: u64 = 256 << 20;
/// Most bytes of spilled blocks that have no digest yet.
const SPILL_BYTES_MAX: usize = 8 << 30;

/// The ring thread.
#[derive(Debug)]
pub(crate) struct RingThread {
    ring: Ring,
    jobs: Sender<Job>,
    stop: Arc<AtomicBool>,
    retire: Duration,
    /// Counters of the interface before the ring opened.
    start: InterfaceStatistics,
    emergency: Emergency,
    begin: Instant,
    held: Arc<AtomicUsize>,
    spill: Spill,
    metrics: Arc<Metrics>,
    tick: Instant,
}

/// The files of blocks without a digest.
#[derive(Debug)]
pub(crate) struct Spill {
    folder: PathBuf,
    file: Option<(Arc<File>, u64)>,
    number: u64,
    /// Bytes whose jobs the digest thread has not finished.
    pending: Arc<AtomicUsize>,
}

impl RingThread {
    pub(crate) fn new(
        ring: Ring,
        start: InterfaceStatistics,
        jobs: Sender<Job>,
        stop: Arc<AtomicBool>,
        retire: Duration,
        spill: Spill,
        metrics: Arc<Metrics>,
    ) -> RingThread {
        RingThread {
            ring,
            jobs,
            stop,
            retire,
            start,
            emergency: Emergency::default(),
            begin: Instant::now(),
            held: Arc::default(),
            spill,
            metrics,
            tick: Instant::now(),
        }
    }

    /// Runs until the flag is set and the ring is drained.
    pub(crate) fn run(mut self) -> Result<(), CaptureError> {
        let mut idle_since: Option<Instant> = None;
        loop {
            let took = self.take_blocks()?;
            if took || self.tick.elapsed() >= TICK {
                self.tick()?;
            }
            if self.stop.load(Ordering::Relaxed) {
                let since = match idle_since.filter(|_| !took) {
                    Some(since) => since,
                    None => {
                        if idle_since.is_none() {
                            self.ring.stop()?;
                        }
                        Instant::now()
                    }
                };
                idle_since = Some(since);
                if since.elapsed() >= self.retire * 3 {
                    return self.tick();
                }
            }
            if self.ring.wait(WAIT)? == Wait::Down {
                eprintln!("evergate-audit: capture: interface is down: no packets arrive; set it up");
                std::thread::sleep(TICK);
            }
        }
    }

    /// Passes on every ready block.
    fn take_blocks(&mut self) -> Result<bool, CaptureError> {
        let mut took = false;
        while let Some(block) = self.ring.next_block() {
            took = true;
            let totals = self.totals()?;
            let block = HeldBlock::new(block, &self.held);
            let job = match totals.is_emergency.then(|| self.spill.write(&block)).flatten() {
                Some(spilled) => Job::Spilled(spilled, totals),
                None => Job::Block(block, totals),
            };
            if self.jobs.send(job).is_err() {
                return Ok(took); // the digest thread ended with an error
            }
        }
        Ok(took)
    }

    fn totals(&mut self) -> Result<Totals, CaptureError> {
        let occupied = self.ring.ready_blocks() + self.held.load(Ordering::Relaxed);
        let now_ns = self.begin.elapsed().as_nanos() as u64;
        match self.emergency.on_ready(occupied, self.ring.blocks(), now_ns) {
            Some(Change::Enter) => eprintln!(
                "evergate-audit: capture: emergency mode begins: {occupied} of {} blocks of the ring wait for digests",
                self.ring.blocks()
            ),
            Some(Change::Leave) => eprintln!(
                "evergate-audit: capture: emergency mode ends: it lasted {} ms since the start",
                self.emergency.lasted_ms(now_ns)
            ),
            None => {}
        }
        let totals = Totals {
            ring: self.ring.counters()?,
            emergency_ms: self.emergency.lasted_ms(now_ns),
            is_emergency: self.emergency.is_active(),
        };
        self.metrics.record_ring(occupied, self.ring.blocks(), &totals);
        Ok(totals)
    }

    fn tick(&mut self) -> Result<(), CaptureError> {
        self.tick = Instant::now();
        // The interface is read first: it is never ahead of the ring's own total.
        let interface = self.ring.interface().statistics().unwrap_or(self.start);
        let totals = self.totals()?;
        let _ = self.jobs.send(Job::Totals(totals, Interface::since(&interface, &self.start)));
        if self.spill.pending.load(Ordering::Relaxed) == 0 {
            self.spill.clear();
        }
        Ok(())
    }
}

impl Spill {
    pub(crate) fn new(folder: PathBuf, pending: Arc<AtomicUsize>) -> Spill {
        Spill { folder, file: None, number: 0, pending }
    }

    /// Writes a block; `None` when the files are full or the disk is.
    fn write(&mut self, block: &HeldBlock) -> Option<Spilled> {
        let bytes = block.bytes();
        if self.pending.load(Ordering::Relaxed) + bytes.len() > SPILL_BYTES_MAX {
            return None;
        }
        if self.file.as_ref().is_none_or(|(_, length)| *length >= SPILL_FILE_BYTES) {
            self.number += 1;
            let path = self.folder.join(format!("spill-{}.blk", self.number));
            let file = File::options().create(true).truncate(true).read(true).write(true).open(&path).ok()?;
            // The open file keeps the blocks; a crash leaves no name behind.
            let _ = std::fs::remove_file(&path);
            self.file = Some((Arc::new(file), 0));
        }
        let (file, length) = self.file.as_mut()?;
        file.write_all_at(bytes, *length).ok()?;
        let spilled = Spilled::new(file.clone(), *length, bytes.len());
        *length += bytes.len() as u64;
        self.pending.fetch_add(bytes.len(), Ordering::Relaxed);
        Some(spilled)
    }

    fn clear(&mut self) {
        self.file = None;
    }
}
