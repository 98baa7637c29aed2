//! A Master in a process of its own, and Recorders that send chains of statements.

use evergate_evidence::checkpoint::SignedCheckpoint;
use evergate_evidence::merkle::{Hash, leaf_hash};
use evergate_evidence::note::VerifyingKey;
use evergate_evidence::proof::Receipt;
use evergate_evidence::statement::{Counters, Partition, Span, Statement};
use evergate_evidence::submission::{Hello, UNANSWERED_MAX};
use evergate_master::tiles::Tiles;
use evergate_submission::{ClientError, Connected, Identity, Trust, connect, id_text};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest wait for anything that must happen.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Folder of one test with a configuration; removed at the end.
pub(crate) struct Setup {
    pub(crate) folder: PathBuf,
    pub(crate) recorders: Vec<Identity>,
}

impl Setup {
    /// Trial set-up with Recorders that are enrolled.
    pub(crate) fn new(recorders: usize) -> Setup {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("evergate-master-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let mut setup = Setup { folder, recorders: Vec::new() };
        let made = setup.program(&["init", "--origin", "test.example/2026"]);
        assert!(made.status.success(), "{made:?}");
        let text = setup.read("master.toml").replace("0.0.0.0:7443", "127.0.0.1:0");
        std::fs::write(setup.config(), text).unwrap();
        for index in 0..recorders {
            let identity = identity();
            let id = id_text(&identity.id());
            setup.configure(&format!("\n[[recorder]]\nname = \"edge-{index}\"\nid = \"{id}\"\n"));
            setup.recorders.push(identity);
        }
        setup
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.folder.join("master.toml")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.join(name)).unwrap()
    }

    /// Appends to the configuration.
    pub(crate) fn configure(&self, more: &str) {
        std::fs::write(self.config(), self.read("master.toml") + more).unwrap();
    }

    /// Replaces a part of the configuration.
    pub(crate) fn reconfigure(&self, from: &str, to: &str) {
        let text = self.read("master.toml");
        assert!(text.contains(from), "{text}");
        std::fs::write(self.config(), text.replace(from, to)).unwrap();
    }

    /// Runs the program to its end.
    pub(crate) fn program(&self, arguments: &[&str]) -> Output {
        self.command().args(arguments).output().unwrap()
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evergate-master"));
        command.arg("--config").arg(self.config());
        command
    }

    /// Starts the Master.
    pub(crate) fn start(&self) -> Master {
        Master::start(self.command())
    }

    /// Message of a start that must fail with exit code 2.
    pub(crate) fn refused_start(&self) -> String {
        let mut command = self.command();
        command.stderr(Stdio::piped());
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        text
    }

    /// Newest checkpoint on disk.
    pub(crate) fn checkpoint(&self) -> SignedCheckpoint {
        SignedCheckpoint::parse(&std::fs::read(self.log().join("checkpoint")).unwrap()).unwrap()
    }

