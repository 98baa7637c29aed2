//! Programs on the interfaces: whoever sets up a network anew takes them off, and without them a node speaks for connections that
//! are another's, and hears those of its own no more. And what they know of the interface, which may change under them.

use super::Interface;
use crate::control::console::warning;
use evergate_bpf::{Accept, CardState, GateError, PacketGate};
use std::io;
use std::sync::Arc;

/// The stateless accept, the name of its interface, and what it knows of that.
pub(crate) struct Accepting {
    pub(crate) program: Accept,
    pub(crate) interface: String,
    pub(crate) card: CardState,
}

/// What an interface is like now.
pub(crate) fn card_state(interface: &str) -> io::Result<CardState> {
    let mtu = evergate_sys::card_mtu(interface)?;
    let segment = |headers: u32| u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX);
    let networks = evergate_sys::networks_of(interface)?.into_iter().collect();
    // Headers of IPv4 and IPv6, with that of TCP.
    Ok(CardState { segment_bytes: [segment(40), segment(60)], networks })
}

/// What is to stay attached, and where.
pub(crate) struct Filters {
    gate: Arc<PacketGate>,
    /// Outside, inside: perhaps the same.
    interfaces: [Interface; 2],
    accept: Option<Accepting>,
    /// How often in a row they could not be attached again.
    failures: u32,
}

impl Filters {
    pub(crate) fn new(
        gate: Arc<PacketGate>,
        interfaces: [Interface; 2],
        accept: Option<Accepting>,
    ) -> Filters {
        Filters { gate, interfaces, accept, failures: 0 }
    }

    pub(crate) fn gate(&self) -> Arc<PacketGate> {
        self.gate.clone()
    }

    /// Attaches what is not attached any more, and says so; tells it what has changed.
    pub(crate) fn keep(&mut self) {
        if evergate_sys::lacks_descriptors() {
            return; // nothing can be looked at
        }
        self.update_card();
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

    /// An interface that is gone is as it was: it may come back.
    fn update_card(&mut self) {
        let Some(accept) = &mut self.accept else { return };
        let Ok(card) = card_state(&accept.interface) else { return };
        if card != accept.card && accept.program.set_card(&card).is_ok() {
            accept.card = card;
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
        let accept = self.accept.as_ref().map(|accept| &accept.program);
        if let Some(accept) = accept.filter(|accept| !accept.is_attached(outside.index)) {
            attempts.push(accept.attach(outside.index));
        }
        (!attempts.is_empty()).then(|| attempts.into_iter().collect())
    }
}
