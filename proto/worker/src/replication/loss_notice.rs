//! Loss notices: SACKs for peers of recovered or moved connections whose segments no node has, and that have sent
//! nothing new.
//!
//! A server's output is acknowledged when its client has it. Behind a slow client the server's kernel therefore
//! measures round trips of seconds, and its retransmission timer grows to tens of seconds. A peer that has not
//! retransmitted after a while receives a notice of the loss, a few times, each covering more (docs/decisions/0023).

use super::Cluster;
use super::recovering::LostSegments;
use crate::host::{Host, Slot, SlotOf, Socket};
use crate::worker::Worker;
use evergate_base::Micros;

/// Intervals of the notices to a silent server, whose retransmission would have arrived long before.
const SERVERS: [Micros; 6] = [
    Micros::from_ms(500),
    Micros::from_ms(300),
    Micros::from_ms(300),
    Micros::from_ms(300),
    Micros::from_ms(300),
    Micros::from_ms(2000),
];
/// Intervals of the notices to a silent client, which may be far away: a notice must not cover segments already on
/// their way.
const CLIENTS: [Micros; 3] = [Micros::from_ms(1000), Micros::from_ms(2000), Micros::from_ms(4000)];

/// Loss notices to one silent peer.
pub(super) struct LossNotice {
    lost: LostSegments,
    slot: u32,
    /// Bytes received by the socket at its activation.
    received: u64,
    /// Number of notices sent.
    sent: u32,
    /// Remaining intervals.
    times: std::slice::Iter<'static, Micros>,
    since: Micros,
}

impl LossNotice {
    /// A notice for the peer of `socket`, a client or a server, activated now in slot `slot` of the gate.
    /// `was_notified`: a first notice was sent.
    pub(super) fn new<S: Socket>(
        lost: LostSegments,
        slot: u32,
        socket: &S,
        is_client: bool,
        was_notified: bool,
        now: Micros,
    ) -> LossNotice {
        let received = socket.bytes_received().unwrap_or(0);
        let times = if is_client { CLIENTS.iter() } else { SERVERS.iter() };
        LossNotice { lost, slot, received, sent: u32::from(was_notified), times, since: now }
    }

    /// Whether the next notice is due; `None` after the last one.
    fn is_due(&self, now: Micros) -> Option<bool> {
        self.times.as_slice().first().map(|span| now.since(self.since) >= *span)
    }

    /// Sends a notice; whether it has left.
    fn send<H: Host>(&mut self, cluster: &Cluster<H>, socket: &H::Socket, now: Micros) -> bool {
        let before = self.sent;
        (self.since, self.sent) = (now, before + 1);
        self.times.next().is_some() && self.lost.notify_peer(cluster, socket, before)
    }
}

impl<H: Host> Worker<H> {
    /// Sends the notices that are due.
    pub(super) fn send_due_notices(&mut self) {
        let now = self.now;
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.failovers.loss_notices.iter().all(|peer| peer.is_due(now) == Some(false)) {
            return;
        }
        let mut all = std::mem::take(&mut cluster.failovers.loss_notices);
        all.retain_mut(|peer| match peer.is_due(now) {
            Some(true) => self.send_to_peer(peer).is_some() && peer.is_due(now).is_some(),
            Some(false) => true,
            None => false,
        });
        if let Some(cluster) = &mut self.cluster {
            cluster.failovers.loss_notices.append(&mut all);
        }
    }

    /// Sends a notice to the peer; `None` where it is no longer needed.
    fn send_to_peer(&self, peer: &mut LossNotice) -> Option<()> {
        let cluster = self.cluster.as_ref()?;
        let client = self.clients.get(cluster.index.of_slot(peer.slot)?)?;
        let replicated_state = client.replicated_state.as_ref()?;
        if cluster.handoffs.freezing.contains_key(&replicated_state.bucket) {
            return None; // the bucket on hold drops the retransmission
        }
        let is_it = |slot: &SlotOf<H>| slot.index() == peer.slot && slot.flow() == peer.lost.flow();
        let upstream = client.upstream.and_then(|upstream| self.upstreams.get(upstream));
        let socket = match upstream {
            _ if is_it(&replicated_state.leg.slot) => &client.socket,
            Some(upstream) if upstream.gated.as_ref().is_some_and(|gated| is_it(&gated.slot)) => {
                &upstream.socket
            }
            _ => return None,
        };
        if socket.bytes_received().ok()? != peer.received {
            return None;
        }
        self.counters.loss_notices_late.add(u64::from(peer.send(cluster, socket, self.now)));
        Some(())
    }
}
