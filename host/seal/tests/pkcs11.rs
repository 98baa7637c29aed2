//! Keys of epochs in SoftHSM2, with a token folder of the test's own.
//!
//! SoftHSM2 reads the path of its configuration from the environment, which a process sets before its threads: so there
//! is one test, in a process of its own that it starts.

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use evergate_evidence::envelope::{Aad, EPOCH_NS, Envelope, Layer};
use evergate_evidence::epochs::EpochKeys;
use evergate_evidence::secrets::{Label, SecretList};
use evergate_seal::{Decapsulate, HsmKeys, HsmPlace, OpenError, SealContext, open_layer, open_secrets};
use std::path::{Path, PathBuf};
use std::process::Command;

const MODULE: &str = "/usr/lib/softhsm/libsofthsm2.so";
const EPOCH: u64 = 497_000;
const FOLDER: &str = "EVERGATE_TEST_TOKENS";

/// Folder that is removed with its owner.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn keys_in_a_token_open_until_they_are_destroyed() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return in_the_token(Path::new(&folder));
    }
    if !Path::new(MODULE).exists() {
        assert!(std::env::var_os("CI").is_none(), "{MODULE} is missing");
        eprintln!("skipped: {MODULE} is missing");
        return;
    }
    let folder = Folder(std::env::temp_dir().join(format!("evergate-seal-{}", std::process::id())));
    std::fs::create_dir_all(folder.0.join("tokens")).unwrap();
    let conf = folder.0.join("softhsm2.conf");
    let tokens = folder.0.join("tokens");
    std::fs::write(&conf, format!("directories.tokendir = {}\nlog.level = ERROR\n", tokens.display()))
        .unwrap();
    std::fs::write(folder.0.join("pin"), "1234\n").unwrap();
    std::fs::write(folder.0.join("wrong"), "9999\n").unwrap();
    let token = ["--init-token", "--free", "--label", "epochs", "--pin", "1234", "--so-pin", "5678"];
    run(Command::new("softhsm2-util").env("SOFTHSM2_CONF", &conf).args(token));
    run(Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "keys_in_a_token_open_until_they_are_destroyed"])
        .env("SOFTHSM2_CONF", &conf)
        .env(FOLDER, &folder.0));
}

fn place(folder: &Path, purpose: &str, pin: &str) -> HsmPlace {
    HsmPlace {
        module: MODULE.into(),
        token: "epochs".into(),
        pin_file: folder.join(pin),
        purpose: purpose.into(),
    }
}

fn in_the_token(folder: &Path) {
    let mut outer = HsmKeys::open(place(folder, "escrow", "pin")).unwrap();
    let mut inner = HsmKeys::open(place(folder, "reveal", "pin")).unwrap();
    let keys =
        EpochKeys { epoch: EPOCH, inner: inner.create(EPOCH).unwrap(), outer: outer.create(EPOCH).unwrap() };
    assert_ne!(keys.inner, keys.outer);
    assert_eq!(inner.create(EPOCH), Ok(keys.inner));
    inner.create(EPOCH + 1).unwrap();
    assert_eq!(inner.epochs(), Ok(vec![EPOCH, EPOCH + 1]));
    assert_eq!(outer.epochs(), Ok(vec![EPOCH]));
    let bytes = sealed(&keys);
    let envelope = Envelope::decode(&bytes).unwrap();
    let middle = open_layer(&envelope, Layer::Outer, envelope.sealed, &mut outer).unwrap();
    assert_eq!(open_secrets(&envelope, &middle, &mut inner), Ok(secrets()));
    // Both layers are apart: neither holder opens the layer of the other one.
    assert_eq!(
        open_layer(&envelope, Layer::Outer, envelope.sealed, &mut inner),
        Err(OpenError::Closed(Layer::Outer))
    );
    let mut off_curve = envelope.enc_outer;
    off_curve[64] ^= 1;
    assert_eq!(outer.shared(Layer::Outer, EPOCH, &off_curve).err(), Some(OpenError::Point));
    // Another user of the module ends it; the next call opens it again.
    let module = Pkcs11::new(MODULE).unwrap();
    let _ = module.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK));
    module.finalize().unwrap();
    assert_eq!(inner.public(EPOCH), Ok(Some(keys.inner)));
    assert_eq!(inner.destroy(EPOCH), Ok(true));
    assert_eq!(inner.destroy(EPOCH), Ok(false));
    assert_eq!(open_secrets(&envelope, &middle, &mut inner), Err(OpenError::NoKey(Layer::Inner, EPOCH)));
    assert_eq!(inner.epochs(), Ok(vec![EPOCH + 1]));
    refused_pin_is_not_tried_again(folder);
}

fn refused_pin_is_not_tried_again(folder: &Path) {
    let module = Pkcs11::new(MODULE).unwrap();
    let _ = module.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK));
    module.finalize().unwrap(); // or the token keeps the user logged in
    let error = HsmKeys::open(place(folder, "reveal", "wrong")).err().unwrap().to_string();
    assert!(error.contains("refused the PIN"), "{error}");
}

fn secrets() -> SecretList {
    let mut list = SecretList::default();
    list.set(Label::MasterSecret, &[6; 48]).unwrap();
    list
}

fn sealed(keys: &EpochKeys) -> Vec<u8> {
    let aad = Aad {
        switch: [1; 32],
        connection: 7,
        born_ns: EPOCH * EPOCH_NS,
        client: "10.0.0.1:50000".parse().unwrap(),
        local: "10.0.0.2:443".parse().unwrap(),
        client_random: [2; 32],
        server_random: [3; 32],
        tls_version: 0x303,
        cipher_suite: 0xc02f,
        feed_number: 1,
        sni: b"a.test",
    };
    SealContext::new(keys).unwrap().seal(&aad, &secrets()).unwrap()
}
