//! A node's kernel: sockets, the gate's slots, and buckets on hold. It outlives the process.

use crate::event_queue::Time;
use crate::gate::{PeerPosition, Slot};
use crate::segment::{FIRST, Flow, Segment};
use crate::tcp::Tcp;
use evergate_membership::Bucket;
use evergate_replication::AckSlot;
use std::collections::{BTreeMap, BTreeSet};

/// The port that clients connect to.
pub(crate) const PORT: u16 = 443;

/// Kernel of one node: see the module's description.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    pub(crate) sockets: BTreeMap<Flow, Tcp>,
    pub(crate) slots: BTreeMap<Flow, Slot>,
    /// Sockets without a descriptor: closed, or left by a process that ended.
    orphans: BTreeSet<Flow>,
    pub(crate) held: BTreeSet<Bucket>,
    pub(crate) peer_positions: BTreeMap<Flow, PeerPosition>,
    /// Buckets with connections that still lack sockets. Segments to these are diverted to the worker, not answered.
    pub(crate) pending: BTreeSet<Bucket>,
    pub(crate) early: Vec<Segment>,
    /// The mutation that answers such segments by RST.
    pub(crate) resets_pending: bool,
    /// Segments that were sent, before the gate.
    outgoing: Vec<Segment>,
    /// Size of socket buffers in bytes.
    pub(crate) buffer: usize,
}

/// Effect of an incoming segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// No event for the program.
    Nothing,
    /// The flow's socket has an event, or its peer acknowledged an armed position.
    News(Flow),
    /// A client's connection is established and belongs to no process yet.
    Accepted(Flow),
}

impl Kernel {
    /// A newly started kernel, with socket buffers of so many bytes.
    pub(crate) fn new(buffer: usize) -> Kernel {
        Kernel { buffer, ..Kernel::default() }
    }

    /// Processes a segment of a bucket that this node owns. `runs`: there is a process.
    pub(crate) fn handle(&mut self, now: Time, bucket: Bucket, mut segment: Segment, runs: bool) -> Arrival {
        let flow = segment.flow;
        if self.held.contains(&bucket) {
            self.record_position(&segment);
            return Arrival::Nothing;
        }
        if let Some(slot) = self.slots.get_mut(&flow) {
            slot.ingress(&mut segment);
        }
        if let Some(socket) = self.sockets.get_mut(&flow) {
            let connecting = !socket.is_open() && !socket.is_reset();
            let before = socket.events();
            socket.handle(now, &segment);
            let mut news = socket.events() != before || socket.has_room_again();
            if connecting && socket.is_open() {
                self.slots.insert(flow, Slot::new(socket.offered_edge()));
            }
            if self.orphans.contains(&flow) && self.sockets.get(&flow).is_some_and(Tcp::has_input) {
                self.kill(flow);
            }
            news |= self.slots.get_mut(&flow).is_some_and(Slot::wakes);
            return if news { Arrival::News(flow) } else { Arrival::Nothing };
        }
        let accepts = runs && flow.ours.port() == PORT;
        let pending = accepts && self.pending.contains(&bucket) && !self.slots.contains_key(&flow);
        if pending && segment.ack.is_some() && !segment.data.is_empty() && !segment.syn && !segment.rst {
            self.early.push(segment);
            return Arrival::Nothing;
        }
        if segment.syn && segment.ack.is_none() {
            if accepts {
                let edge = FIRST + self.buffer as u64;
                self.outgoing.push(Segment { syn: true, ..Segment::bare(flow, 0, Some(FIRST), edge) });
            }
            return Arrival::Nothing;
        }
        let first = segment.seq == FIRST && segment.ack == Some(FIRST) && !segment.rst && !segment.probe;
        if first && accepts && !self.slots.contains_key(&flow) {
            // The SYN cookie proves that a node answered the SYN: the connection is established.
            let mut socket = Tcp::accept(flow, self.buffer, segment.edge);
            self.slots.insert(flow, Slot::new(socket.offered_edge()));
            socket.handle(now, &segment);
            self.sockets.insert(flow, socket);
            return Arrival::Accepted(flow);
        }
        // A segment that acknowledges nothing but the SYN may precede the peer's own first ACK.
        let early = accepts && segment.ack == Some(FIRST);
        let stays = pending && !self.resets_pending;
        if let (Some(ack), false) = (segment.ack, segment.rst || first || early || stays || !runs) {
            self.outgoing.push(Segment { rst: true, ..Segment::bare(flow, ack, Some(segment.end()), 0) });
        }
        Arrival::Nothing
    }

