//! Requirements of the show, checked before anything is made.

use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

/// The first kernel that clusters run on.
const KERNEL: (u32, u32) = (6, 9);

/// Missing requirements, each with its remedy; empty when the show can run.
pub(super) fn missing() -> Vec<String> {
    let root = std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0);
    if !root {
        let remedy = "it makes network namespaces and loads packet filters; run it with sudo";
        return vec![format!("this is not root: {remedy}")];
    }
    let mut missing = Vec::new();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if version(&release) < KERNEL {
        let (major, minor) = KERNEL;
        missing.push(format!("this is Linux {}: install {major}.{minor} or newer", release.trim()));
    }
    let mut ip = Command::new("ip");
    if !ip.arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    {
        missing.push("there is no command \"ip\": install it (apt-get install iproute2)".to_owned());
    }
    missing.extend(evergate_sys::missing_socket_features().iter().map(ToString::to_string));
    missing.extend(evergate_bpf::missing_gate_features().iter().map(ToString::to_string));
    missing
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_s_release_is_compared_by_its_numbers() {
        assert_eq!(version("6.18.44-fc-v657\n"), (6, 18));
        assert!(version("6.18.44") > KERNEL);
        assert!(version("6.7.0-generic") < KERNEL);
        assert!(version("") < KERNEL);
    }
}
