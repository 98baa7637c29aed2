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
    /// Move the rows of this past day to Parquet files in cold/
    #[cfg(feature = "cold")]
    #[arg(long, value_name = "DAY", conflicts_with = "rebuild")]
    freeze: Option<String>,
    /// Move the rows of all days older than this number of days to Parquet files in cold/
    #[cfg(feature = "cold")]
    #[arg(long, value_name = "DAYS", conflicts_with = "rebuild")]
    older_than: Option<u64>,
    /// Copy the Parquet files to file:///PATH or s3://BUCKET/PREFIX as well
    #[cfg(all(feature = "cold", feature = "object-store"))]
    #[arg(long, value_name = "URL")]
    tier: Option<String>,
    /// Result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let store = Store::at(&args.dir);
    store.require()?;
    #[cfg(feature = "cold")]
    if args.freeze.is_some() || args.older_than.is_some() {
        return freeze_days(args, &store);
    }
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

#[cfg(feature = "cold")]
fn freeze_days(args: &Args, store: &Store) -> Result<ExitCode, Failure> {
    use crate::index::{Day, days};
    let _lock = store.lock_for_maintenance()?;
    let today = Day::of_ns(crate::when::now_ns());
    let wrong = |text: &str| Failure::wrong(format!("index: {text:?} is no day; write 2026-11-28"));
    let chosen = match (&args.freeze, args.older_than) {
        (Some(text), _) => vec![Day::of_name(text).ok_or_else(|| wrong(text))?],
        (None, older_than) => {
            let last = today.0.saturating_sub(older_than.unwrap_or(0));
            days(store)?.into_iter().filter(|day| day.0 < last).collect()
        }
    };
    for day in chosen {
        let frozen = crate::cold::freeze(store, day)?;
        let (rows, files) = frozen.map_or((0, Vec::new()), |frozen| (frozen.rows, frozen.files));
        #[cfg(feature = "object-store")]
        copy(args, store, &files)?;
        if args.json {
            print_json(&serde_json::json!({"day": day.name(), "rows": rows, "files": files}))?;
        } else {
            println!("{}  {rows} rows in {} files", day.name(), files.len());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Copies Parquet files to the tier. Their names have the beginning of their digest: a day that is frozen again has
/// another content.
#[cfg(all(feature = "cold", feature = "object-store"))]
fn copy(args: &Args, store: &Store, files: &[PathBuf]) -> Result<(), Failure> {
    let Some(url) = &args.tier else { return Ok(()) };
    let tier = crate::tier::Tier::open(url, &store.require()?.recorder)?;
    for file in files {
        let mut progress = crate::progress::Progress::new("digest", 0);
        let (bytes, sha256) = crate::expire::digest(file, &mut progress)?;
        let sha256 = evergate_evidence::deletion::hex(&sha256);
        let table = file.parent().and_then(|folder| folder.file_name()).unwrap_or_default().to_string_lossy();
        let day = file.file_stem().unwrap_or_default().to_string_lossy();
        tier.put(&format!("cold/{table}/{day}-{}.parquet", &sha256[..8]), file, bytes, &sha256)?;
    }
    Ok(())
}
