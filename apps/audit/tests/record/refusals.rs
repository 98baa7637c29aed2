//! Wrong input: one message each, with consequence and remedy, and exit code 2.

use crate::rig::{RECEIVER, rig};
use std::process::Command;

#[test]
fn unusable_interfaces_are_refused_with_a_remedy() {
    let Some(rig) = rig() else { return };
    let store = rig.store();
    let store = store.to_str().unwrap();
    let (_, err) = rig.run(2, &["record", "--interface", "no-such", "--store", store]);
    assert!(err.contains("no-such"), "{err}");
    rig.receiver.run(|| Command::new("ethtool").args(["-K", RECEIVER, "gro", "on"]).status().unwrap());
    let (_, err) = rig.run(2, &["record", "--interface", RECEIVER, "--store", store, "--require-wire"]);
    assert!(err.contains("gro") && err.contains("ethtool -K"), "{err}");
}

#[test]
fn store_of_another_recorder_is_refused() {
    let Some(rig) = rig() else { return };
    rig.record(&[]).stop();
    let store = rig.store();
    let store = store.to_str().unwrap();
    let (_, err) = rig.run(2, &["record", "--interface", RECEIVER, "--store", store, "--part", "0/2"]);
    assert!(err.contains("holds part 0/1"), "{err}");
    for name in ["recorder.pem", "recorder.key"] {
        std::fs::remove_file(rig.store().join(name)).unwrap();
    }
    let (_, err) = rig.run(2, &["record", "--interface", RECEIVER, "--store", store]);
    assert!(err.contains("belongs to Recorder"), "{err}");
}

#[test]
fn second_recorder_of_a_store_is_refused() {
    let Some(rig) = rig() else { return };
    let _first = rig.record(&[]);
    let store = rig.store();
    let (_, err) = rig.run(2, &["record", "--interface", RECEIVER, "--store", store.to_str().unwrap()]);
    assert!(err.contains("another process records into"), "{err}");
}

#[test]
fn second_recorder_with_an_identity_is_refused() {
    let Some(rig) = rig() else { return };
    let mut master = rig.master();
    let _first = rig.record(&master.options());
    master.process.wait_line("connected from");
    let (store, other) = (rig.store(), rig.folder.join("other"));
    let (certificate, key) = (store.join("recorder.pem"), store.join("recorder.key"));
    let mut arguments = vec!["record", "--interface", RECEIVER, "--store", other.to_str().unwrap()];
    arguments.extend(["--certificate", certificate.to_str().unwrap(), "--key", key.to_str().unwrap()]);
    arguments.extend(master.options());
    let (_, err) = rig.run(2, &arguments);
    assert!(err.contains("refused by the Master") && err.contains("stop the other Recorder"), "{err}");
}

#[test]
fn older_copy_of_a_store_is_refused() {
    let Some(rig) = rig() else { return };
    let master = rig.master();
    rig.record(&master.options()).stop();
    let copy = rig.folder.join("copy");
    let copied =
        Command::new("cp").args(["-a", rig.store().to_str().unwrap(), copy.to_str().unwrap()]).status();
    assert!(copied.unwrap().success());
    rig.record(&master.options()).stop();
    let mut arguments = vec!["record", "--interface", RECEIVER, "--store", copy.to_str().unwrap()];
    arguments.extend(master.options());
    let (_, err) = rig.run(2, &arguments);
    assert!(err.contains("older copy"), "{err}");
}

#[test]
fn store_of_another_installation_is_refused() {
    let Some(rig) = rig() else { return };
    let master = rig.master();
    rig.record(&master.options()).stop();
    master.process.kill();
    rig.reconfigure_master("test/2026", "other/2026");
    rig.reconfigure_master("log = \"log\"", "log = \"other\"");
    let (other, store) = (rig.master(), rig.store());
    let mut arguments = vec!["record", "--interface", RECEIVER, "--store", store.to_str().unwrap()];
    arguments.extend(other.options());
    let (_, err) = rig.run(2, &arguments);
    assert!(err.contains("belongs to 'test/2026'") && err.contains("give the right --master"), "{err}");
}

#[test]
fn clock_before_the_last_batch_is_refused() {
    let Some(rig) = rig() else { return };
    rig.record(&[]).stop();
    let store = rig.store();
    let arguments = ["record", "--interface", RECEIVER, "--store", store.to_str().unwrap()];
    let mut process = rig.spawn_with(&arguments, &[("EVERGATE_TEST_CLOCK", "0:-60000")]);
    assert_eq!(process.wait(), Some(2));
    let (_, err) = process.outputs();
    assert!(err.contains("clock: it is") && err.contains("set the clock"), "{err}");
}

/// The Master's operator has not enrolled the Recorder yet: no reason to end capture.
#[test]
fn recorder_without_enrolment_records_and_hands_in_later() {
    let Some(rig) = rig() else { return };
    let master = rig.master();
    let options: Vec<String> = master.options().iter().map(|&option| option.to_owned()).collect();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    master.process.kill();
    let id = rig.run(0, &["identity", "--store", rig.store().to_str().unwrap()]).0;
    let (id, other) = (id.trim(), "0".repeat(64));
    rig.reconfigure_master(id, &other);
    let master = rig.master();
    let mut recorder = rig.record(&options);
    let line = recorder.wait_line("capture continues");
    assert!(line.contains("not_enrolled") || line.contains("enrol"), "{line}");
    let sent = rig.start(crate::crashes::load(300)).join().unwrap();
    master.process.kill();
    rig.reconfigure_master(&other, id);
    let _master = rig.master();
    recorder.wait_line("connected to 127.0.0.1:7443 again");
    let report = recorder.stop();
    assert_eq!(report["packets"], sent.frames, "{report}");
    assert!(report["last_batch"].as_u64() > Some(0), "{report}");
    assert_eq!(report["last_batch"], report["acknowledged"], "{report}");
}
