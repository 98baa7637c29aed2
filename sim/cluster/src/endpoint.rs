//! Clients and servers: an application on a model TCP endpoint.

use crate::event_queue::Time;
use crate::segment::Flow;
use crate::tcp::Tcp;

/// Output of an application.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    /// Bytes.
    pub bytes: Vec<u8>,
    /// No byte follows: FIN.
    pub end: bool,
    /// The application resets the connection.
    pub reset: bool,
    /// Time after which the application wants to be called again.
    pub pause: Option<Time>,
}

/// Input of an application from its connection.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Bytes that arrived since the last call.
    pub bytes: &'a [u8],
    /// The peer's FIN followed them.
    pub ended: bool,
    /// The peer reset the connection.
    pub reset: bool,
    /// The requested pause is over.
    pub woken: bool,
}

/// A client's or a server's side of one connection: a function of bytes and pauses, never of the time.
pub trait Application {
    /// Reacts to input. Called once at the start without any.
    fn react(&mut self, seen: Seen<'_>) -> Sent;

    /// Whether it has received everything that it waits for.
    fn is_done(&self) -> bool;

    /// The first violation that it noticed.
    fn complaint(&self) -> Option<String> {
        None
    }

    /// Its state, for a trace.
    fn describe(&self) -> String {
        String::new()
    }
}

/// Reading rate of an application: so many bytes, then none for a while.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Bytes read at once.
    pub bytes: usize,
    /// Time between two reads.
    pub every: Time,
    /// Size of the socket's receive buffer in bytes: the window offered to the peer.
    pub buffer: usize,
}

impl Pace {
    /// Reads everything at once.
    pub const EAGER: Pace = Pace { bytes: usize::MAX, every: 0, buffer: 65_536 };
}

/// Reading rates of both sides.
#[derive(Clone, Copy, Debug)]
pub struct Paces {
    /// Clients.
    pub client: Pace,
    /// Servers.
    pub server: Pace,
}

impl Paces {
    /// Neither side lets the other wait.
    pub const EAGER: Paces = Paces { client: Pace::EAGER, server: Pace::EAGER };
}

/// An application, its endpoint, and bytes that wait for buffer space in it.
pub(crate) struct Peer {
    pub(crate) flow: Flow,
    pub(crate) tcp: Tcp,
    pub(crate) app: Box<dyn Application>,
    waiting: Vec<u8>,
    end_waits: bool,
    /// Length of its whole output, once it has ended.
    pub(crate) output_length: u64,
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
            output_length: 0,
            end_sent: false,
            reported_end: false,
            wakes_at: None,
            pace,
            takes_at: 0,
            timer_at: u64::MAX,
        };
        peer.queue_output(first, now);
        peer
    }

    /// Passes input to the application and its output to the endpoint. True when the application resets the connection.
    pub(crate) fn turn(&mut self, now: Time) -> bool {
        let bytes = if now >= self.takes_at { self.tcp.read(self.pace.bytes) } else { Vec::new() };
        if !bytes.is_empty() {
            self.takes_at = now + self.pace.every;
        }
        // A reset behind the end takes no bytes from an application that is still reading.
        let (ended, reset) = (self.tcp.is_ended(), self.tcp.is_reset() && !self.tcp.has_end());
        let mut broken = false;
        let woken = self.wakes_at.take_if(|at| *at <= now).is_some();
        if !bytes.is_empty() || woken || ((ended || reset) && !self.reported_end) {
            self.reported_end |= ended || reset;
            let sent = self.app.react(Seen { bytes: &bytes, ended, reset, woken });
            broken = sent.reset;
            self.queue_output(sent, now);
        }
        let written = self.tcp.write(&self.waiting);
        self.waiting.drain(..written);
        if self.end_waits && self.waiting.is_empty() {
            self.tcp.shutdown();
        }
        broken
    }

    /// Time at which it has work without a segment.
    pub(crate) fn next_at(&self) -> Option<Time> {
        let takes_at = self.tcp.has_input().then_some(self.takes_at);
        [self.tcp.next_at(), self.wakes_at, takes_at].into_iter().flatten().min()
    }

    fn queue_output(&mut self, sent: Sent, now: Time) {
        self.wakes_at = sent.pause.map(|span| now + span).or(self.wakes_at);
        self.output_length += sent.bytes.len() as u64;
        self.waiting.extend_from_slice(&sent.bytes);
        self.end_waits |= sent.end;
        self.end_sent |= sent.end;
    }
}
