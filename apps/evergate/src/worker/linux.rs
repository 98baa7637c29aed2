//! Linux as the host of a worker.

use super::linux_gate::LinuxGate;
use super::tls_channel::TlsChannels;
use super::upgrade::UpgradeCommand;
use crate::control::console;
use evergate_base::Wake;
use evergate_base::net::{Event, Keepalive, Restore, TcpParams, Transfer};
use evergate_sys::{Epoll, RestoreError, Waker};
use evergate_worker::host::{Host, Listener, Pipe, Poll, Restoring, Socket};
use evergate_worker::{LogEvent, Source};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Events taken at once.
const EVENTS: usize = 512;

/// The machine on which this process runs.
#[derive(Clone, Copy, Debug)]
pub struct Linux;

impl Host for Linux {
    type Socket = TcpSocket;
    type Listener = LinuxListener;
    type Poll = EpollPoll;
    type Pipe = SplicePipe;
    type Restoring = RepairSocket;
    type Gate = LinuxGate;
    type Channels = TlsChannels;
    type Command = UpgradeCommand;

    fn monotonic_us(&self) -> u64 {
        evergate_sys::monotonic_us()
    }

    fn steady_clock_ms(&self) -> u64 {
        evergate_sys::steady_clock_ms()
    }

    fn wall_clock_s(&self) -> u64 {
        evergate_sys::wall_clock_s()
    }

    fn wall_clock_ns(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_nanos() as u64)
    }

    fn thread_cpu_ns(&self) -> u64 {
        evergate_sys::thread_cpu_ns()
    }

    fn lacks_descriptors(&self) -> bool {
        evergate_sys::lacks_descriptors()
    }

    fn log(&self, event: LogEvent) {
        log(&event);
    }

    #[cfg(test)]
    fn reached(&self, worker: &evergate_worker::Counters, step: &'static str, client: Option<SocketAddr>) {
        super::faults::strike(worker, step, client);
    }

    fn is_of_machine(&self, error: &io::Error) -> bool {
        crate::health::is_of_machine(error)
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        evergate_crypto::fill_random(bytes);
    }

    fn connect(&self, to: SocketAddr) -> io::Result<TcpSocket> {
        evergate_sys::connect(to).map(TcpSocket)
    }

    fn connect_as(&self, client: IpAddr, to: SocketAddr) -> io::Result<TcpSocket> {
        evergate_sys::connect_as(client, to).map(TcpSocket)
    }

    fn connect_from(
        &self,
        local: IpAddr,
        ports: RangeInclusive<u16>,
        to: SocketAddr,
    ) -> io::Result<TcpSocket> {
        evergate_sys::connect_from(local, ports, to).map(TcpSocket)
    }

    fn end_time_wait(&self, local: SocketAddr, remote: SocketAddr) {
        // A kernel that refuses keeps the port for a minute.
        let _ = evergate_sys::end_time_wait(local, remote);
    }

    fn pipe(&self) -> io::Result<SplicePipe> {
        evergate_sys::Pipe::new().map(SplicePipe)
    }

    fn restore(&self, from: &Restore) -> io::Result<RepairSocket> {
        let restored = match evergate_sys::restore(from) {
            Err(error) if error.source.kind() == io::ErrorKind::AddrNotAvailable => {
                evergate_sys::destroy(from.facts.local, from.facts.remote)?;
                evergate_sys::restore(from)
            }
            other => other,
        };
        restored.map(RepairSocket).map_err(with_step)
    }
}

/// The error with the step that failed, and the kind that the kernel gave.
fn with_step(error: RestoreError) -> io::Error {
    io::Error::new(error.source.kind(), error)
}

