//! Files that the process creates. None may replace another file.

use crate::case::{Case, expect, problems_of, unmark};
use evergate_config::Severity;

#[test]
fn path_that_would_destroy_another_file_is_refused() {
    let cases: &[Case] = &[
        ("{L}{C}{P}[node]\npid_file = @@\"test.toml\"\n", "node.pid_file", "is this configuration too"),
        ("{L}{C}{P}[logs]\naccess = @@\"test.toml\"\n", "logs.access", "is this configuration too"),
        ("{L}{C}{P}[admin]\nsocket = @@\"test.toml\"\n", "admin.socket", "is this configuration too"),
        (
            "{L}[[certificates]]\nname = \"a\"\nchain = \"c.pem\"\nkey = \"k.pem\"\n\
             {P}[node]\npid_file = @@\"k.pem\"\n",
            "node.pid_file",
            "that of `certificates[0].key` too",
        ),
        (
            "{L}{C}{P}[pools.tls]\nca = \"c.pem\"\n[logs]\naccess = @@\"c.pem\"\n",
            "logs.access",
            "that of `pools[0].tls.ca` too",
        ),
        (
            "{L}{C}{P}[node]\npid_file = \"x\"\n[logs]\naccess = @@\"x\"\n",
            "logs.access",
            "that of `node.pid_file` too",
        ),
        (
            "{L}{C}{P}[logs]\naccess = @@\"/run/evergate/admin.sock\"\n",
            "logs.access",
            "that of `admin.socket` too",
        ),
        ("{L}{C}{P}[logs]\naccess = @@\"stderr\"\n", "logs.access", "a file of that name"),
        ("{L}{C}{P}[logs]\naccess = @@\"Off\"\n", "logs.access", "write \"stdout\", \"off\" or the path"),
        ("{L}{C}{P}[logs]\naccess = @@\"syslog:server=[::1]:514\"\n", "logs.access", "a file of that name"),
    ];
    expect(Severity::Error, cases);
    assert!(problems_of(&unmark("{L}{C}{P}[logs]\naccess = \"./stderr\"\n").0).is_empty());
}

#[test]
fn obstacles_to_the_start_are_reported() {
    let cases: &[Case] = &[
        ("{L}{C}{P}[node]\npid_file = @@\"open.pem\"\n", "node.pid_file", "something else than a process id"),
        ("{L}{C}{P}[logs]\naccess = @@\"closed\"\n", "logs.access", "write the path of a file"),
        ("{L}{C}{P}[node]\npid_file = @@\"pipe\"\n", "node.pid_file", "no regular file"),
        ("{L}{C}{P}[logs]\naccess = @@\"pipe\"\n", "logs.access", "a character device"),
        (
            "{L}{C}{P}[node]\nuser = \"guest\"\n[logs]\naccess = @@\"k.pem\"\n",
            "logs.access",
            "may not write to",
        ),
        ("{L}{C}{P}[admin]\nsocket = @@\"none/none/s\"\n", "admin.socket", "no folder `/base/none`"),
        ("{L}{C}{P}[admin]\nsocket = @@\"closed\"\n", "admin.socket", "is a folder"),
        ("{L}{C}{P}[admin]\nsocket = @@\"c.pem\"\n", "admin.socket", "no socket"),
    ];
    expect(Severity::Warning, cases);
    // The process creates this folder at its start.
    assert!(problems_of(&unmark("{L}{C}{P}[admin]\nsocket = \"none/s\"\n").0).is_empty());
}
