//! Work that the ring thread hands to the digest thread, in order of arrival.

use crate::record::feed::FeedJob;
use evergate_capture::{Block, BlockView, Counters, InterfaceStatistics};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One piece of work.
#[derive(Debug)]
pub(crate) enum Job {
    /// A block of the ring.
    Block(HeldBlock, Totals),
    /// A block that emergency mode wrote to a file.
    Spilled(Spilled, Totals),
    /// A message of a switch.
    Feed(FeedJob),
    /// Totals without a block.
    Totals(Totals, Interface),
}

/// Totals at the time when a block was taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) ring: Counters,
    pub(crate) emergency_ms: u32,
    pub(crate) is_emergency: bool,
}

/// Counters of the interface since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Interface {
    pub(crate) received: u64,
    pub(crate) missed: u64,
}

impl Interface {
    /// Difference of two readings.
    pub(crate) fn since(now: &InterfaceStatistics, start: &InterfaceStatistics) -> Interface {
        Interface {
            received: now.rx_packets.saturating_sub(start.rx_packets),
            missed: now.missed().saturating_sub(start.missed()),
        }
    }
}

/// A block of the ring, counted while it is out.
#[derive(Debug)]
pub(crate) struct HeldBlock {
    block: Block,
    held: Arc<AtomicUsize>,
}

impl HeldBlock {
    pub(crate) fn new(block: Block, held: &Arc<AtomicUsize>) -> HeldBlock {
        held.fetch_add(1, Ordering::Relaxed);
        HeldBlock { block, held: held.clone() }
    }

    pub(crate) fn view(&self) -> BlockView<'_> {
        self.block.view()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.block.bytes()
    }
}

impl Drop for HeldBlock {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A block in a spill file.
#[derive(Debug)]
pub(crate) struct Spilled {
    file: Arc<File>,
    offset: u64,
    bytes: usize,
}

impl Spilled {
    pub(crate) fn new(file: Arc<File>, offset: u64, bytes: usize) -> Spilled {
        Spilled { file, offset, bytes }
    }

    /// Reads the block back.
    pub(crate) fn read(&self, to: &mut Vec<u8>) -> io::Result<()> {
        to.resize(self.bytes, 0);
        self.file.read_exact_at(to, self.offset)
    }
}
