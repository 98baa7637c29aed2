//! The independent verifier of the documentation.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Result of `verify.py`: whether it proves the folder, and its findings as pairs of kind and path.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) ok: bool,
    pub(crate) findings: Vec<(String, String)>,
    pub(crate) checked: serde_json::Value,
}

/// Folder of the documentation's evidence.
pub(crate) fn documentation() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evidence")
}

/// Runs `verify.py`. A missing Python is a failure: the test set-up installs it.
pub(crate) fn verify(folder: &Path, trust: &Path, expected: Option<&Path>) -> Answer {
    let mut command = Command::new("python3");
    command.arg("-B").arg(documentation().join("verify.py")).arg(folder).arg("--trust").arg(trust);
    if let Some(expected) = expected {
        command.arg("--expect-checkpoint").arg(expected);
    }
    let output = command.output().expect("python3 runs: scripts/setup test installs it");
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 1)), "exit {code:?}: {}", String::from_utf8_lossy(&output.stderr));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON on standard output");
    let text = |finding: &serde_json::Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let findings = answer["findings"].as_array().expect("findings").iter();
    let findings: Vec<_> = findings.map(|finding| (text(finding, "kind"), text(finding, "path"))).collect();
    let ok = answer["ok"].as_bool().expect("ok");
    assert_eq!((ok, code == Some(0)), (findings.is_empty(), ok));
    Answer { ok, findings, checked: answer["checked"].clone() }
}
