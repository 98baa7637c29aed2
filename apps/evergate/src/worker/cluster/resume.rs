//! Take-over: connections whose owner is gone go on here.
//!
//! The buckets are ours and on hold: what their peers send is recorded and dropped, and our probes may leave. Slots
//! come before sockets, so that nothing escapes the gate; peers are asked how much they have before anything is
//! restored, because a socket that believes its peer has less than it has would stall for good. The first ACK then moves
//! every peer on. Steps and reasons: the failover design, "Take-over, step by step".

use super::Cluster;
use super::asking::ask_all;
use super::awake::{Awake, AwakeLegs, wake};
use super::knocks::{Piece, in_order};
use super::leg::tcp_facts;
use super::told::Waiting;
use crate::cluster::{Resumed, Round};
#[cfg(test)]
use crate::worker::faults;
use crate::worker::guard::survives;
use crate::worker::{Counters, Pulse, Worker};
use evergate_bpf::{Flow, Heard, Leases, Restored, Slot, ahead_max};
use evergate_cluster::Bucket;
use evergate_mirror::{ConnectionId, Held, LegFacts, Office, Phase};
use evergate_sys::{Loss, Probe, Restore, Restoring, TcpFacts};
use std::collections::HashSet;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

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
    tcp: TcpFacts,
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
    pub(super) heard: Option<Heard>,
    pub(super) socket: Option<Restoring>,
}

/// One connection on its way.
pub(super) struct Take {
    pub(super) id: ConnectionId,
    pub(super) bucket: Bucket,
    pub(super) held: Box<Held>,
    /// The client's, and the server's if there is one; of a connection that rests only when its turn comes.
    pub(super) legs: Vec<Leg>,
}

/// What a take-over has found.
#[derive(Default)]
struct Taken {
    /// With something on its way.
    busy: Vec<Take>,
    resting: Vec<Take>,
    /// How many do not go on.
    lost: usize,
}

impl Taken {
    /// Those of the busy ones that get over this step; the others are lost.
    fn keep_busy(&mut self, pulse: &Pulse, mut step: impl FnMut(&mut Take) -> bool) {
        let before = self.busy.len();
        self.busy.retain_mut(|take| {
            pulse.beat();
            step(take)
        });
        self.lost += before - self.busy.len();
    }
}

