//! The file with the process id.
//!
//! Its process holds a lock on it. A lock ends with its holder, however the holder ends. The lock distinguishes a file
//! of a living process from one that a crash left, without a guess about the number. A file with other content than a
//! number is no pid file and is left alone.

use evergate_config::is_pid;
use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
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
        refuse_if_locked(path)?;
        PidFile::replace(path)
    }

    /// Writes the file for the new process of an upgrade, while the old process may still hold the old file. A reader
    /// never sees half a number. Fails where the existing file is no pid file.
    pub(super) fn replace(path: &Path) -> io::Result<PidFile> {
        refuse_if_foreign(path)?;
        let text = format!("{}\n", std::process::id());
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{}", std::process::id()));
        let _ = std::fs::remove_file(&partial); // a link that another user put there is not followed
        let moved = File::create_new(&partial).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            let _ = file.try_lock(); // some file systems have no locks: then no process is refused
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

/// More than a pid file holds, in bytes.
const PID_FILE_BYTES_MAX: u64 = 64;

/// A mistyped path must not cost a private key.
fn refuse_if_foreign(path: &Path) -> io::Result<()> {
    let foreign = |what: &str| {
        let what = format!("{what}: name an unused path, or remove the file");
        Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
    };
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if !found.is_file() => return foreign("the existing file is not a regular file"),
        Ok(_) => {}
    }
    let mut content = Vec::new();
    match File::open(path).and_then(|file| file.take(PID_FILE_BYTES_MAX).read_to_end(&mut content)) {
        Err(error) => foreign(&format!("the existing file cannot be read ({error}) and may be no pid file")),
        Ok(_) if !is_pid(&content) => foreign("the existing file holds no process id"),
        Ok(_) => Ok(()),
    }
}

fn refuse_if_locked(path: &Path) -> io::Result<()> {
    // A file that cannot be read proves no living process, and the later write reports the error.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_file_is_left_alone() {
        let folder = std::env::temp_dir().join(format!("evergate-pid-file-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("file");
        for content in ["-----BEGIN PRIVATE KEY-----\n", "12 13", &"1".repeat(100)] {
            std::fs::write(&path, content).unwrap();
            for refused in [PidFile::write(&path), PidFile::replace(&path)] {
                let error = refused.unwrap_err().to_string();
                assert!(error.contains("holds no process id"), "{error}");
            }
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        for content in ["", "12\n"] {
            std::fs::write(&path, content).unwrap();
            assert!(PidFile::write(&path).unwrap().is_ours());
            assert!(!path.exists());
        }
        std::fs::create_dir(&path).unwrap();
        let error = PidFile::write(&path).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
