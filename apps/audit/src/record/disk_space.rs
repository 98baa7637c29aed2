//! Space on the disk: whether a block's packets can be written.
//!
//! The free bytes are read again after [`PERIOD_BYTES`] or when there was no room. A reserve stays free for records of
//! losses and for statements, which continue while packets are dropped.

use rustix::fs::statvfs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes that stay free.
pub(crate) const RESERVE_BYTES: u64 = 64 << 20;
const PERIOD_BYTES: u64 = 16 << 20;
const RETRY: Duration = Duration::from_millis(100);

/// DiskSpace on the disk of the store.
#[derive(Debug)]
pub(crate) struct DiskSpace {
    folder: PathBuf,
    reserve: u64,
    /// Bytes that may be written before the next look.
    left: u64,
    looked: Option<Instant>,
    is_full: bool,
}

/// Free bytes of the folder's disk. A file system that does not answer counts as one with room: the write itself will
/// show it.
pub(crate) fn free_bytes(folder: &Path) -> u64 {
    statvfs(folder).map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
}

impl DiskSpace {
    pub(crate) fn new(folder: PathBuf, reserve: u64) -> DiskSpace {
        DiskSpace { folder, reserve, left: 0, looked: None, is_full: false }
    }

    /// Whether there is room for this many bytes more.
    pub(crate) fn has(&mut self, bytes: u64) -> bool {
        if self.left < bytes && (!self.is_full || self.looked.is_none_or(|looked| looked.elapsed() >= RETRY))
        {
            self.look(bytes);
        }
        let has = self.left >= bytes;
        self.left = self.left.saturating_sub(bytes);
        has
    }

    fn look(&mut self, bytes: u64) {
        self.looked = Some(Instant::now());
        let free = free_bytes(&self.folder);
        let usable = free.saturating_sub(self.reserve);
        self.left = usable.min(PERIOD_BYTES.max(bytes));
        let is_full = usable < bytes;
        if is_full != self.is_full {
            self.is_full = is_full;
            let folder = self.folder.display();
            match is_full {
                true => eprintln!(
                    "evergate-audit: store: disk of {folder} is full: packets are dropped and declared lost; free \
                     space or run `evergate-audit expire`"
                ),
                false => {
                    eprintln!("evergate-audit: store: disk of {folder} has room again: packets are recorded")
                }
            }
        }
    }
}
