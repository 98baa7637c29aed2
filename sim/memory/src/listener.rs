//! Listening sockets: queues of connections that the worker has not accepted.

use crate::machine::Machine;
use crate::socket::MemorySocket;
use evergate_base::net::Keepalive;
use evergate_worker::host::Listener;
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

/// A listening socket.
#[derive(Debug)]
pub struct MemoryListener {
    pub(crate) machine: Rc<RefCell<Machine>>,
    pub(crate) descriptor: i32,
}

impl Drop for MemoryListener {
    fn drop(&mut self) {
        self.machine.borrow_mut().registrations.close(self.descriptor);
    }
}

impl Listener for MemoryListener {
    type Socket = MemorySocket;

    fn descriptor(&self) -> i32 {
        self.descriptor
    }

    fn accept(&self) -> io::Result<Option<(MemorySocket, SocketAddr)>> {
        let mut machine = self.machine.borrow_mut();
        let first = machine.queues.get_mut(&self.descriptor).and_then(|queue| queue.pop_front());
        let Some(descriptor) = first else { return Ok(None) };
        let Some(client) = machine.streams.get(&descriptor).map(|stream| stream.remote) else {
            return Ok(None);
        };
        drop(machine);
        Ok(Some((MemorySocket::new(&self.machine, descriptor), client)))
    }

    fn set_keepalive(&self, _: Option<Keepalive>) -> io::Result<()> {
        Ok(())
    }

    fn lowest_free_descriptor(&self) -> i32 {
        self.machine.borrow().registrations.next_descriptor()
    }
}
