//! Frames from the wire, any client's: each is read within its bytes, belongs to one part, and the kernel's program of
//! that part alone accepts it. The table numbers the packets of a connection without a hole, has bounded connections,
//! and ends each of them with one final record. Its records survive their encoding.
//!
//! The first byte sets the bounds. A chunk is a frame: how it is made, its time, and its bytes, or those of its
//! payload.

#![no_main]

use evergate_evidence::connection_record::ConnectionRecord;
use evergate_evidence::partition::part_of;
use evergate_evidence::record::{Body, Direction, Record};
use evergate_evidence::statement::Partition;
use evergate_fuzz::input::{Choices, chunks};
use evergate_recorder::connection_table::{ConnectionTable, Limits};
use evergate_recorder::frame::{Content, Frame};
use libfuzzer_sys::fuzz_target;
use std::collections::HashMap;

#[path = "../../host/capture/tests/partition/interpreter.rs"]
mod interpreter;

const WHOLE: u32 = u32::MAX;
/// Most bytes of a payload: its headers must fit into a length of 16 bits.
const PAYLOAD_MAX: usize = 60_000;

fuzz_target!(|data: &[u8]| {
    let Some((&first, rest)) = data.split_first() else { return };
    let (connections, hellos) = (1 + usize::from(first & 3), usize::from(first >> 2 & 3));
    let limits = Limits { connections, hellos, idle_ns: 1 << (first >> 4) << 26, hash_key: [1, 2] };
    let mut recorder =
        Recorder { table: ConnectionTable::new(limits, 1), packets: HashMap::new(), now_ns: 1 };
    for chunk in chunks(rest) {
        recorder.take(chunk, connections);
    }
    recorder.table.end_all();
    recorder.check_records();
    assert!(recorder.packets.is_empty(), "connections without a final record: {:?}", recorder.packets);
});

struct Recorder {
    table: ConnectionTable,
    /// Last packet of each connection that has no final record yet.
    packets: HashMap<u64, u64>,
    now_ns: u64,
}

impl Recorder {
    fn take(&mut self, chunk: &[u8], connections: usize) {
        let (head, content) = chunk.split_at(chunk.len().min(6));
        let (mut head, content) = (Choices::new(head), &content[..content.len().min(PAYLOAD_MAX)]);
        let how = head.byte();
        self.now_ns = self.now_ns.saturating_add(1 << (head.byte() % 64));
        if how & 0x80 != 0 {
            self.table.on_time(self.now_ns);
            self.check_records();
        }
        if how & 1 == 0 {
            let [there, back] = segments(how, head, content);
            assert_eq!(part_of(&there, false, 7), part_of(&back, false, 7));
            self.on_frame(&there);
        } else {
            part(content, how & 4 != 0, 1 + u16::from(how >> 4));
            self.on_frame(content);
        }
        assert!(self.table.len() <= connections);
        self.check_records();
    }

    fn on_frame(&mut self, bytes: &[u8]) {
        let frame = Frame::read(bytes);
        cut(bytes, &frame);
        let Content::Tcp(segment) = frame.content else { return };
        assert!(segment.payload.len() <= segment.payload_bytes as usize);
        assert!(bytes.as_ptr_range().contains(&segment.payload.as_ptr()) || segment.payload.is_empty());
        let place = self.table.on_segment(self.now_ns, frame.vlan, &segment);
        assert!(place.direction != Direction::Unknown && place.connection < self.table.next_number());
        let before = self.packets.insert(place.connection, place.packet_seq).unwrap_or(0);
        assert_eq!(place.packet_seq, before + 1);
    }

    fn check_records(&mut self) {
        while let Some(record) = self.table.poll_record() {
            survives(&record);
            let ConnectionRecord { connection, is_final, counts, .. } = record;
            let last = if is_final { self.packets.remove(&connection) } else { None };
            let last = last.or_else(|| self.packets.get(&connection).copied());
            assert_eq!(Some(counts.packets), last, "final: {is_final}");
            assert!(counts.first_ns <= counts.last_ns && counts.holes <= counts.packets);
        }
    }
}

fn survives(record: &ConnectionRecord) {
    let (mut bytes, mut again) = (Vec::new(), Vec::new());
    let stored = |record: &ConnectionRecord, to: &mut Vec<u8>| {
        Record { seq: 1, interface: 0, body: Body::Connection(Box::new(record.clone())) }.encode(to);
    };
    stored(record, &mut bytes);
    let Ok(Record { body: Body::Connection(read), .. }) = Record::decode(&bytes) else {
        panic!("not a record: {record:?}")
    };
    stored(&read, &mut again);
    assert_eq!(again, bytes);
    assert_eq!((&read.tls, read.counts), (&record.tls, record.counts));
}

/// A frame that was cut has the same segment or none.
fn cut(bytes: &[u8], frame: &Frame<'_>) {
    let half = Frame::read(&bytes[..bytes.len() / 2]);
    match (half.content, frame.content) {
        (Content::Other, _) | (Content::Fragment, Content::Fragment) => {}
        (Content::Tcp(half), Content::Tcp(whole)) => {
            assert_eq!(
                (half.source, half.destination, half.seq),
                (whole.source, whole.destination, whole.seq)
            );
            assert!(half.flags == whole.flags && whole.payload.starts_with(half.payload));
        }
        (half, whole) => panic!("{half:?} is the half of {whole:?}"),
    }
}

/// One part has the frame, and its program alone accepts it.
fn part(frame: &[u8], tag_in_metadata: bool, parts: u16) {
    let part = part_of(frame, tag_in_metadata, parts);
    for other in 0..parts {
        let program = Partition::new(other, parts).expect("a part").program(WHOLE);
        let accepted = interpreter::run(&program, frame, tag_in_metadata);
        assert_eq!(accepted, if part == other { WHOLE } else { 0 }, "part {other} of {parts}");
    }
}

/// A segment of one of eight clients and a server, and one in the other direction between the same ends.
fn segments(how: u8, mut head: Choices<'_>, payload: &[u8]) -> [Vec<u8>; 2] {
    let (flags, seq) = (head.byte(), u32::from(u16::from_be_bytes([head.byte(), head.byte()])));
    let ends = [(how >> 3 & 7, 50_000u16), (9, 443)];
    let tag: &[u8] = if how & 4 != 0 { &[0x81, 0, 0, 5] } else { &[] };
    let is_ipv6 = head.byte() & 1 != 0;
    let segment = |from: (u8, u16), to: (u8, u16)| {
        let mut frame = [&[2; 12], tag].concat();
        let length = 20 + payload.len() as u16;
        if is_ipv6 {
            frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend_from_slice(&length.to_be_bytes());
            frame.extend_from_slice(&[6, 64]);
            [from, to].iter().for_each(|end| frame.extend_from_slice(&[end.0; 16]));
        } else {
            frame.extend_from_slice(&[8, 0, 0x45, 0]);
            frame.extend_from_slice(&(20 + length).to_be_bytes());
            frame.extend_from_slice(&[0, 0, 0x40, 0, 64, 6, 0, 0]);
            [from, to].iter().for_each(|end| frame.extend_from_slice(&[10, 0, 0, end.0]));
        }
        [from, to].iter().for_each(|end| frame.extend_from_slice(&end.1.to_be_bytes()));
        frame.extend_from_slice(&seq.to_be_bytes());
        frame.extend_from_slice(&[0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        [&frame[..], payload].concat()
    };
    let [client, server] = ends;
    let (there, back) = (segment(client, server), segment(server, client));
    if how & 2 == 0 { [there, back] } else { [back, there] }
}
