//! The log on disk: opening it after any crash, appending to it.
//!
//! # Invariants
//! - An entry is on disk before the head of a tree that has it leaves [`Log::flush`].
//! - A log opens only if the last checkpoint was signed with this key under this origin, and its tree is the beginning
//!   of the tree found on disk. So the Master never signs a smaller or an inconsistent head.
//! - Times of entries never go back.

use crate::disclosures::Disclosures;
use crate::journal::{Found, JOURNAL_ENTRIES, Journal, replace_file};
use crate::problem::{Problem, file_problem};
use crate::recorders::{Recorders, WINDOW};
use crate::snapshot::{self, Snapshot};
use crate::test_points::{Step, reached};
use crate::tiles::{TileWriter, Tiles};
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::checkpoint::SignedCheckpoint;
use evergate_evidence::entry::Entry;
use evergate_evidence::merkle::Hash;
use evergate_evidence::note::VerifyingKey;
use evergate_evidence::tile::{TILE_WIDTH, bundle_entries};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Entries before the journal whose places are read at start: the newest batches of 8 busy Recorders.
const PLACES_READ: u64 = 8 * WINDOW as u64;
/// Attempts to lock a log that is in use, 50 ms apart.
const LOCK_ATTEMPTS: u32 = 5;

/// Head of the tree that is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Number of entries.
    pub size: u64,
    /// Root over them.
    pub root: Hash,
}

/// Open log.
pub struct Log {
    folder: PathBuf,
    tiles: Arc<Tiles>,
    writer: TileWriter,
    journal: Journal,
    recorders: Recorders,
    disclosures: Disclosures,
    last_ms: u64,
    _lock: File,
}

/// Log with what was found on disk.
pub struct Opened {
    /// The log.
    pub log: Log,
    /// Last checkpoint; `None` in a new log.
    pub checkpoint: Option<SignedCheckpoint>,
    /// Bytes of an unfinished write that were removed.
    pub removed: u64,
}

impl Log {
    /// Opens or creates the log in a folder.
    pub fn open(folder: &Path, vkey: &VerifyingKey, now_ms: u64) -> Result<Opened, Problem> {
        let lock = lock(folder)?;
        let checkpoint = read_checkpoint(folder, vkey)?;
        let failed =
            |error: io::Error| file_problem(folder, &error, "check the disk and the folder's rights");
        let found = Journal::open(folder).map_err(failed)?;
        let (journal, entries, removed) = match found {
            Some(Found { journal, entries, removed }) => (journal, entries, removed),
            None if checkpoint.is_some() || folder.join("tile").exists() => {
                let remedy = "restore the whole folder, or begin a new log with a new origin and `continues`";
                return Err(Problem::new(folder.display().to_string(), "a log without its journal", remedy));
            }
            None => (Journal::create(folder, 0).map_err(failed)?, Vec::new(), 0),
        };
        let first = journal.first();
        let tiles = Arc::new(Tiles::new(folder));
        let Snapshot { recorders, disclosures, last_ms } = restore(folder, &tiles, first)?;
        let writer =
            tiles.writer(first).ok_or_else(|| damaged(folder, "a tile is missing or has a wrong size"))?;
        let mut log = Log {
            folder: folder.into(),
            tiles,
            writer,
            journal,
            recorders,
            disclosures,
            last_ms,
            _lock: lock,
        };
        for bytes in &entries {
            let entry =
                Entry::decode(bytes).map_err(|error| damaged(folder, &format!("journal: {error}")))?;
            log.record(&entry, bytes);
        }
        log.writer.write(&log.tiles).map_err(failed)?;
        log.check_head(checkpoint.as_ref())?;
        log.check_clock(now_ms)?;
        // A crash can come between the last entry of a journal and the next journal.
        if log.room() == 0 {
            log.rotate().map_err(failed)?;
        }
        Ok(Opened { log, checkpoint, removed })
    }

    /// Error unless the tree on disk continues the checkpoint.
    fn check_head(&self, checkpoint: Option<&SignedCheckpoint>) -> Result<(), Problem> {
        let Some(checkpoint) = checkpoint.map(SignedCheckpoint::checkpoint) else { return Ok(()) };
        if checkpoint.size > self.size() {
            let what =
                format!("the checkpoint signs {} entries, only {} are here", checkpoint.size, self.size());
            return Err(damaged(&self.folder, &what));
        }
        match self.tiles.root(checkpoint.size) {
            Some(root) if root == checkpoint.root => Ok(()),
            _ => Err(damaged(&self.folder, "the entries do not lead to the root of the checkpoint")),
        }
    }

    fn check_clock(&self, now_ms: u64) -> Result<(), Problem> {
        if now_ms >= self.last_ms {
            return Ok(());
        }
        let behind = self.last_ms - now_ms;
        Err(Problem::new(
            "clock",
            format!("it is {}.{:03} s before the last entry of the log", behind / 1000, behind % 1000),
            "set the clock; times of entries never go back, so the Master does not start before",
        ))
    }

    /// Number of entries.
    pub fn size(&self) -> u64 {
        self.writer.size()
    }

    /// Head of the tree over all entries.
    pub fn head(&self) -> Head {
        Head { size: self.writer.size(), root: self.writer.root() }
    }

    /// State of the Recorders.
    pub fn recorders(&self) -> &Recorders {
        &self.recorders
    }

