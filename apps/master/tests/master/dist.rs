//! Unit and alerts of the package: systemd reads the unit, and alerts name metrics that exist and are documented.

use crate::support::{Setup, run};
use evergate_master::metrics::Metrics;
use std::path::Path;
use std::process::Command;

fn file(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)).unwrap()
}

/// Names of metrics in a text, without the suffixes of histograms.
fn metrics(text: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_name(c)).filter(|word| word.starts_with("evergate_master_"));
    let mut names: Vec<String> = words
        .map(|word| {
            word.trim_end_matches("_bucket").trim_end_matches("_sum").trim_end_matches("_count").into()
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn alerts_and_reference_name_the_metrics_of_the_page() {
    let page = metrics(&Metrics::default().page());
    assert!(page.len() > 10);
    assert_eq!(metrics(&file("docs/reference/master.md")), page);
    for alert in metrics(&file("dist/evergate-master.rules.yml")) {
        assert!(page.contains(&alert), "{alert}");
    }
}

#[test]
fn reference_names_all_keys_and_refusals() {
    let reference = file("docs/reference/master.md");
    for code in evergate_evidence::submission::RefusalCode::ALL {
        assert!(reference.contains(&format!("| `{}` |", code.name())), "{}", code.name());
    }
    for key in [
        "listen",
        "log",
        "origin",
        "certificate",
        "signer.kind",
        "metrics",
        "continues",
        "limits.recorders",
        "policy",
        "escrow.kind",
        "limits.disclosure_ms",
    ] {
        assert!(reference.contains(&format!("| `{key}`")), "{key}");
    }
}

#[test]
fn unit_is_read_by_systemd() {
    let setup = Setup::new(0);
    let unit = file("dist/evergate-master.service")
        .replace("/usr/bin/evergate-master", env!("CARGO_BIN_EXE_evergate-master"));
    let path = setup.folder.join("evergate-master.service");
    std::fs::write(&path, unit).unwrap();
    run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path));
}
