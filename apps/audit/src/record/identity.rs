//! Identity of a Recorder: its certificate and key, from files or made by the first start.

use crate::cli::Failure;
use crate::store::Store;
use evergate_crypto::{pem_certificates, spki_hash};
use evergate_submission::Identity;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The identity in these files; without files the store's own, which the first start makes.
pub(crate) fn load(store: &Store, files: Option<(&Path, &Path)>) -> Result<Identity, Failure> {
    let (certificate, key) = match files {
        Some((certificate, key)) => (certificate.to_owned(), key.to_owned()),
        None => own_files(store)?,
    };
    Identity::load(&certificate, &key).map_err(|error| Failure::wrong(format!("identity: {error}")))
}

/// Id of the first certificate of a PEM file.
pub(crate) fn of_certificate(file: &Path) -> Result<[u8; 32], Failure> {
    let pem = std::fs::read(file)
        .map_err(|error| Failure::wrong(format!("identity: cannot read {}: {error}", file.display())))?;
    let id = pem_certificates(&pem).ok().and_then(|chain| spki_hash(chain.first()?).ok());
    id.ok_or_else(|| Failure::wrong(format!("identity: {} has no certificate in PEM", file.display())))
}

fn own_files(store: &Store) -> Result<(PathBuf, PathBuf), Failure> {
    let (certificate, key) = (store.root().join("recorder.pem"), store.root().join("recorder.key"));
    if !certificate.exists() || !key.exists() {
        make(&certificate, &key).map_err(|error| {
            Failure::wrong(format!("identity: cannot make {}: {error}", certificate.display()))
        })?;
    }
    Ok((certificate, key))
}

/// The certificate comes last: a pair that a crash cut short is made again.
fn make(certificate: &Path, key: &Path) -> std::io::Result<()> {
    let (certificate_pem, key_pem) =
        Identity::generate("evergate-recorder").map_err(std::io::Error::other)?;
    let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(key)?;
    file.write_all(key_pem.as_bytes())?;
    file.sync_all()?;
    let mut file = File::create(certificate)?;
    file.write_all(certificate_pem.as_bytes())?;
    file.sync_all()
}
