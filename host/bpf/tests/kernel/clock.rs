//! Leases end by the boot-time clock, for this process and for the programs.

use crate::frame::Segment;
use crate::packets::{PASS, STOLEN};
use crate::testrun::{Hook, TestRun};
use crate::world::{PORT, at, configure, node, options, privileged, vip};
use evergate_bpf::{GateError, Leases, Owner, PacketGate};
use evergate_netns::Namespace;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

/// Variable that marks a run of this program's other test in a time namespace: the difference it must find there.
const EXPECTED: &str = "EVERGATE_TEST_CLOCK";
const INSIDE: &str = "clock::inside_a_time_namespace";
const HOUR_NS: u64 = 3_600_000_000_000;

fn load() -> Result<PacketGate, GateError> {
    PacketGate::load(&options(Path::new("/sys/fs/bpf/evergate/clock")))
}

/// A lease of an hour lets a packet out, one that is over does not.
fn expect_leases_to_hold(gate: &PacketGate) {
    configure(gate);
    gate.owners().set_all(Owner::new(node(1), &[]).unwrap());
    let ack = Segment::new(SocketAddr::new(vip(false), PORT), at(false, 10, 50_000)).bytes();
    for (until_ns, action) in [(Leases::now_ns() + HOUR_NS, PASS), (Leases::now_ns(), STOLEN)] {
        gate.leases().set_own(until_ns);
        assert_eq!(gate.run(Hook::Egress, &ack, 0).unwrap().action, action);
    }
}

/// Runs the test below in a time namespace of its own, which moves the two clocks by so many seconds.
fn inside(monotonic_s: i64, boottime_s: i64, expected: &str) {
    let program = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .arg("--time")
        .args(["--monotonic", &monotonic_s.to_string(), "--boottime", &boottime_s.to_string(), "--"])
        .arg(program)
        .args([INSIDE, "--exact", "--nocapture"])
        .env(EXPECTED, expected)
        .output()
        .unwrap();
    let output_text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(
        output.status.success() && output_text.contains("1 passed"),
        "{monotonic_s} {boottime_s}: {output_text}"
    );
}

#[test]
fn gate_load_is_refused_where_boot_time_is_moved() {
    if !privileged() {
        return;
    }
    if !Path::new("/proc/self/ns/time").exists() {
        assert!(
            std::env::var_os("CI").is_none(),
            "in CI no test is skipped, and this one needs CONFIG_TIME_NS"
        );
        // not by `eprintln!`, which the harness keeps
        return drop(writeln!(std::io::stderr(), "skipped: needs time namespaces (CONFIG_TIME_NS)"));
    }
    inside(0, 7200, "7200");
    inside(7200, -5, "-5");
    // A process with a moved monotonic clock only sees leases as the programs do.
    inside(7200, 0, "0");
    inside(0, 0, "0");
}

#[test]
fn inside_a_time_namespace() {
    let Ok(expected) = std::env::var(EXPECTED) else { return };
    let expected: i64 = expected.parse().unwrap();
    let namespace = Namespace::new().unwrap();
    namespace.run(move || match (load(), expected) {
        (Ok(gate), 0) => expect_leases_to_hold(&gate),
        (Err(GateError::Clock { apart, ahead }), _) => {
            assert_eq!((apart.as_secs_f64().round() as u64, ahead), (expected.unsigned_abs(), expected > 0));
            let text = GateError::Clock { apart, ahead }.to_string();
            let (apart, side) = (apart.as_secs_f64(), if ahead { "ahead of" } else { "behind" });
            let apart = format!("is {apart:.3} s {side} the kernel's");
            assert!(text.contains(&apart) && text.contains("timens_offsets"), "{text}");
        }
        (Ok(_), _) => panic!("loaded, {expected} s apart"),
        (Err(error), _) => panic!("{error}"),
    });
}
