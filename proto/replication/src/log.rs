//! The owner's queue of entries that backups have not acknowledged yet.

use crate::{Entry, Urgency};

/// How many entries one connection may have unacknowledged before it must stop taking input.
pub const OUTSTANDING_MAX: u64 = 4096;

/// Entries queued for the backups and how far they are acknowledged. Index 0 stands for "nothing": the first entry is 1.
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

    /// Queues `entry`; what depends on it must wait until [`Log::acknowledged`] reaches the index returned.
    pub fn push(&mut self, entry: Entry) -> u64 {
        self.last += 1;
        if entry.decides_output() {
            self.decided = self.last;
        }
        self.urgency = self.urgency.max(entry.urgency());
        self.queued.push(entry);
        self.last
    }

    /// Queues an entry that says what every node does by itself: nothing waits for it.
    pub fn push_deterministic(&mut self, entry: Entry) -> u64 {
        self.last += 1;
        self.queued.push(entry);
        self.last
    }

    /// Index of the newest entry.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Index of the newest entry that output may depend on: one that decides something.
    pub fn decided(&self) -> u64 {
        self.decided
    }

    /// Every backup holds all entries up to this index.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Whether so many entries are unacknowledged that the connection must stop taking input.
    pub fn is_full(&self) -> bool {
        self.last - self.acknowledged >= OUTSTANDING_MAX
    }

    /// How long what is queued may wait for company.
    pub fn urgency(&self) -> Urgency {
        self.urgency
    }

    /// What waits for the entries queued so far is in no greater haste.
    pub fn calm(&mut self, urgency: Urgency) {
        self.urgency = self.urgency.min(urgency);
    }

    /// Takes the entries queued since the last call, oldest first.
    pub fn drain(&mut self) -> std::vec::Drain<'_, Entry> {
        self.urgency = Urgency::None;
        self.queued.drain(..)
    }

    /// Whether entries wait to be taken.
    pub fn has_queued(&self) -> bool {
        !self.queued.is_empty()
    }

    /// Notes that all backups hold the entries up to `index`; an index never issued or already passed is ignored.
    pub fn handle_acknowledged(&mut self, index: u64) {
        if index > self.acknowledged && index <= self.last {
            self.acknowledged = index;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Phase, ServerCheckpoint, Side};

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
    fn only_entries_that_nobody_waits_for_wait() {
        let urgency = |entries: Vec<Entry>| {
            let mut log = Log::new();
            for entry in entries {
                log.push(entry);
            }
            log.urgency()
        };
        let stash = Entry::Stash { side: Side::Client, position: 0, bytes: vec![1] };
        assert_eq!(urgency(vec![server(Phase::Head), server(Phase::Ended)]), Urgency::None);
        assert_eq!(urgency(vec![server(Phase::Head), server(Phase::Body(vec![1]))]), Urgency::Some);
        assert_eq!(urgency(vec![close(false), server(Phase::Head)]), Urgency::Full);
        assert_eq!(urgency(vec![close(true)]), Urgency::None);
        assert_eq!(urgency(vec![close(true), stash]), Urgency::Full);
    }

    #[test]
    fn the_haste_is_that_of_what_is_queued() {
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
    fn a_connection_stops_at_the_bound_and_goes_on_with_the_next_acknowledgement() {
        let mut log = Log::new();
        for _ in 0..OUTSTANDING_MAX {
            assert!(!log.is_full());
            log.push(close(false));
        }
        assert!(log.is_full());
        log.drain();
        assert!(log.is_full(), "what is on its way is not there yet");
        log.handle_acknowledged(1);
        assert!(!log.is_full());
    }

    #[test]
    fn output_depends_on_no_checkpoint() {
        let mut log = Log::new();
        log.push(Entry::Generated { request: 0, bytes: Vec::new(), close: false });
        log.push(server(Phase::Head));
        log.push(Entry::Client(crate::ClientCheckpoint::default()));
        assert_eq!((log.last(), log.decided()), (3, 1));
    }
}
