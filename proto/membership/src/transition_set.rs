//! A set of transitions of the phase, for the coverage of tests.

use std::fmt;

use crate::phase::{TRANSITIONS, Transition};

const _: () = assert!(TRANSITIONS.len() <= u64::BITS as usize, "a row has no bit");

/// Rows of [`TRANSITIONS`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TransitionSet(u64);

impl TransitionSet {
    /// No transition.
    pub const EMPTY: TransitionSet = TransitionSet(0);

    /// Adds the row at this index of [`TRANSITIONS`].
    pub(crate) fn insert(&mut self, row: usize) {
        self.0 |= 1 << row;
    }

    /// Transitions of either set.
    #[must_use]
    pub const fn union(self, other: TransitionSet) -> TransitionSet {
        TransitionSet(self.0 | other.0)
    }

    /// The transitions, in the order of the table.
    pub fn iter(self) -> impl Iterator<Item = Transition> {
        let rows = TRANSITIONS.into_iter().enumerate();
        rows.filter(move |(row, _)| self.0 & (1 << row) != 0).map(|(_, transition)| transition)
    }
}

impl fmt::Debug for TransitionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|transition| transition.to_string())).finish()
    }
}
