//! A relay of raw TCP that survives its node: the smallest user of the gate. Its replicated state is a struct that both
//! nodes can see. An ACK goes to one peer only when the other peer has the bytes. So the senders hold what is missing,
//! and the nodes need positions only.

use crate::stream::connect_at;
use crate::world::{Node, VIRTUAL_MAC};
use evergate_bpf::{Flow, Leases, Mode, Origin, Restored, Slot, WorkerPort, WorkerPortId};
use evergate_sys::{Announcer, Probe, Prober, Restore, TcpParams, Transfer};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

const BUFFER: usize = 1 << 18;
const HOLD_BACK: u64 = 1 << 16;
const RIPE_NS: u64 = 1_000_000;
/// Only ends a hang.
const HANG_NS: u64 = 40_000_000_000;
const WINDOW: u32 = 65_535 << 6;

/// What a backup must know of a leg.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LegFacts {
    tcp: TcpParams,
    origin: Origin,
    next_hop: [u8; 6],
    window_scale: u8,
}

/// What a backup must know of the connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replicate {
    pub(crate) client: LegFacts,
    pub(crate) server: LegFacts,
    /// Bytes of the client that the server has, and the other way round.
    pub(crate) up: u64,
    pub(crate) down: u64,
    /// Lengths of the client's and the server's stream, once their ends were read.
    pub(crate) ends: [Option<u64>; 2],
}

impl std::fmt::Debug for Leg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "leg {:?} read {} written {} acked {} committed {} target {} ended {} closed {} pending {} origin {:?}",
            self.slot,
            self.read,
            self.written,
            self.acked,
            self.committed,
            self.target,
            self.ended,
            self.closed,
            self.pending.len(),
            self.facts.origin
        )
    }
}

impl Replicate {
    /// First sequence numbers of the client's stream, and of ours to the server.
    pub(crate) fn starts(&self) -> [u32; 2] {
        [self.client.origin.received, self.server.origin.sent]
    }
}

struct Leg {
    socket: OwnedFd,
    slot: Slot,
    facts: LegFacts,
    /// Bytes read, written, acknowledged by the peer, and committed; FINs count one.
    read: u64,
    written: u64,
    acked: u64,
    committed: u64,
    target: u64,
    target_ns: u64,
    ended: bool,
    closed: bool,
    pending: Vec<u8>,
}

pub(crate) fn wall_ms() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64
}

fn wait(fd: i32, events: i16, timeout_ms: i32) -> bool {
    let mut poll = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one pollfd. A negative descriptor is ignored.
    unsafe { libc::poll(&raw mut poll, 1, timeout_ms) > 0 }
}

impl Leg {
    fn new(socket: OwnedFd, worker_port: &WorkerPort) -> Leg {
        let tcp = evergate_sys::tcp_params(socket.as_raw_fd(), wall_ms()).unwrap();
        let slot = worker_port.slot(&Flow::new(tcp.local, tcp.remote)).expect("registered before any data");
        assert!(slot.is_established());
        let facts = LegFacts {
            tcp,
            origin: slot.origin(),
            next_hop: slot.next_hop(),
            window_scale: slot.window_scale(),
        };
        Leg::at(socket, slot, facts, 0, 0)
    }

    fn at(socket: OwnedFd, slot: Slot, facts: LegFacts, read: u64, written: u64) -> Leg {
        Leg {
            socket,
            slot,
            facts,
            read,
            written,
            acked: written,
            committed: read,
            target: read,
            target_ns: 0,
            ended: false,
            closed: false,
            pending: Vec::new(),
        }
    }

    fn update_acked(&mut self) {
        let was = self.facts.origin.sent.wrapping_add(self.acked as u32);
        let more = self.slot.peer_acked().wrapping_sub(was) as i32;
        self.acked += u64::try_from(more).unwrap_or(0);
    }

