//! Environment of tests with the real program: processes and their output, folders, ports. Each wait has a deadline
//! and polls a visible condition.
#![allow(dead_code)] // each test binary uses its part

pub(crate) mod audit;

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Limit of every wait, far beyond the time of any expected event.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Polls `condition` until it returns a value.
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

/// Whether a test can run that has needs of the machine. Otherwise it is skipped with a line on standard error,
/// because the harness hides the output of tests that pass. In CI it fails, because no reader would miss the test.
pub(crate) fn can_run(can: bool, needs: &str) -> bool {
    if can {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "in CI no test is skipped, and this one needs {needs}");
    let test = std::thread::current();
    let _ = writeln!(std::io::stderr(), "skipped {}: it needs {needs}", test.name().unwrap_or("a test"));
    false
}

/// Port that is bound on all addresses without listening, and therefore reserved while this value lives. Only sockets
/// with SO_REUSEPORT share it.
pub(crate) struct Port {
    _reserved: tokio::net::TcpSocket,
    pub(crate) number: u16,
}

impl Port {
    pub(crate) fn new() -> Port {
        // A socket on a narrower address would leave the port to a client from 127.0.0.7 or over IPv6. A test may
        // need the port on all addresses.
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

/// Folder of one test, removed at its end.
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

/// Exit code and output of a command.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs a command of the real program to its end.
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

/// Output of a process so far, and whether it has ended.
#[derive(Default)]
struct Lines {
    seen: Mutex<(Vec<String>, bool)>,
    more: Condvar,
}

/// Running node. Dropping it ends the process.
pub(crate) struct Process {
    child: Child,
    lines: Arc<Lines>,
}

impl Process {
    /// Runs `evergate run` with the changes of `adjust`, and waits until it is ready.
    pub(crate) fn start(adjust: impl FnOnce(&mut Command) -> &mut Command) -> Process {
        let process = Process::spawn(adjust);
        process.line_after(0, "ready: ");
        process
    }

    /// Runs `evergate run`. Its messages are recorded unless `adjust` redirects them.
    pub(crate) fn spawn(adjust: impl FnOnce(&mut Command) -> &mut Command) -> Process {
        Process::spawn_by(Command::new(env!("CARGO_BIN_EXE_evergate")), adjust)
    }

    /// [`Process::spawn`] through another program, which changes privileges or limits.
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

    /// Waits for a message that contains `part`, after the first `from` messages; the message, and the number of
    /// messages up to it.
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

    /// Messages so far.
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

    /// Waits until the process ends; its exit status.
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

/// Configuration of an http listener `in` at this address with a pool `web` of these servers, named s0, s1, and so on.
/// `listener` and `pool`: further keys of each.
pub(crate) fn plain_at(address: &str, servers: &[SocketAddr], listener: &str, pool: &str) -> String {
    format!(
        "[[listeners]]\nname = \"in\"\naddress = \"{address}\"\nprotocol = \"http\"\npool = \"web\"\n{listener}\n{}",
        web(servers, pool)
    )
}

/// Configuration of the pool `web` alone.
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

/// Writes a shell script; its path.
pub(crate) fn script(folder: &Folder, name: &str, text: &str) -> String {
    let path = folder.write(name, &format!("#!/bin/sh\n{text}\n"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Shell command that prints a message of the upgrade protocol with this text.
pub(crate) fn upgrade_message(text: &str) -> String {
    let length = text.len();
    assert!(length < 256);
    format!("printf '\\{length:03o}\\000\\000\\000\\000{text}' >&0")
}

/// First message of a new process with the same wire versions as this program.
pub(crate) fn hello() -> String {
    format!(
        r#"{{"Hello":{{"version":"9","upgrade":{},"upgrade_state":{}}}}}"#,
        evergate::upgrade::UPGRADE_VERSION,
        evergate_connection::UPGRADE_STATE_VERSION,
    )
}
