//! `evergate-audit hold`: sets, lifts and lists legal holds. The Master logs each change.

use crate::cli::Failure;
use crate::find::QueryArgs;
use crate::holds::HoldFile;
use crate::outbox;
use crate::output::print_json;
use crate::store::Store;
use crate::when;
use evergate_base::terminal::shown;
use evergate_evidence::hold::{HoldAction, HoldStatement};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `hold`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without --set and --lift it lists the holds in force. A hold beats every limit of `expire`."
)]
pub struct Args {
    /// Folder of the store
    dir: PathBuf,
    /// Set a hold of this name on the selected part of the record
    #[arg(long, value_name = "NAME", requires = "reason", conflicts_with = "lift")]
    set: Option<String>,
    /// Lift the hold of this name
    #[arg(long, value_name = "NAME", requires = "reason")]
    lift: Option<String>,
    /// Reason for the change, which the Master logs
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    query: QueryArgs,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let wrong = |error: String| Failure::wrong(format!("hold: {error}"));
    let store = Store::at(&args.dir);
    let info = store.require()?;
    let selection = args.query.selection(when::now_ns()).map_err(wrong)?;
    let is_selected =
        !selection.query().is_empty() || selection.from_ns.is_some() || selection.to_ns.is_some();
    let reason = args.reason.as_deref().unwrap_or_default();
    if args.set.is_none() && is_selected {
        return Err(wrong("a selection belongs to --set; `find` shows what it selects".into()));
    }
    if args.set.is_some() && !is_selected {
        return Err(wrong("--set needs a selection, such as --connection or --from and --to".into()));
    }
    if args.set.is_none() && args.lift.is_none() {
        return list(&HoldFile::read(&store)?, args.json);
    }
    let _lock = store.lock_for_maintenance()?;
    let mut holds = HoldFile::read(&store)?;
    let statement = match (&args.set, &args.lift) {
        (Some(name), _) => HoldStatement::set(&holds.statements, name, reason, selection),
        (None, Some(name)) => HoldStatement::lift(&holds.statements, name, reason),
        (None, None) => return list(&holds, args.json),
    };
    let statement = statement.map_err(|error| wrong(error.to_string()))?;
    holds.add(&store, &info, statement.clone())?;
    let waiting = outbox::pending_names(&store).map_or(0, |names| names.len());
    if args.json {
        print_json(&json!({"statement": statement, "waiting": waiting}))?;
    } else {
        let what = if statement.action == HoldAction::Set { "set" } else { "lifted" };
        println!("hold {} is {what}; entries that wait for the Master: {waiting}", statement.name);
        if info.installation.is_empty() {
            println!("this store has no Master so far: entries wait until the Recorder has one");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list(holds: &HoldFile, json: bool) -> Result<ExitCode, Failure> {
    let holds = holds.in_force();
    if json {
        print_json(&json!({"holds": holds}))?;
        return Ok(ExitCode::SUCCESS);
    }
    if holds.is_empty() {
        println!("no hold is in force");
    }
    for hold in holds {
        println!("{}  {}  ({})", hold.name, selection_text(hold), shown(&hold.reason));
    }
    Ok(ExitCode::SUCCESS)
}

/// The selection in the words of `find`.
pub(crate) fn selection_text(hold: &HoldStatement) -> String {
    let time = |option: &str, ns: &Option<String>| {
        ns.as_ref().and_then(|ns| ns.parse().ok()).map(|ns| format!("{option} {}", when::shown_ns(ns)))
    };
    let parts = [
        time("--from", &hold.selection.from_ns),
        time("--to", &hold.selection.to_ns),
        Some(hold.selection.query()).filter(|query| !query.is_empty()),
    ];
    shown(&parts.into_iter().flatten().collect::<Vec<_>>().join(" ")).into_owned()
}
