//! TCP sockets of the model kernel.

use super::machine::Machine;
use super::machine::Object;
use super::params;
use crate::kernel::Closing;
use crate::segment::Flow;
use crate::tcp::Tcp;
use evergate_base::net::{Keepalive, TcpParams, Transfer};
use evergate_worker::host::Socket;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

/// A descriptor of a socket. Dropping it closes the socket.
pub(crate) struct ModelSocket {
    machine: Rc<RefCell<Machine>>,
    flow: Flow,
    descriptor: i32,
    closing: Cell<Closing>,
}

impl ModelSocket {
    /// A descriptor of a socket that the kernel has.
    pub(super) fn new(machine: &Rc<RefCell<Machine>>, flow: Flow) -> ModelSocket {
        let mut it = machine.borrow_mut();
        let descriptor = it.registrations.open(Object::Socket(flow));
        it.descriptors.insert(flow, descriptor);
        drop(it);
        ModelSocket { machine: machine.clone(), flow, descriptor, closing: Cell::default() }
    }

    /// Calls the kernel's socket; `None` when the kernel has lost it with its power.
    fn with<R>(&self, call: impl FnOnce(&mut Tcp) -> R) -> Option<R> {
        self.machine.borrow_mut().kernel.sockets.get_mut(&self.flow).map(call)
    }

    /// Lets the kernel send what became due by the last call.
    fn push(&self) {
        let mut machine = self.machine.borrow_mut();
        let now = machine.now;
        machine.kernel.push(now, self.flow);
    }

    fn write_all(&self, pieces: &[&[u8]]) -> Transfer {
        let written = self.with(|socket| {
            if socket.is_reset() || socket.is_shut_down() {
                socket.take_error();
                return Transfer::Broken(io::ErrorKind::BrokenPipe.into());
            }
            let mut count = 0;
            for piece in pieces {
                let written = socket.write(piece);
                count += written;
                if written < piece.len() {
                    break;
                }
            }
            if count > 0 { Transfer::Moved(count) } else { Transfer::Blocked }
        });
        written.unwrap_or_else(broken)
    }
}

fn broken() -> Transfer {
    Transfer::Broken(io::ErrorKind::ConnectionReset.into())
}

/// Outcome of a call that has found `count` bytes of input. As in Linux, an end that came before the error hides the
/// error, which is reported once.
fn input_outcome(socket: &mut Tcp, count: usize) -> Transfer {
    match count {
        1.. => Transfer::Moved(count),
        0 if socket.has_end() => Transfer::End,
        0 if socket.take_error() => broken(),
        0 if socket.is_reset() => Transfer::End,
        0 => Transfer::Blocked,
    }
}

impl Drop for ModelSocket {
    fn drop(&mut self) {
        let mut machine = self.machine.borrow_mut();
        machine.registrations.close(self.descriptor);
        if machine.descriptors.get(&self.flow) == Some(&self.descriptor) {
            machine.descriptors.remove(&self.flow);
            let now = machine.now;
            machine.kernel.close(now, self.flow, self.closing.get());
        }
    }
}

impl Socket for ModelSocket {
    fn descriptor(&self) -> i32 {
        self.descriptor
    }

    fn read(&self, buffer: &mut [u8]) -> Transfer {
        let length = buffer.len();
        self.read_scattered(buffer, &[(0, length)])
    }

    fn peek(&self, buffer: &mut [u8]) -> Transfer {
        let peeked = self.with(|socket| {
            let bytes = socket.peek(buffer.len());
            buffer[..bytes.len()].copy_from_slice(&bytes);
            input_outcome(socket, bytes.len())
        });
        peeked.unwrap_or_else(broken)
    }

    fn read_scattered(&self, memory: &mut [u8], regions: &[(usize, usize)]) -> Transfer {
        let read = self.with(|socket| {
            let mut count = 0;
            for (offset, length) in regions {
                let bytes = socket.read(*length);
                memory[*offset..offset + bytes.len()].copy_from_slice(&bytes);
                count += bytes.len();
            }
            input_outcome(socket, count)
        });
        read.unwrap_or_else(broken)
    }

    fn write(&self, bytes: &[u8]) -> Transfer {
        self.write_gathered(&[bytes])
    }

    fn write_gathered(&self, pieces: &[&[u8]]) -> Transfer {
        let written = self.write_all(pieces);
        self.push();
        written
    }

    fn write_last(&self, pieces: &[&[u8]]) -> Transfer {
        self.write_all(pieces)
    }

    fn shutdown_write(&self) {
        self.with(Tcp::shutdown);
        self.push();
    }

    fn reset_on_close(&self) {
        if self.closing.get() == Closing::Orderly {
            self.closing.set(Closing::Reset);
        }
    }

    fn forget_on_close(&self) -> io::Result<()> {
        self.closing.set(Closing::Forgotten);
        Ok(())
    }

    fn acknowledge_now(&self) {
        self.with(Tcp::acknowledge_now);
        self.push();
    }

    fn has_input(&self) -> bool {
        self.with(|socket| socket.has_input()).unwrap_or(false)
    }

    fn is_drained(&self) -> bool {
        self.with(|socket| !socket.has_input() && socket.has_sent_all()).unwrap_or(false)
    }

    fn unacknowledged(&self) -> u64 {
        self.with(|socket| socket.unacknowledged() as u64).unwrap_or(0)
    }

    fn bytes_received(&self) -> io::Result<u64> {
        self.with(|socket| socket.received()).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn timestamp(&self) -> io::Result<u32> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "no timestamps were negotiated"))
    }

    fn connect_error(&self) -> io::Result<()> {
        match self.with(|socket| socket.take_error() || socket.is_reset()) {
            Some(false) => Ok(()),
            _ => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        Ok(self.flow.ours)
    }

    fn tcp_params(&self, _: Option<(SocketAddr, SocketAddr)>, _: u64) -> io::Result<TcpParams> {
        Ok(params(self.flow, self.machine.borrow().kernel.buffer))
    }

    fn set_keepalive(&self, _: Option<Keepalive>) -> io::Result<()> {
        Ok(())
    }
}
