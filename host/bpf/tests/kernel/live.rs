//! The gate between living kernels.

use crate::frame::{Segment, Wire};
use crate::relay::{NodeRef, Relay};
use crate::stream::exchange;
use crate::world::{PORT, World, at, eventually, mac, node, options, privileged, vip};
use evergate_base::Bucket;
use evergate_bpf::{Counter, Flow, GateEvents, Mode, Options, Owner, PacketGate, WorkerPortId};
use evergate_netns::Namespace;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

const BYTES: u64 = 8 << 20;

/// Bytes that the socket's peer has not acknowledged.
fn unacknowledged(socket: &TcpStream) -> i32 {
    let mut bytes = 0;
    // SAFETY: the kernel writes one int.
    assert_eq!(unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) }, 0);
    bytes
}

/// A connection from the client to node 1, not relayed anywhere.
fn connected(world: &World, v6: bool) -> (TcpStream, OwnedFd) {
    let to = SocketAddr::new(vip(v6), PORT);
    let listener = world.nodes[0].namespace.run(move || TcpListener::bind(to).unwrap());
    let client = world.client.run(move || TcpStream::connect(to).unwrap());
    let (node, _) = listener.accept().unwrap();
    node.set_nonblocking(true).unwrap();
    (client, node.into())
}

#[test]
fn a_peer_sees_no_ack_beyond_what_is_committed() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        let world = World::new(Mode::Steer);
        let (mut client, socket) = connected(&world, v6);
        let gate = world.nodes[0].gate.clone();
        world.nodes[0].namespace.run(move || {
            let mut worker_port = gate.worker_port(WorkerPortId::new(3).unwrap()).unwrap();
            client.write_all(&[7; 5000]).unwrap();
            let facts = evergate_sys::tcp_params(socket.as_raw_fd(), 0).unwrap();
            let slot = worker_port.slot(&Flow::new(facts.local, facts.remote)).unwrap();
            let start = slot.origin().received;
            // The ACK of data that arrived before the slot was taken is withheld too.
            eventually("the kernel has everything", || slot.received() == start.wrapping_add(5000));
            assert_eq!(unacknowledged(&client), 5000);
            for committed in [1, 1000, 4999, 5000] {
                slot.set_committed(start.wrapping_add(committed));
                assert!(slot.owes_ack());
                worker_port.emit_acks([&slot]).unwrap();
                assert!(!slot.owes_ack());
                assert_eq!(unacknowledged(&client), 5000 - committed as i32);
            }
            assert!(worker_port.slot(&slot.flow()).is_none(), "a slot has one holder");
        });
    }
}

/// Kills the process that holds the socket of a connection, with unread data in it or without; what the counter counts
/// must have been withheld.
fn killed(unread: bool, counter: Counter) {
    if !privileged() {
        return;
    }
    let mut world = World::new(Mode::Steer);
    let (mut client, socket) = connected(&world, false);
    if unread {
        client.write_all(b"unread").unwrap();
        eventually("the data is there", || {
            let mut byte = [0; 1];
            // SAFETY: pointer and length describe the buffer.
            unsafe { libc::recv(socket.as_raw_fd(), byte.as_mut_ptr().cast(), 1, libc::MSG_PEEK) == 1 }
        });
    }
    let keep = socket.as_raw_fd() as u32;
    // SAFETY: the child only makes system calls without pointers, and waits to be killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above. It keeps nothing but the socket: neither the gate's programs nor other tests' sockets.
        unsafe {
            libc::syscall(libc::SYS_close_range, 3, keep - 1, 0);
            libc::syscall(libc::SYS_close_range, keep + 1, u32::MAX, 0);
            loop {
                libc::pause();
            }
        }
    }
    assert!(child > 0);
    drop(socket); // the child holds the last copy
    // The pinned maps, as another process finds them; from now on only the kernel holds the attached programs.
    let again = world.nodes[0].namespace.run(|| {
        let options = options(Path::new("/sys/fs/bpf/evergate/node1"));
        Arc::new(PacketGate::load(&Options { keep: true, ..options }).unwrap())
    });
    world.nodes[0].gate = again.clone();
    // SAFETY: our own child, by its id.
    unsafe {
        assert_eq!(libc::kill(child, libc::SIGKILL), 0);
        assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
    }
    eventually("the kernel tried", || again.counters().unwrap().get(counter) > 0);
    // The cable delivers at once, so what had left would be here.
    client.set_nonblocking(true).unwrap();
    let error = client.read(&mut [0; 1]).expect_err("the client received an end");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn a_killed_process_sends_no_fin() {
    killed(false, Counter::FinHeld);
}

