//! Node whose listeners have ports of the kernel's choice.

pub(crate) use crate::support::{DEADLINE, Folder, eventually, web};

use crate::support::{Port, Process, evergate, plain_at, script};
use evergate::control::status::{Status, Upgraded};
use std::cell::Cell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::process::ExitStatus;

/// Running node. It ends with the test.
pub(crate) struct Node {
    process: Process,
    /// Number of messages read, up to the last one that a test waited for.
    seen: Cell<usize>,
    addresses: HashMap<String, SocketAddr>,
    ports: Vec<Port>,
    /// Process that serves now. An upgrade changes it.
    pid: Cell<u32>,
    pub(crate) folder: Folder,
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.pid.get() != self.process.id() {
            kill("KILL", self.pid.get());
        }
    }
}

fn kill(signal: &str, pid: u32) -> bool {
    let kill = format!("kill -{signal} {pid} 2> /dev/null");
    std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success()
}

/// Whether a process has ended, also before its parent has collected the exit code.
pub(crate) fn has_ended(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

const WORKERS: &str = "[node]\nworkers = 2\n";
const QUIET: &str = "[logs]\naccess = \"off\"\n";
const COMMON: &str = "[admin]\nsocket = \"admin.sock\"\n";

/// Placeholder of a free port in a configuration. The nth placeholder keeps its port at every reload.
pub(crate) const ANY: &str = "127.0.0.1:0\"";

fn with_ports(config: &str, ports: &[Port]) -> String {
    let place = |text: String, port: &Port| text.replacen(ANY, &format!("{}\"", port.address()), 1);
    let workers = if config.contains("[node]") { "" } else { WORKERS };
    let logs = if config.contains("[logs]") { "" } else { QUIET };
    format!("{workers}{logs}{COMMON}{}", ports.iter().fold(config.to_owned(), place))
}

/// Name and address from `listener NAME (PROTOCOL) on ADDRESS`.
fn listener_of(line: &str) -> Option<(String, SocketAddr)> {
    let (_, rest) = line.split_once("listener ")?;
    let (name, _) = rest.split_once(" (")?;
    let (_, address) = rest.rsplit_once(" on ")?;
    Some((name.to_owned(), address.parse().ok()?))
}

impl Node {
    /// Starts with this configuration, in a new folder.
    pub(crate) fn start(config: &str) -> Node {
        Node::start_in(Folder::new(), config)
    }

    pub(crate) fn start_in(folder: Folder, config: &str) -> Node {
        let watch = ["--watch-interval-ms", "3600000"];
        Node::start_by(folder, config, |path| Process::start(|command| command.arg(path).args(watch)))
    }

    /// Starts with this configuration, as `start` does with its path.
    pub(crate) fn start_by(
        folder: Folder,
        config: &str,
        start: impl FnOnce(std::path::PathBuf) -> Process,
    ) -> Node {
        let ports: Vec<_> = config.matches(ANY).map(|_| Port::new()).collect();
        let path = folder.write("evergate.toml", &with_ports(config, &ports));
        let process = start(path);
        let lines = process.lines();
        let addresses = lines.iter().filter_map(|line| listener_of(line)).collect();
        let (_, seen) = process.line_after(0, "ready: ");
        let pid = Cell::new(process.id());
        Node { process, seen: Cell::new(seen), addresses, ports, pid, folder }
    }

    /// Upgrades to a new process, and waits for the old one's end.
    pub(crate) fn upgrade(&self) -> Upgraded {
        let before = self.pid.get();
        let upgraded = self.begin_upgrade();
        eventually("the old process ends", || has_ended(before).then_some(()));
        upgraded
    }

    /// Upgrades to a new process. The old one may still have connections.
    pub(crate) fn begin_upgrade(&self) -> Upgraded {
        self.begin_upgrade_with(&[])
    }

    pub(crate) fn begin_upgrade_with(&self, args: &[&str]) -> Upgraded {
        let (ok, text) = self.cli(&[&["upgrade", "--json"], args].concat());
        assert!(ok, "{text}; {:#?}", self.process.lines());
        let upgraded: Upgraded = serde_json::from_str(&text).unwrap();
        assert_ne!(self.pid.replace(upgraded.pid), upgraded.pid);
        upgraded
    }

    pub(crate) fn status(&self) -> Status {
        let (ok, text) = self.cli(&["status", "--json"]);
        assert!(ok, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Adopts the serving process as the node's, so that it ends with the test.
    pub(crate) fn adopt(&self) {
        self.pid.set(self.serving());
    }

    /// Process id in the node's status.
    pub(crate) fn serving(&self) -> u32 {
        self.status().pid
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid.get()
    }

    /// Messages of all its processes so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.process.lines()
    }

    /// Waits for a further message that contains `part`.
    pub(crate) fn line(&self, part: &str) -> String {
        let (line, seen) = self.process.line_after(self.seen.get(), part);
        self.seen.set(seen);
        line
    }

    /// Writes a shell script; its path.
    pub(crate) fn script(&self, name: &str, text: &str) -> String {
        script(&self.folder, name, text)
    }

    /// Address of a listener.
    pub(crate) fn address(&self, listener: &str) -> SocketAddr {
        self.addresses[listener]
    }

    /// Replaces the configuration file.
    pub(crate) fn write(&self, config: &str) {
        self.folder.write("evergate.toml", &with_ports(config, &self.ports));
    }

    /// Runs a command of the CLI against this node; whether it succeeded, and its output.
    pub(crate) fn cli(&self, args: &[&str]) -> (bool, String) {
        let socket = self.folder.path("admin.sock");
        let output = evergate(&[args, &["--socket", socket.to_str().unwrap()]].concat());
        (output.code == Some(0), output.out + &output.err)
    }

    pub(crate) fn reload(&self) {
        let (ok, text) = self.cli(&["reload"]);
        assert!(ok, "{text}");
    }

    /// Sum of a metric's samples.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let (ok, text) = self.cli(&["metrics"]);
        assert!(ok, "{text}");
        let samples = text
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
        samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
    }

    pub(crate) fn signal(&self, name: &str) {
        assert!(kill(name, self.pid.get()));
    }

    /// Stops the process. `kill` returns before the threads on other cores stop: what a peer sends then would still
    /// be read.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.pid.get());
        eventually("every thread stops", || {
            let mut threads = std::fs::read_dir(&tasks).unwrap().flatten();
            let has_stopped =
                |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'));
            threads
                .all(|thread| std::fs::read_to_string(thread.path().join("stat")).is_ok_and(has_stopped))
                .then_some(())
        });
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }
}

/// Configuration of an http listener `in` with a pool `web` of these servers, named s0, s1, and so on. `listener` and
/// `pool`: further keys of each.
pub(crate) fn plain(servers: &[SocketAddr], listener: &str, pool: &str) -> String {
    plain_at("127.0.0.1:0", servers, listener, pool)
}
