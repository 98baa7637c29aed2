//! Cases from public reports about front ends. Each case reproduces a fault that another program had, and checks that
//! evergate is free of it.
//!
//! `python3 apps/evergate/tests/reports/CASE.py target/debug/evergate -v` runs one case by hand and prints its checks
//! and a verdict.

#![allow(missing_docs)]

#[path = "../support/mod.rs"]
mod support;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// Limit of a case in seconds, far beyond the slowest one. `timeout` ends a case that hangs.
const CASE_S_MAX: &str = "240";

/// Needs of a case that a machine may lack.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// Namespaces, and for clusters the packet filter.
    Root,
}

/// Runs one case against the program under test, and fails with its output.
fn run(case: &str, needs: Needs) {
    if needs == Needs::Root && !is_root() {
        return;
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reports").join(format!("{case}.py"));
    let out = Command::new("timeout")
        .args(["-k", "5", CASE_S_MAX, "python3", "-B"])
        .arg(&file)
        .arg(env!("CARGO_BIN_EXE_evergate"))
        .output()
        .expect("timeout and python3 are installed by `make setup`");
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{case}: {}\n{text}", out.status);
    assert!(text.contains("RIGHT: "), "{case} ended without a verdict\n{text}");
}

fn is_root() -> bool {
    let folder = support::Folder::new(); // owned by this process
    support::can_run(std::fs::metadata(folder.path("")).is_ok_and(|folder| folder.uid() == 0), "root")
}

macro_rules! cases {
    ($($name:ident: $needs:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            run(stringify!($name), Needs::$needs);
        })*

        /// Every file of the folder that is a case.
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

cases! {
    addresses: Nothing,
    bodyless_responses: Nothing,
    cluster_failures: Root,
    connection_authentication: Nothing,
    connection_authentication_variants: Nothing,
    connections_max: Nothing,
    descriptor_limits: Nothing,
    forwarding_fields: Nothing,
    head_limits: Nothing,
    health_check_ends: Nothing,
    health_check_variants: Nothing,
    idle_eviction: Nothing,
    interim_responses: Nothing,
    persistent_connection_retries: Nothing,
    key_updates: Nothing,
    key_updates_in_tunnels: Nothing,
    log_files: Nothing,
    pem_files: Nothing,
    pool_queue: Nothing,
    port_exhaustion: Root,
    reload: Nothing,
    server_dns: Root,
    server_names: Nothing,
    slow_admin_callers: Nothing,
    source_hash: Nothing,
    sticky_sessions: Nothing,
    tcp_keepalive: Nothing,
    tls_ends: Nothing,
    tls_variants: Nothing,
    truncated_responses: Nothing,
    unusual_server_names: Nothing,
    upgrade_protocols: Nothing,
    upstream_close_notify: Nothing,
    upstream_tls: Nothing,
    websocket: Nothing,
}

#[test]
fn every_file_is_a_case() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reports");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(case) = name.strip_suffix(".py").filter(|case| *case != "report") else { continue };
        assert!(NAMES.contains(&case), "{name} is in no list: it runs in no test");
    }
}
