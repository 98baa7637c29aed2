//! Journal of the newest entries: the one file that is synced before a signature.
//!
//! A sync of every tile and bundle before each signature would cost four or more syncs. The journal has the entries
//! since its first index in one append-only file, so one sync does. Tiles derive from it: the Master writes them again
//! from the journal at start. When a journal is full, its tiles are synced and a new one begins.
//!
//! File `journal-INDEX`: a header, then for each entry `u32 length ‖ first 8 bytes of the leaf hash ‖ entry`. A tail
//! that a crash cut or damaged is removed at start.

use evergate_evidence::merkle::leaf_hash;
use evergate_evidence::tile::ENTRY_BYTES_MAX;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Entries of a full journal: a multiple of the width of a tile.
pub const JOURNAL_ENTRIES: u64 = 4096;

const MAGIC: &[u8; 8] = b"EVGJRN1\n";

/// Open journal.
pub struct Journal {
    file: File,
    path: PathBuf,
    first: u64,
    buffer: Vec<u8>,
}

/// Journal found at start, its torn tail removed.
pub struct Found {
    /// The journal.
    pub journal: Journal,
    /// Its whole entries in order.
    pub entries: Vec<Vec<u8>>,
    /// Bytes of the tail that was removed.
    pub removed: u64,
}

impl Journal {
    /// New journal that begins at an index; the file and its name are on disk.
    pub fn create(folder: &Path, first: u64) -> io::Result<Journal> {
        let path = path(folder, first);
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&path)?;
        file.write_all(&[&MAGIC[..], &first.to_be_bytes()].concat())?;
        file.sync_all()?;
        sync_folder(folder)?;
        Ok(Journal { file, path, first, buffer: Vec::new() })
    }

    /// Newest journal of a folder, `None` in a folder without one. Older ones are removed.
    pub fn open(folder: &Path) -> io::Result<Option<Found>> {
        let mut indexes = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let name = entry?.file_name();
            let index = name.to_str().and_then(|name| name.strip_prefix("journal-")?.parse::<u64>().ok());
            indexes.extend(index);
        }
        indexes.sort_unstable();
        while let Some(first) = indexes.pop() {
            // A crash during `create` leaves a file without its header; the journal before is still there.
            let Some(found) = Journal::read(folder, first)? else {
                std::fs::remove_file(path(folder, first))?;
                continue;
            };
            for older in indexes {
                std::fs::remove_file(path(folder, older))?;
            }
            return Ok(Some(found));
        }
        Ok(None)
    }

    fn read(folder: &Path, first: u64) -> io::Result<Option<Found>> {
        let path = path(folder, first);
        let mut file = OpenOptions::new().read(true).write(true).open(&path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let Some(mut rest) = bytes.strip_prefix(&[&MAGIC[..], &first.to_be_bytes()].concat()[..]) else {
            return Ok(None);
        };
        let mut entries = Vec::new();
        while let Some((entry, behind)) = first_entry(rest) {
            entries.push(entry.to_vec());
            rest = behind;
        }
        let removed = rest.len() as u64;
        let len = bytes.len() as u64 - removed;
        if removed > 0 {
            file.set_len(len)?;
            file.sync_all()?;
        }
        file.seek(SeekFrom::Start(len))?;
        let journal = Journal { file, path, first, buffer: Vec::new() };
        Ok(Some(Found { journal, entries, removed }))
    }

    /// Index of the first entry.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Appends an entry to the buffer.
    pub fn append(&mut self, entry: &[u8]) {
        self.buffer.extend_from_slice(&(entry.len() as u32).to_be_bytes());
        self.buffer.extend_from_slice(&leaf_hash(&[entry])[..8]);
        self.buffer.extend_from_slice(entry);
    }

    /// Writes the buffer to the file. After an error the file's end is unknown: the Master must start again.
    pub fn write(&mut self) -> io::Result<()> {
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    /// Syncs the entries to disk.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Removes the file of a journal that a newer one replaced.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

fn path(folder: &Path, first: u64) -> PathBuf {
    folder.join(format!("journal-{first:020}"))
}

fn first_entry(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let len = u32::from_be_bytes(*len) as usize;
    if len > ENTRY_BYTES_MAX {
        return None;
    }
    let (check, rest) = rest.split_first_chunk::<8>()?;
    let (entry, rest) = rest.split_at_checked(len)?;
    (leaf_hash(&[entry])[..8] == *check).then_some((entry, rest))
}

/// Syncs the names in a folder.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Replaces a file: writes a temporary file, syncs it, renames it, syncs the folder.
pub fn replace_file(path: &Path, bytes: &[u8], mut written: impl FnMut()) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    written();
    std::fs::rename(&temporary, path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("evergate-journal-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn every_cut_of_the_file_keeps_whole_entries() {
        let folder = folder("cut");
        let mut journal = Journal::create(&folder, 4096).unwrap();
        for entry in [&b"one"[..], b"", b"three"] {
            journal.append(entry);
        }
        journal.write().unwrap();
        let path = path(&folder, 4096);
        let whole = std::fs::read(&path).unwrap();
        for len in 16..=whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            let found = Journal::open(&folder).unwrap().unwrap();
            let count = [16 + 15, 31 + 12, 43 + 17].iter().filter(|&&end| len >= end).count();
            assert_eq!(found.entries.len(), count, "{len}");
            let left = std::fs::metadata(&path).unwrap().len();
            assert_eq!(left + found.removed, len as u64);
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn damaged_entry_ends_the_journal() {
        let folder = folder("damage");
        let mut journal = Journal::create(&folder, 0).unwrap();
        journal.append(b"one");
        journal.append(b"two");
        journal.write().unwrap();
        let path = path(&folder, 0);
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let mut found = Journal::open(&folder).unwrap().unwrap();
        assert_eq!(found.entries, [b"one"]);
        found.journal.append(b"2");
        found.journal.write().unwrap();
        assert_eq!(Journal::open(&folder).unwrap().unwrap().entries, [&b"one"[..], b"2"]);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn half_made_journal_gives_way_to_the_one_before() {
        let folder = folder("half");
        Journal::create(&folder, 0).unwrap();
        std::fs::write(path(&folder, 4096), b"EVG").unwrap();
        assert_eq!(Journal::open(&folder).unwrap().unwrap().journal.first(), 0);
        assert!(!path(&folder, 4096).exists());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
