//! Clients and servers: an application on a model TCP endpoint.

use crate::segment::Flow;
use crate::tcp::Tcp;

/// What an application says.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// Bytes.
    pub bytes: Vec<u8>,
    /// Nothing follows: FIN.
    pub end: bool,
    /// It breaks the connection off.
    pub reset: bool,
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
}

/// A client's or a server's side of one connection: a function of bytes, never of time.
pub trait Application {
    /// Reacts to what has come; called once at the start with nothing.
    fn react(&mut self, seen: Seen<'_>) -> Said;

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

/// An application, its endpoint, and bytes that wait for room in it.
pub(crate) struct Peer {
    pub(crate) flow: Flow,
    pub(crate) tcp: Tcp,
    pub(crate) app: Box<dyn Application>,
    waiting: Vec<u8>,
    end_waits: bool,
    /// Everything it will ever say has this length, once it has ended.
    pub(crate) said: u64,
    pub(crate) end_said: bool,
    told_end: bool,
    pub(crate) timer_at: u64,
}

impl Peer {
    pub(crate) fn new(flow: Flow, tcp: Tcp, mut app: Box<dyn Application>) -> Peer {
        let first = app.react(Seen { bytes: &[], ended: false, reset: false });
        let mut peer = Peer {
            flow,
            tcp,
            app,
            waiting: Vec::new(),
            end_waits: false,
            said: 0,
            end_said: false,
            told_end: false,
            timer_at: u64::MAX,
        };
        peer.take(first);
        peer
    }

    /// Lets the application see what has come, and the endpoint what it says. True when the connection breaks.
    pub(crate) fn turn(&mut self) -> bool {
        let bytes = self.tcp.read(usize::MAX);
        let (ended, reset) = (self.tcp.is_ended(), self.tcp.is_reset());
        let mut broken = false;
        if !bytes.is_empty() || ((ended || reset) && !self.told_end) {
            self.told_end |= ended || reset;
            let said = self.app.react(Seen { bytes: &bytes, ended, reset });
            broken = said.reset;
            self.take(said);
        }
        let written = self.tcp.write(&self.waiting);
        self.waiting.drain(..written);
        if self.end_waits && self.waiting.is_empty() {
            self.tcp.shutdown();
        }
        broken
    }

    fn take(&mut self, said: Said) {
        self.said += said.bytes.len() as u64;
        self.waiting.extend_from_slice(&said.bytes);
        self.end_waits |= said.end;
        self.end_said |= said.end;
    }
}
