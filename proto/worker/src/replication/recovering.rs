//! A connection being recovered: its replicated TCP parameters, the positions that its peers report, and the sockets
//! rebuilt from both. Order of the steps: [`super::failover`].

use super::Cluster;
use super::early_segments::{EarlySegment, in_order};
use super::gated_leg::tcp_params;
use crate::host::{Gate, Host, Restoring, SlotOf, Socket};
use evergate_base::net::{Flow, Loss, PeerPosition, Probe, Restore, Restored, TcpParams, ahead_max};
use evergate_membership::Bucket;
use evergate_replication::{ConnectionId, LegFacts, Phase, ReplicatedConnection};
use std::io;

/// Receive window of a restored socket, before scaling.
const WINDOW: u32 = 65_535 << 6;
/// Assumed window of a peer that has not reported one, in bytes: the initial window of most.
const PEER_WINDOW: u32 = 65_535;
/// Buffers of a socket while it is restored, in bytes.
const BUFFER: u32 = 8 << 20;
/// How far below the replicated position a probe acknowledges: it must acknowledge nothing new.
const PROBE_BELOW: u32 = 256 << 10;

/// One leg being recovered.
pub(super) struct Leg<H: Host> {
    pub(super) facts: LegFacts,
    tcp: TcpParams,
    /// Replicated positions: output that the peer has, input that this node has.
    sent: u64,
    pub(super) received: u64,
    /// Output that the peer has acknowledged, without the last sequence number: that may be the FIN of the former
    /// owner, which is no byte of the stream. That byte is sent again, and the peer skips it.
    pub(super) acked: u64,
    /// The replicated input is the whole stream: the peer's end was read.
    whole: bool,
    /// The peer has sent its FIN, which counts as received. Acknowledging less than the former owner did would make
    /// older kernels drop our segments.
    pub(super) ended: bool,
    pub(super) slot: Option<SlotOf<H>>,
    /// Position that the peer has reported.
    pub(super) peer_position: Option<PeerPosition>,
    pub(super) socket: Option<H::Restoring>,
}

/// One connection being recovered.
pub(super) struct RecoveringConnection<H: Host> {
    pub(super) id: ConnectionId,
    pub(super) bucket: Bucket,
    pub(super) held: Box<ReplicatedConnection>,
    /// The client's leg, and the server's if there is one (in use, or idle and bound). An idle connection has none
    /// before its turn.
    pub(super) legs: Vec<Leg<H>>,
}

/// Segments that a peer sent during the outage, or to a node that did not acknowledge them.
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

    /// Sends a notice to the peer of `socket`, the active one, after `before` earlier ones. Returns whether it has
    /// left.
    pub(super) fn notify_peer<H: Host>(&self, cluster: &Cluster<H>, socket: &H::Socket, before: u32) -> bool {
        let own = socket.timestamp().ok();
        let timestamps = self.tcp.stamp.and(own).map(|own| (own, self.newest));
        let loss = Loss { timestamps, ..self.loss };
        // without it the peer's timer retransmits
        cluster.gate.notify_loss(&self.tcp, &loss, before).unwrap_or(false)
    }
}

