//! Checks that this machine cannot make. A message marks their beginning and their end, because a thousand servers
//! would otherwise log the same line each second.

use crate::control::console;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The servers whose last check could not be made, by id.
#[derive(Debug, Default)]
pub(super) struct Shortage(Mutex<BTreeSet<u64>>);

impl Shortage {
    /// A server could not be checked.
    pub(super) fn begin(&self, server: u64, why: &str) {
        if self.note(server) {
            console::warning(format_args!(
                "health checks cannot be made: {why}; servers keep their state until then: raise the limit of \
                 open files (LimitNOFILE=, ulimit -n), or lower limits.connections_max"
            ));
        }
    }

    /// A server was checked.
    pub(super) fn end(&self, server: u64) {
        if self.note_checked(server) {
            console::info("health checks of all servers are made again");
        }
    }

    /// Forgets servers that are not checked any more.
    pub(super) fn keep(&self, is_checked: impl Fn(u64) -> bool) {
        self.servers().retain(|server| is_checked(*server));
    }

    /// Whether this is the first one.
    fn note(&self, server: u64) -> bool {
        let mut servers = self.servers();
        let is_first = servers.is_empty();
        servers.insert(server) && is_first
    }

    /// Whether this was the last one.
    fn note_checked(&self, server: u64) -> bool {
        let mut servers = self.servers();
        servers.remove(&server) && servers.is_empty()
    }

    fn servers(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginning_and_end_are_logged_once_for_all_servers() {
        let shortage = Shortage::default();
        let reported = [1, 2, 1, 3].map(|server| shortage.note(server));
        assert_eq!(reported, [true, false, false, false]);
        let reported = [9, 1, 3, 2, 2].map(|server| shortage.note_checked(server));
        assert_eq!(reported, [false, false, false, true, false]);
        assert!(shortage.note(1), "another episode");
    }
}
