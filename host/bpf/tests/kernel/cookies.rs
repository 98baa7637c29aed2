//! Connections that are accepted from cookies.

use crate::frame::{ACK, SYN, Segment, Tap, Wire};
use crate::relay::{NodeRef, Relay};
use crate::stream::exchange;
use crate::world::{PORT, VIRTUAL_MAC, World, at, eventually, mac, node, privileged, vip};
use evergate_bpf::{CardState, CookieKey, Counter, Flow, Leases, Mode, Owner, WorkerPortId};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::time::Duration;

const BYTES: u64 = 8 << 20;

pub(crate) fn with_cookies(key: [CookieKey; 2]) -> World {
    with_cookies_in(key, [None; 2])
}

/// Each node has its own key, and perhaps its own epoch.
pub(crate) fn with_cookies_in(key: [CookieKey; 2], epoch: [Option<NonZeroU32>; 2]) -> World {
    let world = World::new(Mode::Steer);
    load(&world, key, epoch);
    world
}

pub(crate) fn load(world: &World, key: [CookieKey; 2], epoch: [Option<NonZeroU32>; 2]) {
    for ((node, key), epoch) in world.nodes.iter().zip(key).zip(epoch) {
        let (gate, card) = (node.gate.clone(), node.card);
        node.namespace
            .run(move || gate.load_accept_in(key, &card_facts(1500), epoch).unwrap().attach(card).unwrap());
    }
}

fn card_facts(mtu: u16) -> CardState {
    let networks = vec![("10.77.0.0".parse().unwrap(), 24), ("fd77::".parse().unwrap(), 64)];
    CardState { segment_bytes: [mtu - 40, mtu - 60], networks }
}

/// A handshake may count twice as accepted from its cookie: its ACK and its data, on two processors at once.
pub(crate) fn count(world: &World, node: usize, counter: Counter) -> u64 {
    world.nodes[node].gate.counters().unwrap().get(counter)
}

#[test]
fn cookie_connection_is_gated_from_its_first_byte() {
    if !privileged() {
        return;
    }
    for (v6, timestamps, scaling, sack) in
        [(false, "1", "1", "1"), (true, "1", "1", "1"), (false, "0", "1", "0"), (true, "0", "0", "1")]
    {
        for of_node in [false, true] {
            agrees_to(v6, of_node, (timestamps, scaling, sack));
        }
    }
}

/// A client and a node agree to what both allow; one of them allows this, the other one everything.
fn agrees_to(v6: bool, of_node: bool, (timestamps, scaling, sack): (&str, &str, &str)) {
    let world = World::new(Mode::Steer);
    let host = if of_node { &world.nodes[0].namespace } else { &world.client };
    host.sysctl("net.ipv4.tcp_timestamps", timestamps).unwrap();
    host.sysctl("net.ipv4.tcp_window_scaling", scaling).unwrap();
    host.sysctl("net.ipv4.tcp_sack", sack).unwrap();
    load(&world, [CookieKey([5, 6]); 2], [None; 2]);
    let to = SocketAddr::new(vip(v6), PORT);
    let origin = at(v6, 20, 9000);
    let server = world.server.run(move || TcpListener::bind(origin).unwrap());
    let server =
        world.server.spawn(move || exchange(&server.accept().unwrap().0, (2, BYTES), (1, BYTES), false));
    let first = NodeRef::from(&world.nodes[0]);
    let listener = world.nodes[0].namespace.run(move || evergate_sys::listen(to, 16).unwrap());
    let relay = world.nodes[0].namespace.spawn(move || {
        let mut relay = Relay::accept(&first, &listener, origin, None);
        let facts = relay.client_facts();
        assert!(relay.run(u64::MAX));
        relay.finish();
        facts
    });
    let client = world.client.spawn(move || {
        exchange(&TcpStream::connect(to).unwrap(), (1, BYTES), (2, BYTES), false);
    });
    client.join().unwrap();
    server.join().unwrap();
    let facts = relay.join().unwrap();
    let agreed = (facts.stamp.is_some(), facts.window_scales.is_some(), facts.sack);
    assert_eq!(agreed, (timestamps == "1", scaling == "1", sack == "1"), "IPv6 {v6}, the node's {of_node}");
    assert!(count(&world, 0, Counter::CookieAccepted) > 0);
    assert!(count(&world, 0, Counter::CookieSent) > 0);
    assert!(count(&world, 0, Counter::Clamped) > 0, "not gated");
}

