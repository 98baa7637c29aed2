//! CPU time of a packet in the stream, without threads and files, beside SHA-256 of the same bytes:
//! `digest_cost [packets] [bytes] [flows]`.

use evergate_evidence::merkle::leaf_hash;
use evergate_evidence::statement::Partition;
use evergate_recorder::connection_table::Limits;
use evergate_recorder::stream::{Origin, Output, RawPacket, RecordStream, SegmentLimits};
use std::hint::black_box;
use std::time::Instant;

fn main() {
    let argument = |place: usize, default: usize| {
        std::env::args().nth(place).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (packets, bytes, flows) = (argument(1, 1_000_000), argument(2, 1415), argument(3, 2000));
    let frames: Vec<Vec<u8>> = (0..flows).map(|flow| frame(flow, bytes)).collect();
    let begin = Instant::now();
    for packet in 0..packets {
        black_box(leaf_hash(&[&[0; 52], &frames[packet % flows]]));
    }
    let hash = begin.elapsed().as_secs_f64() / packets as f64;
    let origin = Origin {
        recorder: [1; 32],
        partition: Partition::default(),
        chain: None,
        next_seq: 1,
        next_connection: 1,
        next_segment: 1,
        interfaces: vec!["eth0".into()],
        filter: String::new(),
        snaplen: 0,
    };
    let mut stream = RecordStream::new(origin, Limits::default(), SegmentLimits::default(), 0);
    let mut output = Output::default();
    let begin = Instant::now();
    for packet in 0..packets {
        let data = &frames[packet % flows];
        stream.on_packet(&RawPacket {
            interface: 0,
            time_ns: packet as u64 * 1000,
            wire_bytes: bytes as u32,
            flags: 0,
            data,
        });
        if packet % 400 == 0 {
            stream.on_time(packet as u64 * 1000);
            stream.poll_batch(3);
            output = black_box(stream.poll_output(output));
        }
    }
    let all = begin.elapsed().as_secs_f64() / packets as f64;
    println!("SHA-256 {:.3} us, stream {:.3} us, ratio {:.2}", hash * 1e6, all * 1e6, all / hash);
}

fn frame(flow: usize, bytes: usize) -> Vec<u8> {
    let mut frame = vec![0; bytes.max(54)];
    let length = (frame.len() - 14) as u16;
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    frame[22..24].copy_from_slice(&[64, 6]);
    frame[26..34].copy_from_slice(&[10, 9, 0, 1, 10, 9, 0, 2]);
    frame[34..36].copy_from_slice(&(10_000 + flow as u16).to_be_bytes());
    frame[36..38].copy_from_slice(&443u16.to_be_bytes());
    frame[46..48].copy_from_slice(&[0x50, 0x10]);
    frame
}
