//! Tests of `evergate demo cluster`, run as a user runs it.

use crate::support::eventually;
use crate::world::{MachineShare, evergate, privileged};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Namespaces of the demonstration with this process id.
fn namespaces(process: u32) -> Vec<String> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&format!("evergate-{process}-"))).collect()
}

fn folder(process: u32) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("evergate-demo-{process}"))
}

/// Demonstration whose cluster has formed, and the rest of its output.
fn begun() -> (std::process::Child, impl Iterator<Item = String>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_evergate"))
        .args(["demo", "cluster", "--transfer-mib", "1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    lines.find(|line| line.contains("one cluster")).expect("it begins");
    (child, lines)
}

fn signal(child: &std::process::Child, name: &str) {
    assert!(
        Command::new("kill").args([format!("-{name}"), child.id().to_string()]).status().unwrap().success()
    );
}

#[test]
fn demo_transfers_survive_the_deaths_of_all_nodes_but_one() {
    if !privileged() {
        return;
    }
    let _all = MachineShare::all();
    let output = evergate(&["demo", "cluster", "--once", "--json", "--transfer-mib", "4"]);
    assert_eq!(output.code, Some(0), "{output:#?}");
    let report: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!((&report["nodes"], &report["killed"]), (&3.into(), &2.into()), "{report}");
    assert_eq!((&report["broken"], &report["corrupted"]), (&0.into(), &0.into()), "{report}");
    assert!(report["transfers"].as_u64() >= Some(8), "{report}");
    assert!(report["bytes"].as_u64() >= Some(6 * (4 << 20)), "{report}");
    let stalls = ["p50", "p99", "max"].map(|name| report["stall_ms"][name].as_f64().unwrap());
    assert!(stalls[0] > 0.0 && stalls.is_sorted(), "{report}");
}

#[test]
fn demo_that_receives_a_signal_removes_its_namespaces() {
    if !privileged() {
        return;
    }
    let _all = MachineShare::all();
    let (mut child, lines) = begun();
    assert_eq!(namespaces(child.id()).len(), 7);
    signal(&child, "INT");
    drop(lines.last());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(namespaces(child.id()), [""; 0]);
    assert!(!folder(child.id()).exists());
}

#[test]
fn next_demo_removes_the_remains_of_a_killed_one() {
    if !privileged() {
        return;
    }
    let _all = MachineShare::all();
    let (mut killed, lines) = begun();
    signal(&killed, "KILL");
    killed.wait().unwrap();
    drop(lines.last());
    assert_eq!(namespaces(killed.id()).len(), 7, "the names stay, and the next demonstration removes them");
    let (mut next, _lines) = begun();
    assert_eq!(namespaces(killed.id()), [""; 0]);
    assert!(!folder(killed.id()).exists());
    signal(&next, "TERM");
    eventually("it ends", || next.try_wait().unwrap());
    assert_eq!(namespaces(next.id()), [""; 0]);
}
