//! kill -9 at every durable step and at random moments: no acknowledged batch is lost, no checkpoint is inconsistent
//! with one seen before.

use crate::support::{Master, Recorder, Setup, pin};
use evergate_evidence::checkpoint::SignedCheckpoint;
use std::process::Command;
use std::time::Duration;

/// Submits until the Master ends, then starts it again, hands in the rest and compares.
fn crash(setup: &Setup, recorder: &mut Recorder, abort: &str, count: usize) -> Vec<SignedCheckpoint> {
    let pin = pin(setup);
    let mut command = setup.command();
    command.env("EVERGATE_TEST_ABORT", abort);
    let mut seen = Vec::new();
    let mut master = Master::start(command);
    let ended = recorder.submit(&master, &pin, count, 8);
    let status = master.wait_end();
    assert!(ended.is_err() && !status.success(), "{abort}: not reached");
    seen.extend(recorder.newest.clone());
    if let Ok(bytes) = std::fs::read(setup.log().join("checkpoint")) {
        seen.push(SignedCheckpoint::parse(&bytes).unwrap());
    }
    let master = setup.start();
    recorder.submit(&master, &pin, 5, 8).unwrap_or_else(|error| panic!("{abort}: {error}"));
    assert_eq!(recorder.acknowledged, recorder.sent.len());
    for seen in &seen {
        setup.assert_continues(seen);
    }
    assert_eq!(master.stop(), Some(0));
    seen
}

#[test]
fn kill_at_each_durable_step_loses_nothing() {
    for step in [
        "entry_written",
        "entries_synced",
        "tiles_written",
        "signed",
        "checkpoint_written",
        "checkpoint_renamed",
        "answered",
    ] {
        let setup = Setup::new(1);
        let mut recorder = Recorder::new(&setup.recorders[0]);
        for count in [4, 7, 9] {
            crash(&setup, &mut recorder, &format!("{step}:{count}"), 500);
        }
    }
}

#[test]
fn kill_at_the_change_of_journals_loses_nothing() {
    let setup = Setup::new(1);
    let mut recorder = Recorder::new(&setup.recorders[0]);
    crash(&setup, &mut recorder, "journal_rotated", 4500);
    let journals = || {
        std::fs::read_dir(setup.log())
            .unwrap()
            .filter(|entry| entry.as_ref().unwrap().file_name().to_str().unwrap().starts_with("journal-"))
    };
    assert_eq!(journals().count(), 1);
    // Without its snapshot the log opens as well.
    for entry in std::fs::read_dir(setup.log()).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().starts_with("state-") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let master = setup.start();
    recorder.acknowledged -= 600;
    recorder.submit(&master, &pin(&setup), 5, 8).unwrap();
}

#[test]
fn kill_at_random_moments_loses_nothing() {
    let setup = Setup::new(3);
    let pin = pin(&setup);
    let mut recorders: Vec<Recorder> = setup.recorders.iter().map(Recorder::new).collect();
    let seed = std::process::id();
    println!("seed {seed}");
    let rounds = std::env::var("EVERGATE_KILLS").map_or(10, |kills| kills.parse().unwrap());
    for round in 0..rounds {
        let mut master = setup.start();
        let address = master.address.clone();
        let seen: Vec<SignedCheckpoint> = recorders.iter().filter_map(|r| r.newest.clone()).collect();
        seen.iter().for_each(|seen| setup.assert_continues(seen));
        let pause = Duration::from_millis(u64::from(
            seed.wrapping_mul(2_654_435_761).rotate_left(round * 3 % 32) % 200,
        ));
        std::thread::scope(|scope| {
            for recorder in &mut recorders {
                let (address, pin) = (&address, &pin);
                scope.spawn(move || {
                    // Ends with the Master, or after more batches than fit.
                    let _ = recorder.submit_to(address, pin, 2000, 8);
                });
            }
            std::thread::sleep(pause);
            master.kill();
        });
    }
    let master = setup.start();
    for recorder in &mut recorders {
        recorder.submit(&master, &pin, 5, 8).unwrap();
        setup.assert_continues(recorder.newest.as_ref().unwrap());
    }
}

/// A limit on the size of files stands for a full disk: both make a write fail in its middle.
#[test]
fn full_disk_stops_the_master_and_loses_nothing() {
    let setup = Setup::new(1);
    let pin = pin(&setup);
    let mut recorder = Recorder::new(&setup.recorders[0]);
    let mut command = Command::new("sh");
    command.arg("-c").arg("trap '' XFSZ; ulimit -f 40; exec \"$0\" --config \"$1\"");
    command.arg(env!("CARGO_BIN_EXE_evergate-master")).arg(setup.config());
    let mut master = Master::start(command);
    recorder.submit(&master, &pin, 500, 8).unwrap_err();
    master.wait_line("the log cannot be written: File too large");
    assert_eq!(master.wait_end().code(), Some(1));
    assert!(recorder.acknowledged > 20);
    let mut master = setup.start();
    master.wait_line("of an entry that a crash cut");
    recorder.submit(&master, &pin, 5, 8).unwrap();
    setup.assert_continues(recorder.newest.as_ref().unwrap());
}
