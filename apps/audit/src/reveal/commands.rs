//! Commands of the Revealer that run once.

use super::args::RevealerArgs;
use super::revealer::Revealer;
use super::{failed, serve, wrong};
use crate::cli::Failure;
use crate::store::replace_file;
use crate::when;
use clap::Args;
use evergate_evidence::envelope::epoch_of_ns;
use evergate_test_points::reached;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `reveal run`.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    revealer: RevealerArgs,
    /// Stores that have the connection and its envelope
    #[arg(long, value_name = "DIR", required = true)]
    store: Vec<PathBuf>,
    /// Files of envelopes of `seal`
    #[arg(long, value_name = "FILE")]
    envelopes: Vec<PathBuf>,
    /// The server's end differs between switch and record: an address is translated between both
    #[arg(long)]
    nat: bool,
    /// Signed request
    #[arg(long, value_name = "FILE")]
    request: PathBuf,
    /// File of the grant
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// Options of `reveal announce`.
#[derive(Debug, Args)]
pub(super) struct AnnounceArgs {
    #[command(flatten)]
    revealer: RevealerArgs,
    /// Hours ahead for which keys are made
    #[arg(long, value_name = "H", default_value_t = 26, value_parser = clap::value_parser!(u64).range(1..=48))]
    hours: u64,
}

/// Options of `reveal destroy`.
#[derive(Debug, Args)]
pub(super) struct DestroyArgs {
    #[command(flatten)]
    revealer: RevealerArgs,
    /// Epoch: the number of the hour since 1970
    #[arg(long, value_name = "NUMBER")]
    epoch: u64,
    /// Order that a threshold of approvers signed: it overrides holds
    #[arg(long, value_name = "FILE")]
    order: Option<PathBuf>,
}

/// Answers one request.
pub(super) fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let note = read(&args.request)?;
    let mut revealer = Revealer::open(&args.revealer, &args.store, args.nat)?.with_envelopes(&args.envelopes);
    let granted = revealer.reveal(&note)?;
    replace_file(&args.out, &granted.bytes).map_err(|error| {
        let out = args.out.display();
        failed(format!("cannot write {out}: {error}; the same command gives the same grant again"))
    })?;
    reached("handed_out");
    if let Err(error) = revealer.report(&granted) {
        eprintln!(
            "evergate-audit: reveal: the outcome is not in the log: {}; run the same command again",
            error.message
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Announces the keys of the present and of coming epochs.
pub(super) fn announce(args: &AnnounceArgs) -> Result<ExitCode, Failure> {
    let mut revealer = Revealer::open(&args.revealer, &[], false)?;
    let now = epoch_of_ns(when::now_ns());
    serve::announce(&mut revealer, now, args.hours)?;
    println!("epochs {now} to {} announced", now + args.hours - 1);
    Ok(ExitCode::SUCCESS)
}

/// Destroys the keys of an epoch. The Master goes first: it knows the holds. A repeated call continues.
pub(super) fn destroy(args: &DestroyArgs) -> Result<ExitCode, Failure> {
    let order = args.order.as_deref().map(read).transpose()?.unwrap_or_default();
    let mut revealer = Revealer::open(&args.revealer, &[], false)?;
    let mut master = revealer.connect()?;
    master.client.destroy(args.epoch, &order, &master.log).map_err(failed)?;
    reached("master_destroyed");
    let was_here = revealer.keys().destroy(args.epoch).map_err(failed)?;
    let here = if was_here { "destroyed" } else { "was destroyed before" };
    println!("epoch {}: the Master's key is destroyed, the inner key {here}", args.epoch);
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| wrong(format!("cannot read {}: {error}", path.display())))
}
