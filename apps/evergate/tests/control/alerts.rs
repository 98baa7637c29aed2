//! Metrics and alerts: nodes expose the metrics of docs/reference/metrics.md. The alerts in dist/ use existing
//! metrics and labels, and each metric whose description asks for an alert has one.

use crate::metrics::{Metrics, agree, documented, exposed};
use crate::node::{Demo, Folder, Node, Port, get, plain};
use crate::support::audit::Keys;
use std::collections::BTreeSet;
use std::process::Command;

fn file(path: &str) -> String {
    std::fs::read_to_string(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Names of metrics in a text.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("evergate_")).map(str::to_owned).collect()
}

/// Selections of a metric by a label, `metric{label="value"}`: metric and label.
fn selected(text: &str) -> Vec<(String, String)> {
    let mut pieces = text.split('{');
    let mut before = pieces.next().unwrap();
    let mut found = Vec::new();
    for piece in pieces {
        let word = |c: char| c.is_ascii_lowercase() || c == '_';
        let name = before.rsplit(|c| !word(c)).next().unwrap();
        let label = piece.split(|c| !word(c)).next().unwrap();
        if name.starts_with("evergate_") {
            found.push((name.to_owned(), label.to_owned()));
        }
        before = piece;
    }
    found
}

/// Metrics in the expressions of all alerts. An expression ends at the first line that is not indented further than
/// its `expr:`.
fn in_alerts(text: &str) -> BTreeSet<String> {
    let mut inside = None;
    let indent = |line: &str| line.len() - line.trim_start().len();
    let expressions = text.lines().filter(|line| {
        let begins = line.trim_start().starts_with("expr:");
        inside = if begins { Some(indent(line)) } else { inside.filter(|depth| indent(line) > *depth) };
        inside.is_some()
    });
    expressions.flat_map(metrics).collect()
}

#[test]
fn alerts_use_documented_metrics_and_none_is_missing() {
    let (alerts, documents) =
        (in_alerts(&file("dist/evergate.rules.yml")), file("docs/reference/metrics.md"));
    let rows = documents.lines().filter(|line| line.starts_with("| `evergate_"));
    let name = |row: &str| row.split('`').nth(1).unwrap().to_owned();
    let known: BTreeSet<String> = rows.clone().map(name).collect();
    let asked: BTreeSet<String> = rows.filter(|row| row.contains("Alert ")).map(name).collect();
    assert!(asked.len() >= 7 && alerts.len() >= 15, "{asked:?} {alerts:?}");
    let rules = file("dist/evergate.rules.yml");
    let labels = selected(&rules);
    assert!(labels.len() >= 5, "{labels:?}");
    for (metric, label) in labels {
        let row = documents.lines().find(|line| line.starts_with(&format!("| `{metric}`"))).unwrap();
        assert!(
            row.split('|').nth(3).unwrap().contains(&format!("`{label}`")),
            "{metric} has no {label}: {row}"
        );
    }
    let unknown: Vec<&String> = alerts.difference(&known).collect();
    let missing: Vec<&String> = asked.difference(&alerts).collect();
    assert!(
        unknown.is_empty() && missing.is_empty(),
        "no such metric: {unknown:?}; no alert on: {missing:?}"
    );
}

#[test]
fn commands_that_alerts_name_are_commands() {
    let rules = file("dist/evergate.rules.yml");
    let named = rules.split("evergate ").skip(1).filter(|rest| !rest.starts_with("itself")).map(|rest| {
        let words = rest.split([' ', '\n', ',', ')']);
        let is_word = |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
        words.take_while(is_word).take_while(|word| !["shows", "says"].contains(word)).collect::<Vec<_>>()
    });
    let commands: Vec<_> = named.collect();
    assert!(commands.contains(&vec!["servers", "list"]) && commands.len() >= 4, "{commands:?}");
    for command in commands {
        let mut help = Command::new(env!("CARGO_BIN_EXE_evergate"));
        let output = help.args(&command).arg("--help").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && !text.contains("<COMMAND>"), "{command:?}: {text}");
    }
}

#[test]
fn node_exposes_exactly_the_documented_metrics() {
    let (folder, port, secure, demo) = (Folder::new(), Port::new(), Port::new(), Demo::start(2));
    let more = format!(
        "[[listeners]]\nname = \"secure\"\naddress = \"{}\"\nprotocol = \"https\"\npool = \"kept\"\n\
         [[certificates]]\nname = \"local\"\nself_signed = [\"localhost\"]\n\
         [[pools]]\nname = \"kept\"\npolicy = \"session_only\"\nservers = [{{ address = \"{}\" }}]\n\
         health = {{ interval_ms = 1000 }}\n\
         [[rules]]\nname = \"closed\"\nwhen = 'path == \"/closed\"'\ndeny = 403\n",
        secure.address(),
        demo.addresses[0],
    );
    let keys = Keys::new();
    std::fs::write(folder.path("epochs"), &keys.file).unwrap();
    let node = Node::with_config(&folder, &(plain(&port, &demo.addresses) + &more + &keys.table()));
    assert_eq!((get(port.address(), "/closed").0, get(port.address(), "/").0), (403, 200));
    let alone = |mut metrics: Metrics| {
        let of_clusters = ["evergate_cluster_", "evergate_gate_", "evergate_agent_"];
        metrics.retain(|name, _| !of_clusters.iter().any(|prefix| name.starts_with(prefix)));
        // Exposed from the first relayed handshake on.
        metrics.retain(|name, _| !name.starts_with("evergate_server_handshake"));
        metrics
    };
    let documented = alone(documented());
    assert!(documented.len() >= 35, "{documented:?}");
    agree(&documented, || exposed(&node.cli(&["metrics"]).out));
}
