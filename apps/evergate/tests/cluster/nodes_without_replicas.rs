//! A node that holds no copies of another one's connections has no part in its mirror channels. It serves clients all the same,
//! and theirs are the same sessions.

use crate::sessions::{all_keep, client, count, serve, visit};
use crate::traffic;
use crate::world::{World, privileged, settled};

/// A light node has about ten of 1,024 buckets: so many visits, and it has a session to tell.
const VISITS_MAX: usize = 3000;

#[test]
fn every_node_is_told_of_sessions_and_their_ends_also_where_no_copies_go() {
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
    // The light nodes keep their copies at the heavy one: without a word of their own they would hear nothing of each other.
    let made = |aborts: bool| {
        let (before, mut visits) = (count(&nodes[2], "handshakes_full"), 0);
        while count(&nodes[2], "handshakes_full") == before {
            visit(&world, &client(&world), aborts); // which has no session yet
            visits += 1;
            assert!(visits < VISITS_MAX, "a light node has no clients: {owned:?}");
        }
        visits as u64
    };
    let sessions = made(false);
    all_keep(&nodes, sessions);
    made(true);
    all_keep(&nodes, sessions);
    for node in &nodes {
        // Figures are a second old at most.
        node.eventually("a channel to each of the others", |status| {
            status.replication.backups.len() == 2
        });
    }
}
