//! Prints the cost of one decision: `cargo bench -p evergate-balance`.
//!
//! Nanoseconds per request through the distributor (session lookup, decision, accounting of the end), the best of
//! several rounds. Nine requests in ten offer a known session.

use std::hint::black_box;
use std::time::Instant;

use evergate_balance::{
    Arrival, Distributor, NodeCost, PickRule, Renewal, Scope, ServerLoad, SessionKey, SessionPolicy,
    Settings, Weights,
};
use evergate_base::Micros;

const CLIENTS: u64 = 10_000;
const REQUESTS: u64 = 20_000;
const ROUNDS: usize = 40;

fn main() {
    let policies = [
        ("wrr", SessionPolicy::Spread(PickRule::RoundRobin)),
        ("least_outstanding", SessionPolicy::Spread(PickRule::LeastOutstanding)),
        ("power_of_two", SessionPolicy::Spread(PickRule::PowerOfTwo)),
        ("least_expected_completion", SessionPolicy::Spread(PickRule::LeastExpectedCompletion)),
        ("session_only", SessionPolicy::Sticky(PickRule::RoundRobin)),
        ("sticky_least_outstanding", SessionPolicy::Sticky(PickRule::LeastOutstanding)),
        ("lard", SessionPolicy::Lard { low: 25, high: 65 }),
        ("bounded_hash", SessionPolicy::BoundedHash { load_percent_max: 125 }),
        ("sslsard", SessionPolicy::Sslsard(Weights::default())),
        // A miss costs little, so that every node is weighed by U.
        ("sslsard, migrating", SessionPolicy::Sslsard(Weights { alpha: [0.01, 1.0], lambda: [1.0, 2.0] })),
    ];
    println!("{:<26} {:>14} {:>16}", "ns per request", "4 nodes", "100 nodes");
    for (name, policy) in policies {
        println!("{name:<26} {:>14.0} {:>16.0}", cost_ns(policy, 4), cost_ns(policy, 100));
    }
}

fn cost_ns(policy: SessionPolicy, nodes: usize) -> f64 {
    let costs: Vec<NodeCost> = (0..nodes)
        .map(|i| NodeCost {
            name: i as u64,
            new: 12.39 + (i % 7) as f64,
            resumed: 1.0 + (i % 3) as f64 / 3.0,
        })
        .collect();
    let settings = Settings {
        policy,
        scope: Scope::Node,
        slice: Micros(2_000_000),
        lifetime: Micros(300_000_000),
        renewal: Renewal::Fixed,
        affinity: Micros(300_000_000),
        sessions_max: CLIENTS as usize,
    };
    let mut servers: Vec<ServerLoad> = (0..nodes)
        .map(|i| ServerLoad { weight: 3 + (i % 4) as u32, outstanding: 0, completion_us: 0, eligible: true })
        .collect();
    let mut distributor = Distributor::new(&settings, &costs);
    let (mut best, mut now, mut random) = (f64::INFINITY, 0, 1u64);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for request in 0..REQUESTS {
            now += 700;
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let key = SessionKey((random >> 33) % CLIENTS);
            let arrival = Arrival { now: Micros(now), key, known: None, resumes: request % 10 != 0, random };
            let Some(choice) = distributor.distribute(black_box(&arrival), &servers) else { continue };
            servers[choice.node].outstanding = (servers[choice.node].outstanding + 1) % 20;
            distributor.handle_finished(Micros(now), key, &choice, choice.resumed);
        }
        best = best.min(start.elapsed().as_nanos() as f64 / REQUESTS as f64);
    }
    best
}
