//! What people do: make keys, write requests, sign notes.

use super::candidates::find_candidates;
use super::{failed, wrong};
use crate::cli::Failure;
use crate::lookup::Wanted;
use crate::output::closed;
use crate::store::replace_file;
use crate::when;
use clap::{Args, ValueEnum};
use evergate_base::terminal::acts;
use evergate_crypto::{LogKey, random_bytes};
use evergate_evidence::base64;
use evergate_evidence::deletion::unhex;
use evergate_evidence::disclosure::{Request, Scope};
use evergate_evidence::envelope::{Envelope, Point, epoch_of_ns};
use evergate_evidence::note::{Note, NoteError, SignatureLine, VerifyingKey};
use evergate_player::tls::rsa_suite;
use evergate_seal::RecipientKey;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const DAY_S: u64 = 86_400;

/// Whose key it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KeyKind {
    /// Of a person that signs requests and approvals (Ed25519)
    Person,
    /// Of a recipient that opens grants (P-256)
    Recipient,
}

/// Options of `reveal key`.
#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    /// Whose key it is
    #[arg(value_enum)]
    kind: KeyKind,
    /// Name of a person's key
    #[arg(long, value_name = "NAME", required_if_eq("kind", "person"))]
    name: Option<String>,
    /// File of the private key, mode 0600
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Key of a person on the command line.
#[derive(Debug, Args)]
struct SignArgs {
    /// Private key of the person, in PEM
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Name of the key in the policy
    #[arg(long, value_name = "NAME")]
    name: String,
}

