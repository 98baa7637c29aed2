//! Audited capture from the client's hello to a third party, years later: three nodes, one of which dies in a session,
//! two Recorders that share the traffic, a Master, a Revealer. 400 days later one session is disclosed, and no other.
//!
//! The programs `evergate-audit` and `evergate-master` must be built: `cargo test --workspace` does it.

use crate::raw_connection::carrier;
use crate::sessions::serve;
use crate::support::{Folder, eventually};
use crate::traffic::{self, PATIENCE, Server, Transport, head};
use crate::world::{Node, World, privileged, settled};
use evergate_evidence::base64;
use rustls::client::Resumption;
use rustls::{ClientConfig, ClientConnection, HandshakeKind, KeyLog, StreamOwned};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

const MASTER: &str = "127.0.0.1:7443";
/// Time between record and disclosure.
const LATER: &str = "+400d";

/// A program beside the one under test.
fn program(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_evergate")).with_file_name(name);
    assert!(path.exists(), "{} is missing: cargo build -p {name}", path.display());
    path
}

/// A client's key log: lines of RFC 9850, and the secrets.
#[derive(Debug, Default)]
struct Secrets(Mutex<(String, BTreeSet<Vec<u8>>)>);

impl KeyLog for Secrets {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let mut log = self.0.lock().unwrap();
        let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        writeln!(log.0, "{label} {} {}", digits(client_random), digits(secret)).unwrap();
        log.1.insert(secret.to_vec());
    }
}

impl Secrets {
    fn client_random(&self) -> String {
        self.0.lock().unwrap().0.split(' ').nth(1).unwrap().to_owned()
    }
}

/// A process that ends with the test. It leads a process group, as `faketime` has the program as its child.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", self.0.id())]).status();
        }
        let _ = self.0.wait();
    }
}

impl Running {
    /// Ends it with SIGTERM.
    fn stop(mut self) {
        let pid = self.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert!(self.0.wait().unwrap().success());
    }

    /// Whether its memory has one of these byte strings.
    fn holds(&self, wanted: &Search) -> bool {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.0.id())).unwrap();
        let mut memory = File::open(format!("/proc/{}/mem", self.0.id())).unwrap();
        maps.lines().filter(|line| line.contains(" rw")).any(|line| {
            let (range, _) = line.split_once(' ').unwrap();
            let (from, to) = range.split_once('-').unwrap();
            let [from, to] = [from, to].map(|digits| u64::from_str_radix(digits, 16).unwrap());
            let mut bytes = vec![0; (to - from) as usize];
            memory.seek(SeekFrom::Start(from)).is_ok()
                && memory.read_exact(&mut bytes).is_ok()
                && wanted.is_in(&bytes)
        })
    }
}

/// Byte strings to search for. Memory is large, so the first two bytes of a place decide whether it is compared.
struct Search {
    wanted: Vec<Vec<u8>>,
    begins: Vec<bool>,
}

impl Search {
    fn new(wanted: Vec<Vec<u8>>) -> Search {
        let mut begins = vec![false; 1 << 16];
        wanted.iter().for_each(|wanted| begins[begin(wanted)] = true);
        Search { wanted, begins }
    }

    fn is_in(&self, bytes: &[u8]) -> bool {
        let found = |place: usize| self.wanted.iter().any(|wanted| bytes[place..].starts_with(wanted));
        (0..bytes.len().saturating_sub(1)).any(|place| self.begins[begin(&bytes[place..])] && found(place))
    }
}

fn begin(bytes: &[u8]) -> usize {
    usize::from(bytes[0]) << 8 | usize::from(bytes[1])
}

/// The site: a cluster, its Recorders, its Master and its Revealer. Everything but the nodes runs beside the client.
struct Site {
    world: World,
    nodes: Vec<Node>,
    recorders: Vec<Running>,
    master: Option<Running>,
    master_id: String,
    is_later: bool,
}

impl Site {
    fn path(&self, name: &str) -> String {
        self.world.folder.path(name).to_str().unwrap().to_owned()
    }

