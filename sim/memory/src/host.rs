//! The memory host: what a worker sees of it, and what a test sets.

use crate::channel::{MemoryChannels, Wire};
use crate::gate::MemoryGate;
use crate::listener::MemoryListener;
use crate::machine::{Dials, Machine, Object};
use crate::peer::Peer;
use crate::pipe::MemoryPipe;
use crate::poll::MemoryPoll;
use crate::process::{SOURCE, is_source};
use crate::restoring::MemoryRestoring;
use crate::socket::MemorySocket;
use crate::stream::{Handshake, Stream};
use crate::waker::MemoryWaker;
use evergate_base::Micros;
use evergate_base::net::{Event, Flow, PeerPosition, Restore};
use evergate_worker::{Counters, Host, LogEvent};
use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;

/// A machine in memory. A clone is the same machine.
#[derive(Clone, Debug)]
pub struct MemoryHost(pub(crate) Rc<RefCell<Machine>>);

impl Default for MemoryHost {
    fn default() -> MemoryHost {
        MemoryHost(Rc::new(RefCell::new(Machine::new())))
    }
}

/// Parts for a worker.
impl MemoryHost {
    /// Registrations of the worker.
    pub fn poll(&self) -> MemoryPoll {
        MemoryPoll(self.0.clone())
    }

    /// The end of the worker's wait.
    pub fn waker(&self) -> Arc<MemoryWaker> {
        self.0.borrow().waker.clone()
    }

    /// A listening socket with an empty queue.
    pub fn listener(&self) -> MemoryListener {
        let mut machine = self.0.borrow_mut();
        let descriptor = machine.open(Object::Listener);
        machine.queues.insert(descriptor, Default::default());
        MemoryListener { machine: self.0.clone(), descriptor }
    }

    /// The gate, and the descriptor of its events.
    pub fn gate(&self) -> (MemoryGate, i32) {
        let events = self.0.borrow_mut().open(|_| Object::GateEvents);
        (MemoryGate::new(&self.0), events)
    }

    /// Channels to other nodes.
    pub fn channels(&self) -> MemoryChannels {
        MemoryChannels(self.0.clone())
    }

    /// An established connection between these ends, and its peer: a server if the local end is [`SOURCE`].
    pub fn socket(&self, local: SocketAddr, remote: SocketAddr) -> (MemorySocket, Peer) {
        let mut machine = self.0.borrow_mut();
        machine.slots.enter(Flow::new(local, remote), 0);
        let descriptor = {
            let stream = Stream::new(local, remote, Handshake::Done);
            machine.open_stream(Stream { dialled: is_source(local.ip()), ..stream })
        };
        drop(machine);
        (MemorySocket::new(&self.0, descriptor), Peer::new(&self.0, descriptor))
    }

    /// A client that waits in the queue of a listener.
    pub fn arrive(&self, listener: i32, local: SocketAddr, client: SocketAddr) -> Peer {
        let mut machine = self.0.borrow_mut();
        let now = machine.now_us;
        machine.slots.enter(Flow::new(local, client), now);
        let descriptor = machine.open_stream(Stream::new(local, client, Handshake::Done));
        machine.queues.entry(listener).or_default().push_back(descriptor);
        Peer::new(&self.0, descriptor)
    }
}

/// What a test sets and sees.
impl MemoryHost {
    /// Events for the worker.
    pub fn take_events(&self) -> Vec<Event> {
        self.0.borrow_mut().take_events()
    }

    /// Now.
    pub fn now(&self) -> Micros {
        Micros(self.0.borrow().now_us)
    }

    /// Lets time pass.
    pub fn pass(&self, span: Micros) {
        self.0.borrow_mut().now_us += span.0;
    }

    /// Sets the seconds since 1970.
    pub fn set_wall_clock(&self, unix_s: u64) {
        self.0.borrow_mut().unix_s = unix_s;
    }

    /// Sets the value of all random bytes from now on.
    pub fn set_random(&self, byte: u8) {
        self.0.borrow_mut().random = byte;
    }

    /// Sets what becomes of the next dials.
    pub fn set_dials(&self, dials: Dials) {
        self.0.borrow_mut().dials = dials;
    }

    /// Sets the source addresses of server legs, and their ports. Call it before [`crate::Process::new`].
    pub fn set_sources(&self, addresses: Vec<IpAddr>, ports: RangeInclusive<u16>) {
        self.0.borrow_mut().sources = (addresses, ports);
    }

    pub(crate) fn sources(&self) -> Vec<IpAddr> {
        self.0.borrow().sources.0.clone()
    }

    /// Sets how many bytes sockets of later dials take; `usize::MAX` for any number.
    pub fn set_server_window(&self, bytes: usize) {
        self.0.borrow_mut().server_window = bytes;
    }

    /// Sets whether there are pipes, with which the worker splices.
    pub fn set_pipes(&self, has_pipes: bool) {
        self.0.borrow_mut().has_pipes = has_pipes;
    }

