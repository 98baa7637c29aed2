//! The index: a rebuilt one has the rows of the live one, and damage is an error with its file.

mod index_support;

use evergate_audit::index::{IndexEvent, IndexWriter, SegmentTable, catch_up, rebuild};
use evergate_audit::store::Store;
use index_support::{BASE_NS, DAY_NS, Folder, StoreBuilder, audit, audit_code, connection, place, sample};
use proptest::prelude::*;
use rusqlite::types::Value;
use std::path::Path;
use std::sync::OnceLock;

/// All rows of all tables of all files of an index, in the order of their keys.
fn dump(store: &Store) -> Vec<String> {
    let mut files: Vec<_> = std::fs::read_dir(store.index())
        .expect("index")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sqlite"))
        .collect();
    files.sort();
    files.iter().flat_map(|path| dump_file(path)).collect()
}

fn dump_file(path: &Path) -> Vec<String> {
    let file = rusqlite::Connection::open(path).expect("SQLite");
    let name = path.file_name().expect("name").to_string_lossy().into_owned();
    let mut tables =
        file.prepare("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").expect("tables");
    let tables: Vec<String> =
        tables.query_map([], |row| row.get(0)).expect("tables").map(|table| table.expect("name")).collect();
    let mut lines = Vec::new();
    for table in tables {
        let mut statement = file
            .prepare(&format!("SELECT * FROM {table} ORDER BY 1, 2, 3"))
            .or_else(|_| file.prepare(&format!("SELECT * FROM {table} ORDER BY 1")))
            .expect("table");
        let columns = statement.column_count();
        let mut rows = statement.query([]).expect("rows");
        while let Some(row) = rows.next().expect("row") {
            let values: Vec<Value> = (0..columns).map(|at| row.get(at).expect("value")).collect();
            lines.push(format!("{name} {table} {values:?}"));
        }
    }
    lines
}

#[test]
fn rebuilt_index_equals_the_live_one() {
    let folder = Folder::new("equal");
    let store = sample(&folder.0, 1);
    let live = dump(&store);
    let count = |what: &str| live.iter().filter(|line| line.contains(what)).count();
    assert_eq!(count(" envelope ["), 50);
    assert_eq!(
        (count(" connection ["), count(" request ["), count("segments.sqlite segment [")),
        (400, 40, 4)
    ); // the fourth is open
    let result = rebuild(&store).expect("rebuilt");
    assert!(result.damaged.is_empty(), "{:?}", result.damaged);
    let without_open = |lines: Vec<String>| -> Vec<String> {
        lines.into_iter().filter(|line| !line.contains("segment [Integer(4)")).collect()
    };
    assert_eq!(without_open(dump(&store)), without_open(live));
}

#[test]
fn complete_segments_are_not_read_again() {
    let folder = Folder::new("complete");
    let store = sample(&folder.0, 1);
    let result = catch_up(&store).expect("up to date");
    assert_eq!((result.complete, result.segments), (3, 1)); // the open one
    let before = dump(&store);
    catch_up(&store).expect("again");
    assert_eq!(dump(&store), before);
}

#[test]
fn index_after_lost_rows_is_completed_from_segments() {
    let folder = Folder::new("lost");
    let store = sample(&folder.0, 1);
    rebuild(&store).expect("rebuilt");
    let whole = dump(&store);
    for name in ["2026-11-28.sqlite", "2026-11-29.sqlite"] {
        let file = rusqlite::Connection::open(store.index().join(name)).expect("SQLite");
        file.execute_batch(
            "DELETE FROM connection WHERE number % 3 = 0; DELETE FROM extent WHERE connection > 50",
        )
        .expect("deleted");
    }
    let segments = rusqlite::Connection::open(store.index().join("segments.sqlite")).expect("SQLite");
    segments.execute_batch("UPDATE segment SET is_complete = 0").expect("updated");
    drop(segments);
    catch_up(&store).expect("completed");
    assert_eq!(dump(&store), whole);
}

#[test]
fn full_queue_leaves_the_segment_incomplete() {
    let folder = Folder::new("full");
    let builder = StoreBuilder::new(&folder.0, 1);
    let index = IndexWriter::start(&builder.store).expect("index");
    let record = Box::new(connection(1, BASE_NS, true));
    let mut is_full = false;
    for seq in 0..2_000_000 {
        is_full |= !index.try_send(IndexEvent::Connection(record.clone(), place(seq)));
        if is_full {
            break;
        }
    }
    assert!(is_full);
    index.flush();
    let row = |number| evergate_audit::index::SegmentRow { number, is_closed: true, ..Default::default() };
    assert!(index.try_send(IndexEvent::Segment(row(1))));
    assert!(index.try_send(IndexEvent::Segment(row(2))));
    assert!(index.lost() > 0);
    drop(index);
    let table = SegmentTable::open(&builder.store).expect("table");
    let complete: Vec<bool> = table.all().expect("rows").iter().map(|segment| segment.is_complete).collect();
    assert_eq!(complete, [false, true]);
}

