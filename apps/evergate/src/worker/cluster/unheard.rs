//! Peers of connections that were taken over or moved here, who had sent what nobody has, and have said nothing new since.
//!
//! What a server sends is acknowledged when its client has it. Behind a slow client its kernel therefore measures round trips of
//! seconds, and its timer, by which alone it would send again, grows to tens of them. Who has not begun by itself after a second
//! is told what is lost (docs/adr/0023), more of it each time, a few times.

use super::take::Unsaid;
use crate::worker::Worker;
use evergate_base::Micros;
use std::os::fd::RawFd;

/// After the first span a peer is told.
const FIRST: Micros = Micros::from_ms(1000);
/// And again while it says nothing: a server, whose answer would be here long before,
const SERVERS: [Micros; 4] =
    [Micros::from_ms(300), Micros::from_ms(300), Micros::from_ms(300), Micros::from_ms(2000)];
/// and a client, which may be far away: what it is sending again must not be named.
const CLIENTS: [Micros; 2] = [Micros::from_ms(2000), Micros::from_ms(4000)];

/// A peer that is waited for.
pub(super) struct Unheard {
    unsaid: Unsaid,
    slot: u32,
    /// What its socket had received when it began to live.
    received: u64,
    /// It was told when its socket began to live.
    was_told: bool,
    told: usize,
    due: Micros,
}

impl Unheard {
    /// `socket` lives since now, in this slot of the gate; the peer `was_told` what is lost, or not.
    pub(super) fn new(unsaid: Unsaid, slot: u32, socket: RawFd, was_told: bool, now: Micros) -> Unheard {
        let received = evergate_sys::bytes_received(socket).unwrap_or(0);
        Unheard { unsaid, slot, received, was_told, told: 0, due: now + FIRST }
    }
}

impl Worker {
    /// Tells those whose time has come.
    pub(super) fn tell_unheard(&mut self) {
        let now = self.now;
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.unheard.iter().all(|peer| peer.due > now) {
            return;
        }
        let mut all = std::mem::take(&mut cluster.unheard);
        all.retain_mut(|peer| {
            peer.due > now
                || self.tell_peer(peer).is_some_and(|span| {
                    peer.due = now + span;
                    true
                })
        });
        if let Some(cluster) = &mut self.cluster {
            cluster.unheard.append(&mut all);
        }
    }

    /// When the peer is to be looked at again, if it must be.
    fn tell_peer(&self, peer: &mut Unheard) -> Option<Micros> {
        let cluster = self.cluster.as_ref()?;
        let client = self.clients.get(cluster.of_slot(peer.slot)?)?;
        let mirroring = client.mirroring.as_ref()?;
        if cluster.freezing.contains_key(&mirroring.bucket) {
            return None; // what came again would meet a bucket on hold
        }
        let is_it =
            |slot: &evergate_bpf::Slot| slot.index() == peer.slot && slot.flow() == peer.unsaid.flow();
        let upstream = client.upstream.and_then(|upstream| self.upstreams.get(upstream));
        let (socket, spans) = match upstream {
            _ if is_it(&mirroring.leg.slot) => (client.fd(), &CLIENTS[..]),
            Some(upstream) if upstream.gated.as_ref().is_some_and(|gated| is_it(&gated.slot)) => {
                (upstream.fd(), &SERVERS[..])
            }
            _ => return None,
        };
        if evergate_sys::bytes_received(socket).ok()? != peer.received {
            return None;
        }
        let before = peer.told as u32 + u32::from(peer.was_told);
        self.counters.losses_told_late.add(u64::from(peer.unsaid.tell(cluster, socket, before)));
        let span = spans.get(peer.told).copied();
        peer.told += 1;
        span
    }
}
