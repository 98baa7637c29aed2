//! Rings that share an interface.

use crate::support::{cable, drain, options};
use evergate_capture::generator::Load;
use evergate_capture::{CaptureError, Group, Ring, RingOptions};
use std::collections::HashSet;
use std::time::Duration;

/// Addresses and ports of a frame, the same in both directions.
fn flow(frame: &[u8]) -> [[u8; 6]; 2] {
    let end = |address: usize, port: usize| {
        let mut end = [0; 6];
        end[..4].copy_from_slice(&frame[address..address + 4]);
        end[4..].copy_from_slice(&frame[port..port + 2]);
        end
    };
    let mut ends = [end(26, 34), end(30, 36)];
    ends.sort_unstable();
    ends
}

/// Drains all members; returns for each its packets and flows.
fn collect(rings: &mut [Ring]) -> Vec<(u64, HashSet<[[u8; 6]; 2]>)> {
    let collect_one = |ring: &mut Ring| {
        let (mut packets, mut flows) = (0, HashSet::new());
        drain(ring, |block| {
            packets += u64::from(block.packet_count());
            flows.extend(block.packets().map(|packet| flow(packet.data)));
        });
        (packets, flows)
    };
    rings.iter_mut().map(collect_one).collect()
}

fn check_shares(rings: &mut [Ring], received: u64) {
    let shares = collect(rings);
    let counters: Vec<_> = rings.iter_mut().map(|ring| ring.counters().unwrap()).collect();
    println!("received {received} {counters:?}");
    assert_eq!(counters.iter().map(|counters| counters.seen).sum::<u64>(), received);
    for (counters, (packets, _)) in counters.iter().zip(&shares) {
        assert_eq!(counters.seen, packets + counters.dropped);
        assert!(*packets > 0);
    }
    let flows: HashSet<_> = shares.iter().flat_map(|(_, flows)| flows).collect();
    let by_member: usize = shares.iter().map(|(_, flows)| flows.len()).sum();
    assert_eq!(by_member, flows.len(), "a flow lies in one member, both directions");
}

#[test]
fn members_of_a_group_share_all_packets() {
    let Some(cable) = cable() else { return };
    let before = cable.received();
    let options = options(16 << 20, 64 << 10);
    let open = { move || Ring::open_group(&options, 3).unwrap() };
    let mut rings = cable.receiver.run(open);
    let load =
        Load { rate: 30_000, both_directions: true, duration: Duration::from_millis(500), ..Load::default() };
    cable.start(load).join().unwrap();
    // Frames that this machine sends are not captured in a group either.
    cable.send_back();
    let received = cable.received() - before;
    check_shares(&mut rings, received);
}

#[test]
fn processes_of_a_group_share_all_packets() {
    let Some(cable) = cable() else { return };
    let options = RingOptions { fanout: Some(Group(4711)), ..options(16 << 20, 64 << 10) };
    let mut rings: Vec<Ring> = (0..3).map(|_| cable.ring(&options)).collect();
    let before = cable.received();
    cable.send(Load { flows: 3000, both_directions: true, ..Load::default() }.frames());
    let received = cable.received() - before;
    check_shares(&mut rings, received);
}

#[test]
fn group_of_another_mode_is_refused_with_remedy() {
    let Some(cable) = cable() else { return };
    let options = RingOptions { fanout: Some(Group(7)), ..options(1 << 20, 64 << 10) };
    let _first = cable.ring(&options);
    let other = cable.receiver.run(move || {
        // The loopback interface cannot join a group of another interface.
        Ring::open(&RingOptions { interface: "lo".into(), ..options })
    });
    let error = other.unwrap_err();
    assert!(matches!(error, CaptureError::Fanout { .. }), "{error}");
    assert!(error.to_string().contains("fanout group 7"), "{error}");
}
