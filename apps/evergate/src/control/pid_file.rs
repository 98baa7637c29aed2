//! The file with the process id.
//!
//! Its process holds it locked. A lock ends with its holder, however that one ends, so a file that a crash left behind is
//! told from one whose process lives without a guess at what a number means by now.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Written at start, removed at the end if it is still ours.
#[derive(Debug)]
pub(super) struct PidFile {
    path: PathBuf,
    text: String,
    _locked: File,
}

impl PidFile {
    /// Writes it, unless a living process holds it.
    pub(super) fn write(path: &Path) -> io::Result<PidFile> {
        refuse_if_held(path)?;
        PidFile::take_over(path)
    }

    /// Writes it in the place of the process before, which may hold the old one still. Whole: a reader never sees half a
    /// number.
    pub(super) fn take_over(path: &Path) -> io::Result<PidFile> {
        let text = format!("{}\n", std::process::id());
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{}", std::process::id()));
        let moved = File::create(&partial).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            let _ = file.try_lock(); // some file systems know no locks: nobody is refused there
            std::fs::rename(&partial, path)?;
            Ok(file)
        });
        match moved {
            Ok(locked) => Ok(PidFile { path: path.to_owned(), text, _locked: locked }),
            Err(error) => {
                let _ = std::fs::remove_file(&partial);
                Err(error)
            }
        }
    }

    /// Whether the file still names this process.
    pub(super) fn is_ours(&self) -> bool {
        std::fs::read_to_string(&self.path).is_ok_and(|text| text == self.text)
    }
}

fn refuse_if_held(path: &Path) -> io::Result<()> {
    // Whatever hinders reading it is no sign of life, and writing it will tell.
    if !std::fs::metadata(path).is_ok_and(|file| file.is_file()) {
        return Ok(());
    }
    let Ok(file) = File::open(path) else { return Ok(()) };
    if !matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        return Ok(());
    }
    let holder = std::fs::read_to_string(path).unwrap_or_default();
    let what = format!(
        "the process that it names ({}) is alive: end that one first, or give this one a node.pid_file of its own",
        holder.trim()
    );
    Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if self.is_ours() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
