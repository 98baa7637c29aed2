//! One connection on its way from a copy to sockets: what it was agreed on, what its peers turn out to have, and what is built of
//! that. In which order, see [`super::resume`].

use super::Cluster;
use super::early_segments::{EarlySegment, in_order};
use super::gated_leg::tcp_params;
use evergate_bpf::{Flow, PeerPosition, Restored, Slot, ahead_max};
use evergate_membership::Bucket;
use evergate_replication::{ConnectionId, LegFacts, Phase, ReplicatedConnection};
use evergate_sys::{Loss, Probe, Restore, Restoring, TcpParams};
use std::os::fd::RawFd;

/// Receive window of a restored socket, before scaling.
const WINDOW: u32 = 65_535 << 6;
/// Window of a peer that has not said how much room it has, in bytes: that of most before they have heard anything.
const PEER_WINDOW: u32 = 65_535;
/// Buffers of a socket while it is restored, in bytes.
const BUFFER: u32 = 8 << 20;
/// How far below the mirrored position a probe acknowledges: what it says must be nothing new.
const PROBE_BELOW: u32 = 256 << 10;

/// One leg on its way to a socket.
pub(super) struct Leg {
    pub(super) facts: LegFacts,
    tcp: TcpParams,
    /// Positions that are mirrored: output that the peer has, input that we have.
    sent: u64,
    pub(super) received: u64,
    /// What the peer turned out to have, but for the last number: that may be the FIN of the node before us, which is no
    /// byte of the stream. Whatever it is, it is sent again, and the peer passes it over.
    pub(super) acked: u64,
    /// The mirrored input is the whole stream: the peer's end was read.
    whole: bool,
    /// The peer has said its FIN: it is taken as received. Acknowledging less than the node before us did would make older
    /// kernels drop what we say.
    pub(super) ended: bool,
    pub(super) slot: Option<Slot>,
    pub(super) peer_input: Option<PeerPosition>,
    pub(super) socket: Option<Restoring>,
}

/// One connection on its way.
pub(super) struct RecoveringConnection {
    pub(super) id: ConnectionId,
    pub(super) bucket: Bucket,
    pub(super) held: Box<ReplicatedConnection>,
    /// The client's, and the server's if there is one (in use, or idle and bound); of a connection that rests only
    /// when its turn comes.
    pub(super) legs: Vec<Leg>,
}

/// What a peer sent while nobody listened, or to a node that did not acknowledge it.
pub(super) struct LostSegments {
    tcp: TcpParams,
    loss: Loss,
    /// The peer's newest timestamp.
    newest: u32,
}

impl LostSegments {
    pub(super) fn flow(&self) -> Flow {
        Flow::new(self.tcp.local, self.tcp.remote)
    }

    /// Tells the peer, which was told `before` so often. `socket`: the one that lives now. Whether it was told.
    pub(super) fn notify_peer(&self, cluster: &Cluster, socket: RawFd, before: u32) -> bool {
        let own = evergate_sys::timestamp(socket).ok();
        let timestamps = self.tcp.stamp.and(own).map(|own| (own, self.newest));
        let loss = Loss { timestamps, ..self.loss };
        cluster.prober.notify_loss(&self.tcp, &loss, before).unwrap_or(false) // who does not hear it waits for its timer
    }
}

impl Leg {
    fn of(held: &ReplicatedConnection, number: u32) -> Option<Leg> {
        let facts = *held.legs.get(&number)?;
        let (sent, received) = held.positions(number);
        let state = &held.state;
        let whole = match number {
            0 => state.client.phase == Phase::Ended || state.closed.is_some(),
            _ => state.server_ends.get(&number) == Some(&received),
        };
        Some(Leg {
            facts,
            tcp: tcp_params(&facts),
            sent,
            received,
            acked: sent,
            whole,
            ended: false,
            slot: None,
            peer_input: None,
            socket: None,
        })
    }

    pub(super) fn flow(&self) -> Flow {
        Flow::new(self.facts.local, self.facts.remote)
    }

    fn window(&self) -> u32 {
        WINDOW.min(65_535 << self.tcp.receive_scale())
    }

    /// How much room the peer had when it was heard, in bytes.
    pub(super) fn room(&self) -> u32 {
        self.peer_input.map_or(0, |peer_input| peer_input.window << self.tcp.send_scale().min(14))
    }

    fn send_sequence(&self) -> u32 {
        self.facts.sent.wrapping_add(self.acked as u32)
    }

