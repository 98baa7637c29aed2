//! What all handles of one host share.

use crate::channel::WireState;
use crate::process::SOURCE;
use crate::registrations::{Readiness, Registrations};
use crate::slot_table::SlotTable;
use crate::stream::{Closing, Handshake, Stream};
use crate::waker::MemoryWaker;
use evergate_base::net::{Event, Flow};
use evergate_worker::Source;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Time at the start, in microseconds.
const START_US: u64 = 1_000_000;

/// What becomes of the worker's next dials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dials {
    /// They are established at once.
    #[default]
    Open,
    /// They wait for [`crate::Peer::connect`] or [`crate::Peer::refuse`].
    Wait,
    /// The server refuses them.
    Refused,
}

/// An open object of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    Stream(i32),
    Listener(i32),
    Wire(i32),
    GateEvents,
}

/// The machine: see the module's description. Streams, queues and wires are kept by descriptor, also when they are
/// closed, because a test looks at them afterwards.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) now_us: u64,
    pub(crate) unix_s: u64,
    /// Value of all random bytes.
    pub(crate) random: u8,
    pub(crate) dials: Dials,
    pub(crate) server_window: usize,
    pub(crate) has_pipes: bool,
    /// Writes after the end of a stream break no law: an upgrade state made false claims.
    pub(crate) forgives_late_writes: bool,
    pub(crate) streams: BTreeMap<i32, Stream>,
    pub(crate) queues: BTreeMap<i32, VecDeque<i32>>,
    pub(crate) wires: BTreeMap<i32, WireState>,
    pub(crate) registrations: Registrations<Object>,
    pub(crate) slots: SlotTable,
    /// Bytes and ends that the worker has read or written.
    pub(crate) moved: u64,
    pub(crate) violations: Vec<String>,
    /// Steps of [`evergate_worker::Host::reached`], with their number.
    pub(crate) steps: BTreeMap<&'static str, u64>,
    pub(crate) waker: Arc<MemoryWaker>,
    pub(crate) next_port: u16,
    /// Source addresses of server legs, and their ports in the worker's bucket.
    pub(crate) sources: (Vec<IpAddr>, RangeInclusive<u16>),
}

impl Machine {
    pub(crate) fn new() -> Machine {
        Machine {
            now_us: START_US,
            unix_s: 0,
            random: 0,
            dials: Dials::Open,
            server_window: usize::MAX,
            has_pipes: false,
            forgives_late_writes: false,
            streams: BTreeMap::new(),
            queues: BTreeMap::new(),
            wires: BTreeMap::new(),
            registrations: Registrations::default(),
            slots: SlotTable::default(),
            moved: 0,
            violations: Vec::new(),
            steps: BTreeMap::new(),
            waker: Arc::default(),
            next_port: 0,
            sources: (vec![SOURCE], 1024..=u16::MAX),
        }
    }

    /// The clock in microseconds. Each reading takes one, so that loops over time slices end.
    pub(crate) fn read_clock(&mut self) -> u64 {
        self.now_us += 1;
        self.now_us
    }

    /// Opens a descriptor of a stream.
    pub(crate) fn open_stream(&mut self, stream: Stream) -> i32 {
        let descriptor = self.open(Object::Stream);
        self.streams.insert(descriptor, stream);
        descriptor
    }

    /// A port of the range from which no connection to `to` lives, the next one first.
    pub(crate) fn free_port(
        &mut self,
        local: IpAddr,
        ports: &RangeInclusive<u16>,
        to: SocketAddr,
    ) -> Option<u16> {
        let first = self.next_port.clamp(*ports.start(), *ports.end());
        let is_used = |port: &u16| {
            let from = SocketAddr::new(local, *port);
            let mut same = self.streams.values().filter(|stream| (stream.local, stream.remote) == (from, to));
            same.any(|stream| stream.dialled && stream.has_port())
        };
        let port = (first..=*ports.end()).chain(*ports.start()..first).find(|port| !is_used(port))?;
        self.next_port = port.checked_add(1).unwrap_or(0);
        Some(port)
    }

    /// A new connection that the worker dials.
    pub(crate) fn dial(&mut self, local: SocketAddr, to: SocketAddr) -> i32 {
        let handshake = match self.dials {
            Dials::Open => Handshake::Done,
            Dials::Wait => Handshake::Connecting,
            Dials::Refused => Handshake::Refused,
        };
        let touched = self.next_touch();
        let window = self.server_window;
        let stream = Stream { window, dialled: true, touched, ..Stream::new(local, to, handshake) };
        self.slots.enter(Flow::new(local, to), self.now_us);
        self.open_stream(stream)
    }

    pub(crate) fn open(&mut self, object: impl FnOnce(i32) -> Object) -> i32 {
        let descriptor = self.registrations.next_descriptor();
        self.registrations.open(object(descriptor))
    }

    pub(crate) fn next_touch(&self) -> u64 {
        1 + self.streams.values().map(|stream| stream.touched).max().unwrap_or(0)
    }

    /// The newest stream between these ends.
    pub(crate) fn stream_of(&self, flow: &Flow) -> Option<&Stream> {
        self.streams.values().rev().find(|stream| Flow::new(stream.local, stream.remote) == *flow)
    }

    /// Closes a descriptor of a stream.
    pub(crate) fn close_stream(&mut self, descriptor: i32, closing: Closing) {
        self.registrations.close(descriptor);
        let Some(stream) = self.streams.get_mut(&descriptor) else { return };
        stream.close(closing);
        if stream.closed == Some(Closing::Reset) {
            self.slots.note_reset(&Flow::new(stream.local, stream.remote));
        }
    }

    // ---- events ----

    /// Events for the worker.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        let woken = self.waker.is_woken().then(|| Readiness::of_input(true).event(Source::Waker.token()));
        let mut registrations = std::mem::take(&mut self.registrations);
        let events = registrations.take_events(|object| self.readiness(object));
        self.registrations = registrations;
        woken.into_iter().chain(events).collect()
    }

    fn readiness(&self, object: Object) -> Readiness {
        match object {
            Object::Stream(descriptor) => self.streams.get(&descriptor).map(ready).unwrap_or_default(),
            Object::Listener(descriptor) => {
                Readiness::of_input(self.queues.get(&descriptor).is_some_and(|queue| !queue.is_empty()))
            }
            Object::Wire(descriptor) => {
                let input = self.wires.get(&descriptor).is_some_and(WireState::has_input);
                Readiness { output: true, ..Readiness::of_input(input) }
            }
            Object::GateEvents => Readiness::of_input(self.slots.has_events()),
        }
    }
}

/// Readiness of a socket, as `tcp_poll` of Linux computes it.
fn ready(stream: &Stream) -> Readiness {
    match stream.handshake {
        Handshake::Connecting => return Readiness::default(),
        Handshake::Refused => return Readiness { hangup: true, error: true, ..Readiness::of_input(true) },
        Handshake::Done => {}
    }
    let reset = stream.is_reset();
    let ended = stream.peer_end != crate::stream::PeerEnd::Open;
    let shut_down = stream.shut_down || reset;
    Readiness {
        input: !stream.inbox.is_empty() || ended,
        output: shut_down || stream.window > 0,
        end: ended,
        hangup: ended && shut_down,
        error: stream.peer_end == crate::stream::PeerEnd::Reset { reported: false },
    }
}
