//! Lookup of connection records and envelopes: the answers of a scan, with few records read.

mod index_support;

use evergate_audit::index::{IndexWriter, catch_up, rebuild};
use evergate_audit::lookup::{RecordLookup, Wanted};
use evergate_audit::reveal::{Candidates, find_candidates};
use evergate_audit::store::Store;
use evergate_evidence::connection_record::ConnectionRecord;
use evergate_evidence::record::Body;
use index_support::{
    BASE_NS, DAY_NS, Folder, SECOND_NS, StoreBuilder, audit_code, connection, random_of, sample,
};
use std::path::PathBuf;

/// Three segments over two days. Connection 7 has three envelopes, one in another day and one before its record.
fn store(root: &std::path::Path, recorder: u8, first: u64, is_last_closed: bool) -> Store {
    let builder = StoreBuilder::new(root, recorder);
    let index = IndexWriter::start(&builder.store).expect("index");
    let mut builder = builder.with_index(&index);
    for segment in 0..3 {
        builder.begin_segment();
        for number in first + segment * 10..first + segment * 10 + 10 {
            builder.push_envelope(number, BASE_NS + number, 1);
            builder.push_connection(number, BASE_NS + number * 1000 * SECOND_NS);
        }
        builder.push_envelope(7, BASE_NS + segment * DAY_NS, 100 + segment as u8);
        match segment < 2 || is_last_closed {
            true => builder.end_segment(),
            false => builder.end_batch(None),
        }
    }
    builder.store.clone()
}

/// Answers of an index and of a scan.
fn both(store: &Store, wanted: Wanted) -> [(Option<ConnectionRecord>, Vec<Vec<u8>>, u64); 2] {
    [false, true].map(|is_scan| {
        let mut lookup = RecordLookup::open(store).expect("store");
        if is_scan {
            lookup.ignore_index();
        }
        let record = lookup.connection(wanted).expect("segments");
        let random = match (wanted, &record) {
            (Wanted::ClientRandom(random), _) => random,
            (_, record) => record.as_ref().map_or([0; 32], |record| record.tls.client_random),
        };
        let envelopes = lookup.envelopes(&random, 100).expect("segments");
        (record, envelopes, lookup.records_read())
    })
}

/// Compares every connection of a store, and one that it does not have.
fn compare(store: &Store, numbers: std::ops::Range<u64>) -> u64 {
    let mut read = 0;
    for number in numbers {
        for wanted in [Wanted::Number(number), Wanted::ClientRandom(random_of(number))] {
            let [index, scan] = both(store, wanted);
            assert!((&index.0, &index.1) == (&scan.0, &scan.1), "{wanted:?}");
            read += index.2;
        }
    }
    read
}

#[test]
fn index_has_the_answers_of_a_scan() {
    for is_last_closed in [true, false] {
        let folder = Folder::new(&format!("lookup-{is_last_closed}"));
        let store = store(&folder.0, 1, 1, is_last_closed);
        compare(&store, 1..32);
        let [(record, envelopes, _), _] = both(&store, Wanted::Number(7));
        assert_eq!((record.expect("recorded").is_final, envelopes.len()), (true, 4));
        rebuild(&store).expect("rebuilt");
        compare(&store, 1..32);
        // Without an index, and with one that is no index.
        for bytes in [None, Some(b"not a database, but longer than a header of a hundred bytes".repeat(20))] {
            std::fs::remove_dir_all(store.index()).expect("removed");
            std::fs::create_dir_all(store.index()).expect("folder");
            if let Some(bytes) = bytes {
                std::fs::write(store.index().join("segments.sqlite"), bytes).expect("written");
            }
            compare(&store, 5..8);
        }
    }
}

