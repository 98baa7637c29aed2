//! What our kernel measures of the path of a connection that is accepted from a cookie.

use crate::cookies::{Bare, accept, count, load, meets_bare, with_cookies};
use crate::frame::{SYN, Segment};
use crate::moved_cookies::moved;
use crate::path::{FarClient, Measured};
use crate::stream::{read_all, write_all};
use crate::world::{PORT, World, at, privileged, vip};
use evergate_bpf::{CookieKey, Counter, Flow, Leases, Mode, WorkerPortId};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

const KEYS: [CookieKey; 2] = [CookieKey([5, 6]); 2];
const BYTES: u64 = 256 << 10;
/// More than a busy machine adds to a path, and a second for a neighbour that does not answer the first question.
const LATE: Duration = Duration::from_millis(2500);

#[test]
fn cookie_connection_starts_with_round_trip_of_its_path() {
    if !privileged() {
        return;
    }
    for (mode, v6, round_trip_ms, timestamps) in [
        (Mode::Steer, false, 60, "1"),
        (Mode::Steer, true, 60, "1"),
        (Mode::Steer, false, 300, "1"),
        (Mode::Steer, true, 300, "1"),
        (Mode::Flood, false, 60, "1"),
        (Mode::Steer, false, 60, "0"),
        (Mode::Steer, true, 300, "0"),
    ] {
        let what = format!("{mode:?}, IPv6 {v6}, {round_trip_ms} ms, timestamps {timestamps}");
        let round_trip = Duration::from_millis(round_trip_ms);
        let world = World::new(mode);
        load(&world, KEYS, [None; 2]);
        let far = FarClient::behind(&world, round_trip);
        far.host.sysctl("net.ipv4.tcp_timestamps", timestamps).unwrap();
        let (first, last) = download(&world, &far, v6);
        if timestamps == "1" {
            let (smoothed, least) = first.round_trip.expect("the handshake is a sample");
            assert!(least >= round_trip && smoothed < round_trip + LATE, "{what}: {first:?}");
        } else {
            assert_eq!(first.round_trip, None, "{what}: a SYN-ACK without state has no time");
        }
        let (_, least) = last.round_trip.expect("data is a sample");
        assert!(least >= round_trip, "{what}: {last:?}");
        assert_eq!(last.resent, 0, "{what}: nothing is lost, {last:?}");
        assert!(count(&world, 0, Counter::CookieAccepted) > 0, "{what}");
    }
}

/// Node 1 accepts a connection and sends some hundred segments. What it has measured at the start and at the end.
fn download(world: &World, far: &FarClient, v6: bool) -> (Measured, Measured) {
    let to = SocketAddr::new(vip(v6), PORT);
    let listener = world.nodes[0].namespace.run(move || TcpListener::bind(to).unwrap());
    listener.set_nonblocking(true).unwrap();
    let gate = world.nodes[0].gate.clone();
    let mut worker_port =
        world.nodes[0].namespace.run(move || gate.worker_port(WorkerPortId::new(0).unwrap()).unwrap());
    let client = far.host.spawn(move || {
        let socket = TcpStream::connect(to).unwrap();
        read_all(&socket, 1, BYTES);
    });
    let (socket, from) = accept(&listener);
    let slot = worker_port.slot(&Flow::new(to, from)).expect("gated from the start");
    slot.open();
    let first = Measured::of(&socket);
    socket.set_nonblocking(false).unwrap();
    write_all(&socket, 1, BYTES);
    socket.shutdown(Shutdown::Write).unwrap();
    client.join().unwrap();
    let last = Measured::of(&socket);
    worker_port.finish(slot, None, Leases::now_ns());
    (first, last)
}

/// Nodes have clocks of their own, so the age of another node's SYN-ACK is unknown.
#[test]
fn cookie_of_another_node_gives_no_round_trip() {
    if !privileged() {
        return;
    }
    for v6 in [false, true] {
        let (world, listener, mut client) = moved(KEYS, v6);
        let (mut socket, _) = listener.accept().unwrap();
        assert_eq!(Measured::of(&socket).round_trip, None, "IPv6 {v6}");
        let mut hello = [0; 5];
        socket.read_exact(&mut hello).unwrap();
        assert_eq!(&hello, b"hello");
        socket.write_all(b"welcome").unwrap();
        let mut welcome = [0; 7];
        client.read_exact(&mut welcome).unwrap();
        assert_eq!(&welcome, b"welcome", "IPv6 {v6}: the client takes this node's timestamps");
        assert!(count(&world, 1, Counter::CookieAccepted) > 0, "IPv6 {v6}");
    }
}

/// The echo of a client that answers late, or invents it, is no round trip. Options need not be aligned.
#[test]
fn echoed_timestamp_is_a_round_trip_up_to_three_seconds() {
    if !privileged() {
        return;
    }
    let layouts: [(&[u8], &[u8]); 5] =
        [(&[1, 1], &[]), (&[], &[0, 0]), (&[1], &[1]), (&[254, 4, 7, 7], &[1, 1]), (&[1; 30], &[])];
    for v6 in [false, true] {
        let world = with_cookies(KEYS);
        let (to, listener) = meets_bare(&world, v6);
        let cases =
            [-5000, 0, 1500, 3500].into_iter().flat_map(|age_ms| layouts.map(|layout| (age_ms, layout)));
        for (number, (age_ms, (before, after))) in cases.enumerate() {
            let what = format!("IPv6 {v6}, {age_ms} ms, {before:?}");
            let from = at(v6, 11, 40_000 + number as u16);
            let stamps = move |echo: u32| {
                let stamp = [&[8, 10], &7000u32.to_be_bytes()[..], &echo.to_be_bytes()].concat();
                [before, &stamp, after].concat()
            };
            let (client, echo) = world.client.run(move || {
                let client = Bare::new(from, to);
                client.send(Segment {
                    seq: 999,
                    ack: 0,
                    flags: SYN,
                    options: stamps(0),
                    ..client.template.clone()
                });
                let answer = client.receive(|segment| segment.from == to && segment.to == from);
                let stamp = u32::from_be_bytes(answer.options[8..12].try_into().unwrap());
                let echo = stamp.wrapping_add_signed(-age_ms);
                let (ack, options) = (answer.seq.wrapping_add(1), stamps(echo));
                let data = b"hello".to_vec();
                client.send(Segment { seq: 1000, ack, options, data, ..client.template.clone() });
                (client, echo)
            });
            let (mut socket, _) = accept(&listener);
            let measured = Measured::of(&socket).round_trip;
            match u64::try_from(age_ms) {
                Ok(age_ms @ ..3000) => {
                    let (age, least) = (Duration::from_millis(age_ms), measured.expect(&what).1);
                    assert!(least >= age && least < age + LATE, "{what}: {least:?}");
                }
                _ => assert_eq!(measured, None, "{what}"),
            }
            socket.write_all(b"welcome").unwrap();
            let reply = client.receive(|segment| segment.to == from && !segment.data.is_empty());
            let own = u32::from_be_bytes(reply.options[4..8].try_into().unwrap());
            let ahead = own.wrapping_sub(echo);
            assert!(ahead < 5000, "{what}: our timestamp is {ahead} ms ahead of the one that the client has");
        }
    }
}
