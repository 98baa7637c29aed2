//! Reserve of file descriptors that clients do not get. A request needs one for its server, a health check one for its
//! probe, an operator one to inspect the process.
//!
//! The kernel assigns the lowest free number. A descriptor with a high number therefore shows that all lower ones are
//! in use, without counting.

use evergate_base::Micros;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// Reserved share of the limit, as a divisor, within the bounds below.
const RESERVE_PART: u64 = 16;
const RESERVE_MIN: u64 = 16;
const RESERVE_MAX: u64 = 1024;
/// Time without a shortage after which it is over, and the next one is logged.
const EPISODE: Micros = Micros::from_ms(60_000);

/// Descriptor use of the process, shared by its workers.
#[derive(Debug)]
pub struct FdReserve {
    /// Clients get no descriptor from this number on.
    clients_below: AtomicI32,
    /// How many of them are reserved for connections that the old process still has.
    held_back: AtomicI32,
    is_short: AtomicBool,
    /// When accepting failed last, in microseconds; 0 for never.
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

/// Number of descriptors for clients, of `limit`.
pub fn files_for_clients(limit: u64) -> u64 {
    limit.saturating_sub((limit / RESERVE_PART).clamp(RESERVE_MIN, RESERVE_MAX))
}

impl FdReserve {
    /// Sets the process's limit of descriptors.
    pub fn set_limit(&self, limit: u64) {
        let below = i32::try_from(files_for_clients(limit)).unwrap_or(i32::MAX);
        self.clients_below.store(below, Ordering::Relaxed);
    }

    /// Reserves descriptors for connections of the old process: new clients do not get them.
    pub fn hold_back(&self, count: usize) {
        self.held_back.store(i32::try_from(count).unwrap_or(i32::MAX), Ordering::Relaxed);
    }

    /// Releases the reserve of `count` arrived connections.
    pub fn hold_back_less(&self, count: usize) {
        let less = |held: i32| Some(held.saturating_sub(i32::try_from(count).unwrap_or(i32::MAX)).max(0));
        let _ = self.held_back.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    fn is_for_clients(&self, fd: i32) -> bool {
        let held_back = self.held_back.load(Ordering::Relaxed);
        fd < self.clients_below.load(Ordering::Relaxed).saturating_sub(held_back)
    }

    /// Whether no worker may take connections now.
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Whether a connection has the last descriptor for clients. Then no worker accepts more until
    /// [`FdReserve::record_lowest_free`] finds a lower one.
    pub fn is_used_up_by(&self, fd: i32) -> bool {
        let is_last = !self.is_for_clients(fd);
        if is_last {
            self.is_short.store(true, Ordering::Relaxed);
        }
        is_last
    }

    /// Whether descriptors beyond the reserve are left, for a use that can do without this one.
    pub fn allows(&self, fd: i32) -> bool {
        fd < self.clients_below.load(Ordering::Relaxed)
    }

    /// Records the lowest free descriptor.
    pub fn record_lowest_free(&self, free: i32) {
        self.is_short.store(!self.is_for_clients(free), Ordering::Relaxed);
    }

    /// Whether a shortage is not over: then the lowest free descriptor is checked before each accept.
    pub fn is_tight(&self, now: Micros) -> bool {
        let short_at = self.short_at.load(Ordering::Relaxed);
        short_at != 0 && now.0.saturating_sub(short_at) < EPISODE.0
    }

    /// Extends a shortage in which connections are accepted only because others are evicted.
    pub fn prolong(&self, now: Micros) {
        if self.is_tight(now) {
            self.short_at.store(now.0.max(1), Ordering::Relaxed);
        }
    }

    /// Records a failure to accept connections; whether a shortage begins with it.
    pub fn begins(&self, now: Micros) -> bool {
        let before = self.short_at.swap(now.0.max(1), Ordering::Relaxed);
        before == 0 || now.0.saturating_sub(before) >= EPISODE.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_never_get_the_reserved_descriptors() {
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
    fn connections_of_the_old_process_have_their_descriptors() {
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
    fn reserve_is_a_bounded_share() {
        let kept = [8, 64, 1024, 1 << 20].map(|limit| limit - files_for_clients(limit));
        assert_eq!(kept, [8, 16, 64, 1024]);
    }

    #[test]
    fn shortage_is_logged_once_and_again_after_a_minute() {
        let room = FdReserve::default();
        let logged = [1, 2, 50, 100, 161, 162].map(|s| room.begins(Micros::from_ms(s * 1000)));
        assert_eq!(logged, [true, false, false, false, true, false]);
    }
}