/// Writes an event to the log of the daemon.
fn log(event: &LogEvent) {
    match event {
        LogEvent::AcceptFailed { why } => console::warning(format_args!(
            "accept_failed: not accepting more connections: {why}; idle connections are closed for new clients, and \
             without idle ones clients wait in the kernel's queue; raise the limit of open files (LimitNOFILE=, \
             ulimit -n), or lower limits.connections_max"
        )),
        LogEvent::ChannelInvalid { node, why } => console::warning(format_args!(
            "cluster: closed an invalid replication channel from node {}: {why}",
            node.0.saturating_add(1)
        )),
        LogEvent::ChannelRefused { why } => {
            console::warning(format_args!("cluster: refused a replication channel: {why}"));
        }
        LogEvent::ConnectionsLost { reason, error } => console::warning(format_args!(
            "cluster: losing connections recovered from another node (`{reason}`): {}; {}",
            with_causes(error),
            advice_on(error)
        )),
        LogEvent::ConfigurationUnknown => console::warning(
            "cluster: resetting connections from another node: they are in a handshake or request under a \
             configuration that this node does not have (`failover_config_unknown`); deploy the same file to all \
             nodes, and reload them, before draining one",
        ),
    }
}

fn advice_on(error: &io::Error) -> &'static str {
    use io::ErrorKind::{HostUnreachable, NetworkDown, NetworkUnreachable};
    match error.kind() {
        HostUnreachable | NetworkDown | NetworkUnreachable => "check the routes and interfaces of this host",
        _ => "give each node descriptors and packet filter slots for the clients of all nodes",
    }
}

/// The error, and the errors that caused it.
fn with_causes(error: &io::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.get_ref().and_then(|inner| inner.source());
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// Registrations of one worker with its epoll instance.
#[derive(Debug)]
pub struct EpollPoll {
    epoll: Epoll,
    waker: Arc<Waker>,
    /// The worker's counters, by which tests name it.
    #[cfg(test)]
    pub(super) counters: Option<Arc<evergate_worker::Counters>>,
}

impl EpollPoll {
    /// A new instance with the worker's waker.
    pub(super) fn new() -> io::Result<EpollPoll> {
        let (epoll, waker) = (Epoll::new(EVENTS)?, Arc::new(Waker::new()?));
        epoll.add_input(waker.fd(), Source::Waker.token())?;
        Ok(EpollPoll {
            epoll,
            waker,
            #[cfg(test)]
            counters: None,
        })
    }

    /// Ends the wait from another thread.
    pub(super) fn waker(&self) -> Arc<dyn Wake> {
        self.waker.clone()
    }

    /// Waits for events up to this time, and takes them.
    pub(super) fn wait(&mut self, timeout_ms: i32, events: &mut Vec<Event>) -> io::Result<()> {
        let count = self.epoll.wait(timeout_ms)?;
        events.clear();
        events.extend((0..count).map(|index| self.epoll.event(index)));
        Ok(())
    }
}

impl Poll for EpollPoll {
    fn add(&self, descriptor: i32, token: u64) -> io::Result<()> {
        #[cfg(test)]
        super::faults::refuse(self.counters.as_ref(), token)?;
        self.epoll.add(descriptor, token)
    }

    fn add_input(&self, descriptor: i32, token: u64) -> io::Result<()> {
        self.epoll.add_input(descriptor, token)
    }

    fn add_without_reads(&self, descriptor: i32, token: u64) -> io::Result<()> {
        self.epoll.add_without_reads(descriptor, token)
    }

    fn report_again(&self, descriptor: i32, token: u64) -> io::Result<()> {
        self.epoll.report_again(descriptor, token)
    }

    fn remove(&self, descriptor: i32) -> io::Result<()> {
        self.epoll.remove(descriptor)
    }

    fn drain_wakes(&self) {
        self.waker.drain();
    }
}

/// A listening socket of the kernel.
#[derive(Debug)]
pub struct LinuxListener(pub OwnedFd);

impl LinuxListener {
    /// Another descriptor of the same socket.
    pub fn try_clone(&self) -> io::Result<LinuxListener> {
        self.0.try_clone().map(LinuxListener)
    }
}

impl Listener for LinuxListener {
    type Socket = TcpSocket;

    fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }

    fn accept(&self) -> io::Result<Option<(TcpSocket, SocketAddr)>> {
        let accepted = evergate_sys::accept(self.descriptor())?;
        Ok(accepted.map(|(socket, address)| (TcpSocket(socket), address)))
    }

    fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        evergate_sys::set_keepalive(self.descriptor(), keepalive)
    }

    fn lowest_free_descriptor(&self) -> i32 {
        self.0.try_clone().map_or(i32::MAX, |copy| copy.as_raw_fd())
    }
}

