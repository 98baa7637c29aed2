//! systemd units in dist/: systemd accepts them, and the drop-in of a cluster removes only the necessary restrictions
//! of the service. Tests of clusters check the privileges in action.

use crate::node::Folder;
use std::process::Command;

fn dist(file: &str) -> String {
    std::fs::read_to_string(format!("{}/../../dist/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Output of systemd about the service, with or without the drop-in; `None` without systemd.
fn asked(drop_in: bool, command: &[&str]) -> Option<(String, String)> {
    let folder = Folder::new();
    let program = env!("CARGO_BIN_EXE_evergate");
    let unit =
        folder.write("evergate.service", &dist("evergate.service").replace("/usr/bin/evergate", program));
    if drop_in {
        std::fs::create_dir(folder.path("evergate.service.d")).unwrap();
        folder.write("evergate.service.d/cluster.conf", &dist("evergate-cluster.conf"));
    }
    let output =
        match Command::new("systemd-analyze").env("LC_ALL", "C.UTF-8").args(command).arg(unit).output() {
            Ok(output) => output,
            Err(error) => {
                crate::support::can_run(false, &format!("systemd-analyze ({error})"));
                return None;
            }
        };
    assert!(output.status.success(), "{output:?}");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Some((text(output.stdout), text(output.stderr)))
}

#[test]
fn systemd_finds_nothing_wrong_with_the_service_and_its_drop_in() {
    for drop_in in [false, true] {
        let Some(reported) = asked(drop_in, &["verify", "--man=no"]) else { return };
        assert_eq!(reported, (String::new(), String::new()));
    }
}

/// A signal would report nothing about the result of the reload.
#[test]
fn systemctl_reload_runs_a_command_that_reports_the_result() {
    let service = dist("evergate.service");
    let reloads: Vec<_> = service.lines().filter_map(|line| line.strip_prefix("ExecReload=")).collect();
    assert_eq!(reloads, ["/usr/bin/evergate reload"]);
}

/// A reload would put an edited configuration in force.
#[test]
fn logrotate_reopens_the_log_without_a_reload() {
    let rules = dist("evergate.logrotate");
    let commands: Vec<_> = rules.lines().filter(|line| line.contains("/usr/bin/evergate ")).collect();
    assert!(commands.len() == 1 && commands[0].contains("evergate log reopen"), "{commands:?}");
    assert!(!rules.contains("HUP"));
}

#[test]
fn drop_in_lifts_what_a_node_of_a_cluster_needs_and_no_more() {
    let command = ["security", "--offline=yes", "--no-pager"];
    let (Some((service, _)), Some((node, _))) = (asked(false, &command), asked(true, &command)) else {
        return;
    };
    let lines = |text: &str, mark: &str| -> Vec<String> {
        let of = text.lines().filter_map(|line| line.strip_prefix(mark)?.split_whitespace().next());
        of.map(str::to_owned).collect()
    };
    let mut lifted = lines(&node, "✗ ");
    let before = lines(&service, "✗ ");
    lifted.retain(|name| !before.contains(name));
    lifted.sort();
    let wanted = [
        "CapabilityBoundingSet=~CAP_BPF",
        "CapabilityBoundingSet=~CAP_IPC_LOCK",
        "CapabilityBoundingSet=~CAP_NET_ADMIN",
        "CapabilityBoundingSet=~CAP_SYS_(NICE|RESOURCE)",
        "ProtectKernelTunables=",
        "RestrictAddressFamilies=~AF_NETLINK",
        "RestrictAddressFamilies=~AF_PACKET",
        "RestrictRealtime=",
        "SystemCallFilter=~@privileged",
    ];
    assert_eq!(lifted, wanted, "{node}");
    let privileged = node.lines().find(|line| line.contains("SystemCallFilter=~@privileged")).unwrap();
    assert!(privileged.contains("bpf is allowed"), "{privileged}");
}
