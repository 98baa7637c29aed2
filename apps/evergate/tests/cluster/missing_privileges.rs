//! Tests without their privileges, which must be reported and not pass silently. The child is this program in a user
//! namespace.

use crate::world::privileged;
use std::process::{Command, Output};

const TEST: &str = "missing_privileges::needs_privileges";

/// Helper of the test below. It needs privileges.
#[test]
fn needs_privileges() {
    privileged();
}

/// Runs the helper as an unprivileged user.
fn without_privileges(adjust: impl FnOnce(&mut Command) -> &mut Command) -> (Output, String) {
    let mut command = Command::new("unshare");
    command.arg("--user").arg(std::env::current_exe().unwrap()).args(["--exact", TEST]);
    let output = adjust(&mut command).output().unwrap();
    let reported = [&output.stdout[..], &output.stderr[..]].concat();
    (output, String::from_utf8(reported).unwrap())
}

#[test]
fn test_without_privileges_reports_its_skip_and_fails_in_ci() {
    if !privileged() {
        return;
    }
    let (output, reported) = without_privileges(|command| command.env_remove("CI"));
    assert!(
        output.status.success() && reported.contains(&format!("skipped {TEST}: it needs root")),
        "{reported}"
    );
    let (output, reported) = without_privileges(|command| command.env("CI", "1"));
    assert!(!output.status.success() && reported.contains("in CI no test is skipped"), "{reported}");
}
