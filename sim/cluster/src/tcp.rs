//! A model TCP endpoint: windows, cumulative and delayed ACKs, retransmission with back-off, reassembly.
//!
//! It models the kernels of peers and nodes alike, close to Linux where the design depends on it. Segments outside the
//! window are answered and otherwise ignored, as are ACKs of bytes that were never sent. Three duplicate ACKs cause an
//! early retransmission, a timeout sends one segment. No SACK, no timestamps, no round-trip estimate: the timeout is
//! the usual minimum, doubled each time.
//!
//! Invariants: `una <= nxt <= high`; all read bytes are contiguous; the offered edge never moves left.

use crate::event_queue::Time;
use crate::segment::{FIRST, Flow, Segment};
use std::collections::{BTreeMap, VecDeque};

/// Bytes of a full segment.
pub const SEGMENT: u64 = 1400;
const WINDOW_INITIAL: u64 = 10 * SEGMENT;
const WINDOW_MAX: u64 = 200 * SEGMENT;
const TIMEOUT_MIN: Time = 200_000;
/// Shorter than in Linux, so that the loss of two of a few packets does not end a connection.
const TIMEOUT_SYN: Time = 250_000;
/// Timeout of a restored socket, which has no sample yet.
const TIMEOUT_RESTORED: Time = 1_000_000;
const TIMEOUT_MAX: Time = 4_000_000;
const DELAYED_ACK: Time = 40_000;
/// Growth of a socket's send buffer in use. The buffer of a restored one has not grown yet.
const GROWN: usize = 16;
/// Least time between answers to empty segments outside the window.
const CHALLENGE: Time = 500_000;

/// One TCP endpoint: see the module's description.
#[derive(Clone, Debug)]
pub struct Tcp {
    flow: Flow,
    connecting: bool,
    una: u64,
    nxt: u64,
    high: u64,
    out: VecDeque<u8>,
    out_max: usize,
    /// The application had more output than buffer space.
    blocked: bool,
    end_wanted: bool,
    end_acked: bool,
    peer_edge: u64,
    window: u64,
    duplicates: u32,
    timeout: Time,
    timer_at: Option<Time>,
    rcv: u64,
    edge: u64,
    input: VecDeque<u8>,
    input_max: usize,
    early: BTreeMap<u64, Vec<u8>>,
    end_at: Option<u64>,
    ended: bool,
    owed: u32,
    ack_at: Option<Time>,
    challenged_at: Option<Time>,
    reset: bool,
    /// The peer's reset has not been reported to the application.
    error: bool,
}

impl Tcp {
    fn blank(flow: Flow, buffer: usize) -> Tcp {
        Tcp {
            flow,
            connecting: false,
            una: FIRST,
            nxt: FIRST,
            high: FIRST,
            out: VecDeque::new(),
            out_max: buffer,
            blocked: false,
            end_wanted: false,
            end_acked: false,
            peer_edge: FIRST,
            window: WINDOW_INITIAL,
            duplicates: 0,
            timeout: TIMEOUT_MIN,
            timer_at: None,
            rcv: FIRST,
            edge: FIRST + buffer as u64,
            input: VecDeque::new(),
            input_max: buffer,
            early: BTreeMap::new(),
            end_at: None,
            ended: false,
            owed: 0,
            ack_at: None,
            challenged_at: None,
            reset: false,
            error: false,
        }
    }

    /// An endpoint that sends a SYN.
    pub fn connect(flow: Flow, buffer: usize) -> Tcp {
        let (una, nxt, timeout) = (0, 0, TIMEOUT_SYN);
        Tcp { connecting: true, una, nxt, high: 0, timeout, ..Tcp::blank(flow, buffer) }
    }

    /// The endpoint of a listener whose peer offered this edge.
    pub fn accept(flow: Flow, buffer: usize, peer_edge: u64) -> Tcp {
        Tcp { peer_edge, ..Tcp::blank(flow, buffer) }
    }

