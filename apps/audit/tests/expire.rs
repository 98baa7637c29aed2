//! Holds, expiry and status, with interruptions between their steps.

mod index_support;

use evergate_audit::outbox;
use evergate_audit::store::Store;
use evergate_evidence::deletion;
use evergate_evidence::entry::{Entry, Event};
use evergate_evidence::verify::EventReceipt;
use index_support::{BASE_NS, Folder, SECOND_NS, audit_code, json_lines, request_id, sample};
use serde_json::Value;

fn json(code: i32, arguments: &[&str]) -> Value {
    let (out, _) = audit_code(code, &[arguments, &["--json"]].concat());
    json_lines(&out).remove(0)
}

fn actions(plan: &Value) -> Vec<(u64, String, String)> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let segments = plan["segments"].as_array().expect("segments");
    segments
        .iter()
        .map(|segment| {
            (segment["segment"].as_u64().expect("number"), text(&segment["action"]), text(&segment["reason"]))
        })
        .collect()
}

fn deleted(plan: &Value) -> Vec<u64> {
    actions(plan).iter().filter(|(_, action, _)| action == "delete").map(|(number, ..)| *number).collect()
}

fn files(store: &Store) -> Vec<u64> {
    store.segments().expect("segments").iter().map(|segment| segment.number).collect()
}

#[test]
fn dry_run_deletes_nothing_and_the_run_deletes_the_same() {
    let folder = Folder::new("expire");
    let store = sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    let bytes: u64 = store.segments().expect("segments").iter().map(|segment| segment.bytes).sum();
    let limit = (bytes * 6 / 10).to_string();
    let content = std::fs::read(store.segment(1)).expect("segment");
    let plan = json(0, &["expire", path, "--max-bytes", &limit, "--dry-run"]);
    assert_eq!(deleted(&plan), [1, 2]);
    assert_eq!(files(&store), [1, 2, 3, 4]);
    assert!(outbox::pending(&store).expect("outbox").is_empty());
    let plan = json(0, &["expire", path, "--max-bytes", &limit]);
    assert_eq!(deleted(&plan), [1, 2]);
    assert!(actions(&plan)[0].2.contains("store over"));
    assert_eq!(files(&store), [3, 4]);

    let stated = deletion::from_json(&std::fs::read(store.deleted(1)).expect("statement")).expect("deletion");
    assert_eq!((stated.segment, stated.bytes, stated.first_seq), (1, content.len() as u64, 1));
    let entries = outbox::pending(&store).expect("outbox");
    assert_eq!(entries[0].name, "deletion-0000000001");
    assert_eq!(Entry::decode(&entries[0].entry), Ok(Entry::Event(0, Event::Deletion(stated))));
    assert_eq!(entries.len(), 2);

    // The rebuilt index knows the deleted segments by their statements.
    audit_code(0, &["index", path, "--rebuild"]);
    let found = json(0, &["find", path, "--connection", "250"]);
    assert_eq!(found["extents"][0]["deleted"], false);
    let again = json(0, &["expire", path, "--max-bytes", &limit]);
    assert_eq!(deleted(&again), Vec::<u64>::new());
}

#[test]
fn age_counts_from_the_last_record() {
    let folder = Folder::new("expire-days");
    let store = sample(&folder.0, 1); // records of the year 2026, so that their age is negative or small
    let path = folder.0.to_str().expect("path");
    assert_eq!(deleted(&json(0, &["expire", path, "--max-days", "40000"])), Vec::<u64>::new());
    assert_eq!(files(&store), [1, 2, 3, 4]);
    let (_, message) = audit_code(2, &["expire", path]);
    assert!(message.contains("nothing is deleted without a limit"), "{message}");
}