/// A client without a kernel: no machine has its address, so nothing else answers for it.
pub(crate) struct Bare {
    wire: Wire,
    tap: Tap,
    pub(crate) template: Segment,
}

impl Bare {
    /// In the calling thread's network namespace, at host 11.
    pub(crate) fn new(from: SocketAddr, to: SocketAddr) -> Bare {
        let template = Segment { to_mac: mac(1), from_mac: mac(11), ..Segment::new(from, to) };
        Bare { wire: Wire::of("eth0"), tap: Tap::of("eth0"), template }
    }

    pub(crate) fn send(&self, segment: Segment) {
        self.wire.send(&segment);
    }

    /// Sends a SYN with number 999 that allows segments of so many bytes, and returns what acknowledges the answer.
    pub(crate) fn connect(&self, takes: u16) -> u32 {
        let options = segment_size(takes);
        self.send(Segment { seq: 999, flags: SYN, options, ..self.template.clone() });
        let (from, to) = (self.template.from, self.template.to);
        self.receive(|segment| segment.from == to && segment.to == from).seq.wrapping_add(1)
    }

    /// The next segment for it that `wanted` wants.
    pub(crate) fn receive(&self, wanted: impl Fn(&Segment) -> bool) -> Segment {
        receive(&self.tap, mac(11), wanted)
    }
}

/// The next segment for a card that `wanted` wants.
fn receive(tap: &Tap, card: [u8; 6], wanted: impl Fn(&Segment) -> bool) -> Segment {
    loop {
        let frame = tap.next();
        let is_tcp = match frame[12..14] {
            [8, 0] => frame[23] == 6,
            [0x86, 0xdd] => frame[20] == 6,
            _ => false,
        };
        // Checksums of what leaves a socket are left to the card.
        if is_tcp && frame[..6] == card && wanted(&Segment::read_unchecked(&frame)) {
            return Segment::read_unchecked(&frame);
        }
    }
}

/// Node 1 listens, and knows the neighbour that [`Bare`] is.
pub(crate) fn meets_bare(world: &World, v6: bool) -> (SocketAddr, TcpListener) {
    let node = &world.nodes[0].namespace;
    let text = mac(11).map(|byte| format!("{byte:02x}")).join(":");
    node.ip(&format!("neigh add {} lladdr {text} dev eth0", at(v6, 11, 0).ip())).unwrap();
    let to = SocketAddr::new(vip(v6), PORT);
    let listener = node.run(move || TcpListener::bind(to).unwrap());
    listener.set_nonblocking(true).unwrap();
    (to, listener)
}

/// What was agreed to in the SYN is agreed to, wherever it stands in later segments (RFC 7323, section 3.2).
#[test]
fn timestamps_are_found_wherever_they_stand() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        let world = with_cookies([CookieKey([5, 6]); 2]);
        let (to, listener) = meets_bare(&world, v6);
        let layouts: [(&[u8], &[u8]); 4] =
            [(&[1, 1], &[]), (&[], &[0, 0]), (&[1], &[1]), (&[254, 4, 7, 7], &[1, 1])];
        for (number, (before, after)) in layouts.into_iter().enumerate() {
            let stamps = move |echo: u32| {
                let stamp = [&[8, 10], &7000u32.to_be_bytes()[..], &echo.to_be_bytes()].concat();
                [before, &stamp, after].concat()
            };
            let from = at(v6, 11, 40_000 + number as u16);
            let (client, answer) = world.client.run(move || {
                let client = Bare::new(from, to);
                let syn =
                    Segment { seq: 999, ack: 0, flags: SYN, options: stamps(0), ..client.template.clone() };
                client.send(syn);
                let answer = client.receive(|segment| segment.from == to && segment.to == from);
                let echo = u32::from_be_bytes(answer.options[8..12].try_into().unwrap());
                let options = stamps(echo);
                let hello = Segment {
                    seq: 1000,
                    ack: answer.seq.wrapping_add(1),
                    options,
                    data: b"hello".to_vec(),
                    ..client.template.clone()
                };
                client.send(hello);
                (client, answer)
            });
            assert_eq!(answer.flags, SYN | ACK);
            let (mut socket, _) = accept(&listener);
            socket.write_all(b"welcome").unwrap();
            let reply = client.receive(|segment| segment.to == from && !segment.data.is_empty());
            assert_eq!(reply.data, b"welcome");
            assert_eq!(reply.options.get(..4), Some(&[1, 1, 8, 10][..]), "IPv6 {v6}, {before:?}");
            assert_eq!(reply.options[8..], 7000u32.to_be_bytes());
        }
    }
}

