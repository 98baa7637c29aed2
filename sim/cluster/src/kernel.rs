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

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    pub(crate) sockets: BTreeMap<Flow, Tcp>,
    pub(crate) slots: BTreeMap<Flow, Slot>,
    /// Sockets of which nobody has a descriptor: closed, or of a process that died.
    orphans: BTreeSet<Flow>,
    pub(crate) held: BTreeSet<Bucket>,
    pub(crate) peer_input: BTreeMap<Flow, PeerPosition>,
    /// Buckets of which connections are yet to get sockets: what is said to those is handed over, not answered.
    pub(crate) pending: BTreeSet<Bucket>,
    pub(crate) early: Vec<Segment>,
    /// The mutation that answers it.
    pub(crate) resets_pending: bool,
    /// Said, and not yet looked at by the gate.
    reported: Vec<Segment>,
    /// Socket buffers in bytes.
    pub(crate) buffer: usize,
}

/// What became of a segment that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Nothing for the program.
    Nothing,
    /// The flow's socket has news, or its peer has acknowledged what was asked about.
    News(Flow),
    /// A client's connection is made: it belongs to nobody yet.
    Accepted(Flow),
}

impl Kernel {
    /// A kernel that has just started; sockets have buffers of so many bytes.
    pub(crate) fn new(buffer: usize) -> Kernel {
        Kernel { buffer, ..Kernel::default() }
    }

    /// Takes a segment of a bucket that is this node's. `runs`: there is a process.
    pub(crate) fn handle(&mut self, now: Time, bucket: Bucket, mut segment: Segment, runs: bool) -> Arrival {
        let flow = segment.flow;
        if self.held.contains(&bucket) {
            self.read_from(&segment);
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
                self.reported.push(Segment { syn: true, ..Segment::bare(flow, 0, Some(FIRST), edge) });
            }
            return Arrival::Nothing;
        }
        let first = segment.seq == FIRST && segment.ack == Some(FIRST) && !segment.rst && !segment.probe;
        if first && accepts && !self.slots.contains_key(&flow) {
            // The cookie says that we answered a SYN: this is the connection.
            let mut socket = Tcp::accept(flow, self.buffer, segment.edge);
            self.slots.insert(flow, Slot::new(socket.offered_edge()));
            socket.handle(now, &segment);
            self.sockets.insert(flow, socket);
            return Arrival::Accepted(flow);
        }
        // Whoever acknowledges nothing but our SYN may be ahead of its own first ACK, which is still on its way.
        let early = accepts && segment.ack == Some(FIRST);
        let stays = pending && !self.resets_pending;
        if let (Some(ack), false) = (segment.ack, segment.rst || first || early || stays || !runs) {
            self.reported.push(Segment { rst: true, ..Segment::bare(flow, ack, Some(segment.end()), 0) });
        }
        Arrival::Nothing
    }

    /// Remembers what the peer of a held flow, or of another node's, says.
    pub(crate) fn read_from(&mut self, segment: &Segment) {
        if let (Some(ack), false) = (segment.ack, segment.syn || segment.rst) {
            let peer_input = self.peer_input.entry(segment.flow).or_default();
            peer_input.seq = peer_input.seq.max(segment.end());
            peer_input.ack = peer_input.ack.max(ack);
            peer_input.edge = peer_input.edge.max(segment.edge);
        }
    }

    /// Everything that sockets have to say now, before the gate.
    pub(crate) fn poll(&mut self, now: Time) -> Vec<Segment> {
        let mut reported = std::mem::take(&mut self.reported);
        for socket in self.sockets.values_mut() {
            socket.poll(now, &mut reported);
        }
        let done: Vec<Flow> = self.orphans.iter().copied().filter(|flow| self.is_done(*flow)).collect();
        for flow in done {
            self.orphans.remove(&flow);
            self.sockets.remove(&flow);
        }
        reported
    }

    fn is_done(&self, flow: Flow) -> bool {
        self.sockets.get(&flow).is_none_or(Tcp::is_finished)
    }

    pub(crate) fn next_at(&self) -> Option<Time> {
        self.sockets.values().filter_map(Tcp::next_at).min()
    }

    /// Says something past the sockets.
    pub(crate) fn state_text(&mut self, segment: Segment) {
        self.reported.push(segment);
    }

    pub(crate) fn socket(&mut self, flow: Flow) -> Option<&mut Tcp> {
        self.sockets.get_mut(&flow).filter(|socket| !socket.is_reset())
    }

    /// Sends the ACK that is owed, if one is.
    pub(crate) fn emit_ack(&mut self, flow: Flow) {
        if let Some(slot) = self.slots.get(&flow).filter(|slot| slot.owes_ack()) {
            self.reported.push(slot.template(flow));
        }
    }

    /// A socket that begins in the middle, in place of an orphan of an earlier life, if there is one.
    pub(crate) fn restore(&mut self, flow: Flow, socket: Tcp) {
        self.orphans.remove(&flow);
        self.sockets.insert(flow, socket);
    }

    /// Whether a process has a descriptor of the flow, or is to be given one.
    pub(crate) fn is_open(&self, flow: Flow) -> bool {
        self.sockets.contains_key(&flow) && !self.orphans.contains(&flow)
    }

    /// The program closes its descriptor: an end in order, or by RST when something was not read.
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
            self.reported.push(socket.abort());
        }
    }

    /// The flow is forgotten: what its socket still says is stopped.
    pub(crate) fn silence(&mut self, flow: Flow) {
        self.orphans.remove(&flow);
        self.sockets.remove(&flow);
        self.slots.remove(&flow);
        self.reported.retain(|segment| segment.flow != flow);
    }

    /// A new process begins, with a gate of its own: what the one before left is cleared away.
    pub(crate) fn begin_again(&mut self) {
        for flow in std::mem::take(&mut self.orphans) {
            self.silence(flow);
        }
        self.slots.clear();
        self.peer_input.clear();
        self.pending.clear();
    }

    /// The process is gone, and all its descriptors with it.
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
