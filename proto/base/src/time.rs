//! Time for the pure crates: a number that the shell passes in.

use std::ops::{Add, Sub};

/// Monotonic time in microseconds since an arbitrary start (the machine's, or the simulator's zero).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// A span or instant of `ms` milliseconds.
    pub const fn from_ms(ms: u64) -> Micros {
        Micros(ms.saturating_mul(1000))
    }

    /// Whole milliseconds, rounded down.
    pub const fn as_ms(self) -> u64 {
        self.0 / 1000
    }

    /// The span from `earlier` to `self`; zero when `earlier` is later.
    pub const fn since(self, earlier: Micros) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Micros {
    type Output = Micros;
    fn add(self, span: Micros) -> Micros {
        Micros(self.0.saturating_add(span.0))
    }
}

impl Sub for Micros {
    type Output = Micros;
    fn sub(self, span: Micros) -> Micros {
        Micros(self.0.saturating_sub(span.0))
    }
}

/// Wall-clock time in whole seconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unix(pub u64);
