//! The peer's end of a stream, which the test plays: a client or a server.

use crate::machine::Machine;
use crate::stream::{Closing, Handshake, PeerEnd, Stream};
use evergate_base::net::Flow;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;

/// A client or a server.
#[derive(Clone, Debug)]
pub struct Peer {
    machine: Rc<RefCell<Machine>>,
    descriptor: i32,
}

impl Peer {
    pub(crate) fn new(machine: &Rc<RefCell<Machine>>, descriptor: i32) -> Peer {
        Peer { machine: machine.clone(), descriptor }
    }

    /// Reads the stream; streams stay when they are closed.
    fn with<R: Default>(&self, call: impl FnOnce(&mut Stream) -> R) -> R {
        self.machine.borrow_mut().streams.get_mut(&self.descriptor).map(call).unwrap_or_default()
    }

    /// Changes the stream, whose readiness is reported then.
    fn change(&self, call: impl FnOnce(&mut Stream)) {
        self.with(call);
        self.machine.borrow_mut().registrations.wake(self.descriptor);
    }
}

/// What the peer does.
impl Peer {
    /// Sends bytes, unless it has ended.
    pub fn send(&self, bytes: &[u8]) {
        if !bytes.is_empty() && !self.has_ended() {
            self.change(|stream| stream.inbox.extend_from_slice(bytes));
        }
    }

    /// Ends its stream.
    pub fn end(&self) {
        if !self.has_ended() {
            self.change(|stream| stream.peer_end = PeerEnd::Fin);
        }
    }

    /// Resets the connection; input that was not read is lost.
    pub fn reset(&self) {
        self.change(|stream| {
            stream.inbox.clear();
            stream.peer_end = PeerEnd::Reset { reported: false };
        });
        let flow = self.flow();
        self.machine.borrow_mut().slots.note_reset(&flow);
    }

    /// Sets how many further bytes the socket takes; `usize::MAX` for any number.
    pub fn set_window(&self, bytes: usize) {
        self.change(|stream| stream.window = bytes);
    }

    /// Acknowledges the first `bytes` written, at most all; with all of them the end as well. Earlier acknowledgements
    /// stay.
    pub fn acknowledge(&self, bytes: u64) {
        let (flow, mut machine) = (self.flow(), self.machine.borrow_mut());
        let Some(stream) = machine.streams.get_mut(&self.descriptor) else { return };
        stream.acked = stream.acked.max(bytes.min(stream.written.len() as u64));
        let ack = match stream.acked == stream.written.len() as u64 {
            true => stream.end_sequence(),
            false => stream.origin.0.wrapping_add(stream.acked as u32),
        };
        machine.slots.note_ack(&flow, ack);
    }

    /// Completes the worker's dial.
    pub fn connect(&self) {
        self.answer_dial(Handshake::Done);
    }

    /// Refuses the worker's dial.
    pub fn refuse(&self) {
        self.answer_dial(Handshake::Refused);
    }

    fn answer_dial(&self, handshake: Handshake) {
        if self.is_connecting() {
            self.change(|stream| stream.handshake = handshake);
        }
    }
}

/// What the peer sees.
impl Peer {
    /// Addresses: the worker's end, and its own.
    pub fn flow(&self) -> Flow {
        let machine = self.machine.borrow();
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        let stream = machine.streams.get(&self.descriptor);
        stream.map_or(Flow::new(unknown, unknown), |stream| Flow::new(stream.local, stream.remote))
    }

    /// Bytes that the worker wrote.
    pub fn written(&self) -> Vec<u8> {
        self.with(|stream| stream.written.clone())
    }

    /// Number of bytes that the worker wrote.
    pub fn written_len(&self) -> u64 {
        self.with(|stream| stream.written.len() as u64)
    }

    /// Number of bytes that the worker has read.
    pub fn read_len(&self) -> u64 {
        self.with(|stream| stream.read)
    }

    /// Number of bytes of its stream that the gate lets the worker acknowledge, with its end as one.
    pub fn committed(&self) -> Option<u64> {
        let (flow, machine) = (self.flow(), self.machine.borrow());
        let (_, slot) = machine.slots.newest(&flow)?;
        Some(u64::from(slot.committed.wrapping_sub(slot.origin.1)))
    }

    /// Whether it has sent its end, or reset the connection.
    pub fn has_ended(&self) -> bool {
        self.with(|stream| stream.peer_end != PeerEnd::Open)
    }

    /// Whether the worker's dial is not answered.
    pub fn is_connecting(&self) -> bool {
        self.with(|stream| stream.handshake == Handshake::Connecting && stream.closed.is_none())
    }

    /// Whether the connection is established and the worker has not closed it.
    pub fn is_open(&self) -> bool {
        self.with(|stream| stream.handshake == Handshake::Done && stream.closed.is_none())
    }

    /// Whether the worker has ended its stream and the gate, if there is one, let the end leave.
    pub fn has_fin(&self) -> bool {
        let flow = self.flow();
        let gated = self.machine.borrow().slots.withholds_fin(&flow);
        !gated && self.with(|stream| stream.shut_down || stream.closed == Some(Closing::Orderly))
    }

    /// How the worker closed the connection; `None` while it is open.
    pub fn closing(&self) -> Option<Closing> {
        self.with(|stream| stream.closed)
    }

    /// Place in the order in which the worker last wrote to its connections or dialled them.
    pub fn touched(&self) -> u64 {
        self.with(|stream| stream.touched)
    }
}
