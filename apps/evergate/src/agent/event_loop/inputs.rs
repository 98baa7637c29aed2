//! The agent's inputs: datagrams, answers of witnesses, and the carriers of the interfaces.

use super::{Agent, NETWORK, State};
use crate::agent::witness_ping::Witnesses;
use evergate_base::Micros;
use evergate_membership::{NodeId, Path, Reach, Rejected, VERSION};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

/// How long a route must be missing for this node alone. The other nodes check theirs once a second, and a network that
/// is being set up again has its routes back by then.
const ROUTE_PATIENCE: Micros = Micros::from_ms(2500);
/// Time between two checks of the interfaces' numbers.
const CARDS: Micros = Micros::from_ms(500);
/// Datagrams read from a socket in one turn: more than its queue holds, so a turn reads all that waited.
const DATAGRAMS_MAX: usize = 4096;
/// How long a node without state does not bootstrap a cluster after a datagram of another key came from a peer's
/// address. It could bootstrap a second cluster beside its own.
const FOREIGN: Micros = Micros::from_ms(2000);
/// Time between two log lines about foreign or unlisted nodes.
const FOREIGN_LINES: Micros = Micros::from_ms(10_000);
/// Time between two checked datagrams from unlisted addresses: a flood must not cost a check of the tag each time.
const UNLISTED: Micros = Micros::from_ms(50);

/// A defect of a network, as far as this machine can detect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    Carrier,
    /// This node cannot send there from its own address.
    Address,
    /// The default route over it is gone. Clients on the link are still served, so it counts only while peers are
    /// reachable.
    Route,
    /// This node exchanges heartbeats with no other node there, and no witness on it answers.
    Answers,
}

impl Lack {
    fn reach(self) -> Reach {
        match self {
            Lack::Carrier | Lack::Address | Lack::Route => Reach::Gone,
            Lack::Answers => Reach::Silent,
        }
    }
}

impl Agent {
    /// Pings the witnesses: regularly, when a promise waits for an answer, and with every heartbeat while the last
    /// answer has less than half of its time left. Only answers to the latter two wake the agent.
    pub(super) fn ask_witnesses(&mut self, state: &mut State, now: Micros) {
        let Some(witnesses) = &mut self.witnesses else { return };
        let timing = self.node.config().timing;
        let wanted = self.node.witness_wanted();
        let anxious = self.node.witness_until().since(now).0 < timing.fence.0 / 2;
        let gap = if wanted.is_some_and(|from| now >= from) && state.asked_for != wanted {
            state.asked_for = wanted;
            Micros(0)
        } else if anxious {
            Micros(timing.heartbeat.0 / 2)
        } else {
            Witnesses::steady(timing.fence)
        };
        witnesses.ask(now, gap);
        let expects = anxious || wanted.is_some();
        if state.expects != expects {
            state.expects = expects;
            for fd in witnesses.fds() {
                // On failure the answer is read with the next heartbeats.
                let _ = match state.expects {
                    true => state.epoll.add_input(fd, NETWORK),
                    false => state.epoll.remove(fd),
                };
            }
        }
    }

    /// Reports lost networks to the protocol. A lost carrier counts at once, where silence would have to last. A
    /// network is silent if neither peers nor its witnesses answer there. Of two nodes, the node whose side works still
    /// reaches its witness, unless the witness is down.
    pub(super) fn check_carriers(&mut self, now: Micros) {
        let span = self.node.config().timing.suspect;
        let alone = self.node.reachable_nodes().len() < 2;
        for link in &mut self.links {
            let silent = self.witnesses.as_ref().is_some_and(|all| all.are_silent_on(link.path, now, span));
            let dead = silent && self.node.is_unreachable_on(link.path);
            // A removed interface has no carrier either, and an interface without this node's address is as useless.
            let up = evergate_sys::has_carrier(link.datagrams.urgent.as_raw_fd(), &link.interface)
                .unwrap_or(false);
            link.lack = match (up, link.blocked, dead) {
                (false, ..) => Some(Lack::Carrier),
                (_, true, _) => Some(Lack::Address),
                _ if self.route_lost.is(link.path) && !alone => Some(Lack::Route),
                (_, _, true) => Some(Lack::Answers),
                _ => None,
            };
            let late = if link.lack == Some(Lack::Route) { ROUTE_PATIENCE } else { Micros(0) };
            self.node.set_loss_timeout(link.path, late);
            self.node.set_reach(now, link.path, link.lack.map_or(Reach::Works, Lack::reach));
        }
    }

