//! Checks of the files that the process makes: the pid file, the access log, the admin socket.

use std::io;
use std::path::{Path, PathBuf};

use evergate_sys::Access;

use super::context::Checks;
use crate::problem::REFUSED;
use crate::span::KeyPath;

/// Whether a pid file may hold this: one number, or nothing. Any other content belongs to another program.
pub fn is_pid(content: &[u8]) -> bool {
    let text = content.trim_ascii();
    text.len() <= PID_DIGITS_MAX && text.iter().all(u8::is_ascii_digit)
}

/// More digits than any process id has.
const PID_DIGITS_MAX: usize = 20;

impl Checks<'_> {
    /// Checks a file that the process creates. Its folder must exist. A `rotated` file is created again later, by the
    /// user and group that the process runs as.
    pub(crate) fn own_file(&mut self, text: &str, at: &KeyPath, rotated: bool) -> PathBuf {
        let path = self.path(text);
        self.own_files.push((at.clone(), path.clone()));
        let shown = path.display();
        let folder = folder_of(&path);
        let hindrance = if self.world.lacks_folder(folder) {
            let remedy = "create the folder (systemd does when it starts a unit with `LogsDirectory=` or \
                          `RuntimeDirectory=`), or correct the path";
            Some((format!("there is no folder `{}`", folder.display()), remedy))
        } else if self.world.is_folder(&path) {
            Some((format!("`{shown}` is a folder"), "write the path of a file, perhaps one in that folder"))
        } else {
            None
        };
        if let Some((what, remedy)) = hindrance {
            self.report.hindrance(at, what, remedy);
        } else if let Some((user, group)) = self.user.as_ref().filter(|_| rotated)
            && !self.world.may(user, group.as_deref(), Access::Write, &path)
        {
            // That user follows a link too, with its own rights only.
            self.report.hindrance(
                at,
                format!("user \"{user}\" (`node.user`) may not write to `{shown}`"),
                format!("give the file to that user: `chown {user} {shown}`"),
            );
        } else if let Some((user, group)) = self.user.as_ref().filter(|_| rotated)
            && !self.world.may(user, group.as_deref(), Access::Write, folder)
        {
            self.report.warning(
                at,
                format!("user \"{user}\" (`node.user`) may not make files in `{}`", folder.display()),
                "when the file is moved away, no new one takes its place",
                format!("give the folder to that user: `chown {user} {}`", folder.display()),
            );
        }
        path
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Reports runtime files at the place of another file: the configuration, a file that it names, or another runtime
/// file.
pub(crate) fn clashes(checks: &mut Checks<'_>) {
    let config = Path::new(checks.report.source().file()).file_name().map(|name| checks.base_dir.join(name));
    for (i, (at, path)) in checks.own_files.clone().iter().enumerate() {
        let is_same = |other: &Path| checks.world.is_same_file(path, other);
        let read = checks.read_files.iter().find(|(_, other)| is_same(other));
        let own = checks.own_files[..i].iter().find(|(_, other)| is_same(other));
        let (at, other) = match (read, own) {
            _ if config.as_deref().is_some_and(is_same) => (at, "this configuration".to_owned()),
            (Some((other, _)), _) => (at, format!("that of `{}`", other.as_str())),
            // The path to change is the one that the file gives.
            (None, Some((other, _))) if checks.report.source().contains(at) => {
                (at, format!("that of `{}`", other.as_str()))
            }
            (None, Some((other, _))) => (other, format!("that of `{}`", at.as_str())),
            (None, None) => continue,
        };
        let (at, what) = (at.clone(), format!("the file `{}` is {other} too", path.display()));
        let consequence = format!("one would be written over the other; {REFUSED}");
        checks.report.error_because(&at, what, consequence, "write a path that no other program uses");
    }
}

/// The access log: a file that is written to and moved away, so no pipe.
pub(crate) fn access_log(text: &str, checks: &mut Checks<'_>) -> PathBuf {
    let at = KeyPath::root().key("logs").key("access");
    let path = checks.own_file(text, &at, true);
    if checks.world.is_pipe(&path) {
        let what = format!("`{}` is neither a regular file nor a character device", path.display());
        let remedy = "write the path of a file, or \"stdout\" and read it there";
        checks.report.hindrance(&at, what, remedy);
    }
    path
}

/// The socket of the admin API. Its folder is made at the start if only that is missing.
pub(crate) fn admin_socket(text: &str, checks: &mut Checks<'_>) -> PathBuf {
    let at = KeyPath::root().key("admin").key("socket");
    let path = checks.path(text);
    checks.own_files.push((at.clone(), path.clone()));
    let folder = folder_of(&path);
    let (what, remedy) = if checks.world.lacks_folder(folder) && checks.world.lacks_folder(folder_of(folder))
    {
        (
            format!("there is no folder `{}`", folder_of(folder).display()),
            "create the folder, or correct the path",
        )
    } else if checks.world.is_folder(&path) {
        (
            format!("`{}` is a folder", path.display()),
            "write the path of a socket, perhaps one in that folder",
        )
    } else if checks.world.is_file(&path) {
        (
            format!("the file `{}` is there and no socket", path.display()),
            "correct the path, or remove the file",
        )
    } else {
        return path;
    };
    checks.report.warning(&at, what, "the node serves without admin API: no command reaches it", remedy);
    path
}

/// Reports another file in the place of the pid file: a start would overwrite it.
pub(crate) fn foreign_pid_file(checks: &mut Checks<'_>) {
    let at = KeyPath::root().key("node").key("pid_file");
    let Some((_, path)) = checks.own_files.iter().find(|(key, _)| *key == at) else { return };
    let what = match checks.world.read(path) {
        Ok(content) if !is_pid(&content) => "is there and holds something else than a process id",
        // A folder at this path is reported already.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput && !checks.world.is_folder(path) => {
            "is there and no regular file"
        }
        _ => return,
    };
    if checks.report.has_error_at(&at) {
        return;
    }
    let what = format!("the file `{}` {what}", path.display());
    let remedy = "write a path that no other program uses, or remove the file if it is not needed";
    checks.report.hindrance(&at, what, remedy);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_holds_one_number_or_nothing() {
        for content in ["", "\n", "12\n", " 4194304"] {
            assert!(is_pid(content.as_bytes()), "{content:?}");
        }
        for content in ["1 2", "12\n13\n", "-1", "0x1", "[node]\n", "123456789012345678901"] {
            assert!(!is_pid(content.as_bytes()), "{content:?}");
        }
    }
}
