//! Folder of a Revealer: its identity, the pinned key of the log, the last checkpoint seen, the policy in force, and
//! the journal of grants.

use super::{failed, wrong};
use crate::cli::Failure;
use crate::store::replace_file;
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::checkpoint::SignedCheckpoint;
use evergate_evidence::disclosure::{Nonce, Policy};
use evergate_evidence::note::VerifyingKey;
use evergate_submission::Identity;
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Folder of a Revealer, locked by this process.
pub(super) struct State {
    root: PathBuf,
    _lock: File,
}

impl State {
    /// Opens or creates the folder. Grants in it are sealed for their recipients; only the owner reads it all the same.
    pub(super) fn open(root: &Path) -> Result<State, Failure> {
        let open = || {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(root.join("grants"))?;
            let lock = File::options().create(true).truncate(false).write(true).open(root.join("lock"))?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            Ok(lock)
        };
        let lock = open().map_err(|error: std::io::Error| {
            wrong(format!("cannot lock {}: {error}; wait until other commands have ended", root.display()))
        })?;
        Ok(State { root: root.into(), _lock: lock })
    }

    /// Identity, made by the first start.
    pub(super) fn identity(&self) -> Result<Identity, Failure> {
        let (certificate, key) = (self.root.join("revealer.pem"), self.root.join("revealer.key"));
        if !certificate.exists() || !key.exists() {
            make_identity(&certificate, &key)
                .map_err(|error| failed(format!("cannot make {}: {error}", certificate.display())))?;
        }
        Identity::load(&certificate, &key).map_err(|error| wrong(format!("identity: {error}")))
    }

    /// Key of the log: pinned by the options or at the first contact. Another key is an error.
    pub(super) fn pin(&self, pinned: Option<&VerifyingKey>, found: &str) -> Result<VerifyingKey, Failure> {
        let path = self.root.join("log.vkey");
        let known = match (pinned, self.read("log.vkey")?) {
            (Some(key), _) => key.to_vkey(),
            (None, Some(text)) => String::from_utf8_lossy(&text).trim_end().to_owned(),
            (None, None) => {
                eprintln!(
                    "evergate-audit: reveal: pinned the log's key {found}; compare it with its owner's"
                );
                self.write("log.vkey", format!("{found}\n").as_bytes())?;
                found.to_owned()
            }
        };
        if known != found {
            let path = path.display();
            return Err(wrong(format!(
                "the Master's log has the key {found}, pinned is {known}; for a new log give --log-key or remove {path}"
            )));
        }
        VerifyingKey::parse(&known).map_err(|error| wrong(format!("key of the log: {error}")))
    }

    /// Last checkpoint seen.
    pub(super) fn checkpoint(&self) -> Result<Option<SignedCheckpoint>, Failure> {
        let Some(bytes) = self.read("checkpoint")? else { return Ok(None) };
        SignedCheckpoint::parse(&bytes).map(Some).map_err(|error| {
            wrong(format!("{}: {error}; restore it", self.root.join("checkpoint").display()))
        })
    }

    /// Remembers a checkpoint.
    pub(super) fn set_checkpoint(&self, checkpoint: &SignedCheckpoint) -> Result<(), Failure> {
        self.write("checkpoint", &checkpoint.to_bytes())
    }

    /// Policy in a file. Another one than the last must follow it.
    pub(super) fn policy(&self, path: &Path) -> Result<Policy, Failure> {
        let wrong_policy = |error: &dyn std::fmt::Display| wrong(format!("{}: {error}", path.display()));
        let bytes = std::fs::read(path).map_err(|error| wrong_policy(&error))?;
        let known = self.read("policy")?;
        let parse = |bytes: &[u8]| {
            let note = evergate_evidence::note::Note::parse(bytes).map_err(|error| wrong_policy(&error))?;
            Policy::parse_text(note.text()).map_err(|error| wrong_policy(&error))
        };
        if known.as_ref() == Some(&bytes) {
            return parse(&bytes);
        }
        let previous = known.as_deref().map(parse).transpose()?;
        let policy = Policy::open(&bytes, previous.as_ref(), &EvidenceVerifier);
        let policy = policy.map_err(|error| wrong_policy(&error))?;
        self.write("policy", &bytes)?;
        Ok(policy)
    }

    /// Grant of a nonce.
    pub(super) fn grant(&self, nonce: &Nonce) -> Result<Option<Vec<u8>>, Failure> {
        self.read(&grant_name(nonce))
    }

    /// Makes a grant durable.
    pub(super) fn set_grant(&self, nonce: &Nonce, grant: &[u8]) -> Result<(), Failure> {
        self.write(&grant_name(nonce), grant)
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        match std::fs::read(self.root.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(wrong(format!("cannot read {}: {error}", self.root.join(name).display()))),
        }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Failure> {
        let path = self.root.join(name);
        replace_file(&path, bytes).map_err(|error| {
            failed(format!("cannot write {}: {error}; nothing is disclosed", path.display()))
        })
    }
}

fn grant_name(nonce: &Nonce) -> String {
    let digits: String = nonce.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("grants/{digits}.grant")
}

/// The certificate comes last: a pair that a crash cut short is made again.
fn make_identity(certificate: &Path, key: &Path) -> std::io::Result<()> {
    let (certificate_pem, key_pem) =
        Identity::generate("evergate-revealer").map_err(std::io::Error::other)?;
    let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(key)?;
    file.write_all(key_pem.as_bytes())?;
    file.sync_all()?;
    let mut file = File::create(certificate)?;
    file.write_all(certificate_pem.as_bytes())?;
    file.sync_all()
}
