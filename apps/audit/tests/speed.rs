//! Speed of `verify` on packets of 1,415 bytes, on one thread. Run by hand, in a release build:
//! `cargo test --release -p evergate-audit --test speed -- --ignored --nocapture`.

mod support;

use evergate_evidence::record::{Body, Direction, Packet};
use std::path::PathBuf;
use std::time::Instant;
use support::{StoreWriter, verify_with};

const PACKET_BYTES: usize = 1415;
const BATCH_PACKETS: u64 = 5900; // 8 MiB
const SEGMENT_PACKETS: u64 = 700_000; // 1 GiB

/// Store of `packets` packets in 2,000 connections.
fn build(root: &std::path::Path, packets: u64) -> support::Built {
    let mut writer = StoreWriter::new(root, 1);
    writer.push(Body::Mark(evergate_evidence::mark::Mark {
        what: evergate_evidence::mark::MarkKind::Start,
        json: "{}".into(),
    }));
    let mut data = vec![0x5a; PACKET_BYTES];
    for number in 0..packets {
        data[60..68].copy_from_slice(&number.to_be_bytes());
        writer.time_ns += 14_000;
        writer.push(Body::Packet(Packet {
            time_ns: writer.time_ns,
            wire_bytes: PACKET_BYTES as u32,
            connection: 1 + number % 2000,
            packet_seq: 1 + number / 2000,
            direction: Direction::ToServer,
            flags: 0,
            data: &data,
        }));
        if number % BATCH_PACKETS == BATCH_PACKETS - 1 {
            writer.end_batch();
            writer.sign();
        }
        if number % SEGMENT_PACKETS == SEGMENT_PACKETS - 1 {
            writer.rotate();
        }
    }
    writer.end_segment();
    writer.finish()
}

#[test]
#[ignore = "2 GB in /dev/shm; a release build"]
fn verify_reads_many_bytes_a_second() {
    let folder = PathBuf::from(format!("/dev/shm/evergate-audit-speed-{}", std::process::id()));
    let built = build(&folder, 1_350_000);
    let trust = folder.join("trust.json");
    std::fs::write(&trust, &built.trust).unwrap();
    for threads in [1, 1, 1, 2] {
        let begin = Instant::now();
        let report = verify_with(&built.root, &trust, None, threads).unwrap();
        let seconds = begin.elapsed().as_secs_f64();
        let gigabytes = report.checked.packet_bytes as f64 / 1e9;
        println!(
            "{threads} threads: {gigabytes:.2} GB of packets in {seconds:.2} s: {:.2} GB/s",
            gigabytes / seconds
        );
        assert_eq!(report.findings, []);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