    fn command(&self, name: &str, arguments: &[&str]) -> Command {
        let program = program(name);
        let mut command = match self.is_later {
            false => Command::new(program),
            true => {
                let mut command = Command::new("faketime");
                command.args(["-f", LATER]).arg(program);
                command
            }
        };
        command.args(arguments).current_dir(self.world.folder.path(""));
        command
    }

    /// Runs a program of the site to its end.
    fn output(&self, name: &str, arguments: &[&str]) -> Output {
        let mut command = self.command(name, arguments);
        self.world.switch.run(move || command.output().unwrap())
    }

    /// Runs a command of `evergate-audit` that works.
    fn audit(&self, arguments: &[&str]) -> String {
        let output = self.output("evergate-audit", arguments);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{arguments:?}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    /// Starts a program whose messages go to a file, and waits for this text in it.
    fn start(&self, name: &str, log: &str, text: &str, arguments: &[&str]) -> Running {
        let path = self.world.folder.path(log);
        let file = File::create(&path).unwrap();
        let mut command = self.command(name, arguments);
        command.stdout(file.try_clone().unwrap()).stderr(file).stdin(Stdio::null()).process_group(0);
        let child = Running(self.world.switch.run(move || command.spawn().unwrap()));
        eventually(&format!("{name} starts"), || {
            std::fs::read_to_string(&path).ok().filter(|lines| lines.contains(text)).map(|_| ())
        });
        child
    }

    fn start_master(&mut self) {
        let running = self.start("evergate-master", "master.log", "listening", &["--config", "master.toml"]);
        self.master = Some(running);
    }

    /// Runs a command of the Revealer.
    fn reveal(&self, command: &str, arguments: &[&str]) -> Output {
        let own = [
            &["reveal", command, "--state", "reveal", "--policy", "policy", "--keys", "inner.keys"][..],
            &["--master", MASTER, "--master-id", &self.master_id],
        ];
        self.output("evergate-audit", &[&own.concat()[..], arguments].concat())
    }

    fn new() -> Site {
        let world = World::new(3);
        let mut site = Site {
            world,
            nodes: Vec::new(),
            recorders: Vec::new(),
            master: None,
            master_id: String::new(),
            is_later: false,
        };
        site.prepare_master();
        site.start_recorders();
        site.start_nodes();
        site
    }

    fn prepare_master(&mut self) {
        let init = self.output("evergate-master", &["--config", "master.toml", "init"]);
        assert!(init.status.success(), "{init:?}");
        self.master_id = self.audit(&["identity", "--certificate", "master.pem"]).trim().to_owned();
        let member = |person: &str, role: &str| {
            let key = format!("{person}.key");
            let vkey = self.audit(&["reveal", "key", "person", "--name", person, "--out", &key]);
            format!("member {person} {role} {vkey}")
        };
        let members = [member("alice", "requester"), member("bob", "approver"), member("carol", "approver")];
        let policy = "evergate-audit/policy@v1\nversion 1\nthreshold 2\nthreshold-beyond 0\nper-day 20\n\
                      days 7\nscope connection\ncredentials include\n";
        self.world.folder.write("policy", &(policy.to_owned() + &members.concat()));
        for person in ["bob", "carol"] {
            self.approve("policy", person);
        }
        std::fs::create_dir(self.path("reveal")).unwrap();
        // The Revealer makes its identity at its first start; the Master does not know it yet.
        assert!(!self.reveal("announce", &[]).status.success());
        let revealer = std::fs::read_dir(self.path("reveal")).unwrap().flatten();
        let certificate =
            revealer.map(|entry| entry.path()).find(|path| path.extension() == Some("pem".as_ref()));
        let id_of =
            |certificate: &str| self.audit(&["identity", "--certificate", certificate]).trim().to_owned();
        let revealer = id_of(certificate.unwrap().to_str().unwrap());
        let text = std::fs::read_to_string(self.path("master.toml")).unwrap();
        let mut text = text.replace("0.0.0.0:7443", MASTER);
        text.insert_str(0, "policy = \"policy\"\n");
        text.push_str("[escrow]\nkind = \"file\"\nkeys = \"escrow.keys\"\n");
        write!(text, "[[revealer]]\nname = \"revealer\"\nid = \"{revealer}\"\n").unwrap();
        for store in ["store-0", "store-1"] {
            let id = self.audit(&["identity", "--store", store]);
            write!(text, "[[recorder]]\nname = \"{store}\"\nid = \"{}\"\n", id.trim()).unwrap();
        }
        self.world.folder.write("master.toml", &text);
        self.start_master();
        let announced = self.reveal("announce", &["--hours", "2"]);
        assert!(announced.status.success(), "{announced:?}");
        let published = self.path("log/epochs");
        eventually("the keys are published", || {
            std::fs::read(&published).ok().filter(|file| !file.is_empty())
        });
    }

    fn start_recorders(&mut self) {
        let plain = |card: &'static str| {
            move || {
                let words = format!("-K {card} gro off gso off tso off tx off");
                Command::new("ethtool").args(words.split(' ')).output().unwrap();
            }
        };
        self.world.switch.run(plain("out"));
        for number in 1..=3 {
            self.world.host(number).run(plain("out"));
        }
        for part in 0..2 {
            let (store, part) = (format!("store-{part}"), format!("{part}/2"));
            let mut arguments =
                vec!["record", "--interface", "out", "--outgoing", "--store", &store, "--part", &part];
            arguments.extend(["--ring", "32", "--master", MASTER, "--master-id", &self.master_id]);
            if part == "0/2" {
                arguments.extend(["--feed", "./feed.sock"]);
            }
            let log = format!("{store}.log");
            self.recorders.push(self.start("evergate-audit", &log, "recording", &arguments));
        }
    }

