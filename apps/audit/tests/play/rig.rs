//! Real sessions on loopback, recorded once for all tests, and captures made of their packets.

use crate::stores::support::is_root;
use evergate_audit::segment_file::SegmentFile;
use evergate_audit::store::Store;
use evergate_evidence::base64;
use evergate_evidence::record::Body;
use evergate_netns::Namespace;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// A packet: time in nanoseconds since 1970, and its frame.
pub(crate) type Packet = (u64, Vec<u8>);

/// What was recorded, and what was in it.
pub(crate) struct Recorded {
    pub(crate) folder: PathBuf,
    pub(crate) packets: Vec<Packet>,
    /// Sessions by the port of their client.
    pub(crate) sessions: BTreeMap<u16, Vec<Exchange>>,
    /// `version suite resumed` of each session.
    pub(crate) kinds: BTreeMap<u16, (String, bool)>,
}

/// A request and its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) request: Vec<u8>,
    pub(crate) response: Vec<u8>,
}

/// The recorded sessions; `None` skips the test with a note. In CI it fails instead.
pub(crate) fn recorded() -> Option<&'static Recorded> {
    static RECORDED: OnceLock<Option<Recorded>> = OnceLock::new();
    RECORDED.get_or_init(record).as_ref()
}

fn record() -> Option<Recorded> {
    if !is_root("of play") {
        return None;
    }
    let folder = folder();
    let namespace = Namespace::new().unwrap();
    let output = namespace.run(|| {
        let _ = Command::new("ip").args(["link", "set", "lo", "mtu", "1500"]).output();
        Command::new("ethtool").args("-K lo gro off gso off tso off".split(' ')).output().unwrap()
    });
    assert!(output.status.success(), "{output:?}");
    let store = folder.join("store");
    let mut command = Command::new(env!("CARGO_BIN_EXE_evergate-audit"));
    command.args(["record", "--interface", "lo", "--reserve", "0", "--store"]).arg(&store);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut recorder = namespace.run(move || command.spawn().unwrap());
    wait_until_recording(&mut recorder);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/play/sessions.py");
    let target = folder.clone();
    let output =
        namespace.run(move || Command::new("python3").arg("-B").arg(script).arg(target).output().unwrap());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stopped = Command::new("kill").args(["-TERM", &recorder.id().to_string()]).status().unwrap();
    assert!(stopped.success() && recorder.wait().unwrap().success());
    let packets = packets_of(&store);
    let (sessions, kinds) = expected(&folder);
    Some(Recorded { folder, packets, sessions, kinds })
}

