//! Witnesses and time-stamp authorities: small servers in Python that share no code with the Master.

use crate::support::{Recorder, Setup, pin, run, script, wait_until};
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::checkpoint::SignedCheckpoint;
use evergate_evidence::entry::{Entry, Event};
use evergate_evidence::merkle::sha256;
use evergate_evidence::note::{PublicKey, VerifyingKey};
use evergate_evidence::tile::bundle_entries;
use evergate_master::tiles::Tiles;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// Server that prints its port first.
pub(crate) struct Server(Child, u16);

impl Server {
    fn start(command: &mut Command) -> Server {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Server(child, line.trim().parse().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn openssl(setup: &Setup, arguments: &[&str]) -> String {
    run(Command::new("openssl").current_dir(&setup.folder).args(arguments))
}

/// Witness of a new key; its state is in a file of the set-up.
pub(crate) fn witness(setup: &Setup) -> (Server, VerifyingKey) {
    openssl(setup, &["genpkey", "-algorithm", "ed25519", "-out", "witness.key"]);
    openssl(setup, &["pkey", "-in", "witness.key", "-pubout", "-outform", "DER", "-out", "witness.der"]);
    let der = std::fs::read(setup.folder.join("witness.der")).unwrap();
    let key: [u8; 32] = der[der.len() - 32..].try_into().unwrap();
    let vkey = VerifyingKey::new("witness.example/w1", PublicKey::Cosignature(key)).unwrap();
    let server = Server::start(
        Command::new("python3")
            .arg(script("witness.py"))
            .arg(setup.folder.join("witness.key"))
            .arg(setup.folder.join("witness.state"))
            .arg(vkey.name())
            .arg(format!("{:08x}", vkey.id())),
    );
    setup.configure(&format!(
        "\n[[witness]]\nurl = \"http://127.0.0.1:{}\"\nvkey = \"{}\"\n",
        server.1,
        vkey.to_vkey()
    ));
    (server, vkey)
}

#[test]
fn witness_cosigns_and_knows_an_older_copy() {
    let setup = Setup::new(1);
    let (server, vkey) = witness(&setup);
    let pin = pin(&setup);
    let mut recorder = Recorder::new(&setup.recorders[0]);
    let master = setup.start();
    recorder.submit(&master, &pin, 3, 3).unwrap();
    let log = VerifyingKey::parse(&recorder.connect(&master, &pin).unwrap().welcome.vkey).unwrap();
    let cosigned = |size: u64| {
        let signed = setup.checkpoint();
        let verified = signed.verify(&log, std::slice::from_ref(&vkey), &EvidenceVerifier).unwrap();
        signed.checkpoint().size == size
            && verified.keys.iter().any(|&(key, time)| key == 1 && time.is_some())
    };
    wait_until("a cosignature", || cosigned(5));
    // The first request names size 0; the next ones need consistency proofs.
    recorder.submit(&master, &pin, 300, 8).unwrap();
    wait_until("a cosignature of the grown log", || cosigned(305));
    let witnessed = std::fs::read(setup.log().join("witnessed")).unwrap();
    SignedCheckpoint::parse(&witnessed)
        .unwrap()
        .verify(&log, std::slice::from_ref(&vkey), &EvidenceVerifier)
        .unwrap();
    assert_eq!(master.stop(), Some(0));
    // An older copy of the whole folder: the witness knows more.
    run(Command::new("cp").arg("-a").arg(setup.log()).arg(setup.folder.join("copy")));
    let master = setup.start();
    recorder.submit(&master, &pin, 5, 5).unwrap();
    wait_until("a cosignature after the restart", || cosigned(311));
    assert_eq!(master.stop(), Some(0));
    std::fs::remove_dir_all(setup.log()).unwrap();
    std::fs::rename(setup.folder.join("copy"), setup.log()).unwrap();
    let text = setup.refused_start();
    assert!(text.contains("it cosigned 311 entries of this log, only 305 are here"), "{text}");
    // A witness that is away stops nothing.
    drop(server);
    let mut master = setup.start();
    master.wait_line("continuing without it");
    Recorder::new(&setup.recorders[0]).connect(&master, &pin).unwrap();
}

#[test]
fn witness_of_another_tree_stops_the_start() {
    let setup = Setup::new(0);
    let (_server, _) = witness(&setup);
    let master = setup.start();
    wait_until("a cosignature", || setup.log().join("witnessed").exists());
    assert_eq!(master.stop(), Some(0));
    let root = evergate_evidence::base64::encode(&[7; 32]);
    std::fs::write(setup.folder.join("witness.state"), format!("1 {root}")).unwrap();
    let text = setup.refused_start();
    assert!(text.contains("it cosigned another tree"), "{text}");
}

/// Authority of time stamps with a new certificate; `mode` is `grant` or `refuse`.
fn authority(setup: &Setup, mode: &str) -> Server {
    let cnf = "[ req ]\ndistinguished_name = dn\nprompt = no\nx509_extensions = tsa\n[ dn ]\nCN = Test TSA\n\
        [ tsa ]\nextendedKeyUsage = critical,timeStamping\n[ tsa_config ]\nserial = serial\n\
        signer_digest = sha256\ndefault_policy = 1.2.3.4.1\ndigests = sha256\n";
    std::fs::write(setup.folder.join("tsa.cnf"), cnf).unwrap();
    openssl(
        setup,
        &[
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-config", "tsa.cnf", "-keyout", "tsa.key",
            "-out", "tsa.pem", "-days", "1",
        ],
    );
    let server =
        Server::start(Command::new("python3").arg(script("tsa.py")).arg(mode).current_dir(&setup.folder));
    setup.configure(&format!("\n[tsa]\nurl = \"http://127.0.0.1:{}/tsa\"\ninterval_s = 1\n", server.1));
    server
}

#[test]
fn time_stamps_verify_and_are_in_the_log() {
    let setup = Setup::new(0);
    let _server = authority(&setup, "grant");
    let master = setup.start();
    let tsr = || {
        let mut names: Vec<_> =
            std::fs::read_dir(setup.log().join("tsa")).ok()?.map(|e| e.unwrap().path()).collect();
        names.sort();
        names.into_iter().find(|path| path.extension().is_some_and(|end| end == "tsr"))
    };
    wait_until("a token", || tsr().is_some());
    wait_until("its entry", || setup.checkpoint().checkpoint().size >= 2);
    assert_eq!(master.stop(), Some(0));
    let (token, checkpoint) = (tsr().unwrap(), tsr().unwrap().with_extension("checkpoint"));
    let verified = openssl(
        &setup,
        &[
            "ts",
            "-verify",
            "-data",
            checkpoint.to_str().unwrap(),
            "-in",
            token.to_str().unwrap(),
            "-CAfile",
            "tsa.pem",
        ],
    );
    assert!(verified.contains("OK"), "{verified}");
    let size = setup.checkpoint().checkpoint().size;
    let (tile, bytes) = Tiles::new(&setup.log()).read_entries(0, size).unwrap();
    let stamp =
        bundle_entries(&bytes, tile.width).unwrap().into_iter().find_map(|bytes| {
            match Entry::decode(bytes).unwrap() {
                Entry::Event(_, Event::Timestamp(stamp)) => Some(stamp),
                _ => None,
            }
        });
    let stamp = stamp.unwrap();
    let file = std::fs::read(&checkpoint).unwrap();
    assert_eq!(stamp.imprint, sha256(&file));
    assert_eq!(SignedCheckpoint::parse(&file).unwrap().checkpoint().size, stamp.size);
    assert_eq!(stamp.token, std::fs::read(token).unwrap());
}

#[test]
fn refused_time_stamps_are_logged_with_their_reason() {
    let setup = Setup::new(0);
    let server = authority(&setup, "refuse");
    let mut master = setup.start();
    let line = master.wait_line("no time stamp from");
    assert!(line.contains("refused with status 2"), "{line}");
    drop(server);
    master.wait_line("Connection refused");
    assert!(master.is_running());
}