    /// Reads what fits into the other leg.
    fn fill(&mut self, into: &mut Leg) {
        let mut buffer = vec![0; BUFFER];
        while !self.ended && into.pending.len() < BUFFER {
            match evergate_sys::read(self.socket.as_raw_fd(), &mut buffer) {
                Transfer::Moved(count) => {
                    self.read += count as u64;
                    into.pending.extend_from_slice(&buffer[..count]);
                }
                Transfer::End => self.ended = true,
                Transfer::Blocked => return,
                Transfer::Broken(error) => panic!("reading {:?}: {error}", self.slot),
            }
        }
    }

    fn flush(&mut self, other_ended: bool) {
        while !self.pending.is_empty() {
            match evergate_sys::write(self.socket.as_raw_fd(), &self.pending) {
                Transfer::Moved(count) => {
                    self.written += count as u64;
                    self.pending.drain(..count);
                }
                Transfer::Broken(error) => panic!("writing {:?}: {error}", self.slot),
                _ => return,
            }
        }
        if other_ended && !self.closed {
            self.closed = true;
            self.slot.allow_fin();
            evergate_sys::shutdown_write(self.socket.as_raw_fd());
        }
    }

    /// The other side has so much: let the sender know, but stay behind while the stream runs, so that a new owner's
    /// first ACK is news.
    fn release(&mut self, position: u64, now_ns: u64) {
        if position > self.target {
            self.target = position;
            self.target_ns = now_ns;
            let behind = HOLD_BACK.min((self.read.max(position) - self.committed) / 2);
            self.commit(position - behind.min(position - self.committed));
        } else if self.committed < self.target && now_ns - self.target_ns > RIPE_NS {
            self.commit(self.target);
        }
    }

    fn commit(&mut self, position: u64) {
        self.committed = position;
        self.slot.set_committed(self.facts.origin.received.wrapping_add(position as u32));
    }

    fn is_done(&self) -> bool {
        self.ended && self.closed && self.acked > self.written
    }
}

pub(crate) struct Relay {
    client: Leg,
    server: Leg,
    worker_port: WorkerPort,
}

impl Relay {
    /// Accepts one connection and connects to the server from the port block of its bucket, starting at sequence number
    /// `first`.
    pub(crate) fn accept(
        node: &NodeRef,
        listener: &OwnedFd,
        server: SocketAddr,
        first: Option<u32>,
    ) -> Relay {
        let worker_port = node.gate.worker_port(WorkerPortId::new(0).unwrap()).unwrap();
        let client = loop {
            assert!(wait(listener.as_raw_fd(), libc::POLLIN, 20_000), "nobody connects");
            if let Some((socket, _)) = evergate_sys::accept(listener.as_raw_fd()).unwrap() {
                break Leg::new(socket, &worker_port);
            }
        };
        let local = client.slot.flow().local.ip();
        let ports = node.gate.ports().of(node.gate.bucket(&client.slot.flow())).unwrap();
        let socket = match first {
            Some(first) => connect_at(local, ports.clone(), server, first),
            None => evergate_sys::connect_from(local, ports.clone(), server).unwrap(),
        };
        assert!(wait(socket.as_raw_fd(), libc::POLLOUT, 20_000), "the server does not answer");
        evergate_sys::connect_error(socket.as_raw_fd()).unwrap();
        let socket = TcpStream::from(socket);
        socket.set_nonblocking(true).unwrap();
        let socket = OwnedFd::from(socket);
        let server = Leg::new(socket, &worker_port);
        assert!(ports.contains(&server.slot.local().port()));
        assert_eq!(node.gate.bucket(&server.slot.flow()), node.gate.bucket(&client.slot.flow()));
        Relay { client, server, worker_port }
    }

    pub(crate) fn replication(&self) -> Replicate {
        Replicate {
            client: self.client.facts,
            server: self.server.facts,
            up: self.client.target.min(self.client.read),
            down: self.server.target.min(self.server.read),
            ends: [&self.client, &self.server].map(|leg| leg.ended.then_some(leg.read)),
        }
    }

    pub(crate) fn client_facts(&self) -> TcpParams {
        self.client.facts.tcp
    }

