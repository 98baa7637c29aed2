//! What the agent hears: datagrams, the answers of witnesses, and whether the cards have a carrier.

use super::{Agent, NETWORK, State};
use crate::agent::witness_ping::Witnesses;
use evergate_base::Micros;
use evergate_membership::{NodeId, Path, Reach, Rejected, VERSION};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

/// How long a route must be gone for this node alone: others look for theirs once a second, and a network that is set up anew has it
/// back by then.
const ROUTE_PATIENCE: Micros = Micros::from_ms(2500);
/// Between two looks at which interfaces there are.
const CARDS: Micros = Micros::from_ms(500);
/// Datagrams taken from a socket in one turn: more than its queue holds, so that a turn hears all that waited.
const DATAGRAMS_MAX: usize = 4096;
/// How long a node that has no state yet founds nothing after somebody at another node's address spoke under another key: it
/// would found a second cluster beside the one that it belongs to.
const ESTRANGED: Micros = Micros::from_ms(2000);
/// Between two lines about it.
const ESTRANGED_LINES: Micros = Micros::from_ms(10_000);
/// Between two looks at what strangers say: whoever floods the port must not cost a check of the tag each time.
const UNLISTED: Micros = Micros::from_ms(50);

/// What a network lacks as far as this machine can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    Carrier,
    /// Nothing can be sent there as this node.
    Address,
    /// The default route that led there is gone. Clients on the link are still served: with nobody else there it is nothing.
    Route,
    /// No other node is heard there, or none hears this one, and no witness of it answers.
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
    /// The steady questions; one that a promise waits for; and one with every heartbeat while less than half is left of what
    /// the last answer is good for. Only the answers to the latter two wake the agent.
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
                // Without it, the answer is read with the next heartbeats.
                let _ = match state.expects {
                    true => state.epoll.add_input(fd, NETWORK),
                    false => state.epoll.remove(fd),
                };
            }
        }
    }

    /// A pulled cable is known at once, where silence would have to last. A network on which neither other nodes are heard nor
    /// its witnesses answer is silent: of two nodes the one whose side works sees it otherwise, unless its witness is dead.
    pub(super) fn check_carriers(&mut self, now: Micros) {
        let span = self.node.config().timing.suspect;
        let alone = self.node.reachable_nodes().len() < 2;
        for link in &mut self.links {
            let silent = self.witnesses.as_ref().is_some_and(|all| all.are_silent_on(link.path, now, span));
            let dead = silent && self.node.is_unreachable_on(link.path);
            // An interface that is gone has no carrier either, and one without this node's address is of no more use.
            let up = evergate_sys::has_carrier(link.datagrams.urgent.as_raw_fd(), &link.interface)
                .unwrap_or(false);
            link.lack = match (up, link.mute, dead) {
                (false, ..) => Some(Lack::Carrier),
                (_, true, _) => Some(Lack::Address),
                _ if self.strayed.is(link.path) && !alone => Some(Lack::Route),
                (_, _, true) => Some(Lack::Answers),
                _ => None,
            };
            let late = if link.lack == Some(Lack::Route) { ROUTE_PATIENCE } else { Micros(0) };
            self.node.set_loss_timeout(link.path, late);
            self.node.set_reach(now, link.path, link.lack.map_or(Reach::Works, Lack::reach));
        }
    }

    /// An interface that was made anew is another one, and all that was noted of it is wrong: filters, routes of connections. An error
    /// ends the node.
    pub(super) fn check_cards(&self, state: &mut State) -> std::io::Result<()> {
        let now = self.clock.now();
        if now < state.cards_at {
            return Ok(());
        }
        state.cards_at = now + CARDS;
        for link in &self.links {
            // One that is gone has no carrier, which is enough.
            match evergate_sys::card_index(link.datagrams.urgent.as_raw_fd(), &link.interface) {
                Ok(index) if index != link.index => {
                    return Err(std::io::Error::other(format!(
                        "the interface {} was made anew (number {index}, {} before); start this node again",
                        link.interface, link.index
                    )));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes what waits in the sockets of a link, `urgent` or not; whether there was something.
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
            let (not_understood, other_forms) =
                (self.not_understood(), self.node.rejected(Rejected::Version));
            let datagram = state.buffer.get(..length).unwrap_or_default();
            let form = datagram.first().copied();
            self.node.handle_datagram(self.clock.now(), path, datagram);
            if let Some(peer) = peer.filter(|_| self.not_understood() > not_understood) {
                let form = form.filter(|_| self.node.rejected(Rejected::Version) > other_forms);
                self.estrange(state, peer, form);
            }
        }
    }

    /// Datagrams so far that this node could not make sense of, as those of another key, name or version.
    fn not_understood(&self) -> u64 {
        let reasons = [Rejected::Forged, Rejected::UnknownKey, Rejected::Version, Rejected::WrongCluster];
        reasons.into_iter().map(|reason| self.node.rejected(reason)).sum()
    }

    /// Somebody speaks from where no node of the list is. Whoever has the key is of this cluster by another list: neither side may
    /// found one beside the other's.
    fn on_unlisted_address(&mut self, state: &mut State, index: usize, from: SocketAddr, length: usize) {
        let now = self.clock.now();
        if state.unlisted_received_at.is_some_and(|at| now.since(at) < UNLISTED) {
            return;
        }
        state.unlisted_received_at = Some(now);
        let Some(id) = self.node.sender_of(state.buffer.get(..length).unwrap_or_default()) else { return };
        self.node.block_bootstrap(now, now + ESTRANGED);
        if let (Some(link), Some(word)) = (self.links.get(index), self.node.notify_unlisted(now, id)) {
            let _ = link.datagrams.urgent.send_to(&word, from); // it speaks again
        }
        if state.unlisted_logged_at.is_none_or(|at| now.since(at) >= ESTRANGED_LINES) {
            state.unlisted_logged_at = Some(now);
            self.warn(format!(
                "{} speaks as node {} of this cluster and has its key, but no node of [[cluster.nodes]] has that address here: \
                 is the list the same on all nodes?",
                from.ip().to_canonical(),
                id.0.saturating_add(1)
            ));
        }
    }

    /// Somebody at the very address of a node speaks, and is not understood: for another form of messages, if one is given.
    fn estrange(&mut self, state: &mut State, peer: NodeId, form: Option<u8>) {
        let now = self.clock.now();
        self.node.block_bootstrap(now, now + ESTRANGED);
        if state.foreign_logged_at.is_none_or(|at| now.since(at) >= ESTRANGED_LINES) {
            state.foreign_logged_at = Some(now);
            let number = peer.0.saturating_add(1);
            let peer_input =
                Path::ALL.iter().filter_map(|path| self.node.last_received_at(peer, *path)).max();
            let is_received = peer_input.is_some_and(|at| now.since(at) < ESTRANGED);
            let why = match form.filter(|_| !is_received) {
                Some(form) => format!(
                    "does not understand node {number}, which speaks heartbeats of form {form}, and this one form {VERSION}: run the same version \
                     on all nodes; nodes of different forms do not serve beside each other"
                ),
                None if is_received => format!(
                    "does not understand some of what comes from node {number}'s address, and the rest it does: somebody else sends that, or did"
                ),
                None => format!(
                    "does not understand node {number}: are cluster.name and cluster.key_file the same there?"
                ),
            };
            self.warn(why);
        }
    }
}
