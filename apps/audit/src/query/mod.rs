//! `evergate-audit query`: SQL over the index of several stores, hot and cold.
//!
//! The rows that meet the conditions are copied into a private database of SQLite, which lies on disk when it is large
//! and is gone at the end. The statement sees nothing else and can change nothing.

mod output;

use crate::cli::Failure;
use crate::find::{self, Connection, Query, QueryArgs, Request, Source, hex};
use crate::index::{Day, IndexError, int};
use crate::store::Store;
use crate::when;
use rusqlite::{Connection as Database, params};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const SCHEMA: &str = "\
    CREATE TABLE connection(store TEXT, number INTEGER, first TEXT, last TEXT, first_ns INTEGER, last_ns INTEGER, \
    client TEXT, client_port INTEGER, server TEXT, server_port INTEGER, vlan INTEGER, sni TEXT, alpn TEXT, \
    client_random TEXT, server_random TEXT, version INTEGER, suite INTEGER, packets INTEGER, bytes_c2s INTEGER, \
    bytes_s2c INTEGER, holes INTEGER, is_final INTEGER); \
    CREATE TABLE request(store TEXT, seq INTEGER, id TEXT, given_id TEXT, switch_connection INTEGER, n INTEGER, \
    time TEXT, time_ns INTEGER, status INTEGER, client_random TEXT); \
    CREATE INDEX connection_random ON connection(client_random); \
    CREATE INDEX request_random ON request(client_random);";
const CONNECTION: &str = "INSERT INTO connection VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, \
    ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22)";
const REQUEST: &str = "INSERT INTO request VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";

/// Arguments of `query`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One SELECT over the tables `connection` and `request`
    sql: String,
    /// Folders of stores
    #[arg(required = true)]
    dirs: Vec<PathBuf>,
    /// Most rows of the index that the statement sees
    #[arg(long, value_name = "N", default_value_t = 5_000_000)]
    rows: u64,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    query: QueryArgs,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let wrong = |error: String| Failure::wrong(format!("query: {error}"));
    let selection = args.query.selection(when::now_ns()).map_err(wrong)?;
    let query = Query::of(&selection).map_err(wrong)?;
    let mut sources = Vec::new();
    for dir in &args.dirs {
        let store = Store::at(dir);
        store.require()?;
        sources.push(Source::open(store)?);
    }
    find::warn_of_incomplete(&sources)?;
    let mut copy = Copy::new(args.rows)?;
    for source in &mut sources {
        copy.add(source, &query)?;
    }
    let database = copy.finish()?;
    output::print(&database, &args.sql, args.json)?;
    Ok(ExitCode::SUCCESS)
}

/// Copy of rows under construction.
struct Copy {
    database: Database,
    rows: u64,
    rows_max: u64,
}

impl Copy {
    fn new(rows_max: u64) -> Result<Copy, Failure> {
        // A database without a name is private and temporary.
        let open = || -> rusqlite::Result<Database> {
            let database = Database::open("")?;
            database.pragma_update(None, "journal_mode", "OFF")?;
            database.pragma_update(None, "cache_size", -131_072)?;
            database.execute_batch(SCHEMA)?;
            database.execute_batch("BEGIN")?;
            Ok(database)
        };
        Ok(Copy { database: open().map_err(|error| failed(&error))?, rows: 0, rows_max })
    }

    fn add(&mut self, source: &mut Source, query: &Query) -> Result<(), Failure> {
        let root = source.store.root().to_owned();
        let store = root.to_string_lossy().into_owned();
        let days: BTreeSet<Day> = source.days();
        let mut wanted = None;
        if let Some(id) = &query.request_id {
            let requests = find::find_requests(source, id)?;
            wanted =
                Some(requests.iter().filter_map(|request| request.client_random).collect::<BTreeSet<_>>());
        }
        for day in days.into_iter().filter(|day| day.first_ns() <= query.to_ns) {
            source.for_each_connection(day, query, |connection| {
                let is_wanted = wanted.as_ref().is_none_or(|wanted| {
                    connection.client_random.is_some_and(|random| wanted.contains(&random))
                });
                if is_wanted { self.connection(&root, &store, &connection) } else { Ok(()) }
            })?;
            if day.last_ns() < query.from_ns {
                continue;
            }
            source.for_each_request(day, |request| {
                let is_wanted = (query.from_ns..=query.to_ns).contains(&request.time_ns)
                    && query
                        .request_id
                        .as_ref()
                        .is_none_or(|id| *id == request.id || *id == request.given_id);
                if is_wanted { self.request(&root, &store, &request) } else { Ok(()) }
            })?;
        }
        Ok(())
    }

    fn connection(&mut self, root: &Path, store: &str, row: &Connection) -> Result<(), IndexError> {
        self.count(root)?;
        let insert = || {
            self.database.prepare_cached(CONNECTION)?.execute(params![
                store,
                int(row.number),
                when::shown_ns(row.first_ns),
                when::shown_ns(row.last_ns),
                int(row.first_ns),
                int(row.last_ns),
                row.client.ip().to_string(),
                row.client.port(),
                row.server.ip().to_string(),
                row.server.port(),
                row.vlan,
                row.sni,
                row.alpn,
                row.client_random.map(|random| hex(&random)),
                row.server_random.map(|random| hex(&random)),
                row.version,
                row.suite,
                int(row.counts.packets),
                int(row.counts.bytes_c2s),
                int(row.counts.bytes_s2c),
                int(row.counts.holes),
                row.counts.is_final,
            ])
        };
        insert().map(|_| ()).map_err(|error| IndexError::new(root, error))
    }

    fn request(&mut self, root: &Path, store: &str, row: &Request) -> Result<(), IndexError> {
        self.count(root)?;
        let insert = || {
            self.database.prepare_cached(REQUEST)?.execute(params![
                store,
                int(row.seq),
                row.id,
                row.given_id,
                int(row.switch_connection),
                row.n,
                when::shown_ns(row.time_ns),
                int(row.time_ns),
                row.status,
                row.client_random.map(|random| hex(&random)),
            ])
        };
        insert().map(|_| ()).map_err(|error| IndexError::new(root, error))
    }

    fn count(&mut self, root: &Path) -> Result<(), IndexError> {
        self.rows += 1;
        match self.rows > self.rows_max {
            false => Ok(()),
            true => {
                let reason =
                    format!("more than {} rows; narrow the conditions, or raise --rows", self.rows_max);
                Err(IndexError::new(root, reason))
            }
        }
    }

    /// The database, which no statement can change from now on.
    fn finish(self) -> Result<Database, Failure> {
        let seal = || -> rusqlite::Result<()> {
            self.database.execute_batch("COMMIT")?;
            self.database.pragma_update(None, "query_only", true)
        };
        seal().map_err(|error| failed(&error))?;
        Ok(self.database)
    }
}

fn failed(error: &rusqlite::Error) -> Failure {
    Failure::failed(format!("query: {error}"))
}
