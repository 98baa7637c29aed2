//! Watch over the programs on the interfaces. A tool that sets up a network again removes them. Without them a node
//! sends for connections of other nodes, and does not receive for its own. The programs' knowledge of the interface is
//! also updated.

use crate::control::console::warning;
use evergate_bpf::{Accept, CardState, GateError, PacketGate};
use evergate_worker::Interface;
use std::io;
use std::sync::Arc;

/// The stateless accept, the name of its interface, and the interface's state that the program has.
pub(crate) struct Accepting {
    pub(crate) program: Accept,
    pub(crate) interface: String,
    pub(crate) card: CardState,
}

/// The current state of an interface.
pub(crate) fn card_state(interface: &str) -> io::Result<CardState> {
    let mtu = evergate_sys::card_mtu(interface)?;
    let segment = |headers: u32| u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX);
    let networks = evergate_sys::networks_of(interface)?.into_iter().collect();
    // Headers of IPv4 and IPv6, each with the TCP header.
    Ok(CardState { segment_bytes: [segment(40), segment(60)], networks })
}

/// Programs that must stay attached, with their interfaces.
pub(crate) struct Filters {
    gate: Arc<PacketGate>,
    /// Outside, inside: possibly the same.
    interfaces: [Interface; 2],
    accept: Option<Accepting>,
    /// Failed attempts in a row to attach them again.
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

    /// Attaches programs that are missing, logs it, and updates the interface's state.
    pub(crate) fn check(&mut self) {
        if evergate_sys::lacks_descriptors() {
            return; // no look-up is possible
        }
        self.update_card();
        let Some(attempts) = self.attach_missing() else {
            self.failures = 0;
            return;
        };
        match attempts {
            Ok(()) => warning(format_args!(
                "cluster: the packet filter had been removed from an interface (a `tc` command, a network that was \
                 set up again): it is attached again, and connections may have broken meanwhile"
            )),
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                // The first failure may come in the middle of a change.
                if self.failures == 2 {
                    warning(format_args!(
                        "cluster: the packet filter is off an interface and cannot be attached again: {error}; stop \
                         this node"
                    ));
                }
            }
        }
    }

    /// A removed interface keeps its last state, since it may come back.
    fn update_card(&mut self) {
        let Some(accept) = &mut self.accept else { return };
        let Ok(card) = card_state(&accept.interface) else { return };
        if card != accept.card && accept.program.set_card(&card).is_ok() {
            accept.card = card;
        }
    }

    /// `None` when nothing was missing; otherwise the first failure. A failure on one interface does not block another
    /// one.
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
