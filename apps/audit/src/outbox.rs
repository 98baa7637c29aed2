//! Log entries on their way to the Master: `outbox/NAME.entry`, then `outbox/NAME.receipt`.
//!
//! The Recorder sends them in the order of names. The name of an entry follows from its content, so that a command
//! that was interrupted finds what it has written. Without a Master entries wait.

use crate::index::receipts::ReceiptFile;
use crate::store::{Store, replace_file, sync_folder};
use evergate_evidence::entry::{Entry, Event};
use evergate_evidence::verify::ReceiptFrame;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

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
    sync_folder(&store.outbox())
}

/// Entries that wait, in the order of their names.
pub fn pending(store: &Store) -> io::Result<Vec<Pending>> {
    let mut pending = Vec::new();
    for name in pending_names(store)? {
        let mut entry = Vec::new();
        File::open(path(store, &name, "entry"))?.take(ENTRY_BYTES_MAX + 1).read_to_end(&mut entry)?;
        pending.push(Pending { name, entry });
    }
    Ok(pending)
}

/// Names of the entries that wait.
pub(crate) fn pending_names(store: &Store) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(store.outbox()) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name();
        names.extend(name.to_str().and_then(|name| name.strip_suffix(".entry")).map(str::to_owned));
    }
    names.sort_unstable();
    Ok(names)
}

/// Replaces an entry by its receipt: { u32 length, entry as logged, text of the tlog-proof }. The receipt of a deletion
/// also becomes a frame of the segment's `.proofs`, where `verify` looks for it.
pub fn acknowledge(store: &Store, name: &str, logged: &[u8], proof: &[u8]) -> io::Result<()> {
    if let Ok(Entry::Event(_, Event::Deletion(deletion))) = Entry::decode(logged) {
        append_frame(&store.proofs(deletion.segment), logged, proof)?;
    }
    let length = u32::try_from(logged.len()).map_err(|_| ErrorKind::InvalidInput)?;
    replace_file(&path(store, name, "receipt"), &[&length.to_be_bytes()[..], logged, proof].concat())?;
    std::fs::remove_file(path(store, name, "entry"))?;
    sync_folder(&path(store, name, "entry"))
}

/// Appends the frame of a deletion, unless the file has one. A torn frame at the end is cut first.
fn append_frame(path: &Path, logged: &[u8], proof: &[u8]) -> io::Result<()> {
    let mut frames = ReceiptFile::open(path)?;
    while let Some(frame) = frames.read_frame()? {
        if matches!(ReceiptFrame::decode(&frame.content), Some(ReceiptFrame::Event(..))) {
            return Ok(());
        }
    }
    let mut bytes = Vec::new();
    ReceiptFrame::Event(logged, proof).encode(&mut bytes);
    let mut file = File::options().create(true).append(true).open(path)?;
    file.set_len(frames.end())?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    sync_folder(path)
}

fn path(store: &Store, name: &str, suffix: &str) -> PathBuf {
    store.outbox().join(format!("{name}.{suffix}"))
}
