//! Random records of a Recorder: connections with packets, gaps, marks, requests.

use super::{Built, Random, StoreWriter};
use evergate_evidence::connection_record::{ConnectionRecord, Counts, Endpoints, TlsHellos};
use evergate_evidence::mark::{Mark, MarkKind};
use evergate_evidence::record::{Body, Direction, Gap, GapReason, Packet, RequestLeg, RequestRecord};
use std::net::SocketAddr;
use std::path::Path;

/// Size of a random store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) segments: u64,
    pub(crate) records: u64,
    pub(crate) batch_records_max: u64,
    pub(crate) packet_bytes_max: u64,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { segments: 3, records: 60, batch_records_max: 12, packet_bytes_max: 120 }
    }
}

/// Shape of the store of a seed: one to four segments, batches of a few or of many records.
pub(crate) fn shape_of(seed: u64) -> Shape {
    let mut random = Random(seed ^ 0x5a9e);
    Shape {
        segments: 2 + random.below(3),
        records: 20 + random.below(60),
        batch_records_max: 3 + random.below(20),
        packet_bytes_max: 20 + random.below(200),
    }
}

struct Connection {
    number: u64,
    packets: u64,
    first_ns: u64,
}

/// Builds a store that a stopped Recorder left.
pub(crate) fn random_store(root: &Path, seed: u64, shape: Shape) -> Built {
    let mut writer = StoreWriter::new(root, seed);
    fill(&mut writer, seed, shape);
    writer.finish()
}

/// The same store, in another history of the log.
pub(crate) fn forked_store(root: &Path, seed: u64, shape: Shape) -> Built {
    let mut writer = StoreWriter::new(root, seed);
    writer.log.fork();
    fill(&mut writer, seed, shape);
    writer.finish()
}

/// Adds the records of one run, from its start to its stop.
pub(crate) fn fill(writer: &mut StoreWriter, seed: u64, shape: Shape) {
    let mut random = Random(seed ^ 0x5eed);
    writer.push(Body::Mark(Mark { what: MarkKind::Start, json: r#"{"interface":"eth0"}"#.into() }));
    let mut connections: Vec<Connection> = Vec::new();
    let mut number = 0;
    for segment in 0..shape.segments {
        for _ in 0..shape.records {
            writer.time_ns += 1 + random.below(2_000_000);
            step(writer, &mut random, &mut connections, &mut number, shape);
            if random.below(shape.batch_records_max) == 0 {
                writer.end_batch();
                if random.below(2) == 0 {
                    writer.sign();
                }
            }
        }
        if segment + 1 < shape.segments {
            writer.rotate();
        }
    }
    for connection in connections {
        end_connection(writer, &connection);
    }
    writer.push(Body::Mark(Mark { what: MarkKind::Stop, json: "{}".into() }));
    writer.end_segment();
}

fn step(
    writer: &mut StoreWriter,
    random: &mut Random,
    connections: &mut Vec<Connection>,
    number: &mut u64,
    shape: Shape,
) {
    match random.below(40) {
        0 => {
            let to_ns = writer.time_ns;
            let count = 1 + random.below(9);
            let gap = Gap { reason: GapReason::Ring, exact: true, count, from_ns: to_ns - 1, to_ns };
            writer.push(Body::Gap(gap));
        }
        1 => writer.push(Body::Mark(Mark { what: MarkKind::Counters, json: r#"{"rx":1}"#.into() })),
        2 => writer.push(Body::Envelope(b"sealed secrets of a connection".into())),
        3 => writer.push(Body::Request(RequestRecord {
            switch_connection: 9,
            index: 1,
            time_ns: writer.time_ns,
            client_random: [7; 32],
            client: RequestLeg {
                peer: SocketAddr::from(([10, 0, 0, 1], 50_000)),
                local: SocketAddr::from(([10, 0, 0, 2], 443)),
            },
            server: None,
            status: 200,
            flags: 0,
            id: b"0123456789abcdef00000001".into(),
            given_id: b"".into(),
        })),
        4..7 if !connections.is_empty() => {
            let connection = connections.swap_remove(random.below(connections.len() as u64) as usize);
            end_connection(writer, &connection);
        }
        7..12 => push_packet(writer, random, None, shape),
        kind => {
            if connections.is_empty() || kind < 16 {
                *number += 1;
                connections.push(Connection { number: *number, packets: 0, first_ns: writer.time_ns });
            }
            let place = random.below(connections.len() as u64) as usize;
            push_packet(writer, random, Some(&mut connections[place]), shape);
        }
    }
}

fn push_packet(
    writer: &mut StoreWriter,
    random: &mut Random,
    connection: Option<&mut Connection>,
    shape: Shape,
) {
    let data: Vec<u8> = (0..14 + random.below(shape.packet_bytes_max)).map(|_| random.next() as u8).collect();
    let (number, packet_seq, direction) = match connection {
        None => (0, 0, Direction::Unknown),
        Some(connection) => {
            connection.packets += 1;
            let direction = if random.below(2) == 0 { Direction::ToServer } else { Direction::ToClient };
            (connection.number, connection.packets, direction)
        }
    };
    writer.push(Body::Packet(Packet {
        time_ns: writer.time_ns,
        wire_bytes: data.len() as u32,
        connection: number,
        packet_seq,
        direction,
        flags: 0,
        data: &data,
    }));
}

fn end_connection(writer: &mut StoreWriter, connection: &Connection) {
    let end = |text: &str| text.parse().unwrap();
    let endpoints = Endpoints { client: end("192.0.2.1:4000"), server: end("198.51.100.7:443"), vlan: 0 };
    let counts = Counts {
        first_ns: connection.first_ns,
        last_ns: writer.time_ns,
        packets: connection.packets,
        ..Counts::default()
    };
    let tls = TlsHellos { sni: b"shop.example".to_vec(), ..TlsHellos::default() };
    writer.push(Body::Connection(Box::new(ConnectionRecord {
        connection: connection.number,
        is_final: true,
        endpoints,
        counts,
        tls,
    })));
}
