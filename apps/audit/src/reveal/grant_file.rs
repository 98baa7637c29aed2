//! The recipient's side: a grant is verified against a trust file, then opened.

use super::{failed, wrong};
use crate::cli::Failure;
use crate::output::print_json;
use clap::Args;
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::deletion::hex;
use evergate_evidence::disclosure::Grant;
use evergate_evidence::proof::Receipt;
use evergate_evidence::secrets::SecretList;
use evergate_evidence::verify::Trust;
use evergate_player::key_log::lines_of;
use evergate_seal::RecipientKey;
use serde_json::json;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use zeroize::Zeroizing;

/// Options of `reveal open`.
#[derive(Debug, Args)]
pub(super) struct OpenArgs {
    /// Grant of a Revealer
    #[arg(long, value_name = "FILE")]
    grant: PathBuf,
    /// Private key of the recipient
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Keys to start from
    #[arg(long, value_name = "FILE")]
    trust: PathBuf,
    /// New file for the secrets, as a key log (RFC 9850)
    #[arg(long, value_name = "FILE")]
    keylog: Option<PathBuf>,
}

/// Error unless the grant's request is in a log that the trust file knows, with the cosignatures that it asks for.
pub fn verify_grant(grant: &Grant, trust: &Trust) -> Result<(), String> {
    let receipt = Receipt::parse(&grant.proof).map_err(|error| error.to_string())?;
    let origin = &receipt.checkpoint.checkpoint().origin;
    if receipt.index != grant.index {
        return Err(format!("the proof is of entry {}, the grant of {}", receipt.index, grant.index));
    }
    let log = trust.logs.iter().find(|key| key.name() == origin);
    let log = log.ok_or_else(|| format!("the trust file has no key of log {origin}"))?;
    let verified = receipt.verify(&grant.leaf(), log, &trust.witnesses, &EvidenceVerifier);
    let cosigned = verified.map_err(|error| error.to_string())?.keys.len() - 1;
    if cosigned < trust.witness_threshold {
        return Err(format!("{cosigned} witnesses cosigned, {} are needed", trust.witness_threshold));
    }
    let request = grant.request().map_err(|error| error.to_string())?;
    let Some(envelope) = grant.envelope().map_err(|error| error.to_string())? else { return Ok(()) };
    match (envelope.aad.client_random, envelope.aad.server_random) {
        randoms if randoms == (request.client_random, request.server_random) => Ok(()),
        _ => Err("the envelope is of another connection than the request".into()),
    }
}

/// Secrets of a grant that [`verify_grant`] accepts.
pub fn open_grant(grant: &Grant, key: &RecipientKey, trust: &Trust) -> Result<SecretList, String> {
    verify_grant(grant, trust)?;
    key.open(grant).map_err(|error| error.to_string())
}

/// Verifies and opens a grant, and shows what it is about. Secrets go to the key log only.
pub(super) fn open(args: &OpenArgs) -> Result<ExitCode, Failure> {
    let grant = Grant::decode(&read(&args.grant)?)
        .map_err(|error| wrong(format!("{}: {error}", args.grant.display())))?;
    let trust = Trust::parse(&read(&args.trust)?)
        .map_err(|error| wrong(format!("{}: {error}", args.trust.display())))?;
    let text = Zeroizing::new(read(&args.key)?);
    let text = std::str::from_utf8(&text).map_err(|_| wrong("the key is not text"))?;
    let key = RecipientKey::parse(text).map_err(|error| wrong(format!("{}: {error}", args.key.display())))?;
    let secrets = open_grant(&grant, &key, &trust).map_err(failed)?;
    let request = grant.request().map_err(failed)?;
    let facts = grant.envelope().map_err(failed)?.map(|envelope| envelope.aad);
    if let Some(path) = &args.keylog {
        write_key_log(path, &request.client_random, &secrets)?;
    }
    print_json(&json!({
        "connection": request.connection,
        "recorder": hex(&request.recorder),
        "source": if facts.is_some() { "envelope" } else { "server_key" },
        "client": facts.map(|facts| facts.client.to_string()),
        "local": facts.map(|facts| facts.local.to_string()),
        "client_random": hex(&request.client_random),
        "server_random": hex(&request.server_random),
        "sni": facts.map(|facts| String::from_utf8_lossy(facts.sni)),
        "reason": request.reason,
        "reference": request.reference,
        "requester": request.requester,
        "credentials": request.with_credentials,
        "log_index": grant.index,
        "logged": crate::when::shown_ns(grant.received_ms.saturating_mul(1_000_000)),
    }))?;
    Ok(ExitCode::SUCCESS)
}

fn write_key_log(path: &Path, client_random: &[u8; 32], secrets: &SecretList) -> Result<(), Failure> {
    let write = || {
        let mut file = File::options().create_new(true).write(true).mode(0o600).open(path)?;
        let lines = Zeroizing::new(lines_of(client_random, secrets));
        file.write_all(lines.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|error: std::io::Error| wrong(format!("cannot create {}: {error}", path.display())))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| wrong(format!("cannot read {}: {error}", path.display())))
}