    /// An endpoint that continues a connection of another one, and offers a window of `buffer` bytes. Everything below
    /// `send` has arrived at the peer, everything below `receive` here. Its send buffer has not grown yet.
    pub fn restored(flow: Flow, buffer: usize, send: u64, receive: u64, peer_edge: u64) -> Tcp {
        Tcp {
            una: send,
            nxt: send,
            high: send,
            rcv: receive,
            edge: receive + buffer as u64,
            out_max: buffer / GROWN,
            peer_edge,
            timeout: TIMEOUT_RESTORED,
            ..Tcp::blank(flow, buffer)
        }
    }

    // ---- getters ----

    /// Whether the connection is established and not broken.
    pub fn is_open(&self) -> bool {
        !self.connecting && !self.reset
    }

    /// Whether the peer reset it.
    pub fn is_reset(&self) -> bool {
        self.reset
    }

    /// Whether all input was read, and the peer's FIN followed it.
    pub fn is_ended(&self) -> bool {
        self.ended && self.input.is_empty()
    }

    /// Whether the peer's FIN has arrived, read or not.
    pub(crate) fn has_end(&self) -> bool {
        self.ended
    }

    /// Whether both FINs are sent and acknowledged.
    pub fn is_finished(&self) -> bool {
        self.reset || (self.ended && self.end_acked)
    }

    /// Whether bytes wait to be read.
    pub fn has_input(&self) -> bool {
        !self.input.is_empty()
    }

    /// State whose change is an event for the application.
    pub(crate) fn events(&self) -> (u64, bool, bool, bool) {
        (self.rcv, self.ended, self.reset, self.connecting)
    }

    /// Whether a blocked application has buffer space again: a third of the buffer, reported once.
    pub(crate) fn has_room_again(&mut self) -> bool {
        let again = self.blocked && 3 * self.out.len() <= 2 * self.out_max;
        self.blocked &= !again;
        again
    }

    /// Whether a connection attempt is under way.
    pub(crate) fn is_connecting(&self) -> bool {
        self.connecting && !self.reset
    }

