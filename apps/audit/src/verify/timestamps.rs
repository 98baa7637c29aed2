//! Reader of time stamps (RFC 3161), and the verifier of their tokens (feature `tsa`).
//!
//! A folder has `SIZE.checkpoint` and `SIZE.tsr` for each stamp, as the Master writes them. The trust file names the
//! authorities: each a PEM file with the certificate that signs tokens, its issuers, and the root last.

use super::{VerifyArgs, read_bounded, unreadable};
use crate::cli::Failure;
use evergate_evidence::note::NOTE_BYTES_MAX;
use evergate_evidence::verify::{
    FindingKind, Findings, STAMPS, STAMPS_MAX, StampFiles, TokenVerifier, Trust,
};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

/// Longest response of an authority: an entry of the log has it.
const TOKEN_BYTES_MAX: u64 = 60_000;

/// What the report must state about stamps.
#[derive(Debug)]
pub(super) struct Note(Option<&'static str>);

impl Note {
    pub(super) fn warn(&self, findings: &mut Findings) {
        if let Some(detail) = self.0 {
            findings.warn(FindingKind::Unchecked, STAMPS, detail);
        }
    }
}

/// Feeds every stamp, the smallest tree first.
pub(super) fn read(
    args: &VerifyArgs,
    trust: &Trust,
    mut each: impl FnMut(&StampFiles<'_>, Option<&dyn TokenVerifier>),
) -> Result<Note, Failure> {
    let authorities = authorities(args, trust)?;
    let folder = args.timestamps.clone().unwrap_or_else(|| args.folder.join(STAMPS));
    let sizes = sizes(&folder, args.timestamps.is_some())?;
    for &size in &sizes {
        let content = |suffix: &str, bytes_max| {
            let path = folder.join(format!("{size}.{suffix}"));
            match read_bounded(&path, bytes_max) {
                // A missing or too long file is a finding of the parser.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::FileTooLarge) => {
                    Ok(Vec::new())
                }
                content => content.map_err(|error| unreadable(&path, &error)),
            }
        };
        let (checkpoint, token) =
            (content("checkpoint", NOTE_BYTES_MAX as u64)?, content("tsr", TOKEN_BYTES_MAX)?);
        let files = StampFiles { size, checkpoint: &checkpoint, token: &token };
        each(&files, authorities.as_ref().map(|authorities| authorities as &dyn TokenVerifier));
    }
    let is_asked = !trust.tsa_certificates.is_empty();
    Ok(Note(match (sizes.is_empty(), is_asked, cfg!(feature = "tsa")) {
        (true, true, _) => Some("the trust file names time-stamp authorities, and there are no time stamps"),
        (true, false, _) | (false, true, true) => None,
        (false, false, _) => Some("time stamps were not checked: the trust file has no tsa_certificates"),
        (false, true, false) => Some("time stamps were not checked: this program lacks the feature tsa"),
    }))
}

/// Sizes in the names of the files. A folder that an option names must exist.
fn sizes(folder: &Path, is_named: bool) -> Result<BTreeSet<u64>, Failure> {
    let mut sizes = BTreeSet::new();
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound && !is_named => return Ok(sizes),
        Err(error) => return Err(unreadable(folder, &error)),
    };
    for entry in entries.take(2 * STAMPS_MAX) {
        let name = entry.map_err(|error| unreadable(folder, &error))?.file_name();
        let stem = name.to_str().and_then(|name| name.rsplit_once('.'));
        let size = stem.filter(|(_, suffix)| ["checkpoint", "tsr"].contains(suffix));
        sizes.extend(size.and_then(|(size, _)| size.parse::<u64>().ok()));
    }
    Ok(sizes)
}

/// Authorities of the trust file; `None` without one, or without the feature.
fn authorities(args: &VerifyArgs, trust: &Trust) -> Result<Option<Authorities>, Failure> {
    if trust.tsa_certificates.is_empty() || !cfg!(feature = "tsa") {
        return Ok(None);
    }
    let folder = args.trust.parent().unwrap_or(Path::new("."));
    Authorities::load(folder, &trust.tsa_certificates).map(Some)
}

/// Identifier of ECDSA keys in DER. The library verifies no tokens of others.
#[cfg(feature = "tsa")]
const EC_KEY: [u8; 9] = [0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];

/// Authorities whose tokens count.
#[cfg(feature = "tsa")]
struct Authorities(Vec<sigstore_types::TsaAuthority>);

#[cfg(not(feature = "tsa"))]
enum Authorities {}

#[cfg(not(feature = "tsa"))]
impl Authorities {
    #[allow(clippy::unnecessary_wraps, reason = "one form with and without the feature")]
    fn load(folder: &Path, _: &[String]) -> Result<Authorities, Failure> {
        Err(wrong(folder, &"this program lacks the feature tsa"))
    }
}

#[cfg(not(feature = "tsa"))]
impl TokenVerifier for Authorities {
    fn verify(&self, _: &[u8], _: &[u8]) -> Result<u64, String> {
        match *self {}
    }
}

fn wrong(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::wrong(format!(
        "verify: authority {}: {error}; tsa_certificates names PEM files with the authority's certificate first",
        path.display()
    ))
}

#[cfg(feature = "tsa")]
impl Authorities {
    fn load(folder: &Path, names: &[String]) -> Result<Authorities, Failure> {
        use sigstore_types::{DerCertificate, TsaAuthority};
        const PEM_BYTES_MAX: u64 = 1 << 20;
        let load = |name: &String| {
            let path = folder.join(name);
            let pem = read_bounded(&path, PEM_BYTES_MAX).and_then(|pem| {
                String::from_utf8(pem).map_err(|error| std::io::Error::new(ErrorKind::InvalidData, error))
            });
            let pem = pem.map_err(|error| wrong(&path, &error))?;
            const END: &str = "-----END CERTIFICATE-----";
            let chain: Result<Vec<_>, _> = pem
                .split_inclusive(END)
                .filter(|part| part.contains(END))
                .map(DerCertificate::from_pem)
                .collect();
            let mut chain = chain.map_err(|error| wrong(&path, &error))?;
            let root = chain.last().cloned().ok_or_else(|| wrong(&path, &"it has no certificate"))?;
            let leaf = chain.remove(0);
            if !leaf.as_bytes().windows(EC_KEY.len()).any(|bytes| bytes == EC_KEY) {
                return Err(wrong(
                    &path,
                    &"it has no ECDSA key: check its time stamps with OpenSSL, and leave it out",
                ));
            }
            chain.pop();
            Ok(TsaAuthority::new(leaf, chain, root, None))
        };
        names.iter().map(load).collect::<Result<_, _>>().map(Authorities)
    }
}

#[cfg(feature = "tsa")]
impl TokenVerifier for Authorities {
    fn verify(&self, token: &[u8], content: &[u8]) -> Result<u64, String> {
        use sigstore_types::{SignatureBytes, TimestampToken};
        let (token, content) = (TimestampToken::from_bytes(token), SignatureBytes::from_bytes(content));
        let mut errors = Vec::new();
        for authority in &self.0 {
            match sigstore_tsa::verify_timestamp_for_authority(&token, &content, authority) {
                Ok(time) => return Ok(u64::try_from(time.as_millisecond()).unwrap_or(0)),
                Err(error) => errors.push(error.to_string()),
            }
        }
        Err(format!("no trusted authority made it: {}", errors.join("; ")))
    }
}