#[test]
fn few_records_are_read_of_thousands_of_connections() {
    let folder = Folder::new("lookup-many");
    let mut builder = StoreBuilder::new(&folder.0, 1);
    for segment in 0..4 {
        builder.begin_segment();
        for number in segment * 1000 + 1..=segment * 1000 + 1000 {
            builder.push_envelope(number, BASE_NS + number * 40 * SECOND_NS, 1);
            builder.push_connection(number, BASE_NS + number * 40 * SECOND_NS);
        }
        builder.end_segment();
    }
    let records = rebuild(&builder.store).expect("rebuilt").records;
    assert!(records > 28_000, "{records}");
    for number in [1_u64, 777, 2001, 3998] {
        let [index, scan] = both(&builder.store, Wanted::ClientRandom(random_of(number)));
        assert!((&index.0, &index.1) == (&scan.0, &scan.1), "{number}");
        assert_eq!(index.1.len(), 1);
        assert_eq!((index.2, scan.2), (2, 2 * records), "records read by the index, and by a scan");
    }
    // All connections at once: the records at their places, or whole segments where these are less to read.
    let mut lookup = RecordLookup::open(&builder.store).expect("store");
    let wanted = [random_of(5), random_of(2222), random_of(9_999_999)];
    let found = lookup.connections(|random| wanted.contains(random)).expect("segments");
    assert_eq!(found.len(), 2);
    assert_eq!(found[&random_of(2222)], connection(2222, BASE_NS + 2222 * 40 * SECOND_NS, true));
    assert_eq!(lookup.records_read(), 2);
    let all = lookup.connections(|_| true).expect("segments");
    assert_eq!(all.len(), 3600, "nine of ten connections have a random");
    assert_eq!(lookup.records_read(), 2 + records);
}

#[test]
fn candidates_of_several_recorders_come_from_their_indexes() {
    let folder = Folder::new("lookup-recorders");
    let paths: Vec<PathBuf> = ["a", "b", "c"].iter().map(|name| folder.0.join(name)).collect();
    let mut stores = Vec::new();
    for (at, path) in paths.iter().enumerate() {
        std::fs::create_dir_all(path).expect("folder");
        stores.push(store(path, at as u8 + 1, 100 * at as u64 + 1, true));
    }
    let find = |wanted, recorder: Option<[u8; 32]>| {
        find_candidates(&paths, &[], wanted, recorder.as_ref()).expect("stores")
    };
    let answer = |found: &Candidates| (found.recorder, found.record.clone(), found.envelopes.clone());
    let numbers = [7, 30, 101, 130, 205, 999];
    let ask = || numbers.map(|number| find(Wanted::ClientRandom(random_of(number)), None));
    let by_index = ask();
    // One envelope of connection 7 is in the first store only; three are in every store, byte for byte the same.
    assert_eq!(by_index[0].envelopes.len(), 4);
    // A record and an envelope, at their places; the indexes of the other stores lack both.
    assert_eq!((by_index[1].records_read, by_index[3].records_read), (2, 2));
    assert_eq!((by_index[4].recorder, by_index[4].records_read), ([3; 32], 2));
    assert!(find(Wanted::ClientRandom(random_of(7)), Some([2; 32])).record.is_none());
    for store in &stores {
        std::fs::remove_dir_all(store.index()).expect("removed");
    }
    let by_scan = ask();
    assert!(by_index.each_ref().map(answer) == by_scan.each_ref().map(answer));
    assert!(by_scan[1].records_read > 3 * 100, "{}", by_scan[1].records_read);
}

/// Changes every hot file of an index.
fn change(store: &Store, sql: &str) {
    let mut changed = 0;
    for entry in std::fs::read_dir(store.index()).expect("index") {
        let path = entry.expect("entry").path();
        let name = path.file_name().expect("name").to_string_lossy().into_owned();
        if name.ends_with(".sqlite") && name.starts_with("20") {
            changed += rusqlite::Connection::open(&path).expect("SQLite").execute(sql, []).expect("changed");
        }
    }
    assert!(changed > 0, "{sql}");
}

#[test]
fn bogus_rows_lead_to_the_answers_of_a_scan() {
    let folder = Folder::new("lookup-bogus");
    let store = store(&folder.0, 1, 1, true);
    let random = |number| format!("x'{}'", index_support::hex(&random_of(number)));
    let changes = [
        "UPDATE envelope SET record_offset = record_offset + 4".to_owned(),
        "UPDATE envelope SET record_offset = 1 << 62".to_owned(),
        "UPDATE envelope SET record_offset = -1, seq = -seq".to_owned(),
        "UPDATE envelope SET record_offset = 0".to_owned(),
        "UPDATE envelope SET record_segment = record_segment % 3 + 1".to_owned(),
        "UPDATE connection SET record_segment = record_segment % 3 + 1".to_owned(),
        "UPDATE connection SET record_seq = record_seq + 1".to_owned(),
        "UPDATE connection SET record_segment = 77".to_owned(),
        // The places of connection 8 under the random and the number of connection 7.
        format!("UPDATE envelope SET client_random = {} WHERE client_random = {}", random(7), random(8)),
        "DELETE FROM connection".to_owned(),
    ];
    for sql in changes {
        rebuild(&store).expect("rebuilt");
        change(&store, &sql);
        let wanted = Wanted::ClientRandom(random_of(7));
        let [_, scan] = both(&store, wanted);
        let found = find_candidates(std::slice::from_ref(&folder.0), &[], wanted, None).expect("store");
        assert!((found.record, found.envelopes) == (scan.0, scan.1), "{sql}");
    }
    // An index without the envelopes that segments have.
    rebuild(&store).expect("rebuilt");
    change(&store, "DELETE FROM envelope");
    let wanted = Wanted::ClientRandom(random_of(7));
    let [index, scan] = both(&store, wanted);
    assert_eq!((index.1.len(), scan.1.len()), (0, 4));
    let found = find_candidates(std::slice::from_ref(&folder.0), &[], wanted, None).expect("store");
    assert_eq!(found.envelopes, scan.1);
}

