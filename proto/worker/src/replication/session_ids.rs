//! Replication of sessions: every node receives them, for a client may return to any node. They are TLS 1.2 sessions of
//! this cluster, which clients resume by their ids, and sessions of foreign servers, which relayed handshakes showed.
//!
//! The sessions of a turn leave with its frames, over one channel to each node. Backups have a channel; other nodes
//! that serve clients get one as soon as there is a session. A newly reached node receives the newest sessions. No
//! output waits for any of this: a node with lag receives no new sessions, and its clients make full handshakes.
//! Withdrawals are always sent. Learned sessions have a budget of their own per turn.

use super::Cluster;
use crate::NamedSessions;
use crate::host::Host;
use crate::pools::HandshakeNews;
use crate::worker::Worker;
use evergate_base::Unix;
use evergate_base::session::{KeptSession, LearnedSession, SessionId};
use evergate_membership::{NodeId, Role};
use evergate_replication::{Frame, SessionNews};
use std::collections::BTreeSet;

/// News of new sessions that a turn takes, in bytes.
const NEWS_BYTES_MAX: usize = 256 << 10;
/// Learned sessions that a turn takes: 256 KiB on the wire.
const LEARNED_PER_TURN_MAX: usize = (256 << 10) / LEARNED_BYTES;
/// Most learned sessions sent to a newly reached node: 1 MiB on the wire.
const LEARNED_NEWEST_MAX: usize = (1 << 20) / LEARNED_BYTES;
/// Size of a learned session on the wire, with its kind.
const LEARNED_BYTES: usize = 1 + LearnedSession::WIRE_BYTES;
/// Most bytes of sessions sent to a newly reached node; and in one frame.
const NEWEST_BYTES_MAX: usize = 4 << 20;
const FRAME_BYTES: usize = 64 << 10;
/// A node for which more waits is behind.
const BEHIND_BYTES_MAX: usize = 2 * NEWEST_BYTES_MAX;

/// Changes of sessions in this turn.
#[derive(Default)]
pub(super) struct News {
    list: Vec<SessionNews>,
    bytes: usize,
    /// Learned and forgotten sessions in the list.
    learned: usize,
    /// Some session was learned here.
    has_learned: bool,
    /// Nodes of which a channel was lost.
    missed_by: BTreeSet<NodeId>,
    /// Some session was aborted here.
    withdrew: bool,
}

impl News {
    /// Adds what a relayed handshake showed. Returns false when the turn has no room for all of it.
    fn add_learned(&mut self, news: HandshakeNews) -> bool {
        let forgotten = news.forgotten.map(|(hash, server)| SessionNews::Forgotten { hash, server });
        for news in news.learned.into_iter().map(SessionNews::Learned).chain(forgotten) {
            if self.learned == LEARNED_PER_TURN_MAX {
                return false;
            }
            self.learned += 1;
            self.has_learned = true;
            self.list.push(news);
        }
        true
    }

    /// The news of the turn. The next one has its whole budget.
    fn take(&mut self) -> Vec<SessionNews> {
        (self.bytes, self.learned) = (0, 0);
        std::mem::take(&mut self.list)
    }

    /// Whether other nodes should have a channel for news.
    fn has_any(&self) -> bool {
        self.withdrew || self.has_learned
    }
}

/// What a node with too much unsent output still receives: an aborted session must not be resumed.
fn essential(news: &SessionNews) -> bool {
    matches!(news, SessionNews::Withdrawn(_))
}

impl<H: Host> Worker<H> {
    /// A client may resume this session by its id.
    pub(crate) fn keep_session(&mut self, session: KeptSession) {
        if let Some(cluster) = &mut self.cluster {
            let bytes = bytes_of(&session);
            if cluster.news.bytes + bytes <= NEWS_BYTES_MAX {
                cluster.news.bytes += bytes;
                cluster.news.list.push(SessionNews::Kept(session.clone()));
            } else {
                self.counters.reason("session_id_not_replicated");
            }
        }
        self.shared.sessions.keep(session, self.host.wall_clock_s());
    }

