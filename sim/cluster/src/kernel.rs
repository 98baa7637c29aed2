//! A node's kernel with its gate: sockets, slots, and the gate's words about buckets. It outlives the process.
//!
//! As in Linux, a packet passes the gate when it is made, and packets of a socket are made when the program writes.

use crate::bucket_words::BucketWords;
use crate::event_queue::Time;
use crate::fault::Mutation;
use crate::gate::Slot;
use crate::ports::{PORT, bucket_of};
use crate::segment::{FIRST, Flow, Segment, sequence};
use crate::slot_table::{Entry, SlotTable};
use crate::tcp::Tcp;
use evergate_base::net::{DivertedSegment, PeerPosition};
use evergate_membership::Bucket;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Scale of the windows that peers send.
pub(crate) const PEER_SCALE: u8 = 1;
/// Most diverted segments that wait for the program.
const DIVERTED_MAX: usize = 1024;

/// Events for the program since its last turn.
#[derive(Debug, Default)]
pub(crate) struct KernelEvents {
    /// Flows whose sockets have an event, and whether it is only new input.
    pub(crate) sockets: Vec<(Flow, bool)>,
    /// Slots whose armed events occurred.
    pub(crate) woken: Vec<u32>,
    /// Segments of flows without a socket.
    pub(crate) diverted: Vec<DivertedSegment>,
}

/// How a program closes a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Closing {
    /// With FIN, or with RST if input is unread.
    #[default]
    Orderly,
    /// With RST.
    Reset,
    /// Without any segment.
    Forgotten,
}

/// Kernel of one node: see the module's description.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    pub(crate) sockets: BTreeMap<Flow, Tcp>,
    pub(crate) slots: SlotTable,
    /// Sockets without a descriptor: closed, or left by a process that ended.
    orphans: BTreeSet<Flow>,
    /// Established connections that no program has accepted.
    pub(crate) unaccepted: VecDeque<Flow>,
    pub(crate) words: BucketWords,
    pub(crate) peer_positions: BTreeMap<Flow, PeerPosition>,
    pub(crate) events: KernelEvents,
    /// Whether segments of unknown connections are answered by RST.
    pub(crate) resets_unknown: bool,
    /// Whether a process listens.
    pub(crate) listens: bool,
    mutation: Mutation,
    /// Segments that passed the gate.
    outgoing: Vec<Segment>,
    /// Size of socket buffers in bytes.
    pub(crate) buffer: usize,
    /// Number of buckets.
    pub(crate) buckets: u16,
}

impl Kernel {
    /// A newly started kernel, with socket buffers of so many bytes.
    pub(crate) fn new(buffer: usize, buckets: u16, mutation: Mutation) -> Kernel {
        Kernel { buffer, buckets, mutation, ..Kernel::default() }
    }

    pub(crate) fn bucket(&self, flow: Flow) -> Bucket {
        bucket_of(flow, self.buckets)
    }

    // ---- from the network ----

    /// Processes a segment of a bucket that this node owns.
    pub(crate) fn handle(&mut self, now: Time, mut segment: Segment) {
        let flow = segment.flow;
        let bucket = self.bucket(flow);
        let (known, asleep) = self.slots.of(flow).map_or((false, false), |entry| (true, entry.asleep));
        let diverted = (asleep || (!known && flow.ours.port() == PORT)) && self.divert(bucket, &segment);
        if self.words.held.contains(&bucket) {
            return self.record_position(&segment);
        }
        if asleep || diverted {
            return;
        }
        if let Some(number) = self.slots.number(flow)
            && let Some(entry) = self.slots.at_mut(number)
        {
            entry.slot.ingress(&mut segment);
            if entry.slot.wakes() {
                self.events.woken.push(number);
            }
        }
        let ignored = self.mutation == Mutation::IgnoresResets && flow.ours.port() == PORT && segment.rst;
        match self.sockets.contains_key(&flow) {
            _ if ignored => {}
            true => self.handle_at_socket(now, segment),
            false => self.handle_without_socket(now, bucket, segment),
        }
    }

