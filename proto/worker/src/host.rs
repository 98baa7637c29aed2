//! What a worker needs of its host: sockets, pipes, and their registration for events.
//!
//! A worker is written once. In the daemon its host is Linux; in the simulator and in fuzz targets it is a model. A
//! descriptor is a number that names an open socket of the host, as in POSIX; the model gives numbers of its own.

mod channel;
mod gate;
mod law;
mod listener;
#[cfg(test)]
mod nothing;
mod observers;
mod poll;

pub use channel::{Channel, Channels};
pub use gate::{Gate, Slot};
pub use law::Law;
pub use listener::Listener;
#[cfg(test)]
pub(crate) use nothing::Nothing;
pub use observers::{AccessLog, AuditedCapture, Reports};
pub use poll::Poll;

use crate::counters::Counters;
use crate::log_event::LogEvent;
use evergate_base::net::{Keepalive, Restore, TcpParams, Transfer};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

/// A slot of a host's gate.
pub type SlotOf<H> = <<H as Host>::Gate as Gate>::Slot;

/// The machine below a worker. A clone is the same machine.
pub trait Host: Clone + 'static {
    /// Its sockets.
    type Socket: Socket;
    /// Its listening sockets.
    type Listener: Listener<Socket = Self::Socket>;
    /// Registrations for events.
    type Poll: Poll;
    /// Its pipes.
    type Pipe: Pipe<Self::Socket>;
    /// Its sockets while they are restored.
    type Restoring: Restoring<Socket = Self::Socket>;
    /// The packet gate of one worker.
    type Gate: Gate;
    /// Channels to workers of other nodes.
    type Channels: Channels;
    /// Commands to the program around a worker, in order among those to the worker.
    type Command;

    /// Microseconds of a clock that never goes back and stands still while the machine sleeps.
    fn monotonic_us(&self) -> u64;

    /// Milliseconds of the clock of TCP timestamps, which never goes back.
    fn steady_clock_ms(&self) -> u64;

    /// Seconds since 1970.
    fn wall_clock_s(&self) -> u64;

    /// Nanoseconds since 1970.
    fn wall_clock_ns(&self) -> u64;

    /// CPU time of the worker, in nanoseconds.
    fn thread_cpu_ns(&self) -> u64;

    /// Fills `bytes` with numbers that no peer can guess.
    fn fill_random(&self, bytes: &mut [u8]);

    /// Whether the process or the machine has no descriptor left.
    fn lacks_descriptors(&self) -> bool;

    /// Logs an event for operators.
    fn log(&self, event: LogEvent);

    /// A worker that counts with `worker` reaches a step, for the connection of `client` if it is for one. Hosts of
    /// tests panic here.
    fn reached(&self, worker: &Counters, step: &'static str, client: Option<SocketAddr>) {
        let _ = (worker, step, client);
    }

    /// Whether this host makes the worker break a law on purpose. Simulators do, to show that their checks find it.
    fn breaks(&self, law: Law) -> bool {
        let _ = law;
        false
    }

    /// Whether an error of connecting is of this machine, and not of the other one.
    fn is_of_machine(&self, error: &io::Error) -> bool;

    /// Starts connecting; the socket becomes writable when connected, see [`Socket::connect_error`].
    fn connect(&self, to: SocketAddr) -> io::Result<Self::Socket>;

    /// The same from the address of a client, which is none of this machine's own, and a port of the host's choice.
    /// `AddrNotAvailable` if the host cannot use that address.
    fn connect_as(&self, client: IpAddr, to: SocketAddr) -> io::Result<Self::Socket>;

    /// The same from a free port of the range. `AddrNotAvailable` if there is none.
    fn connect_from(
        &self,
        local: IpAddr,
        ports: RangeInclusive<u16>,
        to: SocketAddr,
    ) -> io::Result<Self::Socket>;

    /// Frees the local port of a closed connection from TIME_WAIT. Both streams are complete and acknowledged. A host
    /// that cannot do it keeps the port for a minute.
    fn end_time_wait(&self, local: SocketAddr, remote: SocketAddr);

    /// A new, empty pipe.
    fn pipe(&self) -> io::Result<Self::Pipe>;

    /// Builds a socket that another node had, in place of an orphan of an earlier process. Dropping the result sends
    /// nothing.
    fn restore(&self, from: &Restore) -> io::Result<Self::Restoring>;
}

