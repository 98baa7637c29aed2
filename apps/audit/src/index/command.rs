//! `evergate-audit index`: brings the index of a store up to date, or makes it again.

use crate::cli::{Failure, WRONG};
use crate::index::{Indexed, catch_up, rebuild};
use crate::output::print_json;
use crate::store::Store;
use evergate_base::terminal::shown;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `index`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder of the store
    dir: PathBuf,
    /// Remove the index and read every segment; no Recorder may run
    #[arg(long)]
    rebuild: bool,
    /// Result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let store = Store::at(&args.dir);
    store.require()?;
    let result = if args.rebuild {
        let _lock = store.lock()?;
        rebuild(&store)?
    } else {
        catch_up(&store)?
    };
    if args.json {
        let damaged: Vec<String> = result.damaged.iter().map(ToString::to_string).collect();
        print_json(&serde_json::json!({
            "segments": result.segments, "complete": result.complete, "records": result.records,
            "bytes": result.bytes, "torn": result.torn, "damaged": damaged,
        }))?;
    } else {
        print(&result);
    }
    for error in &result.damaged {
        eprintln!("evergate-audit: {}", shown(&error.to_string()));
    }
    Ok(ExitCode::from(if result.damaged.is_empty() { 0 } else { WRONG }))
}

fn print(result: &Indexed) {
    println!(
        "read {} segments with {} records in {} bytes; {} were complete",
        result.segments, result.records, result.bytes, result.complete
    );
    if let Some(offset) = result.torn {
        println!(
            "the last segment ends within a block at byte {offset}: the Recorder cuts it at its next start"
        );
    }
}