    fn handle_at_socket(&mut self, now: Time, segment: Segment) {
        let flow = segment.flow;
        let Some(socket) = self.sockets.get_mut(&flow) else { return };
        let connecting = socket.is_connecting();
        let (received, ended, reset, unconnected) = socket.events();
        socket.handle(now, &segment);
        let (now_received, now_ended, now_reset, now_unconnected) = socket.events();
        let room = socket.has_room_again();
        let changes = room || (ended, reset, unconnected) != (now_ended, now_reset, now_unconnected);
        if changes || received != now_received {
            self.events.sockets.push((flow, !changes));
        }
        if connecting && socket.is_open() {
            let slot = Slot::new(socket.offered_edge());
            self.enter(now, flow, slot);
        }
        if self.orphans.contains(&flow) && self.sockets.get(&flow).is_some_and(Tcp::has_input) {
            self.kill(now, flow);
        }
    }

    fn handle_without_socket(&mut self, now: Time, bucket: Bucket, segment: Segment) {
        let flow = segment.flow;
        let accepts = self.listens && flow.ours.port() == PORT;
        if segment.syn && segment.ack.is_none() {
            if accepts && self.words.greets(bucket) {
                let edge = FIRST + self.buffer as u64;
                self.transmit(now, Segment { syn: true, ..Segment::bare(flow, 0, Some(FIRST), edge) });
            }
            return;
        }
        let first = segment.seq == FIRST && segment.ack == Some(FIRST) && !segment.rst && !segment.probe;
        if first && accepts && self.slots.of(flow).is_none_or(|entry| !entry.taken) {
            // The SYN cookie proves that a node answered the SYN: the connection is established.
            let mut socket = Tcp::accept(flow, self.buffer, segment.edge);
            self.enter(now, flow, Slot::new(socket.offered_edge()));
            socket.handle(now, &segment);
            self.sockets.insert(flow, socket);
            self.unaccepted.push_back(flow);
            return;
        }
        // A segment that acknowledges nothing but the SYN may precede the peer's own first ACK.
        let early = accepts && segment.ack == Some(FIRST);
        if let (Some(ack), false) = (segment.ack, segment.rst || first || early || !self.listens) {
            self.transmit(now, Segment { rst: true, ..Segment::bare(flow, ack, Some(segment.end()), 0) });
        }
    }

    fn enter(&mut self, now: Time, flow: Flow, slot: Slot) {
        self.slots.enter(Entry { flow, slot, taken: false, asleep: false, born: now });
    }

    /// Diverts a segment with data to the program that makes its socket.
    fn divert(&mut self, bucket: Bucket, segment: &Segment) -> bool {
        let wanted = self.words.pending.contains(&bucket) && !segment.data.is_empty();
        if !wanted || segment.ack.is_none() || segment.syn || segment.rst {
            return false;
        }
        if let Some(position) = position_of(segment)
            && self.events.diverted.len() < DIVERTED_MAX
        {
            let (flow, data) = (segment.flow.into(), segment.data.clone());
            self.events.diverted.push(DivertedSegment { flow, position, data });
        }
        true
    }

    /// Records the position of the peer of a held flow.
    fn record_position(&mut self, segment: &Segment) {
        let Some(mut position) = position_of(segment) else { return };
        if let Some(before) = self.peer_positions.get(&segment.flow) {
            position.count = before.count + 1;
            if (position.ack.wrapping_sub(before.ack) as i32) < 0 {
                position.ack = before.ack;
            }
        }
        self.peer_positions.insert(segment.flow, position);
    }

    // ---- to the network ----

    /// Passes a segment of this node through the gate.
    pub(crate) fn transmit(&mut self, now: Time, segment: Segment) {
        let flow = segment.flow;
        let bucket = self.bucket(flow);
        if !self.words.open.contains(&bucket) {
            return;
        }
        let passed = match self.slots.of_mut(flow) {
            Some(entry) => {
                match self.mutation {
                    Mutation::EndsPass => (entry.slot.fin_allowed, entry.slot.rst_allowed) = (true, true),
                    Mutation::EarlyAck => {
                        entry.slot.committed = entry.slot.committed.max(segment.ack.unwrap_or_default());
                    }
                    _ => {}
                }
                entry.slot.egress(now, segment)
            }
            None => self.passes_unregistered(bucket, &segment).then_some(segment),
        };
        self.outgoing.extend(passed);
    }

