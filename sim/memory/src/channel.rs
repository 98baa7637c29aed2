//! Replication channels to other nodes, and their far ends.

use crate::machine::{Machine, Object};
use evergate_worker::host::{Channel, Channels};
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

/// Both directions of one channel.
#[derive(Debug, Default)]
pub(crate) struct WireState {
    /// Bytes from the worker.
    sent: Vec<u8>,
    /// Bytes for the worker.
    input: Vec<u8>,
    closed: bool,
}

impl WireState {
    pub(crate) fn has_input(&self) -> bool {
        !self.input.is_empty()
    }
}

/// The channels of one worker. It opens them to every address, and no other node opens one.
#[derive(Debug)]
pub struct MemoryChannels(pub(crate) Rc<RefCell<Machine>>);

/// The worker's end of a channel. Dropping it closes the channel.
#[derive(Debug)]
pub struct MemoryChannel {
    wire: Wire,
    input: Vec<u8>,
}

/// The far end of a channel, which the test plays.
#[derive(Clone, Debug)]
pub struct Wire {
    machine: Rc<RefCell<Machine>>,
    descriptor: i32,
}

impl Wire {
    pub(crate) fn new(machine: &Rc<RefCell<Machine>>, descriptor: i32) -> Wire {
        Wire { machine: machine.clone(), descriptor }
    }

    fn with<R: Default>(&self, call: impl FnOnce(&mut WireState) -> R) -> R {
        self.machine.borrow_mut().wires.get_mut(&self.descriptor).map(call).unwrap_or_default()
    }

    /// Takes the bytes that the worker has sent.
    pub fn take_sent(&self) -> Vec<u8> {
        self.with(|wire| std::mem::take(&mut wire.sent))
    }

    /// Sends bytes to the worker.
    pub fn send(&self, bytes: &[u8]) {
        self.with(|wire| wire.input.extend_from_slice(bytes));
        self.machine.borrow_mut().registrations.wake(self.descriptor);
    }

    /// Whether the worker has closed the channel.
    pub fn is_closed(&self) -> bool {
        self.with(|wire| wire.closed)
    }
}

impl Channels for MemoryChannels {
    type Channel = MemoryChannel;

    fn listener(&self) -> Option<i32> {
        None
    }

    fn accept(&self) -> io::Result<Option<(MemoryChannel, SocketAddr)>> {
        Ok(None)
    }

    fn connect(&self, _: SocketAddr) -> io::Result<MemoryChannel> {
        let mut machine = self.0.borrow_mut();
        let descriptor = machine.open(Object::Wire);
        machine.wires.insert(descriptor, WireState::default());
        drop(machine);
        Ok(MemoryChannel { wire: Wire::new(&self.0, descriptor), input: Vec::new() })
    }
}

impl Drop for MemoryChannel {
    fn drop(&mut self) {
        self.wire.with(|wire| wire.closed = true);
        self.wire.machine.borrow_mut().registrations.close(self.wire.descriptor);
    }
}

impl Channel for MemoryChannel {
    fn descriptor(&self) -> i32 {
        self.wire.descriptor
    }

    fn connect_error(&self) -> io::Result<()> {
        Ok(())
    }

    fn receive(&mut self, _: bool) -> io::Result<()> {
        let mut arrived = self.wire.with(|wire| std::mem::take(&mut wire.input));
        self.input.append(&mut arrived);
        Ok(())
    }

    fn input(&mut self) -> &mut Vec<u8> {
        &mut self.input
    }

    fn has_more(&self) -> bool {
        false
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wire.with(|wire| wire.sent.extend_from_slice(bytes));
        Ok(bytes.len())
    }
}
