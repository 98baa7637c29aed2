//! Properties of the policies: eligibility, distribution by weight, balance, and stability of rendezvous hashing.

use evergate_balance::{PickRule, Picker, ServerLoad, source_server};
use evergate_base::{GAMMA, spread};
use proptest::collection::vec;
use proptest::prelude::*;
use std::net::IpAddr;

const POLICIES: [PickRule; 4] = [
    PickRule::RoundRobin,
    PickRule::LeastOutstanding,
    PickRule::PowerOfTwo,
    PickRule::LeastExpectedCompletion,
];

fn idle(weights: &[u32]) -> Vec<ServerLoad> {
    weights
        .iter()
        .map(|&weight| ServerLoad { weight, outstanding: 0, completion_us: 0, eligible: true })
        .collect()
}

/// A fixed sequence of well-mixed numbers.
fn randoms(seed: u64) -> impl Iterator<Item = u64> {
    (0u64..).map(move |i| spread((seed ^ i).wrapping_add(1).wrapping_mul(GAMMA)))
}

fn any_server() -> impl Strategy<Value = ServerLoad> {
    let weight = prop_oneof![4 => 0u32..5, 1 => any::<u32>()];
    let outstanding = prop_oneof![4 => 0u32..5, 1 => any::<u32>()];
    (weight, outstanding, any::<bool>()).prop_map(|(weight, outstanding, eligible)| ServerLoad {
        weight,
        outstanding,
        completion_us: 0,
        eligible,
    })
}

fn count_by_source(servers: &[(u64, u32, bool)], clients: u32) -> Vec<u32> {
    let mut counts = vec![0; servers.len()];
    for client in 0..clients {
        let ip = IpAddr::from((0x0a00_0000 + client).to_be_bytes());
        if let Some(index) = source_server(ip, servers) {
            counts[index] += 1;
        }
    }
    counts
}

/// Asserts that the count is within five standard deviations of the expected share.
fn assert_share(count: u32, of: u32, share: f64) {
    let expected = f64::from(of) * share;
    let deviation = (expected * (1.0 - share)).sqrt();
    assert!(
        (f64::from(count) - expected).abs() <= 5.0 * deviation + 1.0,
        "{count} of {of}, expected {expected}"
    );
}

