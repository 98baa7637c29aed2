//! Replication log: the owner's queue of entries that backups have not acknowledged yet.

use crate::{Entry, Urgency};

/// Most unacknowledged entries of a connection; at this number it must stop reading input.
pub const OUTSTANDING_MAX: u64 = 4096;

/// Entries queued for the backups, and how far they are acknowledged. Index 0 stands for no entry: the first entry has
/// index 1.
#[derive(Debug, Default)]
pub struct Log {
    queued: Vec<Entry>,
    last: u64,
    decided: u64,
    acknowledged: u64,
    urgency: Urgency,
}

impl Log {
    /// An empty log.
    pub fn new() -> Log {
        Log::default()
    }

    /// Queues `entry`; output that depends on it must wait until [`Log::acknowledged`] reaches the returned index.
    pub fn push(&mut self, entry: Entry) -> u64 {
        self.last += 1;
        if entry.decides_output() {
            self.decided = self.last;
        }
        self.urgency = self.urgency.max(entry.urgency());
        self.queued.push(entry);
        self.last
    }

    /// Queues an entry that every node derives by itself: no output waits for it.
    pub fn push_deterministic(&mut self, entry: Entry) -> u64 {
        self.last += 1;
        self.queued.push(entry);
        self.last
    }

    /// Index of the newest entry.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Index of the newest entry that output depends on.
    pub fn decided(&self) -> u64 {
        self.decided
    }

    /// Every backup holds all entries up to this index.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Whether so many entries are unacknowledged that the connection must stop reading input.
    pub fn is_full(&self) -> bool {
        self.last - self.acknowledged >= OUTSTANDING_MAX
    }

    /// How long the queued entries may wait for more.
    pub fn urgency(&self) -> Urgency {
        self.urgency
    }

    /// Lowers the urgency of the queued entries.
    pub fn calm(&mut self, urgency: Urgency) {
        self.urgency = self.urgency.min(urgency);
    }

    /// Takes the entries queued since the last call, oldest first.
    pub fn drain(&mut self) -> std::vec::Drain<'_, Entry> {
        self.urgency = Urgency::None;
        self.queued.drain(..)
    }

    /// Whether queued entries wait to be sent.
    pub fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// All backups hold the entries up to `index`; an index never issued or already passed is ignored.
    pub fn handle_acknowledged(&mut self, index: u64) {
        if index > self.acknowledged && index <= self.last {
            self.acknowledged = index;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Phase, ServerCheckpoint};

    #[test]
    fn acknowledgements_are_cumulative_and_never_run_ahead() {
        let mut log = Log::new();
        assert_eq!(log.push(Entry::Close { plain: 7, abort: false }), 1);
        assert_eq!(log.push(Entry::Close { plain: 7, abort: false }), 2);
        log.handle_acknowledged(3);
        assert_eq!(log.acknowledged(), 0);
        log.handle_acknowledged(2);
        log.handle_acknowledged(1);
        assert_eq!((log.acknowledged(), log.drain().count(), log.has_queued()), (2, 2, false));
    }

    fn server(phase: Phase) -> Entry {
        Entry::Server(ServerCheckpoint { phase, ..ServerCheckpoint::default() })
    }

    fn close(abort: bool) -> Entry {
        Entry::Close { plain: 0, abort }
    }

    #[test]
    fn urgency_is_none_for_entries_without_dependent_output() {
        let urgency = |entries: Vec<Entry>| {
            let mut log = Log::new();
            for entry in entries {
                log.push(entry);
            }
            log.urgency()
        };
        let stash = Entry::Stash { position: 0, bytes: vec![1] };
        assert_eq!(urgency(vec![server(Phase::Head), server(Phase::Ended)]), Urgency::None);
        assert_eq!(urgency(vec![server(Phase::Head), server(Phase::Body(vec![1]))]), Urgency::Some);
        assert_eq!(urgency(vec![close(false), server(Phase::Head)]), Urgency::Full);
        assert_eq!(urgency(vec![close(true)]), Urgency::None);
        assert_eq!(urgency(vec![close(true), stash]), Urgency::Full);
    }

    #[test]
    fn urgency_is_the_highest_of_the_queued_entries() {
        let mut log = Log::new();
        log.push_deterministic(close(false));
        assert_eq!(log.urgency(), Urgency::None);
        log.push(close(false));
        log.calm(Urgency::Some);
        assert_eq!(log.urgency(), Urgency::Some);
        log.push(server(Phase::Head));
        assert_eq!(log.urgency(), Urgency::Some);
        log.push(close(false));
        assert_eq!((log.urgency(), log.drain().count(), log.urgency()), (Urgency::Full, 4, Urgency::None));
    }

    #[test]
    fn full_log_accepts_entries_after_an_acknowledgement() {
        let mut log = Log::new();
        for _ in 0..OUTSTANDING_MAX {
            assert!(!log.is_full());
            log.push(close(false));
        }
        assert!(log.is_full());
        log.drain();
        assert!(log.is_full(), "sent entries are not acknowledged yet");
        log.handle_acknowledged(1);
        assert!(!log.is_full());
    }

    #[test]
    fn output_depends_on_no_checkpoint() {
        let mut log = Log::new();
        log.push(Entry::Generated { exchange: 0, answered: 0, bytes: Vec::new(), close: false });
        log.push(server(Phase::Head));
        log.push(Entry::Client(crate::ClientCheckpoint::default()));
        assert_eq!((log.last(), log.decided()), (3, 1));
    }
}
