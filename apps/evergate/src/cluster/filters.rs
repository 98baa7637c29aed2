//! Programs on the interfaces: whoever sets up a network anew takes them off, and without them a node speaks for connections that
//! are another's, and hears those of its own no more.

use super::Interface;
use crate::control::message::warning;
use evergate_bpf::{Accept, Gate};
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
        let [outside, _] = self.interfaces;
        let mut missing: Vec<u32> = Vec::new();
        for interface in self.interfaces {
            if !self.gate.is_attached(interface.index) && !missing.contains(&interface.index) {
                missing.push(interface.index);
            }
        }
        let deaf = self.accept.as_ref().filter(|accept| !accept.is_attached(outside.index));
        if missing.is_empty() && deaf.is_none() {
            self.failures = 0;
            return;
        }
        let again = self.interfaces.iter().filter(|interface| missing.contains(&interface.index));
        let done = again
            .map(|interface| self.gate.attach(interface.index, interface.mac))
            .chain(deaf.map(|accept| accept.attach(outside.index)))
            .collect::<Result<(), _>>();
        match done {
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
}
