//! Marks: starts and stops of a Recorder, boundaries of segments, and counters, with a JSON object each.
//!
//! The JSON is canonical (RFC 8785): keys in order, no spaces. The objects have integers and strings only.

use crate::cursor::{Cursor, put_long};
use crate::record::RecordError;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A mark in the Recorder's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark<'a> {
    /// Event that the mark records.
    pub what: MarkKind,
    /// JSON object, at most 65,535 bytes.
    pub json: Cow<'a, str>,
}

/// Event that a mark records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    /// The Recorder starts.
    Start = 1,
    /// The Recorder stops.
    Stop = 2,
    /// A segment begins: its first record, a [`SegmentBegin`].
    SegmentBegins = 3,
    /// A segment ends: its last record, a [`SegmentEnd`].
    SegmentEnds = 4,
    /// Another node of the switch's cluster continues a connection.
    SwitchContinued = 5,
    /// Counters of the interface.
    Counters = 6,
}

/// Content of the mark that begins a segment. The first blocks of the file derive from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentBegin {
    /// Filter of the kernel in words; empty: all packets.
    pub filter: String,
    /// Names of the interfaces. A record's `interface` is an index of this list.
    pub interfaces: Vec<String>,
    /// Link type of every interface: 1 is Ethernet.
    pub link_type: u16,
    /// Number that the next new connection gets.
    pub next_connection: u64,
    /// Id of the Recorder: 64 hexadecimal digits.
    pub recorder: String,
    /// Number of the segment: 1, 2, …
    pub segment: u64,
    /// Most bytes kept of a packet; 0: all.
    pub snaplen: u32,
}

/// Content of the mark that ends a segment. The last block of the file derives from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentEnd {
    /// Packets declared lost since the Recorder's start.
    pub dropped: u64,
    /// Packets that the interface lost before the kernel had them, since the Recorder's start.
    pub missed: u64,
    /// Packets that the interface received since the Recorder's start.
    pub received: u64,
    /// Time of the mark in nanoseconds since 1970, in decimal digits: numbers of JSON end at 2^53.
    pub time_ns: String,
}

impl MarkKind {
    fn from_code(code: u8) -> Option<MarkKind> {
        use MarkKind::{Counters, SegmentBegins, SegmentEnds, Start, Stop, SwitchContinued};
        [Start, Stop, SegmentBegins, SegmentEnds, SwitchContinued, Counters]
            .into_iter()
            .find(|what| *what as u8 == code)
    }
}

impl<'a> Mark<'a> {
    /// A mark with this object. The fields of its type are declared in the order of their names.
    pub fn new(what: MarkKind, object: &impl Serialize) -> Mark<'static> {
        let json = serde_json::to_string(object).unwrap_or_default(); // strings and integers always serialise
        Mark { what, json: Cow::Owned(json) }
    }

    /// The object of the mark; `None` unless its JSON is exactly what [`Mark::new`] writes for it.
    pub fn object<T: Serialize + Deserialize<'a>>(&'a self) -> Option<T> {
        let object: T = serde_json::from_str(&self.json).ok()?;
        (serde_json::to_string(&object).ok()? == self.json).then_some(object)
    }

    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        to.push(self.what as u8);
        put_long(to, self.json.as_bytes());
    }

    pub(crate) fn decode(reader: &mut Cursor<'a>) -> Result<Mark<'a>, RecordError> {
        let what = reader.u8()?;
        let what = MarkKind::from_code(what).ok_or(RecordError::Value("what"))?;
        let json = reader.long()?;
        let json = std::str::from_utf8(json).map_err(|_| RecordError::Value("JSON"))?;
        Ok(Mark { what, json: Cow::Borrowed(json) })
    }
}
