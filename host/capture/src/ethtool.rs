//! Offload features of an interface, by ethtool's ioctl.
//!
//! Features are found by name (ETHTOOL_GSSET_INFO, ETHTOOL_GSTRINGS, ETHTOOL_GFEATURES), because their numbers differ
//! between kernels. Reading needs no privilege.

use crate::interface::{Interface, control_socket};
use crate::sockopt::check;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

const GSTRINGS: u32 = 0x1b;
const GSSET_INFO: u32 = 0x37;
const GFEATURES: u32 = 0x3a;
/// The set of strings that names features.
const FEATURES: u32 = 4;
/// Length of a name.
const NAME: usize = 32;
/// Most features that are read; Linux 6.18 has 64.
const FEATURES_MAX: u32 = 1024;

/// Offloads that join packets before a capture sees them. With any of them on, the captured packets and their number
/// differ from the wire's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Generic receive offload.
    pub gro: bool,
    /// Large receive offload.
    pub lro: bool,
    /// Receive offload in the card.
    pub gro_hw: bool,
    /// Generic receive offload for forwarding: as lists, or of UDP.
    pub gro_forward: bool,
}

impl Offloads {
    /// Whether captured packets may be aggregates.
    pub fn aggregates(&self) -> bool {
        self.gro || self.lro || self.gro_hw || self.gro_forward
    }

    /// The features that are on, by their names for `ethtool -K`.
    pub fn names(&self) -> Vec<&'static str> {
        let all = [
            (self.gro, "gro"),
            (self.lro, "lro"),
            (self.gro_hw, "rx-gro-hw"),
            (self.gro_forward, "rx-gro-list"),
            (self.gro_forward, "rx-udp-gro-forwarding"),
        ];
        all.into_iter().filter_map(|(on, name)| on.then_some(name)).collect()
    }

    /// The command that switches them off; `None` when all are off.
    pub fn remedy(&self, interface: &str) -> Option<String> {
        let off: String = self.names().iter().map(|name| format!(" {name} off")).collect();
        self.aggregates().then(|| format!("ethtool -K {interface}{off}"))
    }
}

/// The offloads of an interface. One without ethtool support has none.
pub(crate) fn offloads(interface: &Interface) -> io::Result<Offloads> {
    match active_features(interface) {
        Ok(names) => {
            let has = |name: &str| names.iter().any(|found| found == name);
            Ok(Offloads {
                gro: has("rx-gro"),
                lro: has("rx-lro"),
                gro_hw: has("rx-gro-hw"),
                gro_forward: has("rx-gro-list") || has("rx-udp-gro-forwarding"),
            })
        }
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Offloads::default()),
        Err(error) => Err(error),
    }
}

/// Names of all features that are on.
fn active_features(interface: &Interface) -> io::Result<Vec<String>> {
    let socket = control_socket()?;
    // struct ethtool_sset_info: command, reserved, mask of sets, one count.
    let mut info = words(&[GSSET_INFO, 0, 1 << FEATURES, 0, 0]);
    call(&socket, interface, &mut info)?;
    let count = read_word(&info, 4);
    if count > FEATURES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{count} features")));
    }
    // struct ethtool_gstrings: command, set, count, names. The kernel writes all names, at a fixed number.
    let mut strings = words(&[GSTRINGS, FEATURES, count]);
    strings.resize(12 + count as usize * NAME, 0);
    call(&socket, interface, &mut strings)?;
    // struct ethtool_gfeatures: command, number of groups of 32, then available, requested, active, never changed.
    let groups = count.div_ceil(32);
    let mut features = words(&[GFEATURES, groups]);
    features.resize(8 + groups as usize * 16, 0);
    call(&socket, interface, &mut features)?;
    let is_active = |index: usize| read_word(&features, 2 + index / 32 * 4 + 2) >> (index % 32) & 1 != 0;
    let names = strings[12..].chunks_exact(NAME).enumerate().filter(|(index, _)| is_active(*index));
    Ok(names.map(|(_, name)| text(name)).collect())
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn read_word(bytes: &[u8], index: usize) -> u32 {
    bytes.get(index * 4..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_ne_bytes(*word))
}

fn text(name: &[u8]) -> String {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// One call. `buffer` begins with the command and has room for all that its counts allow the kernel to write.
fn call(socket: &OwnedFd, interface: &Interface, buffer: &mut [u8]) -> io::Result<()> {
    let mut question = interface.question();
    question.ifr_ifru.ifru_data = buffer.as_mut_ptr().cast();
    // SAFETY: the kernel reads and writes the buffer within the counts at its start, which the callers derive from the
    // buffer's size.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut question) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_names_each_active_offload() {
        let offloads = Offloads { gro: true, gro_hw: true, ..Offloads::default() };
        assert_eq!(offloads.remedy("eth1").unwrap(), "ethtool -K eth1 gro off rx-gro-hw off");
        assert_eq!(Offloads::default().remedy("eth1"), None);
    }
}
