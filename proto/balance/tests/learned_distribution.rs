//! The distributor with sessions learned from handshakes.

use evergate_balance::{
    Arrival, Choice, Distributor, LoadEstimator, NodeCost, PickRule, Renewal, Scope, ServerLoad, SessionKey,
    SessionPolicy, Settings, Weights,
};
use evergate_base::session::{LearnedSession, SessionHash};
use evergate_base::{Micros, Unix};

const NOW: Unix = Unix(1_800_000_000);
const STICKY: SessionPolicy = SessionPolicy::Sticky(PickRule::LeastOutstanding);
const LARD: SessionPolicy = SessionPolicy::Lard { low: 2, high: 4 };
const SSLSARD: SessionPolicy = SessionPolicy::Sslsard(Weights { alpha: [10.0, 1.0], lambda: [1.0, 2.0] });

fn hash(number: u64) -> SessionHash {
    SessionHash([number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number])
}

fn distributor(policy: SessionPolicy) -> Distributor {
    let settings = Settings {
        policy,
        scope: Scope::Node,
        slice: Micros(2_000_000),
        lifetime: Micros(300_000_000),
        renewal: Renewal::Fixed,
        affinity: Micros(300_000_000),
        sessions_max: 100,
    };
    let costs = [1, 2, 3].map(|name| NodeCost { name, new: 20.0, resumed: 1.0 });
    Distributor::new(&settings, &costs)
}

fn learn(distributor: &mut Distributor, number: u64, server: usize) {
    distributor.learn(LearnedSession { hash: hash(number), server, expires: Unix(NOW.0 + 300) }, NOW);
}

fn servers(outstanding: [u32; 3]) -> Vec<ServerLoad> {
    let load = |outstanding| ServerLoad { weight: 1, outstanding, completion_us: 0, eligible: true };
    outstanding.into_iter().map(load).collect()
}

fn arrival(key: u64, known: Option<usize>, resumes: bool) -> Arrival {
    Arrival { now: Micros(1), key: SessionKey(key), known, resumes, random: 1 }
}

fn choose(
    distributor: &mut Distributor,
    known: Option<usize>,
    resumes: bool,
    outstanding: [u32; 3],
) -> Choice {
    distributor.distribute(&arrival(7, known, resumes), &servers(outstanding)).expect("a node")
}

#[test]
fn every_session_policy_goes_to_the_known_node() {
    for policy in [STICKY, SessionPolicy::Sticky(PickRule::RoundRobin), LARD, SSLSARD] {
        let mut distributor = distributor(policy);
        learn(&mut distributor, 1, 2);
        let known = distributor.find([hash(9), hash(1)], NOW);
        assert_eq!(known, Some(2), "{policy:?}");
        let choice = choose(&mut distributor, known, true, [0, 0, 3]);
        assert_eq!((choice.node, choice.resumed, choice.work), (2, true, 1.0), "{policy:?}");
    }
}

#[test]
fn first_known_session_of_the_offered_ones_wins() {
    let mut distributor = distributor(STICKY);
    learn(&mut distributor, 1, 2);
    learn(&mut distributor, 2, 0);
    assert_eq!(distributor.find([hash(2), hash(1)], NOW), Some(0));
    assert_eq!(distributor.find([hash(1), hash(2)], NOW), Some(2));
    assert_eq!(distributor.find([hash(1)], Unix(NOW.0 + 300)), None, "expired");
}

#[test]
fn sslsard_places_a_hello_without_sessions_as_new() {
    let mut distributor = distributor(SSLSARD);
    let choice = choose(&mut distributor, Some(2), false, [0; 3]);
    assert_eq!((choice.resumed, choice.work), (false, 20.0));
}

#[test]
fn lost_node_has_none_of_its_sessions() {
    let mut distributor = distributor(STICKY);
    learn(&mut distributor, 1, 2);
    learn(&mut distributor, 2, 1);
    distributor.handle_node_lost(2, Micros(5));
    assert_eq!((distributor.find([hash(1)], NOW), distributor.find([hash(2)], NOW)), (None, Some(1)));
    learn(&mut distributor, 1, 2);
    assert_eq!(distributor.find([hash(1)], NOW), Some(2));
    assert_eq!(distributor.newest().map(|session| session.server).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn session_is_forgotten_only_where_it_is() {
    let mut distributor = distributor(STICKY);
    learn(&mut distributor, 1, 2);
    assert!(!distributor.forget(hash(1), 0, NOW));
    assert!(distributor.forget(hash(1), 2, NOW));
    assert!(!distributor.forget(hash(1), 2, NOW));
    assert_eq!(distributor.find([hash(1)], NOW), None);
}

#[test]
fn successor_has_the_sessions_of_remaining_nodes() {
    let mut former = distributor(STICKY);
    (0..6).for_each(|number| learn(&mut former, number, number as usize % 3));
    former.handle_node_lost(0, Micros(5));
    let mut distributor = distributor(STICKY);
    distributor.inherit(&former, &[Some(2), Some(0), None]);
    let found: Vec<_> = (0..6).map(|number| distributor.find([hash(number)], NOW)).collect();
    assert_eq!(found, [None, Some(0), None, None, Some(0), None]);
    let order: Vec<_> = distributor.newest().map(|session| session.hash).collect();
    assert_eq!(order, [hash(4), hash(1)]);
}

#[test]
fn failed_handshake_does_not_bind_a_new_client() {
    let mut distributor = distributor(STICKY);
    let first = choose(&mut distributor, None, false, [0, 1, 1]);
    distributor.handle_failed(SessionKey(7), &first);
    assert_eq!(choose(&mut distributor, None, false, [1, 1, 0]).node, 2);
    let mut later = arrival(7, None, false);
    later.now = Micros(2);
    let second = distributor.distribute(&later, &servers([0, 0, 1])).unwrap();
    assert_eq!(second.node, 2, "the second handshake keeps its client");
    distributor.handle_failed(SessionKey(7), &second);
    assert_eq!(choose(&mut distributor, None, false, [0, 0, 1]).node, 2);
}

#[test]
fn each_of_several_distributors_multiplies_its_share() {
    let mut estimator = LoadEstimator::new(Micros(1_000_000), 2);
    estimator.advance(Micros(1));
    estimator.add(0, 3.0);
    let alone = estimator.load(0);
    estimator.set_distributors(4);
    assert_eq!((estimator.load(0), estimator.load(1)), (4.0 * alone, 0.0));
    assert_eq!(estimator.loads().collect::<Vec<_>>(), [4.0 * alone, 0.0]);
    estimator.set_distributors(0);
    assert_eq!(estimator.load(0), alone);
}

#[test]
fn lard_counts_outstanding_requests_of_all_distributors() {
    let mut distributor = distributor(LARD);
    assert_eq!(choose(&mut distributor, Some(2), true, [0, 0, 4]).node, 2, "not above T_high");
    distributor.set_distributors(2);
    assert_ne!(choose(&mut distributor, Some(2), true, [0, 0, 4]).node, 2, "8 requests at all nodes");
}

#[test]
fn measured_costs_replace_the_configured_ones() {
    let mut distributor = distributor(SSLSARD);
    distributor.set_cost(1, 5.0, 2.0);
    let choice = choose(&mut distributor, Some(1), true, [0; 3]);
    assert_eq!((choice.node, choice.work), (1, 2.0));
}
