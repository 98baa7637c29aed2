//! Replication status and metrics: each connection is replicated once and has one replica. After a failover the stall
//! times of the connections are counted.

use crate::matrix::carrier;
use crate::metrics::{Metrics, agree, documented, exposed};
use crate::resets::{client_stream, get_with, serve_all};
use crate::support::eventually;
use crate::traffic::{self, PATIENCE, Server, Transport};
use crate::world::{Node, World, privileged, settled};
use evergate::agent::status::ReplicationStatus;
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

const CLIENTS: u64 = 16;

/// Waits until the nodes together report this number of connections, replicated connections and replicas.
fn all_are_replicated(nodes: &[Node], connections: u64) -> Vec<ReplicationStatus> {
    eventually(&format!("{connections} connections are replicated once each"), || {
        let all: Vec<ReplicationStatus> = nodes.iter().map(|node| node.status().replication).collect();
        let sums = all.iter().fold((0, 0, 0), |(own, replicated, held), of| {
            (own + of.connections, replicated + of.replicated, held + of.replicas)
        });
        (sums == (connections, connections, connections)).then_some(all)
    })
}

#[test]
fn connections_are_replicated_once_and_stalls_are_counted() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let (mut nodes, _) = traffic::three(&world);
    serve_all(&world);
    let roots = Arc::new(traffic::roots(&world));
    let to = SocketAddr::new(world.family.address(), Transport::Tls13.port(Server::Plain));
    let mut clients = world.switch.run(move || {
        let client = || {
            let stream = TcpStream::connect_timeout(&to, PATIENCE).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut stream = client_stream(Transport::Tls13, &roots, stream);
            get_with(&mut stream, "/brief", "");
            stream.read_exact(&mut [0; 2]).unwrap();
            stream
        };
        (0..CLIENTS).map(|_| client()).collect::<Vec<_>>()
    });
    let before = all_are_replicated(&nodes, CLIENTS);
    for (status, node) in before.iter().zip(&nodes) {
        let backups: Vec<u8> = status.backups.iter().map(|lag| lag.node).collect();
        let others: Vec<u8> = nodes.iter().map(|node| node.number).filter(|of| *of != node.number).collect();
        assert_eq!(backups, others);
    }
    let shown = nodes[0].cli(&["cluster", "status"]).out;
    let line = format!("connections:   {}, replicated {}, ", before[0].connections, before[0].replicated);
    assert!(shown.contains(&line) && shown.contains("backup lag:    node 2: "), "{shown}");
    // The status shows the longest lag of a second and resets it with the next second.
    eventually("the status shows a backup's lag", || {
        get_with(&mut clients[0], "/brief", "");
        clients[0].read_exact(&mut [0; 2]).unwrap();
        nodes
            .iter()
            .any(|node| node.status().replication.backups.iter().any(|lag| lag.behind_us > 0))
            .then_some(())
    });

    let dead = carrier(&mut nodes);
    let lost = dead.status().replication.connections;
    assert!(lost > 0);
    dead.kill();
    settled(&nodes);
    all_are_replicated(&nodes, CLIENTS);
    let stalls: Vec<_> = nodes.iter().map(|node| node.status()).collect();
    let counted = |status: &evergate::agent::status::ClusterStatus| {
        (status.stalls.idle.count + status.stalls.active.count, status.stalls.idle.sum_us > 0)
    };
    assert_eq!(stalls.iter().map(|status| counted(status).0).sum::<u64>(), lost);
    assert!(stalls.iter().any(|status| counted(status).1));
    for status in &stalls {
        let one = status.failovers.iter().find(|one| one.failed_over > 0).unwrap();
        assert!(one.silent_ms > 0.0, "the dead node had sent heartbeats before: {one:?}");
    }
    drop(clients);
    metrics_agree_with_the_documents(&nodes[0]);
}

/// Metrics of a cluster, including those of the packet filter and the agent.
fn metrics_agree_with_the_documents(node: &Node) {
    let of_clusters = |mut metrics: Metrics| {
        metrics.retain(|name, _| {
            ["evergate_cluster_", "evergate_gate_", "evergate_agent_"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
        });
        metrics
    };
    let documented = of_clusters(documented());
    assert!(documented.len() >= 30, "{documented:?}");
    // An agent publishes the figures of the last second a little after it became active again.
    agree(&documented, || of_clusters(exposed(&node.cli(&["metrics"]).out)));
}
