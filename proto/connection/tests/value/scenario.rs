//! What the client does in a run, and what servers answer: both are functions of bytes alone, never of time.

use crate::harness::peer::deterministic_config;
use crate::harness::setup::{self, set_rules, snapshot};
use evergate_base::SplitMix64;
use evergate_connection::{Snapshot, Stickiness, UpstreamTls};
use evergate_rules::{Deny, RuleSpec};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) struct Rng(SplitMix64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(SplitMix64(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.bits()
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// 1 to `most`: often little, often everything.
    pub(crate) fn amount(&mut self, most: usize) -> usize {
        match self.below(3) {
            0 => most,
            1 => 1 + self.below(most.min(40)),
            _ => 1 + self.below(most),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Plain,
    Tls12,
    Tls13,
}

impl Wire {
    pub(crate) fn version(self) -> Option<&'static rustls::SupportedProtocolVersion> {
        match self {
            Wire::Plain => None,
            Wire::Tls12 => Some(&rustls::version::TLS12),
            Wire::Tls13 => Some(&rustls::version::TLS13),
        }
    }
}

/// How the client resumes sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Session {
    /// With tickets, of which it has none.
    Ticket,
    /// By ids, of which it has none.
    New,
    /// It names one that the first node keeps, the second does not, and so on.
    Known,
    /// It names one that the first node does not keep, the second does, and so on.
    Forgotten,
}

impl Session {
    pub(crate) fn is_named(self) -> bool {
        matches!(self, Session::Known | Session::Forgotten)
    }
}

#[derive(Clone)]
pub(crate) enum Act {
    Send(Vec<u8>),
    KeyUpdate(bool),
    /// TLS 1.2: a ClientHello inside the connection.
    Renegotiate,
    /// close_notify and FIN.
    Close,
    /// FIN alone.
    Cut,
    /// RST, when everything was read.
    Reset,
    /// These bytes on the wire.
    Raw(Vec<u8>),
    /// Nothing more, until we lose patience.
    Silence,
}

impl std::fmt::Debug for Act {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Act::Send(bytes) => {
                let start = String::from_utf8_lossy(&bytes[..bytes.len().min(24)]);
                write!(f, "Send({} bytes, {start:?})", bytes.len())
            }
            Act::KeyUpdate(request) => write!(f, "KeyUpdate({request})"),
            Act::Renegotiate => write!(f, "Renegotiate"),
            Act::Close => write!(f, "Close"),
            Act::Cut => write!(f, "Cut"),
            Act::Reset => write!(f, "Reset"),
            Act::Raw(bytes) => write!(f, "Raw({} bytes)", bytes.len()),
            Act::Silence => write!(f, "Silence"),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) act: Act,
    /// Only when everything before has been answered.
    pub(crate) waits: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) wire: Wire,
    /// With TLS 1.2.
    pub(crate) session: Session,
    /// Protocol of the servers.
    pub(crate) behind: Wire,
    /// Servers change their keys again and again.
    pub(crate) server_updates: bool,
    pub(crate) http: bool,
    /// Sends plaintext HTTP to the TLS port.
    pub(crate) misdirected: bool,
    /// A tunnel that begins with a ClientHello.
    pub(crate) greets: bool,
    pub(crate) steps: Vec<Step>,
    /// Payload of the client's records at most.
    pub(crate) record: usize,
    /// A raw server ends first, after so many bytes.
    pub(crate) server_ends_after: Option<usize>,
    /// What peers send beyond our ACKs at most.
    pub(crate) window: usize,
}

impl Scenario {
    /// Its client breaks the connection off in the end.
    #[allow(dead_code, reason = "not every test that shares this file asks")]
    pub(crate) fn breaks(&self) -> bool {
        self.steps.last().is_some_and(|step| matches!(step.act, Act::Reset))
    }

    pub(crate) fn listener(&self) -> u32 {
        match (self.wire, self.http) {
            (Wire::Plain, true) if self.misdirected => setup::HTTPS,
            (Wire::Plain, true) => setup::HTTP,
            (Wire::Plain, false) if self.greets => setup::PASSTHROUGH,
            (Wire::Plain, false) => setup::TCP,
            (_, true) => setup::HTTPS,
            (_, false) => setup::TLS,
        }
    }
}

/// The configuration with servers of this protocol.
pub(crate) fn config(behind: Wire) -> Arc<Snapshot> {
    config_with(behind, &setup::server_tls())
}

