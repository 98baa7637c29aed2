//! Ten thousand idle connections, and a few active ones.

use super::backend::Backend;
use super::client::{get, tcp};
use super::node::{Folder, Node, eventually, web};
use super::pki::{certificate, client, https, issue, tls};
use crate::support::can_run;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const HOLDERS: usize = 4;
const EACH: usize = 2_500;
const TASK: &str = "EVERGATE_E2E_HOLD";

/// Helper process of the test below, which cannot open so many files itself.
#[test]
fn holder_process() {
    let Some(address) = std::env::var(TASK).ok().and_then(|address| address.parse().ok()) else { return };
    let held: Vec<_> = (0..EACH).map(|_| tcp(address)).collect();
    println!("holding {}", held.len());
    let _ = std::io::stdout().flush();
    let _ = std::io::stdin().read(&mut [0]);
}

struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hard_limit() -> u64 {
    let output = Command::new("sh").args(["-c", "ulimit -Hn"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().parse().unwrap_or(u64::MAX)
}

#[test]
fn ten_thousand_idle_connections_leave_room_for_work() {
    let limit = hard_limit();
    let needs = (HOLDERS * EACH + 1000) as u64;
    if !can_run(limit >= needs, &format!("{needs} open files (the hard limit is {limit})")) {
        return;
    }
    let folder = Folder::new();
    issue(&folder, "site", "ecdsa", "site.example", None);
    let backend = Backend::new("one");
    let plain =
        "[[listeners]]\nname = \"plain\"\naddress = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"web\"\n";
    let config = format!("{}{plain}{}{}", https(""), certificate("site"), web(&[backend.address()], ""));
    let node = Node::start_in(folder, &config);
    let before = node.metric("process_resident_memory_bytes");
    let start = |_| {
        let this = std::env::current_exe().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", "ulimit -n $(ulimit -Hn); exec \"$0\" --exact crowd::holder_process --nocapture"])
            .arg(this)
            .env(TASK, node.address("plain").to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        (BufReader::new(child.stdout.take().unwrap()), Holder(child))
    };
    let mut holders: Vec<_> = (0..HOLDERS).map(start).collect();
    for (reported, _) in &mut holders {
        assert!(
            reported.lines().map_while(Result::ok).any(|line| line.contains("holding")),
            "a holder ended early"
        );
    }
    let config = Arc::new(client(None));
    let mut secure: Vec<_> = (0..100).map(|_| tls(node.address("in"), &config, "site.example")).collect();
    for _ in 0..3 {
        for wire in &mut secure {
            assert_eq!(wire.get("/x").unwrap().text(), "one");
        }
    }
    let all = (HOLDERS * EACH + secure.len()) as u64;
    eventually("all are open", || (node.metric("evergate_connections") == all).then_some(()));
    for _ in 0..100 {
        assert_eq!(get(node.address("plain"), "/x").text(), "one");
    }
    let each = node.metric("process_resident_memory_bytes").saturating_sub(before) / all;
    assert!(each < 16_384, "{each} bytes for a connection that does nothing");
    drop(holders);
    drop(secure);
    eventually("all are gone", || (node.metric("evergate_connections") == 0).then_some(()));
}
