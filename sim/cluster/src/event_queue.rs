//! Future events in the order of time; events of the same time in the order of planning.

use std::collections::BTreeMap;

/// Virtual time in microseconds.
pub type Time = u64;

/// Queue of events by time: see the module's description.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    planned: BTreeMap<(Time, u64), E>,
    count: u64,
}

impl<E> Default for EventQueue<E> {
    fn default() -> EventQueue<E> {
        EventQueue { planned: BTreeMap::new(), count: 0 }
    }
}

impl<E> EventQueue<E> {
    pub(crate) fn plan(&mut self, at: Time, event: E) {
        self.count += 1;
        self.planned.insert((at, self.count), event);
    }

    pub(crate) fn next(&mut self) -> Option<(Time, E)> {
        self.planned.pop_first().map(|((at, _), event)| (at, event))
    }

    pub(crate) fn next_at(&self) -> Option<Time> {
        self.planned.first_key_value().map(|((at, _), _)| *at)
    }

    pub(crate) fn len(&self) -> usize {
        self.planned.len()
    }
}
