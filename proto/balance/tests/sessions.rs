//! Properties of the session table and of the distributor in front of the nodes.

use evergate_balance::{
    Arrival, Distributor, NodeCost, PickRule, Renewal, Scope, ServerLoad, SessionKey, SessionPolicy,
    SessionTable, Settings, Weights, bounded_server,
};
use evergate_base::{GAMMA, Micros};
use proptest::collection::vec;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000;

const POLICIES: [SessionPolicy; 8] = [
    SessionPolicy::Spread(PickRule::RoundRobin),
    SessionPolicy::Spread(PickRule::LeastOutstanding),
    SessionPolicy::Spread(PickRule::PowerOfTwo),
    SessionPolicy::Spread(PickRule::LeastExpectedCompletion),
    SessionPolicy::Sticky(PickRule::LeastOutstanding),
    SessionPolicy::Lard { low: 2, high: 4 },
    SessionPolicy::BoundedHash { load_percent_max: 125 },
    SessionPolicy::Sslsard(Weights { alpha: [10.0, 1.0], lambda: [1.0, 2.0] }),
];

fn settings(policy: SessionPolicy, scope: Scope) -> Settings {
    Settings {
        policy,
        scope,
        slice: Micros(2 * SECOND),
        lifetime: Micros(300 * SECOND),
        renewal: Renewal::Fixed,
        affinity: Micros(300 * SECOND),
        sessions_max: 1000,
    }
}

/// The nodes of Table II.
fn table_2() -> Vec<NodeCost> {
    let rows = [(12.39, 1.0), (14.92, 1.25), (18.49, 1.4), (24.73, 1.94)];
    rows.iter().zip(1..).map(|(&(new, resumed), name)| NodeCost { name, new, resumed }).collect()
}

fn up(outstanding: &[u32]) -> Vec<ServerLoad> {
    outstanding
        .iter()
        .map(|&outstanding| ServerLoad { weight: 1, outstanding, completion_us: 0, eligible: true })
        .collect()
}

fn arrival(now: u64, key: u64, resumes: bool) -> Arrival {
    Arrival { now: Micros(now), key: SessionKey(key), known: None, resumes, random: key.wrapping_mul(GAMMA) }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, usize),
    Renew(u64),
    Remove(u64),
    Wait(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..12, 0usize..4).prop_map(|(key, node)| Step::Insert(key, node)),
        2 => (0u64..12).prop_map(Step::Renew),
        1 => (0u64..12).prop_map(Step::Remove),
        2 => (0u64..20).prop_map(Step::Wait),
    ]
}

proptest! {
    /// The model is a list in the order of renewal.
    #[test]
    fn table_is_a_bounded_list_in_order_of_expiry(
        steps in vec(any_step(), 1..120), capacity in 1usize..8, sliding: bool,
    ) {
        let lifetime = 30;
        let renewal = if sliding { Renewal::Sliding } else { Renewal::Fixed };
        let mut table = SessionTable::new(capacity, Micros(lifetime), renewal);
        // (key, node, made, renewed)
        let mut model: Vec<(u64, usize, u64, u64)> = Vec::new();
        let (mut now, mut evicted) = (0u64, 0u64);
        for step in steps {
            match step {
                Step::Wait(us) => now += us,
                Step::Remove(key) => {
                    table.remove(SessionKey(key));
                    model.retain(|entry| entry.0 != key);
                }
                Step::Renew(key) => {
                    table.renew(SessionKey(key), Micros(now));
                    if let Some(at) = model.iter().position(|entry| entry.0 == key).filter(|_| sliding) {
                        let mut entry = model.remove(at);
                        entry.3 = now;
                        model.push(entry);
                    }
                }
                Step::Insert(key, node) => {
                    table.insert(SessionKey(key), node, Micros(now));
                    for _ in 0..2 {
                        if model.first().is_some_and(|entry| now - entry.3 > lifetime) {
                            model.remove(0);
                        }
                    }
                    model.retain(|entry| entry.0 != key);
                    if model.len() == capacity {
                        model.remove(0);
                        evicted += 1;
                    }
                    model.push((key, node, now, now));
                }
            }
            prop_assert_eq!(table.check_invariants(), Ok(()));
            prop_assert_eq!((table.len(), table.evicted()), (model.len(), evicted));
            for key in 0..12 {
                let expected = model
                    .iter()
                    .find(|entry| entry.0 == key && now - entry.3 <= lifetime)
                    .map(|entry| (entry.1, entry.2));
                let found = table.get(SessionKey(key), Micros(now)).map(|origin| (origin.node, origin.since.0));
                prop_assert_eq!(found, expected);
            }
        }
    }

    /// After any history of loads, sessions, and nodes that come and go.
    #[test]
    fn chooses_an_eligible_node_whenever_there_is_one(
        steps in vec((0u64..40, vec((0u32..9, prop::bool::weighted(0.7)), 4), 0usize..20, any::<bool>()), 1..60),
    ) {
        for policy in POLICIES {
            for scope in [Scope::Node, Scope::Broadcast { delay: Micros(SECOND) }, Scope::Shared] {
                let mut distributor = Distributor::new(&settings(policy, scope), &table_2());
                let mut now = 0;
                for (key, loads, lost, resumed) in &steps {
                    now += SECOND / 3;
                    let mut servers = up(&[0; 4]);
                    for (server, (outstanding, eligible)) in servers.iter_mut().zip(loads) {
                        (server.outstanding, server.eligible) = (*outstanding, *eligible);
                    }
                    if *lost < 4 {
                        distributor.handle_node_lost(*lost, Micros(now));
                    }
                    match distributor.distribute(&arrival(now, *key, true), &servers) {
                        Some(choice) => {
                            prop_assert!(servers[choice.node].eligible, "{policy:?}");
                            prop_assert!(choice.work > 0.0);
                            distributor.handle_finished(Micros(now), SessionKey(*key), &choice, *resumed);
                        }
                        None => prop_assert!(servers.iter().all(|server| !server.eligible), "{policy:?}"),
                    }
                    prop_assert_eq!(distributor.sessions().check_invariants(), Ok(()));
                }
            }
        }
    }

    #[test]
    fn no_server_takes_more_than_its_bounded_share(
        weights in vec(1u32..6, 1..6), keys in vec(any::<u64>(), 1..200), percent in 100u32..300,
    ) {
        let names: Vec<u64> = (0..weights.len() as u64).collect();
        let mut servers = up(&vec![0; weights.len()]);
        for (server, weight) in servers.iter_mut().zip(&weights) {
            server.weight = *weight;
        }
        let total_weight: u32 = weights.iter().sum();
        for (total, key) in (1u64..).zip(keys) {
            let chosen = bounded_server(key, &names, &servers, percent).expect("one has room");
            servers[chosen].outstanding += 1;
            let share = u64::from(percent) * total * u64::from(weights[chosen]);
            let bound = share.div_ceil(100 * u64::from(total_weight));
            prop_assert!(u64::from(servers[chosen].outstanding) <= bound);
        }
    }
}

