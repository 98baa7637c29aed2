//! Log entries on their way to the Master: `outbox/NAME.entry`, then `outbox/NAME.receipt`.
//!
//! The Recorder sends them in the order in which they were put: the log has a hold before a later deletion. The name
//! of an entry follows from its content, so that a command that was interrupted finds what it has written. Without a
//! Master entries wait.

use crate::store::{Store, replace_file, sync_folder};
use crate::test_points::{Step, reached};
use evergate_evidence::verify::EventReceipt;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::PathBuf;

/// Longest entry: the length field of the log has 16 bits.
const ENTRY_BYTES_MAX: u64 = 65_535;

/// An entry that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Name without its suffix: `deletion-0000000003`, `hold-0000000001`.
    pub name: String,
    /// The entry with `received_ms` 0.
    pub entry: Vec<u8>,
}

/// Puts an entry into the outbox, unless it is there or the Master has it.
pub(crate) fn put(store: &Store, name: &str, entry: &[u8]) -> io::Result<()> {
    std::fs::create_dir_all(store.outbox())?;
    if path(store, name, "receipt").exists() || path(store, name, "entry").exists() {
        return Ok(());
    }
    let path = path(store, name, "entry");
    replace_file(&path, entry)?;
    reached(Step::EntryPut);
    sync_folder(&store.outbox())
}

/// Entries that wait, in order.
pub fn pending(store: &Store) -> io::Result<Vec<Pending>> {
    let mut pending = Vec::new();
    for name in pending_names(store)? {
        let mut entry = Vec::new();
        File::open(path(store, &name, "entry"))?.take(ENTRY_BYTES_MAX + 1).read_to_end(&mut entry)?;
        pending.push(Pending { name, entry });
    }
    Ok(pending)
}

/// Names of the entries that wait, in the order of their times, then of their names.
pub(crate) fn pending_names(store: &Store) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(store.outbox()) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().and_then(|name| name.strip_suffix(".entry")) else { continue };
        match entry.metadata().and_then(|file| file.modified()) {
            Ok(time) => names.push((time, name.to_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => {} // the Recorder has just sent it
            Err(error) => return Err(error),
        }
    }
    names.sort_unstable();
    Ok(names.into_iter().map(|(_, name)| name).collect())
}

/// Replaces an entry by its receipt, an [`EventReceipt`].
pub fn acknowledge(store: &Store, name: &str, logged: &[u8], proof: &[u8]) -> io::Result<()> {
    let mut receipt = Vec::new();
    EventReceipt { entry: logged, proof }.encode(&mut receipt);
    replace_file(&path(store, name, "receipt"), &receipt)?;
    reached(Step::EntryAcknowledged);
    std::fs::remove_file(path(store, name, "entry"))?;
    sync_folder(&path(store, name, "entry"))
}

fn path(store: &Store, name: &str, suffix: &str) -> PathBuf {
    store.outbox().join(format!("{name}.{suffix}"))
}
