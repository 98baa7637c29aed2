//! Identity of a Recorder: its certificate, its key, and its id, the SHA-256 of its public key.

use crate::cli::Failure;
use crate::store::Store;
use evergate_crypto::{pem_certificates, self_signed, spki_hash};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Certificate and key of a Recorder.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Id of the Recorder.
    pub(crate) id: [u8; 32],
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Identity {
    /// The identity in these files; without files the store's own, which the first start makes.
    pub(crate) fn load(store: &Store, files: Option<(&Path, &Path)>) -> Result<Identity, Failure> {
        let (certificate, key) = match files {
            Some((certificate, key)) => (certificate.to_owned(), key.to_owned()),
            None => own_files(store)?,
        };
        let pem = std::fs::read(&certificate)
            .map_err(|error| Failure::wrong(format!("identity: cannot read {}: {error}", certificate.display())))?;
        let id = pem_certificates(&pem).ok().and_then(|chain| spki_hash(chain.first()?).ok());
        let id = id.ok_or_else(|| {
            let path = certificate.display();
            Failure::wrong(format!("identity: {path} has no certificate; give a PEM file with --certificate"))
        })?;
        Ok(Identity { id, certificate, key })
    }
}

fn own_files(store: &Store) -> Result<(PathBuf, PathBuf), Failure> {
    let (certificate, key) = (store.root().join("recorder.pem"), store.root().join("recorder.key"));
    if !certificate.exists() || !key.exists() {
        make(&certificate, &key)
            .map_err(|error| Failure::wrong(format!("identity: cannot make {}: {error}", certificate.display())))?;
    }
    Ok((certificate, key))
}

/// The certificate comes last: a pair that a crash cut short is made again.
fn make(certificate: &Path, key: &Path) -> std::io::Result<()> {
    let (certificate_pem, key_pem) = self_signed(&["evergate-recorder".to_owned()]).map_err(std::io::Error::other)?;
    let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(key)?;
    file.write_all(key_pem.as_bytes())?;
    file.sync_all()?;
    let mut file = File::create(certificate)?;
    file.write_all(certificate_pem.as_bytes())?;
    file.sync_all()
}
