//! Blocks in other threads, their order and their contents.

use crate::support::{cable, drain, options, whole_frame};
use evergate_capture::generator::Load;
use evergate_capture::{Block, BlockView, PacketType, Wait};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant, SystemTime};

const BLOCK: usize = 16 << 10;

/// Two workers keep blocks for different times and give them back out of order; the ring is small. No packet is lost
/// without being counted, none comes twice.
#[test]
fn blocks_in_other_threads_come_once_each_in_order() {
    let Some(cable) = cable() else { return };
    let before = cable.received();
    let mut ring = cable.ring(&options(32 * BLOCK, BLOCK));
    let (senders, workers): (Vec<_>, Vec<_>) = (0..2u64)
        .map(|number| {
            let (sender, inbox) = sync_channel::<Block>(8);
            let work = move || {
                let mut packets = 0;
                for block in inbox {
                    std::thread::sleep(Duration::from_micros(300 + 700 * number));
                    packets += block.packets().count() as u64;
                }
                packets
            };
            (sender, std::thread::spawn(work))
        })
        .unzip();
    let load =
        Load { rate: 30_000, frame_bytes: 500, duration: Duration::from_millis(800), ..Load::default() };
    let traffic = cable.start(load);
    let mut last = 0;
    let mut pass = |block: Block| {
        assert_eq!(block.view().sequence(), last + 1, "blocks have no hole");
        last += 1;
        senders[(last % 2) as usize].send(block).unwrap();
    };
    while !traffic.is_finished() {
        while let Some(block) = ring.next_block() {
            pass(block);
        }
        ring.wait(Duration::from_millis(10)).unwrap();
    }
    drain(&mut ring, &mut pass);
    drop(senders);
    let delivered: u64 = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
    let counters = ring.counters().unwrap();
    println!("delivered {delivered} {counters:?}");
    assert_eq!(cable.received() - before, counters.seen);
    assert_eq!(counters.seen, delivered + counters.dropped);
}

/// `poll` alone would return at once while the newest block is out.
#[test]
fn waiting_while_a_block_is_out_uses_little_time() {
    let Some(cable) = cable() else { return };
    let mut ring = cable.ring(&options(8 * BLOCK, BLOCK));
    cable.send(vec![Load::default().frame(0, false)]);
    assert_eq!(ring.wait(Duration::from_secs(5)).unwrap(), Wait::Ready);
    let block = ring.next_block().unwrap();
    let cpu_time = || std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let used_ns = |text: String| text.split(' ').next().unwrap().parse::<u64>().unwrap();
    let (start, before) = (Instant::now(), used_ns(cpu_time()));
    assert_eq!(ring.wait(Duration::from_millis(300)).unwrap(), Wait::Idle);
    let used = Duration::from_nanos(used_ns(cpu_time()) - before);
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert!(used < Duration::from_millis(60), "{used:?}");
    drop(block);
}

#[test]
fn block_that_is_out_outlives_its_ring() {
    let Some(cable) = cable() else { return };
    let mut ring = cable.ring(&options(4 * BLOCK, BLOCK));
    let frame = Load::default().frame(1, false);
    cable.send(vec![frame.clone()]);
    ring.wait(Duration::from_secs(5)).unwrap();
    let block = ring.next_block().unwrap();
    drop(ring);
    let packet = block.packets().next().unwrap();
    assert_eq!(packet.data, frame);
    let copy = block.bytes().to_vec();
    drop(block);
    let again = BlockView::new(&copy).unwrap().packets().next().unwrap();
    assert_eq!(whole_frame(&again), frame, "a block that was written to a file reads the same");
}

#[test]
fn ready_blocks_are_counted_up_to_the_whole_ring() {
    let Some(cable) = cable() else { return };
    let mut ring = cable.ring(&options(8 * BLOCK, BLOCK));
    assert_eq!((ring.blocks(), ring.ready_blocks()), (8, 0));
    let frames: Vec<Vec<u8>> = (0..400).map(|flow| Load::default().frame(flow, false)).collect();
    cable.send(frames);
    // The ring is full: all blocks are ready, and the rest is dropped.
    let until = Instant::now() + Duration::from_secs(5);
    while ring.ready_blocks() < 8 && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(ring.ready_blocks(), 8);
    let (first, second) = (ring.next_block().unwrap(), ring.next_block().unwrap());
    assert_eq!(ring.ready_blocks(), 6);
    drop(second);
    assert_eq!(ring.ready_blocks(), 6);
    drop(first);
    let counters = ring.counters().unwrap();
    assert!(counters.dropped > 0 && counters.freezes > 0, "{counters:?}");
}

#[test]
fn packet_has_time_lengths_and_type() {
    let Some(cable) = cable() else { return };
    let mut ring = cable.ring(&evergate_capture::RingOptions { snaplen: 60, ..options(4 * BLOCK, BLOCK) });
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let before = now();
    let frame = Load::default().frame(1, false);
    cable.send(vec![frame.clone()]);
    ring.wait(Duration::from_secs(5)).unwrap();
    let block = ring.next_block().unwrap();
    let mut packets = block.packets();
    let packet = packets.next().unwrap();
    assert_eq!((packets.next(), packets.missing()), (None, 0));
    // The clock of packets may be some milliseconds coarse.
    assert!((before - 20_000_000..=now()).contains(&packet.time_ns));
    assert_eq!((packet.data, packet.wire_len, packet.vlan), (&frame[..60], 1415, None));
    assert_eq!(packet.packet_type, PacketType::OtherHost);
    assert!(!packet.status.is_aggregate());
}

#[test]
fn sent_frames_are_not_captured() {
    let Some(cable) = cable() else { return };
    let mut ring = cable.ring(&options(4 * BLOCK, BLOCK));
    cable.send_back();
    drain(&mut ring, |_| panic!("a sent frame was captured"));
    assert_eq!(ring.counters().unwrap().seen, 0);
}