proptest! {
    /// The pool changes between the picks, in load, eligibility and size.
    #[test]
    fn picks_an_eligible_server_whenever_there_is_one(
        pools in vec(vec(any_server(), 0..8), 1..30), seed: u64,
    ) {
        for policy in POLICIES {
            let mut picker = Picker::new(policy, 4);
            for (pool, random) in pools.iter().zip(randoms(seed)) {
                let usable = |s: &ServerLoad| s.eligible && s.weight > 0;
                match picker.pick(pool, random) {
                    Some(index) => prop_assert!(usable(&pool[index]), "{policy:?} {pool:?}"),
                    None => prop_assert!(!pool.iter().any(usable), "{policy:?} {pool:?}"),
                }
            }
        }
    }

    #[test]
    fn round_robin_gives_each_server_its_weight_in_every_period(weights in vec(1u32..20, 1..8)) {
        let servers = idle(&weights);
        let period: u32 = weights.iter().sum();
        let mut picker = Picker::new(PickRule::RoundRobin, servers.len());
        for _ in 0..3 {
            let mut counts = vec![0; weights.len()];
            for _ in 0..period {
                counts[picker.pick(&servers, 0).unwrap()] += 1;
            }
            prop_assert_eq!(&counts, &weights);
        }
    }

    /// After any history, the shares are right again soon after the pool is stable.
    #[test]
    fn round_robin_recovers_from_any_history(
        history in vec(vec(any_server(), 3), 0..40), weights in vec(1u32..10, 3),
    ) {
        let mut picker = Picker::new(PickRule::RoundRobin, 3);
        for pool in &history {
            picker.pick(pool, 0);
        }
        let servers = idle(&weights);
        let period: u32 = weights.iter().sum();
        let mut counts = [0u32; 3];
        for _ in 0..period * 10 {
            counts[picker.pick(&servers, 0).unwrap()] += 1;
        }
        for (count, weight) in counts.into_iter().zip(weights) {
            prop_assert!(count.abs_diff(weight * 10) <= 2 * period, "{count} for weight {weight} of {period}");
        }
    }

    #[test]
    fn least_outstanding_picks_a_least_loaded_server(
        pool in vec(any_server(), 1..8), start in 0usize..8,
    ) {
        let mut picker = Picker::new(PickRule::LeastOutstanding, pool.len());
        for _ in 0..start {
            picker.pick(&idle(&[1; 8]), 0);
        }
        if let Some(index) = picker.pick(&pool, 0) {
            let load = |s: &ServerLoad| (u128::from(s.outstanding), u128::from(s.weight));
            let (a, v) = load(&pool[index]);
            for other in pool.iter().filter(|s| s.eligible && s.weight > 0) {
                let (b, w) = load(other);
                prop_assert!(a * w <= (b + 1) * v);
                prop_assert!(v != w || a <= b, "a server of equal weight has less load");
            }
        }
    }

    /// With two servers both are drawn, so the less loaded one always wins.
    #[test]
    fn power_of_two_picks_the_less_loaded_of_two(a in 0u32..9, b in 0u32..9, random: u64) {
        let mut servers = idle(&[1, 1]);
        (servers[0].outstanding, servers[1].outstanding) = (a, b);
        let index = Picker::new(PickRule::PowerOfTwo, 2).pick(&servers, random).unwrap();
        prop_assert_eq!(servers[index].outstanding, a.min(b));
    }

    #[test]
    fn source_does_not_depend_on_the_order_of_servers(
        servers in vec((any::<u64>(), 0u32..5, any::<bool>()), 1..10),
        rotation in 0usize..10, ip: u128,
    ) {
        let ip = IpAddr::from(ip.to_be_bytes());
        let name = |servers: &[(u64, u32, bool)]| source_server(ip, servers).map(|index| servers[index].0);
        let mut other = servers.clone();
        other.rotate_left(rotation % servers.len());
        prop_assert_eq!(name(&servers), name(&other));
        other.reverse();
        prop_assert_eq!(name(&servers), name(&other));
        let usable = |s: &(u64, u32, bool)| s.2 && s.1 > 0;
        match source_server(ip, &servers) {
            Some(index) => prop_assert!(usable(&servers[index])),
            None => prop_assert!(!servers.iter().any(usable)),
        }
    }

    #[test]
    fn only_the_clients_of_a_lost_server_move(
        names in proptest::collection::hash_set(any::<u64>(), 2..10), lost: proptest::sample::Index,
        remove: bool, ips in vec(any::<u32>(), 50),
    ) {
        let servers: Vec<_> = names.into_iter().map(|name| (name, 1 + (name % 4) as u32, true)).collect();
        let lost = lost.index(servers.len());
        let gone = servers[lost].0;
        let mut fewer = servers.clone();
        if remove {
            fewer.remove(lost);
        } else {
            fewer[lost].2 = false;
        }
        for ip in ips {
            let ip = IpAddr::from(ip.to_be_bytes());
            let before = servers[source_server(ip, &servers).unwrap()].0;
            let after = fewer[source_server(ip, &fewer).unwrap()].0;
            prop_assert!(after != gone && (before == gone || before == after));
        }
    }

    #[test]
    fn growing_weight_only_attracts_clients(
        names in proptest::collection::hash_set(any::<u64>(), 2..10), grown: proptest::sample::Index,
        ips in vec(any::<u32>(), 50),
    ) {
        let servers: Vec<_> = names.into_iter().map(|name| (name, 1 + (name % 4) as u32, true)).collect();
        let mut heavier = servers.clone();
        let grown = grown.index(servers.len());
        heavier[grown].1 *= 3;
        for ip in ips {
            let ip = IpAddr::from(ip.to_be_bytes());
            let (before, after) = (source_server(ip, &servers).unwrap(), source_server(ip, &heavier).unwrap());
            prop_assert!(before == after || after == grown);
        }
    }
}

#[test]
fn round_robin_is_smooth() {
    let servers = idle(&[5, 1, 1]);
    let mut picker = Picker::new(PickRule::RoundRobin, 3);
    let picks: Vec<_> = (0..7).map(|_| picker.pick(&servers, 0).unwrap()).collect();
    assert_eq!(picks, [0, 0, 1, 0, 2, 0, 0]);
}

/// The heavy server waits for two light ones in a row, so its credit exceeds one period for a moment.
#[test]
fn round_robin_forgets_no_credit_above_one_period() {
    let servers = idle(&[1, 1, 12]);
    let mut picker = Picker::new(PickRule::RoundRobin, 3);
    let heavy = (0..14 * 5).filter(|_| picker.pick(&servers, 0) == Some(2)).count();
    assert_eq!(heavy, 12 * 5);
}

#[test]
fn ties_of_least_outstanding_go_round() {
    let mut servers = idle(&[1, 1, 1, 1]);
    servers[2].eligible = false;
    let mut picker = Picker::new(PickRule::LeastOutstanding, 4);
    let picks: Vec<_> = (0..6).map(|_| picker.pick(&servers, 0).unwrap()).collect();
    assert_eq!(picks, [0, 1, 3, 0, 1, 3]);
}