    /// State of disclosure.
    pub fn disclosures(&self) -> &Disclosures {
        &self.disclosures
    }

    /// Tiles, for proofs.
    pub fn tiles(&self) -> Arc<Tiles> {
        self.tiles.clone()
    }

    /// Time for the next entry: now, or the time of the last entry if the clock went back.
    pub fn stamp(&self, now_ms: u64) -> u64 {
        now_ms.max(self.last_ms)
    }

    /// Entries that may be appended before the next flush.
    pub fn room(&self) -> u64 {
        JOURNAL_ENTRIES.saturating_sub(self.size() - self.journal.first())
    }

    /// Appends an entry and gives its place. It is not on disk before [`Log::flush`].
    pub fn append(&mut self, entry: &Entry) -> u64 {
        let bytes = entry.encode();
        self.journal.append(&bytes);
        self.record(entry, &bytes)
    }

    fn record(&mut self, entry: &Entry, bytes: &[u8]) -> u64 {
        let index = self.writer.size();
        self.writer.append(&self.tiles, bytes);
        self.recorders.record(index, entry);
        self.disclosures.record(index, entry);
        self.last_ms = entry.received_ms();
        index
    }

    /// Makes all entries durable, writes their tiles, and gives the new head.
    pub fn flush(&mut self) -> io::Result<Head> {
        self.journal.write()?;
        reached(Step::EntryWritten);
        self.journal.sync()?;
        reached(Step::EntriesSynced);
        self.writer.write(&self.tiles)?;
        reached(Step::TilesWritten);
        if self.room() == 0 {
            self.rotate()?;
        }
        Ok(self.head())
    }

    /// Begins a new journal: from here tiles alone hold the entries before it.
    fn rotate(&mut self) -> io::Result<()> {
        reached(Step::JournalFull);
        let (old, new) = (self.journal.first(), self.size());
        self.tiles.sync(old, new)?;
        let state = Snapshot::encode(&self.recorders, &self.disclosures, self.last_ms, new);
        replace_file(&snapshot::path(&self.folder, new), &state, || ())?;
        let journal = std::mem::replace(&mut self.journal, Journal::create(&self.folder, new)?);
        reached(Step::JournalRotated);
        journal.remove()?;
        match std::fs::remove_file(snapshot::path(&self.folder, old)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn damaged(folder: &Path, what: &str) -> Problem {
    let remedy =
        "acknowledged entries would be lost: restore the folder from the disk or a backup that is newer";
    Problem::new(folder.display().to_string(), format!("the log is damaged: {what}"), remedy)
}

fn lock(folder: &Path) -> Result<File, Problem> {
    let remedy = "make the folder writable for the Master's user, or correct `log`";
    std::fs::create_dir_all(folder).map_err(|error| file_problem(folder, &error, remedy))?;
    let path = folder.join("lock");
    let file = File::create(&path).map_err(|error| file_problem(folder, &error, remedy))?;
    let mut locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
    for _ in 0..LOCK_ATTEMPTS {
        if locked.is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50)); // `status` may hold it for a moment
        locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
    }
    match locked {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Problem::new(
            folder.display().to_string(),
            "another Master uses this log",
            "stop it first, or give this one its own folder, origin and key",
        )),
        Err(error) => Err(file_problem(&path, &error.into(), remedy)),
    }
}

fn read_checkpoint(folder: &Path, vkey: &VerifyingKey) -> Result<Option<SignedCheckpoint>, Problem> {
    let path = folder.join("checkpoint");
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(file_problem(&path, &error, "make it readable for the Master's user")),
    };
    let remedy = "use the origin and key of this log, or begin a new log in another folder with `continues`";
    let problem = |what: String| Problem::new(path.display().to_string(), what, remedy);
    let signed = SignedCheckpoint::parse(&bytes).map_err(|error| problem(error.to_string()))?;
    signed.verify(vkey, &[], &EvidenceVerifier).map_err(|error| problem(error.to_string()))?;
    Ok(Some(signed))
}

/// State of the Recorders before the journal.
fn restore(folder: &Path, tiles: &Tiles, size: u64) -> Result<Snapshot, Problem> {
    let read = std::fs::read(snapshot::path(folder, size)).ok();
    let found = read.and_then(|bytes| Snapshot::decode(&bytes, size).ok());
    let is_whole = found.is_some();
    let mut state = found.unwrap_or_default();
    let first = if is_whole { size.saturating_sub(PLACES_READ) } else { 0 };
    for bundle in first / TILE_WIDTH..size / TILE_WIDTH {
        let problem = |what: String| damaged(folder, &format!("bundle {bundle}: {what}"));
        let (tile, bytes) = tiles.read_entries(bundle, size).map_err(|error| problem(error.to_string()))?;
        let entries = bundle_entries(&bytes, tile.width).map_err(|error| problem(error.to_string()))?;
        for (index, bytes) in (bundle * TILE_WIDTH..).zip(entries) {
            let entry = Entry::decode(bytes).map_err(|error| problem(error.to_string()))?;
            state.last_ms = entry.received_ms();
            match &entry {
                Entry::Statement(statement) if is_whole => state.recorders.record_old(index, statement),
                _ if is_whole => {}
                entry => {
                    state.recorders.record(index, entry);
                    state.disclosures.record(index, entry);
                }
            }
        }
    }
    Ok(state)
}
