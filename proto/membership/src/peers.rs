//! All other nodes, and which of them were received lately.
//!
//! Invariant: the set of peers is the list of the configuration without this node, for the life of the process.

use std::collections::BTreeMap;
use std::collections::btree_map::{Keys, Values, ValuesMut};

use evergate_base::Micros;

use crate::clock::Clock;
use crate::config::Config;
use crate::message::Heartbeat;
use crate::peer::Peer;
use crate::{Incarnation, Member, MemberSet, Members, NodeId, Path};

/// The other nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Peers {
    list: BTreeMap<NodeId, Peer>,
    /// This node, which is in no list of its own.
    me: NodeId,
    /// Silence after which a peer is suspected.
    suspect: Micros,
}

impl Peers {
    /// The peers of a configuration, none of which was received yet.
    pub(crate) fn new(config: &Config) -> Peers {
        let list = config.nodes.without(config.id).iter().map(|id| (id, Peer::new(id))).collect();
        Peers { list, me: config.id, suspect: config.timing.suspect }
    }

    pub(crate) fn get(&self, id: NodeId) -> Option<&Peer> {
        self.list.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: NodeId) -> Option<&mut Peer> {
        self.list.get_mut(&id)
    }

    pub(crate) fn contains(&self, id: NodeId) -> bool {
        self.list.contains_key(&id)
    }

    pub(crate) fn ids(&self) -> Keys<'_, NodeId, Peer> {
        self.list.keys()
    }

    pub(crate) fn values(&self) -> Values<'_, NodeId, Peer> {
        self.list.values()
    }

    pub(crate) fn values_mut(&mut self) -> ValuesMut<'_, NodeId, Peer> {
        self.list.values_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, &Peer)> {
        self.list.iter().map(|(id, peer)| (*id, peer))
    }

    /// A peer's newest heartbeat to this incarnation.
    pub(crate) fn last(&self, id: NodeId) -> Option<&Heartbeat> {
        self.get(id)?.last.as_ref()
    }

    /// A peer's newest heartbeat, if the peer was received lately.
    pub(crate) fn reachable_last(&self, id: NodeId, clock: &Clock) -> Option<&Heartbeat> {
        self.last(id).filter(|_| self.is_reachable(id, clock))
    }

    /// How long a node's adopted incarnation has been silent at `now`; `None` if nothing was ever received from it.
    pub(crate) fn silence(&self, id: NodeId, clock: &Clock, now: Micros) -> Option<Micros> {
        let received_at = self.get(id)?.last_received()?;
        Some(clock.silence_since(received_at, now))
    }

    /// Whether a heartbeat of the node was received lately.
    pub(crate) fn is_reachable(&self, id: NodeId, clock: &Clock) -> bool {
        self.silence(id, clock, clock.turn()).is_some_and(|silence| silence < self.suspect)
    }

    /// Nodes that were received lately, this one included.
    pub(crate) fn reachable_set(&self, clock: &Clock) -> MemberSet {
        let ids = self.list.keys().copied();
        ids.filter(|id| self.is_reachable(*id, clock)).collect::<MemberSet>().with(self.me)
    }

    /// This node, and the reachable nodes with this property.
    pub(crate) fn reachable_where(&self, clock: &Clock, is_so: fn(&Peer) -> bool) -> MemberSet {
        let matches = |(id, peer): &(NodeId, &Peer)| self.is_reachable(*id, clock) && is_so(peer);
        self.iter().filter(matches).map(|(id, _)| id).collect::<MemberSet>().with(self.me)
    }

    /// Nodes that were received lately on one network.
    pub(crate) fn reachable_on(&self, path: Path, clock: &Clock) -> MemberSet {
        let lately = |(_, peer): &(NodeId, &Peer)| {
            let at = peer.received_at.get(path.index()).copied().flatten();
            at.is_some_and(|at| clock.silence_since(at, clock.turn()) < self.suspect)
        };
        self.iter().filter(lately).map(|(id, _)| id).collect()
    }

    /// The newest heartbeats of the reachable nodes.
    pub(crate) fn reachable_heartbeats(&self, clock: &Clock) -> impl Iterator<Item = (NodeId, &Heartbeat)> {
        let clock = *clock;
        self.iter()
            .filter(move |(id, _)| self.is_reachable(*id, &clock))
            .filter_map(|(id, peer)| Some((id, peer.last.as_ref()?)))
    }

    /// Whether two nodes receive each other, by their own reports.
    pub(crate) fn mutual(&self, a: NodeId, b: NodeId, clock: &Clock) -> bool {
        self.reports_reachable(a, b, clock) && self.reports_reachable(b, a, clock)
    }

    fn reports_reachable(&self, reporter: NodeId, id: NodeId, clock: &Clock) -> bool {
        if reporter == self.me {
            return self.is_reachable(id, clock);
        }
        self.last(reporter).is_some_and(|last| last.reports_reachable(id))
    }

    /// Whether a heartbeat of exactly this incarnation of a peer was received lately.
    pub(crate) fn is_incarnation_reachable(&self, member: Member, clock: &Clock) -> bool {
        self.is_reachable(member.id, clock) && self.get(member.id).is_some_and(|peer| peer.member() == member)
    }

    /// These nodes in their known incarnations; `me` is this node's.
    pub(crate) fn incarnations(&self, nodes: MemberSet, me: Member) -> Members {
        let incarnation = |id: NodeId| -> (NodeId, Incarnation) {
            let known = self.get(id).map(|peer| peer.incarnation);
            (id, if id == me.id { me.incarnation } else { known.unwrap_or_default() })
        };
        Members(nodes.iter().map(incarnation).collect())
    }

    /// The shortest lease that a peer grants; `fence` where none is shorter.
    pub(crate) fn shortest_lease(&self, fence: Micros) -> Micros {
        self.values().filter_map(|peer| peer.lease).fold(fence, Micros::min)
    }

    /// Peers that are avoided for a while, because they did not keep up as backups.
    pub(crate) fn avoided(&self, now: Micros) -> MemberSet {
        self.iter().filter(|(_, peer)| peer.is_avoided(now)).map(|(id, _)| id).collect()
    }

    /// Ends of the leases from the peers, the latest first.
    pub(crate) fn expiries(&self) -> Vec<Micros> {
        let mut expiries: Vec<Micros> = self.values().map(|peer| peer.expiry).collect();
        expiries.sort_unstable_by(|a, b| b.cmp(a));
        expiries
    }
}