impl<H: Host> Leg<H> {
    fn of(held: &ReplicatedConnection, number: u32) -> Option<Leg<H>> {
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
            peer_position: None,
            socket: None,
        })
    }

    pub(super) fn flow(&self) -> Flow {
        Flow::new(self.facts.local, self.facts.remote)
    }

    fn window(&self) -> u32 {
        WINDOW.min(65_535 << self.tcp.receive_scale())
    }

    /// The peer's window when its position arrived, in bytes.
    pub(super) fn room(&self) -> u32 {
        self.peer_position.map_or(0, |position| position.window << self.tcp.send_scale().min(14))
    }

    fn send_sequence(&self) -> u32 {
        self.facts.sent.wrapping_add(self.acked as u32)
    }

    /// The position that the peer has reported, if it is beyond the position we send from.
    fn peer_has(&self) -> u32 {
        let send = self.send_sequence();
        self.peer_position
            .map(|position| position.ack)
            .filter(|ack| ack.wrapping_sub(send) as i32 > 0)
            .unwrap_or(send)
    }

    fn receive_sequence(&self) -> u32 {
        self.facts.received.wrapping_add(self.received as u32).wrapping_add(u32::from(self.ended))
    }

    fn stamp(&self, now_ms: u64) -> Option<u32> {
        let seen = self.peer_position.map_or(0, |position| position.timestamps.1);
        self.tcp.stamp.map(|stamp| match self.peer_position {
            Some(_) => stamp.after(now_ms, seen),
            None => stamp.at(now_ms),
        })
    }

    pub(super) fn restored(&self, cluster: &Cluster<H>, now_ms: u64) -> Restored {
        let interface = cluster.layout.interfaces[usize::from(self.facts.interface).min(1)];
        let newest = self.peer_position.map_or(0, |position| position.timestamps.0);
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

    pub(super) fn ask(&self, cluster: &Cluster<H>, now_ms: u64) {
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
        let _ = cluster.gate.ask(&self.tcp, &probe);
    }

    /// Segments that the peer reports as sent and no node has.
    pub(super) fn lost_segments(&self) -> Option<LostSegments> {
        let position = self.peer_position.filter(|position| position.seq != self.receive_sequence())?;
        let loss = Loss {
            send: self.send_sequence(), // the gate writes the peer's own number instead
            receive: self.receive_sequence(),
            until: position.seq,
            window: self.window(),
            timestamps: None,
        };
        let lost = LostSegments { tcp: self.tcp, loss, newest: position.timestamps.0 };
        lost.loss.is_worth_telling(&self.tcp).then_some(lost)
    }

    /// Records the position and window of the peer. Rejects an acknowledgement beyond anything ever sent: it is forged,
    /// and would make the replay skip bytes that the peer lacks.
    pub(super) fn record_position(&mut self, position: PeerPosition) {
        let ahead = position.ack.wrapping_sub(self.facts.sent.wrapping_add(self.sent as u32)) as i32;
        if i64::from(ahead) > i64::from(ahead_max(self.tcp.send_scale())) {
            return;
        }
        self.peer_position = Some(position);
        self.acked = self.sent + u64::try_from(ahead - 1).unwrap_or(0);
        let end = self.facts.received.wrapping_add(self.received as u32).wrapping_add(1);
        self.ended |= self.whole && position.seq == end;
    }

    /// Whether this position belongs to the peer of an idle connection: it has everything, and continues where it
    /// stopped. An attacker that only guesses the addresses does not know these numbers.
    pub(super) fn follows(&self, position: &PeerPosition) -> bool {
        let ahead = position.seq.wrapping_sub(self.receive_sequence());
        position.ack == self.send_sequence() && ahead < self.window()
    }

    /// Puts the segments that arrived before the socket existed into its receive queue.
    pub(super) fn enqueue_recv(&self, mut pieces: Vec<EarlySegment>) {
        let Some(socket) = self.socket.as_ref().filter(|_| !self.whole) else { return };
        pieces.retain(|piece| piece.ack == self.send_sequence());
        for data in in_order(&pieces, self.receive_sequence()) {
            if !socket.receive(data).is_ok_and(|taken| taken == data.len()) {
                break; // the peer retransmits it
            }
        }
    }

    /// Restores the slot, then the socket, which stays in TCP_REPAIR.
    pub(super) fn build(&mut self, cluster: &Cluster<H>, now_ms: u64) -> io::Result<()> {
        let restored = self.restored(cluster, now_ms);
        // A later owner starts from the timestamps sent from now on.
        self.facts.timestamp = restored.timestamps.map(|(own, _)| (own, now_ms));
        let slot = self.slot.take().ok_or_else(|| io::Error::other("no slot"))?;
        self.slot = Some(cluster.gate.restore_again(slot, &restored));
        // Without a reported window, assume a normal one: a socket does not send into a small window for seconds.
        let peer_window = if self.peer_position.is_some() { self.room() } else { PEER_WINDOW };
        let restore = Restore {
            facts: self.tcp,
            send: restored.send,
            receive: restored.receive,
            timestamp: restored.timestamps.map(|(own, _)| own),
            window: restored.window,
            peer_window,
            buffer: BUFFER,
        };
        self.socket = Some(cluster.host.restore(&restore)?);
        Ok(())
    }
}

impl<H: Host> RecoveringConnection<H> {
    /// An idle connection: nothing is in flight, and it is not examined before its turn.
    pub(super) fn idle(
        id: ConnectionId,
        bucket: Bucket,
        held: Box<ReplicatedConnection>,
    ) -> RecoveringConnection<H> {
        RecoveringConnection { id, bucket, held, legs: Vec::new() }
    }

    /// An active connection; `None` when the replica lacks its client leg.
    pub(super) fn active(
        id: ConnectionId,
        bucket: Bucket,
        held: Box<ReplicatedConnection>,
    ) -> Option<RecoveringConnection<H>> {
        let mut connection = RecoveringConnection::idle(id, bucket, held);
        connection.find_legs();
        connection.held.legs.contains_key(&0).then_some(connection)
    }

    pub(super) fn find_legs(&mut self) {
        let numbers = std::iter::once(0).chain(self.held.state.leg_in_use());
        self.legs = numbers.filter_map(|number| Leg::of(&self.held, number)).collect();
    }

    /// Addresses of the client leg, which identify the connection.
    pub(super) fn client_flow(&self) -> Option<Flow> {
        self.held.legs.get(&0).map(|facts| Flow::new(facts.local, facts.remote))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::host::Nothing;
    use evergate_base::{Bucket, Term};
    use evergate_replication::ConnectionState;

    pub(in super::super) fn recovering(id: u64, port: u16, closed: bool) -> RecoveringConnection<Nothing> {
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
    fn ack_beyond_anything_sent_is_rejected() {
        let mut leg = Leg::<Nothing>::of(&recovering(1, 50, false).held, 0).unwrap();
        let position = |ack| PeerPosition { seq: 1, ack, window: 1000, count: 1, timestamps: (0, 0) };
        let most = ahead_max(leg.tcp.send_scale());
        for forged in [most + 2, 1 << 30, i32::MAX as u32] {
            leg.record_position(position(forged));
            assert!(leg.peer_position.is_none() && leg.acked == 0, "{forged}");
        }
        for (ack, acked) in [(1u32.wrapping_sub(100), 0), (1, 0), (151, 149), (most + 1, u64::from(most) - 1)]
        {
            leg.record_position(position(ack));
            assert_eq!((leg.peer_position, leg.acked), (Some(position(ack)), acked));
        }
    }

    /// An active connection, whose peers are probed.
    pub(in super::super) fn active(id: u64, port: u16) -> RecoveringConnection<Nothing> {
        let mut connection = recovering(id, port, false);
        connection.find_legs();
        connection
    }
}