/// Options of `reveal request`.
#[derive(Debug, Args)]
pub(super) struct RequestArgs {
    /// Stores that have the connection and its envelope
    #[arg(long, value_name = "DIR", required = true)]
    store: Vec<PathBuf>,
    /// Files of envelopes of `seal`
    #[arg(long, value_name = "FILE")]
    envelopes: Vec<PathBuf>,
    /// Number of the connection
    #[arg(long, value_name = "NUMBER", required_unless_present = "client_random")]
    connection: Option<u64>,
    /// Random of its ClientHello
    #[arg(long, value_name = "HEX", conflicts_with = "connection")]
    client_random: Option<String>,
    /// Public key of the recipient in base64
    #[arg(long, value_name = "BASE64")]
    recipient: String,
    /// Reason
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Reference of the case
    #[arg(long, value_name = "TEXT", default_value = "")]
    reference: String,
    /// Permit credentials in exports
    #[arg(long)]
    with_credentials: bool,
    /// Days for which the request is valid
    #[arg(long, value_name = "DAYS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=7))]
    days: u64,
    #[command(flatten)]
    sign: SignArgs,
    /// File of the request
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Options of `reveal approve`.
#[derive(Debug, Args)]
pub(super) struct ApproveArgs {
    #[command(flatten)]
    sign: SignArgs,
    /// Note to sign; a text without signatures becomes one
    file: PathBuf,
}

/// Makes a key, and prints what others need of it.
pub(super) fn make_key(args: &KeyArgs) -> Result<ExitCode, Failure> {
    let (secret, public) = match args.kind {
        KeyKind::Person => {
            let (key, pem) = LogKey::generate().map_err(failed)?;
            let name = args.name.as_deref().unwrap_or_default();
            let vkey = VerifyingKey::new(name, key.public_key()).map_err(wrong)?;
            (pem, vkey.to_vkey())
        }
        KeyKind::Recipient => {
            let key = RecipientKey::generate().map_err(failed)?;
            (key.to_text().map_err(failed)?.to_string(), base64::encode(&key.public()))
        }
    };
    let write = || {
        let mut file = File::options().create_new(true).write(true).mode(0o600).open(&args.out)?;
        file.write_all(secret.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|error| wrong(format!("cannot create {}: {error}", args.out.display())))?;
    print(&format!("{public}\n"))
}

/// Writes a request about one recorded connection.
pub(super) fn request(args: &RequestArgs) -> Result<ExitCode, Failure> {
    let wanted = match (args.connection, &args.client_random) {
        (Some(number), _) => Wanted::Number(number),
        (None, Some(digits)) => Wanted::ClientRandom(
            unhex(digits).ok_or_else(|| wrong("--client-random has 64 hexadecimal digits"))?,
        ),
        (None, None) => return Err(wrong("give --connection or --client-random")),
    };
    let found = find_candidates(&args.store, &args.envelopes, wanted, None)?;
    let record = found.record.ok_or_else(|| wrong("the stores do not have the connection"))?;
    let epoch = match found.envelopes.first() {
        Some(envelope) => Envelope::decode(envelope).map_err(wrong)?.aad.epoch(),
        None if rsa_suite(record.tls.version, record.tls.suite).is_ok() => {
            eprintln!(
                "evergate-audit: reveal: no envelope: the Revealer needs the server's RSA key (--server-key)"
            );
            epoch_of_ns(record.counts.first_ns)
        }
        None => {
            let reason = "it was not audited, or its envelope was lost";
            return Err(wrong(format!("the stores have no envelope of the connection; {reason}")));
        }
    };
    let created_s = when::now_ns() / 1_000_000_000;
    let request = Request {
        connection: record.connection,
        client_random: record.tls.client_random,
        server_random: record.tls.server_random,
        epoch,
        recorder: found.recorder,
        recipient: recipient(&args.recipient)?,
        scope: Scope::Connection,
        with_credentials: args.with_credentials,
        reason: args.reason.clone(),
        reference: args.reference.clone(),
        requester: args.sign.name.clone(),
        created_s,
        expires_s: created_s + args.days * DAY_S,
        nonce: random_bytes(),
    };
    let note = request.to_note().map_err(wrong)?;
    sign(note, &args.sign, &args.out)
}

/// Adds a signature to a note.
pub(super) fn approve(args: &ApproveArgs) -> Result<ExitCode, Failure> {
    let file = args.file.display();
    let bytes = std::fs::read(&args.file).map_err(|error| wrong(format!("cannot read {file}: {error}")))?;
    let note = match Note::parse(&bytes) {
        Err(NoteError::NoBlankLine) => {
            let text = String::from_utf8(bytes).map_err(|_| wrong(format!("{file} is not text")))?;
            Note::new(text)
        }
        parsed => parsed,
    };
    sign(note.map_err(|error| wrong(format!("{file}: {error}")))?, &args.sign, &args.file)
}

/// Shows a note's text, signs it, and replaces its file.
fn sign(mut note: Note, args: &SignArgs, out: &Path) -> Result<ExitCode, Failure> {
    let file = args.key.display();
    let pem = std::fs::read(&args.key).map_err(|error| wrong(format!("cannot read {file}: {error}")))?;
    let key = LogKey::parse(&pem).map_err(|error| wrong(format!("{file}: {error}")))?;
    let vkey = VerifyingKey::new(&args.name, key.public_key()).map_err(wrong)?;
    let signature = key.sign(note.text().as_bytes()).map_err(failed)?;
    note.sign(SignatureLine::of(&vkey, signature)).map_err(wrong)?;
    replace_file(out, &note.to_bytes())
        .map_err(|error| failed(format!("cannot write {}: {error}", out.display())))?;
    let shown: String = note
        .text()
        .chars()
        .map(|c| if c != '\n' && acts(c) { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    print(&format!("{shown}signatures: {}\n", note.signatures().len()))
}

fn recipient(text: &str) -> Result<Point, Failure> {
    let point = base64::decode_array(text).filter(evergate_seal::is_public_key);
    point.ok_or_else(|| wrong("--recipient is no public key; `reveal key recipient` prints one"))
}

fn print(text: &str) -> Result<ExitCode, Failure> {
    std::io::stdout().lock().write_all(text.as_bytes()).map_err(closed)?;
    Ok(ExitCode::SUCCESS)
}
