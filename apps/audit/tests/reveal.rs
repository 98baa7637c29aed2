//! Disclosure end to end: people, Revealer, Master, recipient, with keys in files and in SoftHSM2.

mod support;

use evergate_crypto::{EvidenceVerifier, LogKey};
use evergate_evidence::connection_record::{ConnectionRecord, Counts, Endpoints, TlsHellos};
use evergate_evidence::disclosure::{DestroyOrder, Grant, Member, OutcomeKind, Policy, Role, Scope};
use evergate_evidence::entry::{Entry, Event};
use evergate_evidence::envelope::{Aad, EPOCH_NS};
use evergate_evidence::epochs::{EpochFile, EpochKeys};
use evergate_evidence::merkle::sha256;
use evergate_evidence::note::VerifyingKey;
use evergate_evidence::proof::Receipt;
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
use support::{Folder, StoreWriter};

const MODULE: &str = "/usr/lib/softhsm/libsofthsm2.so";
const MASTER_CONFIG: &str = "EVERGATE_TEST_MASTER_CONFIG";
const LIMIT: Duration = Duration::from_secs(60);
const PEOPLE: [(&str, Role); 4] =
    [("alice", Role::Both), ("bob", Role::Approver), ("carol", Role::Approver), ("dave", Role::Requester)];

/// Runs as a Master when the environment asks for it; as a test it does nothing.
#[test]
fn master_process() {
    let Some(config) = std::env::var_os(MASTER_CONFIG) else { return };
    let config = evergate_master::config::Config::load(Path::new(&config))
        .unwrap_or_else(|problems| panic!("{problems:?}"));
    let ended = evergate_master::run::run(&config, Duration::ZERO);
    std::process::exit(i32::from(ended.is_err()));
}

/// A process that is killed when dropped.
struct Process(Child);

impl Process {
    /// Starts a process and waits for a line on standard error; answers what follows `mark` in it.
    fn start(command: &mut Command, mark: &str) -> (Process, String) {
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

struct Rig {
    folder: Folder,
    is_hsm: bool,
    master: Option<Process>,
    address: String,
}

fn epoch() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 3600
}

impl Rig {
    /// A Master with a policy, and the state of its Revealer.
    fn new(name: &str, is_hsm: bool) -> Rig {
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

    fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    fn id(&self, place: &str) -> [u8; 32] {
        let file = |end| self.path(&format!("{place}.{end}"));
        Identity::load(&file("pem"), &file("key")).unwrap().id()
    }

    fn start_master(&mut self) {
        self.master = None;
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["master_process", "--exact", "--nocapture"]);
        command.env(MASTER_CONFIG, self.path("master/master.toml"));
        command.env("SOFTHSM2_CONF", self.path("softhsm2.conf"));
        let (master, line) = Process::start(&mut command, "listening on ");
        self.address = line.split_once(": ").unwrap().0.to_owned();
        self.master = Some(master);
    }

    fn make_policy(&self) {
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
            per_day: 20,
            days: 7,
            scope: Scope::Connection,
            with_credentials: false,
            members,
        };
        std::fs::write(self.path("policy"), policy.to_text()).unwrap();
        self.approve("bob", "policy");
        self.approve("carol", "policy");
    }

    fn make_tokens(&self) {
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

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evergate-audit"));
        command.args(arguments).env("SOFTHSM2_CONF", self.path("softhsm2.conf"));
        command
    }

