//! Programs on the interfaces: whoever sets up a network anew takes them off, and without them a node speaks for connections that
//! are another's, and hears those of its own no more.

use super::Interface;
use crate::control::message::warning;
use evergate_bpf::{Accept, Gate, GateError};
use std::sync::Arc;

/// What is to stay attached, and where.
pub(crate) struct Filters {
    gate: Arc<Gate>,
    /// Outside, inside: perhaps the same.
    interfaces: [Interface; 2],
    accept: Option<Accept>,
    /// How often in a row they could not be attached again.
    failures: u32,
}

impl Filters {
    pub(crate) fn new(gate: Arc<Gate>, interfaces: [Interface; 2], accept: Option<Accept>) -> Filters {
        Filters { gate, interfaces, accept, failures: 0 }
    }

    pub(crate) fn gate(&self) -> Arc<Gate> {
        self.gate.clone()
    }

    /// Attaches what is not attached any more, and says so.
    pub(crate) fn keep(&mut self) {
        let Some(attempts) = self.attach_missing() else {
            self.failures = 0;
            return;
        };
        match attempts {
            Ok(()) => warning(format_args!(
                "cluster: somebody had taken the packet filter off an interface (a `tc` command, a network set up anew); \
                 it is attached again, and connections may have broken meanwhile"
            )),
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                // Once it may just be happening.
                if self.failures == 2 {
                    warning(format_args!(
                        "cluster: the packet filter is off an interface and cannot be attached again: {error}; stop this node"
                    ));
                }
            }
        }
    }

    /// `None` when nothing was missing; the first failure otherwise. One interface that cannot be had does not keep another from it.
    fn attach_missing(&self) -> Option<Result<(), GateError>> {
        let [outside, inside] = self.interfaces;
        let mut attempts = Vec::new();
        for interface in [outside, inside] {
            if !self.gate.is_attached(interface.index) {
                attempts.push(self.gate.attach(interface.index, interface.mac));
            }
        }
        if let Some(accept) = self.accept.as_ref().filter(|accept| !accept.is_attached(outside.index)) {
            attempts.push(accept.attach(outside.index));
        }
        (!attempts.is_empty()).then(|| attempts.into_iter().collect())
    }
}
