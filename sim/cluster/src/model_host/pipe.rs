//! Pipes: there are none, so nothing is spliced.

use super::socket::ModelSocket;
use evergate_base::net::Transfer;
use evergate_worker::host::Pipe;

/// A pipe; none exists.
pub(crate) enum ModelPipe {}

impl Pipe<ModelSocket> for ModelPipe {
    fn highest_descriptor(&self) -> i32 {
        match *self {}
    }

    fn held(&self) -> usize {
        match *self {}
    }

    fn fill(&mut self, _: &ModelSocket, _: usize, _: bool) -> Transfer {
        match *self {}
    }

    fn empty(&mut self, _: &ModelSocket) -> Transfer {
        match *self {}
    }
}
