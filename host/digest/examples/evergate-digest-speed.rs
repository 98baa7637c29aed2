//! Time of the digests of packets, side by side and one after the other:
//! `evergate-digest-speed [LENGTH ..]`. Time is the processor's, not the clock's.

use evergate_digest::{Message, is_wide, sha256, sha256_many};
use std::hint::black_box;

const MESSAGES: usize = 512;
const ROUNDS: usize = 1000;
const REPEATS: usize = 7;

fn cpu_ns() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|field| field.parse().ok()).unwrap_or(0.0)
}

/// Median, least and most time of a message in ns.
fn measure(mut work: impl FnMut()) -> (f64, f64, f64) {
    let mut times: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let start = cpu_ns();
            (0..ROUNDS).for_each(|_| work());
            (cpu_ns() - start) / (ROUNDS * MESSAGES) as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    (times[REPEATS / 2], times[0], times[REPEATS - 1])
}

fn main() {
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    println!("side by side: {}", is_wide());
    for length in if given.is_empty() { vec![13, 200, 1415] } else { given } {
        let head = [1; 53];
        let bodies: Vec<Vec<u8>> = (0..MESSAGES).map(|seed| vec![seed as u8; length]).collect();
        let messages: Vec<Message<'_>> = bodies.iter().map(|body| Message { head: &head, body }).collect();
        let mut digests = Vec::new();
        let wide = measure(|| {
            digests.clear();
            sha256_many(black_box(&messages), &mut digests);
        });
        let single = measure(|| {
            for message in &messages {
                black_box(sha256(black_box(message)));
            }
        });
        println!("{length} bytes: side by side {wide:.0?} ns, one after the other {single:.0?} ns");
    }
}
