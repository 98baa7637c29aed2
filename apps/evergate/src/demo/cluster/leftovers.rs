//! Names that a show gives to things outside its own process, and what killed shows left behind under such names.

use super::voice::Voice;
use evergate_bpf::netns::Namespace;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

const NAMESPACES: &str = "/run/netns";
const NAMESPACE: &str = "evergate-";
const FOLDER: &str = "evergate-demo-";

/// The network namespace of a host in this process's show.
pub(super) fn namespace(host: &str) -> String {
    format!("{NAMESPACE}{}-{host}", std::process::id())
}

/// The folder of this process's show.
pub(super) fn folder() -> PathBuf {
    std::env::temp_dir().join(format!("{FOLDER}{}", std::process::id()))
}

/// Removes namespaces and folders of shows whose process is dead.
pub(super) fn remove(voice: &Voice) {
    let mut removed = Vec::new();
    for name in names(Path::new(NAMESPACES)) {
        if owner(&name, NAMESPACE).is_some_and(dead) && Namespace::forget(&name).is_ok() {
            removed.push(name);
        }
    }
    let folders = std::env::temp_dir();
    for name in names(&folders) {
        if owner(&name, FOLDER).is_some_and(dead) && std::fs::remove_dir_all(folders.join(&name)).is_ok() {
            removed.push(name);
        }
    }
    if !removed.is_empty() {
        voice.say(&format!("Removed what a killed demo left behind: {}\n", removed.join(", ")));
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).map(OsString::into_string).filter_map(Result::ok).collect()
}

/// The process that a name belongs to.
fn owner(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.split('-').next()?.parse().ok()
}

/// Whether no process like this one has that number.
fn dead(process: u32) -> bool {
    let name = |process: &str| std::fs::read_to_string(format!("/proc/{process}/comm")).ok();
    name(&process.to_string()) != name("self")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_whose_it_is() {
        assert_eq!(owner(&namespace("node-a"), NAMESPACE), Some(std::process::id()));
        assert_eq!(owner("evergate-demo-17", FOLDER), Some(17));
        for foreign in ["evergate-x-node", "evergate", "other-17-node", "evergate--1"] {
            assert_eq!(owner(foreign, NAMESPACE), None, "{foreign}");
        }
        assert!(!dead(std::process::id()));
        assert!(dead(u32::MAX));
    }
}
