//! Keys in an HSM: SoftHSM2 with a token folder of the test's own.

use crate::support::{Master, Recorder, Setup, percentile, pin, run};
use std::process::Command;
use std::time::Duration;

pub(crate) const MODULE: &str = "/usr/lib/softhsm/libsofthsm2.so";
pub(crate) const TOKEN: &str = "evidence";

/// Token with a key of this kind, and the Master's configuration for it.
pub(crate) fn hsm(setup: &Setup, kind: &str) {
    let tokens = setup.folder.join("tokens");
    std::fs::create_dir_all(&tokens).unwrap();
    std::fs::write(conf(setup), format!("directories.tokendir = {}\nlog.level = ERROR\n", tokens.display()))
        .unwrap();
    run(tool(setup, "softhsm2-util").args([
        "--init-token",
        "--free",
        "--label",
        TOKEN,
        "--pin",
        "1234",
        "--so-pin",
        "5678",
    ]));
    keypair(setup, kind, "log");
    std::fs::write(setup.folder.join("pin"), "1234\n").unwrap();
    setup.reconfigure(
        "[signer]\nkind = \"file\"\nkey = \"log.key\"",
        &format!(
            "[signer]\nkind = \"pkcs11\"\nmodule = \"{MODULE}\"\ntoken = \"{TOKEN}\"\nkey = \"log\"\n\
             pin_file = \"pin\""
        ),
    );
}

pub(crate) fn conf(setup: &Setup) -> std::path::PathBuf {
    setup.folder.join("softhsm2.conf")
}

fn tool(setup: &Setup, program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("SOFTHSM2_CONF", conf(setup));
    command
}

fn keypair(setup: &Setup, kind: &str, label: &str) {
    run(tool(setup, "pkcs11-tool")
        .args(["--module", MODULE, "--token-label", TOKEN, "--login", "--pin", "1234"])
        .args(["--keypairgen", "--key-type", kind, "--label", label]));
}

pub(crate) fn start(setup: &Setup, arguments: &[&str]) -> Master {
    let mut command = setup.command();
    command.args(arguments).env("SOFTHSM2_CONF", conf(setup));
    Master::start(command)
}

#[test]
fn ed25519_and_p256_keys_sign_receipts() {
    for kind in ["EC:edwards25519", "EC:prime256v1"] {
        let setup = Setup::new(1);
        hsm(&setup, kind);
        let mut recorder = Recorder::new(&setup.recorders[0]);
        for _ in 0..2 {
            let master = start(&setup, &[]);
            recorder.submit(&master, &pin(&setup), 20, 4).unwrap();
            assert_eq!(master.stop(), Some(0));
        }
        setup.assert_continues(recorder.newest.as_ref().unwrap());
    }
}

/// Statements that follow their receipts at once: the least that a Recorder sends.
#[test]
fn eight_recorders_share_ten_signatures_a_second() {
    let setup = Setup::new(8);
    hsm(&setup, "EC:edwards25519");
    let master = start(&setup, &["--signer-delay", "100"]);
    let pin = pin(&setup);
    let mut recorders: Vec<Recorder> = setup.recorders.iter().map(Recorder::new).collect();
    std::thread::scope(|scope| {
        for (recorder, begin_ms) in recorders.iter_mut().zip((0..).step_by(37)) {
            let (master, pin) = (&master, &pin);
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(begin_ms));
                recorder.submit(master, pin, 50, 1).unwrap();
            });
        }
    });
    let mut latencies: Vec<Duration> = recorders.iter().flat_map(|r| r.latencies.clone()).collect();
    assert_eq!(latencies.len(), 400);
    let (p50, p99) = (percentile(&mut latencies, 50), percentile(&mut latencies, 99));
    println!(
        "8 Recorders, 10 signatures/s: p50 {p50:?}, p99 {p99:?}, highest {:?}",
        latencies[latencies.len() - 1]
    );
    // Two signatures of 100 ms and the syncs; the machine may be full.
    assert!(p99 < Duration::from_secs(2), "{p99:?}");
    setup.assert_continues(recorders[0].newest.as_ref().unwrap());
}

fn refused(setup: &Setup) -> String {
    let output = tool(setup, env!("CARGO_BIN_EXE_evergate-master"))
        .arg("--config")
        .arg(setup.config())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
fn wrong_pin_token_key_and_module_have_their_messages() {
    let setup = Setup::new(0);
    hsm(&setup, "EC:edwards25519");
    let good = setup.read("master.toml");
    let message = |from: &str, to: &str| {
        std::fs::write(setup.config(), &good).unwrap();
        setup.reconfigure(from, to);
        refused(&setup)
    };
    let text = message("token = \"evidence\"", "token = \"absent\"");
    assert!(
        text.contains("no such token; the module has: 'evidence'") && text.contains("--init-token"),
        "{text}"
    );
    let text = message("key = \"log\"", "key = \"absent\"");
    assert!(text.contains("no such public key") && text.contains("--keypairgen"), "{text}");
    let text = message(MODULE, "/nowhere/module.so");
    assert!(text.contains("the module does not load"), "{text}");
    let text = message(MODULE, "/usr/lib/x86_64-linux-gnu/libc.so.6");
    assert!(text.contains("the module does not load"), "{text}");
    let text = message("pin_file = \"pin\"", "pin_file = \"absent\"");
    assert!(text.contains("absent") && text.contains("pin_file"), "{text}");
    std::fs::write(setup.config(), &good).unwrap();
    std::fs::write(setup.folder.join("pin"), "9999").unwrap();
    let text = refused(&setup);
    assert!(text.contains("the PIN of") && text.contains("is wrong") && text.contains("locks"), "{text}");
}

#[test]
fn keys_of_other_kinds_are_refused() {
    for kind in ["rsa:2048", "EC:secp384r1"] {
        let setup = Setup::new(0);
        hsm(&setup, kind);
        let text = refused(&setup);
        assert!(text.contains("the key is of another kind"), "{text}");
    }
    let setup = Setup::new(0);
    hsm(&setup, "EC:edwards25519");
    keypair(&setup, "EC:edwards25519", "log");
    let text = refused(&setup);
    assert!(text.contains("2 public keys have this label"), "{text}");
}

#[test]
fn receipts_wait_for_an_hsm_that_is_away() {
    let setup = Setup::new(1);
    hsm(&setup, "EC:edwards25519");
    let mut master = start(&setup, &[]);
    let pin = pin(&setup);
    let mut recorder = Recorder::new(&setup.recorders[0]);
    recorder.submit(&master, &pin, 3, 3).unwrap();
    let (tokens, away) = (setup.folder.join("tokens"), setup.folder.join("away"));
    std::fs::rename(&tokens, &away).unwrap();
    let address = master.address.clone();
    std::thread::scope(|scope| {
        let submitting = scope.spawn(|| recorder.submit_to(&address, &pin, 3, 3));
        master.wait_line("no signature:");
        assert!(!submitting.is_finished());
        std::fs::rename(&away, &tokens).unwrap();
        submitting.join().unwrap().unwrap();
    });
}
