//! The command line: `evergate-audit COMMAND`.
//!
//! Exit codes are part of the interface: 0 it worked, or the record is proved; 1 it failed, or `verify` has findings;
//! 2 the input is wrong, or the command could not run. Data goes to standard output, everything else to standard error.

use crate::record::{self, RecordArgs};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// It failed, or there are findings.
pub const FAILED: u8 = 1;
/// The input is wrong, or the command could not run.
pub const WRONG: u8 = 2;

#[derive(Debug, Parser)]
#[command(
    name = "evergate-audit",
    version,
    about = "Audited capture: record traffic as evidence, find it, verify it",
    after_help = "Exit codes: 0 it worked or the record is proved, 1 it failed or there are findings, 2 the input is \
                  wrong or the command could not run.",
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Record the traffic of an interface
    Record(RecordArgs),
    /// Print the id of a Recorder or of a certificate
    Identity(record::IdentityArgs),
    /// Find connections by time, address, host name, random or request
    Find(crate::find::Args),
    /// Show what was in sessions, with their secrets
    Play(crate::play::Args),
    /// Write sessions as pcapng, HAR, JSON or Parquet
    Export(crate::export::Args),
    /// Run SQL over the index of stores
    Query(crate::query::Args),
    /// Show what a store has, what waits, and how long the disk lasts
    Status(crate::status::Args),
    /// Set, lift and list legal holds
    Hold(crate::hold::Args),
    /// Delete the oldest segments by bytes and days; holds win
    Expire(crate::expire::Args),
    /// Bring the index of a store up to date, or make it again from the segments
    Index(crate::index::command::Args),
    /// Seal the secrets of a key log for connections in a store
    Seal(crate::seal::SealArgs),
    /// Request, approve and answer disclosures of single connections
    Reveal(crate::reveal::RevealArgs),
    /// Prove a store or a bundle, offline
    Verify(crate::verify::VerifyArgs),
}

/// Error of a command, with its exit code.
#[derive(Debug)]
pub struct Failure {
    /// [`FAILED`] or [`WRONG`].
    pub code: u8,
    /// Message for people: `component: what happened: cause; what to do`.
    pub message: String,
}

impl Failure {
    /// The input is wrong, or the command could not run.
    pub fn wrong(message: impl Into<String>) -> Failure {
        Failure { code: WRONG, message: message.into() }
    }

    /// It failed.
    pub fn failed(message: impl Into<String>) -> Failure {
        Failure { code: FAILED, message: message.into() }
    }
}

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result: Result<ExitCode, Failure> = match &cli.command {
        Command::Find(args) => crate::find::run(args),
        Command::Play(args) => crate::play::run(args),
        Command::Export(args) => crate::export::run(args),
        Command::Query(args) => crate::query::run(args),
        Command::Status(args) => crate::status::run(args),
        Command::Hold(args) => crate::hold::run(args),
        Command::Expire(args) => crate::expire::run(args),
        Command::Index(args) => crate::index::command::run(args),
        Command::Identity(args) => record::print_identity(args),
        Command::Record(args) => record::run(args),
        Command::Seal(args) => crate::seal::run(args),
        Command::Reveal(args) => crate::reveal::run(args),
        Command::Verify(args) => crate::verify::run(args),
    };
    result.unwrap_or_else(|failure| {
        eprintln!("evergate-audit: {}", failure.message);
        ExitCode::from(failure.code)
    })
}
