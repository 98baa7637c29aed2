//! Peers of connections that were taken over or moved here, who had sent what nobody has, and have said nothing new since.
//!
//! What a server sends is acknowledged when its client has it. Behind a slow client its kernel therefore measures round trips of
//! seconds, and its timer, by which alone it would send again, grows to tens of them. Who has not begun by itself after a while
//! is told what is lost, more of it each time, a few times (docs/decisions/0023).

use super::Cluster;
use super::recovering::LostSegments;
use crate::worker::Worker;
use evergate_base::Micros;
use std::os::fd::RawFd;

/// When a peer is told, each as long after the time before as it still says nothing: a server, whose answer would be here long
/// before,
const SERVERS: [Micros; 6] = [
    Micros::from_ms(500),
    Micros::from_ms(300),
    Micros::from_ms(300),
    Micros::from_ms(300),
    Micros::from_ms(300),
    Micros::from_ms(2000),
];
/// and a client, which may be far away: what it is sending again must not be named.
const CLIENTS: [Micros; 3] = [Micros::from_ms(1000), Micros::from_ms(2000), Micros::from_ms(4000)];

/// A peer that is waited for.
pub(super) struct LossNotice {
    unsent: LostSegments,
    slot: u32,
    /// What its socket had received when it began to live.
    received: u64,
    /// How often it was told.
    reported: u32,
    /// The times that are left.
    times: std::slice::Iter<'static, Micros>,
    since: Micros,
}

impl LossNotice {
    /// `socket`, whose peer is a client or a server, lives since now, in this slot of the gate; the peer `was_reported` what is lost, or not.
    pub(super) fn new(
        unsent: LostSegments,
        slot: u32,
        socket: RawFd,
        is_client: bool,
        was_reported: bool,
        now: Micros,
    ) -> LossNotice {
        let received = evergate_sys::bytes_received(socket).unwrap_or(0);
        let times = if is_client { CLIENTS.iter() } else { SERVERS.iter() };
        LossNotice { unsent, slot, received, reported: u32::from(was_reported), times, since: now }
    }

    /// Whether the next time has come; `None` after the last one.
    fn is_due(&self, now: Micros) -> Option<bool> {
        self.times.as_slice().first().map(|span| now.since(self.since) >= *span)
    }

    /// Tells it once more; whether that has left.
    fn send(&mut self, cluster: &Cluster, socket: RawFd, now: Micros) -> bool {
        let before = self.reported;
        (self.since, self.reported) = (now, before + 1);
        self.times.next().is_some() && self.unsent.notify_peer(cluster, socket, before)
    }
}

impl Worker {
    /// Tells those whose time has come.
    pub(super) fn send_due_notices(&mut self) {
        let now = self.now;
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.loss_notices.iter().all(|peer| peer.is_due(now) == Some(false)) {
            return;
        }
        let mut all = std::mem::take(&mut cluster.loss_notices);
        all.retain_mut(|peer| match peer.is_due(now) {
            Some(true) => self.send_to_peer(peer).is_some() && peer.is_due(now).is_some(),
            Some(false) => true,
            None => false,
        });
        if let Some(cluster) = &mut self.cluster {
            cluster.loss_notices.append(&mut all);
        }
    }

    /// Tells the peer; `None` where nobody waits for it any more.
    fn send_to_peer(&self, peer: &mut LossNotice) -> Option<()> {
        let cluster = self.cluster.as_ref()?;
        let client = self.clients.get(cluster.of_slot(peer.slot)?)?;
        let replicated_state = client.replicated_state.as_ref()?;
        if cluster.freezing.contains_key(&replicated_state.bucket) {
            return None; // what came again would meet a bucket on hold
        }
        let is_it =
            |slot: &evergate_bpf::Slot| slot.index() == peer.slot && slot.flow() == peer.unsent.flow();
        let upstream = client.upstream.and_then(|upstream| self.upstreams.get(upstream));
        let socket = match upstream {
            _ if is_it(&replicated_state.leg.slot) => client.fd(),
            Some(upstream) if upstream.gated.as_ref().is_some_and(|gated| is_it(&gated.slot)) => {
                upstream.fd()
            }
            _ => return None,
        };
        if evergate_sys::bytes_received(socket).ok()? != peer.received {
            return None;
        }
        self.counters.loss_notices_late.add(u64::from(peer.send(cluster, socket, self.now)));
        Some(())
    }
}