impl Leg {
    fn of(held: &Held, number: u32) -> Option<Leg> {
        let facts = *held.legs.get(&number)?;
        let (sent, received) = held.positions(number);
        let state = &held.state;
        let whole = match number {
            0 => state.client.phase == Phase::Ended || state.closed.is_some(),
            _ => state.server_ends.get(&number) == Some(&received),
        };
        Some(Leg {
            facts,
            tcp: tcp_facts(&facts),
            sent,
            received,
            acked: sent,
            whole,
            ended: false,
            slot: None,
            heard: None,
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
        self.heard.map_or(0, |heard| heard.window << self.tcp.send_scale().min(14))
    }

    fn send_sequence(&self) -> u32 {
        self.facts.sent.wrapping_add(self.acked as u32)
    }

    /// What the peer has said that it has, if that is more than is sent from.
    fn peer_has(&self) -> u32 {
        let send = self.send_sequence();
        self.heard.map(|heard| heard.ack).filter(|ack| ack.wrapping_sub(send) as i32 > 0).unwrap_or(send)
    }

    fn receive_sequence(&self) -> u32 {
        self.facts.received.wrapping_add(self.received as u32).wrapping_add(u32::from(self.ended))
    }

    fn stamp(&self, now_ms: u64) -> Option<u32> {
        let seen = self.heard.map_or(0, |heard| heard.timestamps.1);
        self.tcp.stamp.map(|stamp| match self.heard {
            Some(_) => stamp.after(now_ms, seen),
            None => stamp.at(now_ms),
        })
    }

    fn restored(&self, cluster: &Cluster, now_ms: u64) -> Restored {
        let interface = cluster.layout.interfaces[usize::from(self.facts.interface).min(1)];
        let newest = self.heard.map_or(0, |heard| heard.timestamps.0);
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

    /// Tells the peer what it sent while nobody listened. `socket`: the one that lives now. Whether it was told.
    pub(super) fn tell_loss(&self, cluster: &Cluster, socket: &OwnedFd) -> bool {
        let Some(heard) = self.heard.filter(|heard| heard.seq != self.receive_sequence()) else {
            return false;
        };
        let own = evergate_sys::timestamp(socket.as_raw_fd()).ok();
        let loss = Loss {
            send: self.send_sequence(), // the gate tells the peer's own number in its place
            receive: self.receive_sequence(),
            until: heard.seq,
            window: self.window(),
            timestamps: self.tcp.stamp.and(own).map(|own| (own, heard.timestamps.0)),
        };
        cluster.prober.tell(&self.tcp, &loss).unwrap_or(false) // who does not hear it waits for its timer
    }

    /// What the peer has, and how much room. Whoever has more than was ever sent is not the peer: his word would be skipped in
    /// what is made again.
    pub(super) fn hear(&mut self, heard: Heard) {
        let ahead = heard.ack.wrapping_sub(self.facts.sent.wrapping_add(self.sent as u32)) as i32;
        if i64::from(ahead) > i64::from(ahead_max(self.tcp.send_scale())) {
            return;
        }
        self.heard = Some(heard);
        self.acked = self.sent + u64::try_from(ahead - 1).unwrap_or(0);
        let end = self.facts.received.wrapping_add(self.received as u32).wrapping_add(1);
        self.ended |= self.whole && heard.seq == end;
    }

    /// Whether the peer of a connection that rests says this: it has everything, and goes on where it stopped. Whoever only
    /// guesses at the connection's ends does not know that.
    fn follows(&self, heard: &Heard) -> bool {
        let ahead = heard.seq.wrapping_sub(self.receive_sequence());
        heard.ack == self.send_sequence() && ahead < self.window()
    }

    /// What the peer said while there was no socket is there as if it came now.
    fn play(&self, mut said: Vec<Piece>) {
        let Some(socket) = self.socket.as_ref().filter(|_| !self.whole) else { return };
        said.retain(|piece| piece.ack == self.send_sequence());
        for data in in_order(&said, self.receive_sequence()) {
            if !socket.receive(data).is_ok_and(|taken| taken == data.len()) {
                break; // said again before long
            }
        }
    }

    /// Gate first, then the socket, still asleep.
    fn build(&mut self, cluster: &Cluster, now_ms: u64) -> anyhow::Result<()> {
        let restored = self.restored(cluster, now_ms);
        // Whoever goes on after this node begins from what is said from now on.
        self.facts.timestamp = restored.timestamps.map(|(own, _)| (own, now_ms));
        let slot = self.slot.take().ok_or_else(|| anyhow::anyhow!("no slot"))?;
        self.slot = Some(cluster.gate.restore_again(slot, &restored));
        // Of a peer that has not said it: sockets do not send into a window that is too small before seconds have passed.
        let peer_window = if self.heard.is_some() { self.room() } else { PEER_WINDOW };
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

impl Take {
    /// What is held of a connection; `None` when not even its client is known.
    fn of(id: ConnectionId, held: Box<Held>) -> Option<Take> {
        let mut take = Take { id, bucket: Bucket(held.bucket), held, legs: Vec::new() };
        if !take.rests() {
            take.find_legs();
        }
        take.held.legs.contains_key(&0).then_some(take)
    }

    fn find_legs(&mut self) {
        let route = self.held.state.routes.get(&self.held.state.server.request);
        let numbers = std::iter::once(0).chain(route.map(|route| route.leg));
        self.legs = numbers.filter_map(|number| Leg::of(&self.held, number)).collect();
    }

    fn rests(&self) -> bool {
        self.held.state.rests()
    }

    /// What its client is told apart by.
    pub(super) fn client_flow(&self) -> Option<Flow> {
        self.held.legs.get(&0).map(|facts| Flow::new(facts.local, facts.remote))
    }
}

/// What became of a connection that rests.
enum Resting {
    Awake(Box<AwakeLegs>),
    /// Its client has begun another one here.
    BegunAnew,
    Lost,
}

impl Worker {
    /// Continues the connections of this worker's share of the buckets: at once those with something on its way to somebody,
    /// the others between all else ([`Worker::resume_resting`]).
    pub(super) fn take_over(&mut self, round: &Round) {
        let began = (Instant::now(), Leases::now_ns());
        let Some(cluster) = &mut self.cluster else { return };
        let worker = cluster.worker;
        cluster.taken_at = Some(self.now);
        // From here on they wait for what is taken over now.
        for (bucket, _) in &round.buckets {
            cluster.arriving.remove(bucket);
        }
        let mine = round.buckets.iter().filter(|(bucket, _)| cluster.worker_of(*bucket) == worker);
        let mine: Vec<_> = mine.copied().collect();
        // What comes before is dropped, and said again only after the client's timer.
        mine.iter().for_each(|(bucket, _)| cluster.set_pending(*bucket, true));
        let mut taken = Taken::default();
        let counters = self.counters.clone();
        // Whatever a defect makes of it, the take-over has an end, and its buckets do not stay on hold.
        survives(&counters, || self.take(&mine, &mut taken));
        let Taken { busy, resting, lost } = taken;
        let resumed = Resumed { round: round.number, buckets: mine.len(), lost, ..Resumed::default() };
        let buckets: Vec<Bucket> = mine.iter().map(|(bucket, _)| *bucket).collect();
        self.begin_waiting(Waiting::new(began, round.silent, resumed, &buckets, busy, resting));
        // Of the other buckets this worker has nothing, or what it accepted meanwhile: a copy needs its word too.
        for (bucket, _) in round.buckets.iter().filter(|bucket| !mine.contains(bucket)) {
            self.pulse.beat();
            self.tell_all_listed(*bucket);
        }
    }

    /// What is held of these buckets; those with something on its way get their sockets. A defect that one connection reaches ends
    /// that one alone.
    fn take(&mut self, mine: &[(Bucket, Office)], taken: &mut Taken) {
        let Some(cluster) = &mut self.cluster else { return };
        let (counters, pulse) = (&self.counters, &self.pulse);
        for (bucket, office) in mine {
            let held = survives(counters, || cluster.holder.take_over(bucket.0, *office));
            for (id, held) in held.into_iter().flatten() {
                pulse.beat();
                match survives(counters, || Take::of(id, held)).flatten() {
                    Some(take) if take.rests() => taken.resting.push(take),
                    Some(take) => taken.busy.push(take),
                    None => taken.lost += 1,
                }
            }
        }
        give_way(&mut taken.busy, &taken.resting);
        let now_ms = evergate_sys::steady_clock_ms();
        taken.keep_busy(pulse, |take| {
            attempt((cluster, counters), take, |cluster, take| gate(cluster, take, now_ms))
        });
        survives(counters, || ask_all(&**cluster, pulse, &mut taken.busy));
        survives(counters, || leave_to_the_new(cluster, &mut taken.busy));
        let now_ms = evergate_sys::steady_clock_ms();
        taken.keep_busy(pulse, |take| {
            attempt((cluster, counters), take, |cluster, take| build(cluster, take, now_ms))
        });
    }

    /// Continues one connection that rests. Its client need not be asked or told anything: nothing of it is on its way, and the
    /// client speaks first. If it has done so already, that is the first thing the connection reads. `since_ns`: when the
    /// take-over began; connections of the same ends that are younger stay.
    pub(super) fn resume_resting(&mut self, mut take: Take, since_ns: u64) -> bool {
        let (bucket, connection) = (take.bucket, take.id);
        let mut built = Resting::Lost;
        self.guarded(None, |worker| built = worker.build_resting(&mut take, since_ns));
        let goes_on = match built {
            Resting::Awake(legs) => self.resume(Awake::of(take, *legs)),
            Resting::BegunAnew => true,
            Resting::Lost => {
                self.drop_takes(vec![take]);
                false
            }
        };
        if !goes_on && let Some(cluster) = &mut self.cluster {
            cluster.give_up_copies(bucket, connection);
        }
        goes_on
    }

    fn build_resting(&mut self, take: &mut Take, since_ns: u64) -> Resting {
        let Some(cluster) = &mut self.cluster else { return Resting::Lost };
        let now_ms = evergate_sys::steady_clock_ms();
        take.find_legs();
        let Some(flow) = take.client_flow() else { return Resting::Lost };
        let Some(client) = take.legs.first_mut() else { return Resting::Lost };
        match cluster.gate.restore_unless_begun(&client.restored(cluster, now_ms), since_ns) {
            Ok(Some(slot)) => client.slot = Some(slot),
            Ok(None) => {
                cluster.give_up_copies(take.bucket, take.id);
                return Resting::BegunAnew; // nothing had been said on it
            }
            Err(_) => return Resting::Lost,
        }
        if !gate(cluster, take, now_ms) {
            return Resting::Lost;
        }
        // From here on all that comes knocks.
        cluster.hear_knocks_of(&flow);
        let said = cluster.knocks.take(&flow);
        if let (Some(client), Some(heard)) = (take.legs.first_mut(), said.heard)
            && client.follows(&heard)
        {
            client.hear(heard);
        }
        if !build(cluster, take, now_ms) {
            return Resting::Lost;
        }
        if let Some(client) = take.legs.first() {
            cluster.hear_knocks_of(&flow);
            let later = cluster.knocks.take(&flow).pieces;
            client.play(said.pieces.into_iter().chain(later).collect());
        }
        wake(cluster, take).map_or(Resting::Lost, |legs| Resting::Awake(Box::new(legs)))
    }

    /// Somebody else goes on with them, or nobody: nothing of them leaves.
    pub(super) fn drop_takes(&mut self, takes: Vec<Take>) {
        let Some(cluster) = &mut self.cluster else { return };
        for mut take in takes {
            give_back(cluster, &mut take);
        }
    }
}

/// A client that was closed may have come again from the same port before the backups heard that it has the end: what it
/// says now belongs to the connection that is not over.
fn give_way(busy: &mut Vec<Take>, resting: &[Take]) {
    let is_over = |take: &Take| take.held.state.closed.is_some();
    let mut over: HashSet<_> =
        busy.iter().filter(|take| is_over(take)).filter_map(Take::client_flow).collect();
    if over.is_empty() {
        return;
    }
    let others = busy.iter().filter(|take| !is_over(take)).chain(resting);
    let anew: HashSet<_> = others.filter_map(Take::client_flow).filter(|flow| over.remove(flow)).collect();
    busy.retain(|take| !is_over(take) || take.client_flow().is_none_or(|flow| !anew.contains(&flow)));
}

/// A client that reset its connection and came again from the same port while nobody listened answers for the new one: the old one
/// would only be in its way.
fn leave_to_the_new(cluster: &mut Cluster, busy: &mut Vec<Take>) {
    let is_old = |take: &Take| {
        let said = take.legs.first().and_then(|client| client.slot.as_ref()).and_then(Slot::strange_ack);
        let flow = take.client_flow();
        said.zip(flow).is_some_and(|(ack, flow)| cluster.gate.has_answered_syn(&flow, ack))
    };
    let (old, rest) = std::mem::take(busy).into_iter().partition(is_old);
    *busy = rest;
    let old: Vec<Take> = old;
    for mut take in old {
        give_back(cluster, &mut take);
        cluster.give_up_copies(take.bucket, take.id);
    }
}

/// One step of one connection. A defect that it reaches ends this one.
fn attempt(
    (cluster, counters): (&mut Cluster, &Counters),
    take: &mut Take,
    step: impl FnOnce(&mut Cluster, &mut Take) -> bool,
) -> bool {
    survives(counters, || step(cluster, take)).unwrap_or_else(|| give_back(cluster, take))
}

/// Slots, so that nothing of the sockets to come escapes.
fn gate(cluster: &mut Cluster, take: &mut Take, now_ms: u64) -> bool {
    #[cfg(test)]
    faults::strike_take("gate", take.client_flow());
    let gated = take.legs.iter_mut().filter(|leg| leg.slot.is_none()).all(|leg| {
        leg.slot = cluster.gate.restore(&leg.restored(cluster, now_ms)).ok();
        leg.slot.is_some()
    });
    gated || give_back(cluster, take)
}

/// Sockets, still asleep.
fn build(cluster: &mut Cluster, take: &mut Take, now_ms: u64) -> bool {
    #[cfg(test)]
    faults::strike_take("build", take.client_flow());
    let built: anyhow::Result<()> = take.legs.iter_mut().try_for_each(|leg| leg.build(cluster, now_ms));
    built.is_ok() || give_back(cluster, take)
}

/// It does not go on: false.
pub(super) fn give_back(cluster: &mut Cluster, take: &mut Take) -> bool {
    for slot in take.legs.iter_mut().filter_map(|leg| leg.slot.take()) {
        cluster.lane.finish(slot, None, Leases::now_ns());
    }
    false
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use evergate_mirror::Mirrored;

    fn take(id: u64, port: u16, closed: bool) -> Take {
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
        let state = Mirrored { closed: closed.then_some((0, false)), ..Mirrored::default() };
        let held =
            Held { bucket: 1, office: Office::default(), state, legs: [(0, facts)].into(), by: (0, 0) };
        Take::of(ConnectionId(id), Box::new(held)).unwrap()
    }

    #[test]
    fn what_is_over_gives_way_to_its_client_coming_again_and_to_nobody_else() {
        let mut busy = vec![take(1, 50, true), take(2, 51, true), take(3, 52, true), take(4, 51, false)];
        give_way(&mut busy, &[take(5, 50, false), take(6, 53, false)]);
        assert_eq!(busy.iter().map(|take| take.id.0).collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn who_has_more_than_was_ever_sent_is_not_heard() {
        let mut leg = Leg::of(&take(1, 50, false).held, 0).unwrap();
        let heard = |ack| Heard { seq: 1, ack, window: 1000, count: 1, timestamps: (0, 0) };
        let most = ahead_max(leg.tcp.send_scale());
        for forged in [most + 2, 1 << 30, i32::MAX as u32] {
            leg.hear(heard(forged));
            assert!(leg.heard.is_none() && leg.acked == 0, "{forged}");
        }
        for (ack, acked) in [(1u32.wrapping_sub(100), 0), (1, 0), (151, 149), (most + 1, u64::from(most) - 1)]
        {
            leg.hear(heard(ack));
            assert_eq!((leg.heard, leg.acked), (Some(heard(ack)), acked));
        }
    }

    /// One with something on its way, so that its peers are asked.
    pub(in super::super) fn busy(id: u64, port: u16) -> Take {
        let mut take = take(id, port, false);
        take.find_legs();
        take
    }
}
