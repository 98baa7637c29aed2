//! Connections whose first segment reaches another node than the one that answered their SYN.

use crate::cookies::{Bare, accept, count, meets_bare, with_cookies, with_cookies_in};
use crate::frame::{RST, Segment};
use crate::world::{PORT, World, at, eventually, node, privileged, vip};
use evergate_base::Bucket;
use evergate_bpf::{CookieKey, Counter, Flow, Leases, Owner, Strange, WorkerPortId};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// A handshake whose SYN was answered by node 1, which has no listener, and whose owner then is node 2.
pub(crate) fn moved(keys: [CookieKey; 2], v6: bool) -> (World, TcpListener, TcpStream) {
    moved_in(with_cookies(keys), v6)
}

/// The bucket whose owner answers for the address.
fn designated() -> Bucket {
    Bucket(0)
}

/// A connection in any bucket but the designated one, which does not move.
fn connect_to(world: &World, to: SocketAddr) -> TcpStream {
    loop {
        let client = world.client.run(move || TcpStream::connect(to).unwrap());
        let flow = Flow::new(to, client.local_addr().unwrap());
        if world.nodes[0].gate.bucket(&flow) != designated() {
            return client;
        }
    }
}

fn moved_in(world: World, v6: bool) -> (World, TcpListener, TcpStream) {
    let to = SocketAddr::new(vip(v6), PORT);
    let listener = world.nodes[1].namespace.run(move || TcpListener::bind(to).unwrap());
    let mut client = connect_to(&world, to);
    assert!(count(&world, 0, Counter::CookieSent) > 0); // neighbours may have to be found first
    for node_of in &world.nodes {
        node_of.gate.owners().set_all(Owner::new(node(2), &[]).unwrap());
    }
    // Node 1 still has the address: it passes packets on.
    world.nodes[0].gate.owners().set(designated(), Owner::new(node(1), &[]).unwrap());
    client.write_all(b"hello").unwrap();
    (world, listener, client)
}

#[test]
fn a_cookie_of_one_node_is_accepted_by_another() {
    if !privileged() {
        return;
    }
    let (world, listener, _client) = moved([CookieKey([5, 6]); 2], false);
    let (mut socket, _) = listener.accept().unwrap();
    let mut got = [0; 5];
    socket.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"hello");
    assert!(count(&world, 1, Counter::CookieAccepted) > 0);
    assert_eq!(count(&world, 0, Counter::CookieAccepted), 0);
    assert_eq!(world.nodes[1].gate.slots_in_use(), 1);
    assert_eq!(world.nodes[0].gate.slots_in_use(), 0, "answering a SYN keeps no state");
}

/// A client whose handshake was answered by node 1. Its ACK and `data` were lost there; its owner now is node 2.
fn moved_with_lost_data(v6: bool, data: &[u8]) -> (World, TcpListener, TcpStream) {
    let world = with_cookies([CookieKey([5, 6]); 2]);
    let to = SocketAddr::new(vip(v6), PORT);
    let listener = world.nodes[1].namespace.run(move || TcpListener::bind(to).unwrap());
    listener.set_nonblocking(true).unwrap();
    let mut client = connect_to(&world, to);
    client.set_nodelay(true).unwrap();
    client.write_all(data).unwrap(); // to node 1, which has no listener
    for node_of in &world.nodes {
        node_of.gate.set_reset_unknown(true).unwrap();
        node_of.gate.owners().set_all(Owner::new(node(2), &[]).unwrap());
    }
    world.nodes[0].gate.owners().set(designated(), Owner::new(node(1), &[]).unwrap());
    (world, listener, client)
}

