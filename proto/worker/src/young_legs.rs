//! Server connections that get TCP keep-alive when they have lived for a second.
//!
//! Most of those that carry one request are over by then, and four system calls of each are saved.

use crate::host::Host;
use crate::slab::Key;
use crate::worker::Worker;
use std::time::Duration;

/// Most connections that wait. Further ones get keep-alive at once.
const YOUNG_MAX: usize = 65_536;

/// New server connections, each with the time for which its server may stay silent.
#[derive(Debug, Default)]
pub(crate) struct YoungLegs {
    /// Made since the last tick.
    new: Vec<(Key, Duration)>,
    /// Made in the second before it.
    grown: Vec<(Key, Duration)>,
}

impl YoungLegs {
    /// A second is over. Those that are older than that are taken out.
    fn take_grown(&mut self) -> Vec<(Key, Duration)> {
        let new = std::mem::take(&mut self.new);
        std::mem::replace(&mut self.grown, new)
    }
}

impl<H: Host> Worker<H> {
    /// The client has a new server connection.
    pub(super) fn note_young(&mut self, client: Key, patience: Duration) {
        let Some(upstream) = self.clients.get(client).and_then(|client| client.upstream) else { return };
        match self.young.new.len() < YOUNG_MAX {
            true => self.young.new.push((upstream, patience)),
            false => self.keep_legs_alive(vec![(upstream, patience)]),
        }
    }

    /// A second is over: connections that outlived it get keep-alive.
    pub(super) fn keep_grown_alive(&mut self) {
        let grown = self.young.take_grown();
        self.keep_legs_alive(grown);
    }

    /// All get keep-alive: the next process that has them does not know which lack it.
    pub(super) fn keep_young_alive(&mut self) {
        self.keep_grown_alive();
        self.keep_grown_alive();
    }

    fn keep_legs_alive(&self, legs: Vec<(Key, Duration)>) {
        for (key, patience) in legs {
            if let Some(upstream) = self.upstreams.get(key) {
                self.keep_alive(&upstream.socket, patience);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leg_is_taken_at_the_second_tick_after_it_began() {
        let leg = |index| (Key { index, generation: 0 }, Duration::ZERO);
        let mut young = YoungLegs::default();
        young.new.push(leg(1));
        assert_eq!(young.take_grown(), []);
        young.new.push(leg(2));
        assert_eq!(young.take_grown(), [leg(1)]);
        assert_eq!(young.take_grown(), [leg(2)]);
        assert_eq!(young.take_grown(), []);
    }
}
