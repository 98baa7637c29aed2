//! A worker over the memory host: bytes, windows, dials, replication, and the laws that the host checks.

mod support;

use evergate_base::net::Transfer;
use evergate_base::{Micros, Term};
use evergate_membership::{MemberSet, OwnershipStart};
use evergate_memory_host::{
    BACKUP, BUCKET, Closing, Dials, MemoryHost, Options, Peer, PoolOptions, Process, generation,
};
use evergate_replication::{Announced, Frame, ReplicaStore};
use evergate_worker::Report;
use evergate_worker::host::Socket;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use support::{client, local, pool_options, snapshot};

/// A worker with a client that has arrived.
fn start(host: &MemoryHost, movable: Vec<IpAddr>) -> (Process, Peer) {
    start_with(host, movable, 0, Duration::ZERO)
}

/// [`start`] with a queue of so many places.
fn start_with(
    host: &MemoryHost,
    movable: Vec<IpAddr>,
    queue_max: usize,
    queue_timeout: Duration,
) -> (Process, Peer) {
    let pools = PoolOptions { queue_max, queue_timeout, ..pool_options() };
    let options = Options { connections_max: 100, buffered_max: 1 << 20, movable };
    let generation = generation(&Arc::new(snapshot(None)), &pools);
    let mut process = Process::new(host.clone(), &generation, &options);
    if !options.movable.is_empty() {
        process.own(OwnershipStart::Empty, MemberSet::of(BACKUP));
    }
    let peer = process.arrive(0, local(), client());
    assert!(process.run());
    (process, peer)
}

#[test]
fn bytes_pass_between_client_and_server() {
    for has_pipes in [false, true] {
        let host = MemoryHost::default();
        host.set_pipes(has_pipes);
        let (mut process, client) = start(&host, Vec::new());
        client.send(b"ping");
        assert!(process.run());
        let server = host.servers().pop().unwrap();
        server.send(b"pong");
        server.end();
        assert!(process.run());
        assert_eq!((server.written(), client.written()), (b"ping".to_vec(), b"pong".to_vec()));
        assert!(client.has_fin() && client.closing().is_none(), "the client's stream is open");
        client.end();
        assert!(process.run());
        assert_eq!((client.closing(), server.closing()), (Some(Closing::Orderly), Some(Closing::Orderly)));
        assert!(process.worker.steps().clients().is_empty() && host.violations().is_empty());
    }
}

#[test]
fn full_window_withholds_bytes_until_it_grows() {
    let host = MemoryHost::default();
    host.set_server_window(3);
    let (mut process, client) = start(&host, Vec::new());
    client.send(b"ping");
    assert!(process.run());
    let server = host.servers().pop().unwrap();
    assert_eq!(server.written(), b"pin");
    server.set_window(10);
    assert!(process.run());
    assert_eq!(server.written(), b"ping");
}

#[test]
fn dial_ends_as_scripted() {
    let host = MemoryHost::default();
    host.set_dials(Dials::Wait);
    let (mut process, client) = start(&host, Vec::new());
    client.send(b"ping");
    assert!(process.run());
    let server = host.servers().pop().unwrap();
    assert!(server.is_connecting() && server.written().is_empty());
    server.connect();
    assert!(process.run());
    assert_eq!(server.written(), b"ping");

    let host = MemoryHost::default();
    host.set_dials(Dials::Refused);
    let (_, client) = start(&host, Vec::new());
    assert!(client.closing().is_some(), "no server is left");
}

#[test]
fn replicated_input_waits_for_the_backup() {
    let host = MemoryHost::default();
    let (mut process, client) = start(&host, vec![local().ip()]);
    client.send(b"ping");
    assert!(process.pass(Micros::from_ms(10)));
    let sent = |host: &MemoryHost| host.servers().iter().map(Peer::written_len).sum::<u64>();
    assert_eq!(sent(&host), 0, "the backup has acknowledged nothing");
    assert!(!host.wires()[0].take_sent().is_empty(), "it has received entries");
    for _ in 0..3 {
        process.worker.steps().acknowledge_all();
        assert!(process.pass(Micros::from_ms(10)));
    }
    assert_eq!(sent(&host), 4);
    assert!(host.violations().is_empty());
}

/// A worker of a cluster whose bucket has two ports, with so many clients.
fn start_with_two_ports(host: &MemoryHost, sources: &[[u8; 4]], clients: u16) -> (Process, Vec<Peer>) {
    host.set_sources(sources.iter().map(|ip| IpAddr::from(*ip)).collect(), 2000..=2001);
    let (mut process, first) = start(host, vec![local().ip()]);
    let mut peers = vec![first];
    for more in 1..clients {
        peers.push(process.arrive(0, local(), SocketAddr::new(client().ip(), client().port() + more)));
        assert!(process.run());
    }
    (process, peers)
}

#[test]
fn ports_of_a_bucket_grow_with_its_source_addresses() {
    for (sources, dials) in [(&[[10, 0, 1, 1]][..], 2), (&[[10, 0, 1, 1], [10, 0, 1, 2], [10, 0, 1, 3]], 6)] {
        let host = MemoryHost::default();
        let (_process, _clients) = start_with_two_ports(&host, sources, 8);
        let ends: std::collections::BTreeSet<SocketAddr> =
            host.servers().iter().map(|server| server.flow().local).collect();
        assert_eq!((ends.len(), host.servers().len()), (dials, dials), "{ends:?}");
    }
}