#[test]
fn bounded_hashing_without_load_is_consistent_hashing() {
    let names = [11, 22, 33, 44];
    let idle = up(&[0; 4]);
    let before: Vec<usize> = (0..1000).map(|key| bounded_server(key, &names, &idle, 125).unwrap()).collect();
    let mut three = idle.clone();
    three[2].eligible = false;
    for (key, &home) in before.iter().enumerate() {
        let after = bounded_server(key as u64, &names, &three, 125).unwrap();
        assert!(if home == 2 { after != 2 } else { after == home }, "key {key}");
    }
    assert!((0..4).all(|node| before.contains(&node)));
}

#[test]
fn bound_below_the_equal_share_counts_as_that_share() {
    let names = [11, 22, 33, 44];
    for percent in [0, 50, 99] {
        for outstanding in [[0; 4], [3; 4], [3, 3, 2, 3]] {
            let chosen = bounded_server(7, &names, &up(&outstanding), percent);
            assert!(chosen.is_some(), "{percent} {outstanding:?}");
            assert_eq!(
                chosen,
                bounded_server(7, &names, &up(&outstanding), 100),
                "{percent} {outstanding:?}"
            );
        }
    }
}

#[test]
fn sticky_client_moves_only_when_its_node_is_lost() {
    let policy = SessionPolicy::Sticky(PickRule::LeastOutstanding);
    let mut distributor = Distributor::new(&settings(policy, Scope::Node), &table_2());
    let mut servers = up(&[5, 0, 5, 5]);
    let mut node =
        |now, servers: &[ServerLoad]| distributor.distribute(&arrival(now, 7, true), servers).unwrap().node;
    assert_eq!(node(0, &servers), 1);
    servers[1].outstanding = 100;
    assert_eq!(node(SECOND, &servers), 1, "load does not move it");
    servers[1].eligible = false;
    servers[3].outstanding = 0;
    assert_eq!(node(2 * SECOND, &servers), 3);
    servers[1] = servers[3];
    assert_eq!(node(3 * SECOND, &servers), 3, "nor does the return of the first node");
    servers[0].outstanding = 0;
    (servers[1].outstanding, servers[2].outstanding, servers[3].outstanding) = (9, 9, 9);
    assert_eq!(
        node(400 * SECOND, &servers),
        0,
        "a client that was silent for longer than its affinity is a new one"
    );
}

