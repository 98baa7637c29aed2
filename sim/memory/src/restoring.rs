//! Sockets in repair mode: the worker cannot use them yet.

use crate::machine::Machine;
use crate::process::is_source;
use crate::socket::MemorySocket;
use crate::stream::{Handshake, Stream};
use evergate_base::net::Restore;
use evergate_worker::host::Restoring;
use std::cell::RefCell;
use std::io;
use std::rc::Rc;

/// A socket that is being restored. Dropping it sends nothing.
#[derive(Debug)]
pub struct MemoryRestoring {
    machine: Rc<RefCell<Machine>>,
    stream: RefCell<Stream>,
}

impl MemoryRestoring {
    pub(crate) fn new(machine: &Rc<RefCell<Machine>>, from: &Restore) -> MemoryRestoring {
        let origin = (from.send, from.receive);
        let stream = Stream::new(from.facts.local, from.facts.remote, Handshake::Done);
        let dialled = is_source(from.facts.local.ip());
        MemoryRestoring {
            machine: machine.clone(),
            stream: RefCell::new(Stream { origin, dialled, ..stream }),
        }
    }
}

impl Restoring for MemoryRestoring {
    type Socket = MemorySocket;

    fn receive(&self, data: &[u8]) -> io::Result<usize> {
        self.stream.borrow_mut().inbox.extend_from_slice(data);
        Ok(data.len())
    }

    fn finish(self) -> io::Result<MemorySocket> {
        let mut machine = self.machine.borrow_mut();
        let touched = machine.next_touch();
        let descriptor = machine.open_stream(Stream { touched, ..self.stream.into_inner() });
        drop(machine);
        Ok(MemorySocket::new(&self.machine, descriptor))
    }
}
