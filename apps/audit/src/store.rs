//! Layout of a Recorder's store, and its description.
//!
//! Evidence: `store.json`, `segments/`, `statements`, `checkpoint`. Derived, and never evidence: `lock`, `index/`,
//! `cold/`, `spill-*`, `recorder.*`.

use crate::cli::Failure;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

const FORMAT: &str = "evergate-audit store";
const VERSION: u32 = 1;
const LOCK_RETRIES: u32 = 5;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Folder of one Recorder.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

/// Content of `store.json`: the Recorder that the store belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreInfo {
    /// Always `evergate-audit store`.
    pub format: String,
    /// Version of the layout.
    pub version: u32,
    /// SHA-256 of the public key of the Recorder's certificate: 64 hexadecimal digits.
    pub recorder: String,
    /// Origin of the Master's log; empty before the first contact.
    pub installation: String,
    /// Partition of the traffic that this Recorder keeps.
    pub part: u16,
    /// Number of partitions.
    pub parts: u16,
}

impl StoreInfo {
    /// Description of a new store.
    pub fn new(recorder: String, part: u16, parts: u16) -> StoreInfo {
        let (format, installation) = (FORMAT.to_owned(), String::new());
        StoreInfo { format, version: VERSION, recorder, installation, part, parts }
    }
}

/// A file of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentPath {
    /// Number of the segment: 1, 2, …
    pub number: u64,
    /// Path of its `.pcapng`.
    pub path: PathBuf,
    /// Length in bytes.
    pub bytes: u64,
}

impl Store {
    /// A store in this folder, which need not exist yet.
    pub fn at(root: &Path) -> Store {
        Store { root: root.to_owned() }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Creates the folders of a store.
    pub fn create(&self) -> Result<(), Failure> {
        for folder in ["segments", "index"] {
            let path = self.root.join(folder);
            std::fs::create_dir_all(&path).map_err(|error| {
                Failure::wrong(format!(
                    "store: cannot create {}: {error}; choose a folder that you may write",
                    path.display()
                ))
            })?;
        }
        Ok(())
    }

    /// Exclusive lock of the store. It ends when the file is dropped.
    pub fn lock(&self) -> Result<File, Failure> {
        let path = self.root.join("lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file =
            file.map_err(|error| Failure::wrong(format!("store: cannot open {}: {error}", path.display())))?;
        let mut locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        for _ in 0..LOCK_RETRIES {
            if locked.is_ok() {
                break;
            }
            std::thread::sleep(LOCK_PAUSE); // `status` may look at the lock just now
            locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
        }
        locked.map_err(|_| {
            let root = self.root.display();
            Failure::wrong(format!(
                "store: another process records into {root}; stop it, or choose another folder"
            ))
        })?;
        Ok(file)
    }

    /// Content of `store.json`; `None` for a folder without one.
    pub fn info(&self) -> Result<Option<StoreInfo>, Failure> {
        let path = self.root.join("store.json");
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(Failure::wrong(format!("store: cannot read {}: {error}", path.display())));
            }
        };
        let info: Result<StoreInfo, _> = serde_json::from_str(&text);
        match info {
            Ok(info) if info.format == FORMAT && info.version == VERSION => Ok(Some(info)),
            Ok(info) => Err(Failure::wrong(format!(
                "store: {} has format {:?} version {}; this program reads {FORMAT:?} version {VERSION}",
                path.display(),
                info.format,
                info.version
            ))),
            Err(error) => Err(Failure::wrong(format!("store: {} is damaged: {error}", path.display()))),
        }
    }

    /// Content of `store.json`. A folder without one is an error.
    pub fn require(&self) -> Result<StoreInfo, Failure> {
        self.info()?.ok_or_else(|| {
            Failure::wrong(format!(
                "store: {} has no store.json; give the folder of a Recorder's store",
                self.root.display()
            ))
        })
    }

    /// Writes `store.json` in its one form.
    pub fn set_info(&self, info: &StoreInfo) -> std::io::Result<()> {
        let mut text = serde_json::to_string(info)?;
        text.push('\n');
        self.replace("store.json", text.as_bytes())
    }

    /// Replaces a file of the store: a reader sees the old content or the new, also after a power failure.
    pub fn replace(&self, name: &str, content: &[u8]) -> std::io::Result<()> {
        replace_file(&self.root.join(name), content)
    }

    /// Path of a segment.
    pub fn segment(&self, number: u64) -> PathBuf {
        self.root.join("segments").join(format!("{number:010}.pcapng"))
    }

    /// Path of a segment's receipts.
    pub fn proofs(&self, number: u64) -> PathBuf {
        self.root.join("segments").join(format!("{number:010}.proofs"))
    }

    /// Path of the statements.
    pub fn statements(&self) -> PathBuf {
        self.root.join("statements")
    }

    /// Path of the newest checkpoint that the Recorder has.
    pub fn checkpoint(&self) -> PathBuf {
        self.root.join("checkpoint")
    }

    /// Path of the statement that stays in the place of a deleted segment.
    pub fn deleted(&self, number: u64) -> PathBuf {
        self.root.join("segments").join(format!("{number:010}.deleted.json"))
    }

    /// Folder of the index of recent days.
    pub fn index(&self) -> PathBuf {
        self.root.join("index")
    }

    /// Folder of the index of past days.
    pub fn cold(&self) -> PathBuf {
        self.root.join("cold")
    }

    /// Folder of log entries on their way to the Master.
    pub fn outbox(&self) -> PathBuf {
        self.root.join("outbox")
    }

    /// Lock of commands that change holds, deletions or files of the index. It ends when the file is dropped.
    pub(crate) fn lock_for_maintenance(&self) -> Result<File, Failure> {
        let path = self.index().join("maintenance.lock");
        let open = || {
            std::fs::create_dir_all(self.index())?;
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            Ok(file)
        };
        open().map_err(|error: std::io::Error| {
            Failure::wrong(format!(
                "store: cannot lock {}: {error}; wait until other commands on this store have ended",
                path.display()
            ))
        })
    }

    /// Whether a Recorder has the store open.
    pub fn is_locked(&self) -> bool {
        let Ok(file) = File::open(self.root.join("lock")) else { return false };
        flock(&file, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
    }

    /// Numbers of the segments that have been deleted, in order.
    pub fn deleted_segments(&self) -> std::io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir(self.root.join("segments"))? {
            let name = entry?.file_name();
            let stem = name.to_str().and_then(|name| name.strip_suffix(".deleted.json"));
            numbers.extend(stem.and_then(segment_number));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Segments of the store by number. Files with other names are not among them.
    pub fn segments(&self) -> std::io::Result<Vec<SegmentPath>> {
        let mut segments = Vec::new();
        for entry in std::fs::read_dir(self.root.join("segments"))? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(".pcapng")).and_then(segment_number);
            if let Some(number) = number {
                segments.push(SegmentPath { number, path: entry.path(), bytes: entry.metadata()?.len() });
            }
        }
        segments.sort_by_key(|segment| segment.number);
        Ok(segments)
    }
}

/// Replaces a file: a reader sees the old content or the new, also after a power failure.
pub(crate) fn replace_file(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let mut file = File::create(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    sync_folder(path)
}

/// Makes names in the folder of this file durable.
pub(crate) fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Number of a segment's file name without its suffix.
fn segment_number(stem: &str) -> Option<u64> {
    let number: u64 = stem.parse().ok()?;
    (format!("{number:010}") == stem && number > 0).then_some(number)
}
