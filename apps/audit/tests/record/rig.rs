//! A cable between two namespaces, Recorders and a Master as processes, and what a store then has.

use evergate_audit::segment_file::SegmentFile;
use evergate_audit::store::Store;
use evergate_audit::verify::{VerifyArgs, report};
use evergate_capture::Interface;
use evergate_capture::generator::{Generator, Load, Sent};
use evergate_evidence::record::Body;
use evergate_evidence::verify::Report;
use evergate_netns::Namespace;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const SENDER: &str = "rec-tx";
/// Card that Recorders listen on.
pub(crate) const RECEIVER: &str = "rec-rx";
const LIMIT: Duration = Duration::from_secs(60);
/// Set in the process that is a Master: its configuration.
const MASTER_CONFIG: &str = "EVERGATE_TEST_MASTER";

/// Two namespaces, a cable on which nothing but the tests' frames travels, and a folder.
pub(crate) struct Rig {
    sender: Namespace,
    pub(crate) receiver: Namespace,
    pub(crate) folder: PathBuf,
}

/// A rig; `None` skips the test with a note. In CI it fails instead.
pub(crate) fn rig() -> Option<Rig> {
    rig_in(|_| ())
}

/// A rig whose folder is prepared first. The namespaces have the mounts that exist then.
pub(crate) fn rig_in(prepare: impl FnOnce(&Path)) -> Option<Rig> {
    let is_root =
        std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !is_root {
        assert!(std::env::var_os("CI").is_none(), "in CI no test is skipped, and this one needs root");
        let test = std::thread::current();
        eprintln!("skipped {}: it needs root", test.name().unwrap_or("a test"));
        return None;
    }
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("evergate-record-{}-{number}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    prepare(&folder);
    let (sender, receiver) = (Namespace::new().unwrap(), Namespace::new().unwrap());
    for namespace in [&sender, &receiver] {
        namespace.sysctl("net.ipv6.conf.default.disable_ipv6", "1").unwrap();
    }
    sender.connect(SENDER, "02:00:00:00:00:01", &receiver, RECEIVER).unwrap();
    for (namespace, card) in [(&sender, SENDER), (&receiver, RECEIVER)] {
        let arguments = format!("-K {card} gro off gso off tso off");
        let output = namespace
            .run(move || Command::new("ethtool").args(arguments.split_whitespace()).output().unwrap());
        assert!(output.status.success(), "{output:?}");
    }
    Some(Rig { sender, receiver, folder })
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

impl Rig {
    pub(crate) fn store(&self) -> PathBuf {
        self.folder.join("store")
    }

    /// Packets that the receiving card has received.
    pub(crate) fn received(&self) -> u64 {
        self.receiver.run(|| Interface::named(RECEIVER).unwrap().statistics().unwrap().rx_packets)
    }

    /// Sends a load in a thread.
    pub(crate) fn start(&self, load: Load) -> JoinHandle<Sent> {
        self.sender.spawn(move || Generator::open(SENDER).unwrap().run(&load).unwrap())
    }

    /// Starts a Recorder on the receiving card, and waits until it records.
    pub(crate) fn record(&self, more: &[&str]) -> Recorder {
        let mut recorder = self.start_record(more, &[]);
        recorder.wait_line("recording ");
        recorder
    }

    /// Starts a Recorder on the receiving card. Without `--reserve` it deletes no segment.
    pub(crate) fn start_record(&self, more: &[&str], environment: &[(&str, &str)]) -> Recorder {
        let mut arguments = vec!["record", "--interface", RECEIVER, "--json", "--store"];
        let store = self.store();
        let store = store.to_str().unwrap();
        arguments.push(store);
        arguments.extend(more);
        if !more.contains(&"--reserve") {
            arguments.extend(["--reserve", "0"]); // the disk of a test machine may be nearly full
        }
        self.spawn_with(&arguments, environment)
    }

    /// Starts the program in the receiver's namespace.
    pub(crate) fn spawn(&self, arguments: &[&str]) -> Recorder {
        self.spawn_with(arguments, &[])
    }

    /// Starts the program with variables of its environment.
    pub(crate) fn spawn_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Recorder {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evergate-audit"));
        command.args(arguments).envs(environment.iter().copied());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = self.receiver.run(move || command.spawn().unwrap());
        Recorder::new(child)
    }

    /// Starts a Master on the loopback of the receiver's namespace, for the Recorder of the rig's store.
    pub(crate) fn master(&self) -> Master {
        let folder = self.folder.join("master");
        if !folder.exists() {
            std::fs::create_dir_all(&folder).unwrap();
            let (certificate, key) = evergate_submission::Identity::generate("master").unwrap();
            std::fs::write(folder.join("master.pem"), certificate).unwrap();
            std::fs::write(folder.join("master.key"), key).unwrap();
            let (_, log_key) = evergate_crypto::LogKey::generate().unwrap();
            std::fs::write(folder.join("log.key"), log_key).unwrap();
            let id = self.run(0, &["identity", "--store", self.store().to_str().unwrap()]).0;
            let text = format!(
                "listen = \"127.0.0.1:7443\"\nlog = \"log\"\norigin = \"test/2026\"\n\
                 certificate = \"master.pem\"\nkey = \"master.key\"\n\
                 [signer]\nkind = \"file\"\nkey = \"log.key\"\n\
                 [[recorder]]\nname = \"r\"\nid = \"{}\"\n",
                id.trim()
            );
            std::fs::write(folder.join("master.toml"), text).unwrap();
        }
        let config = folder.join("master.toml");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["rig::master_process", "--exact", "--nocapture"]).env(MASTER_CONFIG, config);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let child = self.receiver.run(move || {
            // The namespace is new: its loopback is down.
            let _ = Command::new("ip").args(["link", "set", "lo", "up"]).status();
            command.spawn().unwrap()
        });
        let mut process = Recorder::new(child);
        process.wait_line("listening on ");
        let id = self.run(0, &["identity", "--certificate", folder.join("master.pem").to_str().unwrap()]).0;
        Master { process, id: id.trim().to_owned() }
    }

    /// Runs the program to its end, which must have this code; answers both outputs.
    pub(crate) fn run(&self, code: i32, arguments: &[&str]) -> (String, String) {
        let mut process = self.spawn(arguments);
        let status = process.wait();
        let (out, err) = process.outputs();
        assert_eq!(status, Some(code), "{arguments:?}\n{out}\n{err}");
        (out, err)
    }

    /// Verifies the store with the key of the first contact.
    pub(crate) fn verify(&self) -> Report {
        let key = std::fs::read_to_string(self.store().join("recorder.vkey")).unwrap();
        let trust = self.folder.join("trust.json");
        std::fs::write(&trust, format!("{{\"logs\":[\"{}\"]}}", key.trim_end())).unwrap();
        let args = VerifyArgs {
            folder: self.store(),
            trust,
            expect_checkpoint: None,
            timestamps: None,
            memory: 64,
            threads: 1,
            json: false,
        };
        report(&args).unwrap_or_else(|failure| panic!("{}", failure.message))
    }

    /// Waits until the Master has every entry of the outbox.
    pub(crate) fn wait_outbox(&self) {
        let (outbox, begin) = (self.store().join("outbox"), Instant::now());
        let is_waiting = || {
            let entries = std::fs::read_dir(&outbox).into_iter().flatten().flatten();
            entries.into_iter().any(|entry| entry.file_name().to_string_lossy().ends_with(".entry"))
        };
        while is_waiting() {
            assert!(begin.elapsed() < LIMIT, "entries wait for the Master");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Replaces a text in the configuration of the next Master.
    pub(crate) fn reconfigure_master(&self, from: &str, to: &str) {
        let path = self.folder.join("master/master.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(&path, text.replace(from, to)).unwrap();
    }

    pub(crate) fn content(&self) -> Content {
        Content::read(&self.store())
    }
}

/// Runs as a Master when the environment asks for it; as a test it does nothing.
#[test]
fn master_process() {
    let Some(config) = std::env::var_os(MASTER_CONFIG) else { return };
    let config = evergate_master::config::Config::load(Path::new(&config))
        .unwrap_or_else(|problems| panic!("{problems:?}"));
    let ended = evergate_master::run::run(&config, Duration::ZERO);
    std::process::exit(i32::from(ended.is_err()));
}

/// A process, killed when dropped.
pub(crate) struct Recorder {
    child: Child,
    lines: std::sync::Arc<std::sync::Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Recorder {
    fn new(mut child: Child) -> Recorder {
        let lines = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let (written, errors) = (lines.clone(), child.stderr.take().unwrap());
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                written.lock().unwrap().push(line);
            }
        });
        Recorder { child, lines, reader: Some(reader) }
    }

    /// Waits for a line of standard error.
    pub(crate) fn wait_line(&mut self, text: &str) -> String {
        let begin = Instant::now();
        loop {
            if let Some(line) = self.lines.lock().unwrap().iter().find(|line| line.contains(text)) {
                return line.clone();
            }
            let lines = self.lines.lock().unwrap().clone();
            assert!(
                begin.elapsed() < LIMIT && self.child.try_wait().unwrap().is_none(),
                "no {text:?}: {lines:#?}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    pub(crate) fn wait(&mut self) -> Option<i32> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(begin.elapsed() < LIMIT, "the process does not end: {:#?}", self.lines.lock().unwrap());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Standard output and standard error of a process that has ended.
    pub(crate) fn outputs(&mut self) -> (String, String) {
        let mut out = String::new();
        if let Some(mut pipe) = self.child.stdout.take() {
            pipe.read_to_string(&mut out).unwrap();
        }
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        (out, self.lines.lock().unwrap().join("\n"))
    }

    /// Stops the Recorder; answers its report.
    pub(crate) fn stop(mut self) -> serde_json::Value {
        self.signal("-TERM");
        let code = self.wait();
        let (out, err) = self.outputs();
        assert_eq!(code, Some(0), "{out}\n{err}");
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}\n{err}"))
    }

    /// kill -9.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("lines of the process: {:#?}", self.lines.lock().unwrap());
        }
    }
}

/// A Master, and the id of its certificate.
pub(crate) struct Master {
    pub(crate) process: Recorder,
    pub(crate) id: String,
}

impl Master {
    pub(crate) fn options(&self) -> [&str; 4] {
        ["--master", "127.0.0.1", "--master-id", &self.id]
    }
}

/// What the segments of a store have.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) records: u64,
    pub(crate) packets: u64,
    /// Packets declared lost, by the name of the reason.
    pub(crate) lost: HashMap<&'static str, u64>,
}

impl Content {
    /// Reads every segment; numbers of records must have no hole, and those of a connection's packets neither.
    fn read(store: &Path) -> Content {
        let mut content = Content::default();
        let mut last = HashMap::new();
        for segment in Store::at(store).segments().unwrap() {
            let mut file = SegmentFile::open(&segment.path).unwrap();
            while let Some(located) =
                file.read().unwrap_or_else(|error| panic!("{}: {error}", segment.path.display()))
            {
                content.records += 1;
                assert_eq!(located.record.seq, content.records);
                match &located.record.body {
                    Body::Packet(packet) => {
                        content.packets += 1;
                        if packet.connection > 0 {
                            let before = last.insert(packet.connection, packet.packet_seq).unwrap_or(0);
                            assert_eq!(packet.packet_seq, before + 1);
                        }
                    }
                    Body::Gap(gap) => *content.lost.entry(gap.reason.name()).or_default() += gap.count,
                    _ => {}
                }
            }
            assert!(file.has_ended(), "{}", segment.path.display());
        }
        content
    }

    pub(crate) fn lost(&self, reason: &str) -> u64 {
        self.lost.get(reason).copied().unwrap_or(0)
    }
}

/// A file of this content in the rig's folder.
pub(crate) fn write(path: &Path, content: &[u8]) {
    use std::io::Write;
    File::create(path).unwrap().write_all(content).unwrap();
}
