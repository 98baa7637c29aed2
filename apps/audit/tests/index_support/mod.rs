//! A synthetic store: segments by the encoder of the evidence, statements and receipts, and the rows of a live index.

#![allow(dead_code, reason = "every test uses a part")]

use evergate_audit::index::{BatchRow, IndexEvent, IndexWriter, ProofPlace, RecordIndexer, RecordPlace};
use evergate_audit::store::{Store, StoreInfo};
use evergate_evidence::connection_record::{ConnectionRecord, Counts, Endpoints, TlsHellos};
use evergate_evidence::envelope::{Aad, Envelope};
use evergate_evidence::mark::{Mark, MarkKind, SegmentBegin, SegmentEnd};
use evergate_evidence::record::{Body, Direction, Packet, Record, RequestLeg, RequestRecord};
use evergate_evidence::segment::SegmentEncoder;
use evergate_evidence::statement::{Counters, Partition, Span, Statement};
use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// 2026-11-28T10:30:00Z.
pub(crate) const BASE_NS: u64 = 1_795_861_800_000_000_000;
pub(crate) const SECOND_NS: u64 = 1_000_000_000;
pub(crate) const DAY_NS: u64 = 86_400 * SECOND_NS;

/// Folder that ends with the test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("audit-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("temporary folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs the program.
pub(crate) fn audit(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_evergate-audit")).args(arguments).output().expect("program runs")
}

/// Runs the program, which must end with this code. Answers both outputs.
pub(crate) fn audit_code(code: i32, arguments: &[&str]) -> (String, String) {
    let output = audit(arguments);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("output is text");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{out}\n{err}");
    (out, err)
}

/// Objects of JSON lines.
pub(crate) fn json_lines(text: &str) -> Vec<serde_json::Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("line of JSON")).collect()
}

/// Number of a test: the same input has the same numbers.
pub(crate) fn mix(value: u64) -> u64 {
    let mixed = (value ^ (value >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Place of a record that is in no file.
pub(crate) fn place(seq: u64) -> RecordPlace {
    RecordPlace { seq, segment: 1, offset: seq * 100 }
}

/// Random of the hello of a connection.
pub(crate) fn random_of(connection: u64) -> [u8; 32] {
    let mut random = [0; 32];
    for (at, chunk) in random.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&mix(connection * 4 + at as u64 + 1).to_be_bytes());
    }
    random
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A connection with values of its number.
pub(crate) fn connection(number: u64, first_ns: u64, is_final: bool) -> ConnectionRecord {
    let client: IpAddr = match number % 5 {
        0 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, (number % 1000) as u16).into(),
        _ => Ipv4Addr::new(10, (number >> 16) as u8, (number >> 8) as u8, number as u8).into(),
    };
    let server: IpAddr = match number % 5 {
        0 => Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1).into(),
        _ => Ipv4Addr::new(192, 0, 2, (number % 7) as u8).into(),
    };
    let tls = match number % 10 {
        9 => TlsHellos::default(), // no TLS
        _ => TlsHellos {
            client_random: random_of(number),
            server_random: random_of(number + (1 << 40)),
            version: 0x0304,
            suite: 0x1301,
            sni: format!("Host{}.example{}.com", number % 13, number % 3).into_bytes(),
            alpn: b"h2".to_vec(),
        },
    };
    ConnectionRecord {
        connection: number,
        is_final,
        endpoints: Endpoints {
            client: SocketAddr::new(client, 20_000 + (number % 40_000) as u16),
            server: SocketAddr::new(server, 443),
            vlan: (number % 3) as u16,
        },
        counts: Counts {
            first_ns,
            last_ns: first_ns + (1 + number % 50) * SECOND_NS / 10,
            packets: 4,
            bytes_c2s: number * 3,
            bytes_s2c: number * 5,
            holes: number % 2,
        },
        tls,
    }
}

/// An envelope with values of its connection's number; its ciphertext is this byte.
pub(crate) fn envelope(number: u64, born_ns: u64, sealed: u8) -> Vec<u8> {
    let record = connection(number, born_ns, true);
    let aad = Aad {
        switch: [7; 32],
        connection: number,
        born_ns,
        client: record.endpoints.client,
        local: record.endpoints.server,
        client_random: record.tls.client_random,
        server_random: record.tls.server_random,
        tls_version: record.tls.version,
        cipher_suite: record.tls.suite,
        feed_number: 1,
        sni: &record.tls.sni,
    };
    Envelope { aad, index: 0, enc_inner: [4; 65], enc_outer: [4; 65], sealed: &[sealed; 60] }.encode()
}

