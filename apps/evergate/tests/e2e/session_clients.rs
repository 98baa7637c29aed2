//! Third-party TLS clients with their own sessions, which open one connection after the other.

use super::terminators::{NAME, Terminators};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

/// Limit of a client's process, in seconds.
const CLIENT_S: &str = "120";
pub(crate) const REQUEST: &str = "GET / HTTP/1.0\r\n\r\n";

/// Version of TLS that a client offers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Version {
    Tls12,
    Tls13,
}

/// One connection: the server that answered, and whether it resumed a session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) server: usize,
    pub(crate) reused: bool,
    pub(crate) version: Version,
}

impl Seen {
    /// Reads the line of a terminator. Behind it a client may report whether it counts the session as resumed.
    pub(crate) fn read(line: &str) -> Seen {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let ["terminator", server, reused @ ("r" | "."), version, rest @ ..] = &words[..] else {
            panic!("no answer of a terminator: {line:?}");
        };
        let reused = *reused == "r";
        if let [client] = rest {
            assert_eq!(*client, reused.to_string(), "both sides agree: {line:?}");
        }
        let version = match *version {
            "TLSv1.2" => Version::Tls12,
            "TLSv1.3" => Version::Tls13,
            other => panic!("unexpected version {other}"),
        };
        Seen { server: server.parse().unwrap(), reused, version }
    }
}

/// Client with its own sessions.
pub(crate) trait SessionClient {
    /// Opens a connection, and offers the newest session.
    fn connect(&mut self) -> Seen;
}

/// `openssl s_client`: a process for each connection, with a file for the session.
pub(crate) struct OpenSsl {
    address: SocketAddr,
    version: Version,
    session: PathBuf,
    more: Vec<&'static str>,
}

impl OpenSsl {
    pub(crate) fn new(front: &Terminators, address: SocketAddr, version: Version, name: &str) -> OpenSsl {
        OpenSsl { address, version, session: front.folder.path(&format!("{name}.session")), more: Vec::new() }
    }

    /// With further options.
    pub(crate) fn with(mut self, more: &[&'static str]) -> OpenSsl {
        self.more.extend(more);
        self
    }

    /// Output of a process that sends this input.
    pub(crate) fn run(&self, input: &str) -> String {
        let mut command = Command::new("timeout");
        command.args(["20", "openssl", "s_client", "-ign_eof", "-connect", &self.address.to_string()]);
        command.args(["-servername", NAME]);
        command.arg(if self.version == Version::Tls12 { "-tls1_2" } else { "-tls1_3" });
        command.args(&self.more);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.arg("-sess_out").arg(&self.session);
        if self.session.exists() {
            command.arg("-sess_in").arg(&self.session);
        }
        let mut child = command.spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }
}

impl SessionClient for OpenSsl {
    fn connect(&mut self) -> Seen {
        let output = self.run(REQUEST);
        let answer = output.lines().find(|line| line.starts_with("terminator "));
        let seen = Seen::read(answer.unwrap_or_else(|| panic!("no answer: {output}")));
        assert_eq!(output.contains("\nReused, TLSv1."), seen.reused, "both sides agree: {output}");
        seen
    }
}

/// Process that opens a connection for each line of its standard input, and writes the server's line.
pub(crate) struct Driven {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Driven {
    fn start(command: &mut Command) -> Driven {
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = started.unwrap_or_else(|error| panic!("{:?}: {error}", command.get_program()));
        let output = BufReader::new(process.stdout.take().unwrap());
        Driven { process, output }
    }

    /// A client of Go's crypto/tls.
    pub(crate) fn go(front: &Terminators, address: SocketAddr, version: Version) -> Driven {
        let mut command = limited(&build_go(front));
        command.args([&address.to_string(), NAME, number(version)]);
        Driven::start(command.arg(front.folder.path("ca.pem")))
    }

    /// A client of Java's JSSE.
    pub(crate) fn java(front: &Terminators, address: SocketAddr, version: Version) -> Driven {
        let mut command = limited("java".as_ref());
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/session_clients/Client.java"));
        command.args([&address.ip().to_string(), &address.port().to_string(), number(version)]);
        Driven::start(command.arg(front.folder.path("ca.pem")))
    }
}

impl SessionClient for Driven {
    fn connect(&mut self) -> Seen {
        self.process.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        Seen::read(&line)
    }
}

impl Drop for Driven {
    /// Without input the process ends.
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// A process with a limit of time: it ends even if this process dies.
pub(crate) fn limited(program: &std::path::Path) -> Command {
    let mut command = Command::new("timeout");
    command.arg(CLIENT_S).arg(program);
    command
}

fn number(version: Version) -> &'static str {
    if version == Version::Tls12 { "1.2" } else { "1.3" }
}

/// Builds the client, which has no dependencies to download.
fn build_go(front: &Terminators) -> PathBuf {
    let program = front.folder.path("go-client");
    if !program.exists() {
        let mut command = Command::new("go");
        command.arg("build").arg("-o").arg(&program);
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/session_clients/client.go"));
        command.env("CGO_ENABLED", "0").env("GOPROXY", "off").env("GOTOOLCHAIN", "local").env("GOFLAGS", "");
        let built = command.output().unwrap_or_else(|error| panic!("go: {error}; try scripts/setup test"));
        assert!(built.status.success(), "go build: {}", String::from_utf8_lossy(&built.stderr));
    }
    program
}

/// One process of curl that opens so many connections.
pub(crate) fn curl(front: &Terminators, address: SocketAddr, version: Version, count: usize) -> Vec<Seen> {
    let port = address.port();
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "20", "--cacert"]);
    command.arg(front.folder.path("ca.pem"));
    command.args(["--resolve", &format!("{NAME}:{port}:{}", address.ip())]);
    command.args(["--tls-max", number(version), &format!("--tlsv{}", number(version))]);
    command.args(vec![format!("https://{NAME}:{port}/"); count]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(Seen::read).collect()
}
