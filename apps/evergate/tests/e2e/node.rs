//! A running node. Its ports are of the kernel's choice: reserved by a socket that is bound, never listens, and shares.
//! Waiting is for something that can be seen, with a deadline.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Far beyond what anything here takes.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

/// Asks `condition` until it gives something.
pub(crate) fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < until, "never happened: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A folder of one test, removed at its end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("evergate-e2e-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(unique);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A node, ended with the test.
pub(crate) struct Node {
    child: Child,
    lines: Receiver<String>,
    addresses: HashMap<String, SocketAddr>,
    ports: Vec<(tokio::net::TcpSocket, SocketAddr)>,
    pub(crate) folder: Folder,
}

const COMMON: &str = "[node]\nworkers = 2\n[logs]\naccess = \"off\"\n[admin]\nsocket = \"admin.sock\"\n";

/// What stands for a free port in a configuration; the nth one is the same port at every reload.
pub(crate) const ANY: &str = "127.0.0.1:0\"";

fn reserve() -> (tokio::net::TcpSocket, SocketAddr) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.set_reuseport(true).unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn with_ports(config: &str, ports: &[(tokio::net::TcpSocket, SocketAddr)]) -> String {
    let place = |text: String, (_, address): &(_, SocketAddr)| text.replacen(ANY, &format!("{address}\""), 1);
    format!("{COMMON}{}", ports.iter().fold(config.to_owned(), place))
}

impl Node {
    /// Starts with this configuration, in a folder of its own.
    pub(crate) fn start(config: &str) -> Node {
        Node::start_in(Folder::new(), config)
    }

    pub(crate) fn start_in(folder: Folder, config: &str) -> Node {
        let ports: Vec<_> = config.matches(ANY).map(|_| reserve()).collect();
        folder.write("evergate.toml", &with_ports(config, &ports));
        let mut child = Command::new(env!("CARGO_BIN_EXE_evergate"))
            .arg("run")
            .arg(folder.path("evergate.toml"))
            .args(["--watch-interval-ms", "3600000"])
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut said = Vec::new();
        let mut node = Node { child, lines, addresses: HashMap::new(), ports, folder };
        loop {
            let Ok(line) = node.lines.recv_timeout(DEADLINE) else {
                panic!("it does not start: {said:#?}\n{config}")
            };
            said.push(line.clone());
            // `listener NAME (PROTOCOL) on ADDRESS`
            if let Some((_, rest)) = line.split_once("listener ")
                && let (Some((name, _)), Some((_, address))) =
                    (rest.split_once(" ("), rest.rsplit_once(" on "))
                && let Ok(address) = address.parse()
            {
                node.addresses.insert(name.to_owned(), address);
            }
            if line.contains("ready: ") {
                return node;
            }
        }
    }

    fn next_line(&self) -> String {
        self.lines.recv_timeout(DEADLINE).expect("the node says more")
    }

    /// Waits for a message with this in it.
    pub(crate) fn line(&self, part: &str) -> String {
        loop {
            let line = self.next_line();
            if line.contains(part) {
                return line;
            }
        }
    }

    /// Where a listener is bound.
    pub(crate) fn address(&self, listener: &str) -> SocketAddr {
        self.addresses[listener]
    }

    /// Replaces the configuration file.
    pub(crate) fn write(&self, config: &str) {
        self.folder.write("evergate.toml", &with_ports(config, &self.ports));
    }

    /// Runs a command against this node: whether it worked, and what it printed.
    pub(crate) fn cli(&self, args: &[&str]) -> (bool, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_evergate"))
            .args(args)
            .arg("--socket")
            .arg(self.folder.path("admin.sock"))
            .output()
            .unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    }

    pub(crate) fn reload(&self) {
        let (ok, text) = self.cli(&["reload"]);
        assert!(ok, "{text}");
    }

    /// The sum of a metric's samples.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let (ok, text) = self.cli(&["metrics"]);
        assert!(ok, "{text}");
        let samples = text
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])));
        samples.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum()
    }

    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        eventually("the node ends", || self.child.try_wait().unwrap())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An http listener `in` with a pool `web` of these servers, named s0, s1, and so on. More keys of the listener and the
/// pool can be given.
pub(crate) fn plain(servers: &[SocketAddr], listener: &str, pool: &str) -> String {
    format!(
        "[[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:0\"\nprotocol = \"http\"\npool = \"web\"\n{listener}\n{}",
        web(servers, pool)
    )
}

/// The pool alone.
pub(crate) fn web(servers: &[SocketAddr], pool: &str) -> String {
    let servers: Vec<String> = servers
        .iter()
        .enumerate()
        .map(|(index, address)| format!("{{ name = \"s{index}\", address = \"{address}\" }}"))
        .collect();
    format!(
        "[[pools]]\nname = \"web\"\npolicy = \"round_robin\"\nservers = [{}]\n{pool}\n",
        servers.join(", ")
    )
}
