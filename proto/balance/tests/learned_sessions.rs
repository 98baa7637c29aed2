//! The table of learned sessions against a model, and its costs.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;

use evergate_balance::{EVICTION_SCAN_MAX, LearnedSessions};
use evergate_base::session::{LearnedSession, SessionHash, SessionHasher, SessionName};
use evergate_base::{SplitMix64, Unix};
use proptest::prelude::*;

const NOW: Unix = Unix(1_800_000_000);

fn hash(number: u64) -> SessionHash {
    SessionHasher::new([1, 2]).hash(SessionName::Id, &number.to_le_bytes())
}

fn session(number: u64, server: u32, lifetime_s: u64) -> LearnedSession<u32> {
    LearnedSession { hash: hash(number), server, expires: Unix(NOW.0 + lifetime_s) }
}

#[test]
fn session_is_found_until_it_expires_or_is_forgotten() {
    let mut table = LearnedSessions::new(10);
    table.insert(session(1, 7, 100), NOW);
    table.insert(session(2, 8, 0), NOW);
    assert_eq!((table.find(hash(1), Unix(NOW.0 + 99)), table.find(hash(2), NOW)), (Some(7), None));
    assert_eq!(table.find(hash(1), Unix(NOW.0 + 100)), None);
    table.insert(session(1, 9, 300), NOW);
    assert_eq!((table.find(hash(1), Unix(NOW.0 + 299)), table.len()), (Some(9), 1));
    assert!(table.remove(hash(1)) && !table.remove(hash(1)) && table.is_empty());
}

#[test]
fn expired_session_is_evicted_before_older_ones() {
    let mut table = LearnedSessions::new(4);
    for (number, lifetime) in [(1, 100), (2, 100), (3, 10), (4, 100)] {
        table.insert(session(number, 0, lifetime), NOW);
    }
    let later = Unix(NOW.0 + 50);
    table.insert(session(5, 0, 100), later);
    let found: Vec<u64> = (1..=5).filter(|&number| table.find(hash(number), later).is_some()).collect();
    assert_eq!((found, table.evicted()), (vec![1, 2, 4, 5], 0));
}

#[test]
fn oldest_unused_session_is_evicted_next() {
    let mut table = LearnedSessions::new(4);
    (1..=4).for_each(|number| table.insert(session(number, 0, 100), NOW));
    assert!(table.find(hash(1), NOW).is_some(), "its second chance");
    table.insert(session(5, 0, 100), NOW);
    table.insert(session(6, 0, 100), NOW);
    let hashes: Vec<_> = table.newest().map(|session| session.hash).collect();
    assert_eq!((hashes.len(), table.evicted()), (4, 2));
    for (number, kept) in [(1, true), (2, false), (3, false), (4, true), (5, true), (6, true)] {
        assert_eq!(hashes.contains(&hash(number)), kept, "{number}");
    }
}

#[test]
fn new_session_in_an_old_place_is_not_evicted_first() {
    let mut table = LearnedSessions::new(8);
    (0..8).for_each(|number| table.insert(session(number, 0, 100), NOW));
    table.remove(hash(1));
    (8..11).for_each(|number| table.insert(session(number, 0, 100), NOW));
    assert!(table.find(hash(8), NOW).is_some(), "it is in the place of the second oldest");
    assert!([0, 2].iter().all(|&number| table.find(hash(number), NOW).is_none()));
}

#[test]
fn table_in_which_all_are_used_still_evicts() {
    let capacity = 3 * EVICTION_SCAN_MAX as u64;
    let mut table = LearnedSessions::new(capacity as usize);
    for number in 0..1000 {
        table.insert(session(number, 0, 100), NOW);
        for used in 0..=number {
            table.find(hash(used), NOW);
        }
        assert_eq!(table.len() as u64, (number + 1).min(capacity));
    }
    table.check_invariants().unwrap();
}

#[test]
fn sessions_follow_the_numbers_of_their_servers() {
    let mut table = LearnedSessions::new(10);
    (0..6).for_each(|number| table.insert(session(number, number as u32 % 3, 100), NOW));
    table.renumber(|server| [Some(5), None, Some(0)][server as usize]);
    let servers: Vec<_> = (0..6).map(|number| table.find(hash(number), NOW)).collect();
    assert_eq!(servers, [Some(5), None, Some(0), Some(5), None, Some(0)]);
    table.check_invariants().unwrap();
}

