//! `evergate-audit reveal`: requests of disclosure, their approval, and the Revealer that answers them.
//!
//! The Revealer has the inner epoch keys. It discloses only what the Master has logged, opened and proved, and only the
//! session that the request names. Its journal makes a repeated grant the same, byte for byte.

mod args;
mod binding;
mod candidates;
mod commands;
mod grant_file;
mod keys;
mod people;
mod revealer;
mod serve;
mod state;

pub use binding::{FirstRecords, check_binding};
pub use candidates::{Candidates, find_candidates};
pub use grant_file::{open_grant, verify_grant};

use crate::cli::Failure;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Arguments of `reveal`.
#[derive(Debug, Args)]
pub struct RevealArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a key: of a person that signs, or of a recipient
    Key(people::KeyArgs),
    /// Write a request to disclose one connection, and sign it
    Request(people::RequestArgs),
    /// Sign a request, a policy, or an order to destroy
    Approve(people::ApproveArgs),
    /// Answer requests on a Unix socket, and announce the keys of coming epochs
    Serve(serve::ServeArgs),
    /// Answer one request
    Run(commands::RunArgs),
    /// Verify and open a grant, for its recipient
    Open(grant_file::OpenArgs),
    /// Announce the keys of coming epochs
    Announce(commands::AnnounceArgs),
    /// Destroy the keys of an epoch here and at the Master
    Destroy(commands::DestroyArgs),
}

/// Runs the command.
pub fn run(args: &RevealArgs) -> Result<ExitCode, Failure> {
    match &args.command {
        Command::Key(args) => people::make_key(args),
        Command::Request(args) => people::request(args),
        Command::Approve(args) => people::approve(args),
        Command::Serve(args) => serve::run(args),
        Command::Run(args) => commands::run(args),
        Command::Open(args) => grant_file::open(args),
        Command::Announce(args) => commands::announce(args),
        Command::Destroy(args) => commands::destroy(args),
    }
}

/// Failure with the component's name.
fn failed(what: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("reveal: {what}"))
}

/// Wrong input with the component's name.
fn wrong(what: impl std::fmt::Display) -> Failure {
    Failure::wrong(format!("reveal: {what}"))
}
