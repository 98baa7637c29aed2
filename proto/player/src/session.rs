//! One connection: frames of its packets in, events out.

use crate::event::{Event, HoleCause, MissingBytes, Side};
use crate::fragments::{FragmentCounts, Reassembly};
use crate::http::HttpReader;
use crate::key_log::KeyLog;
use crate::limits::Limits;
use crate::stream::{Ambiguous, Payload, Piece, Stream, StreamCounts};
use crate::tls::{RsaExchange, TlsReader, TlsSummary};
use evergate_evidence::record::{Gap, GapReason};
use evergate_evidence::secrets::SecretList;
use evergate_recorder::frame::{Content, Fragment, Frame, Segment};
use sha2::{Digest, Sha256};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

/// Most declared losses that explain holes; older ones are forgotten.
const GAPS_MAX: usize = 4096;
/// Most holes that a report names; more are counted.
const HOLES_MAX: usize = 4096;
const SECOND_NS: u64 = 1_000_000_000;

/// Source of disclosed secrets: a key log, or a grant of the Revealer.
pub trait SecretSource {
    /// Secrets of the connection with this ClientHello; `None` if there are none.
    fn secrets(&self, client_random: &[u8; 32]) -> Option<SecretList>;

    /// Whether the source has private keys of servers, so that a session without secrets keeps its handshake.
    fn has_server_keys(&self) -> bool {
        false
    }

    /// Secrets of a connection from its RSA key exchange; `None` if no key of the source is the server's.
    fn exchange_secrets(&self, _exchange: &RsaExchange) -> Option<SecretList> {
        None
    }
}

impl SecretSource for KeyLog {
    fn secrets(&self, client_random: &[u8; 32]) -> Option<SecretList> {
        self.get(client_random).cloned()
    }
}

/// Both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ends {
    /// Address and port of the client.
    pub client: SocketAddr,
    /// Address and port of the server.
    pub server: SocketAddr,
}

impl Ends {
    /// Sender of a segment; `None` if it belongs to other ends.
    pub fn side_of(&self, segment: &Segment<'_>) -> Option<Side> {
        match (segment.source, segment.destination) {
            (source, destination) if source == self.client && destination == self.server => {
                Some(Side::Client)
            }
            (source, destination) if source == self.server && destination == self.client => {
                Some(Side::Server)
            }
            _ => None,
        }
    }

    /// Whether a fragment lies between the addresses of both ends.
    pub fn may_have(&self, fragment: &Fragment<'_>) -> bool {
        let (a, b) = (fragment.ends.source, fragment.ends.destination);
        (a, b) == (self.client.ip(), self.server.ip()) || (a, b) == (self.server.ip(), self.client.ip())
    }
}

/// Facts of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SideReport {
    /// Counts of its payload.
    pub counts: StreamCounts,
    /// Missing bytes of its payload.
    pub holes: Vec<MissingBytes>,
    /// Holes beyond those named.
    pub holes_omitted: u64,
    /// Places with contradicting copies.
    pub ambiguous: Vec<Ambiguous>,
    /// TLS records that were opened.
    pub records: u64,
    /// Key generation at the end.
    pub generation: u64,
}

/// Facts of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Packets of the connection.
    pub packets: u64,
    /// Packets that another Recorder has too, those without payload left out.
    pub captured_twice: u64,
    /// Segments without a new byte: retransmissions and acknowledgements that were captured again.
    pub repeats: u64,
    /// Time of the first packet in nanoseconds since 1970.
    pub first_ns: u64,
    /// Time of the last packet.
    pub last_ns: u64,
    /// IP fragments between the addresses of the ends.
    pub fragments: FragmentCounts,
    /// Facts of the handshake.
    pub tls: TlsSummary,
    /// Facts of each direction: client, server.
    pub sides: [SideReport; 2],
}

impl Report {
    /// Number of holes in both directions.
    pub fn holes(&self) -> u64 {
        self.sides.iter().map(|side| side.holes.len() as u64 + side.holes_omitted).sum()
    }
}

