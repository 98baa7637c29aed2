//! Starts that must fail: one message with its cause and its remedy, exit code 2.

use crate::support::{Recorder, Setup, pin};
use evergate_crypto::LogKey;
use evergate_evidence::entry::{Entry, Event, MasterEvent};
use evergate_evidence::note::VerifyingKey;
use evergate_master::log::Log;
use evergate_master::sequencer::wall_ms;

/// Log with a few entries, and its text of configuration.
fn used() -> Setup {
    let setup = Setup::new(1);
    let master = setup.start();
    Recorder::new(&setup.recorders[0]).submit(&master, &pin(&setup), 3, 3).unwrap();
    assert_eq!(master.stop(), Some(0));
    setup
}

#[track_caller]
fn assert_message(setup: &Setup, parts: &[&str]) {
    let text = setup.refused_start();
    for part in parts {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
    assert!(text.trim_end().lines().last().unwrap().contains("; "), "no remedy: {text}");
}

#[test]
fn missing_or_wrong_files_are_named() {
    let setup = Setup::new(0);
    std::fs::remove_file(setup.folder.join("log.key")).unwrap();
    assert_message(&setup, &["log.key", "init"]);
    std::fs::write(setup.folder.join("log.key"), "x").unwrap();
    assert_message(&setup, &["log.key", "signing key"]);
    let setup = Setup::new(0);
    std::fs::remove_file(setup.config()).unwrap();
    assert_message(&setup, &["master.toml", "init"]);
    std::fs::write(setup.config(), "listen = 1\n").unwrap();
    assert_message(&setup, &["master.toml:1"]);
    let output = setup.program(&["check"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn certificate_with_another_key_is_refused() {
    let (setup, other) = (Setup::new(0), Setup::new(0));
    std::fs::copy(other.folder.join("master.key"), setup.folder.join("master.key")).unwrap();
    assert_message(&setup, &["certificate", "master.pem", "master.key"]);
}

#[test]
fn second_master_on_one_log_is_refused() {
    let setup = Setup::new(0);
    let _master = setup.start();
    assert_message(&setup, &["another Master uses this log"]);
}

#[test]
fn folder_that_cannot_be_written_is_refused() {
    let setup = Setup::new(0);
    std::fs::write(setup.folder.join("file"), "").unwrap();
    setup.reconfigure("log = \"log\"", "log = \"file/log\"");
    assert_message(&setup, &["file/log", "writable"]);
}

#[test]
fn occupied_address_is_refused() {
    let setup = Setup::new(0);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    setup.reconfigure("127.0.0.1:0", &taken.local_addr().unwrap().to_string());
    assert_message(&setup, &["cannot listen on"]);
}

#[test]
fn log_of_another_origin_or_key_is_refused() {
    let setup = used();
    setup.reconfigure("test.example/2026", "test.example/2027");
    assert_message(&setup, &["checkpoint is of log 'test.example/2026'", "continues"]);
    setup.reconfigure("test.example/2027", "test.example/2026");
    std::fs::write(setup.folder.join("log.key"), LogKey::generate().unwrap().1).unwrap();
    assert_message(&setup, &["no signature of a known key", "continues"]);
}

#[test]
fn clock_before_the_last_entry_is_refused() {
    let setup = used();
    let key = LogKey::parse(setup.read("log.key").as_bytes()).unwrap();
    let vkey = VerifyingKey::new("test.example/2026", key.public_key()).unwrap();
    let mut log = Log::open(&setup.log(), &vkey, wall_ms()).unwrap().log;
    let event = MasterEvent { is_key_change: false, vkey: vkey.to_vkey(), previous: String::new() };
    log.append(&Entry::Event(wall_ms() + 7_200_000, Event::Master(event)));
    log.flush().unwrap();
    drop(log);
    assert_message(&setup, &["clock: it is 71", "s before the last entry", "set the clock"]);
}

#[test]
fn damaged_log_is_refused() {
    let setup = used();
    let journal = setup.log().join("journal-00000000000000000000");
    let good = std::fs::read(&journal).unwrap();
    let mut changed = good.clone();
    changed[40] ^= 1;
    std::fs::write(&journal, &changed).unwrap();
    assert_message(&setup, &["the checkpoint signs 5 entries, only 0 are here"]);
    std::fs::remove_file(&journal).unwrap();
    assert_message(&setup, &["a log without its journal"]);
    std::fs::write(&journal, &good).unwrap();
    let path = setup.log().join("checkpoint");
    let checkpoint = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, checkpoint.trim_end()).unwrap();
    assert_message(&setup, &["checkpoint", "line end"]);
    std::fs::write(&path, checkpoint).unwrap();
    assert_eq!(setup.start().stop(), Some(0));
}

#[test]
fn init_keeps_existing_files() {
    let setup = Setup::new(0);
    let before = setup.read("log.key");
    let output = setup.program(&["init"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("exists already"));
    assert_eq!(setup.read("log.key"), before);
}
