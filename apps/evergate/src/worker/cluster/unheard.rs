//! Peers of connections that were taken over or moved here, who had sent what nobody has, and have said nothing new since.
//!
//! What a server sends is acknowledged when its client has it. Behind a slow client its kernel therefore measures round trips of
//! seconds, and its timer, by which alone it would send again, grows to tens of them. Who has not begun by itself after a while
//! is told, a few times: a server that its segments were too big, so that it sends them again whatever it has concluded, and who
//! does not hear that, what is lost, more of it each time (docs/adr/0023).

use super::Cluster;
use super::take::Unsaid;
use crate::worker::Worker;
use evergate_base::Micros;
use std::os::fd::RawFd;

/// What a peer is told.
#[derive(Clone, Copy)]
enum Word {
    /// That its segments were too big: they are 8 bytes smaller for ten minutes then, to this node's address.
    TooBig,
    /// What is lost.
    Lost,
}

/// When a peer is told what, each as long after the one before as it still says nothing: a server, whose answer would be here long
/// before,
const SERVERS: [(Micros, Word); 6] = [
    (Micros::from_ms(500), Word::TooBig),
    (Micros::from_ms(300), Word::TooBig),
    (Micros::from_ms(300), Word::TooBig),
    (Micros::from_ms(300), Word::Lost),
    (Micros::from_ms(300), Word::Lost),
    (Micros::from_ms(300), Word::Lost),
];
/// and a client, which may be far away: what it is sending again must not be named.
const CLIENTS: [(Micros, Word); 3] = [
    (Micros::from_ms(1000), Word::Lost),
    (Micros::from_ms(2000), Word::Lost),
    (Micros::from_ms(4000), Word::Lost),
];

/// A peer that is waited for.
pub(super) struct Unheard {
    unsaid: Unsaid,
    slot: u32,
    /// What its socket had received when it began to live.
    received: u64,
    /// How often it was told what is lost, and that its segments were too big.
    told: u32,
    told_too_big: u32,
    words: std::slice::Iter<'static, (Micros, Word)>,
    since: Micros,
}

impl Unheard {
    /// `socket`, whose peer is a client or a server, lives since now, in this slot of the gate; the peer `was_told` what is lost, or not.
    pub(super) fn new(
        unsaid: Unsaid,
        slot: u32,
        socket: RawFd,
        is_client: bool,
        was_told: bool,
        now: Micros,
    ) -> Unheard {
        let received = evergate_sys::bytes_received(socket).unwrap_or(0);
        let words = if is_client { CLIENTS.iter() } else { SERVERS.iter() };
        Unheard { unsaid, slot, received, told: u32::from(was_told), told_too_big: 0, words, since: now }
    }

    /// Whether the time of the next word has come; `None` after the last one.
    fn is_due(&self, now: Micros) -> Option<bool> {
        self.words.as_slice().first().map(|(span, _)| now.since(self.since) >= *span)
    }

    /// Says the next word; whether it has left.
    fn tell(&mut self, cluster: &Cluster, socket: RawFd, now: Micros) -> bool {
        self.since = now;
        match self.words.next() {
            Some((_, Word::TooBig)) => {
                self.told_too_big += 1;
                self.unsaid.tell_too_big(cluster, self.told_too_big)
            }
            Some((_, Word::Lost)) => {
                let before = self.told;
                self.told += 1;
                self.unsaid.tell(cluster, socket, before)
            }
            None => false,
        }
    }
}

impl Worker {
    /// Tells those whose time has come.
    pub(super) fn tell_unheard(&mut self) {
        let now = self.now;
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.unheard.iter().all(|peer| peer.is_due(now) == Some(false)) {
            return;
        }
        let mut all = std::mem::take(&mut cluster.unheard);
        all.retain_mut(|peer| match peer.is_due(now) {
            Some(true) => self.tell_peer(peer).is_some() && peer.is_due(now).is_some(),
            Some(false) => true,
            None => false,
        });
        if let Some(cluster) = &mut self.cluster {
            cluster.unheard.append(&mut all);
        }
    }

    /// Tells the peer; `None` where nobody waits for it any more.
    fn tell_peer(&self, peer: &mut Unheard) -> Option<()> {
        let cluster = self.cluster.as_ref()?;
        let client = self.clients.get(cluster.of_slot(peer.slot)?)?;
        let mirroring = client.mirroring.as_ref()?;
        if cluster.freezing.contains_key(&mirroring.bucket) {
            return None; // what came again would meet a bucket on hold
        }
        let is_it =
            |slot: &evergate_bpf::Slot| slot.index() == peer.slot && slot.flow() == peer.unsaid.flow();
        let upstream = client.upstream.and_then(|upstream| self.upstreams.get(upstream));
        let socket = match upstream {
            _ if is_it(&mirroring.leg.slot) => client.fd(),
            Some(upstream) if upstream.gated.as_ref().is_some_and(|gated| is_it(&gated.slot)) => {
                upstream.fd()
            }
            _ => return None,
        };
        if evergate_sys::bytes_received(socket).ok()? != peer.received {
            return None;
        }
        self.counters.losses_told_late.add(u64::from(peer.tell(cluster, socket, self.now)));
        Some(())
    }
}