/// Player of one connection.
#[derive(Debug)]
pub struct Session {
    ends: Ends,
    fragments: Reassembly,
    streams: [Stream; 2],
    tls: TlsReader,
    http: HttpReader,
    gaps: VecDeque<Gap>,
    /// Recent packets by their digest, and the Recorder that had them first.
    copies: HashMap<[u8; 16], u16>,
    recent: VecDeque<[u8; 16]>,
    copies_max: usize,
    report: Report,
    events: VecDeque<Event>,
    is_finished: bool,
}

impl Session {
    /// Player of the connection between these ends.
    pub fn new(ends: Ends, limits: &Limits) -> Session {
        Session {
            ends,
            fragments: Reassembly::new(limits.fragments),
            streams: [Stream::new(limits), Stream::new(limits)],
            tls: TlsReader::new(limits),
            http: HttpReader::new(limits),
            gaps: VecDeque::new(),
            copies: HashMap::new(),
            recent: VecDeque::new(),
            copies_max: limits.copies,
            report: Report::default(),
            events: VecDeque::new(),
            is_finished: false,
        }
    }

    /// Both ends.
    pub fn ends(&self) -> Ends {
        self.ends
    }

    /// Takes a frame that Recorder `recorder` captured; false if it does not belong to the connection.
    pub fn on_frame(&mut self, time_ns: u64, recorder: u16, frame: &[u8], source: &dyn SecretSource) -> bool {
        match Frame::read(frame).content {
            Content::Tcp(segment) => self.on_segment(time_ns, recorder, &segment, source),
            Content::Fragment => {
                let Some(fragment) = Fragment::read(frame).filter(|fragment| self.ends.may_have(fragment))
                else {
                    return false;
                };
                if let Some(joined) = self.fragments.on_fragment(time_ns, &fragment)
                    && let Some(segment) = joined.ends.segment(joined.protocol, &joined.content)
                {
                    self.on_segment(time_ns, recorder, &segment, source);
                }
                true
            }
            Content::Other => false,
        }
    }

    /// Takes a declared loss: it explains holes in its time.
    pub fn on_gap(&mut self, gap: Gap) {
        if gap.reason != GapReason::Feed {
            if self.gaps.len() >= GAPS_MAX {
                self.gaps.pop_front();
            }
            self.gaps.push_back(gap);
        }
    }

    /// Ends the session: no packet follows.
    pub fn finish(&mut self, source: &dyn SecretSource) {
        if self.is_finished {
            return;
        }
        self.is_finished = true;
        for stream in &mut self.streams {
            stream.finish(self.report.last_ns, &explain(&self.gaps));
        }
        self.advance(source, true);
        self.http.finish(&mut self.events);
    }

    /// Takes the next event.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Facts of the session so far.
    pub fn report(&self) -> Report {
        let mut report = self.report.clone();
        report.fragments = self.fragments.counts();
        report.tls = self.tls.summary();
        for side in Side::ALL {
            let (stream, part) = (&self.streams[side.index()], &mut report.sides[side.index()]);
            (part.counts, part.ambiguous) = (stream.counts(), stream.ambiguous().to_vec());
            (part.records, part.generation) = self.tls.opened(side);
        }
        report
    }

    /// Bytes of memory, events that wait left out.
    pub fn buffered(&self) -> usize {
        let streams: usize = self.streams.iter().map(Stream::buffered).sum();
        streams + self.fragments.buffered() + self.tls.buffered() + self.http.buffered()
    }

