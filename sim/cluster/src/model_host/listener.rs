//! The listening socket of a node.

use super::machine::{Machine, Object};
use super::socket::ModelSocket;
use evergate_base::net::Keepalive;
use evergate_worker::host::Listener;
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

/// The listening socket: the kernel's queue of connections that no program has accepted.
pub(crate) struct ModelListener {
    machine: Rc<RefCell<Machine>>,
    descriptor: i32,
}

impl ModelListener {
    pub(crate) fn new(machine: &Rc<RefCell<Machine>>) -> ModelListener {
        let descriptor = machine.borrow_mut().registrations.open(Object::Listener);
        ModelListener { machine: machine.clone(), descriptor }
    }
}

impl Listener for ModelListener {
    type Socket = ModelSocket;

    fn descriptor(&self) -> i32 {
        self.descriptor
    }

    fn accept(&self) -> io::Result<Option<(ModelSocket, SocketAddr)>> {
        let flow = self.machine.borrow_mut().kernel.unaccepted.pop_front();
        Ok(flow.map(|flow| (ModelSocket::new(&self.machine, flow), flow.theirs)))
    }

    fn set_keepalive(&self, _: Option<Keepalive>) -> io::Result<()> {
        Ok(())
    }

    fn lowest_free_descriptor(&self) -> i32 {
        1
    }
}