    fn start_nodes(&mut self) {
        let check = self.output("evergate-master", &["--config", "master.toml", "check"]);
        let text = String::from_utf8(check.stdout).unwrap();
        let key = text.split_whitespace().find(|word| word.matches('+').count() >= 2).unwrap().to_owned();
        self.world.folder.write("trust.json", &format!("{{\"logs\":[\"{key}\"]}}\n"));
        let table =
            format!("[audit]\nepochs = \"log/epochs\"\nlog_key = \"{key}\"\nfeed = \"./feed.sock\"\n");
        let audited = "protocol = \"https\"\naudit = true";
        let config = traffic::config(&self.world, 3, "").replace("protocol = \"https\"", audited) + &table;
        self.nodes = (1..=3).map(|number| self.world.start(number, &config)).collect();
        settled(&self.nodes);
        serve(&self.world);
    }

    fn approve(&self, note: &str, person: &str) {
        self.audit(&["reveal", "approve", "--key", &format!("{person}.key"), "--name", person, note]);
    }

    /// A request of Alice about this session.
    fn request(&self, client_random: &str, recipient: &str, name: &str) {
        let mut arguments = vec!["reveal", "request", "--store", "store-0", "--store", "store-1"];
        arguments.extend(["--client-random", client_random, "--recipient", recipient, "--out", name]);
        arguments.extend(["--reason", "purchase in dispute", "--with-credentials"]);
        arguments.extend(["--key", "alice.key", "--name", "alice"]);
        self.audit(&arguments);
    }

    /// Asks the Revealer for the grant of a request.
    fn grant(&self, request: &str, out: &str) -> Output {
        let stores = ["--store", "store-0", "--store", "store-1"];
        self.reveal("run", &[&stores[..], &["--request", request, "--out", out]].concat())
    }

    fn assert_proved(&self) {
        for store in ["store-0", "store-1"] {
            self.audit(&["verify", store, "--trust", "trust.json"]);
        }
    }
}

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// A client of the site, and what it logs of its sessions.
struct Client {
    config: ClientConfig,
    is_tls13: bool,
}