/// Tunnels make them small. Our kernel makes no IPv6 socket for less than the smallest link needs from a cookie.
#[test]
fn clients_of_small_segments_are_accepted() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        let world = with_cookies([CookieKey([5, 6]); 2]);
        let (family, prefix) = if v6 { ("-6 ", 128) } else { ("", 32) };
        world.client.ip(&format!("{family}route add {}/{prefix} dev eth0 advmss 600", vip(v6))).unwrap();
        let to = SocketAddr::new(vip(v6), PORT);
        let listener = world.nodes[0].namespace.run(move || TcpListener::bind(to).unwrap());
        listener.set_nonblocking(true).unwrap();
        let mut client = world.client.run(move || TcpStream::connect(to).unwrap());
        client.write_all(b"hello").unwrap();
        let (mut socket, _) = accept(&listener);
        socket.set_nonblocking(false).unwrap();
        let mut got = [0; 5];
        socket.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"hello", "IPv6 {v6}");
        assert_eq!(count(&world, 0, Counter::CookieAccepted) > 0, !v6);
    }
}

/// The kernel would send a neighbour request for every client on the link. A flood from addresses without a machine
/// would fill its table.
#[test]
fn clients_on_the_link_are_answered_to_the_sending_card() {
    if !privileged() {
        return;
    }
    let world = with_cookies([CookieKey([5, 6]); 2]);
    let (node, card) = (&world.nodes[0].namespace, world.nodes[0].card);
    node.ip("route add 10.78.0.0/24 via 10.77.0.20").unwrap();
    node.ip("route add fd78::/64 via fd77::20").unwrap();
    for v6 in [false, true] {
        let to = SocketAddr::new(vip(v6), PORT);
        let _listener = node.run(move || TcpListener::bind(to).unwrap());
        let ask = move |from| {
            let client = Bare::new(from, to);
            let syn = Segment { seq: 999, flags: SYN, to_mac: VIRTUAL_MAC, ..client.template.clone() };
            client.send(syn);
            client
        };
        let near = at(v6, 99, 40_000);
        let answer = world.client.run(move || ask(near).receive(|segment| segment.to == near));
        assert_eq!((answer.from, answer.from_mac, answer.flags), (to, mac(1), SYN | ACK));
        let known = node.run(move || evergate_sys::neighbour(card, near.ip()).unwrap());
        assert_eq!(known, None);
        let far = SocketAddr::new(if v6 { "fd78::9" } else { "10.78.0.9" }.parse().unwrap(), 40_000);
        let router = world.server.run(|| Tap::of("eth0"));
        world.client.run(move || drop(ask(far)));
        receive(&router, mac(20), |segment| segment.to == far);
    }
}

#[test]
fn the_segment_size_that_is_offered_follows_the_card() {
    if !privileged() {
        return;
    }
    let world = World::new(Mode::Steer);
    let (gate, card) = (world.nodes[0].gate.clone(), world.nodes[0].card);
    let accept = world.nodes[0].namespace.run(move || {
        let accept = gate.load_accept(CookieKey([5, 6]), &card_facts(1500)).unwrap();
        accept.attach(card).unwrap();
        accept
    });
    for v6 in [false, true] {
        let (to, _listener) = meets_bare(&world, v6);
        for (number, mtu) in [1500, 1400, 9000].into_iter().enumerate() {
            accept.set_card(&card_facts(mtu)).unwrap();
            let from = at(v6, 11, 40_000 + number as u16);
            let answer = world.client.run(move || {
                let client = Bare::new(from, to);
                client.send(Segment { seq: 999, flags: SYN, ..client.template.clone() });
                client.receive(|segment| segment.from == to && segment.to == from)
            });
            assert_eq!(answer.options[..4], segment_size(mtu - if v6 { 60 } else { 40 }));
        }
    }
}

fn segment_size(bytes: u16) -> Vec<u8> {
    [&[2, 4], &bytes.to_be_bytes()[..]].concat()
}

