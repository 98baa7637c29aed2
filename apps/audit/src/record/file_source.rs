//! Packets of a foreign capture as the source of a record: `record --read FILE`.
//!
//! The stream's time is that of the packets. Memory: one block of the file, and [`GROUP`] packets.

use crate::progress::Progress;
use crate::record::digest::{Counts, Outlet, SideBySide};
use crate::record::source::Fed;
use evergate_evidence::capture_file::{CaptureDecoder, Step};
use evergate_recorder::losses::RingTotals;
use evergate_recorder::stream::{RawPacket, RecordStream};
use std::fs::File;
use std::io::Read;
use std::path::Path;

const ETHERNET: u16 = 1;
const WINDOW_BYTES: usize = 1 << 20;
/// Packets that go to the stream together.
const GROUP: usize = 512;

/// Time of the first packet in nanoseconds since 1970; `None` for a capture without packets.
pub(crate) fn first_time(path: &Path) -> Result<Option<u64>, String> {
    let mut file = Capture::open(path)?;
    let mut first = None;
    while first.is_none() && file.next(&mut |packet| first = Some(packet.time_ns))? {}
    Ok(first)
}

/// Feeds every packet of the file to the stream.
pub(crate) fn run(path: &Path, mut stream: RecordStream, outlet: Outlet) -> Result<Fed, String> {
    let mut file = Capture::open(path)?;
    let mut progress = Progress::new("reading", file.total);
    let (mut counts, mut group, mut bytes) = (Counts::default(), Vec::new(), Vec::new());
    loop {
        let begin = file.offset();
        let has_more = file.next(&mut |packet| {
            let from = bytes.len();
            bytes.extend_from_slice(packet.data);
            group.push((packet.time_ns, packet.wire_bytes, from..bytes.len()));
        })?;
        progress.add(file.offset() - begin);
        if group.len() >= GROUP || bytes.len() >= WINDOW_BYTES || (!has_more && !group.is_empty()) {
            let raw = group.drain(..).map(|(time_ns, wire_bytes, place)| RawPacket {
                interface: 0,
                time_ns,
                wire_bytes,
                flags: 0,
                data: bytes.get(place).unwrap_or_default(),
            });
            let raw: Vec<RawPacket<'_>> = raw.collect();
            counts.packets += raw.len() as u64;
            counts.bytes += bytes.len() as u64;
            stream.on_ring(RingTotals { packets: counts.packets, drops: 0 });
            stream.on_time(raw.last().map_or(0, |packet| packet.time_ns));
            stream.on_packets(&raw, &mut SideBySide);
            bytes.clear();
            if !outlet.pass_on(&mut stream) {
                break; // the writer ended with an error
            }
        }
        if !has_more {
            break;
        }
    }
    Ok((stream, outlet, counts))
}

/// A packet of the file.
pub(crate) struct Packet<'a> {
    pub(crate) time_ns: u64,
    pub(crate) wire_bytes: u32,
    pub(crate) data: &'a [u8],
}

/// The file, and the part of it that is being decoded.
pub(crate) struct Capture {
    path: String,
    file: File,
    total: u64,
    decoder: CaptureDecoder,
    window: Vec<u8>,
    used: usize,
}

impl Capture {
    pub(crate) fn open(path: &Path) -> Result<Capture, String> {
        let path_text = path.display().to_string();
        let file =
            File::open(path).map_err(|error| format!("capture file: cannot read {path_text}: {error}"))?;
        let total = file.metadata().map_or(0, |metadata| metadata.len());
        let decoder = CaptureDecoder::default();
        Ok(Capture { path: path_text, file, total, decoder, window: Vec::new(), used: 0 })
    }

    pub(crate) fn offset(&self) -> u64 {
        self.decoder.offset()
    }

    /// Takes one step in the file; false at its end.
    pub(crate) fn next(&mut self, take: &mut dyn FnMut(Packet<'_>)) -> Result<bool, String> {
        let step = self.decoder.read(&self.window[self.used..]);
        match step.map_err(|error| format!("capture file: {}: {error}", self.path))? {
            Step::Packet(bytes, packet) => {
                if packet.link_type != ETHERNET {
                    return Err(format!(
                        "capture file: {}: link type {}: the Recorder reads Ethernet (1) only",
                        self.path, packet.link_type
                    ));
                }
                take(Packet { time_ns: packet.time_ns, wire_bytes: packet.wire_bytes, data: packet.data });
                self.used += bytes;
            }
            Step::Skip(bytes) => self.used += bytes,
            Step::Need(bytes) => return self.fill(bytes),
        }
        Ok(true)
    }

    fn fill(&mut self, needed: usize) -> Result<bool, String> {
        self.window.drain(..self.used);
        self.used = 0;
        let kept = self.window.len();
        self.window.resize(kept.max(needed).max(WINDOW_BYTES), 0);
        let mut filled = kept;
        while filled < self.window.len() {
            match self.file.read(&mut self.window[filled..]) {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) => return Err(format!("capture file: cannot read {}: {error}", self.path)),
            }
        }
        self.window.truncate(filled);
        if filled > kept {
            return Ok(true);
        }
        self.decoder.finish(filled).map_err(|error| format!("capture file: {}: {error}", self.path))?;
        Ok(false)
    }
}
