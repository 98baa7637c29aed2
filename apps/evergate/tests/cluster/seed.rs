//! Seeded randomness: one seed, which is printed, decides when nodes die and how long clients pause.
//! `EVERGATE_SEED=n` repeats its choices. The timing of the machine still differs between runs.

use evergate_base::{GAMMA, spread};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Seeded source of random numbers.
pub(crate) struct Chance {
    pub(crate) seed: u64,
    state: AtomicU64,
}

impl Chance {
    /// Source with a new seed at every run, or with the given one, so that nodes do not always die at the same
    /// moment.
    pub(crate) fn new() -> Chance {
        let seed = match std::env::var("EVERGATE_SEED") {
            Ok(given) => given.parse().unwrap_or_else(|_| panic!("EVERGATE_SEED={given:?} is no number")),
            Err(_) => u64::from(u32::from_le_bytes(evergate_crypto::random_bytes())),
        };
        println!("EVERGATE_SEED={seed}");
        Chance::from(seed)
    }

    fn from(seed: u64) -> Chance {
        Chance { seed, state: AtomicU64::new(seed) }
    }

    /// Source for one party. Its numbers do not depend on what other parties draw.
    pub(crate) fn of(&self, party: &str) -> Chance {
        Chance::from(party.bytes().fold(self.seed, |state, byte| mixed(state ^ u64::from(byte))))
    }

    /// Random number below `end`, which is not 0.
    pub(crate) fn below(&self, end: u64) -> u64 {
        mixed(self.state.fetch_add(1, Ordering::Relaxed)) % end
    }

    pub(crate) fn moment(&self, below_ms: u64) -> Duration {
        Duration::from_millis(self.below(below_ms))
    }
}

fn mixed(state: u64) -> u64 {
    spread(state.wrapping_add(1).wrapping_mul(GAMMA))
}

#[test]
fn seed_repeats_its_numbers_and_parties_draw_independently() {
    let draw = |chance: &Chance| (0..8).map(|_| chance.below(1000)).collect::<Vec<_>>();
    assert_eq!(draw(&Chance::from(7)), draw(&Chance::from(7)));
    assert_ne!(draw(&Chance::from(7)), draw(&Chance::from(8)));
    let (all, early) = (Chance::from(7), Chance::from(7).of("a"));
    draw(&all);
    assert_eq!(draw(&all.of("a")), draw(&early));
    assert_ne!(draw(&all.of("a")), draw(&all.of("b")));
}
