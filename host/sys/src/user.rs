//! Users of this machine: changing to one, and its access to files.

use crate::process;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A user, with its groups from the system's database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    name: CString,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// Kind of access to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read it.
    Read,
    /// Write to it.
    Write,
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// All groups of a user; possibly incomplete if the database changes meanwhile.
fn groups_of(name: &CStr, gid: u32) -> Vec<u32> {
    let mut groups = vec![0; 64];
    for _ in 0..3 {
        let mut count = i32::try_from(groups.len()).unwrap_or(i32::MAX);
        // SAFETY: the name is a terminated string; at most `count` groups are written into the list.
        let found = unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        groups.resize(usize::try_from(count).unwrap_or(0), 0);
        if found >= 0 {
            break;
        }
    }
    groups
}

impl Account {
    /// The user of this name, with `group` or its own group. `NotFound` when there is none.
    pub fn named(user: &str, group: Option<&str>) -> io::Result<Account> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::NotFound, format!("no such {what}"));
        let name = CString::new(user).map_err(|_| invalid("user"))?;
        // SAFETY: the name is a terminated string; the result is read at once, before any other call.
        let entry = unsafe { libc::getpwnam(name.as_ptr()) };
        if entry.is_null() {
            return Err(invalid("user"));
        }
        // SAFETY: getpwnam returned a valid entry.
        let (uid, mut gid) = unsafe { ((*entry).pw_uid, (*entry).pw_gid) };
        if let Some(group) = group {
            let group = CString::new(group).map_err(|_| invalid("group"))?;
            // SAFETY: the name is a terminated string; the result is read at once.
            let entry = unsafe { libc::getgrnam(group.as_ptr()) };
            if entry.is_null() {
                return Err(invalid("group"));
            }
            // SAFETY: getgrnam returned a valid entry.
            gid = unsafe { (*entry).gr_gid };
        }
        let groups = groups_of(&name, gid);
        Ok(Account { name, uid, gid, groups })
    }

    /// Changes to this user permanently. Fails without effect when the process is not root.
    pub fn become_it(&self) -> io::Result<()> {
        let hides_memory = process::hides_memory();
        // SAFETY: the only pointer is the user's name, a terminated string. The groups come first, while the process is
        // still root.
        unsafe {
            check(libc::initgroups(self.name.as_ptr(), self.gid))?;
            check(libc::setresgid(self.gid, self.gid, self.gid))?;
            check(libc::setresuid(self.uid, self.uid, self.uid))?;
        }
        // A change of user resets the flag to fs.suid_dumpable.
        if hides_memory { process::hide_memory() } else { Ok(()) }
    }

    /// Makes this user the owner of a file that this process has made.
    pub fn own(&self, file: &File) -> io::Result<()> {
        std::os::unix::fs::fchown(file, Some(self.uid), Some(self.gid))
    }

    /// Makes this user's group the group of a file or folder that this process has made.
    pub fn share(&self, file: &File) -> io::Result<()> {
        std::os::unix::fs::fchown(file, None, Some(self.gid))
    }

    /// Whether the user may open this file, or make one in a folder, by the modes of the file and of the folders above.
    /// Access lists are ignored.
    pub fn may(&self, access: Access, path: &Path) -> io::Result<bool> {
        if self.uid == 0 {
            return Ok(true);
        }
        let path = path.canonicalize()?;
        let bits = match access {
            Access::Read => 0o4,
            Access::Write if path.is_dir() => 0o3,
            Access::Write => 0o2,
        };
        let above = path.ancestors().skip(1).map(|folder| self.is_allowed(0o1, folder));
        Ok(self.is_allowed(bits, &path)? && above.collect::<io::Result<Vec<_>>>()?.into_iter().all(|may| may))
    }

    fn is_allowed(&self, bits: u32, path: &Path) -> io::Result<bool> {
        let of = std::fs::metadata(path)?;
        let shift = match (of.uid() == self.uid, self.groups.contains(&of.gid())) {
            (true, _) => 6,
            (_, true) => 3,
            _ => 0,
        };
        Ok(of.mode() >> shift & bits == bits)
    }
}