    /// Runs until both ends are done (true), or so many bytes have been acknowledged in both directions together
    /// (false).
    pub(crate) fn run(&mut self, stop: u64) -> bool {
        let start_ns = Leases::now_ns();
        loop {
            let now_ns = Leases::now_ns();
            assert!(now_ns - start_ns < HANG_NS, "the relay hangs: {:?} {:?}", self.client, self.server);
            let (client, server) = (&mut self.client, &mut self.server);
            client.update_acked();
            server.update_acked();
            client.fill(server);
            server.fill(client);
            client.flush(server.ended);
            server.flush(client.ended);
            client.release(server.acked, now_ns);
            server.release(client.acked, now_ns);
            let slots = [&client.slot, &server.slot];
            self.worker_port.emit_acks(slots.into_iter().filter(|slot| slot.owes_ack())).unwrap();
            if client.is_done() && server.is_done() {
                return true;
            }
            if client.acked + server.acked >= stop {
                return false;
            }
            let mut polls =
                [client.socket.as_raw_fd(), server.socket.as_raw_fd(), self.worker_port.events_fd()]
                    .map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            // SAFETY: pointer and length describe the array.
            unsafe { libc::poll(polls.as_mut_ptr(), 3, 1) };
        }
    }

    /// Closes orderly.
    pub(crate) fn finish(mut self) {
        for leg in [self.client, self.server] {
            let end = leg.facts.origin.sent.wrapping_add(leg.acked as u32);
            // A socket whose FIN left from another node would send one more.
            evergate_sys::forget(leg.socket).unwrap();
            self.worker_port.finish(leg.slot, Some(end), 0);
        }
        assert_eq!(self.worker_port.finishing(), 0);
    }
}

/// What a node's thread needs of it.
#[derive(Clone)]
pub(crate) struct NodeRef {
    pub(crate) gate: std::sync::Arc<evergate_bpf::PacketGate>,
    pub(crate) card: u32,
    pub(crate) mac: [u8; 6],
    pub(crate) mode: Mode,
}

impl From<&Node> for NodeRef {
    fn from(node: &Node) -> NodeRef {
        NodeRef { gate: node.gate.clone(), card: node.card, mac: node.mac, mode: node.mode }
    }
}

/// What one peer answered to a probe.
struct Answer {
    acknowledged: u32,
    peer_window: u32,
    timestamps: Option<(u32, u32)>,
}

fn ask(prober: &Prober, leg: &LegFacts, sent: u64, received: u64) {
    let probe = Probe {
        acknowledged: leg.origin.sent.wrapping_add(sent as u32),
        ack: leg.origin.received.wrapping_add(received as u32).wrapping_sub(HOLD_BACK as u32 * 4),
        window: WINDOW,
        timestamp: leg.tcp.stamp.map(|stamp| stamp.at(wall_ms())),
    };
    prober.ask(&leg.tcp, &probe).unwrap();
}

fn answer(node: &NodeRef, leg: &LegFacts) -> Option<Answer> {
    let peer_input = node.gate.peer_position(&Flow::new(leg.tcp.local, leg.tcp.remote))?;
    let ours = leg.tcp.stamp.map(|stamp| stamp.after(wall_ms(), peer_input.timestamps.1));
    Some(Answer {
        acknowledged: peer_input.ack,
        peer_window: peer_input.window << leg.tcp.send_scale(),
        timestamps: ours.map(|ours| (ours, peer_input.timestamps.0)),
    })
}

fn slot_of(
    node: &NodeRef,
    leg: &LegFacts,
    sent: u32,
    received: u64,
    timestamps: Option<(u32, u32)>,
) -> Restored {
    Restored {
        flow: Flow::new(leg.tcp.local, leg.tcp.remote),
        send: sent,
        peer_has: sent,
        receive: leg.origin.received.wrapping_add(received as u32),
        window: WINDOW.min(65_535 << leg.window_scale),
        window_scale: leg.window_scale,
        peer_window_scale: leg.tcp.send_scale(),
        timestamps,
        interface: node.card,
        source_mac: node.mac,
        next_hop: leg.next_hop,
        asleep: false,
    }
}

