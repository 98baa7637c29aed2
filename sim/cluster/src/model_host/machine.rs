//! What all handles of a process share.

use super::channel_table::{ChannelId, ChannelTable};
use super::steps::Steps;
use crate::event_queue::Time;
use crate::fault::Mutation;
use crate::host::Clock;
use crate::kernel::Kernel;
use crate::random::Random;
use crate::segment::Flow;
use crate::tcp::Tcp;
use evergate_base::net::Event;
use evergate_memory_host::{MemoryWaker, Readiness, Registrations};
use evergate_worker::Source;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;

/// An open object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    Socket(Flow),
    Listener,
    ChannelListener,
    Channel(ChannelId),
    GateEvents,
}

/// One machine: see the module's description.
pub(crate) struct Machine {
    pub(crate) now: Time,
    pub(crate) kernel: Kernel,
    pub(crate) registrations: Registrations<Object>,
    pub(crate) channels: ChannelTable,
    pub(crate) steps: Steps,
    pub(crate) random: Random,
    pub(crate) waker: Arc<MemoryWaker>,
    pub(crate) mutation: Mutation,
    /// CPU load of the worker, in parts of a thousand.
    pub(crate) load_per_mille: u64,
    clock: Clock,
    /// The last reading of the clock.
    read_at: u64,
    /// Descriptors of sockets.
    pub(super) descriptors: BTreeMap<Flow, i32>,
    /// By the first port of a range: the next port to try. The other nodes may still have earlier ones.
    next_ports: BTreeMap<u16, u16>,
}

impl Machine {
    pub(crate) fn new(clock: Clock, kernel: Kernel, mutation: Mutation) -> Machine {
        Machine {
            now: 0,
            kernel,
            registrations: Registrations::default(),
            channels: ChannelTable::default(),
            steps: Steps::default(),
            random: Random::new(0),
            waker: Arc::default(),
            mutation,
            load_per_mille: 0,
            clock,
            read_at: 0,
            descriptors: BTreeMap::new(),
            next_ports: BTreeMap::new(),
        }
    }

    /// Prepares for a new process; nothing of an earlier one is left but its orphaned sockets. `number`: of the process
    /// in the whole run.
    pub(crate) fn begin_process(&mut self, number: u64, random: Random) {
        self.registrations = Registrations::default();
        self.channels = ChannelTable::new(number, self.mutation);
        self.steps = Steps::default();
        self.waker = Arc::default();
        self.random = random;
        self.kernel.listens = true;
    }

    /// The machine's clock in microseconds. Each reading takes one, so that loops over time slices end.
    pub(super) fn read_clock(&mut self) -> u64 {
        self.read_at = self.clock.at(self.now).0.max(self.read_at + 1);
        self.read_at
    }

    /// The process computes for so long.
    pub(super) fn spend(&mut self, span: Time) {
        self.read_at = self.read_clock() + span;
    }

    /// How far the last reading of the clock is ahead of the time: the process has computed for so long.
    pub(crate) fn spent(&self) -> Time {
        self.read_at.saturating_sub(self.clock.at(self.now).0)
    }

    /// A flow from a free port of the range.
    pub(super) fn free_port(
        &mut self,
        local: IpAddr,
        ports: RangeInclusive<u16>,
        to: SocketAddr,
    ) -> io::Result<Flow> {
        let next = self.next_ports.entry(*ports.start()).or_insert(*ports.start());
        for _ in ports.clone() {
            let flow = Flow { ours: SocketAddr::new(local, *next), theirs: to };
            *next = if *next >= *ports.end() { *ports.start() } else { *next + 1 };
            if !self.kernel.sockets.contains_key(&flow) && self.kernel.slots.number(flow).is_none() {
                return Ok(flow);
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrNotAvailable, "all ports are in use"))
    }

    // ---- events ----

    /// Events for the worker.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        self.note_news();
        let woken = self.waker.is_woken().then(|| Readiness::of_input(true).event(Source::Waker.token()));
        let mut registrations = std::mem::take(&mut self.registrations);
        let events = registrations.take_events(|object| self.readiness(object));
        self.registrations = registrations;
        woken.into_iter().chain(events).collect()
    }

    /// Whether there are events.
    pub(crate) fn has_events(&mut self) -> bool {
        self.note_news();
        let mut registrations = std::mem::take(&mut self.registrations);
        let has = registrations.has_events(|object| self.readiness(object));
        self.registrations = registrations;
        has || self.waker.is_woken()
    }

    fn note_news(&mut self) {
        for (flow, only_input) in std::mem::take(&mut self.kernel.events.sockets) {
            let Some(descriptor) = self.descriptors.get(&flow) else { continue };
            // The kernel reports input under its own name, which a registration without reads lacks.
            if !only_input || self.registrations.reads(*descriptor) == Some(true) {
                self.registrations.wake(*descriptor);
            }
        }
        for descriptor in self.channels.take_news() {
            self.registrations.wake(descriptor);
        }
    }

    fn readiness(&mut self, object: Object) -> Readiness {
        match object {
            Object::Listener => Readiness::of_input(!self.kernel.unaccepted.is_empty()),
            Object::GateEvents => {
                let events = &self.kernel.events;
                Readiness::of_input(!events.woken.is_empty() || !events.diverted.is_empty())
            }
            Object::ChannelListener => Readiness::of_input(self.channels.has_unaccepted()),
            Object::Channel(id) => self.channels.readiness(id),
            Object::Socket(flow) => self.kernel.sockets.get_mut(&flow).map_or_else(Readiness::default, ready),
        }
    }
}

/// Readiness of a socket, as `tcp_poll` of Linux computes it.
fn ready(socket: &mut Tcp) -> Readiness {
    if socket.is_connecting() {
        return Readiness::default();
    }
    let reset = socket.is_reset();
    let (ended, shut_down) = (socket.has_end() || reset, socket.is_shut_down() || reset);
    Readiness {
        input: socket.has_input() || ended,
        output: shut_down || socket.poll_room(),
        end: ended,
        hangup: ended && shut_down,
        error: socket.has_error(),
    }
}