    /// Records the position of the peer of a held flow, or of another node's.
    pub(crate) fn record_position(&mut self, segment: &Segment) {
        if let (Some(ack), false) = (segment.ack, segment.syn || segment.rst) {
            let position = self.peer_positions.entry(segment.flow).or_default();
            position.seq = position.seq.max(segment.end());
            position.ack = position.ack.max(ack);
            position.edge = position.edge.max(segment.edge);
        }
    }

    /// All segments that sockets have to send now, before the gate.
    pub(crate) fn poll(&mut self, now: Time) -> Vec<Segment> {
        let mut segments = std::mem::take(&mut self.outgoing);
        for socket in self.sockets.values_mut() {
            socket.poll(now, &mut segments);
        }
        let done: Vec<Flow> = self.orphans.iter().copied().filter(|flow| self.is_done(*flow)).collect();
        for flow in done {
            self.orphans.remove(&flow);
            self.sockets.remove(&flow);
        }
        segments
    }

    fn is_done(&self, flow: Flow) -> bool {
        self.sockets.get(&flow).is_none_or(Tcp::is_finished)
    }

    pub(crate) fn next_at(&self) -> Option<Time> {
        self.sockets.values().filter_map(Tcp::next_at).min()
    }

    /// Sends a segment past the sockets.
    pub(crate) fn send_raw(&mut self, segment: Segment) {
        self.outgoing.push(segment);
    }

    pub(crate) fn socket(&mut self, flow: Flow) -> Option<&mut Tcp> {
        self.sockets.get_mut(&flow).filter(|socket| !socket.is_reset())
    }

    /// Sends the outstanding ACK, if there is one.
    pub(crate) fn emit_ack(&mut self, flow: Flow) {
        if let Some(slot) = self.slots.get(&flow).filter(|slot| slot.owes_ack()) {
            self.outgoing.push(slot.template(flow));
        }
    }

    /// Inserts a restored socket, in place of an orphan of an earlier process.
    pub(crate) fn restore(&mut self, flow: Flow, socket: Tcp) {
        self.orphans.remove(&flow);
        self.sockets.insert(flow, socket);
    }

    /// Whether a process has a descriptor of the flow, or is to receive one.
    pub(crate) fn is_open(&self, flow: Flow) -> bool {
        self.sockets.contains_key(&flow) && !self.orphans.contains(&flow)
    }

    /// Closes the program's descriptor: in order, or by RST when input was not read.
    pub(crate) fn close(&mut self, flow: Flow, abort: bool) {
        let Some(socket) = self.sockets.get_mut(&flow) else { return };
        if abort || socket.has_input() || !socket.is_open() {
            return self.kill(flow);
        }
        socket.shutdown();
        self.orphans.insert(flow);
    }

    fn kill(&mut self, flow: Flow) {
        self.orphans.remove(&flow);
        if let Some(mut socket) = self.sockets.remove(&flow)
            && socket.is_open()
        {
            self.outgoing.push(socket.abort());
        }
    }

    /// Drops the flow with everything that its socket would still send.
    pub(crate) fn silence(&mut self, flow: Flow) {
        self.orphans.remove(&flow);
        self.sockets.remove(&flow);
        self.slots.remove(&flow);
        self.outgoing.retain(|segment| segment.flow != flow);
    }

    /// Starts a new process with a gate of its own. Everything of the previous process is removed.
    pub(crate) fn begin_again(&mut self) {
        for flow in std::mem::take(&mut self.orphans) {
            self.silence(flow);
        }
        self.slots.clear();
        self.peer_positions.clear();
        self.pending.clear();
    }

    /// The process has ended, and all its descriptors are closed.
    pub(crate) fn orphan_all(&mut self) {
        let flows: Vec<Flow> = self.sockets.keys().copied().collect();
        for flow in flows {
            self.close(flow, false);
        }
    }

    /// Memory held for flows, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.sockets.values().map(Tcp::held).sum()
    }
}
