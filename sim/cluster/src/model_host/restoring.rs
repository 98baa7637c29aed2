//! Sockets in repair mode: they are not in the kernel's table yet.

use super::machine::Machine;
use super::socket::ModelSocket;
use crate::segment::Flow;
use crate::tcp::Tcp;
use evergate_worker::host::Restoring;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

/// A socket that is being restored. Dropping it sends nothing.
pub(crate) struct ModelRestoring {
    machine: Rc<RefCell<Machine>>,
    flow: Flow,
    tcp: RefCell<Tcp>,
}

impl ModelRestoring {
    pub(super) fn new(machine: &Rc<RefCell<Machine>>, flow: Flow, tcp: Tcp) -> ModelRestoring {
        ModelRestoring { machine: machine.clone(), flow, tcp: RefCell::new(tcp) }
    }
}

impl Restoring for ModelRestoring {
    type Socket = ModelSocket;

    fn receive(&self, data: &[u8]) -> io::Result<usize> {
        self.machine.borrow_mut().steps.received_early(self.flow.theirs);
        Ok(self.tcp.borrow_mut().receive(data))
    }

    fn finish(self) -> io::Result<ModelSocket> {
        self.machine.borrow_mut().kernel.restore(self.flow, self.tcp.into_inner());
        Ok(ModelSocket::new(&self.machine, self.flow))
    }
}