    /// No client may resume this session any more.
    pub(crate) fn withdraw_session(&mut self, id: SessionId) {
        if let Some(cluster) = &mut self.cluster {
            cluster.news.list.push(SessionNews::Withdrawn(id));
            cluster.news.withdrew = true;
        }
        self.shared.sessions.withdraw(id, self.host.wall_clock_s());
    }

    /// A relayed handshake showed these sessions of foreign servers, or their end.
    pub(crate) fn replicate_learned(&mut self, news: HandshakeNews) {
        let Some(cluster) = &mut self.cluster else { return };
        if !cluster.news.add_learned(news) {
            self.counters.reason("learned_session_not_replicated");
        }
    }

    /// Stores sessions of foreign servers that another node learned.
    fn adopt_learned(&self, entries: &mut Vec<LearnedSession<u64>>, now: Unix) {
        if let Some(current) = self.current.last() {
            for sessions in current.generation.pools.iter().filter_map(|pool| pool.sessions.as_ref()) {
                sessions.adopt(entries, now);
            }
        }
        entries.clear();
    }

    /// Applies the sessions and withdrawals of another node.
    pub(super) fn take_session_news(&mut self, news: Vec<SessionNews>) {
        if news.is_empty() {
            return;
        }
        let now = Unix(self.host.wall_clock_s());
        let mut learned = Vec::new();
        for news in news {
            match news {
                SessionNews::Kept(session) => self.shared.sessions.keep(session, now.0),
                SessionNews::Withdrawn(id) => self.shared.sessions.withdraw(id, now.0),
                SessionNews::Learned(entry) => learned.push(entry),
                SessionNews::Forgotten { hash, server } => {
                    self.adopt_learned(&mut learned, now); // it may be among those
                    let Some(current) = self.current.last() else { continue };
                    let pools = current.generation.pools.iter();
                    pools
                        .filter_map(|pool| pool.sessions.as_ref())
                        .for_each(|sessions| sessions.disown(hash, server, now));
                }
            }
        }
        self.adopt_learned(&mut learned, now);
    }

    /// Sends the sessions that a node with a new channel may have missed, when it is the first channel or frames may
    /// have been lost with another. Every worker sends withdrawals; one worker sends the sessions.
    pub(super) fn send_missed_sessions(&mut self, node: NodeId) {
        let Some(cluster) = &mut self.cluster else { return };
        let channels = cluster.channels.outgoing.range((node, 0)..=(node, usize::MAX)).count();
        if !cluster.news.missed_by.remove(&node) && channels > 1 {
            return;
        }
        let reports_all = cluster.worker == 0;
        let mut frame = News::default();
        let newest = self.shared.sessions.newest(NEWEST_BYTES_MAX).into_iter();
        for news in newest.filter(|news| reports_all || news.is_err()) {
            frame.bytes += news.as_ref().map_or(size_of::<SessionId>(), bytes_of);
            frame.list.push(news.map_or_else(SessionNews::Withdrawn, SessionNews::Kept));
            if frame.bytes >= FRAME_BYTES {
                cluster.send_sessions(node, std::mem::take(&mut frame).list);
            }
        }
        cluster.send_sessions(node, frame.list);
        if reports_all {
            self.send_newest_learned(node);
        }
    }

    fn send_newest_learned(&mut self, node: NodeId) {
        let (Some(cluster), Some(current)) = (&mut self.cluster, self.current.last()) else { return };
        let now = Unix(self.host.wall_clock_s());
        let mut newest = Vec::new();
        for sessions in current.generation.pools.iter().filter_map(|pool| pool.sessions.as_ref()) {
            newest.extend(sessions.newest(LEARNED_NEWEST_MAX - newest.len(), now));
        }
        newest.reverse();
        for entries in newest.chunks(FRAME_BYTES / LEARNED_BYTES) {
            let news = entries.iter().map(|entry| SessionNews::Learned(*entry)).collect();
            cluster.send_sessions(node, news);
        }
    }
}