#[test]
fn segment_size_never_exceeds_the_clients_offer() {
    if !privileged() {
        return;
    }
    for (v6, takes) in [
        (false, 88),
        (false, 256),
        (false, 535),
        (false, 536),
        (false, 1219),
        (true, 536),
        (true, 1219),
        (true, 1300),
    ] {
        let world = with_cookies([CookieKey([5, 6]); 2]);
        // Segments are on the wire as they leave the socket.
        world.nodes[0].namespace.ip("link set eth0 gso_max_segs 1").unwrap();
        let (to, listener) = meets_bare(&world, v6);
        let from = at(v6, 11, 40_000);
        let client = world.client.run(move || {
            let client = Bare::new(from, to);
            let ack = client.connect(takes);
            client.send(Segment {
                seq: 1000,
                ack,
                window: 20_000,
                data: b"hello".to_vec(),
                ..client.template.clone()
            });
            client
        });
        let (mut socket, _) = accept(&listener);
        let bytes = 5 * usize::from(takes);
        socket.write_all(&vec![7; bytes]).unwrap();
        let mut got = 0;
        while got < bytes {
            let size = client.receive(|segment| segment.to == from && !segment.data.is_empty()).data.len();
            assert!(size <= usize::from(takes), "IPv6 {v6}: {size} bytes, of {takes}");
            got += size;
        }
    }
}

#[test]
fn flood_of_small_segment_clients_takes_one_slot_of_a_bucket() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        let world = with_cookies([CookieKey([5, 6]); 2]);
        let (to, listener) = meets_bare(&world, v6);
        let gate = &world.nodes[0].gate;
        let flow = |port: u16| Flow::new(to, at(v6, 11, port));
        let bucket = gate.bucket(&flow(10_000));
        let of_it: Vec<u16> =
            (10_000..65_000).filter(|port| gate.bucket(&flow(*port)) == bucket).take(20).collect();
        let flood = |ports: &[u16], takes| {
            let ports = ports.to_vec();
            world.client.run(move || {
                let (client, mut last) = (Bare::new(at(v6, 11, 0), to), 0);
                for port in ports {
                    let from = at(v6, 11, port);
                    client.send(Segment {
                        from,
                        flags: SYN,
                        options: segment_size(takes),
                        ..client.template.clone()
                    });
                    last = client.receive(|segment| segment.to == from && segment.flags == SYN | ACK).seq;
                }
                (client, last)
            })
        };
        flood(&of_it[..10], 87);
        assert_eq!(
            (gate.slots_in_use(), count(&world, 0, Counter::CookieSent)),
            (0, 10),
            "no client has a slot"
        );
        // While the bucket moves our kernel answers no SYN: its clients retry.
        gate.owners().close(bucket, node(1));
        let from = at(v6, 11, of_it[0]);
        world.client.run(move || {
            let client = Bare::new(from, to);
            client.send(Segment { flags: SYN, options: segment_size(256), ..client.template.clone() });
        });
        assert_eq!((gate.slots_in_use(), count(&world, 0, Counter::CookieSent)), (0, 10));
        gate.owners().set(bucket, Owner::new(node(1), &[]).unwrap());
        let (client, last) = flood(&of_it[10..], 256);
        assert_eq!((gate.slots_in_use(), count(&world, 0, Counter::CookieSent)), (1, 19));
        // The others are served as well as cookies can.
        let from = at(v6, 11, of_it[19]);
        let hello =
            Segment { from, seq: 1, ack: last.wrapping_add(1), data: vec![7; 5], ..client.template.clone() };
        client.send(hello);
        assert_eq!(accept(&listener).1, from);
    }
}

/// A connection that our kernel refuses leaves nothing behind.
#[test]
fn refused_connection_keeps_no_slot() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        let world = with_cookies([CookieKey([5, 6]); 2]);
        let to = SocketAddr::new(vip(v6), PORT);
        let listener = world.nodes[0].namespace.run(move || TcpListener::bind(to).unwrap());
        listener.set_nonblocking(true).unwrap();
        let mut before = world.client.run(move || TcpStream::connect(to).unwrap());
        before.write_all(b"x").unwrap();
        let _before = accept(&listener);
        let known = world.nodes[0].gate.slots_in_use();
        // Agreed to when it was loaded, and switched off since.
        world.nodes[0].namespace.sysctl("net.ipv4.tcp_sack", "0").unwrap();
        let sent = count(&world, 0, Counter::CookieSent);
        let mut client = world.client.run(move || TcpStream::connect(to).unwrap());
        client.write_all(b"x").unwrap();
        assert!(count(&world, 0, Counter::CookieSent) > sent);
        client.set_read_timeout(Some(Duration::from_millis(500))).unwrap(); // its data has arrived by then
        assert!(client.read(&mut [0]).is_err(), "no socket answers");
        assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        assert_eq!(world.nodes[0].gate.slots_in_use(), known, "IPv6 {v6}");
    }
}

