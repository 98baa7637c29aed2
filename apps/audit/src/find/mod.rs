//! `evergate-audit find`: connections of one or several stores, by time, address, host name, random or request.
//!
//! A condition on time finds connections that overlap the period. Days are read in order, so memory holds at most
//! `--limit` rows.

mod address;
mod hot;
mod query;
mod row;
mod source;
mod table;

pub(crate) use address::EndFilter;
pub(crate) use query::{Query, QueryArgs};
pub(crate) use row::{Connection, Counts, Request, hex};
#[cfg(feature = "cold")]
pub(crate) use row::{ExtentRow, address_of};
pub(crate) use source::Source;

use crate::cli::Failure;
use crate::index::{Day, IndexError};
use crate::output::print_json;
use crate::store::Store;
use crate::when;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

/// Most requests that one id finds.
const REQUESTS_MAX: usize = 1000;
/// Most connections of one answer: about 1 KB of memory each.
const LIMIT_MAX: u64 = 200_000;

/// Arguments of `find`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folders of stores
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
    /// Most connections to show, the earliest first
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=LIMIT_MAX))]
    limit: u64,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    query: QueryArgs,
}

/// A connection that meets the query.
#[derive(Debug)]
pub(crate) struct Found {
    /// Place of its store on the command line.
    pub(crate) store: usize,
    pub(crate) connection: Connection,
    /// Requests that led to it.
    pub(crate) requests: Vec<Request>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let wrong = |error: String| Failure::wrong(format!("find: {error}"));
    let selection = args.query.selection(when::now_ns()).map_err(wrong)?;
    let query = Query::of(&selection).map_err(wrong)?;
    let mut sources = Vec::new();
    for dir in &args.dirs {
        let store = Store::at(dir);
        store.require()?;
        sources.push(Source::open(store)?);
    }
    warn_of_incomplete(&sources)?;
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let mut found = search(&mut sources, &query, limit + 1)?;
    let has_more = found.len() > limit;
    found.truncate(limit);
    if args.json {
        for found in &found {
            print_json(&to_json(&mut sources[found.store], found)?)?;
        }
    } else {
        table::print(&found, sources.len() > 1, &args.dirs)?;
    }
    if found.is_empty() {
        eprintln!("find: no connection meets the conditions");
    }
    if has_more {
        eprintln!("find: there are more; narrow the conditions, or raise --limit");
    }
    Ok(ExitCode::SUCCESS)
}

/// Connections of all sources that meet the query, in the order of their begin, at most `limit`.
pub(crate) fn search(sources: &mut [Source], query: &Query, limit: usize) -> Result<Vec<Found>, IndexError> {
    let days: BTreeSet<Day> = sources.iter().flat_map(Source::days).collect();
    let mut wanted: Vec<Vec<Request>> = Vec::new();
    if let Some(id) = &query.request_id {
        for source in sources.iter_mut() {
            wanted.push(find_requests(source, id)?);
        }
    }
    let mut found = Vec::new();
    for day in days {
        if day.first_ns() > query.to_ns || found.len() >= limit {
            break;
        }
        let begin = found.len();
        for (at, source) in sources.iter_mut().enumerate() {
            match wanted.get(at) {
                None => {
                    let connections = source.connections(day, query, limit)?;
                    found.extend(connections.into_iter().map(|connection| Found {
                        store: at,
                        connection,
                        requests: Vec::new(),
                    }));
                }
                Some(requests) => found.extend(of_requests(source, at, day, query, requests)?),
            }
        }
        found[begin..].sort_by_key(|found| (found.connection.first_ns, found.store, found.connection.number));
        found.truncate(limit);
    }
    Ok(found)
}

/// Requests with this id in any day.
pub(crate) fn find_requests(source: &mut Source, id: &str) -> Result<Vec<Request>, IndexError> {
    let mut requests = Vec::new();
    for day in source.days() {
        requests.extend(source.requests(day, id, REQUESTS_MAX - requests.len())?);
        if requests.len() >= REQUESTS_MAX {
            eprintln!("find: {REQUESTS_MAX} requests have this id; later ones are left out");
            break;
        }
    }
    Ok(requests)
}

/// Connections of a day that have one of these requests, by the random of their hello.
fn of_requests(
    source: &mut Source,
    store: usize,
    day: Day,
    query: &Query,
    requests: &[Request],
) -> Result<Vec<Found>, IndexError> {
    let mut found = Vec::new();
    for connection in connections_of_requests(source, day, query, requests)? {
        let is_of = |request: &&Request| request.client_random == connection.client_random;
        let requests = requests.iter().filter(is_of).cloned().collect();
        found.push(Found { store, connection, requests });
    }
    Ok(found)
}

/// Connections of a day whose random is that of one of the requests.
pub(crate) fn connections_of_requests(
    source: &mut Source,
    day: Day,
    query: &Query,
    requests: &[Request],
) -> Result<Vec<Connection>, IndexError> {
    let randoms: BTreeSet<[u8; 32]> = requests.iter().filter_map(|request| request.client_random).collect();
    let mut found = Vec::new();
    for random in randoms {
        if query.client_random.as_ref().is_some_and(|prefix| !random.starts_with(prefix)) {
            continue;
        }
        let query = Query { client_random: Some(random.to_vec()), ..query.clone() };
        found.extend(source.connections(day, &query, REQUESTS_MAX)?);
    }
    Ok(found)
}

fn to_json(source: &mut Source, found: &Found) -> Result<serde_json::Value, IndexError> {
    let mut value = found.connection.to_json();
    let extents = source.extents(&found.connection)?;
    let extents: Vec<_> =
        extents.iter().map(|extent| extent.to_json(!source.has_segment(extent.segment))).collect();
    if let Some(object) = value.as_object_mut() {
        object.insert("store".into(), source.store.root().to_string_lossy().into());
        object.insert("extents".into(), extents.into());
        if !found.requests.is_empty() {
            object.insert("requests".into(), found.requests.iter().map(Request::to_json).collect());
        }
    }
    Ok(value)
}

pub(crate) fn warn_of_incomplete(sources: &[Source]) -> Result<(), IndexError> {
    for source in sources {
        let missing = source.incomplete()?;
        if let Some(first) = missing.first() {
            eprintln!(
                "find: the index of {} lacks rows of {} segments, the first is {first}; run `evergate-audit index {0}`",
                source.store.root().display(),
                missing.len()
            );
        }
    }
    Ok(())
}
