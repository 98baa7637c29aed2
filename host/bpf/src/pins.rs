//! Pins of the maps: the gate's state outlives the process, and the next process finds it.

use crate::GateError;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Changes with every change of a map's layout: maps of another layout cannot be reused.
const LAYOUT: u32 = 2;
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;
const BPF_FS: &str = "/sys/fs/bpf";

fn path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

fn is_bpf(folder: &Path) -> io::Result<bool> {
    let name = path(folder)?;
    // SAFETY: statfs is plain data for which all zero bytes are a valid value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a terminated path and a statfs that the kernel fills in.
    if unsafe { libc::statfs(name.as_ptr(), &raw mut stat) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stat.f_type as i64 == BPF_FS_MAGIC)
}

/// Mounts a BPF file system on `folder`.
pub(crate) fn mount(folder: &Path) -> io::Result<()> {
    let target = path(folder)?;
    // SAFETY: terminated strings; bpf takes no data.
    let result =
        unsafe { libc::mount(c"bpf".as_ptr(), target.as_ptr(), c"bpf".as_ptr(), 0, std::ptr::null()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn name(layout: u32, flows_max: u32) -> String {
    format!("v{layout}-{flows_max}")
}

/// Whether this is the name of a pin folder, of any layout and size.
fn is_ours(name: &OsStr) -> bool {
    let numbers = name.to_str().and_then(|name| name.strip_prefix('v')?.split_once('-'));
    numbers
        .is_some_and(|(layout, flows_max)| layout.parse::<u32>().is_ok() && flows_max.parse::<u32>().is_ok())
}

/// The folder for maps of this layout and size below `pins`, made if need be; mounts the BPF file system at its usual
/// place when it is missing there.
pub(crate) fn folder(pins: &Path, flows_max: u32) -> Result<PathBuf, GateError> {
    let folder = pins.join(name(LAYOUT, flows_max));
    let failed = |reported| GateError::Pins { path: pins.to_owned(), reported };
    let usual = Path::new(BPF_FS);
    if pins.starts_with(usual) && !is_bpf(usual).map_err(failed)? {
        mount(usual).map_err(failed)?;
    }
    std::fs::create_dir_all(&folder).map_err(failed)?;
    if !is_bpf(&folder).map_err(failed)? {
        return Err(failed(io::Error::from_raw_os_error(libc::EINVAL)));
    }
    Ok(folder)
}

/// Sizes the maps of an object and lets it share them, by their pins, with the other objects and with later processes.
pub(crate) fn share(
    object: &mut libbpf_rs::OpenObject,
    folder: &Path,
    flows_max: u32,
) -> libbpf_rs::Result<()> {
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if ["slots", "flows", "free_slots", "peer_input"].contains(&name.as_str()) {
            map.set_max_entries(flows_max)?;
        }
        // Constants and the test clock belong to one load; rings belong to one process.
        if !name.contains('.') && name != "events" {
            map.set_pin_path(folder.join(name))?;
        }
    }
    Ok(())
}

/// Removes the pins in `folder`.
pub(crate) fn clear(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        std::fs::remove_file(entry?.path())?;
    }
    Ok(())
}

/// Removes the pins beside `folder`: maps of another layout or size, which no process would find again. The programs of
/// an earlier process keep their maps as long as they are attached.
pub(crate) fn clear_others(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder.parent().unwrap_or(folder))? {
        let entry = entry?;
        if entry.path() != folder && is_ours(&entry.file_name()) {
            clear(&entry.path())?;
            std::fs::remove_dir(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_this_kind_are_ours_to_remove() {
        assert!(is_ours(OsStr::new(&name(LAYOUT, 1024))) && is_ours(OsStr::new("v1-5")));
        for other in ["1024", "v1", "v-5", "v1-", "vx-5", "v1-5-6", "slots", ""] {
            assert!(!is_ours(OsStr::new(other)), "{other}");
        }
    }
}
