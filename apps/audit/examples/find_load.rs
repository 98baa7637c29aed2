//! Load of the index: inserts synthetic connections of one day, and measures `find` over them.
//!
//! `find_load DIR CONNECTIONS PROGRAM` prints one JSON object a measurement. PROGRAM is `evergate-audit`; a find is
//! the whole process. With `cold` in PROGRAM's features, the day is frozen and searched again.

use evergate_audit::index::{IndexEvent, IndexWriter, RecordPlace};
use evergate_audit::store::{Store, StoreInfo};
use evergate_evidence::connection_record::{ConnectionRecord, Counts, Endpoints, TlsHellos};
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const DAY_BEGIN_NS: u64 = 1_795_824_000_000_000_000; // 2026-11-28
const DAY_NS: u64 = 86_400_000_000_000;
const FINDS: u64 = 41;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, dir, connections, program] = arguments.as_slice() else {
        eprintln!("usage: find_load DIR CONNECTIONS PROGRAM");
        std::process::exit(2);
    };
    let connections: u64 = connections.parse().expect("number of connections");
    let store = Store::at(Path::new(dir));
    if !store.index().join("2026-11-28.sqlite").exists() && !store.cold().exists() {
        store.create().expect("store");
        store.set_info(&StoreInfo::new("ab".repeat(32), 0, 1)).expect("store.json");
        insert(&store, connections);
    }
    measure_finds(dir, connections, program, "hot");
    let begin = Instant::now();
    let frozen =
        Command::new(program).args(["index", dir, "--freeze", "2026-11-28"]).output().expect("program");
    if frozen.status.success() {
        println!(
            "{}",
            json!({"freeze_s": begin.elapsed().as_secs_f64(), "cold_bytes": folder_bytes(&store.cold())})
        );
        measure_finds(dir, connections, program, "cold");
    } else {
        eprintln!("not frozen: {}", String::from_utf8_lossy(&frozen.stderr).trim());
    }
}

/// Inserts the connections as a Recorder does, and measures rows a second.
fn insert(store: &Store, connections: u64) {
    let writer = IndexWriter::start(store).expect("index");
    let (begin, mut last) = (Instant::now(), Instant::now());
    for number in 1..=connections {
        let place = RecordPlace { seq: number, segment: 1, offset: number };
        let mut event = IndexEvent::Connection(Box::new(connection(number, connections)), place);
        while !writer.try_send(event) {
            std::thread::sleep(Duration::from_millis(1));
            event = IndexEvent::Connection(Box::new(connection(number, connections)), place);
        }
        if number % 1_000_000 == 0 {
            eprintln!("{number}: {:.0} rows/s", 1e6 / last.elapsed().as_secs_f64());
            last = Instant::now();
        }
    }
    writer.flush();
    let rows_per_s = connections as f64 / begin.elapsed().as_secs_f64();
    let rows_per_cpu_s = connections as f64 / cpu_s();
    drop(writer);
    let hot_bytes = folder_bytes(&store.index());
    println!(
        "{}",
        json!({"rows": connections, "rows_per_s": rows_per_s, "rows_per_cpu_s": rows_per_cpu_s, "hot_bytes": hot_bytes})
    );
}

/// Measures the whole process for several queries, each with other values at every run.
fn measure_finds(dir: &str, connections: u64, program: &str, what: &str) {
    type Option2 = fn(u64, u64) -> [String; 2];
    let queries: [(&str, Option2); 5] = [
        ("client_random", |n, _| ["--client-random".into(), hex(&random(n))]),
        ("absent_random", |n, _| ["--client-random".into(), hex(&random(n + (1 << 50)))]),
        ("client", |n, all| ["--client".into(), connection(n, all).endpoints.client.ip().to_string()]),
        ("sni", |n, _| ["--sni".into(), format!("host{}.example.com", n % 5000)]),
        ("connection", |n, _| ["--connection".into(), n.to_string()]),
    ];
    for (name, query) in queries {
        let mut times: Vec<f64> = (0..FINDS)
            .map(|run| {
                let number = 1 + mix(run + 7) % connections;
                let option = query(number, connections);
                let mut command = Command::new(program);
                command.args(["find", dir, "--json", "--limit", "10"]).args(option);
                let begin = Instant::now();
                let output = command.output().expect("program");
                let time = begin.elapsed().as_secs_f64() * 1e3;
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                assert_eq!(output.stdout.is_empty(), name == "absent_random", "{name} of {number}");
                time
            })
            .skip(1)
            .collect();
        times.sort_by(f64::total_cmp);
        let (median, max) = (times[times.len() / 2], times[times.len() - 1]);
        println!(
            "{}",
            json!({"find": name, "index": what, "median_ms": median, "max_ms": max, "min_ms": times[0]})
        );
    }
}

fn connection(number: u64, connections: u64) -> ConnectionRecord {
    let client = Ipv4Addr::from(0x0a00_0000 + (mix(number) % 2_000_000) as u32);
    let server = Ipv4Addr::new(192, 0, 2, (number % 20) as u8);
    let first_ns =
        DAY_BEGIN_NS + (u128::from(number) * u128::from(DAY_NS) / (u128::from(connections) + 1)) as u64;
    ConnectionRecord {
        connection: number,
        is_final: true,
        endpoints: Endpoints {
            client: SocketAddr::new(client.into(), 1024 + (mix(number + 1) % 60_000) as u16),
            server: SocketAddr::new(server.into(), 443),
            vlan: 0,
        },
        counts: Counts {
            first_ns,
            last_ns: first_ns + mix(number + 2) % 30_000_000_000,
            packets: 20 + number % 200,
            bytes_c2s: mix(number + 3) % 5_000,
            bytes_s2c: mix(number + 4) % 500_000,
            holes: 0,
        },
        tls: TlsHellos {
            client_random: random(number),
            server_random: random(number + (1 << 40)),
            version: 0x0304,
            suite: 0x1301,
            sni: format!("host{}.example.com", number % 5000).into_bytes(),
            alpn: b"h2".to_vec(),
        },
    }
}

fn random(number: u64) -> [u8; 32] {
    let mut random = [0; 32];
    for (at, chunk) in random.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&mix(number * 4 + at as u64).to_be_bytes());
    }
    random
}

fn mix(value: u64) -> u64 {
    let mixed =
        (value ^ (value >> 30)).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// CPU time of this process in seconds, the making of the rows included.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("procfs");
    let fields: Vec<f64> =
        stat.rsplit(") ").next().unwrap_or_default().split(' ').filter_map(|n| n.parse().ok()).collect();
    (fields[10] + fields[11]) / 100.0 // user and system, in ticks of 10 ms; the state before them is no number
}

fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(entry_data) if entry_data.is_dir() => folder_bytes(&entry.path()),
            Ok(entry_data) => entry_data.len(),
            Err(_) => 0,
        })
        .sum()
}
