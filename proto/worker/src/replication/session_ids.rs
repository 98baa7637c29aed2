//! Replication of TLS 1.2 sessions that clients resume by their ids: every node receives them, for a client may return
//! to any node.
//!
//! The sessions of a turn leave with its frames, over one channel to each node. Backups have a channel; other nodes
//! that serve clients get one as soon as there is a session. A newly reached node receives the newest sessions. No
//! output waits for any of this: a node with lag receives no new sessions, and its clients make full handshakes.
//! Withdrawals are always sent.

use super::Cluster;
use crate::NamedSessions;
use crate::host::Host;
use crate::worker::Worker;
use evergate_base::session::{KeptSession, SessionId};
use evergate_membership::{NodeId, Role};
use evergate_replication::{Frame, SessionNews};
use std::collections::BTreeSet;

/// News of new sessions that a turn takes, in bytes.
const NEWS_BYTES_MAX: usize = 256 << 10;
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
    /// Nodes of which a channel was lost.
    missed_by: BTreeSet<NodeId>,
    /// Some session was aborted here.
    withdrew: bool,
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

    /// Applies the sessions and withdrawals of another node.
    pub(super) fn take_session_news(&mut self, news: Vec<SessionNews>) {
        for news in news {
            match news {
                SessionNews::Kept(session) => self.shared.sessions.keep(session, self.host.wall_clock_s()),
                SessionNews::Withdrawn(id) => self.shared.sessions.withdraw(id, self.host.wall_clock_s()),
            }
        }
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
        if sessions.is_empty() && !self.news.withdrew {
            return BTreeSet::new();
        }
        let owner = |role: &Role| match role {
            Role::Backup { owner, .. } => Some(*owner),
            Role::Outside { owner, .. } => *owner,
            Role::Owner { .. } => None,
        };
        let reached =
            |node: &NodeId| self.channels.outgoing.range((*node, 0)..=(*node, usize::MAX)).next().is_some();
        let all: BTreeSet<NodeId> = self.roles.iter().filter_map(owner).collect();
        all.into_iter().filter(|node| !reached(node)).collect()
    }

    /// Sends the sessions of the turn to every node: once a turn, before its frames leave.
    pub(super) fn send_new_sessions(&mut self) {
        if self.news.list.is_empty() {
            return;
        }
        let list = std::mem::take(&mut self.news.list);
        self.news.bytes = 0;
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
            news.retain(|news| matches!(news, SessionNews::Withdrawn(_)));
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