#[test]
fn a_killed_process_with_unread_data_sends_no_rst() {
    killed(true, Counter::RstHeld);
}

/// On a live card, because test runs accept no frame that long.
#[test]
fn early_segment_too_long_for_the_ring_is_reported_empty() {
    if !privileged() {
        return;
    }
    let world = World::new(Mode::Steer);
    let (client, switch, first) = (&world.client, &world._switch, &world.nodes[0]);
    for (namespace, card) in
        [(client, "eth0"), (switch, "port10"), (switch, "port1"), (&first.namespace, "eth0")]
    {
        namespace.ip(&format!("link set {card} mtu 9000")).unwrap();
    }
    for v6 in [false, true] {
        let (from, to) = (at(v6, 10, 50_000), SocketAddr::new(vip(v6), PORT));
        let flow = Flow::new(to, from);
        let gate = first.gate.clone();
        let mut worker_port =
            first.namespace.run(move || gate.worker_port(WorkerPortId::new(3).unwrap()).unwrap());
        first.gate.set_pending(first.gate.bucket(&flow), Some(worker_port.id()));
        client.run(move || {
            let (to_mac, from_mac) = (mac(1), mac(10));
            let long = Segment { to_mac, from_mac, seq: 700, data: vec![7; 4200], ..Segment::new(from, to) };
            Wire::of("eth0").send(&long);
        });
        let mut events = GateEvents::default();
        eventually("the early segment is reported", || {
            worker_port.events(&mut events).unwrap();
            !events.early.is_empty()
        });
        let diverted = &events.early[0];
        assert_eq!((diverted.flow, diverted.position.seq, diverted.data.len()), (flow, 700, 0));
    }
}

/// Listeners of the server and of one node, for any number of exchanges: a process that another test starts may hold a
/// closed one for a moment.
struct Doors {
    by: usize,
    v6: bool,
    server: TcpListener,
    node: OwnedFd,
}

impl Doors {
    fn open(world: &World, by: usize, v6: bool) -> Doors {
        let (to, origin) = (SocketAddr::new(vip(v6), PORT), at(v6, 20, 9000));
        let server = world.server.run(move || TcpListener::bind(origin).unwrap());
        let node = world.nodes[by].namespace.run(move || evergate_sys::listen(to, 16).unwrap());
        Doors { by, v6, server, node }
    }
}

/// A whole exchange through a relay at one node; `first` is what happens to the relay before it runs to the end.
fn relayed(
    world: &World,
    doors: &Doors,
    client_port: Option<u16>,
    first: impl FnOnce(&NodeRef, &mut Relay) + Send + 'static,
) {
    let v6 = doors.v6;
    let (to, origin) = (SocketAddr::new(vip(v6), PORT), at(v6, 20, 9000));
    let server = doors.server.try_clone().unwrap();
    let server =
        world.server.spawn(move || exchange(&server.accept().unwrap().0, (2, BYTES), (1, BYTES), false));
    let node = NodeRef::from(&world.nodes[doors.by]);
    let listener = doors.node.try_clone().unwrap();
    let relay = world.nodes[doors.by].namespace.spawn(move || {
        let mut relay = Relay::accept(&node, &listener, origin, None);
        first(&node, &mut relay);
        assert!(relay.run(u64::MAX));
        relay.finish();
    });
    let client = world.client.spawn(move || {
        let socket = match client_port {
            Some(port) => {
                let socket = evergate_sys::connect_from(at(v6, 10, 0).ip(), port..=port, to).unwrap();
                let socket = TcpStream::from(socket);
                socket.set_nonblocking(false).unwrap();
                socket
            }
            None => TcpStream::connect(to).unwrap(),
        };
        exchange(&socket, (1, BYTES), (2, BYTES), false);
    });
    client.join().unwrap();
    server.join().unwrap();
    relay.join().unwrap();
}

