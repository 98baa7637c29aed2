//! Linux as the host of a worker.

use evergate_base::net::{Keepalive, Restore, TcpParams, Transfer};
use evergate_sys::RestoreError;
use evergate_worker::host::{Host, Pipe, Restoring, Socket};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};

/// The machine on which this process runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Linux;

impl Host for Linux {
    type Socket = TcpSocket;
    type Pipe = SplicePipe;
    type Restoring = RepairSocket;

    fn monotonic_us(&self) -> u64 {
        evergate_sys::monotonic_us()
    }

    fn steady_clock_ms(&self) -> u64 {
        evergate_sys::steady_clock_ms()
    }

    fn wall_clock_s(&self) -> u64 {
        evergate_sys::wall_clock_s()
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        evergate_crypto::fill_random(bytes);
    }

    fn connect(&self, to: SocketAddr) -> io::Result<TcpSocket> {
        evergate_sys::connect(to).map(TcpSocket)
    }

    fn connect_from(
        &self,
        local: IpAddr,
        ports: RangeInclusive<u16>,
        to: SocketAddr,
    ) -> io::Result<TcpSocket> {
        evergate_sys::connect_from(local, ports, to).map(TcpSocket)
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

/// A socket in TCP_REPAIR.
#[derive(Debug)]
pub(crate) struct RepairSocket(evergate_sys::Restoring);

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
pub(crate) struct TcpSocket(pub(super) OwnedFd);

impl Socket for TcpSocket {
    fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }

    fn read(&self, buffer: &mut [u8]) -> Transfer {
        evergate_sys::read(self.descriptor(), buffer)
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
pub(crate) struct SplicePipe(pub(super) evergate_sys::Pipe);

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