impl Client {
    fn new(site: &Site, is_tls13: bool) -> Client {
        let version = if is_tls13 { &rustls::version::TLS13 } else { &rustls::version::TLS12 };
        let mut config = ClientConfig::builder_with_provider(evergate_crypto::client_provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(traffic::roots(&site.world))
            .with_no_client_auth();
        config.resumption = Resumption::in_memory_sessions(8);
        Client { config, is_tls13 }
    }

    fn connect(&self, site: &Site) -> (Tls, Arc<Secrets>) {
        let secrets = Arc::new(Secrets::default());
        let mut config = self.config.clone();
        config.key_log = secrets.clone();
        let transport = if self.is_tls13 { Transport::Tls13 } else { Transport::Tls12 };
        let to = SocketAddr::new(site.world.family.address(), transport.port(Server::Plain));
        let stream = site.world.switch.run(move || {
            let socket = TcpStream::connect(to).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            let name = "shop.test".try_into().unwrap();
            StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), socket)
        });
        (stream, secrets)
    }
}

fn buy(stream: &mut Tls, what: &str) {
    let request =
        format!("GET /buy?item={what} HTTP/1.1\r\nHost: shop.test\r\nCookie: session=secret-{what}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    assert!(head(stream).unwrap().starts_with("HTTP/1.1 200"));
    let mut body = [0; 2];
    stream.read_exact(&mut body).unwrap();
    assert_eq!(&body, b"ok");
}

/// Every file of a folder, folders in it included.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => found.extend(files(&entry.path())),
            kind if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found
}

/// The secrets as bytes, in hexadecimal digits and in base64.
fn spellings(all: &[Arc<Secrets>]) -> Search {
    let mut spellings = Vec::new();
    for secrets in all {
        for secret in &secrets.0.lock().unwrap().1 {
            let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
            // The last digits of base64 depend on what follows.
            let text = base64::encode(&secret[..secret.len() / 3 * 3]);
            spellings.extend([secret.clone(), digits.to_uppercase().into_bytes(), digits.into_bytes()]);
            spellings.push(text.into_bytes());
        }
    }
    Search::new(spellings)
}