/// The acknowledgement of a connected client shows whether a cookie answered its SYN.
#[test]
fn cookie_is_recognised_by_every_node_with_its_key() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        let (world, listener, client) = moved_with_lost_data(v6, b"first");
        let (_socket, _) = accept(&listener);
        let flow = Flow::new(SocketAddr::new(vip(v6), PORT), client.local_addr().unwrap());
        let gate = world.nodes[1].gate.clone();
        let mut worker_port =
            world.nodes[1].namespace.run(move || gate.worker_port(WorkerPortId::new(0).unwrap()).unwrap());
        let slot = worker_port.slot(&flow).unwrap();
        let origin = slot.origin();
        let first = Strange { seq: origin.received, ack: origin.sent };
        let knows =
            |flow: &Flow, came| world.nodes.each_ref().map(|node| node.gate.has_answered_syn(flow, came));
        assert_eq!(knows(&flow, first), [true; 2], "IPv6 {v6}");
        for by in 1..=4096 {
            let others = [
                Strange { seq: first.seq.wrapping_add(by), ..first },
                Strange { seq: first.seq.wrapping_sub(by), ..first },
                Strange { ack: first.ack ^ by << 19, ..first },
            ];
            assert_eq!(others.map(|came| knows(&flow, came)[0]), [false; 3], "IPv6 {v6}, {by}");
        }
        let other = Flow::new(flow.local, SocketAddr::new(flow.remote.ip(), flow.remote.port() ^ 1));
        assert!(!knows(&other, first)[0], "one in five million");
        worker_port.finish(slot, None, Leases::now_ns());
    }
}

/// The ACK of the handshake and the first segment are lost, so a later one comes first.
#[test]
fn a_later_segment_that_comes_first_does_not_end_the_connection() {
    if !privileged() {
        return;
    }
    let (world, listener, mut client) = moved_with_lost_data(false, b"first");
    client.write_all(b" second").unwrap();
    let (mut socket, _) = accept(&listener);
    let mut got = [0; 12];
    socket.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"first second");
    assert!(count(&world, 1, Counter::CookieAccepted) > 0);
}

/// A connection never begins in the middle of its client's stream. Whatever segment of a window comes first, the client
/// is not reset either.
#[test]
fn no_later_segment_of_a_window_is_taken_for_the_first() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        let world = with_cookies([CookieKey([5, 6]); 2]);
        let (to, listener) = meets_bare(&world, v6);
        let from = at(v6, 11, 40_000);
        let (client, first) = world.client.run(move || {
            let client = Bare::new(from, to);
            let ack = client.connect(1400);
            let first = Segment {
                seq: 1000,
                ack,
                window: 20_000,
                data: b"first".to_vec(),
                ..client.template.clone()
            };
            (client, first)
        });
        for by in 1..=65_535 {
            client.send(Segment { seq: first.seq + by, ..first.clone() });
            if by % 257 == 0 {
                let judged =
                    || count(&world, 0, Counter::CookieWrong) + count(&world, 0, Counter::CookieAccepted);
                eventually("all of them are judged", || judged() >= u64::from(by));
            }
        }
        assert_eq!(count(&world, 0, Counter::CookieAccepted), 0, "IPv6 {v6}");
        client.send(first.clone());
        let (mut socket, _) = accept(&listener);
        let mut got = [0; 5];
        socket.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"first");
        socket.write_all(b"bye").unwrap();
        let reply = client
            .receive(|segment| segment.to == from && (segment.flags & RST != 0 || !segment.data.is_empty()));
        assert_eq!(reply.data, b"bye", "IPv6 {v6}: it was reset");
    }
}

/// A SYN-ACK that came twice is acknowledged once more. That ACK overtakes the data that the client has sent meanwhile.
#[test]
fn ack_that_overtakes_the_first_segment_is_harmless() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        let world = with_cookies([CookieKey([5, 6]); 2]);
        let (to, listener) = meets_bare(&world, v6);
        world.nodes[0].gate.set_reset_unknown(true).unwrap();
        let from = at(v6, 11, 40_000);
        let client = world.client.run(move || {
            let client = Bare::new(from, to);
            let ack = client.connect(1400);
            client.send(Segment { seq: 1005, ack, window: 20_000, ..client.template.clone() });
            let first = Segment { seq: 1000, ack, window: 20_000, ..client.template.clone() };
            client.send(Segment { data: b"hello".to_vec(), ..first });
            client
        });
        let (mut socket, _) = accept(&listener);
        socket.read_exact(&mut [0; 5]).unwrap();
        socket.write_all(b"bye").unwrap();
        let reply = client
            .receive(|segment| segment.to == from && (segment.flags & RST != 0 || !segment.data.is_empty()));
        assert_eq!(reply.data, b"bye", "IPv6 {v6}: it was reset");
    }
}