    fn passes_unregistered(&self, bucket: Bucket, segment: &Segment) -> bool {
        let listener = segment.flow.ours.port() == PORT;
        if segment.rst {
            let resets_pending = self.mutation == Mutation::ResetsPending;
            let pending = listener && self.words.pending.contains(&bucket) && !resets_pending;
            // While connections are recovered, the agent forbids these answers too.
            let allowed = self.resets_unknown || resets_pending;
            return !pending && allowed && (!listener || self.listens);
        }
        segment.syn || segment.is_pure()
    }

    /// Sends the due segments of a socket.
    pub(crate) fn push(&mut self, now: Time, flow: Flow) {
        let mut segments = Vec::new();
        if let Some(socket) = self.sockets.get_mut(&flow) {
            socket.poll(now, &mut segments);
        }
        for segment in segments {
            self.transmit(now, segment);
        }
    }

    /// Sends the due segments of all sockets. Returns all segments that have passed the gate.
    pub(crate) fn poll(&mut self, now: Time) -> Vec<Segment> {
        let mut segments = Vec::new();
        for socket in self.sockets.values_mut() {
            socket.poll(now, &mut segments);
        }
        for segment in segments {
            self.transmit(now, segment);
        }
        let sockets = &mut self.sockets;
        self.orphans.retain(|flow| {
            let done = sockets.get(flow).is_none_or(Tcp::is_finished);
            if done {
                sockets.remove(flow);
            }
            !done
        });
        std::mem::take(&mut self.outgoing)
    }

    pub(crate) fn next_at(&self) -> Option<Time> {
        self.sockets.values().filter_map(Tcp::next_at).min()
    }

    /// Sends an ACK at the committed position of a slot.
    pub(crate) fn emit_ack(&mut self, now: Time, number: u32) {
        if let Some(entry) = self.slots.at(number) {
            let template = entry.slot.template(entry.flow);
            self.transmit(now, template);
        }
    }

    // ---- sockets of the program ----

    /// Inserts a restored socket, in place of an orphan of an earlier process.
    pub(crate) fn restore(&mut self, flow: Flow, socket: Tcp) {
        self.orphans.remove(&flow);
        self.sockets.insert(flow, socket);
    }

    /// Closes the program's descriptor.
    pub(crate) fn close(&mut self, now: Time, flow: Flow, how: Closing) {
        let Some(socket) = self.sockets.get_mut(&flow) else { return };
        if how == Closing::Forgotten {
            self.sockets.remove(&flow);
            return;
        }
        if how == Closing::Reset || socket.has_input() || !socket.is_open() {
            return self.kill(now, flow);
        }
        socket.shutdown();
        self.orphans.insert(flow);
        self.push(now, flow);
    }

    fn kill(&mut self, now: Time, flow: Flow) {
        self.orphans.remove(&flow);
        if let Some(mut socket) = self.sockets.remove(&flow)
            && socket.is_open()
        {
            let segment = socket.abort();
            self.transmit(now, segment);
        }
    }

    /// Starts a new process with a gate of its own. Everything of the previous process is removed.
    pub(crate) fn begin_again(&mut self) {
        for flow in std::mem::take(&mut self.orphans) {
            self.sockets.remove(&flow);
        }
        self.slots = SlotTable::default();
        self.peer_positions.clear();
        self.words = BucketWords::default();
        self.events = KernelEvents::default();
        self.resets_unknown = false;
    }

    /// The process has ended: its listener is closed, with the connections in its queue.
    pub(crate) fn end_listener(&mut self, now: Time) {
        self.listens = false;
        for flow in std::mem::take(&mut self.unaccepted) {
            self.close(now, flow, Closing::Reset);
        }
    }

    /// Memory held for flows, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.sockets.values().map(Tcp::held).sum()
    }
}

/// The peer's position as its segment shows it.
fn position_of(segment: &Segment) -> Option<PeerPosition> {
    let ack = segment.ack.filter(|_| !segment.syn && !segment.rst)?;
    let window = (segment.edge.saturating_sub(ack) >> PEER_SCALE) as u32;
    let (seq, ack) = (sequence(segment.seq), sequence(ack));
    Some(PeerPosition { seq, ack, window, count: 1, timestamps: (0, 0) })
}
