//! Arrays of the kernel that are mapped into this process.

use crate::GateError;
use libbpf_rs::{MapCore, MapHandle};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A `BPF_F_MMAPABLE` array of `T`, shared with the programs that read and write it at any time. Fields are therefore
/// reached through atomics only, never through references to `T`.
pub(crate) struct Table<T> {
    base: NonNull<u8>,
    stride: usize,
    entries: usize,
    bytes: usize,
    kind: PhantomData<T>,
}

// SAFETY: the memory is shared with the kernel and only accessed with atomic operations, from any thread.
unsafe impl<T> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Table<T> {}

impl<T> Table<T> {
    pub(crate) fn map(map: &MapHandle) -> Result<Table<T>, GateError> {
        // The kernel rounds the distance of values up to 8, and the whole to a page.
        let stride = (map.value_size() as usize).next_multiple_of(8);
        let entries = map.max_entries() as usize;
        let bytes = (stride * entries).next_multiple_of(4096);
        if map.value_size() as usize != size_of::<T>() {
            let text = format!("values of {} bytes where {} were expected", map.value_size(), size_of::<T>());
            return Err(GateError::kernel("mapping a table", std::io::Error::other(text)));
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; no memory of ours is touched.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        match NonNull::new(base.cast::<u8>()) {
            Some(start) if base != libc::MAP_FAILED => {
                Ok(Table { base: start, stride, entries, bytes, kind: PhantomData })
            }
            _ => Err(GateError::kernel(
                format!("mapping a table of {bytes} bytes"),
                std::io::Error::last_os_error(),
            )),
        }
    }

    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    /// Pointer to an entry, valid as long as the table. Panics outside the table: indexes come from ourselves.
    pub(crate) fn pointer(&self, index: usize) -> *mut T {
        assert!(index < self.entries, "entry {index} of a table of {}", self.entries);
        // SAFETY: the index lies inside the mapping.
        unsafe { self.base.as_ptr().add(index * self.stride).cast() }
    }
}

impl Table<u64> {
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: entries are 8 bytes apart on a page, hence aligned, and live as long as the table.
        unsafe { AtomicU64::from_ptr(self.pointer(index)) }
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no borrow of it outlives the table.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// The atomic at `field`, a pointer into a table's entry.
///
/// # Safety
/// `field` must point to an aligned u32 inside a table that outlives `'a`.
pub(crate) unsafe fn atomic<'a>(field: *mut u32) -> &'a AtomicU32 {
    // SAFETY: as the caller promises.
    unsafe { AtomicU32::from_ptr(field) }
}

/// The bytes of a plain value, as maps want them.
pub(crate) fn bytes<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: used for the generated map types and integers only, which have no padding (their sizes are asserted).
    unsafe { std::slice::from_raw_parts((&raw const *value).cast(), size_of::<T>()) }
}
