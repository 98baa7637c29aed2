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

/// CPU time of this process in seconds: user and system, in ticks of 10 ms.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

#[test]
#[ignore = "2 GB in /dev/shm; a release build"]
fn verify_reads_many_bytes_a_second() {
    let folder = PathBuf::from(format!("/dev/shm/evergate-audit-speed-{}", std::process::id()));
    let built = build(&folder, 1_350_000);
    let trust = folder.join("trust.json");
    std::fs::write(&trust, &built.trust).unwrap();
    let segments = evergate_audit::store::Store::at(&built.root).segments().unwrap();
    let file_bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
    for threads in [1, 1, 1, 2] {
        let (begin, cpu) = (Instant::now(), cpu_seconds());
        let report = verify_with(&built.root, &trust, None, threads).unwrap();
        let seconds = begin.elapsed().as_secs_f64();
        let gigabytes = report.checked.packet_bytes as f64 / 1e9;
        let cpu = cpu_seconds() - cpu;
        println!(
            "{threads} threads: {gigabytes:.2} GB of packets in {seconds:.2} s, {cpu:.2} s of CPU: \
             {:.2} GB/s of packets, {:.2} GB/s of files",
            gigabytes / cpu,
            file_bytes as f64 / 1e9 / cpu
        );
        assert_eq!(report.findings, []);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
#[ignore = "a release build"]
fn hashes_of_two_libraries_are_compared() {
    use aws_lc_rs::digest::{Context, SHA256};
    let (head, data) = ([7u8; 52], [9u8; PACKET_BYTES]);
    for round in 0..4 {
        let cpu = cpu_seconds();
        let mut sum = 0u64;
        for _ in 0..300_000 {
            let hash = if round % 2 == 0 {
                evergate_evidence::merkle::leaf_hash(&[&head, &data])
            } else {
                let mut context = Context::new(&SHA256);
                context.update(&[0]);
                context.update(&head);
                context.update(&data);
                context.finish().as_ref().try_into().unwrap()
            };
            sum += u64::from(hash[0]);
        }
        let cpu = cpu_seconds() - cpu;
        let name = if round % 2 == 0 { "sha2" } else { "aws-lc-rs" };
        println!("{name}: {:.2} GB/s of CPU ({sum})", 300_000.0 * 1468.0 / cpu / 1e9);
    }
}
