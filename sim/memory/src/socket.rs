//! TCP sockets: the worker's end of a stream.

use crate::machine::Machine;
use crate::stream::{Closing, Handshake, PeerEnd, Stream};
use evergate_base::net::{Flow, Keepalive, TcpParams, Transfer};
use evergate_worker::host::Socket;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

/// Bytes of a full segment.
const MSS: u16 = 1460;

/// A descriptor of a stream. Dropping it closes the stream.
#[derive(Debug)]
pub struct MemorySocket {
    machine: Rc<RefCell<Machine>>,
    descriptor: i32,
    closing: Cell<Closing>,
}

impl MemorySocket {
    pub(crate) fn new(machine: &Rc<RefCell<Machine>>, descriptor: i32) -> MemorySocket {
        MemorySocket { machine: machine.clone(), descriptor, closing: Cell::default() }
    }

    /// Calls the stream. Streams stay when they are closed, so there always is one.
    fn with<R>(&self, call: impl FnOnce(&mut Stream) -> R) -> io::Result<R> {
        let mut machine = self.machine.borrow_mut();
        machine.streams.get_mut(&self.descriptor).map(call).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn note_moved(&self, count: usize) {
        self.machine.borrow_mut().moved += count as u64;
    }

    /// An output segment carries the newest ACK, and the stream was used.
    fn note_output(&self, count: usize) {
        let mut machine = self.machine.borrow_mut();
        machine.moved += count as u64;
        let touched = machine.next_touch();
        let Some(stream) = machine.streams.get_mut(&self.descriptor) else { return };
        stream.touched = touched;
        let flow = Flow::new(stream.local, stream.remote);
        machine.slots.note_output(&flow);
    }

    fn note_late_write(&self) {
        let mut machine = self.machine.borrow_mut();
        if !machine.forgives_late_writes {
            let what = format!("bytes after the end of socket {}", self.descriptor);
            machine.violations.push(what);
        }
    }
}

/// Outcome of a call that has found `count` bytes of input.
fn input_outcome(stream: &mut Stream, count: usize) -> Transfer {
    match (count, stream.peer_end) {
        (1.., _) => Transfer::Moved(count),
        (0, PeerEnd::Open) => Transfer::Blocked,
        (0, PeerEnd::Fin) => Transfer::End,
        // An error is reported once.
        (0, PeerEnd::Reset { .. }) if stream.take_error() => {
            Transfer::Broken(io::ErrorKind::ConnectionReset.into())
        }
        (0, PeerEnd::Reset { .. }) => Transfer::End,
    }
}

impl Drop for MemorySocket {
    fn drop(&mut self) {
        self.machine.borrow_mut().close_stream(self.descriptor, self.closing.get());
    }
}

impl Socket for MemorySocket {
    fn descriptor(&self) -> i32 {
        self.descriptor
    }

    fn read(&self, buffer: &mut [u8]) -> Transfer {
        let length = buffer.len();
        self.read_scattered(buffer, &[(0, length)])
    }

    fn peek(&self, buffer: &mut [u8]) -> Transfer {
        let peeked = self.with(|stream| {
            let count = stream.copy_into(buffer);
            input_outcome(stream, count)
        });
        peeked.unwrap_or_else(Transfer::Broken)
    }

    fn read_scattered(&self, memory: &mut [u8], regions: &[(usize, usize)]) -> Transfer {
        let read = self.with(|stream| {
            let parts = regions.iter().map(|(offset, length)| *offset..offset + length);
            let count: usize = parts.map(|part| stream.read_into(&mut memory[part])).sum();
            input_outcome(stream, count)
        });
        if let Ok(Transfer::Moved(count)) = &read {
            self.note_moved(*count);
        }
        read.unwrap_or_else(Transfer::Broken)
    }

    fn write(&self, bytes: &[u8]) -> Transfer {
        self.write_gathered(&[bytes])
    }

    fn write_gathered(&self, pieces: &[&[u8]]) -> Transfer {
        let written = self.with(|stream| {
            if stream.is_reset() || stream.shut_down {
                stream.take_error();
                return None;
            }
            Some(pieces.iter().map(|piece| stream.take(piece)).sum::<usize>())
        });
        match written {
            Ok(Some(0)) => Transfer::Blocked,
            Ok(Some(count)) => {
                self.note_output(count);
                Transfer::Moved(count)
            }
            Ok(None) => {
                if self.with(|stream| stream.shut_down && !stream.is_reset()).unwrap_or(false) {
                    self.note_late_write();
                }
                Transfer::Broken(io::ErrorKind::BrokenPipe.into())
            }
            Err(error) => Transfer::Broken(error),
        }
    }

    fn write_last(&self, pieces: &[&[u8]]) -> Transfer {
        self.write_gathered(pieces)
    }

    fn shutdown_write(&self) {
        let _ = self.with(|stream| {
            stream.ended_first = stream.peer_end == PeerEnd::Open;
            stream.shut_down = true;
        });
        self.note_output(1);
        self.machine.borrow_mut().registrations.wake(self.descriptor);
    }

    fn reset_on_close(&self) {
        if self.closing.get() == Closing::Orderly {
            self.closing.set(Closing::Reset);
        }
    }

    fn forget_on_close(&self) -> io::Result<()> {
        self.closing.set(Closing::Silent);
        Ok(())
    }

    fn acknowledge_now(&self) {
        self.note_output(0);
    }

    fn has_input(&self) -> bool {
        self.with(|stream| !stream.inbox.is_empty()).unwrap_or(false)
    }

    fn is_drained(&self) -> bool {
        !self.has_input()
    }

    fn unacknowledged(&self) -> u64 {
        self.with(|stream| stream.written.len() as u64 - stream.acked).unwrap_or(0)
    }

    fn bytes_received(&self) -> io::Result<u64> {
        self.with(|stream| stream.read + stream.inbox.len() as u64)
    }

    fn timestamp(&self) -> io::Result<u32> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "no timestamps were negotiated"))
    }

    fn connect_error(&self) -> io::Result<()> {
        match self.with(|stream| stream.handshake == Handshake::Refused || stream.take_error())? {
            true => Err(io::ErrorKind::ConnectionRefused.into()),
            false => Ok(()),
        }
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        self.with(|stream| stream.local)
    }

    fn tcp_params(&self, _: Option<(SocketAddr, SocketAddr)>, _: u64) -> io::Result<TcpParams> {
        self.with(|stream| TcpParams {
            local: stream.local,
            remote: stream.remote,
            mss: MSS,
            window_scales: Some((7, 7)),
            sack: false,
            stamp: None,
        })
    }

    fn set_keepalive(&self, _: Option<Keepalive>) -> io::Result<()> {
        Ok(())
    }
}