/// The worker ends its stream first, so the kernel would hold the port.
#[test]
fn complete_tunnel_frees_its_port_at_once() {
    for acknowledges in [true, false] {
        let host = MemoryHost::default();
        let (mut process, mut clients) = start_with_two_ports(&host, &[[10, 0, 1, 1]], 2);
        for client in &clients {
            client.end();
        }
        replicate(&mut process);
        for server in host.servers() {
            assert!(server.has_fin());
            if acknowledges {
                server.acknowledge(0);
            }
            server.end();
        }
        replicate(&mut process);
        for client in &clients {
            client.acknowledge(0);
        }
        replicate(&mut process);
        assert!(host.servers().iter().all(|server| server.closing() == Some(Closing::Orderly)));
        let later = SocketAddr::new(client().ip(), 50_000);
        clients.push(process.arrive(0, local(), later));
        assert!(process.run());
        assert_eq!(host.servers().len(), if acknowledges { 3 } else { 2 });
        assert!(host.violations().is_empty(), "{:?}", host.violations());
    }
}

#[test]
fn tunnel_without_a_port_waits_for_the_next_free_one() {
    let host = MemoryHost::default();
    let queue = Duration::from_secs(5);
    host.set_sources(vec![[10, 0, 1, 1].into()], 2000..=2001);
    let (mut process, first) = start_with(&host, vec![local().ip()], 2, queue);
    let mut clients = vec![first];
    for more in 1..5 {
        clients.push(process.arrive(0, local(), SocketAddr::new(client().ip(), client().port() + more)));
        assert!(process.run());
    }
    let counters = process.worker.counters();
    // The queue has two places.
    assert_eq!((host.servers().len(), counters.queued.get(), counters.port_waits.get()), (2, 2, 2));
    assert!(clients[..4].iter().all(|client| client.closing().is_none()));
    assert!(clients[4].closing().is_some(), "the queue is full");
    host.servers()[0].reset();
    replicate(&mut process);
    assert_eq!((host.servers().len(), counters.queued.get()), (3, 1));
    clients[2].send(b"ping");
    replicate(&mut process);
    assert_eq!(host.servers()[2].written(), b"ping", "the first one has the port");
    assert!(process.pass(Micros::from_ms(5_000)));
    replicate(&mut process);
    assert!(clients[3].closing().is_some() && counters.queued.get() == 0);
    let reasons: Vec<&str> = process.take_logs().iter().map(|log| log.reason).collect();
    assert_eq!(reasons, ["queue_full", "upstream_lost", "queue_timeout"]);
    assert!(host.violations().is_empty(), "{:?}", host.violations());
}

#[test]
fn tunnel_without_a_port_fails_at_once_without_a_queue() {
    let host = MemoryHost::default();
    let (process, clients) = start_with_two_ports(&host, &[[10, 0, 1, 1]], 3);
    assert!(clients[2].closing().is_some());
    let logs = process.take_logs();
    assert_eq!((logs.len(), logs[0].reason), (1, "connect_failed"));
    assert!(logs[0].detail.contains("all 2 ports of the bucket"), "{}", logs[0].detail);
}

/// Lets time pass; the backup acknowledges everything.
fn replicate(process: &mut Process) {
    for _ in 0..4 {
        assert!(process.pass(Micros::from_ms(10)));
        process.worker.steps().acknowledge_all();
    }
}

/// Connections that continued in a failover of this worker.
fn resumed(process: &mut Process) -> usize {
    process.fail_over(MemberSet::EMPTY);
    assert!(process.run());
    let resumed = process.take_reports().into_iter().find_map(|report| match report {
        Report::Resumed(resumed) => Some(resumed.connections),
        _ => None,
    });
    resumed.expect("the failover ends")
}

#[test]
fn another_worker_continues_a_replica() {
    let host = MemoryHost::default();
    let (mut process, client) = start(&host, vec![local().ip()]);
    client.send(b"ping");
    let (mut store, mut announced, mut input) = (ReplicaStore::default(), Announced::default(), Vec::new());
    for _ in 0..3 {
        assert!(process.pass(Micros::from_ms(10)));
        input.append(&mut host.wires()[0].take_sent());
        process.worker.steps().acknowledge_all();
    }
    let mut at = 0;
    while let Some((frame, length)) = Frame::decode(&input[at..]).unwrap() {
        at += length;
        store.handle(&mut announced, frame).unwrap();
    }
    let (connection, replica) = store.iter().next().unwrap();
    let (state, legs) = (Some(Box::new(replica.state.clone())), replica.legs.clone());
    let replica = Frame::Begin { connection: *connection, bucket: BUCKET, state, legs };

    let other = MemoryHost::default();
    let (mut process, _) = start(&other, vec![local().ip()]);
    process.own(OwnershipStart::Empty, MemberSet::EMPTY); // its own client is over
    process.worker.steps().store().unwrap().keep(Term::default(), replica);
    assert_eq!(resumed(&mut process), 1);
    let server = other.servers().pop().unwrap();
    server.send(b"pong");
    assert!(process.pass(Micros::from_ms(10)));
    let client = other.peer_of(local(), support::client()).unwrap();
    assert_eq!(client.written(), b"pong");
    client.send(b"more");
    assert!(process.pass(Micros::from_ms(10)));
    assert!(server.written().ends_with(b"more"), "{:?}", server.written());
    assert!(other.violations().is_empty(), "{:?}", other.violations());
}

#[test]
fn bytes_after_the_end_break_a_law() {
    let host = MemoryHost::default();
    let (socket, peer) = host.socket(local(), client());
    assert!(matches!(socket.write(b"a"), Transfer::Moved(1)));
    socket.shutdown_write();
    assert!(host.violations().is_empty());
    assert!(matches!(socket.write(b"b"), Transfer::Broken(_)));
    assert_eq!((peer.written(), host.violations().len()), (b"a".to_vec(), 1));
}
