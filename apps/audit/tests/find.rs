//! `find`: every condition, over one store and over several.

mod index_support;

use index_support::{
    BASE_NS, DAY_NS, Folder, SECOND_NS, audit_code, connection, hex, json_lines, random_of, request_id,
    sample,
};
use serde_json::Value;

/// Numbers of the connections that `find` prints.
fn numbers(path: &str, arguments: &[&str]) -> Vec<u64> {
    let all = [&["find", path, "--json", "--limit", "10000"], arguments].concat();
    let (out, _) = audit_code(0, &all);
    json_lines(&out).iter().map(|line| line["connection"].as_u64().expect("number")).collect()
}

/// Numbers of the sample's connections that meet a condition.
fn expected(meets: impl Fn(u64) -> bool) -> Vec<u64> {
    (1..=400).filter(|number| meets(*number)).collect()
}

#[test]
fn find_meets_each_condition() {
    let folder = Folder::new("find");
    sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    assert_eq!(numbers(path, &[]), expected(|_| true));
    assert_eq!(numbers(path, &["--connection", "77"]), [77]);
    let random = hex(&random_of(123));
    assert_eq!(numbers(path, &["--client-random", &random]), [123]);
    assert_eq!(numbers(path, &["--client-random", &random[..10]]), [123]);
    assert_eq!(numbers(path, &["--client-random", &random[..40]]), [123]);
    assert_eq!(numbers(path, &["--client-random", &"00".repeat(32)]), Vec::<u64>::new());
    let is_tls = |n: u64| n % 10 != 9;
    assert_eq!(
        numbers(path, &["--sni", "host5.EXAMPLE1.com"]),
        expected(|n| is_tls(n) && n % 13 == 5 && n % 3 == 1)
    );
    assert_eq!(numbers(path, &["--sni", "*.example2.com"]), expected(|n| is_tls(n) && n % 3 == 2));
    assert_eq!(numbers(path, &["--sni", "*.ample2.com"]), Vec::<u64>::new());
    assert_eq!(numbers(path, &["--client", "10.0.0.3"]), expected(|n| n % 5 != 0 && n == 3));
    assert_eq!(numbers(path, &["--client", "10.0.1.0/24"]), expected(|n| n % 5 != 0 && n >> 8 == 1));
    assert_eq!(numbers(path, &["--client", "2001:db8::/32"]), expected(|n| n % 5 == 0));
    assert_eq!(numbers(path, &["--client", ":20042"]), [42]);
    assert_eq!(numbers(path, &["--server", "192.0.2.4:443"]), expected(|n| n % 5 != 0 && n % 7 == 4));
    assert_eq!(numbers(path, &["--server", "192.0.2.4:80"]), Vec::<u64>::new());
    assert_eq!(numbers(path, &["--server", "[2001:db8:1::]/48", "--client", "[2001:db8::14]/128"]), [20]);
}

#[test]
fn find_by_time_meets_connections_that_overlap() {
    let folder = Folder::new("find-time");
    sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    let time = |ns: u64| evergate_audit::when::shown_ns(ns);
    let (from, to) = (BASE_NS + 20_100 * SECOND_NS, BASE_NS + 60_000 * SECOND_NS);
    let overlaps = |n: u64| {
        let counts = connection(n, BASE_NS + n * 200 * SECOND_NS, true).counts;
        counts.first_ns <= to && counts.last_ns >= from
    };
    assert_eq!(numbers(path, &["--from", &time(from), "--to", &time(to)]), expected(overlaps));
    let middle = BASE_NS + 49 * 200 * SECOND_NS + SECOND_NS; // connection 49 lasts five seconds
    assert_eq!(numbers(path, &["--from", &time(middle), "--to", &time(middle)]), [49]);
    assert_eq!(
        numbers(path, &["--from", "2026-11-29"]),
        expected(|n| BASE_NS + n * 200 * SECOND_NS >= BASE_NS / DAY_NS * DAY_NS + DAY_NS)
    );
    assert_eq!(numbers(path, &["--to", "-500d"]), Vec::<u64>::new());
}

