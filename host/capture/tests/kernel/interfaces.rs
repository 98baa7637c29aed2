//! Interfaces: counters, features, states, and errors with remedies.

use crate::support::{RECEIVER, SENDER, cable, drain, frames_of, options};
use evergate_capture::generator::Load;
use evergate_capture::{CaptureError, Interface, Ring, RingOptions, Wait, drop_privileges, has_net_raw};
use std::sync::mpsc;
use std::time::Duration;

#[test]
fn offloads_and_mtu_are_read() {
    let Some(cable) = cable() else { return };
    let read = || Interface::named(RECEIVER).unwrap().offloads().unwrap();
    assert!(!cable.receiver.run(read).aggregates());
    cable.ethtool(&cable.receiver, RECEIVER, "gro on");
    let offloads = cable.receiver.run(read);
    assert!(offloads.gro && offloads.aggregates() && !offloads.lro, "{offloads:?}");
    assert_eq!(offloads.remedy(RECEIVER).unwrap(), format!("ethtool -K {RECEIVER} gro off"));
    assert_eq!(cable.receiver.run(|| Interface::named(RECEIVER).unwrap().mtu().unwrap()), 1500);
}

#[test]
fn statistics_count_packets_and_bytes() {
    let Some(cable) = cable() else { return };
    let read = || Interface::named(RECEIVER).unwrap().statistics().unwrap();
    let before = cable.receiver.run(read);
    cable.send(Load { flows: 50, frame_bytes: 200, ..Load::default() }.frames());
    let after = cable.receiver.run(read);
    assert_eq!(after.rx_packets - before.rx_packets, 50);
    assert_eq!(after.rx_bytes - before.rx_bytes, 10_000);
    assert_eq!(after.missed(), 0);
}

#[test]
fn interface_that_cannot_be_captured_is_named_with_remedy() {
    let Some(cable) = cable() else { return };
    let open = |name: &str| {
        let options = RingOptions { interface: name.into(), ..options(1 << 20, 64 << 10) };
        cable.receiver.run(move || Ring::open(&options)).unwrap_err()
    };
    let error = open("nothing9");
    assert!(matches!(error, CaptureError::NoInterface(_)), "{error}");
    let error = open("a-name-that-is-too-long-for-linux");
    assert!(matches!(error, CaptureError::NoInterface(_)), "{error}");
    cable.receiver.ip("link add cap-off type veth peer name cap-off-end").unwrap();
    let error = open("cap-off");
    assert!(matches!(error, CaptureError::Down(_)), "{error}");
    assert!(error.to_string().contains("ip link set cap-off up"), "{error}");
    cable.receiver.ip("tuntap add dev cap-tun mode tun").unwrap();
    cable.receiver.ip("link set cap-tun up").unwrap();
    let error = open("cap-tun");
    assert!(matches!(error, CaptureError::NotEthernet { kind: 0xfffe, .. }), "{error}");
}

#[test]
fn ring_without_memory_or_with_bad_sizes_is_refused() {
    let Some(cable) = cable() else { return };
    let open = |options: RingOptions| cable.receiver.run(move || Ring::open(&options)).unwrap_err();
    // So many blocks that the kernel's list of them is too long: no memory is used up.
    let error = open(options(4 << 40, 1 << 20));
    assert!(matches!(error, CaptureError::RingTooLarge { mib: 4_194_304 }), "{error}");
    for (bytes, block) in [(1 << 20, 1 << 20), (1 << 20, 5000), (1 << 20, 1024), (0, 4096)] {
        let error = open(options(bytes, block));
        assert!(matches!(error, CaptureError::Options(_)), "{error}");
    }
    let error = open(RingOptions { retire_ms: 0, ..options(1 << 20, 4096) });
    assert!(error.to_string().contains("retire time of 0 ms"), "{error}");
}

#[test]
fn ring_works_on_after_privileges_are_dropped() {
    let Some(cable) = cable() else { return };
    let (opened, is_open) = mpsc::channel();
    let run = move || {
        let mut ring = Ring::open(&options(1 << 20, 64 << 10)).unwrap();
        assert!(has_net_raw());
        drop_privileges().unwrap();
        assert!(!has_net_raw());
        let error = Ring::open(&options(1 << 20, 64 << 10)).unwrap_err();
        assert!(matches!(error, CaptureError::Privilege), "{error}");
        assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
        opened.send(()).unwrap();
        assert_eq!(ring.wait(Duration::from_secs(10)).unwrap(), Wait::Ready);
        assert_eq!(frames_of(&mut ring).len(), 10);
        assert_eq!(ring.counters().unwrap().seen, 10);
        ring.stop().unwrap();
    };
    // A thread of its own: the namespace's needs its privileges again.
    let capture = cable.receiver.spawn(run);
    is_open.recv().unwrap();
    let before = cable.received();
    cable.send(Load { flows: 10, ..Load::default() }.frames());
    capture.join().unwrap();
    assert_eq!(cable.received() - before, 10);
}

#[test]
fn interface_that_goes_down_is_reported_and_comes_back() {
    let Some(cable) = cable() else { return };
    let mut ring = cable.ring(&options(1 << 20, 64 << 10));
    cable.receiver.ip(&format!("link set {RECEIVER} down")).unwrap();
    assert_eq!(ring.wait(Duration::from_secs(5)).unwrap(), Wait::Down);
    assert_eq!(ring.wait(Duration::from_millis(20)).unwrap(), Wait::Idle);
    cable.receiver.ip(&format!("link set {RECEIVER} up")).unwrap();
    cable.send(Load { flows: 10, ..Load::default() }.frames());
    let mut packets = 0;
    drain(&mut ring, |block| packets += block.packet_count());
    assert_eq!(packets, 10);
    cable.sender.ip(&format!("link delete {SENDER}")).unwrap();
    let outcome = cable.receiver.run(move || ring.wait(Duration::from_secs(5)));
    assert!(matches!(outcome, Err(CaptureError::Gone(_))), "{outcome:?}");
}
