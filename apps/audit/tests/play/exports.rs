//! Files of `export`, read by other tools.

use crate::rig::{Recorded, audit, played, recorded};
use serde_json::Value;
use std::collections::BTreeSet;
#[cfg(feature = "cold")]
use std::io::Write;
#[cfg(feature = "cold")]
use std::path::{Path, PathBuf};
use std::process::Command;

/// Exports all sessions; answers the path and the summary.
fn export(recorded: &Recorded, format: &str, more: &[&str]) -> (String, Value) {
    let path = recorded.path(&format!("export-{}.{format}", more.len()));
    let (store, keys) = (recorded.store(), recorded.keys());
    let fixed = ["export", &store, "--secrets", &keys, "--format", format, "--output", &path, "--json"];
    let (out, _) = audit(0, &[&fixed[..], more].concat());
    (path, serde_json::from_str(&out).unwrap())
}

/// Runs a tool; `None` with a note if it is not installed. In CI it must be.
fn tool(name: &str, arguments: &[&str]) -> Option<String> {
    let output = match Command::new(name).args(arguments).output() {
        Ok(output) => output,
        Err(_) => {
            assert!(std::env::var_os("CI").is_none(), "{name} is not installed");
            eprintln!("skipped a part of a test: {name} is not installed");
            return None;
        }
    };
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

fn requests(recorded: &Recorded) -> usize {
    recorded.sessions.values().map(Vec::len).sum()
}

#[test]
fn pcapng_opens_in_tshark_and_in_play() {
    let Some(recorded) = recorded() else { return };
    let (path, summary) = export(recorded, "pcapng", &["--with-credentials"]);
    assert_eq!(summary["sessions"], recorded.sessions.len());
    let (out, _) = audit(0, &["play", &path, "--json", "--limit", "1000", "--with-credentials"]);
    let played = played(&out);
    for (port, exchanges) in &recorded.sessions {
        assert_eq!(&played[port].exchanges(), exchanges);
    }
    let fields =
        ["-r", &path, "-Y", "http.request", "-T", "fields", "-e", "tcp.srcport", "-e", "http.request.method"];
    let Some(out) = tool("tshark", &fields) else { return };
    let count: usize =
        out.lines().map(|line| line.split('\t').nth(1).map_or(0, |methods| methods.split(',').count())).sum();
    assert_eq!(count, requests(recorded), "{out}");
}

#[test]
fn pcapng_of_one_session_has_its_packets_and_secrets_only() {
    let Some(recorded) = recorded() else { return };
    let (path, summary) = export(recorded, "pcapng", &["--with-credentials", "--connection", "7"]);
    assert_eq!(summary["sessions"], 1);
    let (out, _) = audit(0, &["find", &recorded.store(), "--json", "--connection", "7"]);
    let found: Value = serde_json::from_str(&out).unwrap();
    let Some(out) = tool("tshark", &["-r", &path, "-T", "fields", "-e", "tcp.stream"]) else { return };
    assert_eq!(out.lines().count(), found["packets"].as_u64().unwrap() as usize);
    assert_eq!(out.lines().collect::<BTreeSet<_>>().len(), 1);
    let content = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
    let lines = content.matches("CLIENT_TRAFFIC_SECRET_0").count() + content.matches("CLIENT_RANDOM").count();
    assert_eq!(lines, 1);
    let (_, err) = audit(2, &["export", &recorded.store(), "--format", "pcapng", "--output", &path]);
    assert!(err.contains("--with-credentials"), "{err}");
}

#[test]
fn har_has_every_exchange_and_no_credentials() {
    let Some(recorded) = recorded() else { return };
    let (path, summary) = export(recorded, "har", &[]);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("hidden") && !text.contains("aGlkZGVu"));
    assert!(summary["redacted"].as_u64().unwrap() > 0);
    let har: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(har["log"]["version"], "1.2");
    let entries = har["log"]["entries"].as_array().unwrap();
    assert_eq!(entries.len(), requests(recorded));
    for entry in entries {
        assert!(entry["time"].as_f64().unwrap() >= 0.0 && entry["_session"].as_str().unwrap().len() == 64);
        assert!(entry["request"]["url"].as_str().unwrap().starts_with("https://shop.example/"));
        assert_eq!(entry["response"]["status"], 200);
    }
    let (with, _) = export(recorded, "har", &["--with-credentials"]);
    assert!(std::fs::read_to_string(with).unwrap().contains("sid=hidden"));
}

#[test]
fn json_has_a_line_for_each_message_and_session() {
    let Some(recorded) = recorded() else { return };
    let (path, summary) = export(recorded, "json", &[]);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("hidden"));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |kind: &str| lines.iter().filter(|line| line["type"] == kind).count();
    assert_eq!(count("session"), recorded.sessions.len());
    assert_eq!((count("request"), count("response")), (requests(recorded), requests(recorded)));
    assert_eq!(summary["messages"], 2 * requests(recorded));
}