    /// What the peer has said that it has, if that is more than is sent from.
    fn peer_has(&self) -> u32 {
        let send = self.send_sequence();
        self.peer_input
            .map(|peer_input| peer_input.ack)
            .filter(|ack| ack.wrapping_sub(send) as i32 > 0)
            .unwrap_or(send)
    }

    fn receive_sequence(&self) -> u32 {
        self.facts.received.wrapping_add(self.received as u32).wrapping_add(u32::from(self.ended))
    }

    fn stamp(&self, now_ms: u64) -> Option<u32> {
        let seen = self.peer_input.map_or(0, |peer_input| peer_input.timestamps.1);
        self.tcp.stamp.map(|stamp| match self.peer_input {
            Some(_) => stamp.after(now_ms, seen),
            None => stamp.at(now_ms),
        })
    }

    pub(super) fn restored(&self, cluster: &Cluster, now_ms: u64) -> Restored {
        let interface = cluster.layout.interfaces[usize::from(self.facts.interface).min(1)];
        let newest = self.peer_input.map_or(0, |peer_input| peer_input.timestamps.0);
        Restored {
            flow: self.flow(),
            send: self.send_sequence(),
            peer_has: self.peer_has(),
            receive: self.receive_sequence(),
            window: self.window(),
            window_scale: self.tcp.receive_scale(),
            peer_window_scale: self.tcp.send_scale(),
            timestamps: self.stamp(now_ms).map(|own| (own, newest)),
            interface: interface.index,
            source_mac: interface.mac,
            next_hop: self.facts.next_hop,
            asleep: true,
        }
    }

    pub(super) fn ask(&self, cluster: &Cluster, now_ms: u64) {
        // It must acknowledge nothing that another backup may still need.
        let ack = match u32::try_from(self.received) {
            Ok(received) if received < PROBE_BELOW => self.facts.acknowledged,
            _ => self.receive_sequence().wrapping_sub(PROBE_BELOW),
        };
        let probe = Probe {
            acknowledged: self.send_sequence(),
            ack,
            window: self.window(),
            timestamp: self.stamp(now_ms),
        };
        // A probe that cannot leave is repeated.
        let _ = cluster.prober.ask(&self.tcp, &probe);
    }

    /// What the peer has sent, as it says, and nobody has.
    pub(super) fn lost_segments(&self) -> Option<LostSegments> {
        let peer_input = self.peer_input.filter(|peer_input| peer_input.seq != self.receive_sequence())?;
        let loss = Loss {
            send: self.send_sequence(), // the gate tells the peer's own number in its place
            receive: self.receive_sequence(),
            until: peer_input.seq,
            window: self.window(),
            timestamps: None,
        };
        let unsent = LostSegments { tcp: self.tcp, loss, newest: peer_input.timestamps.0 };
        unsent.loss.is_worth_telling(&self.tcp).then_some(unsent)
    }

    /// What the peer has, and how much room. Whoever has more than was ever sent is not the peer: his word would be skipped in
    /// what is made again.
    pub(super) fn record_position(&mut self, peer_input: PeerPosition) {
        let ahead = peer_input.ack.wrapping_sub(self.facts.sent.wrapping_add(self.sent as u32)) as i32;
        if i64::from(ahead) > i64::from(ahead_max(self.tcp.send_scale())) {
            return;
        }
        self.peer_input = Some(peer_input);
        self.acked = self.sent + u64::try_from(ahead - 1).unwrap_or(0);
        let end = self.facts.received.wrapping_add(self.received as u32).wrapping_add(1);
        self.ended |= self.whole && peer_input.seq == end;
    }

    /// Whether the peer of a connection that rests says this: it has everything, and goes on where it stopped. Whoever only
    /// guesses at the connection's ends does not know that.
    pub(super) fn follows(&self, peer_input: &PeerPosition) -> bool {
        let ahead = peer_input.seq.wrapping_sub(self.receive_sequence());
        peer_input.ack == self.send_sequence() && ahead < self.window()
    }

    /// What the peer said while there was no socket is there as if it came now.
    pub(super) fn play(&self, mut reported: Vec<EarlySegment>) {
        let Some(socket) = self.socket.as_ref().filter(|_| !self.whole) else { return };
        reported.retain(|piece| piece.ack == self.send_sequence());
        for data in in_order(&reported, self.receive_sequence()) {
            if !socket.receive(data).is_ok_and(|taken| taken == data.len()) {
                break; // said again before long
            }
        }
    }