/// Continues a connection whose node has died. The bucket is on hold; the caller lets go of it with `unhold` at the
/// right moment.
pub(crate) fn fail_over(
    node: &NodeRef,
    replication: &Replicate,
    announcer: &Announcer,
    unhold: impl FnOnce(),
) -> Relay {
    let prober = Prober::new().unwrap();
    let mut worker_port = node.gate.worker_port(WorkerPortId::new(0).unwrap()).unwrap();
    announcer.announce(replication.client.tcp.local.ip()).unwrap();
    for leg in [&replication.client, &replication.server] {
        // Known since the leg was replicated. A neighbour request takes a second when the first one is lost.
        evergate_sys::set_neighbour(node.card, leg.tcp.remote.ip(), leg.next_hop).unwrap();
    }
    // (facts, sent, received) of both legs as replicated: what one peer sent is what the other has.
    let legs = [
        (&replication.client, replication.down, replication.up),
        (&replication.server, replication.up, replication.down),
    ];
    let slots = legs.map(|(leg, sent, received)| {
        let stamp = leg.tcp.stamp.map(|stamp| (stamp.at(wall_ms()), 0));
        let sent = leg.origin.sent.wrapping_add(sent as u32);
        node.gate.restore(&slot_of(node, leg, sent, received, stamp)).unwrap()
    });
    let start_ns = Leases::now_ns();
    let answers = loop {
        let peer_input = legs.map(|(leg, ..)| answer(node, leg).is_some());
        assert!(Leases::now_ns() - start_ns < HANG_NS, "no answer to probes: {peer_input:?}");
        for (leg, sent, received) in legs {
            ask(&prober, leg, sent, received);
        }
        // Until both have answered; a lost question is asked again.
        wait(-1, 0, 2);
        if let (Some(client), Some(server)) = (answer(node, legs[0].0), answer(node, legs[1].0)) {
            break [client, server];
        }
    };
    let has = [0, 1].map(|side| {
        let (leg, sent, _) = legs[side];
        let replicated = leg.origin.sent.wrapping_add(sent as u32);
        let ahead = answers[side].acknowledged.wrapping_sub(replicated) as i32;
        sent + u64::try_from(ahead).expect("a peer has at least what was replicated")
    });
    let mut slots = slots.into_iter();
    let restored = [0, 1].map(|side| {
        let (leg, ..) = legs[side];
        let received = has[1 - side];
        let from = slot_of(node, leg, answers[side].acknowledged, received, answers[side].timestamps);
        let slot = node.gate.restore_again(slots.next().unwrap(), &from);
        let restore = Restore {
            facts: leg.tcp,
            send: from.send,
            receive: from.receive,
            timestamp: from.timestamps.map(|(ours, _)| ours),
            window: from.window,
            peer_window: answers[side].peer_window,
            buffer: 4 << 20,
        };
        (evergate_sys::restore(&restore).unwrap(), slot)
    });
    unhold();
    let mut restored = restored.into_iter();
    let [client, server] = [0, 1].map(|side| {
        let (socket, slot) = restored.next().unwrap();
        let mut leg = Leg::at(socket.finish().unwrap(), slot, *legs[side].0, has[1 - side], has[side]);
        // An end counts as one byte: its receiver gets no more, and its sender sends no more.
        leg.ended = replication.ends[side].is_some_and(|end| has[1 - side] > end);
        leg.closed = replication.ends[1 - side].is_some_and(|end| has[side] > end);
        leg.read -= u64::from(leg.ended);
        leg.written -= u64::from(leg.closed);
        leg
    });
    // One ACK per leg at the full position: the advance that makes the peers send again at once.
    worker_port.emit_acks([&client.slot, &server.slot]).unwrap();
    // Window updates may have been lost on hold.
    for (side, leg) in [&client, &server].into_iter().enumerate() {
        ask(&prober, &leg.facts, has[side], has[1 - side]);
    }
    Relay { client, server, worker_port }
}

pub(crate) fn announcer(node: &NodeRef) -> Announcer {
    let source = if node.mode == Mode::Flood { node.mac } else { VIRTUAL_MAC };
    Announcer::new(node.card, VIRTUAL_MAC, source).unwrap()
}
