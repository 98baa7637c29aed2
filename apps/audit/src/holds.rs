//! Holds of a store: the file `holds.json`, and the segments that each hold needs.

use crate::cli::Failure;
use crate::find::{Connection, Query, Source, connections_of_requests, find_requests};
use crate::index::IndexError;
use crate::outbox;
use crate::store::{Store, StoreInfo};
use evergate_evidence::deletion::unhex;
use evergate_evidence::hold::{HoldStatement, check_all, in_force};
use evergate_evidence::retention::{Cover, HoldCover};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::ErrorKind;

const FORMAT: &str = "evergate-audit holds";
const VERSION: u32 = 1;
const FILE: &str = "holds.json";
/// Longest file in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// All statements about holds of a store, in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldFile {
    format: String,
    version: u32,
    /// The statements, the earliest first.
    pub statements: Vec<HoldStatement>,
}

impl HoldFile {
    /// Reads the file; a store without one has no holds.
    pub fn read(store: &Store) -> Result<HoldFile, Failure> {
        let path = store.root().join(FILE);
        let fail = |error: &dyn std::fmt::Display| {
            Failure::wrong(format!(
                "hold: {}: {error}; nothing is deleted while it is damaged",
                path.display()
            ))
        };
        let empty = HoldFile { format: FORMAT.into(), version: VERSION, statements: Vec::new() };
        match std::fs::metadata(&path) {
            Ok(file) if file.len() > FILE_BYTES_MAX => return Err(fail(&"the file is too long")),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(empty),
            Err(error) => return Err(fail(&error)),
        }
        let text = std::fs::read_to_string(&path).map_err(|error| fail(&error))?;
        let file: HoldFile = serde_json::from_str(&text).map_err(|error| fail(&error))?;
        if file.format != FORMAT || file.version != VERSION || file.text() != text {
            return Err(fail(&"the file is not in the form that `hold` writes"));
        }
        check_all(&file.statements).map_err(|error| fail(&error))?;
        Ok(file)
    }

    /// Adds a statement: first to the file, so that the hold protects at once, then to the outbox.
    pub fn add(&mut self, store: &Store, info: &StoreInfo, statement: HoldStatement) -> Result<(), Failure> {
        self.statements.push(statement);
        store.replace(FILE, self.text().as_bytes()).map_err(|error| {
            Failure::failed(format!("hold: cannot write {}: {error}", store.root().join(FILE).display()))
        })?;
        self.complete_outbox(store, info)
    }

    /// Puts the entries into the outbox that an interrupted command left out.
    pub fn complete_outbox(&self, store: &Store, info: &StoreInfo) -> Result<(), Failure> {
        let recorder = unhex(&info.recorder).ok_or_else(|| {
            Failure::wrong(format!("store: {:?} in store.json is no id of a Recorder", info.recorder))
        })?;
        for (number, statement) in (1u64..).zip(&self.statements) {
            outbox::put(store, &format!("hold-{number:010}"), &statement.entry(recorder)).map_err(
                |error| Failure::failed(format!("hold: cannot write {}: {error}", store.outbox().display())),
            )?;
        }
        Ok(())
    }

    /// Holds in force.
    pub fn in_force(&self) -> Vec<&HoldStatement> {
        in_force(&self.statements)
    }

    fn text(&self) -> String {
        let mut text = serde_json::to_string(self).unwrap_or_default(); // strings and integers always serialise
        text.push('\n');
        text
    }
}

/// Segments that each hold needs. A hold on connections needs every segment with a packet of one; a segment that the
/// index does not have whole might have one.
pub(crate) fn covers(store: &Store, holds: &[&HoldStatement]) -> Result<Vec<HoldCover>, Failure> {
    let mut source = Source::open(store.clone())?;
    let mut covers = Vec::new();
    for hold in holds {
        let cover = if hold.selection.is_period() {
            let (from_ns, to_ns) = hold.selection.period().unwrap_or((0, u64::MAX));
            Cover::Period { from_ns, to_ns }
        } else {
            let query = Query::of(&hold.selection)
                .map_err(|error| Failure::wrong(format!("hold {}: {error}", hold.name)))?;
            Cover::Segments { held: held_segments(&mut source, &query)?, unknown: unknown_segments(&source)? }
        };
        covers.push(HoldCover { name: hold.name.clone(), cover });
    }
    Ok(covers)
}

/// Segments that may have packets of a connection that the index does not know yet: those that it lacks, the open one,
/// and the one before each, because the first record of a connection follows its packets by up to a minute.
fn unknown_segments(source: &Source) -> Result<BTreeSet<u64>, IndexError> {
    let mut unknown = source.incomplete()?;
    unknown.extend(source.last_segment());
    let before: Vec<u64> = unknown.iter().map(|number| number.saturating_sub(1)).collect();
    unknown.extend(before);
    Ok(unknown)
}

/// Segments with a packet of a connection that meets the query.
fn held_segments(source: &mut Source, query: &Query) -> Result<BTreeSet<u64>, IndexError> {
    let mut held = BTreeSet::new();
    let requests = match &query.request_id {
        Some(id) => Some(find_requests(source, id)?),
        None => None,
    };
    for day in source.days() {
        let connections: Vec<Connection> = match &requests {
            Some(requests) => connections_of_requests(source, day, query, requests)?,
            None => Vec::new(),
        };
        for connection in &connections {
            held.extend(source.extents(connection)?.iter().map(|extent| extent.segment));
        }
        if requests.is_none() {
            source.held_segments(day, query, &mut held)?;
        }
    }
    Ok(held)
}
