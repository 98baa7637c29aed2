//! A modelled machine as the host of a worker.
//!
//! [`Machine`] is what all handles of a process share: the kernel with the gate, registrations for events, channels,
//! clock and randomness. The kernel outlives the process; a handle that is dropped closes what it names, as the end of
//! a process does.
//!
//! Not modelled: splicing (there are no pipes), SACK and timestamps, neighbours, shortages of descriptors.

mod channel;
mod channel_table;
mod frame_tap;
mod gate;
mod listener;
mod machine;
mod pipe;
mod poll;
mod restoring;
mod slot;
mod socket;
mod steps;
#[cfg(test)]
mod tests;

pub(crate) use channel::ModelChannels;
pub(crate) use channel_table::{ChannelId, Piece, replication_ip};
pub(crate) use gate::ModelGate;
pub(crate) use listener::ModelListener;
pub(crate) use machine::Machine;
pub(crate) use poll::ModelPoll;
pub(crate) use steps::StepCounts;

use crate::event_queue::Time;
use crate::fault::Mutation;
use crate::kernel::PEER_SCALE;
use crate::segment::{Flow, number};
use crate::tcp::{SEGMENT, Tcp};
use evergate_base::net::{Restore, TcpParams};
use evergate_worker::host::Law;
use evergate_worker::{Counters, Host, LogEvent};
use pipe::ModelPipe;
use restoring::ModelRestoring;
use socket::ModelSocket;
use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::rc::Rc;

/// Seconds since 1970 at time 0.
const UNIX_S: u64 = 1_700_000_000;
/// Factor on the socket buffers for the windows of restored sockets: they must not end before the windows that peers
/// know.
const BUFFERS: usize = 4;
/// Computing time of a restored socket, as on a slow machine: idle connections resume between all other work.
const RESTORE_TAKES: Time = 1_000;
/// The largest window without scaling, in bytes.
const WINDOW_MAX: usize = 65_535;

/// The machine below a worker. A clone is the same machine.
#[derive(Clone)]
pub(crate) struct ModelHost(pub(crate) Rc<RefCell<Machine>>);

/// Parameters of every connection at a node with socket buffers of so many bytes.
fn params(flow: Flow, buffer: usize) -> TcpParams {
    let fits = |scale: &u8| (WINDOW_MAX + 1) << scale >= BUFFERS * buffer;
    let scale = (0..14).find(fits).unwrap_or(14);
    TcpParams {
        local: flow.ours,
        remote: flow.theirs,
        mss: SEGMENT as u16,
        window_scales: Some((PEER_SCALE, scale)),
        sack: false,
        stamp: None,
    }
}

impl Host for ModelHost {
    type Socket = ModelSocket;
    type Listener = ModelListener;
    type Poll = ModelPoll;
    type Pipe = ModelPipe;
    type Restoring = ModelRestoring;
    type Gate = ModelGate;
    type Channels = ModelChannels;
    type Command = ();

    fn monotonic_us(&self) -> u64 {
        self.0.borrow_mut().read_clock()
    }

    fn steady_clock_ms(&self) -> u64 {
        self.0.borrow_mut().read_clock() / 1000
    }

    fn wall_clock_s(&self) -> u64 {
        UNIX_S + self.0.borrow().now / 1_000_000
    }

    fn wall_clock_ns(&self) -> u64 {
        UNIX_S * 1_000_000_000 + self.0.borrow().now * 1000
    }

    fn thread_cpu_ns(&self) -> u64 {
        let machine = self.0.borrow();
        machine.now * machine.load_per_mille
    }

    fn fill_random(&self, bytes: &mut [u8]) {
        let random = &mut self.0.borrow_mut().random;
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&random.bits().to_le_bytes()[..chunk.len()]);
        }
    }

    fn lacks_descriptors(&self) -> bool {
        false
    }

    fn log(&self, event: LogEvent) {
        // An invalid channel may be that of a former owner.
        if matches!(event, LogEvent::ConnectionsLost { .. }) {
            self.0.borrow_mut().steps.fail(format!("{event:?}"));
        }
    }

    fn reached(&self, _: &Counters, step: &'static str, client: Option<SocketAddr>) {
        self.0.borrow_mut().steps.reached(step, client);
    }

    fn breaks(&self, law: Law) -> bool {
        let mutation = match law {
            Law::NoGaps => Mutation::GapsFollow,
            Law::CaughtUpLate => Mutation::EarlyInSync,
            Law::KeepsFrozen => Mutation::DropsFrozen,
            Law::EndsSilentChannels => Mutation::WaitsForever,
            Law::SettlesFirst => Mutation::SharesEarly,
            Law::ProtectsFirst => Mutation::EagerFailover,
        };
        self.0.borrow().mutation == mutation
    }

    fn is_of_machine(&self, error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::AddrNotAvailable
    }

    fn connect(&self, _: SocketAddr) -> io::Result<ModelSocket> {
        Err(io::Error::new(io::ErrorKind::AddrNotAvailable, "a model has no address of one node alone"))
    }

    fn connect_as(&self, _: IpAddr, _: SocketAddr) -> io::Result<ModelSocket> {
        Err(io::Error::new(io::ErrorKind::AddrNotAvailable, "a model's server legs have ports of buckets"))
    }

    fn connect_from(
        &self,
        local: IpAddr,
        ports: RangeInclusive<u16>,
        to: SocketAddr,
    ) -> io::Result<ModelSocket> {
        let mut machine = self.0.borrow_mut();
        let flow = machine.free_port(local, ports, to)?;
        let (now, buffer) = (machine.now, machine.kernel.buffer);
        machine.kernel.sockets.insert(flow, Tcp::connect(flow, buffer));
        machine.kernel.push(now, flow);
        drop(machine);
        Ok(ModelSocket::new(&self.0, flow))
    }

    fn end_time_wait(&self, _: SocketAddr, _: SocketAddr) {} // a model's sockets have no TIME_WAIT

    fn pipe(&self) -> io::Result<ModelPipe> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "a model splices nothing"))
    }

    fn restore(&self, from: &Restore) -> io::Result<ModelRestoring> {
        let flow = Flow { ours: from.facts.local, theirs: from.facts.remote };
        let above = match self.0.borrow().mutation {
            Mutation::SendAbove => 1,
            _ => 0,
        };
        let send = number(from.send) + above;
        let peer_edge = send + u64::from(from.peer_window);
        self.0.borrow_mut().spend(RESTORE_TAKES);
        let tcp = Tcp::restored(flow, from.window as usize, send, number(from.receive), peer_edge);
        Ok(ModelRestoring::new(&self.0, flow, tcp))
    }
}