    /// Whether the own FIN was queued.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.end_wanted
    }

    /// Whether there is an error that the application does not know.
    pub(crate) fn has_error(&self) -> bool {
        self.error
    }

    /// Reports an error once, as `SO_ERROR`.
    pub(crate) fn take_error(&mut self) -> bool {
        std::mem::take(&mut self.error)
    }

    /// Whether the application may write: a third of the buffer is free. If not, the next change is an event.
    pub(crate) fn poll_room(&mut self) -> bool {
        let room = 3 * self.out.len() <= 2 * self.out_max;
        self.blocked |= !room;
        room
    }

    /// Bytes that were written and not acknowledged.
    pub(crate) fn unacknowledged(&self) -> usize {
        self.out.len()
    }

    /// Whether all output has been sent at least once.
    pub(crate) fn has_sent_all(&self) -> bool {
        self.nxt >= self.tail()
    }

    /// Number after everything received in order.
    pub(crate) fn received(&self) -> u64 {
        self.rcv
    }

    /// Sends a delayed ACK with the next poll.
    pub(crate) fn acknowledge_now(&mut self) {
        self.ack_at = self.ack_at.map(|_| 0);
    }

    /// The right edge that is offered to the peer.
    pub(crate) fn offered_edge(&self) -> u64 {
        self.edge
    }

    /// Memory held, in bytes.
    pub(crate) fn held(&self) -> usize {
        self.input.len() + self.out.len() + self.early.values().map(Vec::len).sum::<usize>()
    }

    /// Its state, for a trace.
    pub fn describe(&self) -> String {
        format!(
            "una {} nxt {} high {} out {} end {}/{} peer edge {} window {} timer {:?} rcv {} edge {} input {} \
             early {:?} ended {} reset {}",
            self.una,
            self.nxt,
            self.high,
            self.out.len(),
            self.end_wanted,
            self.end_acked,
            self.peer_edge,
            self.window,
            self.timer_at,
            self.rcv,
            self.edge,
            self.input.len(),
            self.early.iter().map(|(seq, data)| (*seq, data.len())).collect::<Vec<_>>(),
            self.ended,
            self.reset
        )
    }

    // ---- the application ----

    /// Reads up to `most` bytes that have arrived.
    pub fn read(&mut self, most: usize) -> Vec<u8> {
        let count = most.min(self.input.len());
        let bytes = self.input.drain(..count).collect();
        let edge = self.rcv + (self.input_max - self.input.len()) as u64;
        if edge >= self.edge + (2 * SEGMENT).min(self.input_max as u64 / 2) {
            self.ack_at = Some(0); // a window update
        }
        bytes
    }

    /// The first bytes that have arrived, at most `most`; they stay.
    pub fn peek(&self, most: usize) -> Vec<u8> {
        self.input.iter().take(most).copied().collect()
    }

    /// Queues as much of `bytes` as there is buffer space for. Returns the number.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        if self.end_wanted || self.reset {
            return 0;
        }
        let count = bytes.len().min(self.out_max.saturating_sub(self.out.len()));
        self.out.extend(&bytes[..count]);
        self.blocked |= count < bytes.len();
        count
    }

    /// Queues a FIN.
    pub fn shutdown(&mut self) {
        self.end_wanted = true;
    }

    /// Resets the connection. Returns the RST.
    pub fn abort(&mut self) -> Segment {
        self.reset = true;
        let mut segment = Segment::bare(self.flow, self.nxt, Some(self.rcv), self.edge);
        segment.rst = true;
        segment
    }

    /// Processes a peer's payload from before the socket existed, as if it arrived now. Returns the number of bytes
    /// taken: all, or none without room.
    pub(crate) fn receive(&mut self, data: &[u8]) -> usize {
        if data.len() as u64 > self.edge - self.rcv {
            return 0;
        }
        self.input.extend(data);
        self.rcv += data.len() as u64;
        data.len()
    }

    // ---- the network ----

    /// Processes a segment.
    pub fn handle(&mut self, now: Time, segment: &Segment) {
        if self.reset {
            return;
        }
        if segment.rst {
            match self.connecting || segment.seq == self.rcv {
                true => (self.reset, self.error) = (true, true),
                false => self.ack_at = Some(0),
            }
        } else if self.connecting {
            if segment.syn && segment.ack == Some(FIRST) {
                self.connecting = false;
                (self.una, self.nxt, self.high) = (FIRST, FIRST, FIRST);
                self.peer_edge = segment.edge;
                self.timeout = TIMEOUT_MIN;
                self.timer_at = None;
                self.ack_at = Some(0);
            }
        } else if segment.syn {
            self.ack_at = Some(0);
        } else if segment.end() < self.rcv || segment.seq > self.edge {
            self.challenge(now, segment);
        } else if self.take_ack(segment) {
            self.take_data(now, segment);
        }
    }

    /// Answers a segment outside the window with the own position.
    fn challenge(&mut self, now: Time, segment: &Segment) {
        let recently = self.challenged_at.is_some_and(|at| now < at + CHALLENGE);
        if !segment.is_pure() || !recently {
            self.ack_at = Some(0);
        }
        if segment.is_pure() {
            self.challenged_at = Some(now);
        }
    }

    fn take_ack(&mut self, segment: &Segment) -> bool {
        let Some(ack) = segment.ack else { return false };
        if ack > self.high {
            self.ack_at = Some(0);
            return false;
        }
        if ack > self.una {
            let tail = self.tail();
            let bytes = (ack.min(tail) - self.una) as usize;
            self.out.drain(..bytes);
            self.end_acked |= ack > tail;
            self.window = (self.window + bytes as u64).min(WINDOW_MAX);
            self.una = ack;
            self.nxt = self.nxt.max(ack);
            self.duplicates = 0;
            self.timeout = TIMEOUT_MIN;
            self.timer_at = None;
        } else if ack == self.una
            && segment.is_pure()
            && segment.edge <= self.peer_edge
            && self.una < self.nxt
        {
            self.duplicates += 1;
            if self.duplicates == 3 {
                self.nxt = self.una; // everything again; the window bounds it
                self.window = (self.window / 2).max(2 * SEGMENT);
            }
        }
        self.peer_edge = self.peer_edge.max(segment.edge);
        true
    }

    fn take_data(&mut self, now: Time, segment: &Segment) {
        if segment.data.is_empty() && !segment.fin {
            return;
        }
        let data_end = segment.seq + segment.data.len() as u64;
        if segment.fin {
            self.end_at = Some(data_end);
        }
        let before = self.rcv;
        if data_end > self.rcv {
            self.early.entry(segment.seq).or_default().clone_from(&segment.data);
        }
        self.reassemble();
        if self.end_at == Some(self.rcv) && !self.ended {
            self.ended = true;
            self.rcv += 1;
            self.ack_at = Some(0);
        }
        self.owed += 1;
        if self.rcv == before || !self.early.is_empty() || self.owed >= 2 {
            self.ack_at = Some(0);
        } else if self.ack_at.is_none() {
            self.ack_at = Some(now + DELAYED_ACK);
        }
    }

    fn reassemble(&mut self) {
        while let Some((seq, data)) = self.early.pop_first() {
            if seq > self.rcv {
                self.early.insert(seq, data);
                return;
            }
            let skip = (self.rcv - seq) as usize;
            let room = (self.edge - self.rcv) as usize;
            let fresh = data.get(skip..).unwrap_or_default();
            let fresh = &fresh[..fresh.len().min(room)];
            self.input.extend(fresh);
            self.rcv += fresh.len() as u64;
        }
    }

    /// Time at which [`Tcp::poll`] has work without another event.
    pub fn next_at(&self) -> Option<Time> {
        if self.reset {
            return None;
        }
        [self.timer_at, self.ack_at].into_iter().flatten().min()
    }

    /// Sends all due segments.
    pub fn poll(&mut self, now: Time, out: &mut Vec<Segment>) {
        if self.reset {
            return;
        }
        let due = self.timer_at.is_some_and(|at| at <= now);
        if self.connecting {
            if due || self.timer_at.is_none() {
                let mut segment = Segment::bare(self.flow, 0, None, self.edge);
                segment.syn = true;
                out.push(segment);
                self.back_off(now);
            }
            return;
        }
        if due {
            self.expire(now, out);
        }
        if !self.send(now, out) && self.ack_at.is_some_and(|at| at <= now) {
            let segment = self.make(self.high, Vec::new()); // the peer would ignore an older number
            out.push(segment);
        }
    }

    fn back_off(&mut self, now: Time) {
        self.timer_at = Some(now + self.timeout);
        self.timeout = (self.timeout * 2).min(TIMEOUT_MAX);
    }

    fn expire(&mut self, now: Time, out: &mut Vec<Segment>) {
        self.timer_at = None;
        if self.una < self.high && self.is_unacked() {
            self.nxt = self.una;
            self.window = SEGMENT;
            self.back_off(now);
        } else if !self.out.is_empty() {
            // A closed window is probed with an old number.
            out.push(Segment::probe(self.flow, self.una, self.rcv, self.edge));
            self.back_off(now);
        }
    }

    fn is_unacked(&self) -> bool {
        !self.out.is_empty() || (self.end_wanted && !self.end_acked)
    }

    fn tail(&self) -> u64 {
        self.una + self.out.len() as u64
    }

    fn send(&mut self, now: Time, out: &mut Vec<Segment>) -> bool {
        if self.end_acked {
            return false;
        }
        let (mut sent, tail) = (false, self.tail());
        let limit = (self.una + self.window).min(self.peer_edge).min(tail);
        loop {
            let count = SEGMENT.min(limit.saturating_sub(self.nxt));
            let fin = self.end_wanted && self.nxt + count == tail;
            if count == 0 && !fin {
                break;
            }
            let from = (self.nxt - self.una) as usize;
            let data = self.out.iter().skip(from).take(count as usize).copied().collect();
            let mut segment = self.make(self.nxt, data);
            segment.fin = fin;
            self.nxt = segment.end();
            self.high = self.high.max(self.nxt);
            out.push(segment);
            sent = true;
            if fin {
                break;
            }
        }
        if self.timer_at.is_none() && self.is_unacked() {
            self.timer_at = Some(now + self.timeout);
        }
        sent
    }

    /// A segment with the newest ACK.
    fn make(&mut self, seq: u64, data: Vec<u8>) -> Segment {
        self.owed = 0;
        self.ack_at = None;
        self.edge = self.edge.max(self.rcv + (self.input_max - self.input.len()) as u64);
        Segment { data, ..Segment::bare(self.flow, seq, Some(self.rcv), self.edge) }
    }
}