/// A socket in TCP_REPAIR.
#[derive(Debug)]
pub struct RepairSocket(evergate_sys::Restoring);

impl Restoring for RepairSocket {
    type Socket = TcpSocket;

    fn receive(&self, data: &[u8]) -> io::Result<usize> {
        self.0.receive(data)
    }

    fn finish(self) -> io::Result<TcpSocket> {
        self.0.finish().map(TcpSocket).map_err(with_step)
    }
}

/// A TCP socket of the kernel.
#[derive(Debug)]
pub struct TcpSocket(pub(super) OwnedFd);

impl Socket for TcpSocket {
    fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }

    fn read(&self, buffer: &mut [u8]) -> Transfer {
        evergate_sys::read(self.descriptor(), buffer)
    }

    fn peek(&self, buffer: &mut [u8]) -> Transfer {
        evergate_sys::peek(self.descriptor(), buffer)
    }

    fn read_scattered(&self, memory: &mut [u8], regions: &[(usize, usize)]) -> Transfer {
        evergate_sys::read_scattered(self.descriptor(), memory, regions)
    }

    fn write(&self, bytes: &[u8]) -> Transfer {
        evergate_sys::write(self.descriptor(), bytes)
    }

    fn write_gathered(&self, pieces: &[&[u8]]) -> Transfer {
        evergate_sys::write_gathered(self.descriptor(), pieces)
    }

    fn write_last(&self, pieces: &[&[u8]]) -> Transfer {
        evergate_sys::write_last(self.descriptor(), pieces)
    }

    fn shutdown_write(&self) {
        evergate_sys::shutdown_write(self.descriptor());
    }

    fn reset_on_close(&self) {
        evergate_sys::reset_on_close(self.descriptor());
    }

    fn forget_on_close(&self) -> io::Result<()> {
        evergate_sys::forget_on_close(self.descriptor())
    }

    fn acknowledge_now(&self) {
        evergate_sys::acknowledge_now(self.descriptor());
    }

    fn has_input(&self) -> bool {
        evergate_sys::has_input(self.descriptor())
    }

    fn is_drained(&self) -> bool {
        evergate_sys::is_drained(self.descriptor())
    }

    fn unacknowledged(&self) -> u64 {
        evergate_sys::unacknowledged(self.descriptor())
    }

    fn bytes_received(&self) -> io::Result<u64> {
        evergate_sys::bytes_received(self.descriptor())
    }

    fn timestamp(&self) -> io::Result<u32> {
        evergate_sys::timestamp(self.descriptor())
    }

    fn connect_error(&self) -> io::Result<()> {
        evergate_sys::connect_error(self.descriptor())
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        evergate_sys::local_address(self.descriptor())
    }

    fn tcp_params(&self, ends: Option<(SocketAddr, SocketAddr)>, now_ms: u64) -> io::Result<TcpParams> {
        match ends {
            Some(ends) => evergate_sys::tcp_params_between(self.descriptor(), ends, now_ms),
            None => evergate_sys::tcp_params(self.descriptor(), now_ms),
        }
    }

    fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()> {
        evergate_sys::set_keepalive(self.descriptor(), keepalive)
    }
}

/// A pipe of the kernel, filled and emptied by splice(2).
#[derive(Debug)]
pub struct SplicePipe(pub(super) evergate_sys::Pipe);

impl Pipe<TcpSocket> for SplicePipe {
    fn highest_descriptor(&self) -> i32 {
        self.0.highest()
    }

    fn held(&self) -> usize {
        self.0.held()
    }

    fn fill(&mut self, from: &TcpSocket, bytes: usize, ended: bool) -> Transfer {
        self.0.fill(from.descriptor(), bytes, ended)
    }

    fn empty(&mut self, to: &TcpSocket) -> Transfer {
        self.0.empty(to.descriptor())
    }
}
