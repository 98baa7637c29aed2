//! kill -9 at each durable step of the Recorder and of deletions: nothing acknowledged is lost, numbers continue, and
//! the store is proved.

use crate::crashes::{assert_proved, load};
use crate::rig::{Master, Rig, rig};
use evergate_audit::test_points::Step;

const VARIABLE: &str = "EVERGATE_TEST_ABORT";

/// Runs a Recorder under load until it reaches the step for the nth time.
fn crash_at(rig: &Rig, options: &[&str], step: Step, nth: u64) {
    let point = format!("{}:{nth}", step.name());
    let mut recorder = rig.start_record(options, &[(VARIABLE, &point)]);
    let sending = rig.start(load(1500));
    assert_eq!(recorder.wait(), None, "{point} was not reached");
    sending.join().unwrap();
}

/// Records and hands in what a crash left. The Master refuses a store without an acknowledged batch.
fn recover(rig: &Rig, master: &Master) {
    let mut recorder = rig.record(&master.options());
    rig.start(load(20)).join().unwrap();
    recorder.wait_line("recording ");
    rig.wait_outbox();
    let report = recorder.stop();
    assert_eq!(report["last_batch"], report["acknowledged"], "{report}");
}

#[test]
fn killed_at_each_step_the_recorder_continues() {
    let Some(rig) = rig() else { return };
    let master = rig.master();
    let (mut records, mut batches) = (0, 0);
    for step in Step::RECORD {
        for nth in [1, 2] {
            crash_at(&rig, &master.options(), step, nth);
            recover(&rig, &master);
            let content = rig.content();
            assert!(content.records > records, "{}", step.name());
            records = content.records;
        }
        let report = rig.verify();
        assert!(report.ok, "{}: {:#?}", step.name(), report.findings);
        let checked = report.checked;
        assert!(checked.batches > batches && checked.batches == checked.acknowledged, "{checked:?}");
        batches = checked.batches;
    }
}

#[test]
fn killed_at_each_step_a_deletion_is_completed() {
    let Some(rig) = rig() else { return };
    let master = rig.master();
    let store = rig.store();
    let expire = ["expire", store.to_str().unwrap(), "--max-bytes", "0"];
    let mut deleted = 0;
    let steps = Step::DELETE.into_iter().map(|step| (step, true)).chain([(Step::EntryAcknowledged, false)]);
    for (step, is_deletion) in steps {
        // Two segments: the last one may be open.
        for _ in 0..2 {
            recover(&rig, &master);
        }
        if is_deletion {
            let mut process = rig.spawn_with(&expire, &[(VARIABLE, step.name())]);
            assert_eq!(process.wait(), None, "{} was not reached", step.name());
        }
        let mut process = rig.spawn(&expire);
        assert!(matches!(process.wait(), Some(0 | 1)), "{:?}", process.outputs());
        if !is_deletion {
            crash_at(&rig, &master.options(), step, 1);
        }
        recover(&rig, &master);
        assert_proved(&rig);
        let report = rig.verify();
        assert!(report.checked.deleted_segments > deleted, "{}", step.name());
        deleted = report.checked.deleted_segments;
    }
}