    /// Output of the program, which must succeed.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn approve(&self, person: &str, file: &str) -> String {
        let key = self.path(&format!("{person}.key"));
        let file = self.path(file);
        let key = key.to_str().unwrap();
        self.run(&["reveal", "approve", "--key", key, "--name", person, file.to_str().unwrap()])
    }

    /// A command of the Revealer with its options.
    fn revealer(&self, command: &str, more: &[&str]) -> Command {
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

    fn announce(&self) -> EpochKeys {
        let output = self.revealer("announce", &["--hours", "2"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let file = std::fs::read(self.path("master/log/epochs")).unwrap();
        let key = std::fs::read_to_string(self.path("state/log.vkey")).unwrap();
        let key = VerifyingKey::parse(key.trim()).unwrap();
        let file = EpochFile::open(&file, &key, &EvidenceVerifier).unwrap();
        file.keys().iter().find(|keys| keys.epoch + 1 >= epoch()).unwrap().clone()
    }

    /// Request of alice about a connection; answers its file.
    fn request(&self, connection: u64, recipient: &RecipientKey, name: &str, approvers: &[&str]) -> String {
        let recipient = evergate_evidence::base64::encode(&recipient.public());
        let (key, out, store) = (self.path("alice.key"), self.path(name), self.path("store"));
        let number = connection.to_string();
        let text = self.run(&[
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
        assert!(text.contains("reason fraud report\n"), "{text}");
        approvers.iter().for_each(|person| drop(self.approve(person, name)));
        name.to_owned()
    }

    fn reveal(&self, request: &str, abort: Option<&str>) -> Output {
        let (file, out, store) = (self.path(request), self.path("grant"), self.path("store"));
        let mut command = self.revealer(
            "run",
            &[
                "--request",
                file.to_str().unwrap(),
                "--out",
                out.to_str().unwrap(),
                "--store",
                store.to_str().unwrap(),
            ],
        );
        if let Some(step) = abort {
            command.env("EVERGATE_TEST_ABORT", step);
        }
        command.output().unwrap()
    }

    fn granted(&self, request: &str) -> Vec<u8> {
        let output = self.reveal(request, None);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read(self.path("grant")).unwrap()
    }

    fn refused(&self, request: &str) -> String {
        let _ = std::fs::remove_file(self.path("grant"));
        let output = self.reveal(request, None);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(!self.path("grant").exists());
        String::from_utf8(output.stderr).unwrap()
    }

    /// Entries of disclosure in the log.
    fn entries(&self) -> Vec<Event> {
        let log = self.path("master/log");
        let begin = Instant::now();
        let (tile, bytes) = loop {
            let checkpoint = std::fs::read(log.join("checkpoint")).unwrap();
            let checkpoint = evergate_evidence::checkpoint::SignedCheckpoint::parse(&checkpoint).unwrap();
            match Tiles::new(&log).read_entries(0, checkpoint.checkpoint().size) {
                Ok(found) => break found,
                Err(error) => assert!(begin.elapsed() < LIMIT, "{error}"),
            }
        };
        let entries = bundle_entries(&bytes, tile.width).unwrap().into_iter();
        entries
            .filter_map(|bytes| match Entry::decode(bytes).unwrap() {
                Entry::Event(_, event) => Some(event),
                Entry::Statement(_) => None,
            })
            .collect()
    }

    fn requests(&self) -> usize {
        self.entries().iter().filter(|event| matches!(event, Event::DisclosureRequest(_))).count()
    }
}

fn secrets(byte: u8) -> SecretList {
    let mut list = SecretList::default();
    Label::ALL[1..].iter().for_each(|label| list.set(*label, &[byte; 48]).unwrap());
    list
}

fn record(connection: u64) -> ConnectionRecord {
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

fn sealed(context: &mut SealContext, record: &ConnectionRecord, secrets: &SecretList) -> Vec<u8> {
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
fn build_store(rig: &Rig, keys: &EpochKeys) {
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

fn whole_path(name: &str, is_hsm: bool) {
    let mut rig = Rig::new(name, is_hsm);
    let keys = rig.announce();
    build_store(&rig, &keys);
    let recipient = RecipientKey::generate().unwrap();
    let file = rig.request(1, &recipient, "request", &["bob", "carol"]);
    let bytes = rig.granted(&file);
    let grant = Grant::decode(&bytes).unwrap();
    assert_eq!(recipient.open(&grant), Ok(secrets(0xa1)));
    assert!(RecipientKey::generate().unwrap().open(&grant).is_err());
    let key = std::fs::read_to_string(rig.path("state/log.vkey")).unwrap();
    let key = VerifyingKey::parse(key.trim()).unwrap();
    let receipt = Receipt::parse(&grant.proof).unwrap();
    receipt.verify(&grant.leaf(), &key, &[], &EvidenceVerifier).unwrap();
    assert_eq!(receipt.index, grant.index);
    // The same request gives the same grant, byte for byte, also from a Master that started again.
    assert_eq!(rig.granted(&file), bytes);
    rig.start_master();
    assert_eq!(rig.granted(&file), bytes);
    let outcomes: Vec<(OutcomeKind, [u8; 32])> = rig
        .entries()
        .into_iter()
        .filter_map(|event| match event {
            Event::DisclosureDone(outcome) => Some((outcome.kind, outcome.grant)),
            _ => None,
        })
        .collect();
    // Both bogus envelopes, then the grant, once.
    let failed = (OutcomeKind::Failed, [0; 32]);
    assert_eq!(outcomes, [failed, failed, (OutcomeKind::Granted, sha256(&bytes))]);
    assert_eq!(rig.requests(), 1);
    no_secret_in(&rig);
    // Destroyed: refused, and the grant of the journal stays.
    let file = rig.request(2, &recipient, "late", &["bob", "carol"]);
    let number = keys.epoch.to_string();
    let output = rig.revealer("destroy", &["--epoch", &number]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(rig.refused(&file).contains("destroyed"));
    assert_eq!(rig.granted("request"), bytes);
    assert!(rig.entries().contains(&Event::EpochDestroyed(keys.destroyed())));
}

/// No secret of a session, raw, hexadecimal or in base64, is in any file of the rig but its recipient's grant, where it
/// is sealed.
fn no_secret_in(rig: &Rig) {
    let mut needles = Vec::new();
    for byte in [0xa1_u8, 0xa2, 0xa3, 0x66, 0x67] {
        let raw = vec![byte; 24];
        needles.push(evergate_evidence::base64::encode(&raw).into_bytes());
        needles.push(raw.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into_bytes());
        needles.push(raw);
    }
    let mut folders = vec![rig.folder.0.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let content = std::fs::read(&path).unwrap();
            let found = needles.iter().any(|needle| content.windows(needle.len()).any(|part| part == needle));
            assert!(!found, "{}", path.display());
        }
    }
}

#[test]
fn one_session_is_disclosed_with_keys_in_files() {
    whole_path("files", false);
}

#[test]
fn one_session_is_disclosed_with_keys_in_an_hsm() {
    if !Path::new(MODULE).exists() {
        assert!(std::env::var_os("CI").is_none(), "{MODULE} is missing");
        eprintln!("skipped: {MODULE} is missing");
        return;
    }
    whole_path("hsm", true);
}

#[test]
fn kill_at_each_durable_step_keeps_the_order() {
    let rig = Rig::new("kill", false);
    let keys = rig.announce();
    build_store(&rig, &keys);
    let recipient = RecipientKey::generate().unwrap();
    for (number, step) in
        ["opened", "checkpoint_stored", "grant_stored", "handed_out", "reported"].into_iter().enumerate()
    {
        let file = rig.request(2, &recipient, &format!("request-{step}"), &["bob", "carol"]);
        let _ = std::fs::remove_file(rig.path("grant"));
        let output = rig.reveal(&file, Some(step));
        assert!(!output.status.success(), "{step}: not reached");
        assert_eq!(rig.requests(), number + 1, "{step}");
        let before = std::fs::read(rig.path("grant")).ok();
        assert_eq!(before.is_some(), matches!(step, "handed_out" | "reported"), "{step}");
        let journal = rig.path("state/grants");
        let stored = std::fs::read_dir(journal).unwrap().count();
        assert_eq!(stored, number + usize::from(number > 1), "{step}");
        let bytes = rig.granted(&file);
        assert!(before.is_none_or(|before| before == bytes), "{step}");
        assert_eq!(rig.granted(&file), bytes);
        assert_eq!(rig.requests(), number + 1, "{step}");
        assert_eq!(recipient.open(&Grant::decode(&bytes).unwrap()), Ok(secrets(0xa2)));
    }
    let number = keys.epoch.to_string();
    let mut command = rig.revealer("destroy", &["--epoch", &number]);
    assert!(!command.env("EVERGATE_TEST_ABORT", "master_destroyed").status().unwrap().success());
    assert!(rig.revealer("destroy", &["--epoch", &number]).output().unwrap().status.success());
    let inner = std::fs::read_to_string(rig.path("inner")).unwrap();
    assert!(!inner.contains(&format!("{number} ")), "the inner key is still here");
}

#[test]
fn refused_requests_disclose_nothing_and_are_logged() {
    let rig = Rig::new("refused", false);
    let keys = rig.announce();
    build_store(&rig, &keys);
    let recipient = RecipientKey::generate().unwrap();
    let few = rig.request(1, &recipient, "few", &["bob"]);
    assert!(rig.refused(&few).contains("too_few"));
    let by_requester = rig.request(1, &recipient, "requester", &["bob", "dave"]);
    assert!(rig.refused(&by_requester).contains("not_approver"));
    let good = rig.request(1, &recipient, "good", &["bob", "carol"]);
    let text = std::fs::read_to_string(rig.path("good")).unwrap();
    std::fs::write(rig.path("changed"), text.replace("connection 1", "connection 2")).unwrap();
    assert!(rig.refused("changed").contains("wrong_signature"));
    std::fs::write(rig.path("garbage"), "no request").unwrap();
    assert!(rig.refused("garbage").contains("malformed"));
    let refused = || rig.entries().iter().filter(|event| matches!(event, Event::DisclosureDone(_))).count();
    let begin = Instant::now();
    while refused() < 4 {
        // A refusal is answered when it is durable; the checkpoint follows.
        assert!(begin.elapsed() < LIMIT, "{} refusals", refused());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((refused(), rig.requests()), (4, 0));
    rig.granted(&good);
    // A Master with another log: nothing is disclosed.
    let other = rig.request(2, &recipient, "other", &["bob", "carol"]);
    let key = VerifyingKey::new("test/2026", LogKey::generate().unwrap().0.public_key()).unwrap();
    std::fs::write(rig.path("state/log.vkey"), key.to_vkey()).unwrap();
    let _ = std::fs::remove_file(rig.path("grant"));
    let output = rig.reveal(&other, None);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("pinned is"));
    assert!(!rig.path("grant").exists());
}

#[test]
fn server_on_a_socket_announces_and_answers() {
    let rig = Rig::new("serve", false);
    let keys = rig.announce();
    build_store(&rig, &keys);
    let recipient = RecipientKey::generate().unwrap();
    let few = rig.request(3, &recipient, "few", &["bob"]);
    let good = rig.request(3, &recipient, "good", &["bob", "carol"]);
    let (socket, store) = (rig.path("socket"), rig.path("store"));
    let more = ["--socket", socket.to_str().unwrap(), "--store", store.to_str().unwrap()];
    let (_server, _) = Process::start(&mut rig.revealer("serve", &more), "serving on ");
    let ask = |file: &str| {
        let note = std::fs::read(rig.path(file)).unwrap();
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(&(note.len() as u32).to_be_bytes()).unwrap();
        stream.write_all(&note).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let body = answer.split_off(5);
        assert_eq!(answer[1..], (body.len() as u32).to_be_bytes());
        (answer[0], body)
    };
    let (kind, text) = ask(&few);
    assert!(kind == 1 && String::from_utf8(text).unwrap().contains("too_few"));
    let (kind, bytes) = ask(&good);
    assert_eq!(kind, 0);
    assert_eq!(recipient.open(&Grant::decode(&bytes).unwrap()), Ok(secrets(0xa3)));
    assert_eq!(ask(&good), (0, bytes));
    let announced = rig.entries().iter().filter(|event| matches!(event, Event::EpochKeys(_))).count();
    assert!(announced >= 26, "{announced}");
}

#[test]
fn order_of_approvers_is_signed_by_the_program() {
    let rig = Rig::new("order", false);
    let keys = rig.announce();
    let now_s = epoch() * 3600;
    let order = DestroyOrder {
        epoch: keys.epoch,
        reason: "court order".into(),
        created_s: now_s,
        expires_s: now_s + 7 * 86_400,
    };
    std::fs::write(rig.path("order"), order.to_text()).unwrap();
    rig.approve("bob", "order");
    rig.approve("carol", "order");
    let (number, file) = (keys.epoch.to_string(), rig.path("order"));
    let output =
        rig.revealer("destroy", &["--epoch", &number, "--order", file.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn sessions_of_a_key_log_are_sealed_and_disclosed() {
    let rig = Rig::new("keylog", false);
    let keys = rig.announce();
    let mut writer = StoreWriter::new(&rig.path("store"), 1);
    for number in 1..=2 {
        let first_ns = keys.epoch * EPOCH_NS + 9;
        let counts = Counts { first_ns, last_ns: first_ns, ..Counts::default() };
        writer.push(Body::Connection(Box::new(ConnectionRecord { counts, ..record(number) })));
    }
    writer.finish();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let lines = |number: u64, secrets: &SecretList| {
        let random = hex(&record(number).tls.client_random);
        let line =
            |(label, secret): (Label, &[u8])| format!("{} {random} {}\n", label.key_log_name(), hex(secret));
        secrets.iter().map(line).collect::<String>()
            + &format!("EXPORTER_SECRET {random} {}\n", hex(&[1; 48]))
    };
    let keylog = rig.path("keylog");
    let text = format!("# a comment\n{}{}", lines(1, &secrets(0xb1)), lines(3, &secrets(0xb3)));
    std::fs::write(&keylog, &text).unwrap();
    let key = std::fs::read_to_string(rig.path("state/log.vkey")).unwrap();
    let (epochs, store, out) = (rig.path("master/log/epochs"), rig.path("store"), rig.path("envelopes"));
    let arguments = [
        "seal",
        "--keylog",
        keylog.to_str().unwrap(),
        "--epochs",
        epochs.to_str().unwrap(),
        "--log-key",
        key.trim(),
        "--store",
        store.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
        "--erase",
    ];
    // One connection is not recorded yet: the file stays.
    let output = rig.command(&arguments).output().unwrap();
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(1), &b"1 sealed, 1 left\n"[..]),
        "{output:?}"
    );
    assert_eq!(std::fs::read_to_string(&keylog).unwrap(), text);
    std::fs::write(&keylog, lines(1, &secrets(0xb1))).unwrap();
    assert_eq!(rig.run(&arguments), "1 sealed, 0 left\n");
    assert_eq!(std::fs::read(&keylog).unwrap(), b"");
    let recipient = RecipientKey::generate().unwrap();
    let public = evergate_evidence::base64::encode(&recipient.public());
    let (alice, file, grant) = (rig.path("alice.key"), rig.path("request"), rig.path("grant"));
    let envelopes = ["--envelopes", out.to_str().unwrap(), "--store", store.to_str().unwrap()];
    let mut request = rig.command(&["reveal", "request", "--connection", "1", "--recipient", &public]);
    request.args(["--reason", "fraud", "--key", alice.to_str().unwrap(), "--name", "alice"]);
    assert!(request.args(["--out", file.to_str().unwrap()]).args(envelopes).status().unwrap().success());
    rig.approve("bob", "request");
    rig.approve("carol", "request");
    let options = ["--request", file.to_str().unwrap(), "--out", grant.to_str().unwrap()];
    let output = rig.revealer("run", &options).args(envelopes).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // The recipient verifies and opens it.
    let (trust, recipient_key, opened) = (rig.path("trust.json"), rig.path("player.key"), rig.path("opened"));
    std::fs::write(&trust, format!("{{\"logs\":[\"{}\"]}}", key.trim())).unwrap();
    std::fs::write(&recipient_key, recipient.to_text().unwrap().as_bytes()).unwrap();
    let arguments = [
        "reveal",
        "open",
        "--grant",
        grant.to_str().unwrap(),
        "--key",
        recipient_key.to_str().unwrap(),
        "--trust",
        trust.to_str().unwrap(),
        "--keylog",
        opened.to_str().unwrap(),
    ];
    let text = rig.run(&arguments);
    assert!(text.contains("\"requester\":\"alice\"") && text.contains("\"sni\":\"shop.test\""), "{text}");
    let expected: String = lines(1, &secrets(0xb1)).lines().take(4).map(|line| format!("{line}\n")).collect();
    assert_eq!(std::fs::read_to_string(&opened).unwrap(), expected);
    std::fs::remove_file(&opened).unwrap();
    // A forged proof: another log's key.
    let other = VerifyingKey::new("test/2026", LogKey::generate().unwrap().0.public_key()).unwrap();
    std::fs::write(&trust, format!("{{\"logs\":[\"{}\"]}}", other.to_vkey())).unwrap();
    let output = rig.command(&arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!opened.exists());
}

/// A capture whose packets are as if they came now: keys of past epochs are never published.
fn capture_of_now(capture: &[u8]) -> Vec<u8> {
    let mut bytes = capture.to_vec();
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert!(matches!(word(&bytes, 0), 0xa1b2_c3d4 | 0xa1b2_3c4d), "a little-endian pcap file");
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as u32;
    let shift = now_s - word(&bytes, 24);
    let mut at = 24;
    while at < bytes.len() {
        let time_s = word(&bytes, at) + shift;
        bytes[at..at + 4].copy_from_slice(&time_s.to_le_bytes());
        at += 16 + word(&bytes, at + 8) as usize;
    }
    bytes
}

/// Recorded packets decide: secrets that open none of them are not disclosed, whatever the envelope states.
#[test]
fn secrets_that_open_no_packet_are_not_disclosed() {
    let rig = Rig::new("packets", false);
    rig.announce();
    let (capture, store) = (rig.path("capture.pcap"), rig.path("store"));
    let bytes = include_bytes!("../../../proto/player/tests/fixture/tls13.pcap");
    std::fs::write(&capture, capture_of_now(bytes)).unwrap();
    rig.run(&["record", "--read", capture.to_str().unwrap(), "--store", store.to_str().unwrap()]);
    let text = include_str!("../../../proto/player/tests/fixture/keys.txt");
    let log = evergate_player::key_log::KeyLog::parse(text.as_bytes()).unwrap();
    let found = rig.run(&["find", store.to_str().unwrap(), "--json"]);
    let connections: Vec<serde_json::Value> =
        found.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let randoms: Vec<[u8; 32]> = connections
        .iter()
        .map(|found| evergate_evidence::deletion::unhex(found["client_random"].as_str().unwrap()).unwrap())
        .collect();
    let real = log.get(&randoms[0]).unwrap();
    let mut other = SecretList::default();
    for (label, secret) in real.iter() {
        other.set(label, &secret.iter().map(|byte| byte ^ 1).collect::<Vec<u8>>()).unwrap();
    }
    let [wrong, good] =
        [&other, real].map(|secrets| evergate_player::key_log::lines_of(&randoms[0], secrets));
    let key = std::fs::read_to_string(rig.path("state/log.vkey")).unwrap();
    let (epochs, keylog, out) = (rig.path("master/log/epochs"), rig.path("keylog"), rig.path("envelopes"));
    let recipient = RecipientKey::generate().unwrap();
    let number = connections[0]["connection"].to_string();
    let public = evergate_evidence::base64::encode(&recipient.public());
    for (lines, is_good) in [(&wrong, false), (&good, true)] {
        std::fs::write(&keylog, lines).unwrap();
        rig.run(&[
            "seal",
            "--keylog",
            keylog.to_str().unwrap(),
            "--epochs",
            epochs.to_str().unwrap(),
            "--log-key",
            key.trim(),
            "--store",
            store.to_str().unwrap(),
            "--out",
            out.to_str().unwrap(),
            "--erase",
        ]);
        let (alice, file, grant) = (rig.path("alice.key"), rig.path("request"), rig.path("grant"));
        let places = ["--envelopes", out.to_str().unwrap(), "--store", store.to_str().unwrap()];
        let mut request =
            rig.command(&["reveal", "request", "--connection", &number, "--recipient", &public]);
        request.args(["--reason", "fraud", "--key", alice.to_str().unwrap(), "--name", "alice"]);
        assert!(
            request.args(["--out", file.to_str().unwrap()]).args(places).output().unwrap().status.success()
        );
        rig.approve("bob", "request");
        rig.approve("carol", "request");
        let options = ["--request", file.to_str().unwrap(), "--out", grant.to_str().unwrap()];
        let output = rig.revealer("run", &options).args(places).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.success(), is_good, "{errors}");
        assert_eq!(grant.exists(), is_good);
        assert!(is_good || errors.contains("do not open the recorded packets"), "{errors}");
    }
    let grant = Grant::decode(&std::fs::read(rig.path("grant")).unwrap()).unwrap();
    assert_eq!(recipient.open(&grant).as_ref().ok(), log.get(&randoms[0]));
}
