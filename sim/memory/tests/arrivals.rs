//! Connections that begin with a PROXY header: segmentation, refusals, time, and what backups and the gate know.

mod support;

use evergate_base::{Micros, net::Network};
use evergate_connection::Timeouts;
use evergate_membership::{MemberSet, OwnershipStart};
use evergate_memory_host::{BACKUP, MemoryHost, Options, Peer, Process, generation};
use evergate_proxy_protocol::{Endpoints, Extras, encode_v1, encode_v2};
use evergate_replication::{Entry, Frame};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use support::{client, local, pool_options, snapshot};

/// The client behind the proxy, and the address that it connected to.
const SOURCE: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 9)), 5555);
const SERVED: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 80)), 443);

fn headers() -> [Vec<u8>; 2] {
    let (mut text, mut binary) = (Vec::new(), Vec::new());
    let ends = Endpoints::new(SOURCE, SERVED);
    encode_v1(Some(&ends), &mut text);
    encode_v2(Some(&ends), &Extras { checksum: true, ..Extras::default() }, &mut binary).unwrap();
    [text, binary]
}

/// A worker whose listener trusts this network.
fn process(host: &MemoryHost, trusted: &str, movable: Vec<IpAddr>) -> Process {
    let trusted: Network = trusted.parse().unwrap();
    let generation = generation(&Arc::new(snapshot(Some(vec![trusted]))), &pool_options());
    let options = Options { connections_max: 100, buffered_max: 1 << 20, movable };
    let clustered = !options.movable.is_empty();
    let mut process = Process::new(host.clone(), &generation, &options);
    if clustered {
        process.own(OwnershipStart::Empty, MemberSet::of(BACKUP));
    }
    process
}

fn reasons(process: &Process) -> Vec<(&'static str, u64)> {
    let counters = process.worker.counters();
    let reasons = counters.reasons.lock().unwrap();
    reasons.iter().map(|(reason, count)| (*reason, *count)).collect()
}

fn is_reset(peer: &Peer) -> bool {
    peer.closing() == Some(evergate_memory_host::Closing::Reset)
}

#[test]
fn header_in_any_segmentation_names_the_client() {
    for header in headers() {
        for step in [1, 2, 7, 1000] {
            let host = MemoryHost::default();
            let mut process = process(&host, "192.0.2.0/24", Vec::new());
            let peer = process.arrive(0, local(), client());
            for piece in [&header[..], b"ping"].concat().chunks(step) {
                assert!(host.servers().is_empty() || peer.read_len() >= header.len() as u64);
                peer.send(piece);
                assert!(process.run());
            }
            let server = host.servers().pop().unwrap();
            assert_eq!(server.written(), b"ping", "step {step}");
            server.send(b"pong");
            server.end();
            peer.end();
            assert!(process.run());
            assert_eq!(peer.written(), b"pong");
            assert!(host.violations().is_empty() && process.worker.steps().clients().is_empty());
            assert!(!process.worker.has_arrivals() && reasons(&process).is_empty());
        }
    }
}

#[test]
fn untrusted_peer_is_refused_with_and_without_a_header() {
    for bytes in [&headers()[0][..], b"GET / HTTP/1.1\r\n\r\n", b""] {
        let host = MemoryHost::default();
        let mut process = process(&host, "10.0.0.0/8", Vec::new());
        let peer = process.arrive(0, local(), client());
        if !bytes.is_empty() {
            peer.send(bytes);
        }
        assert!(process.run());
        assert!(is_reset(&peer) && host.servers().is_empty());
        assert_eq!(reasons(&process), [("proxy_untrusted", 1)]);
    }
}

#[test]
fn missing_and_malformed_headers_end_their_connections() {
    let long = [b"PROXY TCP4 ", &[b'1'; 120][..]].concat();
    for (bytes, reason) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "proxy_header_missing"),
        (b"\x16\x03\x01", "proxy_header_missing"),
        (b"PROXY TCP4 203.0.113.9 x\r\n", "proxy_header_malformed"),
        (b"\r\n\r\n\0\r\nQUIT\n\x31", "proxy_header_malformed"),
        (&long, "proxy_header_malformed"),
    ] {
        for step in [1, 1000] {
            let host = MemoryHost::default();
            let mut process = process(&host, "192.0.2.0/24", Vec::new());
            let peer = process.arrive(0, local(), client());
            assert!(process.run());
            for piece in bytes.chunks(step).take_while(|_| peer.closing().is_none()) {
                peer.send(piece);
                assert!(process.run());
            }
            assert!(is_reset(&peer) && host.servers().is_empty(), "{bytes:?}");
            assert_eq!(reasons(&process), [(reason, 1)]);
        }
    }
}

