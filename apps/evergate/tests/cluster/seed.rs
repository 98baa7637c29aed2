//! What tests leave to chance (when a node dies, how long clients pause) comes from one seed, which is printed.
//! `EVERGATE_SEED=n` gives it again; what the machine does in between is another time another thing all the same.

use evergate_base::{GAMMA, spread};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A seeded source of numbers.
pub(crate) struct Chance {
    pub(crate) seed: u64,
    state: AtomicU64,
}

impl Chance {
    /// Anything but the same at every run, unless a seed is given: when a node dies must not be a habit.
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

    /// A source for this party alone: what it draws does not depend on when the others draw.
    pub(crate) fn of(&self, party: &str) -> Chance {
        Chance::from(party.bytes().fold(self.seed, |state, byte| mixed(state ^ u64::from(byte))))
    }

    /// A number below `end`, which is not 0.
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
fn a_seed_gives_the_same_moments_again_and_parties_have_their_own() {
    let draw = |chance: &Chance| (0..8).map(|_| chance.below(1000)).collect::<Vec<_>>();
    assert_eq!(draw(&Chance::from(7)), draw(&Chance::from(7)));
    assert_ne!(draw(&Chance::from(7)), draw(&Chance::from(8)));
    let (all, early) = (Chance::from(7), Chance::from(7).of("a"));
    draw(&all);
    assert_eq!(draw(&all.of("a")), draw(&early));
    assert_ne!(draw(&all.of("a")), draw(&all.of("b")));
}
