//! Node with an admin socket, and backends that die and return.

pub(crate) use crate::support::{DEADLINE, Folder, Output, Port, eventually, evergate};

use crate::support::{Process, plain_at};
use evergate::control::status::{ServerStatus, Status};
use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

/// Running node. Dropping it ends the process.
pub(crate) struct Node {
    process: Process,
    pub(crate) socket: PathBuf,
}

impl Node {
    /// Starts `evergate run` with these arguments and waits until it is ready.
    pub(crate) fn start(folder: &Folder, args: &[&str]) -> Node {
        Node::start_with(folder, args, |command| command)
    }

    pub(crate) fn start_with(
        folder: &Folder,
        args: &[&str],
        adjust: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Node {
        let process = Process::start(|command| adjust(command.args(args)));
        Node { process, socket: folder.path("admin.sock") }
    }

    /// Starts a node through another program, which changes its privileges or limits.
    pub(crate) fn start_under(folder: &Folder, program: &[&str], args: &[&str]) -> Node {
        let process = Process::spawn_under(program, |command| command.args(args));
        process.line_after(0, "ready: ");
        Node { process, socket: folder.path("admin.sock") }
    }

    /// Starts a node whose standard error is a full pipe without a reader, and waits until it answers commands.
    pub(crate) fn start_with_unread_stderr(folder: &Folder, text: &str) -> (Node, PipeReader) {
        let path = folder.write("evergate.toml", &config(text));
        let (reader, writer) = std::io::pipe().unwrap();
        let mut filler = writer.try_clone().unwrap();
        std::thread::spawn(move || filler.write_all(&vec![b'.'; 1 << 20]));
        let process = Process::spawn(|command| command.arg(path).stderr(writer));
        let node = Node { process, socket: folder.path("admin.sock") };
        eventually("the node answers", || (node.cli(&["status"]).code == Some(0)).then_some(()));
        (node, reader)
    }

    /// Writes a configuration with an admin socket and one worker around `text`, and starts a node with it.
    pub(crate) fn with_config(folder: &Folder, text: &str) -> Node {
        let path = folder.write("evergate.toml", &config(text));
        Node::start(folder, &[path.to_str().unwrap()])
    }

    /// Waits for a message that contains `part`.
    pub(crate) fn line(&self, part: &str) -> String {
        self.line_after(0, part).0
    }

    /// Waits for a message after the first `from` messages; the message, and the number of messages up to it.
    pub(crate) fn line_after(&self, from: usize, part: &str) -> (String, usize) {
        self.process.line_after(from, part)
    }

    pub(crate) fn line_count(&self) -> usize {
        self.lines().len()
    }

    /// Messages so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.process.lines()
    }

    /// Runs a command of the CLI against this node.
    pub(crate) fn cli(&self, args: &[&str]) -> Output {
        let mut all = args.to_vec();
        all.extend(["--socket", self.socket.to_str().unwrap()]);
        evergate(&all)
    }

    /// Parsed JSON output of a command.
    pub(crate) fn json<T: serde::de::DeserializeOwned>(&self, args: &[&str]) -> T {
        let mut all = args.to_vec();
        all.push("--json");
        let output = self.cli(&all);
        assert_eq!(output.code, Some(0), "{args:?}: {output:?}");
        serde_json::from_str(&output.out).unwrap()
    }

    pub(crate) fn status(&self) -> Status {
        self.json(&["status"])
    }

    pub(crate) fn server(&self, name: &str) -> ServerStatus {
        let all: evergate::control::status::Servers = self.json(&["servers", "list"]);
        all.servers.into_iter().find(|server| format!("{}/{}", server.pool, server.name) == name).unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the process ends; its exit status.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }
}

/// Configuration with one worker, an admin socket and no access log, unless `text` has these sections.
pub(crate) fn config(text: &str) -> String {
    let logs = if text.contains("[logs]") { "" } else { "[logs]\naccess = \"off\"\n" };
    let admin = if text.contains("[admin]") { "" } else { "[admin]\nsocket = \"admin.sock\"\n" };
    let node = if text.contains("[node]") { "" } else { "[node]\nworkers = 1\n" };
    format!("{node}{logs}{admin}{text}")
}

/// Configuration of an http listener with a pool of these servers, named s0, s1, and so on.
pub(crate) fn plain(port: &Port, servers: &[SocketAddr]) -> String {
    plain_at(&port.address().to_string(), servers, "", "")
}

/// Sends one request on a new connection; status and body.
pub(crate) fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    read_response(stream)
}

pub(crate) fn read_response(mut stream: TcpStream) -> (u16, String) {
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response in {text:?}"));
    (head[9..12].parse().unwrap(), body.to_owned())
}

/// Backend in this process. It answers every request with a status and its name, and can die and return.
pub(crate) struct Backend {
    port: Port,
    name: String,
    state: Arc<State>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct State {
    status: AtomicU16,
    requests: AtomicU64,
    dead: std::sync::atomic::AtomicBool,
}

impl Backend {
    pub(crate) fn new(name: &str) -> Backend {
        let state = State {
            status: AtomicU16::new(200),
            requests: AtomicU64::new(0),
            dead: std::sync::atomic::AtomicBool::new(true),
        };
        let mut backend =
            Backend { port: Port::new(), name: name.to_owned(), state: Arc::new(state), thread: None };
        backend.rise();
        backend
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Sets the status of further answers.
    pub(crate) fn set_status(&self, status: u16) {
        self.state.status.store(status, Ordering::SeqCst);
    }

    pub(crate) fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::SeqCst)
    }

    /// Listens (again).
    pub(crate) fn rise(&mut self) {
        let socket = evergate_sys::listen(self.address(), 64).unwrap();
        let listener = TcpListener::from(socket);
        listener.set_nonblocking(false).unwrap();
        self.state.dead.store(false, Ordering::SeqCst);
        let (state, name) = (self.state.clone(), self.name.clone());
        self.thread = Some(std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if state.dead.load(Ordering::SeqCst) {
                    return;
                }
                answer(stream, &state, &name);
            }
        }));
    }

    /// Stops listening: connects are refused.
    pub(crate) fn die(&mut self) {
        self.state.dead.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address()); // ends the wait in accept
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.die();
        }
    }
}

fn answer(mut stream: TcpStream, state: &State, name: &str) {
    let _ = stream.set_read_timeout(Some(DEADLINE));
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    state.requests.fetch_add(1, Ordering::SeqCst);
    let status = state.status.load(Ordering::SeqCst);
    let _ = write!(
        stream,
        "HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{name}",
        name.len()
    );
}

/// Demo servers of the real program.
pub(crate) struct Demo {
    child: Child,
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Demo {
    pub(crate) fn start(count: usize) -> Demo {
        let mut child = Command::new(env!("CARGO_BIN_EXE_evergate"))
            .args(["demo", "servers", "--count", &count.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let address = |line: String| line.rsplit_once("http://").unwrap().1.parse().unwrap();
        let addresses = lines.take(count).map(address).collect();
        Demo { child, addresses }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Text of a file, or an empty text while the file does not exist.
pub(crate) fn text_of(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
