//! Cache of the TLS 1.2 sessions that clients without tickets resume by their ids: one for all workers of the process.
//!
//! A client may return to any worker, so the cache is shared. Its lock is held for a lookup, next to a handshake that
//! costs a hundred times as much, and is not taken while the cache is empty: few clients need it. `unix_s` is the time
//! in seconds since 1970.

use evergate_base::session::{KeptSession, Sealed, SessionId};
use evergate_tls::SessionCache;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The sessions of a process.
#[derive(Debug, Default)]
pub struct NamedSessions {
    cache: Mutex<SessionCache>,
    kept: AtomicUsize,
}

impl NamedSessions {
    /// Sets the capacity in bytes.
    pub fn set_bytes_max(&self, bytes_max: usize) {
        self.change(|cache| cache.set_bytes_max(bytes_max));
    }

    /// The session stored under this id.
    pub fn find(&self, id: &SessionId, unix_s: u64) -> Option<Sealed> {
        if self.is_empty() {
            return None;
        }
        self.lock().find(id, unix_s).cloned()
    }

    /// Keeps a session.
    pub fn keep(&self, session: KeptSession, unix_s: u64) {
        self.change(|cache| cache.keep(session, unix_s));
    }

    /// Removes an aborted session, which must not be resumed.
    pub fn withdraw(&self, id: SessionId, unix_s: u64) {
        self.change(|cache| cache.withdraw(id, unix_s));
    }

    /// Number of sessions.
    pub fn len(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The newest sessions, oldest first, and the ids withdrawn meanwhile, up to `bytes`.
    pub fn newest(&self, bytes: usize) -> Vec<Result<KeptSession, SessionId>> {
        let mut left = bytes;
        let cache = self.lock();
        let fits = |news: &Result<KeptSession, SessionId>| {
            let bytes = size_of::<KeptSession>() + news.as_ref().map_or(0, |session| session.sealed.0.len());
            left.checked_sub(bytes).inspect(|rest| left = *rest).is_some()
        };
        let mut news: Vec<_> = cache.newest().take_while(fits).collect();
        news.reverse();
        news
    }

    fn change<R>(&self, change: impl FnOnce(&mut SessionCache) -> R) -> R {
        let mut cache = self.lock();
        let result = change(&mut cache);
        self.kept.store(cache.len(), Ordering::Relaxed);
        result
    }

    fn lock(&self) -> MutexGuard<'_, SessionCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
