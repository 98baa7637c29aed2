//! Reader of a bundle in a folder for its verification.

use super::store_reader::hash;
use super::{VerifyArgs, read_bounded, timestamps, unreadable};
use crate::bundle::{Manifest, hex};
use crate::cli::Failure;
use crate::progress::Progress;
use crate::segment_file::{FileError, SegmentFile};
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::verify::{
    BATCHES, BatchProof, Expected, FindingKind, Findings, RECEIPT_BYTES_MAX, RecordDigest, Report, SESSION,
    Session, SessionVerifier, Trust,
};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

const MANIFEST: &str = "manifest.json";
const MANIFEST_BYTES_MAX: u64 = 16 << 20;
/// Most files of a bundle.
const FILES_MAX: usize = 1 << 17;

/// Verifies a bundle.
pub(super) fn verify(
    args: &VerifyArgs,
    trust: &Trust,
    expected: Option<&Expected>,
) -> Result<Report, Failure> {
    let root = &args.folder;
    let mut early = Findings::default();
    let manifest = read_manifest(root, &mut early)?;
    if let Some(manifest) = &manifest {
        check_files(root, manifest, &mut early)?;
    }
    let recorder = manifest.as_ref().and_then(|manifest| hash(&manifest.recorder)).unwrap_or_default();
    let session =
        Session { recorder, connection: manifest.as_ref().map_or(0, |manifest| manifest.connection) };
    let bytes_max = u64::from(args.memory) * (1 << 18);
    let content = read_or_missing(root, BATCHES, bytes_max, &mut early)?;
    let batches = BatchProof::decode_all(&content).unwrap_or_else(|(offset, error)| {
        early.add(FindingKind::Statement, BATCHES, Some(offset), error);
        Vec::new()
    });
    let mut verifier = SessionVerifier::new(trust, &EvidenceVerifier, session, batches);
    *verifier.findings() = early;
    verifier.check_batches();
    timestamps::read(args, trust, |stamp, tokens| verifier.on_stamp(stamp, tokens))?
        .warn(verifier.findings());
    for batch in verifier.batches() {
        let name = format!("proofs/{batch}.tlog-proof");
        let content = read_or_missing(root, &name, RECEIPT_BYTES_MAX as u64, verifier.findings())?;
        verifier.on_proof(batch, &content, &name);
    }
    read_session(root, &mut verifier)?;
    for later in ["request.note", "done.tlog-proof"] {
        if root.join(later).exists() {
            verifier.findings().warn(FindingKind::Unchecked, later, "this version does not verify it");
        }
    }
    Ok(verifier.finish(expected))
}

fn read_manifest(root: &Path, findings: &mut Findings) -> Result<Option<Manifest>, Failure> {
    let content = read_or_missing(root, MANIFEST, MANIFEST_BYTES_MAX, findings)?;
    match Manifest::parse(&content) {
        Ok(manifest) => Ok(Some(manifest)),
        Err(error) => {
            findings.add(FindingKind::Description, MANIFEST, None, error);
            Ok(None)
        }
    }
}

/// Content of a file; empty, with a finding, where it is missing or too long.
fn read_or_missing(
    root: &Path,
    name: &str,
    bytes_max: u64,
    findings: &mut Findings,
) -> Result<Vec<u8>, Failure> {
    let path = root.join(name);
    match read_bounded(&path, bytes_max) {
        Ok(content) => Ok(content),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::FileTooLarge) => {
            findings.add_once(FindingKind::Missing, name, error);
            Ok(Vec::new())
        }
        Err(error) => Err(unreadable(&path, &error)),
    }
}

/// Compares the digest of each file with the manifest, and finds files that it does not name.
fn check_files(root: &Path, manifest: &Manifest, findings: &mut Findings) -> Result<(), Failure> {
    let present = list(root)?;
    for name in &present {
        if name != MANIFEST && !manifest.files.contains_key(name) {
            findings.add(FindingKind::UnknownFile, name, None, "the manifest does not name it");
            findings.add_once(FindingKind::Description, MANIFEST, format!("it does not name {name}"));
        }
    }
    for (name, expected) in &manifest.files {
        if !is_plain(name) {
            findings.add(FindingKind::Description, MANIFEST, None, format!("invalid path {name}"));
        } else if !present.contains(name) {
            findings.add_once(FindingKind::Missing, name, "the manifest names it");
            findings.add_once(
                FindingKind::Description,
                MANIFEST,
                format!("it names {name}, which is missing"),
            );
        } else {
            let path = root.join(name);
            let digest = digest(&path).map_err(|error| unreadable(&path, &error))?;
            if digest != *expected {
                findings.add(FindingKind::Description, name, None, "its digest differs from the manifest");
                findings.add_once(FindingKind::Description, MANIFEST, format!("digest of {name} differs"));
            }
        }
    }
    Ok(())
}

/// Whether this is a path of at most two parts without a way out of the folder.
fn is_plain(name: &str) -> bool {
    let is_part = |part: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        !part.is_empty() && !part.starts_with('.') && part.bytes().all(is_plain)
    };
    name.split('/').count() <= 2 && name.split('/').all(is_part)
}

/// Files of the folder and of the folders in it.
fn list(root: &Path) -> Result<BTreeSet<String>, Failure> {
    let mut names = BTreeSet::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let path = root.join(&folder);
        for entry in std::fs::read_dir(&path).map_err(|error| unreadable(&path, &error))? {
            let entry = entry.map_err(|error| unreadable(&path, &error))?;
            let name = format!("{folder}{}", entry.file_name().to_string_lossy());
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && folder.is_empty() {
                folders.push(format!("{name}/"));
            } else {
                names.insert(name);
            }
            if names.len() > FILES_MAX {
                let root = root.display();
                return Err(Failure::wrong(format!("verify: {root} has more than {FILES_MAX} files")));
            }
        }
    }
    Ok(names)
}

fn digest(path: &Path) -> io::Result<String> {
    let (mut file, mut hash, mut buffer) = (File::open(path)?, Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hex(&hash.finalize().into())),
            Ok(bytes) => hash.update(&buffer[..bytes]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn read_session(root: &Path, verifier: &mut SessionVerifier<'_>) -> Result<(), Failure> {
    let path = root.join(SESSION);
    let mut file = match SegmentFile::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            verifier.findings().add_once(FindingKind::Missing, SESSION, "the file is missing");
            return Ok(());
        }
        Err(error) => return Err(unreadable(&path, &error)),
    };
    let bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
    let (mut progress, mut scratch) = (Progress::new("verify", bytes), Vec::new());
    loop {
        match file.read() {
            Ok(None) => return Ok(()),
            Ok(Some(located)) => {
                verifier.on_record(&RecordDigest::of(&located.record, located.offset, &mut scratch));
                progress.add(located.end - located.offset);
            }
            Err(FileError::Io(error)) => return Err(unreadable(&path, &error)),
            Err(FileError::Content { offset, error }) => {
                verifier.findings().add(FindingKind::Segment, SESSION, Some(offset), error);
                return Ok(());
            }
            Err(FileError::Torn { offset }) => {
                let detail = "the file ends within a block";
                verifier.findings().add(FindingKind::Segment, SESSION, Some(offset), detail);
                return Ok(());
            }
        }
    }
}