#[test]
fn segments_that_the_index_lacks_are_scanned() {
    let folder = Folder::new("lookup-lost");
    let store = store(&folder.0, 1, 1, true);
    let [index, _] = both(&store, Wanted::Number(15));
    assert_eq!(index.2, 2);
    change(&store, "DELETE FROM envelope WHERE record_segment <> 1");
    let segments = rusqlite::Connection::open(store.index().join("segments.sqlite")).expect("SQLite");
    segments.execute_batch("UPDATE segment SET is_complete = 0 WHERE number <> 1").expect("updated");
    drop(segments);
    for number in [15, 25] {
        let [index, scan] = both(&store, Wanted::Number(number));
        assert!((&index.0, &index.1) == (&scan.0, &scan.1), "{number}");
        assert!(index.2 > 10 && index.2 < scan.2, "{} of {}", index.2, scan.2);
    }
    catch_up(&store).expect("completed");
    compare(&store, 11..31);
}

/// A hold keeps a segment with an interim record, and the segment of the final one is removed.
#[test]
fn record_before_a_removed_segment_is_found() {
    let folder = Folder::new("lookup-removed");
    let mut builder = StoreBuilder::new(&folder.0, 1);
    for is_final in [false, true] {
        builder.begin_segment();
        builder.push(Body::Connection(Box::new(connection(5, BASE_NS, is_final))));
        builder.push_connection(6 + u64::from(is_final), BASE_NS);
        builder.end_segment();
    }
    rebuild(&builder.store).expect("rebuilt");
    std::fs::remove_file(builder.store.segment(2)).expect("removed");
    for wanted in [Wanted::Number(5), Wanted::ClientRandom(random_of(5))] {
        let [index, scan] = both(&builder.store, wanted);
        assert_eq!(
            (index.0.as_ref(), scan.0.map(|record| record.is_final)),
            (Some(&connection(5, BASE_NS, false)), Some(false))
        );
    }
    let mut lookup = RecordLookup::open(&builder.store).expect("store");
    assert_eq!(lookup.connections(|random| *random == random_of(5)).expect("segments").len(), 1);
}

#[test]
fn index_of_another_version_is_refused_and_not_used() {
    let folder = Folder::new("lookup-version");
    let store = store(&folder.0, 1, 1, true);
    let path = folder.0.to_str().expect("path");
    for name in ["segments.sqlite", "2026-11-28.sqlite"] {
        let file = rusqlite::Connection::open(store.index().join(name)).expect("SQLite");
        file.pragma_update(None, "user_version", 1).expect("version");
        drop(file);
        compare(&store, 6..9);
        let [index, scan] = both(&store, Wanted::Number(8));
        assert_eq!(index.2, scan.2, "{name}: every segment is read");
        let (_, message) = audit_code(2, &["find", path]);
        assert!(
            message.contains("not an index of this version") && message.contains("--rebuild"),
            "{message}"
        );
        audit_code(0, &["index", path, "--rebuild"]);
        assert!(both(&store, Wanted::Number(8))[0].2 < 10, "{name}: rebuilt");
    }
}

#[cfg(feature = "cold")]
#[test]
fn frozen_days_have_the_answers_of_a_scan() {
    let folder = Folder::new("lookup-cold");
    let store = sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    let hot = compare(&store, 95..110);
    for day in ["2026-11-28", "2026-11-29"] {
        audit_code(0, &["index", path, "--freeze", day]);
        assert_eq!(compare(&store, 95..110), hot, "{day}: the same records are read");
    }
}

#[cfg(not(feature = "cold"))]
#[test]
fn index_of_a_live_recorder_has_the_answers_of_a_scan() {
    let folder = Folder::new("lookup-sample");
    compare(&sample(&folder.0, 1), 95..110);
}