/// From a listener that does not block, so that a connection that never comes ends the test.
pub(crate) fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    let mut accepted = None;
    eventually("it is accepted", || {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    accepted.unwrap()
}

#[test]
fn syns_that_carry_data_hold_no_state() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        let world = with_cookies([CookieKey([5, 6]); 2]);
        let to = SocketAddr::new(vip(v6), PORT);
        let listener = world.nodes[0].namespace.run(move || TcpListener::bind(to).unwrap());
        let connect = || world.client.run(move || TcpStream::connect(to).unwrap());
        let (_before, _accepted) = (connect(), listener.accept().unwrap()); // neighbours may have to be found first
        let known = world.nodes[0].gate.slots_in_use();
        assert_eq!(count(&world, 0, Counter::SynData), 0);
        world.client.run(move || {
            let wire = Wire::of("eth0");
            let syn = Segment { flags: SYN, data: vec![7], ..Segment::new(at(v6, 10, 0), to) };
            let of =
                |port| Segment { to_mac: mac(1), from_mac: mac(10), from: at(v6, 10, port), ..syn.clone() };
            (10_000..11_000).for_each(|port| wire.send(&of(port)));
        });
        assert_eq!(world.nodes[0].gate.slots_in_use(), known, "IPv6 {v6}");
        let (_after, _accepted) = (connect(), listener.accept().unwrap());
        assert_eq!(world.nodes[0].gate.slots_in_use(), known + 1);
        assert!(count(&world, 0, Counter::SynData) > 0);
    }
}

/// The end that closes first keeps the flow for a minute (TIME_WAIT). Its client may connect from the same port again.
#[test]
fn client_reconnects_from_the_port_of_a_closed_connection() {
    if !privileged() {
        return;
    }
    for (v6, timestamps) in [(false, "1"), (true, "1"), (false, "0")] {
        let world = with_cookies([CookieKey([5, 6]); 2]);
        world.client.sysctl("net.ipv4.tcp_timestamps", timestamps).unwrap();
        let (to, from) = (SocketAddr::new(vip(v6), PORT), at(v6, 10, 50_000));
        let listener = world.nodes[0].namespace.run(move || TcpListener::bind(to).unwrap());
        listener.set_nonblocking(true).unwrap();
        let gate = world.nodes[0].gate.clone();
        let mut worker_port =
            world.nodes[0].namespace.run(move || gate.worker_port(WorkerPortId::new(0).unwrap()).unwrap());
        let mut from_cookies = Vec::new();
        for data in [b"first", b"again"] {
            let mut client = world.client.run(move || {
                let socket = evergate_sys::connect_from(from.ip(), from.port()..=from.port(), to).unwrap();
                TcpStream::from(socket)
            });
            client.set_nonblocking(false).unwrap();
            client.write_all(data).unwrap();
            let (mut accepted, peer) = accept(&listener);
            assert_eq!(peer, from);
            let slot = worker_port.slot(&Flow::new(to, from)).expect("gated before any data");
            slot.open();
            accepted.set_nonblocking(false).unwrap();
            let mut got = [0; 5];
            accepted.read_exact(&mut got).unwrap();
            assert_eq!(&got, data);
            accepted.shutdown(Shutdown::Write).unwrap();
            assert_eq!(client.read(&mut got).unwrap(), 0);
            drop(client);
            assert_eq!(accepted.read(&mut got).unwrap(), 0);
            worker_port.finish(slot, None, Leases::now_ns());
            from_cookies.push(count(&world, 0, Counter::CookieAccepted));
        }
        assert!(from_cookies[0] > 0, "the first is from a cookie, IPv6 {v6}");
        assert_eq!(from_cookies[1], from_cookies[0], "the second is the kernel's, IPv6 {v6}");
    }
}
