//! Chromium with a page that the cluster serves: downloads, uploads, requests and a WebSocket, all over TLS.

use super::{Desk, Running, Verdict, start};
use crate::world::{ADDRESS, World};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// Six connections, as a browser opens over HTTP/1.1 to one host, and one for the WebSocket.
const CONNECTIONS: usize = 6 + 1;
/// Longer than any test.
const PATIENCE_S: u32 = 180;

/// Result of the page.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    errors: Vec<String>,
    /// Bytes of each download.
    streams: BTreeMap<String, usize>,
    uploads: usize,
    uploaded: usize,
    requests: usize,
    messages: usize,
    closed: Option<Closed>,
}

/// End of the WebSocket.
#[derive(Debug, PartialEq, Deserialize)]
struct Closed {
    code: u16,
    clean: bool,
}

fn command(world: &World, desk: &Desk) -> Command {
    let mut command = Command::new("timeout");
    // `timeout` ends the browser even if this process dies.
    command.args(["--signal=KILL", &PATIENCE_S.to_string(), "chromium"]);
    command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    // No background traffic, and no throttling of a page without a viewer.
    command.args(["--no-first-run", "--disable-background-networking", "--disable-component-update"]);
    command.args(["--disable-background-timer-throttling", "--disable-renderer-backgrounding"]);
    command.args(["--ignore-certificate-errors", &format!("--host-resolver-rules=MAP shop.test {ADDRESS}")]);
    command.arg(format!("--user-data-dir={}", world.folder.path("chromium").display()));
    command.arg(format!("https://shop.test:9003/page?seed={}", desk.chance.seed as u32));
    command.env("HOME", world.folder.path("chromium"));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(File::create(world.folder.path("chromium.log")).unwrap());
    command.process_group(0);
    command
}

/// Starts the browser, and ends it when its page has reported.
pub(super) fn client(world: &World, desk: &Arc<Desk>) -> Running {
    let (mut command, desk, log) = (command(world, desk), desk.clone(), world.folder.path("chromium.log"));
    let thread = world.switch.spawn(move || {
        let mut child = start(&mut command)?;
        let ended = loop {
            if let Some(report) = desk.report.lock().unwrap().as_deref() {
                break check(report, &desk);
            }
            if let Some(status) = child.try_wait().unwrap() {
                let reported = std::fs::read_to_string(&log).unwrap_or_default();
                break Err(format!("no report: {status}: {reported}"));
            }
            std::thread::park_timeout(Duration::from_millis(20));
        };
        // Kills the whole process group.
        let killed =
            Command::new("sh").args(["-c", &format!("kill -KILL -{}", child.id())]).status().unwrap();
        child.wait().unwrap();
        assert!(killed.success() || ended.is_err());
        ended
    });
    Running { name: "browser".to_owned(), connections: CONNECTIONS, thread }
}

fn check(report: &str, desk: &Desk) -> Verdict {
    let found: Report = serde_json::from_str(report).map_err(|error| format!("{error}: {report}"))?;
    let busy = found.uploads > 0 && found.uploaded > 0 && found.requests > 0 && found.messages > 0;
    let closed = Some(Closed { code: 1000, clean: true });
    match found.errors.is_empty() && found.streams == *desk.sent.lock().unwrap() && busy {
        true if found.closed == closed => Ok(()),
        _ => Err(report.to_owned()),
    }
}
