//! `evergate-audit verify`: proves a store or a bundle against a trust file, offline.
//!
//! Decisions are in `evergate_evidence::verify`. This module reads files in bounded memory, digests segments on every
//! core, shows progress and prints the report.

mod bundle_reader;
mod segment_digests;
mod store_reader;
mod timestamps;

use crate::cli::{FAILED, Failure, WRONG};
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::checkpoint::{Checkpoint, SignedCheckpoint};
use evergate_evidence::note::NOTE_BYTES_MAX;
use evergate_evidence::verify::{Findings, LogView, Report, TRUST_BYTES_MAX, Trust};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

/// Options of `verify`.
#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// Store of a Recorder, or a bundle
    #[arg(value_name = "DIR|BUNDLE")]
    pub folder: PathBuf,
    /// JSON file with the keys of logs and witnesses to start from
    #[arg(long, value_name = "FILE")]
    pub trust: PathBuf,
    /// Checkpoint from outside that the record must extend
    #[arg(long, value_name = "FILE")]
    pub expect_checkpoint: Option<PathBuf>,
    /// Folder of time stamps, such as `tsa` of the Master's log; `tsa` in the store or the bundle otherwise
    #[arg(long, value_name = "DIR")]
    pub timestamps: Option<PathBuf>,
    /// Bound of memory
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u32).range(64..))]
    pub memory: u32,
    /// Threads that digest segments; 0: one for each core
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub threads: usize,
    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs `verify`.
pub fn run(args: &VerifyArgs) -> Result<ExitCode, Failure> {
    let report = report(args)?;
    match args.json {
        true => println!("{}", serde_json::to_string(&report).unwrap_or_default()),
        false => print_report(&report),
    }
    Ok(if report.ok { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// Report on a store or a bundle.
pub fn report(args: &VerifyArgs) -> Result<Report, Failure> {
    let trust = read_trust(&args.trust)?;
    let expected = args.expect_checkpoint.as_deref().map(|path| read_expected(path, &trust)).transpose()?;
    let has = |name: &str| args.folder.join(name).exists();
    if has("manifest.json") || has("session.pcapng") {
        bundle_reader::verify(args, &trust, expected.as_ref())
    } else if has("store.json") || has("segments") {
        store_reader::verify(args, &trust, expected.as_ref())
    } else {
        let folder = args.folder.display();
        Err(Failure::wrong(format!(
            "verify: {folder} is neither a store nor a bundle: it has no store.json and no manifest.json; \
             name the folder of a Recorder's --store, or an unpacked bundle"
        )))
    }
}

fn read_trust(path: &Path) -> Result<Trust, Failure> {
    let wrong = |error: &dyn std::fmt::Display| {
        Failure::wrong(format!(
            "verify: trust file {}: {error}; it needs {{\"logs\": [VKEY, ...]}}",
            path.display()
        ))
    };
    let text = read_bounded(path, TRUST_BYTES_MAX as u64).map_err(|error| wrong(&error))?;
    Trust::parse(&text).map_err(|error| wrong(&error))
}

/// The expected checkpoint. A trusted log must have signed it: it is input, not evidence.
fn read_expected(path: &Path, trust: &Trust) -> Result<Checkpoint, Failure> {
    let wrong = |error: &dyn std::fmt::Display| {
        Failure::wrong(format!(
            "verify: expected checkpoint {}: {error}; use one that a trusted log signed",
            path.display()
        ))
    };
    let bytes = read_bounded(path, NOTE_BYTES_MAX as u64).map_err(|error| wrong(&error))?;
    let signed = SignedCheckpoint::parse(&bytes).map_err(|error| wrong(&error))?;
    let mut findings = Findings::default();
    let mut view = LogView::new(trust, &EvidenceVerifier);
    let name = Rc::from("checkpoint");
    if !view.accept_checkpoint(&signed, (&name, 0), &mut findings) {
        return Err(wrong(&"no signature of a trusted log verifies"));
    }
    Ok(signed.checkpoint().clone())
}

/// Content of a file of at most `bytes_max` bytes; an error of kind `FileTooLarge` beyond.
fn read_bounded(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    std::fs::File::open(path)?.take(bytes_max + 1).read_to_end(&mut content)?;
    match content.len() as u64 > bytes_max {
        true => {
            Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {bytes_max} bytes")))
        }
        false => Ok(content),
    }
}

/// A file that cannot be read: the verification could not run.
fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure {
        code: WRONG,
        message: format!("verify: cannot read {}: {error}; nothing is proved", path.display()),
    }
}

/// More connections are open than memory allows.
fn exhausted(memory: u32) -> Failure {
    Failure::wrong(format!(
        "verify: more connections are open at once than {memory} MiB of memory allow; raise --memory"
    ))
}

fn print_report(report: &Report) {
    for warning in &report.warnings {
        eprintln!("warning: {warning}");
    }
    for finding in &report.findings {
        println!("{finding}");
    }
    if report.omitted > 0 {
        println!("{} more findings", report.omitted);
    }
    let checked = &report.checked;
    if checked.timestamps > 0 {
        println!(
            "{} time stamps; the first {} entries of the log existed at {}",
            checked.timestamps,
            checked.stamped_size,
            evergate_base::rfc3339(i64::try_from(checked.stamped_ms / 1000).unwrap_or(0))
        );
    }
    println!(
        "{}: {} segments, {} packets, {} declared lost; {} batches, {} with receipts; log of {} entries",
        if report.ok { "proved" } else { "NOT PROVED" },
        checked.segments,
        checked.packets,
        checked.declared_lost,
        checked.batches,
        checked.acknowledged,
        checked.log_size,
    );
    if checked.unsigned + checked.unacknowledged > 0 {
        println!(
            "not proved yet: {} records without a statement, {} batches without a receipt",
            checked.unsigned, checked.unacknowledged
        );
    }
    if checked.unexplained > 0 {
        println!("{} holes in payloads that no declared loss explains", checked.unexplained);
    }
}
