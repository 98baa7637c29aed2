//! Packets of sessions from several sources, merged by their time.
//!
//! Memory: a block of each source, and one packet.

use crate::cli::Failure;
use crate::progress::Progress;
use crate::record::file_source::Capture;
use crate::segment_file::SegmentFile;
use crate::sessions::catalog::{Catalog, Origin, Selected, capture_table};
use evergate_evidence::record::{Body, Gap, flags};
use evergate_recorder::connection_table::ConnectionTable;
use evergate_recorder::frame::{Content, Fragment, Frame};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::path::PathBuf;

/// Part of a segment: its path, first byte and last block's begin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    path: PathBuf,
    from: u64,
    /// The block that begins here is the last one; `None`: to the end of the file.
    to: Option<u64>,
}

/// Which parts of stores are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Extents of the sessions: no fragment, and not every declared loss.
    Extents,
    /// Every segment with a record in the time of a session.
    Whole,
}

/// What a source has at its reading position.
#[derive(Clone, Debug, Default)]
pub(super) struct Item {
    pub(super) time_ns: u64,
    pub(super) wire_bytes: u32,
    /// Number of the connection; 0 for a fragment.
    pub(super) connection: u64,
    pub(super) gap: Option<Gap>,
    pub(super) data: Vec<u8>,
}

/// Reader of one source.
struct Reader {
    input: Input,
    wanted: HashSet<u64>,
    item: Item,
    has_item: bool,
    bytes: u64,
}

enum Input {
    Segments(VecDeque<Range>, Option<(SegmentFile, Range)>),
    Capture(Box<Capture>, Box<ConnectionTable>),
}

/// Packets of all sources, in the order of their times.
pub(super) struct Packets {
    readers: Vec<Reader>,
    progress: Progress,
}

impl Packets {
    /// Packets of these sessions.
    pub(super) fn open(
        catalog: &mut Catalog,
        sessions: &[Selected],
        plan: Plan,
        label: &'static str,
    ) -> Result<Packets, Failure> {
        let (mut readers, mut total) = (Vec::new(), 0);
        for (number, origin) in catalog.sources.iter_mut().enumerate() {
            let parts =
                sessions.iter().flat_map(|session| &session.parts).filter(|part| part.source == number);
            let wanted: HashSet<u64> = parts.map(|part| part.connection.number).collect();
            let input = match origin {
                Origin::Store(_) => {
                    let (ranges, bytes) = ranges_of(origin, number, sessions, plan)?;
                    total += bytes;
                    Input::Segments(ranges, None)
                }
                Origin::Bundle(path, _) => {
                    total += std::fs::metadata(&*path).map_or(0, |file| file.len());
                    Input::Segments([Range { path: path.clone(), from: 0, to: None }].into(), None)
                }
                Origin::Capture(path) => {
                    total += std::fs::metadata(&*path).map_or(0, |file| file.len());
                    let capture = Capture::open(path).map_err(Failure::wrong)?;
                    Input::Capture(Box::new(capture), Box::new(capture_table()))
                }
            };
            readers.push(Reader { input, wanted, item: Item::default(), has_item: false, bytes: 0 });
        }
        for reader in &mut readers {
            reader.advance()?;
        }
        Ok(Packets { readers, progress: Progress::new(label, total) })
    }

    /// Calls `take` with the next packet or loss and the place of its source; false at the end.
    pub(super) fn next(
        &mut self,
        take: &mut dyn FnMut(usize, &Item) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let waiting = self.readers.iter().enumerate().filter(|(_, reader)| reader.has_item);
        let Some((number, _)) = waiting.min_by_key(|(_, reader)| reader.item.time_ns) else {
            return Ok(false);
        };
        let reader = &mut self.readers[number];
        take(number, &reader.item)?;
        let before = reader.bytes;
        reader.advance()?;
        self.progress.add(reader.bytes - before);
        Ok(true)
    }
}

impl Reader {
    /// Moves to the next packet of a wanted connection, fragment or loss.
    fn advance(&mut self) -> Result<(), Failure> {
        self.has_item = match &mut self.input {
            Input::Segments(ranges, open) => {
                next_of_segments(ranges, open, &self.wanted, &mut self.item, &mut self.bytes)?
            }
            Input::Capture(capture, table) => {
                next_of_capture(capture, table, &self.wanted, &mut self.item, &mut self.bytes)?
            }
        };
        Ok(())
    }
}

