//! The admin API's Unix socket. It is created so that no other user can open it even for a moment. A stale socket is
//! removed only when it certainly is one.

use evergate_sys::Account;
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A bound admin socket; its file is removed with it if it is still ours.
#[derive(Debug)]
pub(super) struct AdminSocket {
    pub(super) path: PathBuf,
    pub(super) listener: UnixListener,
    /// Where it could be seen.
    inode: Option<(u64, u64)>,
    /// Another process serves it: the file stays.
    left: bool,
}

impl AdminSocket {
    /// Binds `path` with mode 0600. Creates the socket's folder if only the folder is missing. The node's user may pass
    /// through it, as an upgrade and a reload do. The folder stays root's: a later start as root must not meet files of
    /// that user.
    pub(super) fn bind(path: &Path, becomes: Option<&Account>) -> io::Result<AdminSocket> {
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.exists() {
            std::fs::DirBuilder::new().mode(0o750).create(folder)?;
            if let Some(account) = becomes {
                account.share(&File::open(folder)?)?;
            }
        }
        refuse_if_alive(path)?;
        // Made in a folder of our own and moved to its place: never is it there with other rights than the final ones.
        let private = folder.join(format!(".{}", std::process::id()));
        // In a container the process id is the same each time, so a crash may have left one behind.
        remove(&private);
        std::fs::DirBuilder::new().mode(0o700).create(&private)?;
        let made = make(&private.join("s"), path);
        remove(&private);
        made
    }

    /// The remedy when [`bind`](Self::bind) has refused.
    pub(super) fn remedy(error: &io::Error) -> &'static str {
        match error.kind() {
            io::ErrorKind::AddrInUse => "end that process, or write another path (admin.socket, or --socket)",
            io::ErrorKind::AlreadyExists => {
                "write another path (admin.socket, or --socket), or remove that file"
            }
            io::ErrorKind::NotFound => {
                "make the folder above its folder, or write another path (admin.socket)"
            }
            _ => "make its folder writable, or write another path (admin.socket)",
        }
    }

    /// Whether the socket's file is still there. It may be removed or replaced. A process without permission to look
    /// assumes that it is there.
    pub(super) fn is_there(&self) -> bool {
        match inode(&self.path) {
            Ok(found) => self.inode.is_none_or(|inode| found == inode),
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        }
    }

    /// The socket of the old process, which serves it still.
    pub(super) fn inherited(path: &Path, listener: UnixListener) -> io::Result<AdminSocket> {
        listener.set_nonblocking(true)?;
        Ok(AdminSocket { path: path.to_owned(), listener, inode: inode(path).ok(), left: true })
    }

    /// Another process serves it from now on.
    pub(super) fn leave(&mut self) {
        self.left = true;
    }

    /// This process serves it from now on, and its file goes with it.
    pub(super) fn into_owned(mut self) -> AdminSocket {
        self.left = false;
        self
    }
}

// In a folder that other users may write to, the name may be theirs: a link is not followed, and their folder not
// opened.
fn remove(private: &Path) {
    let Ok(found) = std::fs::symlink_metadata(private) else { return };
    if !found.is_dir() {
        let _ = std::fs::remove_file(private);
        return;
    }
    if std::fs::metadata("/proc/self").is_ok_and(|us| us.uid() == found.uid()) {
        let _ = std::fs::remove_file(private.join("s"));
    }
    let _ = std::fs::remove_dir(private);
}

fn make(fresh: &Path, path: &Path) -> io::Result<AdminSocket> {
    let listener = UnixListener::bind(fresh)?;
    listener.set_nonblocking(true)?;
    std::fs::set_permissions(fresh, std::fs::Permissions::from_mode(0o600))?;
    let inode = Some(inode(fresh)?);
    std::fs::rename(fresh, path)?;
    Ok(AdminSocket { path: path.to_owned(), listener, inode, left: false })
}

/// Accepts a path that is free, or a socket that no process listens on any more.
fn refuse_if_alive(path: &Path) -> io::Result<()> {
    let kind = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(metadata) => metadata.file_type(),
    };
    if !kind.is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "another kind of file has this name"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process answers there")),
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        if !self.left && self.inode.is_some() && self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_folder_follows_no_link_and_survives_a_crash() {
        let folder = std::env::temp_dir().join(format!("evergate-socket-{}", std::process::id()));
        let (private, victim) = (folder.join(format!(".{}", std::process::id())), folder.join("victim"));
        std::fs::create_dir_all(&victim).unwrap();
        std::fs::write(victim.join("s"), "mine").unwrap();
        std::os::unix::fs::symlink(&victim, &private).unwrap();
        let socket = AdminSocket::bind(&folder.join("admin.sock"), None).unwrap();
        assert!(socket.is_there());
        assert_eq!(std::fs::read_to_string(victim.join("s")).unwrap(), "mine");
        drop(socket);
        std::fs::create_dir(&private).unwrap();
        std::fs::write(private.join("s"), "").unwrap();
        drop(AdminSocket::bind(&folder.join("admin.sock"), None).unwrap());
        assert!(!private.exists() && !folder.join("admin.sock").exists());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