/// Folder of this process. A value that lives as long as the process is never dropped, so the next run removes what
/// ended processes left.
fn folder() -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("play");
    for entry in std::fs::read_dir(&root).into_iter().flatten().map_while(Result::ok) {
        if !Path::new("/proc").join(entry.file_name()).exists() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let folder = root.join(std::process::id().to_string());
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn wait_until_recording(recorder: &mut Child) {
    let mut lines = BufReader::new(recorder.stderr.take().unwrap()).lines();
    let is_there = lines.by_ref().map_while(Result::ok).any(|line| line.contains("recording "));
    assert!(is_there, "the Recorder does not start");
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
}

fn packets_of(store: &Path) -> Vec<Packet> {
    let mut packets = Vec::new();
    for segment in Store::at(store).segments().unwrap() {
        let mut file = SegmentFile::open(&segment.path).unwrap();
        while let Some(located) = file.read().unwrap() {
            if let Body::Packet(packet) = located.record.body {
                packets.push((packet.time_ns, packet.data.to_vec()));
            }
        }
    }
    packets
}

type Expected = (BTreeMap<u16, Vec<Exchange>>, BTreeMap<u16, (String, bool)>);

fn expected(folder: &Path) -> Expected {
    let text = std::fs::read(folder.join("sessions.json")).unwrap();
    let all: Vec<Value> = serde_json::from_slice(&text).unwrap();
    let (mut sessions, mut kinds) = (BTreeMap::new(), BTreeMap::new());
    for session in &all {
        let port = session["port"].as_u64().unwrap() as u16;
        assert!(session["error"].is_null(), "{}", session["error"]);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let bytes = |value: &Value| base64::decode(value.as_str().unwrap()).unwrap();
        let exchanges = session["messages"].as_array().unwrap().iter().map(|message| Exchange {
            method: text(&message["method"]),
            target: text(&message["target"]),
            request: bytes(&message["request"]),
            response: bytes(&message["response"]),
        });
        sessions.insert(port, exchanges.collect());
        let kind = format!("{} {}", text(&session["version"]), text(&session["suite"]));
        kinds.insert(port, (kind, session["resumed"].as_bool().unwrap()));
    }
    (sessions, kinds)
}

impl Recorded {
    pub(crate) fn store(&self) -> String {
        self.path("store")
    }

    pub(crate) fn keys(&self) -> String {
        self.path("keys.log")
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    /// Writes a pcap file of these packets.
    pub(crate) fn capture(&self, name: &str, packets: &[Packet]) -> String {
        let path = self.path(name);
        let mut out = Vec::new();
        for word in [0xa1b2_3c4du32, 0x0004_0002, 0, 0, 262_144, 1] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for (time_ns, frame) in packets {
            let (seconds, rest) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
            for word in [seconds as u32, rest as u32, frame.len() as u32, frame.len() as u32] {
                out.extend_from_slice(&word.to_le_bytes());
            }
            out.extend_from_slice(frame);
        }
        std::fs::File::create(&path).unwrap().write_all(&out).unwrap();
        path
    }

    /// What `play` finds in these sources, by the port of the client.
    pub(crate) fn play(&self, sources: &[&str], more: &[&str]) -> BTreeMap<u16, Played> {
        let keys = self.keys();
        let fixed = ["--secrets", &keys, "--with-credentials", "--json", "--limit", "1000"];
        let (out, _) = audit(0, &[&["play"][..], sources, &fixed, more].concat());
        played(&out)
    }
}

/// Sessions in the output of `play --json`.
pub(crate) fn played(out: &str) -> BTreeMap<u16, Played> {
    let (mut sessions, mut lines) = (BTreeMap::new(), Vec::new());
    for line in out.lines() {
        let value: Value = serde_json::from_str(line).unwrap();
        if value["type"] == "session" {
            let client: std::net::SocketAddr = value["client"].as_str().unwrap().parse().unwrap();
            sessions.insert(client.port(), Played { report: value, lines: std::mem::take(&mut lines) });
        } else {
            lines.push(value);
        }
    }
    sessions
}

/// A session as `play` shows it.
#[derive(Debug)]
pub(crate) struct Played {
    pub(crate) report: Value,
    pub(crate) lines: Vec<Value>,
}

impl Played {
    /// Messages of a kind by their exchange.
    pub(crate) fn messages(&self, kind: &str) -> BTreeMap<u64, &Value> {
        let of_kind = self.lines.iter().filter(|line| line["type"] == kind);
        of_kind.map(|line| (line["exchange"].as_u64().unwrap(), line)).collect()
    }

    /// Whole exchanges.
    pub(crate) fn exchanges(&self) -> Vec<Exchange> {
        let (requests, responses) = (self.messages("request"), self.messages("response"));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let whole = requests.iter().filter_map(|(exchange, request)| {
            let response = responses.get(exchange)?;
            assert!(request["complete"] == true && response["complete"] == true, "{request} {response}");
            Some(Exchange {
                method: text(&request["method"]),
                target: text(&request["target"]),
                request: body(request),
                response: body(response),
            })
        });
        whole.collect()
    }

    /// Notes of this kind.
    pub(crate) fn notes(&self, kind: &str) -> usize {
        self.lines.iter().filter(|line| line["note"] == kind).count()
    }

    /// Holes in the payload of both directions.
    pub(crate) fn holes(&self) -> Vec<&Value> {
        let of = |side: &str| self.report[side]["holes"].as_array().unwrap().iter();
        of("to_server").chain(of("to_client")).collect()
    }

    /// Ambiguous places of both directions.
    pub(crate) fn ambiguous(&self) -> Vec<&Value> {
        let of = |side: &str| self.report[side]["ambiguous"].as_array().unwrap().iter();
        of("to_server").chain(of("to_client")).collect()
    }
}

/// Body of a message.
pub(crate) fn body(message: &Value) -> Vec<u8> {
    match message["body"]["text"].as_str() {
        Some(text) => text.as_bytes().to_vec(),
        None => base64::decode(message["body"]["base64"].as_str().unwrap()).unwrap(),
    }
}

/// Runs the program; answers both outputs.
pub(crate) fn audit(code: i32, arguments: &[&str]) -> (String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_evergate-audit")).args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {err}");
    (out, err)
}

/// Random numbers from a seed (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % end.max(1) as u64) as usize
    }
}

/// Length of the payload of a frame of TCP over IPv4, and the place of its first byte.
pub(crate) fn payload_of(frame: &[u8]) -> Option<(usize, usize)> {
    let is_tcp = frame.get(12..14)? == [8, 0] && *frame.get(23)? == 6;
    let ip = usize::from(frame.get(14)? & 15) * 4;
    let total = usize::from(u16::from_be_bytes([*frame.get(16)?, *frame.get(17)?]));
    let begin = 14 + ip + usize::from(frame.get(14 + ip + 12)? >> 4) * 4;
    is_tcp.then(|| (begin, (14 + total).saturating_sub(begin)))
}

/// Port of a packet's client, which is the one that is not the server's.
pub(crate) fn client_port(frame: &[u8], sessions: &BTreeMap<u16, Vec<Exchange>>) -> Option<u16> {
    let port = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    [port(34)?, port(36)?].into_iter().find(|port| sessions.contains_key(port))
}

/// Tags a frame.
pub(crate) fn tagged(frame: &[u8], tags: &[[u8; 4]]) -> Vec<u8> {
    [&frame[..12], &tags.concat(), &frame[12..]].concat()
}

/// Fragments of a frame with IPv4, of at most `size` bytes of content, which is a multiple of 8.
pub(crate) fn fragments(frame: &[u8], id: u16, size: usize) -> Vec<Vec<u8>> {
    let Some((_, _)) = payload_of(frame) else { return vec![frame.to_vec()] };
    let ip = usize::from(frame[14] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    let content = &frame[14 + ip..14 + total];
    let parts = content.chunks(size).enumerate().map(|(number, part)| {
        let mut fragment = frame[..14 + ip].to_vec();
        let is_last = (number + 1) * size >= content.len();
        let place = (number * size / 8) as u16 | if is_last { 0 } else { 0x2000 };
        fragment[16..18].copy_from_slice(&((ip + part.len()) as u16).to_be_bytes());
        fragment[18..20].copy_from_slice(&id.to_be_bytes());
        fragment[20..22].copy_from_slice(&place.to_be_bytes());
        [fragment, part.to_vec()].concat()
    });
    if content.len() <= size { vec![frame.to_vec()] } else { parts.collect() }
}