/// Streams in which tshark sees HTTP with these secrets.
fn streams_opened(folder: &Folder, capture: &str, keys: Option<&str>) -> BTreeSet<String> {
    let mut command = Command::new("tshark");
    command.arg("-r").arg(folder.path(capture)).args([
        "-2",
        "-Y",
        "http",
        "-T",
        "fields",
        "-e",
        "tcp.stream",
    ]);
    command.args(["-d", "tcp.port==9003,tls"]);
    if let Some(keys) = keys {
        let path = folder.write("tshark.keys", keys);
        command.arg("-o").arg(format!("tls.keylog_file:{}", path.display()));
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn one_session_and_no_other_is_disclosed_years_later() {
    if !privileged() {
        return;
    }
    let mut site = Site::new();
    let (tls13, tls12) = (Client::new(&site, true), Client::new(&site, false));

    // A purchase whose node dies in mid-session, with changed keys on both sides of it.
    let (mut session, bought) = tls13.connect(&site);
    buy(&mut session, "first");
    session.conn.refresh_traffic_keys().unwrap();
    buy(&mut session, "second");
    settled(&site.nodes);
    carrier(&mut site.nodes).kill();
    buy(&mut session, "third");
    session.conn.refresh_traffic_keys().unwrap();
    buy(&mut session, "fourth");
    drop(session);
    // Sessions of others, which must stay closed.
    let (mut session, resumed) = tls13.connect(&site);
    buy(&mut session, "resumed");
    assert_eq!(session.conn.handshake_kind(), Some(HandshakeKind::Resumed));
    drop(session);
    let mut others = vec![resumed];
    for _ in 0..2 {
        let (mut session, secrets) = tls12.connect(&site);
        buy(&mut session, "old");
        assert_eq!(session.conn.handshake_kind(), Some(HandshakeKind::Full));
        others.push(secrets);
    }
    let random = bought.client_random();
    eventually("the stores have all sessions", || {
        let found = site.audit(&["find", "store-0", "store-1", "--server", ":9003", "--json"]);
        (found.matches("\"client_random\"").count() >= 4).then_some(())
    });

    // Nothing but the clients has a secret: no store, log, spool or process of the site.
    let all: Vec<Arc<Secrets>> = others.iter().cloned().chain([bought.clone()]).collect();
    let wanted = spellings(&all);
    for running in site.recorders.iter().chain(&site.master) {
        assert!(!running.holds(&wanted), "a process has a secret");
    }
    site.recorders.drain(..).for_each(Running::stop);
    site.master.take().unwrap().stop();
    let folder = site.world.folder.path("");
    for path in files(&folder) {
        let bytes = std::fs::read(&path).unwrap();
        assert!(!wanted.is_in(&bytes), "{} has a secret", path.display());
    }

    // 400 days later.
    site.is_later = true;
    site.start_master();
    site.assert_proved();
    let recipient = site.audit(&["reveal", "key", "recipient", "--out", "player.key"]);
    site.request(&random, recipient.trim(), "request");
    site.approve("request", "bob");
    let refused = site.grant("request", "grant");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("too_few"), "{refused:?}");
    site.approve("request", "carol");
    let granted = site.grant("request", "grant");
    assert!(granted.status.success(), "{granted:?}");
    let opened = ["store-0", "store-1", "--grant", "grant", "--recipient-key", "player.key"];
    let played = site.audit(&[&["play"], &opened[..]].concat());
    for item in ["first", "second", "third", "fourth"] {
        assert!(played.contains(&format!("/buy?item={item}")), "{item}: {played}");
    }
    assert!(!played.contains("secret-first") && !played.contains("item=resumed"), "{played}");
    let export = ["--with-credentials", "--format", "pcapng", "--output", "session.pcapng"];
    site.audit(&[&["export"], &opened[..], &export].concat());
    assert_eq!(streams_opened(&site.world.folder, "session.pcapng", None).len(), 1);

    // The same secrets over the whole capture open nothing else.
    let segments: Vec<PathBuf> = ["store-0/segments", "store-1/segments"]
        .iter()
        .flat_map(|store| files(&site.world.folder.path(store)))
        .filter(|path| path.extension() == Some("pcapng".as_ref()))
        .collect();
    let merged =
        Command::new("mergecap").arg("-w").arg(site.world.folder.path("all.pcapng")).args(segments).output();
    assert!(merged.unwrap().status.success());
    let own = bought.0.lock().unwrap().0.clone();
    assert_eq!(streams_opened(&site.world.folder, "all.pcapng", Some(&own)).len(), 1);
    let every: String = all.iter().map(|secrets| secrets.0.lock().unwrap().0.clone()).collect();
    assert_eq!(streams_opened(&site.world.folder, "all.pcapng", Some(&every)).len(), 4, "the check can fail");

    // The keys of that hour are destroyed: no request opens it, and the proofs stay.
    let request = std::fs::read_to_string(site.path("request")).unwrap();
    let epoch = request.lines().find_map(|line| line.strip_prefix("epoch ")).unwrap();
    let destroyed = site.reveal("destroy", &["--epoch", epoch]);
    assert!(destroyed.status.success(), "{destroyed:?}");
    site.request(&random, recipient.trim(), "late");
    site.approve("late", "bob");
    site.approve("late", "carol");
    let refused = site.grant("late", "late-grant");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("destroyed"), "{refused:?}");
    assert!(!site.world.folder.path("late-grant").exists());
    site.assert_proved();

    // The secrets of the others never appeared; those of the session are only in the export.
    let (of_others, own) = (spellings(&others), spellings(&[bought]));
    for path in files(&folder) {
        let (bytes, name) = (std::fs::read(&path).unwrap(), path.file_name().unwrap().to_str().unwrap());
        match name {
            "tshark.keys" => {} // the clients' own logs, for the check above
            "session.pcapng" => assert!(own.is_in(&bytes) && !of_others.is_in(&bytes), "the export"),
            _ => assert!(!own.is_in(&bytes) && !of_others.is_in(&bytes), "{name} has a secret"),
        }
    }
}
