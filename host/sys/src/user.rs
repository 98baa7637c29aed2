//! Users of this machine: becoming one, and what one may do with files.

use crate::process;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A user, with the groups that the system's database gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    name: CString,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

/// What somebody wants to do with a file.
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

/// All groups of a user; as many as were found where the database changes meanwhile.
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
    /// The user of this name, in `group` or its own. `NotFound` when there is none.
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

    /// Becomes this user for good. Does nothing but fail when not root.
    pub fn become_it(&self) -> io::Result<()> {
        let hides_memory = process::hides_memory();
        // SAFETY: no pointers but the user's name, a terminated string. Groups first: later we may not.
        unsafe {
            check(libc::initgroups(self.name.as_ptr(), self.gid))?;
            check(libc::setresgid(self.gid, self.gid, self.gid))?;
            check(libc::setresuid(self.uid, self.uid, self.uid))?;
        }
        // With another user it is as fs.suid_dumpable says.
        if hides_memory { process::hide_memory() } else { Ok(()) }
    }

    /// Gives it a file that this process has made.
    pub fn own(&self, file: &File) -> io::Result<()> {
        std::os::unix::fs::fchown(file, Some(self.uid), Some(self.gid))
    }

    /// Gives its group a file or folder that this process has made.
    pub fn share(&self, file: &File) -> io::Result<()> {
        std::os::unix::fs::fchown(file, None, Some(self.gid))
    }

    /// Whether it may open this file, or make one in a folder that it may write to, by the modes of the file and of the folders
    /// above. Access lists are not looked at.
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
