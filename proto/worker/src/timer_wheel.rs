//! A coarse timer wheel: a connection is scheduled once and checked when its slot is due. If its deadline has moved
//! meanwhile, it is scheduled again then. Moving a deadline therefore costs nothing.

use crate::slab::Key;
use evergate_base::Micros;

/// Width of a slot.
pub(crate) const TICK: Micros = Micros::from_ms(64);
const SLOTS: u64 = 2048;

#[derive(Debug)]
pub(crate) struct Wheel {
    slots: Vec<Vec<Key>>,
    /// Next tick to check.
    next: u64,
    entries: usize,
}

impl Wheel {
    pub(crate) fn new(now: Micros) -> Wheel {
        Wheel { slots: (0..SLOTS).map(|_| Vec::new()).collect(), next: now.0 / TICK.0, entries: 0 }
    }

    /// Schedules `key` for `deadline`, unless it is `scheduled` early enough. Returns when it will be checked, which
    /// may be before the deadline. An outdated entry stays until its time, and is skipped then.
    pub(crate) fn schedule(&mut self, key: Key, deadline: Micros, scheduled: Micros) -> Micros {
        let tick = (deadline.0 / TICK.0 + 1).clamp(self.next, self.next + SLOTS - 1);
        if scheduled.0 <= tick * TICK.0 {
            return scheduled;
        }
        self.slots[(tick % SLOTS) as usize].push(key);
        self.entries += 1;
        Micros(tick * TICK.0)
    }

    /// Takes all entries of ticks up to `now`.
    pub(crate) fn due(&mut self, now: Micros, out: &mut Vec<Key>) {
        while self.next * TICK.0 <= now.0 {
            let slot = &mut self.slots[(self.next % SLOTS) as usize];
            self.entries -= slot.len();
            out.append(slot);
            self.next += 1;
        }
    }

    /// Milliseconds until the next check.
    pub(crate) fn wait_ms(&self, now: Micros) -> i32 {
        let span = Micros(self.next * TICK.0).since(now);
        (span.0.div_ceil(1000)).min(1000) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_out_at_their_time_or_at_the_horizon() {
        let mut wheel = Wheel::new(Micros(0));
        let key = |index| Key { index, generation: 0 };
        let never = Micros(u64::MAX);
        let near = wheel.schedule(key(1), Micros::from_ms(100), never);
        assert_eq!(near, Micros::from_ms(128));
        assert_eq!(wheel.schedule(key(1), Micros::from_ms(100), near), near, "one entry is enough");
        let far = wheel.schedule(key(2), Micros::from_ms(10_000_000), never);
        assert!(far < Micros::from_ms(140_000));
        let mut due = Vec::new();
        wheel.due(Micros::from_ms(127), &mut due);
        assert!(due.is_empty());
        wheel.due(Micros::from_ms(128), &mut due);
        assert_eq!(due, [key(1)]);
        wheel.due(far, &mut due);
        assert_eq!(due.len(), 2);
    }
}
