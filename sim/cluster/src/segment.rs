//! Segments between peers and nodes.

use std::fmt;
use std::net::SocketAddr;

/// A TCP connection, by its addresses as the cluster's side orders them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// The cluster's end.
    pub ours: SocketAddr,
    /// The client's or the server's end.
    pub theirs: SocketAddr,
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ours.port(), self.theirs)
    }
}

impl From<evergate_base::net::Flow> for Flow {
    fn from(flow: evergate_base::net::Flow) -> Flow {
        Flow { ours: flow.local, theirs: flow.remote }
    }
}

impl From<Flow> for evergate_base::net::Flow {
    fn from(flow: Flow) -> evergate_base::net::Flow {
        evergate_base::net::Flow::new(flow.ours, flow.theirs)
    }
}

/// Number of the first byte of a stream; the SYN has number 0. The model's numbers do not wrap.
pub(crate) const FIRST: u64 = 1;

/// The sequence number of number 0: most streams wrap around it.
const BEGIN: u32 = u32::MAX - 3_000;

/// The sequence number of a number.
pub(crate) fn sequence(number: u64) -> u32 {
    BEGIN.wrapping_add(number as u32)
}

/// The number of a sequence number.
pub(crate) fn number(sequence: u32) -> u64 {
    u64::from(sequence.wrapping_sub(BEGIN))
}

/// One TCP segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The flow that it belongs to.
    pub flow: Flow,
    /// Number of the first byte (or of the SYN, or the FIN).
    pub seq: u64,
    /// ACK: everything below has arrived at the sender.
    pub ack: Option<u64>,
    /// Right edge of the window that the sender offers: absolute, as a receiver computes it.
    pub edge: u64,
    /// Payload.
    pub data: Vec<u8>,
    /// SYN.
    pub syn: bool,
    /// FIN: no byte follows.
    pub fin: bool,
    /// RST: the connection is broken.
    pub rst: bool,
    /// Requests an answer by an old byte whose content is ignored.
    pub probe: bool,
}

impl Segment {
    /// A segment that only acknowledges.
    pub(crate) fn bare(flow: Flow, seq: u64, ack: Option<u64>, edge: u64) -> Segment {
        Segment { flow, seq, ack, edge, data: Vec::new(), syn: false, fin: false, rst: false, probe: false }
    }

    /// A probe for the peer's position: one byte that the peer has, if it has everything below `una`.
    pub(crate) fn probe(flow: Flow, una: u64, ack: u64, edge: u64) -> Segment {
        Segment { data: vec![0xee], probe: true, ..Segment::bare(flow, una - 1, Some(ack), edge) }
    }

    /// Number after everything in the segment.
    pub fn end(&self) -> u64 {
        self.seq + self.data.len() as u64 + u64::from(self.fin) + u64::from(self.syn)
    }

    /// Whether it has neither payload nor a flag.
    pub(crate) fn is_pure(&self) -> bool {
        self.data.is_empty() && !self.fin && !self.rst && !self.syn
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let marks = [(self.syn, " SYN"), (self.fin, " FIN"), (self.rst, " RST"), (self.probe, " probe")];
        let marks: String = marks.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect();
        write!(f, "{} {}..{}", self.flow, self.seq, self.seq + self.data.len() as u64)?;
        if let Some(ack) = self.ack {
            write!(f, " ack {ack} edge {}", self.edge)?;
        }
        f.write_str(&marks)
    }
}
