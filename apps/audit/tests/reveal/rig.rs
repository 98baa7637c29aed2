//! A Master, the state of its Revealer, people with keys, and a store.

use crate::support::{Folder, StoreWriter};
use evergate_crypto::{EvidenceVerifier, LogKey};
use evergate_evidence::connection_record::{ConnectionRecord, Counts, Endpoints, TlsHellos};
use evergate_evidence::disclosure::{Member, Policy, Role, Scope};
use evergate_evidence::entry::{Entry, Event};
use evergate_evidence::envelope::{Aad, EPOCH_NS};
use evergate_evidence::epochs::{EpochFile, EpochKeys};
use evergate_evidence::note::VerifyingKey;
use evergate_evidence::record::Body;
use evergate_evidence::secrets::{Label, SecretList};
use evergate_evidence::tile::bundle_entries;
use evergate_master::tiles::Tiles;
use evergate_seal::{FileKeys, RecipientKey, SealContext};
use evergate_submission::{Identity, id_text};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) const MODULE: &str = "/usr/lib/softhsm/libsofthsm2.so";
pub(crate) const MASTER_CONFIG: &str = "EVERGATE_TEST_MASTER_CONFIG";
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const PEOPLE: [(&str, Role); 4] =
    [("alice", Role::Both), ("bob", Role::Approver), ("carol", Role::Approver), ("dave", Role::Requester)];

/// A process that is killed when dropped.
pub(crate) struct Process(Child);

impl Process {
    /// Starts a process and waits for a line on standard error; answers what follows `mark` in it.
    pub(crate) fn start(command: &mut Command, mark: &str) -> (Process, String) {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = loop {
            let line = lines.next().expect("the process ended").unwrap();
            if line.contains(mark) {
                break line;
            }
        };
        // A full pipe would block the process.
        std::thread::spawn(move || lines.for_each(drop));
        (Process(child), line.split_once(mark).unwrap().1.to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) struct Rig {
    pub(crate) folder: Folder,
    is_hsm: bool,
    master: Option<Process>,
    address: String,
}

pub(crate) fn epoch() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 3600
}

impl Rig {
    /// A Master with a policy, and the state of its Revealer.
    pub(crate) fn new(name: &str, is_hsm: bool) -> Rig {
        let folder = Folder::new(&format!("reveal-{name}"));
        let mut rig = Rig { folder, is_hsm, master: None, address: String::new() };
        let master = rig.path("master");
        std::fs::create_dir_all(&master).unwrap();
        std::fs::create_dir_all(rig.path("state")).unwrap();
        for (place, name) in [("master/master", "master"), ("state/revealer", "revealer")] {
            let (certificate, key) = Identity::generate(name).unwrap();
            std::fs::write(rig.path(&format!("{place}.pem")), certificate).unwrap();
            std::fs::write(rig.path(&format!("{place}.key")), key).unwrap();
        }
        std::fs::write(master.join("log.key"), LogKey::generate().unwrap().1).unwrap();
        rig.make_policy();
        rig.make_tokens();
        let escrow = match is_hsm {
            true => {
                format!("kind = \"pkcs11\"\nmodule = \"{MODULE}\"\ntoken = \"escrow\"\npin_file = \"../pin\"")
            }
            false => "kind = \"file\"\nkeys = \"escrow\"".to_owned(),
        };
        let config = format!(
            "listen = \"127.0.0.1:0\"\nlog = \"log\"\norigin = \"test/2026\"\npolicy = \"../policy\"\n\
             certificate = \"master.pem\"\nkey = \"master.key\"\n\
             [signer]\nkind = \"file\"\nkey = \"log.key\"\n[limits]\ndisclosure_ms = 0\n\
             [escrow]\n{escrow}\n[[revealer]]\nname = \"reveal-1\"\nid = \"{}\"\n",
            id_text(&rig.id("state/revealer"))
        );
        std::fs::write(master.join("master.toml"), config).unwrap();
        rig.start_master();
        rig
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    pub(crate) fn id(&self, place: &str) -> [u8; 32] {
        let file = |end| self.path(&format!("{place}.{end}"));
        Identity::load(&file("pem"), &file("key")).unwrap().id()
    }

    pub(crate) fn start_master(&mut self) {
        self.master = None;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["master_process", "--exact", "--nocapture"]);
        command.env(MASTER_CONFIG, self.path("master/master.toml"));
        command.env("SOFTHSM2_CONF", self.path("softhsm2.conf"));
        let (master, line) = Process::start(&mut command, "listening on ");
        self.address = line.split_once(": ").unwrap().0.to_owned();
        self.master = Some(master);
    }

    pub(crate) fn make_policy(&self) {
        let mut members = Vec::new();
        for (name, role) in PEOPLE {
            let out = self.path(&format!("{name}.key"));
            let made = self.run(&["reveal", "key", "person", "--name", name, "--out", out.to_str().unwrap()]);
            let key = VerifyingKey::parse(made.trim()).unwrap();
            members.push(Member { person: name.into(), role, key });
        }
        let policy = Policy {
            version: 1,
            threshold: 2,
            threshold_beyond: 0,
            per_day: 100_000,
            days: 7,
            scope: Scope::Connection,
            with_credentials: false,
            members,
        };
        std::fs::write(self.path("policy"), policy.to_text()).unwrap();
        self.approve("bob", "policy");
        self.approve("carol", "policy");
    }