    fn on_segment(
        &mut self,
        time_ns: u64,
        recorder: u16,
        segment: &Segment<'_>,
        source: &dyn SecretSource,
    ) -> bool {
        let Some(side) = self.ends.side_of(segment) else { return false };
        if self.is_finished {
            return true;
        }
        let report = &mut self.report;
        report.packets += 1;
        report.first_ns = if report.packets == 1 { time_ns } else { report.first_ns.min(time_ns) };
        report.last_ns = report.last_ns.max(time_ns);
        if self.is_copy(recorder, side, segment) {
            return true;
        }
        if segment.flags.is_ack() {
            self.streams[side.other().index()].on_ack(segment.ack);
        }
        let stream = &mut self.streams[side.index()];
        let is_syn = segment.flags.is_syn();
        if is_syn {
            stream.on_syn(segment.seq);
        }
        if segment.payload_bytes > 0 || segment.flags.is_fin() {
            let before = stream.counts();
            let repeated = stream.counts().repeated_bytes;
            stream.on_payload(&Payload {
                time_ns,
                seq: segment.seq.wrapping_add(u32::from(is_syn)),
                bytes: segment.payload,
                wire_bytes: segment.payload_bytes,
                has_fin: segment.flags.is_fin(),
            });
            let after = stream.counts();
            let is_repeat = after.repeated_bytes - repeated == segment.payload.len() as u64;
            self.report.repeats +=
                u64::from(is_repeat && !segment.payload.is_empty() && before.bytes == after.bytes);
        }
        self.streams.iter_mut().for_each(|stream| stream.on_packet(&explain(&self.gaps)));
        self.tls.on_packet();
        self.advance(source, false);
        true
    }

    /// Whether another Recorder had the same packet before.
    fn is_copy(&mut self, recorder: u16, side: Side, segment: &Segment<'_>) -> bool {
        if self.copies_max == 0 {
            return false;
        }
        let mut digest = Sha256::new();
        digest.update([
            side.index() as u8,
            u8::from(segment.flags.is_syn()),
            u8::from(segment.flags.is_fin()),
        ]);
        for word in [segment.seq, segment.ack, segment.payload_bytes] {
            digest.update(word.to_be_bytes());
        }
        digest.update(segment.payload);
        let digest: [u8; 32] = digest.finalize().into();
        let Some(key) = digest.first_chunk::<16>().copied() else { return false };
        match self.copies.get(&key) {
            Some(first) if *first != recorder => {
                // Equal acknowledgements without payload may be different packets.
                let is_certain =
                    segment.payload_bytes > 0 || segment.flags.is_syn() || segment.flags.is_fin();
                self.report.captured_twice += u64::from(is_certain);
                return true;
            }
            Some(_) => return false,
            None => {}
        }
        if self.recent.len() >= self.copies_max
            && let Some(oldest) = self.recent.pop_front()
        {
            self.copies.remove(&oldest);
        }
        self.recent.push_back(key);
        self.copies.insert(key, recorder);
        false
    }

    fn advance(&mut self, source: &dyn SecretSource, is_final: bool) {
        for side in Side::ALL {
            for piece in self.streams[side.index()].poll() {
                if let Piece::Hole(hole) = &piece {
                    let report = &mut self.report.sides[side.index()];
                    match report.holes.len() < HOLES_MAX {
                        true => report.holes.push(*hole),
                        false => report.holes_omitted += 1,
                    }
                }
                self.tls.on_piece(side, piece);
            }
        }
        let copies = [self.streams[0].ambiguous(), self.streams[1].ambiguous()];
        self.tls.advance(copies, source, is_final);
        for side in Side::ALL {
            for (time_ns, plain) in self.tls.poll(side) {
                self.http.on_plain(side, time_ns, plain, &mut self.events);
            }
        }
    }
}

/// Cause of a hole between two times.
fn explain(gaps: &VecDeque<Gap>) -> impl Fn(u64, u64) -> HoleCause {
    move |from_ns, to_ns| {
        // Before the first packet: a loss of the last second.
        let from_ns = if from_ns == 0 { to_ns.saturating_sub(SECOND_NS) } else { from_ns };
        let is_in = |gap: &&Gap| gap.from_ns <= to_ns && gap.to_ns >= from_ns;
        gaps.iter().find(is_in).map_or(HoleCause::Unexplained, |gap| HoleCause::Gap(gap.reason))
    }
}