/// What a socket has to send waits for its end, and leaves with it.
fn cork(socket: &TcpStream) {
    let on = 1i32;
    let value = (&raw const on).cast();
    // SAFETY: pointer and length describe the integer.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CORK, value, 4) };
    assert_eq!(result, 0);
}

#[test]
fn an_end_that_comes_first_does_not_reset_the_client() {
    if !privileged() {
        return;
    }
    for (v6, lost, last) in [
        (false, "", ""),
        (false, "", "last"),
        (false, "first ", ""),
        (true, "", ""),
        (true, "first ", "last"),
    ] {
        let (world, listener, mut client) = moved_with_lost_data(v6, lost.as_bytes());
        cork(&client);
        client.write_all(last.as_bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let (mut socket, _) = accept(&listener);
        let mut got = String::new();
        socket.read_to_string(&mut got).unwrap();
        assert_eq!(got, format!("{lost}{last}"));
        socket.write_all(b"bye").unwrap();
        client.read_exact(&mut [0; 3]).expect("it was not reset");
        assert!(count(&world, 1, Counter::CookieAccepted) > 0, "IPv6 {v6}");
    }
}

#[test]
fn a_cookie_of_another_cluster_is_worth_nothing() {
    if !privileged() {
        return;
    }
    let (world, listener, _client) = moved([CookieKey([5, 6]), CookieKey([5, 7])], false);
    eventually("node 2 has looked at it", || count(&world, 1, Counter::CookieWrong) > 0);
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(world.nodes[1].gate.slots_in_use(), 0);
}

/// An epoch is 68.7 s, by each node's own clock. A client whose cookie is refused receives RST as soon as unknown
/// connections are answered, so it does not wait for ever.
#[test]
fn cookie_is_valid_one_epoch_around_and_reset_beyond() {
    if !privileged() {
        return;
    }
    for (v6, ahead) in
        [(false, -2), (false, -1), (true, 0), (false, 1), (true, 1), (false, 2), (true, -2), (false, 3)]
    {
        let epoch = [500_u32, 500_u32.saturating_add_signed(ahead)].map(NonZeroU32::new);
        let world = with_cookies_in([CookieKey([5, 6]); 2], epoch);
        for node_of in &world.nodes {
            node_of.gate.set_reset_unknown(true).unwrap();
        }
        let (world, listener, mut client) = moved_in(world, v6);
        listener.set_nonblocking(true).unwrap();
        let mut got = [0; 5];
        if (-1..=1).contains(&ahead) {
            let (mut socket, _) = accept(&listener);
            socket.set_nonblocking(false).unwrap();
            socket.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"hello", "{ahead} epochs ahead");
            assert!(count(&world, 1, Counter::CookieAccepted) > 0);
        } else {
            client.set_read_timeout(Some(Duration::from_secs(10))).unwrap(); // only ends a hang
            let error = loop {
                let error = client.read(&mut got).unwrap_err();
                if error.kind() != std::io::ErrorKind::Interrupted {
                    break error; // a wait with a limit ends when the machine stands still
                }
            };
            let counted = Counter::ALL.map(|of| (of, count(&world, 0, of), count(&world, 1, of)));
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{ahead} ahead: {counted:?}");
            assert!(count(&world, 1, Counter::CookieWrong) > 0);
            assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
            assert_eq!(world.nodes[1].gate.slots_in_use(), 0);
        }
    }
}