    pub(crate) fn make_tokens(&self) {
        if !self.is_hsm {
            return;
        }
        let tokens = self.path("tokens");
        std::fs::create_dir_all(&tokens).unwrap();
        let conf = format!("directories.tokendir = {}\nlog.level = ERROR\n", tokens.display());
        std::fs::write(self.path("softhsm2.conf"), conf).unwrap();
        std::fs::write(self.path("pin"), "1234\n").unwrap();
        for token in ["escrow", "reveal"] {
            let made = Command::new("softhsm2-util")
                .env("SOFTHSM2_CONF", self.path("softhsm2.conf"))
                .args(["--init-token", "--free", "--label", token, "--pin", "1234", "--so-pin", "5678"])
                .output()
                .unwrap();
            assert!(made.status.success(), "{made:?}");
        }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evergate-audit"));
        command.args(arguments).env("SOFTHSM2_CONF", self.path("softhsm2.conf"));
        command
    }

    /// Output of the program, which must succeed.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn approve(&self, person: &str, file: &str) -> String {
        let key = self.path(&format!("{person}.key"));
        let file = self.path(file);
        let key = key.to_str().unwrap();
        self.run(&["reveal", "approve", "--key", key, "--name", person, file.to_str().unwrap()])
    }

    /// A command of the Revealer with its options.
    pub(crate) fn revealer(&self, command: &str, more: &[&str]) -> Command {
        let id = id_text(&self.id("master/master"));
        let path = |name: &str| self.path(name).to_str().unwrap().to_owned();
        let mut all: Vec<String> =
            ["reveal", command, "--master", &self.address, "--master-id", &id].map(str::to_owned).to_vec();
        all.extend(["--state".into(), path("state"), "--policy".into(), path("policy")]);
        match self.is_hsm {
            true => all.extend(
                ["--module", MODULE, "--token", "reveal", "--pin-file", &path("pin")].map(str::to_owned),
            ),
            false => all.extend(["--keys".into(), path("inner")]),
        }
        let mut command = self.command(&all.iter().map(String::as_str).collect::<Vec<&str>>());
        command.args(more);
        command
    }

