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
    assert!(err.contains("refused by the Master"), "{err}");
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