#[test]
fn find_by_request_id_shows_the_request_and_extents() {
    let folder = Folder::new("find-request");
    sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    let (out, _) = audit_code(0, &["find", path, "--json", "--request-id", &request_id(31, 0)]);
    let lines = json_lines(&out);
    assert_eq!(lines.len(), 1);
    assert_eq!(lines[0]["connection"], 31);
    assert_eq!(lines[0]["requests"][0]["id"], request_id(31, 0));
    assert_eq!(lines[0]["extents"][0]["segment"], 1);
    assert_eq!(lines[0]["extents"][0]["packets"], 4);
    assert_eq!(lines[0]["extents"][0]["deleted"], false);
    assert_eq!(numbers(path, &["--request-id", "abc"]), expected(|n| n % 20 == 1 && n % 10 != 9));
    assert_eq!(numbers(path, &["--request-id", "absent"]), Vec::<u64>::new());
}

#[test]
fn find_over_two_stores_is_in_the_order_of_time() {
    let folder = Folder::new("find-two");
    let (one, two) = (folder.0.join("one"), folder.0.join("two"));
    sample(&one, 1);
    sample(&two, 2);
    let (one, two) = (one.to_str().expect("path"), two.to_str().expect("path"));
    let (out, message) = audit_code(0, &["find", one, two, "--json", "--limit", "5"]);
    let lines = json_lines(&out);
    let shown: Vec<(u64, &str)> = lines
        .iter()
        .map(|line| (line["connection"].as_u64().expect("number"), line["store"].as_str().expect("store")))
        .collect();
    assert_eq!(shown, [(1, one), (1, two), (2, one), (2, two), (3, one)]);
    assert!(message.contains("there are more"), "{message}");
    let (out, _) = audit_code(0, &["find", one, two, "--limit", "4"]);
    assert!(out.lines().next().expect("head").contains("STORE"), "{out}");
    assert_eq!(out.lines().count(), 5);
}

#[test]
fn hostile_text_is_escaped_in_both_outputs() {
    let folder = Folder::new("find-hostile");
    let mut builder = index_support::StoreBuilder::new(&folder.0, 1);
    builder.begin_segment();
    let mut record = connection(1, BASE_NS, true);
    record.tls.sni = b"evil\x1b[2J\xff\xc2\x9b\\".to_vec();
    builder.push(evergate_evidence::record::Body::Connection(Box::new(record)));
    builder.end_segment();
    let path = folder.0.to_str().expect("path");
    audit_code(0, &["index", path]);
    for arguments in [&["find", path][..], &["find", path, "--json"]] {
        let (out, _) = audit_code(0, arguments);
        assert!(!out.contains(['\x1b', '\u{9b}']), "{out:?}");
    }
    let (out, _) = audit_code(0, &["find", path, "--json"]);
    assert_eq!(json_lines(&out)[0]["sni"], "evil\x1b[2j\\xff\u{9b}\\\\");
}

#[test]
fn wrong_input_is_an_error_with_its_reason() {
    let folder = Folder::new("find-wrong");
    sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    for (arguments, reason) in [
        (&["--client", "absent.example"][..], "is no address"),
        (&["--from", "yesterday"], "is no time"),
        (&["--from", "now", "--to", "-1h"], "ends before it begins"),
        (&["--client-random", "xyz"], "hexadecimal"),
        (&["--sni", "a*b"], "*.DOMAIN"),
    ] {
        let (_, message) = audit_code(2, &[&["find", path], arguments].concat());
        assert!(message.contains(reason), "{message}");
    }
    let (_, message) = audit_code(2, &["find", folder.0.join("absent").to_str().expect("path")]);
    assert!(message.contains("no store.json"), "{message}");
    std::fs::write(folder.0.join("index/2026-11-28.sqlite"), "nothing").expect("written");
    let (_, message) = audit_code(2, &["find", path]);
    assert!(message.contains("2026-11-28.sqlite"), "{message}");
}

#[test]
fn missing_index_is_reported() {
    let folder = Folder::new("find-missing");
    let store = sample(&folder.0, 1);
    std::fs::remove_dir_all(store.index()).expect("removed");
    let (out, message) = audit_code(0, &["find", folder.0.to_str().expect("path"), "--json"]);
    assert_eq!(json_lines(&out), Vec::<Value>::new());
    assert!(message.contains("lacks rows of 3 segments"), "{message}");
}