/// Writer of a store as a Recorder writes it.
pub(crate) struct StoreBuilder<'a> {
    pub(crate) store: Store,
    index: Option<&'a IndexWriter>,
    encoder: SegmentEncoder,
    file: Option<File>,
    segment: u64,
    offset: u64,
    seq: u64,
    indexer: RecordIndexer,
    events: Vec<IndexEvent>,
    batch: u64,
    batch_first: u64,
    time_ns: u64,
}

impl<'a> StoreBuilder<'a> {
    pub(crate) fn new(root: &Path, recorder: u8) -> StoreBuilder<'static> {
        let store = Store::at(root);
        store.create().expect("store");
        store.set_info(&StoreInfo::new(hex(&[recorder; 32]), 0, 1)).expect("store.json");
        StoreBuilder {
            store,
            index: None,
            encoder: SegmentEncoder::default(),
            file: None,
            segment: 0,
            offset: 0,
            seq: 0,
            indexer: RecordIndexer::default(),
            events: Vec::new(),
            batch: 0,
            batch_first: 1,
            time_ns: BASE_NS,
        }
    }

    /// Sends rows to a live index.
    pub(crate) fn with_index(self, index: &IndexWriter) -> StoreBuilder<'_> {
        StoreBuilder { index: Some(index), ..self }
    }

    pub(crate) fn begin_segment(&mut self) {
        self.segment += 1;
        self.offset = 0;
        self.encoder = SegmentEncoder::default();
        let path = self.store.segment(self.segment);
        self.file = Some(File::create(path).expect("segment"));
        self.indexer.begin_segment(self.segment, &mut self.events);
        let begin = SegmentBegin {
            filter: String::new(),
            interfaces: vec!["eth0".into()],
            link_type: 1,
            next_connection: 1,
            recorder: "ab".repeat(32),
            segment: self.segment,
            snaplen: 0,
        };
        self.push(Body::Mark(Mark::new(MarkKind::SegmentBegins, &begin)));
    }

    pub(crate) fn end_segment(&mut self) {
        let time_ns = self.time_ns.to_string();
        let end = SegmentEnd { dropped: 0, missed: 0, received: 0, time_ns };
        self.push(Body::Mark(Mark::new(MarkKind::SegmentEnds, &end)));
        self.end_batch(Some(self.batch + 100));
        self.indexer.finish_segment(self.offset, &mut self.events);
        self.send_rows();
        self.file = None;
    }

    pub(crate) fn push(&mut self, body: Body<'_>) {
        self.seq += 1;
        let record = Record { seq: self.seq, interface: 0, body };
        let mut block = Vec::new();
        self.encoder.push(&record, &mut block);
        self.file.as_mut().expect("open segment").write_all(&block).expect("written");
        self.indexer.on_record(&record, self.offset, &mut self.events);
        self.time_ns = record.time_ns().unwrap_or(self.time_ns);
        self.offset += block.len() as u64;
    }

    /// A connection with four packets, an interim record and a final one.
    pub(crate) fn push_connection(&mut self, number: u64, first_ns: u64) {
        for packet_seq in 1..=4 {
            self.push_packet(number, packet_seq, first_ns + packet_seq - 1);
            if packet_seq == 2 {
                let mut interim = connection(number, first_ns, false);
                interim.counts.packets = 2;
                interim.counts.last_ns = first_ns + 1;
                self.push(Body::Connection(Box::new(interim)));
            }
        }
        self.push(Body::Connection(Box::new(connection(number, first_ns, true))));
    }

    pub(crate) fn push_packet(&mut self, connection: u64, packet_seq: u64, time_ns: u64) {
        let data = [packet_seq as u8; 60];
        let direction = if packet_seq % 2 == 1 { Direction::ToServer } else { Direction::ToClient };
        let packet =
            Packet { time_ns, wire_bytes: 60, connection, packet_seq, direction, flags: 0, data: &data };
        self.push(Body::Packet(packet));
    }

    pub(crate) fn push_request(&mut self, connection: u64, index: u32, time_ns: u64, given_id: &[u8]) {
        let id = request_id(connection, index);
        self.push(Body::Request(RequestRecord {
            switch_connection: connection + 1000,
            index,
            time_ns,
            client_random: random_of(connection),
            client: RequestLeg {
                peer: SocketAddr::from(([10, 0, 0, 1], 50_000)),
                local: SocketAddr::from(([10, 0, 0, 2], 443)),
            },
            server: None,
            status: 200,
            flags: 0,
            id: id.as_bytes().into(),
            given_id: given_id.into(),
        }));
    }

    /// An envelope that nothing opens, of the connection with this number.
    pub(crate) fn push_envelope(&mut self, number: u64, born_ns: u64, sealed: u8) -> Vec<u8> {
        let bytes = envelope(number, born_ns, sealed);
        self.push(Body::Envelope((&bytes).into()));
        bytes
    }

    /// Ends a batch, with a receipt of this log index.
    pub(crate) fn end_batch(&mut self, log_index: Option<u64>) {
        self.batch += 1;
        let (first_seq, last_seq) = (self.batch_first, self.seq);
        self.batch_first = self.seq + 1;
        let statement = Statement {
            received_ms: 0,
            recorder: [1; 32],
            batch: self.batch,
            span: Span { first_seq, last_seq, first_ns: BASE_NS, last_ns: self.time_ns },
            packets: 1,
            packet_bytes: 60,
            root: [2; 32],
            previous: [3; 32],
            counters: Counters::default(),
            partition: Partition { part: 0, parts: 1 },
            emergency_ms: 0,
        }
        .encode();
        append(&self.store.statements(), &statement);
        let proof = log_index.map(|log_index| {
            let path = self.store.proofs(self.segment);
            let offset = std::fs::metadata(&path).map_or(0, |file| file.len());
            let text = format!("c2sp.org/tlog-proof@v1\nindex {log_index}\nAAAA\n\ncheckpoint\n");
            let length = 1 + 212 + text.len() as u32;
            append(&path, &[&length.to_be_bytes()[..], &[1], &statement, text.as_bytes()].concat());
            let end = offset + 4 + u64::from(length);
            ProofPlace { log_index, segment: self.segment, offset, end }
        });
        let batch = BatchRow { batch: self.batch, first_seq, last_seq, first_ns: BASE_NS, proof };
        self.events.push(IndexEvent::Batch(batch));
        self.send_rows();
    }

    fn send_rows(&mut self) {
        for event in self.events.drain(..) {
            if let Some(index) = self.index {
                assert!(index.try_send(event), "queue has room");
            }
        }
    }
}