    /// Error unless the log on disk continues a checkpoint seen before.
    pub(crate) fn assert_continues(&self, seen: &SignedCheckpoint) {
        let (seen, now) = (seen.checkpoint(), self.checkpoint());
        assert!(seen.size <= now.checkpoint().size);
        let tiles = Tiles::new(&self.log());
        assert_eq!(tiles.root(seen.size), Some(seen.root), "size {}", seen.size);
        assert_eq!(tiles.root(now.checkpoint().size), Some(now.checkpoint().root));
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

pub(crate) fn identity() -> Identity {
    let (certificate, key) = Identity::generate("recorder").unwrap();
    Identity::parse(certificate.as_bytes(), key.as_bytes()).unwrap()
}

/// Running Master; killed when dropped.
pub(crate) struct Master {
    child: Child,
    pub(crate) address: String,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Master {
    pub(crate) fn start(mut command: Command) -> Master {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (written, errors) = (lines.clone(), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                written.lock().unwrap().push(line);
            }
        });
        let mut master = Master { child, address: String::new(), lines };
        let line = master.wait_line("listening on ");
        master.address = line.split_once("listening on ").unwrap().1.split_once(": ").unwrap().0.to_owned();
        master
    }

    /// Waits for a line that contains a text.
    pub(crate) fn wait_line(&mut self, text: &str) -> String {
        let begin = Instant::now();
        loop {
            if let Some(line) = self.lines.lock().unwrap().iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            let lines = self.lines.lock().unwrap().clone();
            assert!(begin.elapsed() < LIMIT, "no line with '{text}': {lines:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn wait_end(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begin.elapsed() < LIMIT, "the Master does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, then the exit code.
    pub(crate) fn stop(mut self) -> Option<i32> {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").arg(pid).status().unwrap().success());
        self.wait_end().code()
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Recorder with its chain: what it sent and what was acknowledged.
pub(crate) struct Recorder {
    pub(crate) identity: Identity,
    pub(crate) sent: Vec<Statement>,
    pub(crate) acknowledged: usize,
    pub(crate) newest: Option<SignedCheckpoint>,
    pub(crate) latencies: Vec<Duration>,
}

impl Recorder {
    pub(crate) fn new(identity: &Identity) -> Recorder {
        Recorder {
            identity: identity.clone(),
            sent: Vec::new(),
            acknowledged: 0,
            newest: None,
            latencies: Vec::new(),
        }
    }

    pub(crate) fn hello(&self) -> Hello {
        let origin = self.newest.as_ref().map(|seen| seen.checkpoint().origin.clone()).unwrap_or_default();
        Hello { last_batch: self.sent.len() as u64, acknowledged: self.acknowledged as u64, origin }
    }

    pub(crate) fn connect(&self, master: &Master, pin: &Trust) -> Result<Connected, ClientError> {
        connect(&master.address, &self.identity, pin, self.hello(), LIMIT)
    }

    /// [`Recorder::submit_to`] the address of a Master.
    pub(crate) fn submit(
        &mut self,
        master: &Master,
        pin: &Trust,
        count: usize,
        window: usize,
    ) -> Result<(), ClientError> {
        self.submit_to(&master.address, pin, count, window)
    }

    /// The next statement of the chain.
    pub(crate) fn next(&mut self) -> Statement {
        let statement = statement(self.identity.id(), self.sent.last());
        self.sent.push(statement.clone());
        statement
    }

    /// Connects, hands in what lacks receipts and `count` batches more; `window` of them unanswered at most. Every
    /// receipt must prove its statement. Ends at the first error, as when the Master is killed.
    pub(crate) fn submit_to(
        &mut self,
        address: &str,
        pin: &Trust,
        count: usize,
        window: usize,
    ) -> Result<(), ClientError> {
        assert!(window <= UNANSWERED_MAX);
        let Connected { welcome, sender, mut receiver, .. } =
            connect(address, &self.identity, pin, self.hello(), LIMIT)?;
        assert!(welcome.last_batch >= self.acknowledged as u64, "an acknowledged batch is lost");
        if let Some(last) = (welcome.last_batch as usize).checked_sub(1) {
            assert_eq!(welcome.last_hash, self.sent[last].link());
        }
        let log = VerifyingKey::parse(&welcome.vkey)?;
        let end = self.sent.len() + count;
        let mut times = Vec::new();
        let (begin, mut next) = (self.acknowledged, self.acknowledged);
        while self.acknowledged < end {
            while next < end && next - self.acknowledged < window {
                let statement = if next < self.sent.len() { self.sent[next].clone() } else { self.next() };
                times.push(Instant::now());
                sender.send_statement(&statement)?;
                next += 1;
            }
            let answer = receiver.receive(LIMIT)?.expect("no receipt in time");
            let place = self.acknowledged;
            assert_eq!(answer.number, place as u64 + 1);
            let (_, receipt) = answer.check_statement(&self.sent[place], &log)?;
            self.see(&receipt);
            self.latencies.push(times[place - begin].elapsed());
            self.acknowledged += 1;
        }
        sender.close();
        Ok(())
    }

    fn see(&mut self, receipt: &Receipt) {
        let seen = self.newest.as_ref().map_or(0, |seen| seen.checkpoint().size);
        assert!(receipt.checkpoint.checkpoint().size >= seen, "a smaller checkpoint");
        self.newest = Some(receipt.checkpoint.clone());
    }
}

pub(crate) fn statement(recorder: Hash, previous: Option<&Statement>) -> Statement {
    let batch = previous.map_or(1, |previous| previous.batch + 1);
    let first_seq = previous.map_or(1, |previous| previous.span.last_seq + 1);
    Statement {
        received_ms: 0,
        recorder,
        batch,
        span: Span { first_seq, last_seq: first_seq + 9, first_ns: batch, last_ns: batch + 5 },
        packets: 10,
        packet_bytes: 14_150,
        root: leaf_hash(&[&batch.to_be_bytes()]),
        previous: previous.map_or([0; 32], Statement::link),
        counters: Counters { seen: batch * 10, written: batch * 10, ..Counters::default() },
        partition: Partition::default(),
        emergency_ms: 0,
    }
}

/// Pin of the Master's certificate.
pub(crate) fn pin(setup: &Setup) -> Trust {
    let file = |name| setup.folder.join(name);
    Trust::Pinned(vec![Identity::load(&file("master.pem"), &file("master.key")).unwrap().id()])
}

/// Percentile of times.
pub(crate) fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

/// Runs a command that must work.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until a condition holds.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// File beside the tests.
pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/master").join(name)
}