#[test]
fn hold_on_a_connection_keeps_its_segments() {
    let folder = Folder::new("hold");
    let store = sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    let set = json(0, &["hold", path, "--set", "case-7", "--reason", "court order", "--connection", "150"]);
    assert_eq!(set["waiting"], 1);
    let plan = json(1, &["expire", path, "--max-bytes", "0"]);
    assert_eq!(deleted(&plan), [1]);
    assert_eq!(actions(&plan)[1].2, "hold case-7");
    assert!(actions(&plan)[2].2.contains("may need it")); // the open segment may have its first record
    assert!(actions(&plan)[3].2.contains("open"));
    assert_eq!(files(&store), [2, 3, 4]);
    let (_, message) =
        audit_code(2, &["hold", path, "--set", "case-7", "--reason", "again", "--connection", "1"]);
    assert!(message.contains("in force already"), "{message}");
    audit_code(0, &["hold", path, "--lift", "case-7", "--reason", "closed"]);
    let (out, _) = audit_code(0, &["hold", path]);
    assert!(out.contains("no hold is in force"), "{out}");
    assert_eq!(deleted(&json(1, &["expire", path, "--max-bytes", "0"])), [2, 3]);
    let names: Vec<String> =
        outbox::pending(&store).expect("outbox").into_iter().map(|entry| entry.name).collect();
    // In the order of the commands: the log shows that no deletion violated the hold.
    let expected = ["hold-0000000001", "deletion-0000000001", "hold-0000000002", "deletion-0000000002"];
    assert_eq!(names, [&expected[..], &["deletion-0000000003"]].concat());
}

#[test]
fn holds_by_period_name_and_request_keep_what_they_select() {
    let folder = Folder::new("hold-kinds");
    sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    let time = |number: u64| evergate_audit::when::shown_ns(BASE_NS + number * 200 * SECOND_NS);
    let dry = || json(1, &["expire", path, "--max-bytes", "0", "--dry-run"]);
    for (arguments, expected) in [
        (vec!["--from".to_owned(), time(120), "--to".to_owned(), time(130)], vec![1, 3]),
        (vec!["--request-id".to_owned(), request_id(31, 0)], vec![2]),
        (vec!["--client".to_owned(), "10.0.0.203".to_owned()], vec![1, 2]),
        (vec!["--sni".to_owned(), "*.example1.com".to_owned()], vec![]),
    ] {
        let options: Vec<&str> = arguments.iter().map(String::as_str).collect();
        audit_code(0, &[&["hold", path, "--set", "a", "--reason", "r"][..], &options].concat());
        assert_eq!(deleted(&dry()), expected, "{arguments:?}");
        audit_code(0, &["hold", path, "--lift", "a", "--reason", "r"]);
    }
}

#[test]
fn damaged_holds_stop_every_deletion() {
    let folder = Folder::new("hold-damaged");
    let store = sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    audit_code(0, &["hold", path, "--set", "a", "--reason", "r", "--connection", "3"]);
    let file = folder.0.join("holds.json");
    let text = std::fs::read_to_string(&file).expect("holds");
    for damaged in [text.replace("\"set\"", "\"lift\""), text.replace(',', ", "), text[..20].to_owned()] {
        std::fs::write(&file, damaged).expect("written");
        let (_, message) = audit_code(2, &["expire", path, "--max-bytes", "0"]);
        assert!(message.contains("holds.json"), "{message}");
    }
    assert_eq!(files(&store), [1, 2, 3, 4]);
}

#[test]
fn segment_that_cannot_be_read_is_kept() {
    let folder = Folder::new("expire-damaged");
    let store = sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    let bytes = std::fs::read(store.segment(2)).expect("segment");
    std::fs::write(store.segment(2), &bytes[..bytes.len() / 2]).expect("cut");
    std::fs::remove_dir_all(store.index()).expect("removed");
    let plan = json(1, &["expire", path, "--max-bytes", "0"]);
    assert_eq!(deleted(&plan), [1, 3]);
    assert!(actions(&plan)[1].2.contains("times are unknown"));
}

