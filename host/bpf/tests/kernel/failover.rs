//! A connection crosses from a dead node to a living one.

use crate::relay::{NodeRef, Relay, announcer, fail_over};
use crate::stream::{connect_at, exchange};
use crate::world::{PORT, World, at, node, privileged, vip};
use evergate_bpf::{Counter, Mode, Owner};
use std::net::{SocketAddr, TcpListener, TcpStream};

const BYTES: u64 = 24 << 20;

#[derive(Debug, Clone, Copy)]
struct Scenario {
    v6: bool,
    mode: Mode,
    /// Bytes acknowledged in both directions when the node dies.
    at: u64,
    up: u64,
    down: u64,
    /// The shorter stream ends at once, or after the longer one.
    half_closed: bool,
    /// First sequence number of the client's stream and of the leg to the server.
    first: Option<u32>,
}

const USUAL: Scenario = Scenario {
    v6: false,
    mode: Mode::Steer,
    at: 9_000_000,
    up: BYTES,
    down: BYTES,
    half_closed: false,
    first: None,
};

fn survive(scenario: Scenario) {
    if !privileged() {
        return;
    }
    eprintln!("{scenario:?}");
    let Scenario { v6, mode, at: stop, up, down, half_closed, first } = scenario;
    let world = World::new(mode);
    let to = SocketAddr::new(vip(v6), PORT);
    let origin = at(v6, 20, 9000);
    let server = world.server.run(move || TcpListener::bind(origin).unwrap());
    let server = world.server.spawn(move || {
        let (socket, from) = server.accept().unwrap();
        assert_eq!(from.ip(), to.ip());
        exchange(&socket, (2, down), (1, up), down < up && !half_closed);
    });
    let dying = NodeRef::from(&world.nodes[0]);
    let relay = world.nodes[0].namespace.spawn(move || {
        let _announcer = announcer(&dying);
        let listener = evergate_sys::listen(to, 16).unwrap();
        let mut relay = Relay::accept(&dying, &listener, origin, first);
        assert!(!relay.run(stop), "the exchange ended before the node died");
        let replication = relay.replication();
        // Dying: the kernel closes both sockets, with unread data in them. FIN and RST must not leave.
        drop(relay);
        replication
    });
    let client = world.client.spawn(move || {
        let socket = match first {
            Some(first) => TcpStream::from(connect_at(at(v6, 10, 0).ip(), 40_000..=50_000, to, first)),
            None => TcpStream::connect(to).unwrap(),
        };
        exchange(&socket, (1, up), (2, down), up < down && !half_closed);
    });
    let replication = relay.join().unwrap();
    if let Some(first) = first {
        assert_eq!(replication.starts(), [first.wrapping_add(1); 2]);
    }
    world.nodes[0].gate.leases().revoke_all();
    let counters = world.nodes[0].gate.counters().unwrap();
    assert!(counters.get(Counter::Clamped) > 0, "nothing was withheld: {counters:?}");
    let second = NodeRef::from(&world.nodes[1]);
    let owner = Owner::new(node(2), &[]).unwrap();
    let relay = world.nodes[1].namespace.spawn(move || {
        let announcer = announcer(&second);
        let owners = second.gate.owners();
        owners.set_all(owner.on_hold());
        let mut relay = fail_over(&second, &replication, &announcer, || owners.set_all(owner));
        assert!(relay.run(u64::MAX));
        relay.finish();
    });
    client.join().unwrap();
    server.join().unwrap();
    relay.join().unwrap();
    for node in &world.nodes {
        let counters = node.gate.counters().unwrap();
        eprintln!("{counters:?}");
        assert_eq!(counters.get(Counter::NoSlot), 0);
    }
}

#[test]
fn both_directions_continue_byte_exactly_over_ipv4() {
    survive(USUAL);
}

#[test]
fn both_directions_continue_byte_exactly_over_ipv6() {
    survive(Scenario { v6: true, ..USUAL });
}

#[test]
fn a_download_continues_byte_exactly() {
    survive(Scenario { at: 5_000_000, up: 100, ..USUAL });
}

#[test]
fn an_upload_continues_byte_exactly() {
    survive(Scenario { at: 5_000_000, down: 100, ..USUAL });
}

#[test]
fn a_stream_continues_whose_counterpart_has_ended() {
    survive(Scenario { at: 5_000_000, down: 100, half_closed: true, ..USUAL });
    survive(Scenario { v6: true, at: 5_000_000, up: 100, half_closed: true, ..USUAL });
}

#[test]
fn a_connection_continues_in_flood_mode() {
    survive(Scenario { mode: Mode::Flood, at: 7_654_321, ..USUAL });
    survive(Scenario { v6: true, mode: Mode::Flood, at: 7_654_321, ..USUAL });
}

#[test]
fn sequence_numbers_wrap_around_before_at_and_after_the_death() {
    for bytes in [1_000_000, 4_500_000, 15_000_000u32] {
        survive(Scenario { first: Some(0u32.wrapping_sub(bytes)), ..USUAL });
    }
}