#[test]
fn exported_session_is_read_on_another_node() {
    let exported =
        LearnedSession { hash: hash(3), server: 0x0123_4567_89ab_cdef_u64, expires: Unix(1_900_000_000) };
    assert_eq!(LearnedSession::from_bytes(&exported.to_bytes()), exported);
    assert_eq!(exported.to_bytes()[..16], hash(3).to_bytes());
}

proptest! {
    #[test]
    fn found_sessions_are_those_of_a_model(
        capacity in 1..40_usize,
        acts in proptest::collection::vec((0..60_u64, 0..8_u8, 0..5_u32, 1..60_u64, 0..4_u64), 1..400),
    ) {
        let mut table = LearnedSessions::new(capacity);
        let mut model: BTreeMap<u64, (u32, u64)> = BTreeMap::new();
        let mut now = NOW;
        for (number, act, server, lifetime, later) in acts {
            now.0 += later;
            match act {
                0 => {
                    table.remove(hash(number));
                    model.remove(&number);
                }
                1 => {
                    let map = [Some(1), Some(0), None, Some(3)];
                    table.renumber(|server| map.get(server as usize).copied().flatten());
                    model.retain(|_, (server, _)| {
                        let new = [Some(1), Some(0), None, Some(3)].get(*server as usize).copied().flatten();
                        *server = new.unwrap_or_default();
                        new.is_some()
                    });
                }
                2 | 3 => {
                    let found = table.find(hash(number), now);
                    let known = model.get(&number).filter(|(_, until)| now.0 < *until).map(|(server, _)| *server);
                    prop_assert!(found.is_none() || found == known);
                    prop_assert!(found == known || table.evicted() > 0);
                }
                _ => {
                    let expires = Unix(now.0 + lifetime);
                    table.insert(LearnedSession { hash: hash(number), server, expires }, now);
                    model.insert(number, (server, expires.0));
                    prop_assert_eq!(table.find(hash(number), now), Some(server));
                }
            }
            prop_assert!(table.check_invariants().is_ok(), "{:?}", table.check_invariants());
            prop_assert!(table.len() <= capacity);
        }
    }
}

/// Prints costs: `cargo test --release -p evergate-balance --test learned_sessions -- --ignored --nocapture`.
#[test]
#[ignore = "measures time; run it alone, with --release"]
fn look_up_among_a_million_entries_costs_200_ns() {
    const ENTRIES: u64 = 1_000_000;
    let mut random = SplitMix64(1);
    let mut table = LearnedSessions::new(ENTRIES as usize);
    let start = Instant::now();
    (0..ENTRIES).for_each(|number| table.insert(session(number, number as u32 % 100, 3600), NOW));
    let insert_ns = start.elapsed().as_nanos() as f64 / ENTRIES as f64;
    let start = Instant::now();
    (ENTRIES..2 * ENTRIES).for_each(|number| table.insert(session(number, 0, 3600), NOW));
    let evict_ns = start.elapsed().as_nanos() as f64 / ENTRIES as f64;
    let bytes = table.memory_bytes() as f64 / table.len() as f64;
    let mut best = [f64::INFINITY; 2];
    for _ in 0..5 {
        for (best, from) in best.iter_mut().zip([ENTRIES, 2 * ENTRIES]) {
            let hashes: Vec<_> = (0..ENTRIES).map(|_| hash(from + random.below(ENTRIES))).collect();
            let start = Instant::now();
            let found = hashes.iter().filter(|&&hash| table.find(black_box(hash), NOW).is_some()).count();
            *best = best.min(start.elapsed().as_nanos() as f64 / ENTRIES as f64);
            assert_eq!(found as u64, if from == ENTRIES { ENTRIES } else { 0 });
        }
    }
    let [hit, miss] = best;
    println!("look-up: {hit:.0} ns known, {miss:.0} ns unknown; {bytes:.1} B per entry");
    println!("insertion with hash: {insert_ns:.0} ns, with eviction {evict_ns:.0} ns");
    assert!(bytes <= 100.0 && hit <= 200.0 && miss <= 200.0);
}
