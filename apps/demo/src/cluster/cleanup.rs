//! Names of a show's objects outside its own process, and removal of such objects that a killed show left behind.
//!
//! A show holds a lock on a file in its folder. A lock ends with its holder, however the holder ends. An unlocked
//! folder of this user therefore belongs to a show that has ended.

use super::output::Console;
use evergate_netns::Namespace;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const NAMESPACES: &str = "/run/netns";
const FOLDER: &str = "evergate-demo-";
/// The file that a show holds.
const MARK: &str = "held-by-the-demo";

/// The network namespace of a host in this process's show.
pub(super) fn namespace(host: &str) -> String {
    namespace_of(std::process::id(), host)
}

fn namespace_of(process: u32, host: &str) -> String {
    format!("evergate-{process}-{host}")
}

/// The folder of this process's show.
pub(super) fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("{FOLDER}{}", std::process::id()))
}

/// Marks the folder as that of a show, which lives as long as the result does.
pub(super) fn hold(folder: &Path) -> io::Result<File> {
    let fresh = folder.join("fresh");
    let mark = File::create_new(&fresh)?;
    mark.lock()?;
    std::fs::rename(fresh, folder.join(MARK))?;
    Ok(mark)
}

/// Removes the folders of shows whose process is dead, and their namespaces, which have the names of these hosts.
pub(super) fn remove<'a>(console: &Console, hosts: impl Iterator<Item = &'a str> + Clone) {
    let (folders, mut removed) = (std::env::temp_dir(), Vec::new());
    for name in names(&folders) {
        let folder = folders.join(&name);
        let Some(process) = owner(&name).filter(|_| is_left(&folder)) else { continue };
        for namespace in hosts.clone().map(|host| namespace_of(process, host)) {
            if Path::new(NAMESPACES).join(&namespace).exists() && Namespace::forget(&namespace).is_ok() {
                removed.push(namespace);
            }
        }
        if std::fs::remove_dir_all(folder).is_ok() {
            removed.push(name);
        }
    }
    if !removed.is_empty() {
        console.print(&format!("Removed what a killed demo left behind: {}\n", removed.join(", ")));
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).map(OsString::into_string).filter_map(Result::ok).collect()
}

/// The process that a folder of this name belongs to.
fn owner(name: &str) -> Option<u32> {
    let number = name.strip_prefix(FOLDER)?;
    number.parse().ok().filter(|process: &u32| process.to_string() == number)
}

/// Whether it is the folder of an ended show of this user.
fn is_left(folder: &Path) -> bool {
    let Ok(us) = std::fs::metadata("/proc/self").map(|us| us.uid()) else { return false };
    let is_ours = std::fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir() && found.uid() == us);
    is_ours && File::open(folder.join(MARK)).is_ok_and(|mark| mark.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_name_gives_its_process() {
        let own = folder().file_name().unwrap().to_owned().into_string().unwrap();
        assert_eq!(owner(&own), Some(std::process::id()));
        for foreign in
            ["evergate-demo-17-results", "evergate-demo-", "evergate-demo-+7", "evergate-demo-07", "demo-17"]
        {
            assert_eq!(owner(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn only_an_unlocked_folder_of_a_show_is_left_behind() {
        let folder = std::env::temp_dir().join(format!("evergate-leftovers-{}", std::process::id()));
        let link = folder.with_extension("link");
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        assert!(!is_left(&folder), "it has no mark");
        let held = hold(&folder).unwrap();
        assert!(!is_left(&folder), "it is held");
        drop(held);
        assert!(is_left(&folder) && !is_left(&link));
        std::fs::remove_file(&link).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