#[test]
fn interrupted_deletion_is_completed_by_the_next_run() {
    let folder = Folder::new("expire-interrupted");
    let store = sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    let content = std::fs::read(store.segment(1)).expect("segment");
    json(1, &["expire", path, "--max-bytes", "0"]);
    // As after a crash before the entry and the removal of segment 1.
    std::fs::write(store.segment(1), &content).expect("written");
    std::fs::remove_file(store.outbox().join("deletion-0000000001.entry")).expect("removed");
    json(0, &["expire", path, "--max-days", "40000"]);
    assert_eq!(files(&store), [4]);
    assert!(store.outbox().join("deletion-0000000001.entry").exists());
    // Another file in its place is no deleted segment.
    std::fs::write(store.segment(1), b"another").expect("written");
    let (_, message) = audit_code(2, &["expire", path, "--max-days", "40000"]);
    assert!(message.contains("0000000001.deleted.json"), "{message}");
    assert!(store.segment(1).exists());
}

#[test]
fn hold_stops_an_interrupted_deletion() {
    let folder = Folder::new("expire-hold");
    let store = sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    let content = std::fs::read(store.segment(1)).expect("segment");
    json(1, &["expire", path, "--max-bytes", "0"]);
    // As after a crash before the removal of segment 1.
    std::fs::write(store.segment(1), &content).expect("written");
    audit_code(0, &["hold", path, "--set", "a", "--reason", "r", "--from", "2020-01-01"]);
    let (_, message) = audit_code(0, &["expire", path, "--max-days", "40000"]);
    assert!(message.contains("0000000001 stays") && message.contains("hold a"), "{message}");
    assert_eq!(files(&store), [1, 4]);
    audit_code(0, &["hold", path, "--lift", "a", "--reason", "r"]);
    json(0, &["expire", path, "--max-days", "40000"]);
    assert_eq!(files(&store), [4]);
}

#[test]
fn acknowledged_entry_is_not_sent_again() {
    let folder = Folder::new("outbox");
    let store = sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    audit_code(0, &["hold", path, "--set", "a", "--reason", "r", "--connection", "3"]);
    let entry = outbox::pending(&store).expect("outbox").remove(0);
    outbox::acknowledge(&store, &entry.name, &entry.entry, b"proof").expect("acknowledged");
    audit_code(0, &["hold", path, "--lift", "a", "--reason", "r"]);
    let names: Vec<String> =
        outbox::pending(&store).expect("outbox").into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["hold-0000000002"]);
}

#[test]
fn receipt_of_a_deletion_stands_in_the_outbox() {
    let folder = Folder::new("outbox-deletion");
    let store = sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    audit_code(1, &["expire", path, "--max-bytes", "0"]);
    let entry = outbox::pending(&store).expect("outbox").remove(0);
    outbox::acknowledge(&store, &entry.name, &entry.entry, b"proof").expect("acknowledged");
    let receipt = std::fs::read(store.outbox().join(format!("{}.receipt", entry.name))).expect("receipt");
    let receipt = EventReceipt::decode(&receipt).expect("receipt");
    assert_eq!((receipt.entry, receipt.proof), (&entry.entry[..], &b"proof"[..]));
}

#[test]
fn status_shows_batches_bytes_and_the_lock() {
    let folder = Folder::new("status");
    let store = sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    audit_code(0, &["hold", path, "--set", "a", "--reason", "r", "--sni", "*.example1.com"]);
    std::fs::write(folder.0.join("spill-0001.blk"), [0; 500]).expect("written");
    let status = json(0, &["status", path]);
    assert_eq!(status["recording"], false);
    assert_eq!(
        (&status["segments"], &status["spill_bytes"], &status["waiting_entries"]),
        (&4.into(), &500.into(), &1.into())
    );
    assert_eq!(
        (&status["last_batch"], &status["last_acknowledged"], &status["pending_batches"]),
        (&14.into(), &13.into(), &1.into())
    );
    assert_eq!(status["holds"][0]["selection"], "--sni *.example1.com");
    assert!(status["days_left"].as_f64().is_some_and(|days| days > 0.0));
    assert!(status["first"].as_str().is_some_and(|first| first.starts_with("2026-11-28T10:3")));
    let _lock = store.lock().expect("lock");
    assert_eq!(json(0, &["status", path])["recording"], true);
    let (out, _) = audit_code(0, &["status", path]);
    assert!(out.contains("recording     yes") && out.contains("days at the rate"), "{out}");
}
