//! Metrics of a running Recorder.

use crate::rig::{RECEIVER, Recorder, Rig, rig};
use evergate_capture::generator::Load;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

/// Metrics of the page, by name with labels.
fn metrics(rig: &Rig, recorder: &mut Recorder) -> BTreeMap<String, f64> {
    let line = recorder.wait_line("metrics on http://");
    let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
    let answer = rig.receiver.run(move || {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    });
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let samples = samples.map(|line| line.rsplit_once(' ').unwrap());
    samples.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

#[test]
fn metrics_count_packets_batches_and_receipts() {
    let Some(rig) = rig() else { return };
    let master = rig.master();
    let mut options = vec!["--metrics", "127.0.0.1:0"];
    options.extend(master.options());
    let mut recorder = rig.record(&options);
    let duration = Duration::from_millis(200);
    let load = Load { rate: 2_000 as _, duration, flows: 10, frame_bytes: 300, ..Load::default() };
    let sent = rig.start(load).join().unwrap().frames as f64;
    let begin = Instant::now();
    let found = loop {
        let found = metrics(&rig, &mut recorder);
        let is_whole = found["evergate_audit_packets_total"] == sent
            && found["evergate_audit_last_batch"] >= 1.0
            && found["evergate_audit_unanswered_batches"] == 0.0;
        if is_whole {
            break found;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{found:#?}");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(found["evergate_audit_bytes_total"] >= 300.0 * sent, "{found:#?}");
    assert_eq!(found["evergate_audit_master_connected"], 1.0);
    assert_eq!(found["evergate_audit_last_batch"], found["evergate_audit_last_acknowledged_batch"]);
    assert_eq!(found["evergate_audit_lost_packets_total{reason=\"ring\"}"], 0.0);
    assert_eq!(found["evergate_audit_connections"], 10.0);
    assert!(found["evergate_audit_ring_blocks"] > 0.0 && found["evergate_audit_disk_free_bytes"] > 0.0);
    recorder.stop();
}

#[test]
fn taken_address_of_metrics_is_refused() {
    let Some(rig) = rig() else { return };
    rig.receiver.run(|| Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap());
    let mut first = rig.record(&["--metrics", "127.0.0.1:0"]);
    let line = first.wait_line("metrics on http://");
    let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap();
    let other = rig.folder.join("other");
    let store = other.to_str().unwrap();
    let arguments = ["record", "--interface", RECEIVER, "--store", store, "--metrics", address];
    let (_, err) = rig.run(2, &arguments);
    assert!(err.contains("metrics: cannot listen on") && err.contains("another address"), "{err}");
}