    /// Detects an interface that was created again. It has another number, and all that was recorded about it is wrong:
    /// filters, routes of connections. The error ends the node.
    pub(super) fn check_cards(&self, state: &mut State) -> std::io::Result<()> {
        let now = self.clock.now();
        if now < state.cards_at {
            return Ok(());
        }
        state.cards_at = now + CARDS;
        for link in &self.links {
            // A removed interface has no carrier, which is enough.
            match evergate_sys::card_index(link.datagrams.urgent.as_raw_fd(), &link.interface) {
                Ok(index) if index != link.index => {
                    return Err(std::io::Error::other(format!(
                        "the interface {} was created again (number {index}, before {}); restart this node",
                        link.interface, link.index
                    )));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads the datagrams that wait in a link's calm socket, and with `urgent` in its urgent socket. Whether there
    /// were any.
    pub(super) fn drain_link(&mut self, state: &mut State, index: usize, urgent: bool) -> bool {
        let before = state.counts.datagrams_received;
        if urgent {
            self.drain_socket(state, index, false);
        }
        self.drain_socket(state, index, true);
        state.counts.datagrams_received != before
    }

    fn drain_socket(&mut self, state: &mut State, index: usize, calm: bool) {
        for _ in 0..DATAGRAMS_MAX {
            let Some(link) = self.links.get(index) else { return };
            let socket = if calm { &link.datagrams.calm } else { &link.datagrams.urgent };
            let (length, from) = match socket.recv_from(&mut state.buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => continue, // an ICMP error of something sent before
            };
            state.counts.datagrams_received += 1;
            let ip = from.ip().to_canonical();
            let Some(sender) = link.peers.iter().find(|(_, at)| at.ip() == ip) else {
                state.unlisted += 1;
                self.on_unlisted_address(state, index, from, length);
                continue;
            };
            let (path, peer) = (link.path, (*sender.1 == from).then_some(*sender.0));
            let (unreadable, other_versions) =
                (self.unreadable_count(), self.node.rejected(Rejected::Version));
            let datagram = state.buffer.get(..length).unwrap_or_default();
            let version = datagram.first().copied();
            self.node.handle_datagram(self.clock.now(), path, datagram);
            if let Some(peer) = peer.filter(|_| self.unreadable_count() > unreadable) {
                let version = version.filter(|_| self.node.rejected(Rejected::Version) > other_versions);
                self.on_foreign_datagram(state, peer, version);
            }
        }
    }

    /// Number of rejected datagrams so far: of another key, name or version.
    fn unreadable_count(&self) -> u64 {
        let reasons = [Rejected::Forged, Rejected::UnknownKey, Rejected::Version, Rejected::WrongCluster];
        reasons.into_iter().map(|reason| self.node.rejected(reason)).sum()
    }

    /// A datagram from an address that the list does not have. A sender with the key belongs to this cluster under
    /// another list, and neither side may bootstrap a cluster beside the other.
    fn on_unlisted_address(&mut self, state: &mut State, index: usize, from: SocketAddr, length: usize) {
        let now = self.clock.now();
        if state.unlisted_received_at.is_some_and(|at| now.since(at) < UNLISTED) {
            return;
        }
        state.unlisted_received_at = Some(now);
        let Some(id) = self.node.sender_of(state.buffer.get(..length).unwrap_or_default()) else { return };
        self.node.block_bootstrap(now, now + FOREIGN);
        if let (Some(link), Some(notice)) = (self.links.get(index), self.node.notify_unlisted(now, id)) {
            let _ = link.datagrams.urgent.send_to(&notice, from); // the node sends again
        }
        if state.unlisted_logged_at.is_none_or(|at| now.since(at) >= FOREIGN_LINES) {
            state.unlisted_logged_at = Some(now);
            self.warn(format!(
                "received a heartbeat of node {} with this cluster's key from {}: no node of [[cluster.nodes]] has \
                 that address here; make the list the same on all nodes",
                id.0.saturating_add(1),
                from.ip().to_canonical()
            ));
        }
    }

    /// A datagram from a peer's own address that this node cannot read: of another protocol version, if `version` has
    /// one.
    fn on_foreign_datagram(&mut self, state: &mut State, peer: NodeId, version: Option<u8>) {
        let now = self.clock.now();
        self.node.block_bootstrap(now, now + FOREIGN);
        if state.foreign_logged_at.is_none_or(|at| now.since(at) >= FOREIGN_LINES) {
            state.foreign_logged_at = Some(now);
            let number = peer.0.saturating_add(1);
            let received_at =
                Path::ALL.iter().filter_map(|path| self.node.last_received_at(peer, *path)).max();
            let is_received = received_at.is_some_and(|at| now.since(at) < FOREIGN);
            let why = match version.filter(|_| !is_received) {
                Some(version) => format!(
                    "rejects heartbeats of node {number}: they have version {version}, and this node uses \
                     {VERSION}; run the same version on all nodes: nodes with different heartbeats do not serve \
                     beside each other"
                ),
                None if is_received => format!(
                    "rejects some datagrams from node {number}'s address and accepts others: another sender uses \
                     that address, or did"
                ),
                None => format!(
                    "rejects heartbeats of node {number}: are cluster.name and cluster.key_file the same there?"
                ),
            };
            self.warn(why);
        }
    }
}
