//! The counters are exact, whatever is lost.

use crate::random_frames::Random;
use crate::support::{Cable, cable, drain, options};
use evergate_capture::generator::Load;
use evergate_capture::{Ring, Wait};
use std::time::Duration;

const FRAME: usize = 600;
const RATE: u64 = 40_000;
const BLOCK: usize = 64 << 10;

/// One run with a reader that is too slow for about `loss` of the packets. Returns delivered and dropped packets.
fn run(cable: &Cable, loss: f64, random: &mut Random) -> (u64, u64) {
    let before = cable.received();
    // Without loss the ring has room for all packets; with loss it is full soon.
    let bytes = if loss == 0.0 { 32 << 20 } else { 8 * BLOCK };
    let mut ring = cable.ring(&options(bytes, BLOCK));
    let duration = Duration::from_millis(400 + random.below(200));
    let load = Load { rate: RATE, frame_bytes: FRAME, duration, ..Load::default() };
    let traffic = cable.start(load);
    let mut delivered = 0;
    let pause_per_packet = if loss == 0.0 { 0.0 } else { 1e6 / (RATE as f64 * (1.0 - loss)) };
    let mut take = |ring: &mut Ring, is_slow: bool| {
        while let Some(block) = ring.next_block() {
            let packets = block.packets().count() as u64;
            assert_eq!(packets, u64::from(block.packet_count()));
            delivered += packets;
            if is_slow {
                std::thread::sleep(Duration::from_micros((packets as f64 * pause_per_packet) as u64));
            }
        }
    };
    while !traffic.is_finished() {
        take(&mut ring, true);
        ring.wait(Duration::from_millis(10)).unwrap();
        ring.counters().unwrap();
    }
    let sent = traffic.join().unwrap();
    drain(&mut ring, |block| delivered += block.packets().count() as u64);
    let counters = ring.counters().unwrap();
    let received = cable.received() - before;
    println!("loss {loss:.2}: sent {} received {received} delivered {delivered} {counters:?}", sent.frames);
    assert_eq!(received, counters.seen);
    assert_eq!(counters.seen, delivered + counters.dropped);
    assert!(delivered > 0);
    (delivered, counters.dropped)
}

#[test]
fn counters_equal_the_interface_whatever_is_lost() {
    let Some(cable) = cable() else { return };
    let mut random = Random::new("EVERGATE_SEED");
    let mut losses = Vec::new();
    for index in 0..20 {
        let loss = if index == 0 { 0.0 } else { 0.025 * f64::from(index) + random.below(25) as f64 / 1000.0 };
        let (delivered, dropped) = run(&cable, loss, &mut random);
        losses.push(dropped as f64 / (delivered + dropped) as f64);
    }
    assert_eq!(losses[0], 0.0, "a ring with room for all loses nothing");
    assert!(losses.iter().any(|loss| *loss > 0.3), "{losses:?}");
}

#[test]
fn stop_under_traffic_ends_with_exact_counters() {
    let Some(cable) = cable() else { return };
    for _ in 0..2 {
        let before = cable.received();
        let load = Load { rate: 20_000, duration: Duration::from_millis(1500), ..Load::default() };
        let traffic = cable.start(load);
        while cable.received() == before {
            std::thread::yield_now();
        }
        let mut ring = cable.ring(&options(1 << 20, BLOCK));
        let mut delivered = 0;
        let end = std::time::Instant::now() + Duration::from_millis(200);
        while std::time::Instant::now() < end {
            while let Some(block) = ring.next_block() {
                delivered += u64::from(block.packet_count());
            }
            ring.wait(Duration::from_millis(20)).unwrap();
        }
        ring.stop().unwrap();
        drain(&mut ring, |block| delivered += u64::from(block.packet_count()));
        assert!(!traffic.is_finished(), "the drain ends although frames keep coming");
        let counters = ring.counters().unwrap();
        assert_eq!(counters.seen, delivered + counters.dropped);
        assert!(delivered > 1000, "{delivered}");
        traffic.join().unwrap();
    }
}

#[test]
fn counters_are_sums_over_many_readings() {
    let Some(cable) = cable() else { return };
    let mut ring = cable.ring(&options(4 << 20, BLOCK));
    for round in 1..=5 {
        cable.send(Load { flows: 100, ..Load::default() }.frames());
        let mut delivered = 0;
        drain(&mut ring, |block| delivered += block.packets().count());
        assert_eq!(delivered, 100);
        assert_eq!(ring.counters().unwrap().seen, round * 100);
        assert_eq!(ring.counters().unwrap().seen, round * 100);
    }
    assert_eq!(ring.wait(Duration::from_millis(1)).unwrap(), Wait::Idle);
}
