//! Replication channels as a worker uses them.

use super::channel_table::{ChannelId, node_at, replication_ip};
use super::machine::{Machine, Object};
use evergate_worker::host::{Channel, Channels};
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

/// The channels of one worker.
pub(crate) struct ModelChannels {
    machine: Rc<RefCell<Machine>>,
    listener: i32,
}

/// One end of a channel. Dropping it closes the channel.
pub(crate) struct ModelChannel {
    machine: Rc<RefCell<Machine>>,
    id: ChannelId,
    descriptor: i32,
    input: Vec<u8>,
}

impl ModelChannels {
    pub(crate) fn new(machine: &Rc<RefCell<Machine>>) -> ModelChannels {
        let listener = machine.borrow_mut().registrations.open(Object::ChannelListener);
        ModelChannels { machine: machine.clone(), listener }
    }

    fn open(&self, id: ChannelId) -> ModelChannel {
        let mut machine = self.machine.borrow_mut();
        let descriptor = machine.registrations.open(Object::Channel(id));
        machine.channels.set_descriptor(id, descriptor);
        ModelChannel { machine: self.machine.clone(), id, descriptor, input: Vec::new() }
    }
}

impl Channels for ModelChannels {
    type Channel = ModelChannel;

    fn listener(&self) -> Option<i32> {
        Some(self.listener)
    }

    fn accept(&self) -> io::Result<Option<(ModelChannel, SocketAddr)>> {
        let accepted = self.machine.borrow_mut().channels.accept();
        let address = |id: ChannelId| SocketAddr::new(replication_ip(id.peer), 40_000);
        Ok(accepted.map(|id| (self.open(id), address(id))))
    }

    fn connect(&self, to: SocketAddr) -> io::Result<ModelChannel> {
        let peer = node_at(to.ip()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let mut machine = self.machine.borrow_mut();
        let now = machine.now;
        let id = machine.channels.connect(now, peer);
        drop(machine);
        Ok(self.open(id))
    }
}

impl Drop for ModelChannel {
    fn drop(&mut self) {
        let mut machine = self.machine.borrow_mut();
        machine.registrations.close(self.descriptor);
        machine.channels.close(self.id);
    }
}

impl Channel for ModelChannel {
    fn descriptor(&self) -> i32 {
        self.descriptor
    }

    fn connect_error(&self) -> io::Result<()> {
        match self.machine.borrow().channels.is_ended(self.id) {
            true => Err(io::ErrorKind::ConnectionRefused.into()),
            false => Ok(()),
        }
    }

    fn receive(&mut self, _: bool) -> io::Result<()> {
        match self.machine.borrow_mut().channels.receive(self.id, &mut self.input) {
            true => Err(io::ErrorKind::UnexpectedEof.into()),
            false => Ok(()),
        }
    }

    fn input(&mut self) -> &mut Vec<u8> {
        &mut self.input
    }

    fn has_more(&self) -> bool {
        false
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.machine.borrow_mut().channels.send(self.id, bytes) {
            true => Ok(bytes.len()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}
