//! The file with the process id.

use std::io;
use std::path::{Path, PathBuf};

/// Written at start, removed at the end if it is still ours.
#[derive(Debug)]
pub(super) struct PidFile {
    path: PathBuf,
    text: String,
}

impl PidFile {
    /// Writes it whole: a reader never sees half a number.
    pub(super) fn write(path: &Path) -> io::Result<PidFile> {
        let text = format!("{}\n", std::process::id());
        let mut partial = path.as_os_str().to_owned();
        partial.push(format!(".{}", std::process::id()));
        std::fs::write(&partial, &text)?;
        if let Err(error) = std::fs::rename(&partial, path) {
            let _ = std::fs::remove_file(&partial);
            return Err(error);
        }
        Ok(PidFile { path: path.to_owned(), text })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        if std::fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
