//! Every packet that the card received is a record or is declared lost.

use crate::rig::rig;
use evergate_capture::generator::Load;
use std::time::Duration;

/// Runs of a plain test; `EVERGATE_AUDIT_RUNS` sets another number.
const RUNS: u64 = 8;

#[test]
fn received_packets_are_records_or_declared_lost() {
    let Some(rig) = rig() else { return };
    let runs = std::env::var("EVERGATE_AUDIT_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(RUNS);
    let (mut written, mut worst) = (0, 0.0f64);
    for run in 0..runs {
        let before = rig.received();
        let recorder = rig.record(&["--ring", "4"]);
        // Half of the runs stop the process for a while: the ring overflows.
        let pause = Duration::from_millis(if run % 2 == 1 { 40 * run } else { 0 });
        let duration = Duration::from_millis(300) + 2 * pause;
        let rate = (5_000 + 10_000 * (run % 5)) as f64;
        let sending =
            rig.start(Load { rate: rate as _, duration, flows: 50, frame_bytes: 200, ..Load::default() });
        std::thread::sleep(Duration::from_millis(50));
        if !pause.is_zero() {
            recorder.signal("-STOP");
            std::thread::sleep(pause);
            recorder.signal("-CONT");
        }
        sending.join().unwrap();
        // The stop comes right behind the last packet.
        let report = recorder.stop();
        let (packets, lost) =
            (report["packets"].as_u64().unwrap(), report["declared_lost"].as_u64().unwrap());
        assert_eq!(report["balanced"], true, "{report}");
        assert_eq!(packets + lost, rig.received() - before, "run {run}: {report}");
        assert_eq!(report["interface_received"], rig.received() - before, "run {run}: {report}");
        written += packets;
        worst = worst.max(lost as f64 / (packets + lost).max(1) as f64);
    }
    let content = rig.content();
    assert_eq!(content.packets, written);
    // Nothing was sent between the runs.
    assert_eq!(content.lost("down"), 0, "{content:?}");
    println!("{runs} runs, {written} packets, at most {:.0} % lost", worst * 100.0);
    assert!(worst > 0.05, "no run lost packets");
}

#[test]
fn emergency_mode_is_entered_and_left() {
    let Some(rig) = rig() else { return };
    let before = rig.received();
    let mut recorder = rig.record(&["--ring", "64"]);
    let load = Load {
        rate: 400_000 as _,
        duration: Duration::from_millis(1500),
        flows: 50,
        frame_bytes: 1000,
        ..Load::default()
    };
    recorder.signal("-STOP");
    let sending = rig.start(load);
    std::thread::sleep(Duration::from_millis(700));
    recorder.signal("-CONT");
    sending.join().unwrap();
    recorder.wait_line("emergency mode begins");
    recorder.wait_line("emergency mode ends");
    let report = recorder.stop();
    assert!(report["emergency_ms"].as_u64() > Some(0), "{report}");
    let (packets, lost) = (report["packets"].as_u64().unwrap(), report["declared_lost"].as_u64().unwrap());
    assert_eq!(packets + lost, rig.received() - before, "{report}");
    assert_eq!(rig.content().packets, packets);
}
