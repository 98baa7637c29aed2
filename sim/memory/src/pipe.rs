//! Pipes: bytes on their way between two sockets.

use crate::socket::MemorySocket;
use evergate_base::net::Transfer;
use evergate_worker::host::{Pipe, Socket};

/// Bytes that a pipe holds.
const CAPACITY: usize = 65_536;

/// A pipe.
#[derive(Debug, Default)]
pub struct MemoryPipe(Vec<u8>);

impl Pipe<MemorySocket> for MemoryPipe {
    fn highest_descriptor(&self) -> i32 {
        0
    }

    fn held(&self) -> usize {
        self.0.len()
    }

    fn fill(&mut self, from: &MemorySocket, bytes: usize, _: bool) -> Transfer {
        let held = self.0.len();
        let mut memory = vec![0; bytes.min(CAPACITY - held)];
        if memory.is_empty() {
            return Transfer::Blocked;
        }
        let filled = from.read(&mut memory);
        if let Transfer::Moved(count) = filled {
            self.0.extend_from_slice(&memory[..count]);
        }
        filled
    }

    fn empty(&mut self, to: &MemorySocket) -> Transfer {
        let emptied = to.write(&self.0);
        if let Transfer::Moved(count) = emptied {
            self.0.drain(..count);
        }
        emptied
    }
}