#[test]
fn later_record_of_a_connection_wins_in_any_order() {
    let folder = Folder::new("final");
    let builder = StoreBuilder::new(&folder.0, 1);
    let index = IndexWriter::start(&builder.store).expect("index");
    let (interim, last) = (connection(7, BASE_NS, false), connection(7, BASE_NS, true));
    for (record, seq) in [(&last, 9), (&interim, 5), (&last, 9)] {
        assert!(index.try_send(IndexEvent::Connection(Box::new(record.clone()), place(seq))));
    }
    drop(index);
    let file = rusqlite::Connection::open(builder.store.index().join("2026-11-28.sqlite")).expect("SQLite");
    let row: (i64, bool) = file
        .query_row("SELECT record_seq, is_final FROM connection", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .expect("one row");
    assert_eq!(row, (9, true));
}

#[test]
fn file_that_is_no_index_is_an_error_with_its_name() {
    let folder = Folder::new("no-index");
    let store = sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    let file = store.index().join("segments.sqlite");
    for bytes in [&b"not a database, but longer than a header of one hundred bytes "[..], b"x"] {
        for suffix in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(store.index().join(format!("segments.sqlite{suffix}")));
        }
        std::fs::write(&file, bytes.repeat(20)).expect("written");
        let (_, message) = audit_code(2, &["index", path]);
        assert!(message.contains("segments.sqlite"), "{message}");
        assert!(message.contains("--rebuild"), "{message}");
    }
    audit_code(0, &["index", path, "--rebuild"]);
    audit_code(0, &["index", path]);
    rusqlite::Connection::open(&file)
        .expect("SQLite")
        .execute_batch("CREATE TRIGGER t AFTER INSERT ON segment BEGIN DELETE FROM segment; END")
        .expect("trigger");
    assert!(audit_code(2, &["index", path]).1.contains("not an index of this version"));
}

#[test]
fn damaged_segment_is_named_and_the_rest_is_indexed() {
    let folder = Folder::new("damaged");
    let store = sample(&folder.0, 1);
    let path = store.segment(2);
    let mut bytes = std::fs::read(&path).expect("segment");
    let middle = bytes.len() / 2;
    bytes[middle..middle + 400].fill(0xff);
    std::fs::write(&path, bytes).expect("written");
    let (_, message) = audit_code(2, &["index", folder.0.to_str().expect("path"), "--rebuild"]);
    assert!(message.contains("0000000002.pcapng") && message.contains("at byte"), "{message}");
    let connections = dump(&store).iter().filter(|line| line.contains(" connection [")).count();
    assert!((301..400).contains(&connections), "{connections}");
}

#[test]
fn times_of_many_days_have_a_bound() {
    let folder = Folder::new("days");
    let mut builder = StoreBuilder::new(&folder.0, 1);
    builder.begin_segment();
    for day in 0..40 {
        builder.push_connection(day + 1, day * 500 * DAY_NS);
    }
    builder.end_segment();
    let result = rebuild(&builder.store).expect("rebuilt");
    assert!(result.damaged.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_segments_are_indexed_or_named(
        at in 0.0f64..1.0, bytes in prop::collection::vec(any::<u8>(), 1..200), is_inserted: bool
    ) {
        static STORE: OnceLock<(Folder, Vec<u8>)> = OnceLock::new();
        let (folder, whole) = STORE.get_or_init(|| {
            let folder = Folder::new("index-changed");
            let mut builder = StoreBuilder::new(&folder.0, 1);
            for segment in 0..2 {
                builder.begin_segment();
                (1..20).for_each(|number| builder.push_connection(segment * 20 + number, BASE_NS + number));
                builder.end_segment();
            }
            let whole = std::fs::read(builder.store.segment(1)).expect("segment");
            (folder, whole)
        });
        let store = Store::at(&folder.0);
        let begin = (at * whole.len() as f64) as usize;
        let end = if is_inserted { begin } else { whole.len().min(begin + bytes.len()) };
        let changed = [&whole[..begin], &bytes, &whole[end..]].concat();
        std::fs::write(store.segment(1), &changed).expect("changed");
        let result = rebuild(&store).expect("other errors have no cause");
        for error in &result.damaged {
            prop_assert!(error.to_string().contains("0000000001.pcapng"), "{}", error);
        }
    }

    #[test]
    fn changed_index_is_read_or_refused(at in 0.0f64..1.0, value: u8, length in 1usize..200) {
        static STORE: OnceLock<(Folder, Vec<u8>)> = OnceLock::new();
        let (folder, whole) = STORE.get_or_init(|| {
            let folder = Folder::new("index-hostile");
            let store = sample(&folder.0, 1);
            let whole = std::fs::read(store.index().join("2026-11-28.sqlite")).expect("index");
            (folder, whole)
        });
        let mut bytes = whole.clone();
        let begin = (at * bytes.len() as f64) as usize;
        let end = bytes.len().min(begin + length);
        bytes[begin..end].fill(value);
        std::fs::write(folder.0.join("index/2026-11-28.sqlite"), bytes).expect("changed");
        let path = folder.0.to_str().expect("path");
        for query in [&[][..], &["--sni", "*.example1.com"], &["--request-id", "abc"]] {
            let output = audit(&[&["find", path, "--json"], query].concat());
            let message = String::from_utf8_lossy(&output.stderr);
            prop_assert!(matches!(output.status.code(), Some(0 | 2)), "{:?} {message}", output.status);
            prop_assert!(!message.contains("panicked"), "{message}");
        }
    }
}

#[test]
fn rebuild_beside_a_recorder_is_refused() {
    let folder = Folder::new("locked");
    let store = sample(&folder.0, 1);
    let _lock = store.lock().expect("lock");
    let (_, message) = audit_code(2, &["index", folder.0.to_str().expect("path"), "--rebuild"]);
    assert!(message.contains("another process records"), "{message}");
}