#[test]
fn active_sticky_client_stays_beyond_the_affinity_time() {
    for policy in [SessionPolicy::Sticky(PickRule::LeastOutstanding), POLICIES[5]] {
        let mut distributor = Distributor::new(&settings(policy, Scope::Node), &table_2());
        let first = distributor.distribute(&arrival(0, 7, false), &up(&[2, 0, 2, 2])).unwrap();
        assert_eq!(first.node, 1);
        for time in 1..10 {
            let second = distributor.distribute(&arrival(200 * time * SECOND, 7, true), &up(&[0, 2, 2, 2]));
            assert_eq!(second.unwrap().node, 1, "{policy:?}, visit {time}");
        }
    }
}

#[test]
fn lard_leaves_an_overloaded_node_while_another_is_idle() {
    let (low, high) = (2, 4);
    for (outstanding, expected) in [
        ([4, 0, 9, 9], 0), // not above T_high
        ([5, 0, 9, 9], 1), // above T_high, and one below T_low
        ([5, 2, 9, 9], 0), // none below T_low
        ([8, 7, 9, 9], 1), // twice T_high
    ] {
        let policy = SessionPolicy::Lard { low, high };
        let mut distributor = Distributor::new(&settings(policy, Scope::Node), &table_2());
        assert_eq!(distributor.distribute(&arrival(0, 7, true), &up(&[0, 1, 1, 1])).unwrap().node, 0);
        let choice = distributor.distribute(&arrival(SECOND, 7, true), &up(&outstanding)).unwrap();
        assert_eq!(choice.node, expected, "{outstanding:?}");
    }
}

#[test]
fn sslsard_keeps_a_session_on_the_node_that_cached_it() {
    let mut distributor = Distributor::new(&settings(POLICIES[7], Scope::Node), &table_2());
    let servers = up(&[0; 4]);
    let first = distributor.distribute(&arrival(0, 7, false), &servers).unwrap();
    assert_eq!((first.node, first.work, first.resumed), (0, 12.39, false), "idle: the fastest node");
    distributor.handle_finished(Micros(SECOND), SessionKey(7), &first, false);
    let second = distributor.distribute(&arrival(2 * SECOND, 7, true), &servers).unwrap();
    assert_eq!((second.node, second.work, second.resumed), (0, 1.0, true));
    distributor.handle_finished(Micros(2 * SECOND), SessionKey(7), &second, true);
    // 301 s after the full handshake it has expired; a resumption does not renew it.
    let late = distributor.distribute(&arrival(302 * SECOND, 7, true), &servers).unwrap();
    assert!(!late.resumed);
}

#[test]
fn returning_node_has_no_sessions() {
    for (scope, survives) in
        [(Scope::Node, false), (Scope::Broadcast { delay: Micros(SECOND) }, false), (Scope::Shared, true)]
    {
        let mut distributor = Distributor::new(&settings(POLICIES[7], scope), &table_2());
        let mut servers = up(&[0; 4]);
        let first = distributor.distribute(&arrival(0, 7, false), &servers).unwrap();
        distributor.handle_finished(Micros(0), SessionKey(7), &first, false);
        distributor.handle_node_lost(first.node, Micros(5 * SECOND));
        // Only this node is left, so that the answer depends on its cache.
        for (index, server) in servers.iter_mut().enumerate() {
            server.eligible = index == first.node;
        }
        let second = distributor.distribute(&arrival(9 * SECOND, 7, true), &servers).unwrap();
        assert_eq!(second.resumed, survives, "{scope:?}");
    }
}

#[test]
fn pending_work_of_a_lost_node_is_cleared() {
    let mut distributor = Distributor::new(&settings(POLICIES[3], Scope::Node), &table_2());
    let servers = up(&[0; 4]);
    let nodes: Vec<usize> =
        (0..5).map(|key| distributor.distribute(&arrival(0, key, false), &servers).unwrap().node).collect();
    assert_eq!(nodes, [0, 1, 2, 3, 0], "two wait for the fastest: the next would go to node 1");
    distributor.handle_node_lost(0, Micros(SECOND));
    // The node has returned, without a queue, and is the fastest.
    assert_eq!(distributor.distribute(&arrival(2 * SECOND, 9, false), &servers).unwrap().node, 0);
}

#[test]
fn broadcast_session_is_everywhere_after_its_delay() {
    let scope = Scope::Broadcast { delay: Micros(SECOND) };
    let policy = SessionPolicy::Spread(PickRule::RoundRobin);
    let mut distributor = Distributor::new(&settings(policy, scope), &table_2());
    let servers = up(&[0; 4]);
    let first = distributor.distribute(&arrival(0, 7, false), &servers).unwrap();
    distributor.handle_finished(Micros(0), SessionKey(7), &first, false);
    let early = distributor.distribute(&arrival(SECOND - 1, 7, true), &servers).unwrap();
    assert!(early.node != first.node && !early.resumed);
    let late = distributor.distribute(&arrival(SECOND, 7, true), &servers).unwrap();
    assert!(late.node != first.node && late.resumed);
}

