//! Reserve of the disk: when less is free, the Recorder deletes the oldest segments that no hold covers.
//!
//! Deletion is that of `expire`, with its order on disk and its log entries. What may not go stays: then the disk
//! fills, and packets are dropped and declared ([`DiskSpace`](super::disk_space::DiskSpace)).

use crate::cli::Failure;
use crate::expire::{self, Freed};
use crate::output::shown_bytes;
use crate::record::disk_space::{RESERVE_BYTES, free_bytes};
use crate::record::session::spawn;
use crate::store::Store;
use evergate_evidence::retention::Shortage;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PERIOD: Duration = Duration::from_millis(100);
/// Time between two attempts after one that deleted nothing, and between two equal messages.
const PAUSE: Duration = Duration::from_secs(10);

/// Keeps `reserve` bytes free beyond those at which packets are dropped. The thread ends with the flag.
pub(crate) fn start(store: &Store, reserve: u64, stop: &Arc<AtomicBool>) -> Result<(), Failure> {
    if reserve == 0 {
        return Ok(());
    }
    let (store, stop) = (store.clone(), Arc::clone(stop));
    let thread = spawn("reserve", move || {
        let mut next = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            if Instant::now() >= next && !keep(&store, RESERVE_BYTES + reserve) {
                next = Instant::now() + PAUSE;
            }
            std::thread::sleep(PERIOD);
        }
        Ok(())
    });
    thread.map(drop)
}

/// Deletes what lacks to the reserve; false if nothing may go.
fn keep(store: &Store, reserve: u64) -> bool {
    let free = free_bytes(store.root());
    if free >= reserve {
        return true;
    }
    match expire::free(store, Shortage { reserve, free }) {
        Ok(Freed { segments: 0, .. }) => {
            eprintln!(
                "evergate-audit: store: {} are free, less than the reserve of {}, and no closed segment may go: free \
                 space; packets are dropped and declared lost below {}",
                shown_bytes(free),
                shown_bytes(reserve),
                shown_bytes(RESERVE_BYTES)
            );
            false
        }
        Ok(Freed { segments, bytes }) => {
            eprintln!(
                "evergate-audit: store: deleted the oldest {segments} segments with {}: less than {} were free; give \
                 the store a larger disk, or run `evergate-audit expire` before",
                shown_bytes(bytes),
                shown_bytes(reserve)
            );
            true
        }
        Err(failure) => {
            eprintln!("evergate-audit: store: cannot delete the oldest segments: {}", failure.message);
            false
        }
    }
}
