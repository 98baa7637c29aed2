//! Memory of a ring, shared with the kernel, and its blocks.
//!
//! A block belongs to the kernel or to this process: its status word decides. This process may own several blocks at
//! once, in any threads. A block that is out (a [`Block`] exists) keeps `TP_STATUS_USER`. The status alone would yield
//! it twice: `out` has an own flag for each block.

use crate::block::{BlockView, Packets};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Offset of the status word in a block.
const STATUS_AT: usize = 8;

/// The mapped ring.
#[derive(Debug)]
pub(crate) struct Mapping {
    memory: NonNull<u8>,
    block_bytes: usize,
    /// One flag a block: whether a [`Block`] exists.
    out: Box<[AtomicBool]>,
}

// SAFETY: the memory is shared with the kernel by design. Status words are only used as atomics. All other bytes of a
// block are read through a `Block` only, which is unique and exists only while the kernel does not write.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the ring of a packet socket: `blocks` blocks of `block_bytes`.
    pub(crate) fn new(socket: &OwnedFd, blocks: usize, block_bytes: usize) -> io::Result<Mapping> {
        let length = blocks.checked_mul(block_bytes).ok_or(io::ErrorKind::OutOfMemory)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // The kernel enters all pages at once, so that MAP_POPULATE would only walk them again.
        // SAFETY: a new mapping of the socket's ring; no existing memory is touched.
        let memory = unsafe {
            libc::mmap(std::ptr::null_mut(), length, access, libc::MAP_SHARED, socket.as_raw_fd(), 0)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { memory, block_bytes, out: (0..blocks).map(|_| AtomicBool::new(false)).collect() })
    }

    pub(crate) fn blocks(&self) -> usize {
        self.out.len()
    }

    fn start(&self, index: usize) -> NonNull<u8> {
        assert!(index < self.out.len(), "block {index} of {}", self.out.len());
        // SAFETY: the offset lies inside the mapping, because the index is below the number of blocks.
        unsafe { self.memory.add(index * self.block_bytes) }
    }

    fn status(&self, index: usize) -> &AtomicU32 {
        // SAFETY: the word lies inside the block, is aligned (blocks start at pages), and this process accesses it only
        // as an atomic.
        unsafe { AtomicU32::from_ptr(self.start(index).add(STATUS_AT).cast().as_ptr()) }
    }

    /// Whether a [`Block`] of this index exists.
    pub(crate) fn is_out(&self, index: usize) -> bool {
        self.out[index].load(Ordering::Acquire)
    }

    /// Whether the kernel passed the block to this process and no [`Block`] of it exists.
    pub(crate) fn is_ready(&self, index: usize) -> bool {
        !self.is_out(index) && self.status(index).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Takes a ready block.
    pub(crate) fn take(self: &Arc<Mapping>, index: usize) -> Option<Block> {
        if !self.is_ready(index) || self.out[index].swap(true, Ordering::AcqRel) {
            return None;
        }
        Some(Block { mapping: Arc::clone(self), index })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length, and no `Block` exists: each holds the mapping.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.out.len() * self.block_bytes) };
    }
}

/// One block of received packets. It may go to another thread, outlive the ring, and be dropped in any order. Until
/// then the kernel cannot use its memory.
#[derive(Debug)]
pub struct Block {
    mapping: Arc<Mapping>,
    index: usize,
}

impl Block {
    /// The block's contents.
    pub fn view(&self) -> BlockView<'_> {
        let start = self.mapping.start(self.index);
        // SAFETY: the memory lives as long as the mapping, which `self` holds. The kernel writes to a block only while
        // its status is TP_STATUS_KERNEL, which only `drop` stores. `out` makes this value the only one of the block.
        let bytes = unsafe { std::slice::from_raw_parts(start.as_ptr(), self.mapping.block_bytes) };
        BlockView::new(bytes).expect("a block is at least a page")
    }

    /// The packets, in order of arrival.
    pub fn packets(&self) -> Packets<'_> {
        self.view().packets()
    }

    /// The used part of the block, header included; [`BlockView::new`] reads it again.
    pub fn bytes(&self) -> &[u8] {
        self.view().bytes()
    }

    /// Number of packets by the header.
    pub fn packet_count(&self) -> u32 {
        self.view().packet_count()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // This order: a block whose flag is clear while its status is still TP_STATUS_USER would be taken again.
        self.mapping.status(self.index).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.mapping.out[self.index].store(false, Ordering::Release);
    }
}