#[test]
fn packets_that_land_at_the_wrong_node_are_passed_on() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        let world = World::new(Mode::Steer);
        let to = SocketAddr::new(vip(v6), PORT);
        // Node 1 answers for the address, node 2 owns every other bucket.
        for node_of in &world.nodes {
            node_of.gate.owners().set_all(Owner::new(node(2), &[]).unwrap());
            node_of.gate.owners().set(Bucket(0), Owner::new(node(1), &[]).unwrap());
        }
        let gate = &world.nodes[0].gate;
        let flow = |port| Flow::new(to, at(v6, 10, port));
        let port = (40_000..).find(|port| gate.bucket(&flow(*port)).0 != 0).unwrap();
        relayed(&world, &Doors::open(&world, 1, v6), Some(port), |_, _| ());
        let counters = world.nodes.each_ref().map(|node| node.gate.counters().unwrap());
        assert!(counters[0].get(Counter::Steered) > 100, "{counters:?}");
        assert_eq!(counters[1].get(Counter::Steered), 0);
    }
}

#[test]
fn silenced_node_resumes_when_its_lease_is_renewed() {
    if !privileged() {
        return;
    }
    let world = World::new(Mode::Steer);
    relayed(&world, &Doors::open(&world, 0, false), None, |node, relay| {
        for stop in 1..15 {
            assert!(!relay.run(stop * 1_000_000));
            let fenced = || node.gate.counters().unwrap().get(Counter::Fenced);
            let before = fenced();
            node.gate.leases().revoke_all();
            eventually("something is stopped", || fenced() > before);
            node.gate.leases().set_own(u64::MAX);
        }
    });
}

#[test]
fn an_orderly_end_gives_both_slots_back() {
    if !privileged() {
        return;
    }
    let world = World::new(Mode::Steer);
    let doors = Doors::open(&world, 0, true);
    for _ in 0..3 {
        relayed(&world, &doors, None, |_, _| ());
        assert_eq!(world.nodes[0].gate.slots_in_use(), 0);
    }
    let counters = world.nodes[0].gate.counters().unwrap();
    assert_eq!((counters.get(Counter::FinHeld), counters.get(Counter::RstHeld)), (0, 0), "{counters:?}");
}

#[test]
fn maps_of_another_size_stay_pinned_only_on_request() {
    if !privileged() {
        return;
    }
    Namespace::new().unwrap().run(|| {
        let pins = Path::new("/sys/fs/bpf/evergate/test");
        let load =
            |flows_max, keep| drop(PacketGate::load(&Options { flows_max, keep, ..options(pins) }).unwrap());
        let pinned = || {
            let names = std::fs::read_dir(pins).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
            names.sort();
            names
        };
        load(1024, false);
        for other in ["v0-1024", "another"] {
            std::fs::create_dir(pins.join(other)).unwrap();
        }
        load(2048, true);
        assert_eq!(pinned().len(), 4);
        load(2048, false);
        let [another, own] = &pinned()[..] else { panic!("{:?}", pinned()) };
        assert!(another == "another" && own.ends_with("-2048"), "{own}");
        load(2048, true); // finds the existing maps
    });
}