    /// Lets bytes after the end of a socket be no violation, as for connections whose imported state was false.
    pub fn forgive_late_writes(&self) {
        self.0.borrow_mut().forgives_late_writes = true;
    }

    /// Peers of the connections that the worker dialled or continued as a server's, oldest first, closed ones included.
    pub fn servers(&self) -> Vec<Peer> {
        let machine = self.0.borrow();
        let dialled = machine.streams.iter().filter(|(_, stream)| stream.dialled);
        dialled.map(|(descriptor, _)| Peer::new(&self.0, *descriptor)).collect()
    }

    /// Peers of restored connections between these ends, the newest if there are several.
    pub fn peer_of(&self, local: SocketAddr, remote: SocketAddr) -> Option<Peer> {
        let machine = self.0.borrow();
        let ends = (local, remote);
        let mut all = machine.streams.iter().rev();
        all.find(|(_, stream)| (stream.local, stream.remote) == ends)
            .map(|(descriptor, _)| Peer::new(&self.0, *descriptor))
    }

    /// Far ends of the channels that the worker opened, oldest first.
    pub fn wires(&self) -> Vec<Wire> {
        let machine = self.0.borrow();
        machine.wires.keys().map(|descriptor| Wire::new(&self.0, *descriptor)).collect()
    }

    /// Sets the position that a peer reports to this node while it recovers the connection.
    pub fn set_peer_position(&self, flow: &Flow, position: PeerPosition) {
        self.0.borrow_mut().slots.peer_positions.insert((flow.local, flow.remote), position);
    }

    /// Bytes and ends that the worker has read or written so far.
    pub fn moved(&self) -> u64 {
        self.0.borrow().moved
    }

    /// How often the worker has reached a step.
    pub fn reached_count(&self, step: &str) -> u64 {
        self.0.borrow().steps.get(step).copied().unwrap_or(0)
    }

    /// Laws that the worker broke, as sentences.
    pub fn violations(&self) -> Vec<String> {
        self.0.borrow().violations.clone()
    }
}

impl Host for MemoryHost {
    type Socket = MemorySocket;
    type Listener = MemoryListener;
    type Poll = MemoryPoll;
    type Pipe = MemoryPipe;
    type Restoring = MemoryRestoring;
    type Gate = MemoryGate;
    type Channels = MemoryChannels;
    type Command = ();

    fn monotonic_us(&self) -> u64 {
        self.0.borrow_mut().read_clock()
    }

    fn steady_clock_ms(&self) -> u64 {
        self.0.borrow().now_us / 1000
    }

    fn wall_clock_s(&self) -> u64 {
        self.0.borrow().unix_s
    }

    fn wall_clock_ns(&self) -> u64 {
        self.0.borrow().unix_s * 1_000_000_000
    }

    fn thread_cpu_ns(&self) -> u64 {
        0
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        bytes.fill(self.0.borrow().random);
    }

    fn lacks_descriptors(&self) -> bool {
        false
    }

    fn log(&self, _: LogEvent) {}

    fn reached(&self, _: &Counters, step: &'static str, _: Option<SocketAddr>) {
        *self.0.borrow_mut().steps.entry(step).or_default() += 1;
    }

    fn is_of_machine(&self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::AddrNotAvailable
    }

    fn connect(&self, to: SocketAddr) -> io::Result<MemorySocket> {
        self.connect_from(SOURCE, 1024..=u16::MAX, to)
    }

    fn connect_as(&self, client: IpAddr, to: SocketAddr) -> io::Result<MemorySocket> {
        self.connect_from(client, 1024..=u16::MAX, to)
    }

    fn connect_from(
        &self,
        local: IpAddr,
        ports: RangeInclusive<u16>,
        to: SocketAddr,
    ) -> io::Result<MemorySocket> {
        let mut machine = self.0.borrow_mut();
        let Some(port) = machine.free_port(local, &ports, to) else {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        };
        let descriptor = machine.dial(SocketAddr::new(local, port), to);
        drop(machine);
        Ok(MemorySocket::new(&self.0, descriptor))
    }

    fn end_time_wait(&self, local: SocketAddr, remote: SocketAddr) {
        let mut machine = self.0.borrow_mut();
        let is_it = |stream: &&mut Stream| (stream.local, stream.remote) == (local, remote);
        machine.streams.values_mut().filter(is_it).for_each(|stream| stream.waits = false);
    }

    fn pipe(&self) -> io::Result<MemoryPipe> {
        match self.0.borrow().has_pipes {
            true => Ok(MemoryPipe::default()),
            false => Err(io::Error::new(io::ErrorKind::Unsupported, "this host has no pipes")),
        }
    }

    fn restore(&self, from: &Restore) -> io::Result<MemoryRestoring> {
        Ok(MemoryRestoring::new(&self.0, from))
    }
}
