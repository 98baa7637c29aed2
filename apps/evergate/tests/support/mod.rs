//! The real binary as tests run it: its process with what it says, folders, ports. Everything that waits does so with a
//! deadline on something that can be seen.
#![allow(dead_code)] // each test binary uses its part

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Far beyond what anything here takes; reached only by what never happens.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Calls `condition` until it gives something.
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

/// Whether a test runs that needs something which may not be here. Where it cannot run it is skipped, which is said past the
/// harness (what a test prints that passes is not shown); in CI it fails, because nobody would see that nothing was shown.
pub(crate) fn can_run(can: bool, needs: &str) -> bool {
    if can {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "in CI no test is skipped, and this one needs {needs}");
    let test = std::thread::current();
    let _ = writeln!(std::io::stderr(), "skipped {}: it needs {needs}", test.name().unwrap_or("a test"));
    false
}

/// A port that nobody else gets on any address as long as this lives: bound, not listening, and shared with whoever else asks
/// to share.
pub(crate) struct Port {
    _reserved: tokio::net::TcpSocket,
    pub(crate) number: u16,
}

impl Port {
    pub(crate) fn new() -> Port {
        // A client from 127.0.0.7, or over IPv6, would otherwise get a port that a test wants on all addresses.
        let socket = reserve(tokio::net::TcpSocket::new_v6(), "[::]:0")
            .or_else(|_| reserve(tokio::net::TcpSocket::new_v4(), "0.0.0.0:0"))
            .unwrap();
        let number = socket.local_addr().unwrap().port();
        Port { _reserved: socket, number }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.number))
    }
}

fn reserve(
    socket: std::io::Result<tokio::net::TcpSocket>,
    address: &str,
) -> std::io::Result<tokio::net::TcpSocket> {
    let socket = socket?;
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address.parse().expect("an address"))?;
    Ok(socket)
}

/// A folder of this test's own, removed at its end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!("evergate-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(unique);
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a command came to.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs a command of the real binary to its end.
pub(crate) fn evergate(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_evergate"))
        .args(args)
        .env_remove("EVERGATE_SOCKET")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Output { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// What a process has said so far.
#[derive(Default)]
struct Lines {
    seen: Mutex<(Vec<String>, bool)>,
    more: Condvar,
}

/// A running node, ended with the test.
pub(crate) struct Process {
    child: Child,
    lines: Arc<Lines>,
}

impl Process {
    /// Runs `evergate run`, as `adjust` adds to it, and waits until it is ready.
    pub(crate) fn start(adjust: impl FnOnce(&mut Command) -> &mut Command) -> Process {
        let process = Process::spawn(adjust);
        process.line_after(0, "ready: ");
        process
    }

    /// Runs `evergate run`; what it says is seen unless `adjust` sends it elsewhere.
    pub(crate) fn spawn(adjust: impl FnOnce(&mut Command) -> &mut Command) -> Process {
        Process::spawn_by(Command::new(env!("CARGO_BIN_EXE_evergate")), adjust)
    }

    /// The same by way of another program, which gives it other rights.
    pub(crate) fn spawn_under(
        program: &[&str],
        adjust: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Process {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).arg(env!("CARGO_BIN_EXE_evergate"));
        Process::spawn_by(command, adjust)
    }

    fn spawn_by(mut command: Command, adjust: impl FnOnce(&mut Command) -> &mut Command) -> Process {
        command.arg("run").env_remove("NOTIFY_SOCKET");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = adjust(&mut command).spawn().unwrap();
        let lines = Arc::new(Lines::default());
        let (stderr, to) = (child.stderr.take(), lines.clone());
        std::thread::spawn(move || {
            let stderr = stderr.into_iter().flat_map(|stderr| BufReader::new(stderr).lines());
            for line in stderr.map_while(Result::ok) {
                to.seen.lock().unwrap().0.push(line);
                to.more.notify_all();
            }
            to.seen.lock().unwrap().1 = true;
            to.more.notify_all();
        });
        Process { child, lines }
    }

    /// Waits for a message with this in it after the first `from` ones; and how many there were up to it.
    pub(crate) fn line_after(&self, from: usize, part: &str) -> (String, usize) {
        let until = Instant::now() + DEADLINE;
        let mut seen = self.lines.seen.lock().unwrap();
        loop {
            if let Some(index) = seen.0.iter().skip(from).position(|line| line.contains(part)) {
                return (seen.0[from + index].clone(), from + index + 1);
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero() && !seen.1, "no message with {part:?}; there were: {:#?}", seen.0);
            seen = self.lines.more.wait_timeout(seen, left).unwrap().0;
        }
    }

    /// The messages so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.seen.lock().unwrap().0.clone()
    }

    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        eventually("the node ends", || self.child.try_wait().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An http listener `in` at this address with a pool `web` of these servers, named s0, s1, and so on. More keys of the
/// listener and the pool can be given.
pub(crate) fn plain_at(address: &str, servers: &[SocketAddr], listener: &str, pool: &str) -> String {
    format!(
        "[[listeners]]\nname = \"in\"\naddress = \"{address}\"\nprotocol = \"http\"\npool = \"web\"\n{listener}\n{}",
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

/// A program that a shell runs.
pub(crate) fn script(folder: &Folder, name: &str, text: &str) -> String {
    let path = folder.write(name, &format!("#!/bin/sh\n{text}\n"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// What a new process says: for `printf` of a shell.
pub(crate) fn reported(text: &str) -> String {
    let length = text.len();
    assert!(length < 256);
    format!("printf '\\{length:03o}\\000\\000\\000\\000{text}' >&0")
}

/// The first word of a new process that takes connections in the form in which this one gives them.
pub(crate) fn hello() -> String {
    format!(
        r#"{{"Hello":{{"version":"9","upgrade":{},"upgrade_state":{}}}}}"#,
        evergate::upgrade::UPGRADE_VERSION,
        evergate_connection::UPGRADE_STATE_VERSION,
    )
}