#[test]
fn completion_weighs_a_queue_against_a_full_handshake() {
    let mut distributor = Distributor::new(&settings(POLICIES[3], Scope::Node), &table_2());
    let servers = up(&[0; 4]);
    let first = distributor.distribute(&arrival(0, 7, false), &servers).unwrap();
    assert_eq!(first.node, 0);
    distributor.handle_finished(Micros(0), SessionKey(7), &first, false);
    // One full handshake waits at node 0: 12.39 + 1 there, 14.92 on the next best.
    distributor.distribute(&arrival(0, 8, false), &servers).unwrap();
    let choice = distributor.distribute(&arrival(0, 7, true), &servers).unwrap();
    assert_eq!((choice.node, choice.resumed), (0, true));
    // A second one goes to node 1 (14.92 against 13.39 + 12.39); the session moves when its queue is longer than that.
    assert_eq!(distributor.distribute(&arrival(0, 9, false), &servers).unwrap().node, 1);
    let third = distributor.distribute(&arrival(0, 10, false), &servers).unwrap();
    assert_eq!(third.node, 2, "18.49 against 13.39 + 12.39 and 14.92 + 14.92");
}

#[test]
fn observed_load_is_the_assigned_work() {
    let mut distributor = Distributor::new(&settings(POLICIES[0], Scope::Node), &table_2());
    for key in 0..4 {
        distributor.distribute(&arrival(0, key, false), &up(&[0; 4])).unwrap();
    }
    distributor.observe(Micros(2 * SECOND));
    let loads: Vec<f64> = (0..4).map(|node| distributor.load(node)).collect();
    assert_eq!(loads, [12.39 / 2.0, 14.92 / 2.0, 18.49 / 2.0, 24.73 / 2.0]);
}

#[test]
fn table_inherits_the_sessions_of_remaining_nodes() {
    let lifetime = Micros(300 * SECOND);
    let mut former = SessionTable::new(100, lifetime, Renewal::Fixed);
    for key in 0..30 {
        former.insert(SessionKey(key), (key % 3) as usize, Micros(key * SECOND));
    }
    let mut table = SessionTable::new(100, lifetime, Renewal::Fixed);
    table.inherit(&former, &[Some(1), None, Some(0)]);
    table.check_invariants().unwrap();
    assert_eq!(table.len(), 20);
    let now = Micros(30 * SECOND);
    for key in 0..30 {
        let origin = table.get(SessionKey(key), now).map(|origin| (origin.node, origin.since));
        let node = [Some(1), None, Some(0)][(key % 3) as usize];
        assert_eq!(origin, node.map(|node| (node, Micros(key * SECOND))), "session {key}");
    }
    // Lifetimes continue: the session made first expires first.
    let later = Micros(310 * SECOND);
    assert!(table.get(SessionKey(9), later).is_none() && table.get(SessionKey(12), later).is_some());

    let mut small = SessionTable::new(5, lifetime, Renewal::Fixed);
    small.inherit(&former, &[Some(0), Some(1), Some(2)]);
    small.check_invariants().unwrap();
    let kept: Vec<u64> = (0..30).filter(|&key| small.get(SessionKey(key), now).is_some()).collect();
    assert_eq!(kept, [25, 26, 27, 28, 29], "what would expire last is kept");
}

#[test]
fn distributor_inherits_clients_and_sessions() {
    for policy in [
        SessionPolicy::Sticky(PickRule::RoundRobin),
        SessionPolicy::Lard { low: 2, high: 4 },
        SessionPolicy::Sslsard(Weights::default()),
    ] {
        let settings = settings(policy, Scope::Node);
        let mut former = Distributor::new(&settings, &table_2());
        let servers = up(&[0; 4]);
        let mut homes = Vec::new();
        for key in 0..12 {
            let choice = former.distribute(&arrival(key, key, false), &servers).unwrap();
            former.handle_finished(Micros(key), SessionKey(key), &choice, false);
            homes.push(choice.node);
        }
        former.handle_node_lost(3, Micros(SECOND));
        // The second node is removed, and the others are renumbered.
        let renumbered = [Some(2), None, Some(1), Some(0)];
        let costs = table_2();
        let mut distributor = Distributor::new(&settings, &[costs[3], costs[2], costs[0]]);
        distributor.inherit(&former, &renumbered);
        for (key, home) in (0..).zip(homes) {
            let now = 2 * SECOND + key;
            let choice = distributor.distribute(&arrival(now, key, true), &up(&[0; 3])).unwrap();
            match renumbered[home] {
                Some(node) if home != 3 => {
                    assert_eq!((choice.node, choice.resumed), (node, true), "{policy:?}")
                }
                _ => assert!(!choice.resumed, "{policy:?}: resumed at a node that has no session"),
            }
        }
    }
}
