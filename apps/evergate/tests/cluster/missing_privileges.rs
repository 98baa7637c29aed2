//! What cannot run is not passed over in silence: this very program without privileges.

use crate::world::privileged;
use std::process::{Command, Output};

const TEST: &str = "skips::needs_privileges";

/// Not a test of its own: one that needs privileges, for the one below.
#[test]
fn needs_privileges() {
    privileged();
}

/// Runs it as nobody in particular.
fn without_privileges(adjust: impl FnOnce(&mut Command) -> &mut Command) -> (Output, String) {
    let mut command = Command::new("unshare");
    command.arg("--user").arg(std::env::current_exe().unwrap()).args(["--exact", TEST]);
    let output = adjust(&mut command).output().unwrap();
    let reported = [&output.stdout[..], &output.stderr[..]].concat();
    (output, String::from_utf8(reported).unwrap())
}

#[test]
fn a_test_without_its_privileges_says_that_it_is_skipped_and_fails_in_ci() {
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
