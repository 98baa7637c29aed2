//! Steps of the clock while a Recorder runs: capture continues, and the record shows what happened.

use crate::crashes::load;
use crate::rig::{Rig, rig};
use evergate_evidence::verify::{FindingKind, Report};

/// Time of the traffic. The clock steps 5 s after the start, which must be among the packets.
const LOAD_MS: u64 = 7_000;

/// Records across a step of the clock; every packet must be in the record.
fn report_with_step(rig: &Rig, step: &str) -> Report {
    let master = rig.master();
    let before = rig.received();
    let mut recorder = rig.start_record(&master.options(), &[("EVERGATE_TEST_CLOCK", step)]);
    recorder.wait_line("recording ");
    let sent = rig.start(load(LOAD_MS)).join().unwrap();
    let report = recorder.stop();
    assert_eq!(report["packets"], sent.frames, "{report}");
    assert_eq!(sent.frames, rig.received() - before);
    assert_eq!((&report["balanced"], &report["last_batch"]), (&true.into(), &report["acknowledged"]));
    rig.content();
    rig.verify()
}

#[test]
fn clock_that_goes_forward_loses_nothing() {
    let Some(rig) = rig() else { return };
    let report = report_with_step(&rig, "5000:5000");
    assert_eq!(report.findings, []);
    let span_ms = (report.checked.last_ns - report.checked.first_ns) / 1_000_000;
    assert!(span_ms > LOAD_MS + 4_000, "the step was not among the packets: {span_ms} ms");
}

/// A clock that goes back is the record's own evidence of it: one finding, and no other.
#[test]
fn clock_that_goes_back_loses_nothing_and_is_found() {
    let Some(rig) = rig() else { return };
    let report = report_with_step(&rig, "5000:-5000");
    assert!(!report.findings.is_empty());
    assert!(report.findings.iter().all(|found| found.kind == FindingKind::Time), "{:#?}", report.findings);
    assert_eq!(report.checked.batches, report.checked.acknowledged);
}
