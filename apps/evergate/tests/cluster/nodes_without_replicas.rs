//! Nodes without replicas of another node's connections. They serve clients all the same, and clients resume the same
//! TLS sessions there.

use crate::sessions::{await_sessions, client, count, serve, visit};
use crate::traffic;
use crate::world::{World, privileged, settled};

/// Bound on the visits until a light node has created a session. It owns about ten of 1,024 buckets.
const VISITS_MAX: usize = 3000;

#[test]
fn nodes_without_replicas_learn_of_sessions_and_their_ends() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let heavy = traffic::config(&world, 3, "weight = 100");
    let light = heavy.replace("weight = 100", "weight = 1");
    let nodes = vec![world.start(1, &heavy), world.start(2, &light), world.start(3, &light)];
    let shared = settled(&nodes);
    let owned: Vec<u64> = shared.iter().map(|status| status.buckets.owned).collect();
    serve(&world);
    // The heavy node backs up the light nodes. Light nodes would learn nothing of each other without direct messages.
    let made = |aborts: bool| {
        let (before, mut visits) = (count(&nodes[2], "handshakes_full"), 0);
        while count(&nodes[2], "handshakes_full") == before {
            visit(&world, &client(&world), aborts); // a client without a session
            visits += 1;
            assert!(visits < VISITS_MAX, "a light node has no clients: {owned:?}");
        }
        visits as u64
    };
    let sessions = made(false);
    await_sessions(&nodes, sessions);
    made(true);
    await_sessions(&nodes, sessions);
    for node in &nodes {
        // The status is at most a second old.
        node.eventually("a channel to each of the others", |status| status.replication.backups.len() == 2);
    }
}