fn next_of_segments(
    ranges: &mut VecDeque<Range>,
    open: &mut Option<(SegmentFile, Range)>,
    wanted: &HashSet<u64>,
    item: &mut Item,
    bytes: &mut u64,
) -> Result<bool, Failure> {
    loop {
        if open.is_none() {
            let Some(range) = ranges.pop_front() else { return Ok(false) };
            let file = match SegmentFile::open_at(&range.path, range.from) {
                Ok(file) => file,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    eprintln!("sessions: {} was deleted; its packets are missing", range.path.display());
                    continue;
                }
                Err(error) => {
                    return Err(Failure::failed(format!(
                        "sessions: cannot read {}: {error}",
                        range.path.display()
                    )));
                }
            };
            *open = Some((file, range));
        }
        let Some((file, range)) = open else { return Ok(false) };
        let read = match file.read() {
            Ok(read) => read,
            Err(error) => {
                eprintln!(
                    "sessions: {}: {error}; what follows in it is missing: verify the store",
                    range.path.display()
                );
                None
            }
        };
        let Some(located) = read.filter(|located| range.to.is_none_or(|to| located.offset <= to)) else {
            *open = None;
            continue;
        };
        *bytes += located.end - located.offset;
        match located.record.body {
            Body::Packet(packet) => {
                let is_fragment = packet.connection == 0 && packet.flags & flags::FRAGMENT != 0;
                if is_fragment || wanted.contains(&packet.connection) {
                    (item.time_ns, item.wire_bytes, item.connection) =
                        (packet.time_ns, packet.wire_bytes, packet.connection);
                    item.gap = None;
                    item.data.clear();
                    item.data.extend_from_slice(packet.data);
                    return Ok(true);
                }
            }
            Body::Gap(gap) => {
                (item.time_ns, item.gap) = (gap.to_ns, Some(gap));
                return Ok(true);
            }
            _ => {}
        }
    }
}

fn next_of_capture(
    capture: &mut Capture,
    table: &mut ConnectionTable,
    wanted: &HashSet<u64>,
    item: &mut Item,
    bytes: &mut u64,
) -> Result<bool, Failure> {
    loop {
        let mut is_wanted = false;
        let has_more = capture
            .next(&mut |packet| {
                table.on_time(packet.time_ns);
                while table.poll_record().is_some() {}
                let frame = Frame::read(packet.data);
                let connection = match frame.content {
                    Content::Tcp(segment) => {
                        table.on_segment(packet.time_ns, frame.vlan, &segment).connection
                    }
                    Content::Fragment => 0,
                    Content::Other => return,
                };
                if connection != 0 && !wanted.contains(&connection) {
                    return;
                }
                is_wanted = true;
                (item.time_ns, item.wire_bytes, item.connection) =
                    (packet.time_ns, packet.wire_bytes, connection);
                item.gap = None;
                item.data.clear();
                item.data.extend_from_slice(packet.data);
            })
            .map_err(Failure::wrong)?;
        *bytes = capture.offset();
        if is_wanted || !has_more {
            return Ok(is_wanted);
        }
    }
}

/// Parts of a store's segments to read, and their bytes.
fn ranges_of(
    origin: &mut Origin,
    number: usize,
    sessions: &[Selected],
    plan: Plan,
) -> Result<(VecDeque<Range>, u64), Failure> {
    let Origin::Store(source) = origin else { return Ok((VecDeque::new(), 0)) };
    let mut places: BTreeMap<u64, (u64, Option<u64>)> = BTreeMap::new();
    for part in sessions.iter().flat_map(|session| &session.parts).filter(|part| part.source == number) {
        for extent in source.extents(&part.connection)? {
            let place =
                places.entry(extent.segment).or_insert((extent.first_offset, Some(extent.last_offset)));
            *place = (place.0.min(extent.first_offset), place.1.map(|to| to.max(extent.last_offset)));
        }
    }
    if plan == Plan::Whole {
        for segment in source.segments_with_times()? {
            let overlaps = |session: &Selected| {
                segment
                    .times_ns
                    .is_none_or(|(first, last)| first <= session.last_ns && last >= session.first_ns)
            };
            if sessions.iter().any(overlaps) {
                places.insert(segment.number, (0, None));
            }
        }
    }
    let (mut ranges, mut bytes) = (VecDeque::new(), 0);
    for (segment, (from, to)) in places {
        let path = source.store.segment(segment);
        let length = std::fs::metadata(&path).map_or(0, |file| file.len());
        bytes += to.unwrap_or(length).saturating_sub(from);
        ranges.push_back(Range { path, from, to });
    }
    Ok((ranges, bytes))
}

/// Addresses of a fragment, in one order for both directions.
pub(super) fn addresses_of(frame: &[u8]) -> Option<[std::net::IpAddr; 2]> {
    let ends = Fragment::read(frame)?.ends;
    let mut addresses = [ends.source, ends.destination];
    addresses.sort_unstable();
    Some(addresses)
}