/// A Python with DuckDB: that of `scripts/setup duckdb`, or the system's. Without one a line on the real standard error
/// shows it: output of a test that passes is hidden. In CI it must be there.
#[cfg(feature = "cold")]
fn duckdb() -> Option<PathBuf> {
    let pythons = [Path::new(env!("CARGO_TARGET_TMPDIR")).join("../duckdb/bin/python"), "python3".into()];
    let has_duckdb = |python: &PathBuf| {
        let output = Command::new(python).args(["-c", "import duckdb"]).output();
        output.is_ok_and(|output| output.status.success())
    };
    let found = pythons.into_iter().find(has_duckdb);
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "DuckDB is not installed: scripts/setup duckdb");
        let text = b"skipped a part of a test: DuckDB is not installed: scripts/setup duckdb\n";
        std::io::stderr().write_all(text).unwrap();
    }
    found
}

#[cfg(feature = "cold")]
#[test]
fn parquet_opens_in_duckdb_and_in_the_library() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    let Some(recorded) = recorded() else { return };
    let (path, summary) = export(recorded, "parquet", &[]);
    let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
    let rows = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!((rows.len(), &summary["messages"]), (2 * requests(recorded), &rows.len().into()));
    assert!(rows.iter().all(|row| !row.to_string().contains("hidden")));
    let Some(python) = duckdb() else { return };
    let query = format!(
        "import duckdb\nfor row in duckdb.connect().execute(\"select kind, count(*), sum(body_bytes), \
         min(first_ns) > '2020-01-01', max(status) from '{path}' group by kind order by kind\").fetchall(): \
         print(*row)"
    );
    let out = tool(python.to_str().unwrap(), &["-c", &query]).unwrap();
    let exchanges = || recorded.sessions.values().flatten();
    let sums = [
        ("request", exchanges().map(|exchange| exchange.request.len()).sum::<usize>()),
        ("response", exchanges().map(|exchange| exchange.response.len()).sum()),
    ];
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 2, "{out}");
    for (line, (kind, bytes)) in lines.iter().zip(sums) {
        let expected = format!("{kind} {} {bytes} True ", requests(recorded));
        assert!(line.starts_with(&expected), "{line}, expected {expected}");
    }
}

/// The cold index opens in DuckDB as well.
#[cfg(feature = "cold")]
#[test]
fn cold_index_opens_in_duckdb() {
    let Some(recorded) = recorded() else { return };
    let Some(python) = duckdb() else { return };
    let (out, _) = audit(0, &["find", &recorded.store(), "--json", "--limit", "100000"]);
    let connections: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let day = connections[0]["first"].as_str().unwrap().split('T').next().unwrap().to_owned();
    let of_day =
        connections.iter().filter(|found| found["first"].as_str().unwrap().starts_with(&day)).count();
    let store = recorded.path("cold-store");
    copy_folder(Path::new(&recorded.store()), Path::new(&store));
    audit(0, &["index", &store, "--freeze", &day]);
    let query = format!(
        "import duckdb; print(*duckdb.connect().execute(\"select count(*), count(distinct number), \
         sum(packets) from '{store}/cold/connection/{day}.parquet'\").fetchall()[0])"
    );
    let out = tool(python.to_str().unwrap(), &["-c", &query]).unwrap();
    let packets: u64 = connections.iter().map(|found| found["packets"].as_u64().unwrap()).sum();
    let numbers: Vec<&str> = out.split_whitespace().collect();
    assert_eq!(numbers[..2], [of_day.to_string(), of_day.to_string()]);
    assert!(of_day < connections.len() || numbers[2] == packets.to_string(), "{out}");
}

#[cfg(feature = "cold")]
fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_folder(&path, &to);
        } else {
            std::fs::copy(&path, &to).unwrap();
        }
    }
}

#[test]
fn query_counts_connections_by_version() {
    let Some(recorded) = recorded() else { return };
    let sql = "SELECT version, count(*) AS n FROM connection WHERE sni = 'shop.example' GROUP BY version ORDER BY 1";
    let (out, _) = audit(0, &["query", sql, &recorded.store(), "--json"]);
    let rows: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |version: &str| recorded.kinds.values().filter(|(kind, _)| kind.starts_with(version)).count();
    assert_eq!(rows[0], serde_json::json!({"version": 0x0303, "n": of("TLSv1.2")}));
    assert_eq!(rows[1], serde_json::json!({"version": 0x0304, "n": of("TLSv1.3")}));
    for sql in ["DELETE FROM connection", "CREATE TABLE x(y)", "nonsense", "PRAGMA query_only = 0"] {
        audit(2, &["query", sql, &recorded.store()]);
    }
}
