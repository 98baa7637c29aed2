//! The last file descriptors of the process: clients that only wait must not get them. A request needs one for its server, a
//! health check one for its question, an operator one to see what is going on.
//!
//! The kernel gives out the lowest number that is free. So a descriptor with a high number says that all below are in use,
//! and nobody need count.

use crate::control::console;
use evergate_base::Micros;
use std::fmt::Display;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// Kept back: this part of the limit, within bounds.
const RESERVE_PART: u64 = 16;
const RESERVE_MIN: u64 = 16;
const RESERVE_MAX: u64 = 1024;
/// A shortage is over, and the next one is told, when there was none for so long.
const EPISODE: Micros = Micros::from_ms(60_000);

/// Where the workers of a process stand with its descriptors.
#[derive(Debug)]
pub struct FdReserve {
    /// Clients get no descriptor from this number on.
    clients_below: AtomicI32,
    /// So many of these are for connections that the process before still has.
    held_back: AtomicI32,
    is_short: AtomicBool,
    /// When connections could last not be taken, in microseconds; 0 for never.
    short_at: AtomicU64,
}

impl Default for FdReserve {
    fn default() -> FdReserve {
        FdReserve {
            clients_below: AtomicI32::new(i32::MAX),
            held_back: AtomicI32::new(0),
            is_short: AtomicBool::new(false),
            short_at: AtomicU64::new(0),
        }
    }
}

/// How many of so many descriptors clients get.
pub fn files_for_clients(limit: u64) -> u64 {
    limit.saturating_sub((limit / RESERVE_PART).clamp(RESERVE_MIN, RESERVE_MAX))
}

impl FdReserve {
    /// The process may have so many descriptors.
    pub fn set_limit(&self, limit: u64) {
        let below = i32::try_from(files_for_clients(limit)).unwrap_or(i32::MAX);
        self.clients_below.store(below, Ordering::Relaxed);
    }

    /// So many are for connections that come from the process before: new clients must not get them.
    pub fn hold_back(&self, count: usize) {
        self.held_back.store(i32::try_from(count).unwrap_or(i32::MAX), Ordering::Relaxed);
    }

    /// So many of those have come.
    pub(super) fn hold_back_less(&self, count: usize) {
        let less = |held: i32| Some(held.saturating_sub(i32::try_from(count).unwrap_or(i32::MAX)).max(0));
        let _ = self.held_back.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    fn is_for_clients(&self, fd: RawFd) -> bool {
        let held_back = self.held_back.load(Ordering::Relaxed);
        fd < self.clients_below.load(Ordering::Relaxed).saturating_sub(held_back)
    }

    /// Whether no worker may take connections now.
    pub(super) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Whether a connection has got the last descriptor that clients get; then nobody takes more until [`Room::look`] finds
    /// room.
    pub(super) fn is_used_up_by(&self, fd: RawFd) -> bool {
        let is_last = !self.is_for_clients(fd);
        if is_last {
            self.is_short.store(true, Ordering::Relaxed);
        }
        is_last
    }

    /// Whether there are more descriptors than the last ones, for what can do without this one.
    pub(super) fn allows(&self, fd: RawFd) -> bool {
        fd < self.clients_below.load(Ordering::Relaxed)
    }

    /// The lowest descriptor that is free now is this one.
    pub(super) fn record_lowest_free(&self, free: RawFd) {
        self.is_short.store(!self.is_for_clients(free), Ordering::Relaxed);
    }

    /// Whether a shortage is not over: before each accept the lowest free descriptor is looked at.
    pub(super) fn is_tight(&self, now: Micros) -> bool {
        let short_at = self.short_at.load(Ordering::Relaxed);
        short_at != 0 && now.0.saturating_sub(short_at) < EPISODE.0
    }

    /// A shortage lasts on, although connections can be taken: others are evicted for them.
    pub(super) fn prolong(&self, now: Micros) {
        if self.is_tight(now) {
            self.short_at.store(now.0.max(1), Ordering::Relaxed);
        }
    }

    /// Connections cannot be taken: the operator is told once an episode.
    pub(super) fn log_shortage(&self, now: Micros, why: &dyn Display) {
        if self.begins(now) {
            console::warning(format_args!(
                "accept_failed: no more connections can be taken: {why}; idle connections are closed for new clients, and \
                 without any clients wait in the kernel's queue: raise the limit of open files (LimitNOFILE=, ulimit -n), \
                 or lower limits.connections_max"
            ));
        }
    }

    fn begins(&self, now: Micros) -> bool {
        let before = self.short_at.swap(now.0.max(1), Ordering::Relaxed);
        before == 0 || now.0.saturating_sub(before) >= EPISODE.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_descriptors_are_kept_from_clients_until_there_is_room() {
        let room = FdReserve::default();
        assert!(!room.is_used_up_by(1_000_000), "without a limit");
        room.set_limit(1024);
        assert!(!room.is_used_up_by(959) && !room.is_short());
        assert!(room.allows(959) && !room.allows(960) && !room.is_short());
        assert!(room.is_used_up_by(960) && room.is_short());
        room.record_lowest_free(961);
        assert!(room.is_short());
        room.record_lowest_free(17);
        assert!(!room.is_short());
        room.record_lowest_free(960);
        assert!(room.is_short());
    }

    #[test]
    fn shortage_is_tight_for_a_minute_after_its_last_eviction() {
        let room = FdReserve::default();
        let at = |s: u64| Micros::from_ms(s * 1000);
        room.prolong(at(1));
        assert!(!room.is_tight(at(1)), "no shortage has begun");
        assert!(room.begins(at(1)) && room.is_tight(at(60)) && !room.is_tight(at(61)));
        room.prolong(at(60));
        assert!(room.is_tight(at(119)) && !room.begins(at(119)), "one warning for all of it");
    }

    #[test]
    fn what_comes_from_the_process_before_has_its_descriptors() {
        let room = FdReserve::default();
        room.set_limit(1024);
        room.hold_back(900);
        assert!(room.is_used_up_by(60) && room.is_short());
        room.hold_back_less(400);
        room.record_lowest_free(459);
        assert!(!room.is_short() && room.is_used_up_by(460));
        room.hold_back_less(501);
        room.record_lowest_free(959);
        assert!(!room.is_short() && room.is_used_up_by(960));
    }

    #[test]
    fn a_part_within_bounds_is_kept() {
        let kept = [8, 64, 1024, 1 << 20].map(|limit| limit - files_for_clients(limit));
        assert_eq!(kept, [8, 16, 64, 1024]);
    }

    #[test]
    fn a_shortage_is_told_once_and_again_after_a_minute_without() {
        let room = FdReserve::default();
        let reported = [1, 2, 50, 100, 161, 162].map(|s| room.begins(Micros::from_ms(s * 1000)));
        assert_eq!(reported, [true, false, false, false, true, false]);
    }
}
