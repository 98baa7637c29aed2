//! Loss notices: a peer that sent to a failed node learns of the loss without waiting for its timer.

use crate::sockets::sequences;
use crate::world::privileged;
use evergate_netns::Namespace;
use evergate_sys::{Loss, Prober, TcpParams};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

const NODE: &str = "02:00:00:00:00:02";
/// No card has this address: frames to it get lost.
const NONE: &str = "02:00:00:00:00:03";
const WINDOW: u32 = 32_768;
/// What a congestion window takes at the beginning, less some.
const SEGMENTS: usize = 8;

/// A peer whose kernel neither probes for losses nor has a timer that fires within this test, and a node.
fn pair(v6: bool, timestamps: bool) -> (Namespace, Namespace, SocketAddr) {
    timed_pair(v6, timestamps, "60s")
}

/// The same with a timer that fires after this time.
fn timed_pair(v6: bool, timestamps: bool, timer: &str) -> (Namespace, Namespace, SocketAddr) {
    let (peer, node) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    peer.connect("eth0", "02:00:00:00:00:01", &node, "eth0").unwrap();
    node.ip(&format!("link set eth0 address {NODE}")).unwrap();
    let ends = if v6 { ["fd77::1", "fd77::2"] } else { ["10.77.0.1", "10.77.0.2"] };
    let (net, length, last) = if v6 { ("fd77::/64", 64, " nodad") } else { ("10.77.0.0/24", 24, "") };
    let macs = ["02:00:00:00:00:01", NODE];
    for (at, namespace) in [&peer, &node].into_iter().enumerate() {
        namespace.ip(&format!("addr add {}/{length} dev eth0{last}", ends[at])).unwrap();
        let (other, mac) = (ends[1 - at], macs[1 - at]);
        namespace.ip(&format!("neigh replace {other} lladdr {mac} dev eth0 nud permanent")).unwrap();
        namespace.sysctl("net.ipv4.tcp_timestamps", if timestamps { "1" } else { "0" }).unwrap();
    }
    peer.sysctl("net.ipv4.tcp_early_retrans", "0").unwrap();
    // In place of the kernel's own route, whose metric with IPv6 is 256.
    let metric = if v6 { " metric 256" } else { "" };
    peer.ip(&format!("route replace {net} dev eth0{metric} rto_min {timer}")).unwrap();
    (peer, node, SocketAddr::new(ends[1].parse().unwrap(), 7000))
}

/// A counter of the namespace's TCP.
fn counted(namespace: &Namespace, name: &str) -> u64 {
    let name = name.to_owned();
    namespace.run(move || {
        let text = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
        let [names, values] = &lines[..2] else { panic!("{text}") };
        values[names.iter().position(|it| *it == name).expect("a counter of this name")].parse().unwrap()
    })
}

/// What the peer sends to the node goes to this card.
fn send_to(peer: &Namespace, node: SocketAddr, mac: &str) {
    peer.ip(&format!("neigh replace {} lladdr {mac} dev eth0 nud permanent", node.ip())).unwrap();
}

/// Bytes that were sent to a missing card, and their place in the peer's stream.
struct Lost {
    bytes: Vec<u8>,
    loss: Loss,
}

fn lose(client: &mut TcpStream, socket: &TcpStream, facts: &TcpParams) -> Lost {
    let payload = usize::from(facts.mss) - if facts.stamp.is_some() { 12 } else { 0 };
    let bytes: Vec<u8> = (0..SEGMENTS * payload).map(|at| (at % 251) as u8).collect();
    client.write_all(&bytes).unwrap();
    let [receive, send] = sequences(socket);
    let [_, until] = sequences(client); // the end of the written bytes: the congestion window lets all of them out
    assert_eq!(until.wrapping_sub(receive) as usize, bytes.len());
    Lost { bytes, loss: Loss { send, receive, until, window: WINDOW, timestamps: None } }
}

fn send_notice(node: &Namespace, socket: &TcpStream, facts: TcpParams, loss: Loss, before: u32) {
    let own = evergate_sys::timestamp(socket.as_raw_fd()).ok().filter(|_| facts.stamp.is_some());
    let loss = Loss { timestamps: own.map(|own| (own, 0)), ..loss };
    assert!(node.run(move || Prober::new().unwrap().notify_loss(&facts, &loss, before)).unwrap());
}

fn live(peer: &Namespace, node: &Namespace, to: SocketAddr) -> (TcpStream, TcpStream, TcpParams) {
    let listener = node.run(move || TcpListener::bind(to).unwrap());
    let mut client = peer.run(move || TcpStream::connect(to).unwrap());
    let (mut socket, _) = listener.accept().unwrap();
    client.write_all(&[1; 100]).unwrap();
    socket.read_exact(&mut [0; 100]).unwrap();
    socket.write_all(&[2; 50]).unwrap();
    client.read_exact(&mut [0; 50]).unwrap();
    let facts = evergate_sys::tcp_params(socket.as_raw_fd(), 0).unwrap();
    (client, socket, facts)
}

