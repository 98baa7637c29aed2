//! The cold index: the same answers as the hot one, rows after the freeze, and damage.

#![cfg(feature = "cold")]

mod index_support;

use evergate_audit::index::{IndexEvent, IndexWriter};
use index_support::{
    BASE_NS, Folder, SECOND_NS, audit, audit_code, connection, hex, json_lines, place, random_of, request_id,
    sample,
};
use proptest::prelude::*;
use std::sync::OnceLock;

const DAYS: [&str; 2] = ["2026-11-28", "2026-11-29"];

fn queries() -> Vec<Vec<String>> {
    let time = |number: u64| evergate_audit::when::shown_ns(BASE_NS + number * 200 * SECOND_NS);
    let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    vec![
        text(&[]),
        text(&["--limit", "7"]),
        text(&["--connection", "77"]),
        text(&["--client-random", &hex(&random_of(123))]),
        text(&["--client-random", &hex(&random_of(123))[..6]]),
        text(&["--client-random", &"77".repeat(32)]),
        text(&["--sni", "host5.example1.com"]),
        text(&["--sni", "*.example2.com", "--limit", "20"]),
        text(&["--client", "10.0.0.3"]),
        text(&["--client", "10.0.1.0/24"]),
        text(&["--client", ":20042"]),
        text(&["--server", "[2001:db8:1::]/48"]),
        text(&["--request-id", &request_id(31, 0)]),
        text(&["--request-id", "abc"]),
        text(&["--from", &time(100), "--to", &time(250)]),
        text(&["--from", &time(390), "--sni", "*.com"]),
    ]
}

/// What `find` prints for every query.
fn answers(path: &str) -> Vec<String> {
    let run = |query: &Vec<String>| {
        let options: Vec<&str> = query.iter().map(String::as_str).collect();
        audit_code(0, &[&["find", path, "--json"][..], &options].concat()).0
    };
    queries().iter().map(run).collect()
}

#[test]
fn frozen_days_have_the_same_answers() {
    let folder = Folder::new("cold");
    let store = sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    let hot = answers(path);
    audit_code(0, &["index", path, "--freeze", DAYS[0]]);
    assert!(!store.index().join("2026-11-28.sqlite").exists());
    assert_eq!(answers(path), hot, "one day is cold");
    let (out, _) = audit_code(0, &["index", path, "--freeze", DAYS[1], "--json"]);
    assert!(json_lines(&out)[0]["rows"].as_u64().is_some_and(|rows| rows > 0));
    assert_eq!(answers(path), hot, "both days are cold");
    let expire = ["expire", path, "--max-bytes", "0", "--dry-run", "--json"];
    audit_code(0, &["hold", path, "--set", "a", "--reason", "r", "--client", "10.0.0.203"]);
    let plan = &json_lines(&audit_code(1, &expire).0)[0];
    assert_eq!(plan["segments"][2]["reason"], "hold a", "{plan}");
}

#[test]
fn rows_after_the_freeze_replace_cold_ones() {
    let folder = Folder::new("cold-late");
    let store = sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    audit_code(0, &["index", path, "--freeze", DAYS[0]]);
    let index = IndexWriter::start(&store).expect("index");
    let mut late = connection(5, BASE_NS + 1000 * SECOND_NS, true);
    late.counts.packets = 99;
    assert!(index.try_send(IndexEvent::Connection(Box::new(late), place(1 << 40))));
    drop(index);
    let found = || json_lines(&audit_code(0, &["find", path, "--json", "--connection", "5"]).0);
    assert_eq!((found().len(), &found()[0]["packets"]), (1, &99.into()));
    let before = answers(path);
    audit_code(0, &["index", path, "--freeze", DAYS[0]]);
    assert_eq!(answers(path), before);
    assert_eq!((found().len(), &found()[0]["packets"]), (1, &99.into()));
}

#[test]
fn open_hot_file_survives_its_freeze() {
    let folder = Folder::new("cold-open");
    let store = sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    let _lock = store.lock().expect("lock"); // as a Recorder
    let index = IndexWriter::start(&store).expect("index");
    let row = |number| IndexEvent::Connection(Box::new(connection(number, BASE_NS, true)), place(number));
    assert!(index.try_send(row(1001)));
    index.flush();
    audit_code(0, &["index", path, "--freeze", DAYS[0]]);
    assert!(index.try_send(row(1002)));
    index.flush();
    assert!(index.take_failure().is_none());
    for number in ["1001", "1002", "3"] {
        let (out, _) = audit_code(0, &["find", path, "--json", "--connection", number]);
        assert_eq!(json_lines(&out).len(), 1, "{number}");
    }
}

#[test]
fn truncated_file_is_an_error_with_its_name() {
    let folder = Folder::new("cold-cut");
    let store = sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    audit_code(0, &["index", path, "--freeze", DAYS[0]]);
    let file = store.cold().join("connection/2026-11-28.parquet");
    let bytes = std::fs::read(&file).expect("file");
    for length in [0, 3, 12, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&file, &bytes[..length]).expect("cut");
        let (_, message) = audit_code(2, &["find", path, "--json"]);
        assert!(message.contains("2026-11-28.parquet"), "{message}");
        assert!(!message.contains("panicked"), "{message}");
    }
    std::fs::copy(store.cold().join("batch/2026-11-28.parquet"), &file).expect("another table");
    let (_, message) = audit_code(2, &["find", path, "--json"]);
    assert!(message.contains("other columns"), "{message}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_file_is_read_or_refused(at in 0.0f64..1.0, value: u8, length in 1usize..40) {
        static FROZEN: OnceLock<(Folder, Vec<u8>)> = OnceLock::new();
        let (folder, whole) = FROZEN.get_or_init(|| {
            let folder = Folder::new("cold-changed");
            sample(&folder.0, 1);
            audit_code(0, &["index", folder.0.to_str().expect("path"), "--freeze", DAYS[0]]);
            let bytes = std::fs::read(folder.0.join("cold/connection/2026-11-28.parquet")).expect("file");
            (folder, bytes)
        });
        let path = folder.0.to_str().expect("path");
        let mut bytes = whole.clone();
        let begin = (at * bytes.len() as f64) as usize;
        let end = bytes.len().min(begin + length);
        bytes[begin..end].fill(value);
        std::fs::write(folder.0.join("cold/connection/2026-11-28.parquet"), bytes).expect("changed");
        let random = hex(&random_of(123));
        for query in [&[][..], &["--client-random", &random]] {
            let output = audit(&[&["find", path, "--json"], query].concat());
            let message = String::from_utf8_lossy(&output.stderr);
            prop_assert!(matches!(output.status.code(), Some(0 | 2)), "{:?} {message}", output.status);
            prop_assert!(!message.contains("panicked"), "{message}");
        }
    }
}