/// A quiet site: each request finds all servers idle, or nearly.
#[test]
fn shares_follow_the_weights_while_there_is_little_to_do() {
    for (policy, weights) in [
        (PickRule::LeastOutstanding, &[1, 9][..]),
        (PickRule::PowerOfTwo, &[1, 9]),
        (PickRule::PowerOfTwo, &[10, 11]),
        (PickRule::LeastOutstanding, &[1, 1, 2]),
        (PickRule::PowerOfTwo, &[1, 1, 2]),
    ] {
        for at_once in [1, 4] {
            let (mut servers, mut picker) = (idle(weights), Picker::new(policy, weights.len()));
            let (mut counts, mut running) = (vec![0u32; weights.len()], std::collections::VecDeque::new());
            for random in randoms(11).take(4_000) {
                let index = picker.pick(&servers, random).unwrap();
                (counts[index], servers[index].outstanding) =
                    (counts[index] + 1, servers[index].outstanding + 1);
                running.push_back(index);
                if running.len() == at_once {
                    servers[running.pop_front().unwrap()].outstanding -= 1;
                }
            }
            let total: u32 = weights.iter().sum();
            for (count, weight) in counts.iter().zip(weights) {
                let expected = 4_000 * weight / total;
                let (least, most) = (expected * 3 / 4, expected * 4 / 3);
                assert!((least..=most).contains(count), "{policy:?} {weights:?} {at_once}: {counts:?}");
            }
        }
    }
}

/// Requests that never finish accumulate in proportion to the weights, exactly or nearly.
#[test]
fn outstanding_requests_follow_the_weights() {
    for (policy, tolerance) in [(PickRule::LeastOutstanding, 1), (PickRule::PowerOfTwo, 30)] {
        let mut servers = idle(&[1, 2, 3, 4]);
        let mut picker = Picker::new(policy, servers.len());
        for random in randoms(7).take(10_000) {
            let index = picker.pick(&servers, random).unwrap();
            servers[index].outstanding += 1;
        }
        for server in servers {
            assert!(server.outstanding.abs_diff(1000 * server.weight) <= tolerance, "{policy:?} {server:?}");
        }
    }
}

#[test]
fn power_of_two_uses_idle_servers_of_equal_weight_equally() {
    let servers = idle(&[3; 5]);
    let mut picker = Picker::new(PickRule::PowerOfTwo, 5);
    let mut counts = [0; 5];
    for random in randoms(1).take(50_000) {
        counts[picker.pick(&servers, random).unwrap()] += 1;
    }
    for count in counts {
        assert_share(count, 50_000, 0.2);
    }
}

#[test]
fn power_of_two_draws_by_weight() {
    // The last server is too loaded to win: it passes its turn to one of the others.
    let mut servers = idle(&[1, 3, 4]);
    servers[2].outstanding = 1_000_000;
    let mut picker = Picker::new(PickRule::PowerOfTwo, 3);
    let mut counts = [0; 3];
    for random in randoms(2).take(50_000) {
        counts[picker.pick(&servers, random).unwrap()] += 1;
    }
    assert_share(counts[0], 50_000, 1.0 / 4.0);
    assert_eq!(counts[2], 0);
}

#[test]
fn sources_are_spread_by_weight() {
    let servers = [(1, 1, true), (2, 2, true), (3, 5, false), (4, 3, true), (5, 0, true), (6, 4, true)];
    let counts = count_by_source(&servers, 100_000);
    for (count, share) in counts.into_iter().zip([0.1, 0.2, 0.0, 0.3, 0.0, 0.4]) {
        assert_share(count, 100_000, share);
    }
}

#[test]
fn mapped_address_is_the_same_client() {
    let servers: Vec<_> = (0..50).map(|name| (name, 1, true)).collect();
    for i in 0..=255u8 {
        let v4 = std::net::Ipv4Addr::new(203, 0, 113, i);
        let mapped = IpAddr::V6(v4.to_ipv6_mapped());
        assert_eq!(source_server(IpAddr::V4(v4), &servers), source_server(mapped, &servers));
    }
}

#[test]
fn empty_pool_gives_nothing() {
    for policy in POLICIES {
        assert_eq!(Picker::new(policy, 0).pick(&[], 0), None);
    }
    assert_eq!(source_server(IpAddr::from([127, 0, 0, 1]), &[]), None);
}

#[test]
fn least_expected_completion_picks_the_earliest() {
    let mut servers = idle(&[1, 1, 0, 1]);
    for (server, us) in servers.iter_mut().zip([300, 200, 1, 200]) {
        server.completion_us = us;
    }
    let mut picker = Picker::new(PickRule::LeastExpectedCompletion, 4);
    let picks: Vec<_> = (0..4).map(|_| picker.pick(&servers, 0).unwrap()).collect();
    assert_eq!(picks, [1, 3, 1, 3]);
    servers[3].outstanding = 1;
    assert_eq!(picker.pick(&servers, 0), Some(1));
}