/// The same, with these TLS settings for the listeners.
pub(crate) fn config_with(behind: Wire, tls: &Arc<rustls::ServerConfig>) -> Arc<Snapshot> {
    let rule = |name: &str, when: &str| RuleSpec {
        name: name.to_owned(),
        when: when.to_owned(),
        ..RuleSpec::default()
    };
    let rules = [
        RuleSpec {
            set_request_headers: [("X-Rule".to_owned(), "1".to_owned())].into(),
            set_response_headers: [("X-Seen".to_owned(), "s".repeat(40))].into(),
            ..rule("edit", r#"path.path_prefix("/edit")"#)
        },
        RuleSpec { deny: Some(403.into()), ..rule("deny", r#"path.path_prefix("/deny")"#) },
        RuleSpec { route: Some("down".to_owned()), ..rule("down", r#"path.path_prefix("/down")"#) },
        RuleSpec {
            deny: Some(406.into()),
            ..rule("body", r#"path.path_prefix("/json") && json("/no") == "1""#)
        },
        RuleSpec {
            deny: Some(Deny::AccessDenied),
            listeners: vec!["passthrough".to_owned()],
            ..rule("alert", r#"tls.sni == "alert.example""#)
        },
        RuleSpec {
            deny: Some(Deny::Reset),
            listeners: vec!["passthrough".to_owned()],
            ..rule("reset", r#"tls.sni == "reset.example""#)
        },
    ];
    snapshot(|snapshot| {
        let listeners = snapshot.listeners.iter_mut().filter(|listener| listener.tls.is_some());
        listeners.for_each(|listener| listener.tls = Some(tls.clone()));
        snapshot.listeners[setup::PASSTHROUGH as usize].asks_rules = true;
        snapshot.pools[0].stickiness = Stickiness::Cookie;
        snapshot.pools.push(setup::pool("down"));
        snapshot.pools[0].tls =
            behind.version().map(|version| UpstreamTls { config: deterministic_config(version) });
        set_rules(snapshot, &rules);
    })
}

pub(crate) fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&rng.next().to_le_bytes());
    }
    out.truncate(len);
    out
}

fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in body.chunks(size.max(1)) {
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\nSum: 1\r\n\r\n");
    out
}

/// A request; `None` for the second part when it is one piece.
pub(crate) fn request(kind: usize, size: usize) -> (Vec<u8>, Option<Vec<u8>>) {
    let get = |path: &str| (format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes(), None);
    let post =
        |path: &str, fields: &str| format!("POST {path} HTTP/1.1\r\nHost: h\r\n{fields}\r\n").into_bytes();
    let login = |token: &str| {
        let head = format!("GET /login HTTP/1.1\r\nHost: h\r\nAuthorization: NTLM {token}\r\n\r\n");
        (head.into_bytes(), None)
    };
    let body = noise(size, size as u64);
    match kind {
        0 => get(&format!("/len/{size}")),
        1 => get(&format!("/chunked/{size}")),
        2 => (b"HEAD /len/77 HTTP/1.1\r\nHost: h\r\nCookie: EG=c-b\r\n\r\n".to_vec(), None),
        3 => get("/204"),
        4 => {
            let mut out = post(&format!("/len/{size}"), &format!("Content-Length: {size}\r\n"));
            out.extend_from_slice(&body);
            (out, None)
        }
        5 => {
            let mut out = post("/len/9", "Transfer-Encoding: chunked\r\n");
            out.extend_from_slice(&chunked(&body, 700));
            (out, None)
        }
        6 => get("/deny"),
        7 => get(&format!("/edit/interim/{size}")),
        8 => (post("/continue", &format!("Content-Length: {size}\r\nExpect: 100-continue\r\n")), Some(body)),
        // The rules want the body: the head is buffered, and the client gets 100 Continue.
        9 => {
            let fields = "Content-Type: application/json\r\nContent-Length: 9\r\nExpect: 100-continue\r\n";
            (post("/json/len/5", fields), Some(br#"{"a":"1"}"#.to_vec()))
        }
        10 => {
            let fields = "Content-Type: application/json\r\nContent-Length: 10\r\nExpect: 100-continue\r\n";
            (post("/json/len/5", fields), Some(br#"{"no":"1"}"#.to_vec()))
        }
        // These end the connection.
        11 => get(&format!("/close/{size}")),
        12 => get("/down"),
        13 => (post("/reset", "Content-Length: 0\r\n"), None),
        14 => {
            (format!("GET /len/{size} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").into_bytes(), None)
        }
        15 => (format!("GET /chunked/{size} HTTP/1.0\r\n\r\n").into_bytes(), None),
        16 => (b"GET /len HTTP/1.1\r\n\r\n".to_vec(), None),
        17 => get("/silent"),
        19 => get("/flaky"),
        // Answered before its body has come.
        18 => (post("/early", &format!("Content-Length: {size}\r\nConnection: close\r\n")), Some(body)),
        LOGIN => login("one"),
        LOGIN_ENDS => login("two"),
        WHO => get(&format!("/who/{size}")),
        WHO_POSTS => {
            let mut out = post(&format!("/who/{size}"), &format!("Content-Length: {size}\r\n"));
            out.extend_from_slice(&body);
            (out, None)
        }
        _ => {
            let head = "GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
            (head.as_bytes().to_vec(), None)
        }
    }
}

/// The messages of a handshake that authenticates the server connection, and requests that are answered by it.
pub(crate) const LOGIN: usize = 21;
pub(crate) const LOGIN_ENDS: usize = 22;
pub(crate) const WHO: usize = 23;
pub(crate) const WHO_POSTS: usize = 24;

/// Kinds of [`request`] after which the connection stays open.
pub(crate) const CONTINUES: usize = 10; // 10 ends it: an answer of ours to a request with a body
pub(crate) const ENDS: [usize; 7] = [10, 11, 12, 13, 14, 15, 16];
pub(crate) const EARLY: usize = 18;
pub(crate) const FLAKY: usize = 19;
pub(crate) const SILENT: usize = 17;
pub(crate) const UPGRADE: usize = 20;

pub(crate) fn random(rng: &mut Rng) -> Scenario {
    let wire = rng.pick(&[Wire::Plain, Wire::Tls12, Wire::Tls13, Wire::Tls13]);
    let behind = rng.pick(&[Wire::Plain, Wire::Plain, Wire::Tls12, Wire::Tls13]);
    // Drawn beside the others, which stay what they were.
    let sessions = [Session::Ticket, Session::New, Session::Known, Session::Forgotten];
    let session = match wire {
        Wire::Tls12 => Rng::new(rng.0.0 ^ 0x1d).pick(&sessions),
        _ => Session::Ticket,
    };
    let http = rng.chance(75);
    let mut scenario = Scenario {
        wire,
        session,
        behind,
        server_updates: rng.chance(30),
        http,
        misdirected: false,
        greets: false,
        steps: Vec::new(),
        record: rng.pick(&[16_384, 16_384, 2000, 100, 7]),
        server_ends_after: None,
        window: rng.pick(&[3000, 20_000, 100_000]),
    };
    let large = if scenario.record < 1000 { 3000 } else { 60_000 };
    let size = |rng: &mut Rng| if rng.chance(20) { rng.below(large) } else { rng.below(2000) };
    let pipelines = rng.chance(30);
    let send = |steps: &mut Vec<Step>, bytes: Vec<u8>, waits: bool| {
        steps.push(Step { act: Act::Send(bytes), waits })
    };
    let mut tunnel = !http;
    if http {
        for _ in 0..rng.below(4) {
            let (first, second) = request(rng.below(CONTINUES), size(rng));
            send(&mut scenario.steps, first, !pipelines);
            if let Some(second) = second {
                send(&mut scenario.steps, second, true);
            }
            if rng.chance(25) {
                scenario.steps.push(Step { act: Act::KeyUpdate(rng.chance(60)), waits: false });
            }
        }
        if rng.chance(30) {
            send(&mut scenario.steps, request(UPGRADE, 0).0, !pipelines);
            tunnel = true;
        } else if rng.chance(50) {
            let (first, second) = request(rng.pick(&ENDS), size(rng));
            send(&mut scenario.steps, first, !pipelines);
            if let Some(second) = second {
                send(&mut scenario.steps, second, true);
            }
        }
    }
    if tunnel {
        let mut total = 0;
        for index in 0..rng.below(4) {
            let data = noise(1 + size(rng), index as u64);
            total += data.len();
            send(&mut scenario.steps, data, rng.chance(50));
            if rng.chance(25) {
                scenario.steps.push(Step { act: Act::KeyUpdate(rng.chance(60)), waits: false });
            }
        }
        if rng.chance(50) {
            scenario.server_ends_after = Some(rng.below(total + 1));
        }
    }
    if rng.chance(25) {
        let last = match rng.below(5) {
            // A head, or a body, that never comes to its end.
            0 if http && !tunnel => Act::Send(b"GET /len/3 HTTP/1.1\r\nHo".to_vec()),
            1 if http && !tunnel => Act::Send(request(4, 900).0[..300].to_vec()),
            2 if http && !tunnel => Act::Send(request(SILENT, 0).0),
            3 if wire != Wire::Plain && scenario.server_ends_after.is_none() => {
                Act::Raw(vec![23, 3, 3, 0, 30, 1, 2, 3].into_iter().chain(noise(27, 1)).collect())
            }
            _ => Act::Silence,
        };
        scenario.steps.push(Step { act: last, waits: true });
        scenario.steps.push(Step { act: Act::Silence, waits: false });
    } else if rng.chance(80) || tunnel {
        scenario
            .steps
            .push(Step { act: if rng.chance(70) { Act::Close } else { Act::Cut }, waits: rng.chance(50) });
    }
    scenario
}

/// A server's output, given its input.
#[derive(Clone, Debug)]
pub(crate) struct App {
    tunnel: Option<usize>,
    ends_after: Option<usize>,
    pub(crate) stage: u8,
    pub(crate) fin: bool,
    pub(crate) reset: bool,
    /// How far its client is identified: not, challenged, or known.
    pub(crate) login: u8,
    /// The first server that gets this breaks off instead of answering.
    pub(crate) flaky: bool,
}

impl App {
    pub(crate) fn new(scenario: &Scenario) -> App {
        let tunnel = if scenario.http { None } else { Some(0) };
        App {
            tunnel,
            ends_after: scenario.server_ends_after,
            stage: 0,
            fin: false,
            reset: false,
            login: 0,
            flaky: false,
        }
    }

    /// The same for another request on a connection whose client is known so far.
    pub(crate) fn known(scenario: &Scenario, login: u8) -> App {
        App { login, ..App::new(scenario) }
    }

    /// Appends to `out` what follows from the stream so far.
    pub(crate) fn react(&mut self, received: &[u8], ended: bool, out: &mut Vec<u8>) {
        if self.tunnel.is_none() {
            self.react_http(received, out);
        }
        let Some(from) = self.tunnel else { return };
        if self.stage < 10 {
            self.stage = 10;
            out.extend_from_slice(&noise(1234, 7));
        }
        let limit = self.ends_after.map_or(usize::MAX, |limit| limit + from);
        for byte in &received[from..received.len().min(limit).max(from)] {
            if !self.fin {
                out.push(byte ^ 0x55);
            }
        }
        self.tunnel = Some(received.len().max(from));
        if ended || (self.ends_after.is_some() && received.len() >= limit) {
            self.fin = true;
        }
        if let Some(limit) = &mut self.ends_after {
            *limit = limit.saturating_sub(received.len() - from);
        }
    }

    fn react_http(&mut self, received: &[u8], out: &mut Vec<u8>) {
        let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4) else {
            return;
        };
        let head = std::str::from_utf8(&received[..end]).unwrap();
        let path = head.split(' ').nth(1).unwrap();
        let body = &received[end..];
        if self.stage == 0 && path.starts_with("/continue") {
            out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        self.stage = self.stage.max(1);
        let length = head
            .split("\r\n")
            .find_map(|line| line.strip_prefix("Content-Length: "))
            .map(|n| n.parse().unwrap());
        let complete = match length {
            _ if path.starts_with("/early") => true,
            Some(length) => body.len() >= length,
            None => !head.contains(": chunked") || body.ends_with(b"0\r\nSum: 1\r\n\r\n"),
        };
        if !complete || self.stage != 1 {
            return;
        }
        self.stage = 2;
        let number = || path.rsplit('/').next().and_then(|n| n.parse().ok()).unwrap_or(3);
        let ok = |out: &mut Vec<u8>, fields: &str| {
            out.extend_from_slice(format!("HTTP/1.1 200 OK\r\nServer: app\r\n{fields}\r\n").as_bytes());
        };
        if path.starts_with("/login") || path.starts_with("/who") {
            self.login = match head.split_once("Authorization: NTLM ") {
                Some((_, token)) if token.starts_with("one") => 1,
                Some((_, token)) if token.starts_with("two") && self.login == 1 => 2,
                Some(_) => 0,
                None => self.login,
            };
            let body = noise(number(), 3);
            let (status, token) = [("401", ""), ("401", " dHdv"), ("200", "")][usize::from(self.login)];
            let fields = format!("WWW-Authenticate: NTLM{token}\r\nContent-Length: {}\r\n", body.len());
            out.extend_from_slice(format!("HTTP/1.1 {status} X\r\n{fields}\r\n").as_bytes());
            out.extend_from_slice(&body);
        } else if path.contains("/chunked/") {
            ok(out, "Transfer-Encoding: chunked\r\n");
            out.extend_from_slice(&chunked(&noise(number(), 1), 900));
        } else if path.starts_with("/204") {
            out.extend_from_slice(b"HTTP/1.1 204 No Content\r\n\r\n");
        } else if path.starts_with("/close/") {
            ok(out, "");
            out.extend_from_slice(&noise(number(), 2));
            self.fin = true;
        } else if path.starts_with("/reset") {
            self.reset = true;
        } else if path.starts_with("/silent") {
            // Never sends anything.
        } else if path.starts_with("/ws") {
            out.extend_from_slice(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
            );
            self.tunnel = Some(end);
        } else {
            if path.contains("/interim/") {
                out.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n");
            }
            self.flaky = path.starts_with("/flaky");
            let body = noise(number(), 3);
            ok(out, &format!("Content-Length: {}\r\n", body.len()));
            if !head.starts_with("HEAD ") {
                out.extend_from_slice(&body);
            }
        }
    }
}