/// Id that the switch gives a request of a connection.
pub(crate) fn request_id(connection: u64, index: u32) -> String {
    format!("{connection:016x}{index:08x}")
}

pub(crate) fn append(path: &Path, bytes: &[u8]) {
    let mut file = File::options().create(true).append(true).open(path).expect("file");
    file.write_all(bytes).expect("written");
}

/// Three closed segments and an open one over two days, with a live index: 400 connections.
pub(crate) fn sample(root: &Path, recorder: u8) -> Store {
    let builder = StoreBuilder::new(root, recorder);
    let index = IndexWriter::start(&builder.store).expect("index");
    let mut builder = builder.with_index(&index);
    let mut number = 0;
    for segment in 0..4 {
        builder.begin_segment();
        for _ in 0..100 {
            number += 1;
            builder.push_connection(number, BASE_NS + number * 200 * SECOND_NS);
            if number % 8 == 1 {
                builder.push_envelope(number, BASE_NS + number * 200 * SECOND_NS, 1);
            }
            if number % 10 == 1 {
                let given = if number % 20 == 1 { &b"abc"[..] } else { b"" };
                builder.push_request(number, 0, BASE_NS + number * 200 * SECOND_NS, given);
            }
            if number % 40 == 0 {
                builder.end_batch(Some(number));
            }
        }
        if segment < 3 {
            builder.end_segment();
        }
    }
    builder.push(Body::Mark(Mark::new(MarkKind::Counters, &())));
    builder.end_batch(None);
    builder.store.clone()
}