/// A socket that is being restored: it neither sends nor answers.
pub trait Restoring {
    /// The socket afterwards.
    type Socket;

    /// Adds bytes that the peer sent before the socket existed, directly after the received ones. Returns the number of
    /// bytes added: all, or none when memory is short.
    fn receive(&self, data: &[u8]) -> io::Result<usize>;

    /// Lets the socket answer and send.
    fn finish(self) -> io::Result<Self::Socket>;
}

/// A TCP socket. Dropping it closes it: with FIN, or with RST if input is unread or [`Socket::reset_on_close`] was
/// called. No call blocks.
pub trait Socket {
    /// Its number.
    fn descriptor(&self) -> i32;

    /// Reads into `buffer`, which must not be empty.
    fn read(&self, buffer: &mut [u8]) -> Transfer;

    /// Copies received bytes into `buffer`, which must not be empty, and leaves them to be read.
    fn peek(&self, buffer: &mut [u8]) -> Transfer;

    /// Reads into the regions (offset, length) of `memory`, in order.
    fn read_scattered(&self, memory: &mut [u8], regions: &[(usize, usize)]) -> Transfer;

    /// Writes from `bytes`, which must not be empty.
    fn write(&self, bytes: &[u8]) -> Transfer;

    /// Writes the pieces in order; at most 64 of them.
    fn write_gathered(&self, pieces: &[&[u8]]) -> Transfer;

    /// The same for the last bytes before FIN, which then leaves with the last byte.
    fn write_last(&self, pieces: &[&[u8]]) -> Transfer;

    /// Sends FIN after what is queued.
    fn shutdown_write(&self);

    /// Makes closing send RST and drop queued bytes.
    fn reset_on_close(&self);

    /// Makes closing send nothing. An error leaves the socket as it was.
    fn forget_on_close(&self) -> io::Result<()>;

    /// Sends a delayed ACK now.
    fn acknowledge_now(&self);

    /// Whether bytes wait to be read.
    fn has_input(&self) -> bool;

    /// Whether no byte waits to be read, and none to be sent for the first time.
    fn is_drained(&self) -> bool;

    /// Bytes that were written and not acknowledged by the peer.
    fn unacknowledged(&self) -> u64;

    /// Bytes that the peer has sent in order, over the whole life of the socket.
    fn bytes_received(&self) -> io::Result<u64>;

    /// Timestamp that a segment would have now, if timestamps were negotiated.
    fn timestamp(&self) -> io::Result<u32>;

    /// The reason why connecting failed, once the socket reports readiness; `Ok` when it is connected.
    fn connect_error(&self) -> io::Result<()>;

    /// Its own end.
    fn local_address(&self) -> io::Result<SocketAddr>;

    /// Parameters of the established connection at `now_ms` of the machine's steady clock. `ends`: its addresses, the
    /// local one first, where they are known.
    fn tcp_params(&self, ends: Option<(SocketAddr, SocketAddr)>, now_ms: u64) -> io::Result<TcpParams>;

    /// Sets or clears keep-alive.
    fn set_keepalive(&self, keepalive: Option<Keepalive>) -> io::Result<()>;
}

/// A pipe that moves bytes between two sockets without copying them.
pub trait Pipe<S> {
    /// The higher number of its two descriptors.
    fn highest_descriptor(&self) -> i32;

    /// Bytes inside.
    fn held(&self) -> usize;

    /// Moves up to `bytes` from a socket into the pipe. `ended`: the end of the socket's input was reported.
    fn fill(&mut self, from: &S, bytes: usize, ended: bool) -> Transfer;

    /// Moves the bytes inside to a socket.
    fn empty(&mut self, to: &S) -> Transfer;
}