    /// Gate first, then the socket, still asleep.
    pub(super) fn build(&mut self, cluster: &Cluster, now_ms: u64) -> anyhow::Result<()> {
        let restored = self.restored(cluster, now_ms);
        // Whoever goes on after this node begins from what is said from now on.
        self.facts.timestamp = restored.timestamps.map(|(own, _)| (own, now_ms));
        let slot = self.slot.take().ok_or_else(|| anyhow::anyhow!("no slot"))?;
        self.slot = Some(cluster.gate.restore_again(slot, &restored));
        // Of a peer that has not said it: sockets do not send into a window that is too small before seconds have passed.
        let peer_window = if self.peer_input.is_some() { self.room() } else { PEER_WINDOW };
        let restore = Restore {
            facts: self.tcp,
            send: restored.send,
            receive: restored.receive,
            timestamp: restored.timestamps.map(|(own, _)| own),
            window: restored.window,
            peer_window,
            buffer: BUFFER,
        };
        let socket = match restore.open() {
            Err(error) if error.source.kind() == std::io::ErrorKind::AddrNotAvailable => {
                evergate_sys::destroy(self.tcp.local, self.tcp.remote)?; // an orphan of an earlier life
                restore.open()?
            }
            other => other?,
        };
        self.socket = Some(socket);
        Ok(())
    }
}

impl RecoveringConnection {
    /// Nothing of it is on its way: it is not looked at before its turn comes.
    pub(super) fn idle(
        id: ConnectionId,
        bucket: Bucket,
        held: Box<ReplicatedConnection>,
    ) -> RecoveringConnection {
        RecoveringConnection { id, bucket, held, legs: Vec::new() }
    }

    /// With something on its way; `None` when not even its client is known.
    pub(super) fn active(
        id: ConnectionId,
        bucket: Bucket,
        held: Box<ReplicatedConnection>,
    ) -> Option<RecoveringConnection> {
        let mut take = RecoveringConnection::idle(id, bucket, held);
        take.find_legs();
        take.held.legs.contains_key(&0).then_some(take)
    }

    pub(super) fn find_legs(&mut self) {
        let numbers = std::iter::once(0).chain(self.held.state.leg_in_use());
        self.legs = numbers.filter_map(|number| Leg::of(&self.held, number)).collect();
    }

    /// What its client is told apart by.
    pub(super) fn client_flow(&self) -> Option<Flow> {
        self.held.legs.get(&0).map(|facts| Flow::new(facts.local, facts.remote))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use evergate_base::{Bucket, Term};
    use evergate_replication::ConnectionState;

    pub(in super::super) fn take(id: u64, port: u16, closed: bool) -> RecoveringConnection {
        let facts = LegFacts {
            local: ([10, 0, 0, 1], 443).into(),
            remote: ([10, 0, 0, 2], port).into(),
            sent: 1,
            received: 1,
            acknowledged: 1,
            mss: 1460,
            window_scales: None,
            sack: false,
            timestamp: None,
            interface: 0,
            next_hop: [0; 6],
        };
        let state = ConnectionState { closed: closed.then_some((0, false)), ..ConnectionState::default() };
        let held = ReplicatedConnection {
            bucket: Bucket(1),
            term: Term::default(),
            state,
            legs: [(0, facts)].into(),
            by: (0, 0),
        };
        RecoveringConnection::idle(ConnectionId(id), Bucket(1), Box::new(held))
    }

    #[test]
    fn who_has_more_than_was_ever_sent_is_not_heard() {
        let mut leg = Leg::of(&take(1, 50, false).held, 0).unwrap();
        let peer_input = |ack| PeerPosition { seq: 1, ack, window: 1000, count: 1, timestamps: (0, 0) };
        let most = ahead_max(leg.tcp.send_scale());
        for forged in [most + 2, 1 << 30, i32::MAX as u32] {
            leg.record_position(peer_input(forged));
            assert!(leg.peer_input.is_none() && leg.acked == 0, "{forged}");
        }
        for (ack, acked) in [(1u32.wrapping_sub(100), 0), (1, 0), (151, 149), (most + 1, u64::from(most) - 1)]
        {
            leg.record_position(peer_input(ack));
            assert_eq!((leg.peer_input, leg.acked), (Some(peer_input(ack)), acked));
        }
    }

    /// One with something on its way, so that its peers are asked.
    pub(in super::super) fn busy(id: u64, port: u16) -> RecoveringConnection {
        let mut take = take(id, port, false);
        take.find_legs();
        take
    }
}
