//! Opening of the file for the lines. A pipe without a reader would block the process that opens it, so none is opened.

use super::Target;
use crate::control::console;
use evergate_sys::{Account, BlockingWriter};
use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens it for writing at its end; a file that is not there is made.
pub(super) fn open(target: &Target) -> io::Result<BlockingWriter> {
    let file = match target {
        // Not through the library's buffer: bytes that it still holds when writing fails would count as written.
        Target::Stdout => File::from(io::stdout().as_fd().try_clone_to_owned()?),
        Target::File(path) => open_file(path)?,
    };
    Ok(BlockingWriter(file))
}

/// Creates a missing file for the user that the process becomes, which opens it and later reopens it. Follows no link,
/// because that user may have put it there, and root must not give its target away.
pub fn make(target: &Target, account: &Account) {
    let Target::File(path) = target else { return };
    // An existing file is opened like any other. A file that cannot be created fails then.
    let Ok(file) = OpenOptions::new().append(true).create_new(true).open(path) else { return };
    if let Err(error) = account.own(&file) {
        console::warning(format_args!(
            "the access log {} stays root's ({error}), and node.user may not write to it",
            path.display()
        ));
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    // Checked before, for a clear error, and after: it may have become a pipe in between.
    if let Ok(found) = std::fs::metadata(path) {
        refuse_pipes(found.file_type())?;
    }
    let file = OpenOptions::new().create(true).append(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    refuse_pipes(file.metadata()?.file_type())?;
    Ok(file)
}

/// Refuses pipes. The system itself refuses a folder, with a known error.
fn refuse_pipes(kind: FileType) -> io::Result<()> {
    if kind.is_file() || kind.is_char_device() || kind.is_dir() {
        return Ok(());
    }
    let what = "it is neither a regular file nor a character device, and could block the process: name a file, or \
                write \"stdout\"";
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_pipe_is_refused_at_once_with_a_reader_and_without() {
        let path = std::env::temp_dir().join(format!("evergate-log-{}", std::process::id()));
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let refused = || open_file(&path).unwrap_err().to_string();
        assert!(refused().contains("character device"), "{}", refused());
        let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        assert!(refused().contains("character device"), "{}", refused());
        drop(reader);
        std::fs::remove_file(&path).unwrap();
        assert!(open_file(Path::new("/dev/null")).is_ok());
    }
}
