//! Signs of a hypervisor, as files of the kernel show them. They need no privileges, and a container sees those of its
//! host.

use std::io::Read;
use std::path::Path;

/// Bytes of a file that are read at most: the first processor of `/proc/cpuinfo` fits.
const FILE_BYTES_MAX: u64 = 65_536;

/// Answers of the machine to the question whether it is virtual. An absent file is an empty text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineSigns {
    /// CPUID has the hypervisor bit (leaf 1, ECX bit 31), which the kernel lists as a flag of the processor. x86 only.
    pub cpuid_bit: bool,
    /// `/sys/hypervisor/type`, such as `xen`.
    pub hypervisor_type: String,
    /// A hypervisor's node in the device tree, such as `linux,kvm`. ARM and RISC-V only.
    pub device_tree: String,
    /// DMI: the manufacturer of the machine.
    pub sys_vendor: String,
    /// DMI: its model.
    pub product_name: String,
}

/// The signs of this machine.
pub fn machine_signs() -> MachineSigns {
    MachineSigns::below(Path::new("/"))
}

impl MachineSigns {
    /// The signs that the files below `root` show.
    fn below(root: &Path) -> MachineSigns {
        let text = |path: &str| text_of(&root.join(path));
        MachineSigns {
            cpuid_bit: has_hypervisor_flag(&text("proc/cpuinfo")),
            hypervisor_type: text("sys/hypervisor/type"),
            device_tree: text("proc/device-tree/hypervisor/compatible"),
            sys_vendor: text("sys/class/dmi/id/sys_vendor"),
            product_name: text("sys/class/dmi/id/product_name"),
        }
    }
}

fn text_of(path: &Path) -> String {
    let mut bytes = Vec::new();
    // A file that cannot be read shows no sign.
    let _ = std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).trim_matches(['\0', '\n', ' ']).to_owned()
}

fn has_hypervisor_flag(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|line| line.split_whitespace().any(|word| word == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_flag_is_found_as_a_whole_word() {
        assert!(has_hypervisor_flag("processor\t: 0\nflags\t\t: fpu hypervisor lahf_lm\nbugs\t: x\n"));
        assert!(!has_hypervisor_flag(
            "processor\t: 0\nflags\t\t: fpu hypervisors\nmodel name\t: hypervisor\n"
        ));
        assert!(!has_hypervisor_flag(""));
    }

    #[test]
    fn absent_files_show_no_sign() {
        assert_eq!(MachineSigns::below(Path::new("/nonexistent")), MachineSigns::default());
    }
}