impl<H: Host> Cluster<H> {
    /// A channel to this node was lost, perhaps with news.
    pub(super) fn note_missed_sessions(&mut self, node: NodeId) {
        self.news.missed_by.insert(node);
    }

    /// Nodes that serve clients and to which this worker has no channel, when there are sessions to send: with uneven
    /// weights some nodes are no backup of this one.
    pub(super) fn unreached(&self, sessions: &NamedSessions) -> BTreeSet<NodeId> {
        if sessions.is_empty() && !self.news.has_any() {
            return BTreeSet::new();
        }
        let reached =
            |node: &NodeId| self.channels.outgoing.range((*node, 0)..=(*node, usize::MAX)).next().is_some();
        self.other_owners().into_iter().filter(|node| !reached(node)).collect()
    }

    /// Other nodes that serve clients.
    pub(super) fn other_owners(&self) -> BTreeSet<NodeId> {
        let owner = |role: &Role| match role {
            Role::Backup { owner, .. } => Some(*owner),
            Role::Outside { owner, .. } => *owner,
            Role::Owner { .. } => None,
        };
        self.roles.iter().filter_map(owner).collect()
    }

    /// Sends the sessions of the turn to every node: once a turn, before its frames leave.
    pub(super) fn send_new_sessions(&mut self) {
        if self.news.list.is_empty() {
            return;
        }
        let list = self.news.take();
        let mut nodes: Vec<NodeId> = self.channels.outgoing.keys().map(|(node, _)| *node).collect();
        nodes.dedup(); // the list is sorted
        for node in nodes {
            self.send_sessions(node, list.clone());
        }
    }

    fn send_sessions(&mut self, node: NodeId, mut news: Vec<SessionNews>) {
        let mut channels = self.channels.outgoing.range_mut((node, 0)..=(node, usize::MAX));
        let Some((peer, outgoing)) = channels.next() else { return };
        if outgoing.feed.unsent().len() > BEHIND_BYTES_MAX {
            news.retain(essential);
        }
        if news.is_empty() {
            return;
        }
        let peer = *peer;
        if let Err(error) = outgoing.feed.push(&Frame::Sessions(news), None) {
            self.give_up(peer, &error.to_string());
        }
    }
}

fn bytes_of(session: &KeptSession) -> usize {
    size_of::<KeptSession>() + session.sealed.0.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_base::session::SessionHash;

    fn shown(number: u64) -> HandshakeNews {
        let hash = SessionHash([number, 0]);
        let entry = LearnedSession { hash, server: 7, expires: Unix(300) };
        HandshakeNews { learned: vec![entry], forgotten: Some((hash, 7)) }
    }

    #[test]
    fn turn_takes_a_bounded_number_of_learned_sessions() {
        let mut news = News::default();
        assert!(!news.has_any());
        let handshakes = LEARNED_PER_TURN_MAX as u64;
        let added = (0..handshakes).filter(|&number| news.add_learned(shown(number))).count();
        assert_eq!(added, LEARNED_PER_TURN_MAX / 2, "each shows two");
        let mut bytes = Vec::new();
        Frame::Sessions(news.take()).encode(&mut bytes).unwrap();
        assert!(bytes.len() <= 256 << 10, "{} bytes", bytes.len());
        assert!(news.add_learned(shown(1)), "the next turn has a budget of its own");
        assert!(news.has_any());
        assert_eq!(news.take().len(), 2);
    }

    #[test]
    fn node_that_is_behind_receives_only_withdrawals() {
        let mut news = News::default();
        news.add_learned(shown(1));
        news.list.push(SessionNews::Withdrawn([1; 32]));
        let mut list = news.take();
        list.retain(essential);
        assert_eq!(list, [SessionNews::Withdrawn([1; 32])]);
    }
}