#[test]
fn incomplete_header_ends_at_its_time() {
    let host = MemoryHost::default();
    let mut process = process(&host, "192.0.2.0/24", Vec::new());
    let peer = process.arrive(0, local(), client());
    peer.send(b"PROXY TCP4 203.");
    assert!(process.run());
    let span = Timeouts::default().handshake;
    assert!(process.pass(span - Micros::from_ms(10)));
    assert!(peer.closing().is_none() && process.worker.has_arrivals());
    assert!(process.pass(Micros::from_ms(20)));
    assert!(is_reset(&peer) && !process.worker.has_arrivals());
    assert_eq!(reasons(&process), [("proxy_header_timeout", 1)]);
}

#[test]
fn peer_that_leaves_without_a_byte_is_not_counted() {
    let host = MemoryHost::default();
    let mut process = process(&host, "192.0.2.0/24", Vec::new());
    let peer = process.arrive(0, local(), client());
    assert!(process.run());
    peer.end();
    assert!(process.run());
    assert!(peer.closing().is_some() && reasons(&process).is_empty() && !process.worker.has_arrivals());
}

#[test]
fn excess_arrivals_end_the_oldest() {
    let host = MemoryHost::default();
    let mut process = process(&host, "192.0.2.0/24", Vec::new());
    let peers: Vec<Peer> = (0..1030)
        .map(|port| {
            let peer = process.arrive(0, local(), SocketAddr::new(client().ip(), 1000 + port));
            assert!(process.run());
            assert!(process.pass(Micros(1)));
            peer
        })
        .collect();
    let ended = peers.iter().take_while(|peer| peer.closing().is_some()).count();
    assert_eq!((ended, reasons(&process)), (6, vec![("proxy_header_timeout", 6)]));
    assert!(peers[6..].iter().all(|peer| peer.closing().is_none()));
}

/// The addresses that the backup has received.
fn proxied(sent: &[u8]) -> Vec<Option<(SocketAddr, SocketAddr)>> {
    let (mut at, mut all) = (0, Vec::new());
    while let Some((frame, length)) = Frame::decode(&sent[at..]).unwrap() {
        at += length;
        if let Frame::Entries { entries, .. } = frame {
            let opens = entries.into_iter().filter_map(|entry| match entry {
                Entry::Open(open) => Some(open.proxied),
                _ => None,
            });
            all.extend(opens);
        }
    }
    all
}

#[test]
fn header_is_acknowledged_when_the_backup_has_its_addresses() {
    for header in headers() {
        let host = MemoryHost::default();
        let mut process = process(&host, "192.0.2.0/24", vec![local().ip()]);
        let peer = process.arrive(0, local(), client());
        peer.send(&header[..20]);
        assert!(process.pass(Micros::from_ms(300)));
        assert_eq!(peer.committed(), Some(0), "no byte of a part is acknowledged");
        let begun = host.wires().iter().flat_map(|wire| wire.take_sent()).collect::<Vec<u8>>();
        assert_eq!(proxied(&begun), []);
        peer.send(&header[20..]);
        assert!(process.pass(Micros::from_ms(1)));
        assert_eq!(peer.committed(), Some(0), "the backup has acknowledged nothing");
        assert_eq!(proxied(&host.wires()[0].take_sent()), [Some((SOURCE, SERVED))]);
        process.worker.steps().acknowledge_all();
        assert!(process.pass(Micros::from_ms(1)));
        assert_eq!(peer.committed(), Some(header.len() as u64));
        peer.send(b"ping");
        for _ in 0..4 {
            assert!(process.pass(Micros::from_ms(10)));
            process.worker.steps().acknowledge_all();
        }
        assert_eq!(host.servers().pop().unwrap().written(), b"ping");
        assert!(host.violations().is_empty(), "{:?}", host.violations());
    }
}

#[test]
fn incomplete_header_leaves_with_its_bucket_in_silence() {
    let host = MemoryHost::default();
    let mut process = process(&host, "192.0.2.0/24", vec![local().ip()]);
    let peer = process.arrive(0, local(), client());
    peer.send(b"PROXY TCP4 203.");
    assert!(process.run());
    process.set_backups(MemberSet::EMPTY);
    assert!(process.run());
    assert!(process.worker.has_arrivals(), "the bucket stays");
    process.command(evergate_worker::Command::Cluster(evergate_worker::Instruction::Void));
    assert!(process.run());
    assert!(!process.worker.has_arrivals());
    assert_eq!(peer.closing(), Some(evergate_memory_host::Closing::Silent));
}