#[test]
fn lost_segments_come_again_without_a_timer() {
    if !privileged() {
        return;
    }
    for (v6, timestamps) in [(false, true), (false, false), (true, true), (true, false)] {
        let (peer, node, to) = pair(v6, timestamps);
        let (mut client, mut socket, facts) = live(&peer, &node, to);
        assert_eq!(facts.stamp.is_some(), timestamps);
        send_to(&peer, to, NONE);
        let Lost { bytes: lost, loss } = lose(&mut client, &socket, &facts);
        send_to(&peer, to, NODE);
        send_notice(&node, &socket, facts, loss, 0);
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut got = vec![0; lost.len()];
        socket.read_exact(&mut got).unwrap();
        assert!(got == lost);
        let counters = ["TCPSackRecovery", "TCPSACKReneging", "TCPLossProbes"];
        assert_eq!(counters.map(|name| counted(&peer, name)), [1, 1, 0], "v6: {v6}, {timestamps}");
        // The connection continues as before.
        client.write_all(&lost).unwrap();
        socket.read_exact(&mut got).unwrap();
        assert!(got == lost);
    }
}

/// A client that reads seldom: its retransmissions go to the missing card as well.
#[test]
fn segments_lost_twice_come_again_when_more_is_reported() {
    if !privileged() {
        return;
    }
    for (v6, timestamps) in [(false, true), (false, false), (true, true)] {
        let (peer, node, to) = pair(v6, timestamps);
        let (mut client, mut socket, facts) = live(&peer, &node, to);
        send_to(&peer, to, NONE);
        let Lost { bytes, loss } = lose(&mut client, &socket, &facts);
        send_notice(&node, &socket, facts, loss, 0);
        let logged_at = Instant::now();
        while counted(&peer, "TCPSackRecovery") == 0 {
            assert!(logged_at.elapsed() < Duration::from_secs(10), "it retransmits to the missing card");
            std::thread::sleep(Duration::from_millis(1));
        }
        send_to(&peer, to, NODE);
        let mut got = vec![0; bytes.len()];
        let (mut taken, mut after) = (0, Vec::new());
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        for before in [0, 1, 2, 3] {
            if taken == 0 {
                send_notice(&node, &socket, facts, loss, before);
            }
            while let Ok(count @ 1..) = socket.read(&mut got[taken..]) {
                taken += count;
            }
            after.push(taken);
        }
        assert_eq!(after[0], 0, "the same notice has no effect");
        assert!(taken == bytes.len() && got == bytes, "v6: {v6}, {timestamps}: {after:?}");
    }
}

/// A slow client: the peer's timer has fired before the loss notice comes. F-RTO takes the notice as proof that nothing
/// was lost. The peer would then repeat the segment of its timeout only at its next timeout, 4 s later. The notice also
/// acknowledges that segment, so the peer retransmits the later ones.
#[test]
fn server_retransmits_after_ack_of_its_first_segment_with_frto() {
    if !privileged() {
        return;
    }
    for (v6, acknowledged_before) in [(false, false), (false, true), (true, false), (true, true)] {
        let (peer, node, to) = timed_pair(v6, true, "2s");
        peer.sysctl("net.ipv4.tcp_frto", "2").unwrap();
        let (mut client, mut socket, facts) = live(&peer, &node, to);
        let (from, payload) = (client.local_addr().unwrap(), usize::from(facts.mss) - 12);
        // One segment arrives, and its acknowledgement does not leave.
        let hold = |mac: &str| {
            node.ip(&format!("neigh replace {} lladdr {mac} dev eth0 nud permanent", from.ip())).unwrap();
        };
        hold(NONE);
        client.write_all(&vec![3; payload]).unwrap();
        socket.read_exact(&mut vec![0; payload]).unwrap();
        send_to(&peer, to, NONE);
        let bytes: Vec<u8> = (0..SEGMENTS * payload).map(|at| (at % 251) as u8).collect();
        client.write_all(&bytes).unwrap();
        let ([receive, send], [_, until]) = (sequences(&socket), sequences(&client));
        let loss = Loss { send, receive, until, window: WINDOW, timestamps: None };
        let since = Instant::now();
        while counted(&peer, "TCPTimeouts") == 0 {
            assert!(since.elapsed() < Duration::from_secs(20), "its timer fires");
            std::thread::sleep(Duration::from_millis(1));
        }
        send_to(&peer, to, NODE);
        hold("02:00:00:00:00:01");
        let mut loss = loss;
        if acknowledged_before {
            socket.write_all(b"x").unwrap();
            client.read_exact(&mut [0]).unwrap();
            loss.send = loss.send.wrapping_add(1);
        }
        send_notice(&node, &socket, facts, loss, 0);
        let mut got = vec![0; bytes.len()];
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        socket.read_exact(&mut got).unwrap();
        assert!(got == bytes);
        // The segment that was reported and that no node had comes with a timer of its own, of 10 ms.
        let timers = ["TCPTimeouts", "TCPSACKReneging"].map(|name| counted(&peer, name));
        assert_eq!(timers, [2, 1], "v6: {v6}, {acknowledged_before}");
    }
}