    pub(crate) fn announce(&self) -> EpochKeys {
        let output = self.revealer("announce", &["--hours", "2"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let file = std::fs::read(self.path("master/log/epochs")).unwrap();
        let key = std::fs::read_to_string(self.path("state/log.vkey")).unwrap();
        let key = VerifyingKey::parse(key.trim()).unwrap();
        let file = EpochFile::open(&file, &key, &EvidenceVerifier).unwrap();
        file.keys().iter().find(|keys| keys.epoch + 1 >= epoch()).unwrap().clone()
    }

    /// Request of alice about a connection; answers its file.
    pub(crate) fn request(
        &self,
        connection: u64,
        recipient: &RecipientKey,
        name: &str,
        approvers: &[&str],
    ) -> String {
        let output = self.request_output(connection, recipient, name);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("reason fraud report\n"), "{text}");
        approvers.iter().for_each(|person| drop(self.approve(person, name)));
        name.to_owned()
    }

    /// Output of alice's request.
    pub(crate) fn request_output(&self, connection: u64, recipient: &RecipientKey, name: &str) -> Output {
        let recipient = evergate_evidence::base64::encode(&recipient.public());
        let (key, out, store) = (self.path("alice.key"), self.path(name), self.path("store"));
        let number = connection.to_string();
        let mut command = self.command(&[
            "reveal",
            "request",
            "--store",
            store.to_str().unwrap(),
            "--connection",
            &number,
            "--recipient",
            &recipient,
            "--reason",
            "fraud report",
            "--reference",
            "case-12",
            "--key",
            key.to_str().unwrap(),
            "--name",
            "alice",
            "--out",
            out.to_str().unwrap(),
        ]);
        command.output().unwrap()
    }

    /// `reveal run` of a request.
    pub(crate) fn reveal_command(&self, request: &str) -> Command {
        let (file, out, store) = (self.path(request), self.path("grant"), self.path("store"));
        let mut command = self.revealer("run", &[]);
        command.arg("--request").arg(file).arg("--out").arg(out).arg("--store").arg(store);
        command
    }

    pub(crate) fn reveal(&self, request: &str, abort: Option<&str>) -> Output {
        let mut command = self.reveal_command(request);
        if let Some(step) = abort {
            command.env("EVERGATE_TEST_ABORT", step);
        }
        command.output().unwrap()
    }

    /// Sends a request to the socket of `reveal serve`; answers the kind and the content.
    pub(crate) fn ask(&self, socket: &Path, request: &str) -> (u8, Vec<u8>) {
        let note = std::fs::read(self.path(request)).unwrap();
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.write_all(&(note.len() as u32).to_be_bytes()).unwrap();
        stream.write_all(&note).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let body = answer.split_off(5);
        assert_eq!(answer[1..], (body.len() as u32).to_be_bytes());
        (answer[0], body)
    }

    /// Output of `reveal run` with more options.
    fn reveal_with(&self, request: &str, more: &[&str]) -> Output {
        self.reveal_command(request).args(more).output().unwrap()
    }

    pub(crate) fn granted(&self, request: &str) -> Vec<u8> {
        self.granted_with(request, &[])
    }

    /// The same with more options.
    pub(crate) fn granted_with(&self, request: &str, more: &[&str]) -> Vec<u8> {
        let output = self.reveal_with(request, more);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read(self.path("grant")).unwrap()
    }

    pub(crate) fn refused(&self, request: &str) -> String {
        self.refused_with(request, &[], 1)
    }

    /// The same with more options and another exit code.
    pub(crate) fn refused_with(&self, request: &str, more: &[&str], code: i32) -> String {
        let _ = std::fs::remove_file(self.path("grant"));
        let output = self.reveal_with(request, more);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(!self.path("grant").exists());
        String::from_utf8(output.stderr).unwrap()
    }

    /// Events in the log.
    pub(crate) fn entries(&self) -> Vec<Event> {
        let log = self.path("master/log");
        let begin = Instant::now();
        let (mut entries, mut size, mut index) = (Vec::new(), 0, 0);
        while index == 0 || entries.len() < size {
            let checkpoint = std::fs::read(log.join("checkpoint")).unwrap();
            let checkpoint = evergate_evidence::checkpoint::SignedCheckpoint::parse(&checkpoint).unwrap();
            let found = checkpoint.checkpoint().size;
            match Tiles::new(&log).read_entries(index, found) {
                Ok((tile, bytes)) => {
                    let bundle = bundle_entries(&bytes, tile.width).unwrap().into_iter();
                    entries.extend(bundle.map(|bytes| Entry::decode(bytes).unwrap()));
                    (size, index) = (if index == 0 { found as usize } else { size }, index + 1);
                }
                Err(error) => assert!(begin.elapsed() < LIMIT, "{error}"),
            }
        }
        entries
            .into_iter()
            .filter_map(|entry| match entry {
                Entry::Event(_, event) => Some(event),
                Entry::Statement(_) => None,
            })
            .collect()
    }

    pub(crate) fn requests(&self) -> usize {
        self.entries().iter().filter(|event| matches!(event, Event::DisclosureRequest(_))).count()
    }
}

pub(crate) fn secrets(byte: u8) -> SecretList {
    let mut list = SecretList::default();
    Label::ALL[1..].iter().for_each(|label| list.set(*label, &[byte; 48]).unwrap());
    list
}

pub(crate) fn record(connection: u64) -> ConnectionRecord {
    let [client, server] =
        [format!("10.0.0.1:{}", 50_000 + connection), "10.0.0.2:443".into()].map(|end| end.parse().unwrap());
    ConnectionRecord {
        connection,
        is_final: true,
        endpoints: Endpoints { client, server, vlan: 0 },
        counts: Counts::default(),
        tls: TlsHellos {
            client_random: [connection as u8; 32],
            server_random: [0x80 | connection as u8; 32],
            version: 0x304,
            suite: 0x1302,
            sni: b"shop.test".to_vec(),
            alpn: Vec::new(),
        },
    }
}

pub(crate) fn sealed(context: &mut SealContext, record: &ConnectionRecord, secrets: &SecretList) -> Vec<u8> {
    let aad = Aad {
        switch: [9; 32],
        connection: record.connection,
        born_ns: context.epoch() * EPOCH_NS + 1,
        client: record.endpoints.client,
        local: record.endpoints.server,
        client_random: record.tls.client_random,
        server_random: record.tls.server_random,
        tls_version: record.tls.version,
        cipher_suite: record.tls.suite,
        feed_number: 1,
        sni: &record.tls.sni,
    };
    context.seal(&aad, secrets).unwrap()
}

/// Store with three connections. Before the envelope of the first one are two bogus ones: under other keys, and of
/// another server's address.
pub(crate) fn build_store(rig: &Rig, keys: &EpochKeys) {
    let mut writer = StoreWriter::new(&rig.path("store"), 1);
    let mut context = SealContext::new(keys).unwrap();
    let mut other = FileKeys::default();
    let key = other.create(keys.epoch).unwrap();
    let mut foreign =
        SealContext::new(&EpochKeys { epoch: keys.epoch, inner: key, outer: keys.outer }).unwrap();
    let first = record(1);
    let mut elsewhere = first.clone();
    elsewhere.endpoints.server = "10.9.9.9:443".parse().unwrap();
    let bogus =
        [sealed(&mut foreign, &first, &secrets(0x66)), sealed(&mut context, &elsewhere, &secrets(0x67))];
    bogus.iter().for_each(|bytes| writer.push(Body::Envelope(bytes.into())));
    for number in 1..=3 {
        let record = record(number);
        let envelope = sealed(&mut context, &record, &secrets(0xa0 | number as u8));
        writer.push(Body::Envelope((&envelope).into()));
        writer.push(Body::Connection(Box::new(record)));
    }
    writer.finish();
}
