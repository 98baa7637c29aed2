//! Reasons of ended requests and connections: the code and the documents have the same.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Words in the sources that look like reasons and are none. They name connections that an upgrade leaves behind, and
/// have their own table and test.
const OTHERS: [&str; 3] = ["no_server_socket", "older_configuration", "too_large"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.path() {
            path if path.is_dir() => sources(&path, found),
            path if path.extension().is_some_and(|extension| extension == "rs") => found.push(path),
            _ => {}
        }
    }
}

/// Whether a text has the form of a reason: words joined by `_`, or one of the reasons of a single word.
fn is_reason(text: &str) -> bool {
    let shape = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    shape && (text.contains('_') || text == "shutdown") && !OTHERS.contains(&text)
}

/// Texts of this form in the code, without comments and tests.
fn in_code() -> BTreeSet<String> {
    let mut files = Vec::new();
    let folders = [
        "proto/http/src",
        "proto/proxy_protocol/src",
        "proto/connection/src",
        "proto/worker/src",
        "apps/evergate/src/worker",
    ];
    for folder in folders {
        sources(&root().join(folder), &mut files);
    }
    files.retain(|file| !file.ends_with("proto/worker/src/counters.rs")); // names of metrics
    let mut all = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        for line in code.lines().map(|line| line.split("//").next().unwrap()) {
            let texts = line.split('"').skip(1).step_by(2);
            all.extend(
                texts.filter(|text| is_reason(text) && !text.starts_with("evergate_")).map(str::to_owned),
            );
        }
    }
    all
}

/// Reasons in docs/reference/log-reasons.md: the last column of the table of limits, and the first column of all
/// other tables.
fn in_documents() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("docs/reference/log-reasons.md")).unwrap();
    let (_, rest) = text.split_once("\n## Limits\n").unwrap();
    let (section, _) = rest.split_once("\n## Access log\n").unwrap();
    let (bounds, others) = section.split_once("\n## Other reasons\n").unwrap();
    let cells = |line: &str| -> Vec<String> { line.split('|').map(str::to_owned).collect() };
    let rows = |text: &str| -> Vec<Vec<String>> {
        text.lines().filter(|line| line.starts_with("| ")).map(cells).collect()
    };
    let last = rows(bounds).into_iter().filter_map(|row| row.into_iter().rev().nth(1));
    let first = rows(others).into_iter().filter_map(|row| row.into_iter().nth(1));
    let columns: Vec<String> = last.chain(first).collect();
    let words = columns.iter().flat_map(|cell| cell.split('`').skip(1).step_by(2));
    words.filter(|word| is_reason(word) && !word.starts_with("evergate_")).map(str::to_owned).collect()
}

#[test]
fn reasons_in_the_code_and_in_the_documents_are_the_same() {
    let (code, documents) = (in_code(), in_documents());
    for known in ["shutdown", "client_gone", "bare_lf", "replication_channel_ended"] {
        assert!(code.contains(known), "{known} is not found");
    }
    let undocumented: Vec<&String> = code.difference(&documents).collect();
    let unknown: Vec<&String> = documents.difference(&code).collect();
    assert!(
        undocumented.is_empty() && unknown.is_empty(),
        "not in docs/reference/log-reasons.md: {undocumented:?}; only there: {unknown:?}"
    );
}
