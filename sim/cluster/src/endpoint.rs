//! Clients and servers: an application on a model TCP endpoint.

use crate::event_queue::Time;
use crate::segment::Flow;
use crate::tcp::Tcp;

/// What an application says.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// Bytes.
    pub bytes: Vec<u8>,
    /// Nothing follows: FIN.
    pub end: bool,
    /// It breaks the connection off.
    pub reset: bool,
    /// It wants to be called again after so long.
    pub pause: Option<Time>,
}

/// What an application sees of its connection.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Bytes that came since the last call.
    pub bytes: &'a [u8],
    /// The other side's FIN came after them.
    pub ended: bool,
    /// The other side broke the connection.
    pub reset: bool,
    /// The time has passed that it wanted to.
    pub woken: bool,
}

/// A client's or a server's side of one connection: a function of bytes and pauses, never of the time.
pub trait Application {
    /// Reacts to what has come; called once at the start with nothing.
    fn react(&mut self, seen: Seen<'_>) -> Sent;

    /// It has seen all it waits for.
    fn is_done(&self) -> bool;

    /// What went wrong in its eyes.
    fn complaint(&self) -> Option<String> {
        None
    }

    /// Where it stands, for a trace.
    fn describe(&self) -> String {
        String::new()
    }
}

/// How fast an application takes what has come: so many bytes, and no more for a while.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Bytes taken at once.
    pub bytes: usize,
    /// Time between two takings.
    pub every: Time,
    /// Room in the socket, in bytes: what it offers to the other side.
    pub buffer: usize,
}

impl Pace {
    /// Whatever is there, at once.
    pub const EAGER: Pace = Pace { bytes: usize::MAX, every: 0, buffer: 65_536 };
}

/// Of the two sides.
#[derive(Clone, Copy, Debug)]
pub struct Paces {
    /// Clients.
    pub client: Pace,
    /// Servers.
    pub server: Pace,
}

impl Paces {
    /// Nobody lets the other side wait.
    pub const EAGER: Paces = Paces { client: Pace::EAGER, server: Pace::EAGER };
}

/// An application, its endpoint, and bytes that wait for room in it.
pub(crate) struct Peer {
    pub(crate) flow: Flow,
    pub(crate) tcp: Tcp,
    pub(crate) app: Box<dyn Application>,
    waiting: Vec<u8>,
    end_waits: bool,
    /// Everything it will ever say has this length, once it has ended.
    pub(crate) reported: u64,
    pub(crate) end_sent: bool,
    reported_end: bool,
    wakes_at: Option<Time>,
    pace: Pace,
    takes_at: Time,
    pub(crate) timer_at: u64,
}

impl Peer {
    pub(crate) fn new(flow: Flow, tcp: Tcp, mut app: Box<dyn Application>, pace: Pace, now: Time) -> Peer {
        let first = app.react(Seen { bytes: &[], ended: false, reset: false, woken: false });
        let mut peer = Peer {
            flow,
            tcp,
            app,
            waiting: Vec::new(),
            end_waits: false,
            reported: 0,
            end_sent: false,
            reported_end: false,
            wakes_at: None,
            pace,
            takes_at: 0,
            timer_at: u64::MAX,
        };
        peer.take(first, now);
        peer
    }

    /// Lets the application see what has come, and the endpoint what it says. True when the connection breaks.
    pub(crate) fn turn(&mut self, now: Time) -> bool {
        let bytes = if now >= self.takes_at { self.tcp.read(self.pace.bytes) } else { Vec::new() };
        if !bytes.is_empty() {
            self.takes_at = now + self.pace.every;
        }
        // A reset behind the end takes nothing from who is still reading.
        let (ended, reset) = (self.tcp.is_ended(), self.tcp.is_reset() && !self.tcp.has_end());
        let mut broken = false;
        let woken = self.wakes_at.take_if(|at| *at <= now).is_some();
        if !bytes.is_empty() || woken || ((ended || reset) && !self.reported_end) {
            self.reported_end |= ended || reset;
            let reported = self.app.react(Seen { bytes: &bytes, ended, reset, woken });
            broken = reported.reset;
            self.take(reported, now);
        }
        let written = self.tcp.write(&self.waiting);
        self.waiting.drain(..written);
        if self.end_waits && self.waiting.is_empty() {
            self.tcp.shutdown();
        }
        broken
    }

    /// When it has something to do without a segment.
    pub(crate) fn next_at(&self) -> Option<Time> {
        let takes_at = self.tcp.has_input().then_some(self.takes_at);
        [self.tcp.next_at(), self.wakes_at, takes_at].into_iter().flatten().min()
    }

    fn take(&mut self, reported: Sent, now: Time) {
        self.wakes_at = reported.pause.map(|span| now + span).or(self.wakes_at);
        self.reported += reported.bytes.len() as u64;
        self.waiting.extend_from_slice(&reported.bytes);
        self.end_waits |= reported.end;
        self.end_sent |= reported.end;
    }
}
