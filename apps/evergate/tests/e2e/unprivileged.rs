//! Single node under an unprivileged user, without any capability: it serves, reloads and is upgraded. Only a cluster
//! needs privileges.

use super::backend::Backend;
use super::client::get;
use super::node::{Folder, eventually};
use crate::support::{Port, Process, evergate, plain_at};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

/// Prefix that runs a command as an unprivileged user and group, without capabilities.
const NONE: [&str; 8] = [
    "setpriv",
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=-all",
    "--ambient-caps=-all",
    "--bounding-set=-all",
    "--no-new-privs",
];

#[test]
fn single_node_serves_reloads_and_upgrades_unprivileged() {
    let drops = Command::new(NONE[0]).args(&NONE[1..]).arg("true").status();
    let drops = drops.is_ok_and(|status| status.success());
    if !crate::support::can_run(drops, "setpriv, and root to drop rights from") {
        return;
    }
    let (backend, folder, port) = (Backend::new("one"), Folder::new(), Port::new());
    let listen = port.address();
    let config = format!(
        "[node]\nworkers = 2\n[logs]\naccess = \"access.log\"\n[admin]\nsocket = \"admin.sock\"\n{}",
        plain_at(&listen.to_string(), &[backend.address()], "", "")
    );
    let file = folder.write("evergate.toml", &config);
    std::fs::set_permissions(folder.path(""), std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let node = Process::spawn_under(&NONE, |command| command.arg(&file));
    node.line_after(0, "ready: ");

    let rights = std::fs::read_to_string(format!("/proc/{}/status", node.id())).unwrap();
    let of = |name: &str| rights.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    assert!(of("Uid:").starts_with("65534\t65534"), "{rights}");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(u64::from_str_radix(&of(set), 16), Ok(0), "{set}");
    }
    // The process is not dumpable: core files and the user's other processes do not see its memory.
    let memory = std::fs::metadata(format!("/proc/{}/mem", node.id())).unwrap();
    assert_eq!(memory.uid(), 0, "its memory is hidden");
    assert_eq!(get(listen, "/x").status, 200);

    let socket = folder.path("admin.sock").display().to_string();
    let reported = |args: &[&str]| {
        let output = evergate(&[args, &["--socket", &socket]].concat());
        assert_eq!(output.code, Some(0), "{output:?} {:#?}", node.lines());
        output.out
    };
    reported(&["reload"]);
    assert!(reported(&["metrics"]).contains("evergate_config_generation 2"));
    reported(&["upgrade"]);
    eventually("the new process serves", || (get(listen, "/y").status == 200).then_some(()));
    assert_eq!(backend.requests(), 2);
    reported(&["drain"]);
    let log = std::fs::read_to_string(folder.path("access.log")).unwrap();
    assert!(log.contains("\"target\":\"/x\""), "{log}");
}
