//! Names, types and labels of metrics: in docs/reference/metrics.md, and as a node exposes them.
#![allow(dead_code)] // each test binary uses its part

use crate::support::eventually;
use std::collections::{BTreeMap, BTreeSet};

/// Metrics by name: the type, and the labels.
pub(crate) type Metrics = BTreeMap<String, (String, BTreeSet<String>)>;

/// Metrics in the rows of docs/reference/metrics.md.
pub(crate) fn documented() -> Metrics {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows =
        text.lines().filter(|line| line.starts_with("| `evergate_") || line.starts_with("| `process_"));
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let labels = names(cells[3]).into_iter().collect();
        (names(cells[1]).remove(0), (cells[2].to_owned(), labels))
    })
    .collect()
}

/// Metrics with a sample in a node's exposition. Help and type of each metric precede its first sample, without
/// another metric in between.
pub(crate) fn exposed(text: &str) -> Metrics {
    let (mut all, mut helped) = (Metrics::new(), None);
    let mut current: Option<(String, String)> = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            helped = rest.split_once(' ').map(|(name, _)| name.to_owned());
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            assert_eq!(helped.as_deref(), Some(name), "{line}");
            current = Some((name.to_owned(), kind.to_owned()));
        } else {
            let (name, kind) = current.as_ref().unwrap_or_else(|| panic!("no type before {line}"));
            let (sample, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let (full, labels) = sample.trim_end_matches('}').split_once('{').unwrap_or((sample, ""));
            let part = full.strip_prefix(name.as_str());
            let parts = if kind == "histogram" { &["_bucket", "_sum", "_count"][..] } else { &[""] };
            assert!(part.is_some_and(|part| parts.contains(&part)), "{line} behind the type of {name}");
            let label = |pair: &str| pair.split_once("=\"").map(|(label, _)| label.to_owned());
            let labels = labels.split("\",").filter_map(label).filter(|label| label != "le");
            all.entry(name.clone()).or_insert_with(|| (kind.clone(), BTreeSet::new())).1.extend(labels);
        }
    }
    all
}

/// Waits until a node exposes exactly the documented metrics.
pub(crate) fn agree(documented: &Metrics, mut exposed: impl FnMut() -> Metrics) {
    let lacks = |from: &Metrics, to: &Metrics| -> Vec<String> {
        let differs = from.iter().filter(|(name, what)| to.get(*name) != Some(*what));
        differs.map(|(name, (kind, labels))| format!("{name} {kind} {labels:?}")).collect()
    };
    let mut printed = Vec::new();
    eventually("metrics are as documented", || {
        let exposed = exposed();
        let differences = [lacks(documented, &exposed), lacks(&exposed, documented)].concat();
        if differences != printed {
            eprintln!("documented and not exposed, or exposed and not documented: {differences:#?}");
        }
        printed = differences;
        printed.is_empty().then_some(())
    });
}
