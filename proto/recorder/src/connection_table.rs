//! Table of the TCP connections that the Recorder sees. It numbers connections and their packets.
//!
//! A connection begins with its first packet, SYN or not. It ends two seconds after a reset or both FINs, or after
//! [`Limits::idle_ns`] without a packet, with a new SYN of the same addresses, or when the table is full. Each end
//! gives a final [`ConnectionRecord`]. A long connection gives an interim one each minute, so that `find` shows it.
//!
//! Bounds: [`Limits::connections`], twice as many entries that wait for a time, and [`Limits::hellos`] connections
//! whose hellos are collected.

use crate::frame::Segment;
use crate::hellos::{Hellos, Side};
use evergate_base::Sip;
use evergate_evidence::connection_record::{ConnectionRecord, Counts, Endpoints, TlsHellos, mapped};
use evergate_evidence::record::Direction;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hash, Hasher};
use std::net::SocketAddr;

const LINGER_NS: u64 = 2_000_000_000;
const INTERIM_NS: u64 = 60_000_000_000;

/// Bounds of a table.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most connections at a time.
    pub connections: usize,
    /// Most connections whose hellos are collected at a time: at most 20 KiB each.
    pub hellos: usize,
    /// Time without a packet after which a connection counts as ended, in nanoseconds.
    pub idle_ns: u64,
    /// Key of the table's hash: a random one keeps clients from choosing colliding addresses.
    pub hash_key: [u64; 2],
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections: 1 << 20, hellos: 4096, idle_ns: 15 * 60 * 1_000_000_000, hash_key: [0; 2] }
    }
}

/// Place of a packet in its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Number of the connection.
    pub connection: u64,
    /// Place among the packets of the connection: 1, 2, …
    pub packet_seq: u64,
    /// Direction of the packet.
    pub direction: Direction,
}

/// The connections that have not ended.
#[derive(Debug)]
pub struct ConnectionTable {
    limits: Limits,
    connections: HashMap<Key, Connection, KeyedHash>,
    /// When to look at a connection again, in order of time.
    due: VecDeque<Due>,
    /// Connections that ended a moment ago, in order of time.
    closing: VecDeque<Due>,
    next: u64,
    hellos: usize,
    records: VecDeque<ConnectionRecord>,
}

/// Both ends in one order, and the VLAN: two addresses, both ports and the VLAN id.
#[derive(Clone, Copy, Debug, Eq)]
struct Key([u64; 5]);

impl PartialEq for Key {
    /// Without a branch for each word: a table compares keys for every packet.
    fn eq(&self, other: &Key) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
    }
}

impl Key {
    fn of(segment: &Segment<'_>, vlan: u16) -> Key {
        let end = |end: SocketAddr| {
            let [high, low] = words(mapped(end.ip()));
            (high, low, u64::from(end.port()))
        };
        let (source, destination) = (end(segment.source), end(segment.destination));
        let (low, high) = if source <= destination { (source, destination) } else { (destination, source) };
        Key([low.0, low.1, high.0, high.1, low.2 << 32 | high.2 << 16 | u64::from(vlan)])
    }
}

fn words(address: [u8; 16]) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, rest @ ..] = address;
    [u64::from_be_bytes([a, b, c, d, e, f, g, h]), u64::from_be_bytes(rest)]
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.iter().for_each(|word| state.write_u64(*word));
    }
}

/// SipHash-1-3 of whole words.
#[derive(Clone, Debug)]
struct KeyedHash([u64; 2]);

impl BuildHasher for KeyedHash {
    type Hasher = WordHasher;

    fn build_hasher(&self) -> WordHasher {
        WordHasher(Sip::new(self.0))
    }
}

struct WordHasher(Sip);

impl Hasher for WordHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0.word(u64::from(*byte)));
    }

    fn write_u64(&mut self, word: u64) {
        self.0.word(word);
    }

    fn finish(&self) -> u64 {
        self.0.clone().finish()
    }
}

#[derive(Clone, Copy, Debug)]
struct Due {
    at_ns: u64,
    key: Key,
    number: u64,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    endpoints: Endpoints,
    counts: Counts,
    to_server: Flow,
    to_client: Flow,
    /// Apart from the rest, which every packet changes: a small entry stays in the processor's cache.
    hellos: Option<Box<Hellos>>,
    /// Hellos as far as they were read; filled when `hellos` ends.
    tls: Option<Box<TlsHellos>>,
    phase: Phase,
}

/// State of a connection's ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// One side sent FIN.
    HalfClosed,
    /// A reset, or both FINs.
    Closed,
}

/// One direction.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    /// Sequence number behind the highest byte; `None` before the first packet.
    next: Option<u32>,
    /// Sequence number of the SYN.
    syn: Option<u32>,
    has_fin: bool,
}

impl Flow {
    /// Takes a segment; answers whether it leaves a hole before it.
    fn advance(&mut self, segment: &Segment<'_>) -> bool {
        let (is_syn, is_fin) = (segment.flags.is_syn(), segment.flags.is_fin());
        if is_syn {
            self.syn = Some(segment.seq);
        }
        self.has_fin |= is_fin;
        let length = segment.payload_bytes + u32::from(is_syn) + u32::from(is_fin);
        let end = segment.seq.wrapping_add(length);
        let ahead = self.next.map_or(0, |next| segment.seq.wrapping_sub(next) as i32);
        if self.next.is_none_or(|next| end.wrapping_sub(next) as i32 > 0) && !segment.flags.is_rst() {
            self.next = Some(end);
        }
        ahead > 0 && length > 0 && !segment.flags.is_rst()
    }
}

impl ConnectionTable {
    /// An empty table that gives the numbers from `next` on.
    pub fn new(limits: Limits, next: u64) -> ConnectionTable {
        ConnectionTable {
            limits,
            connections: HashMap::with_hasher(KeyedHash(limits.hash_key)),
            due: VecDeque::new(),
            closing: VecDeque::new(),
            next: next.max(1),
            hellos: 0,
            records: VecDeque::new(),
        }
    }

    /// Number of the next new connection.
    pub fn next_number(&self) -> u64 {
        self.next
    }

    /// Connections in the table.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether the table has no connection.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Takes a segment, and answers its place in its connection.
    pub fn on_segment(&mut self, time_ns: u64, vlan: u16, segment: &Segment<'_>) -> Place {
        let key = Key::of(segment, vlan);
        if segment.flags.is_syn() && self.connections.get(&key).is_some_and(|c| c.is_replaced_by(segment)) {
            self.end(&key);
        }
        if let Some(place) = self.on_known(time_ns, key, segment) {
            return place;
        }
        self.begin(key, vlan, time_ns, segment);
        self.on_known(time_ns, key, segment).unwrap_or_default() // without room for any connection
    }

    /// Takes a segment of a connection in the table.
    fn on_known(&mut self, time_ns: u64, key: Key, segment: &Segment<'_>) -> Option<Place> {
        let connection = self.connections.get_mut(&key)?;
        let (had_hellos, phase) = (connection.hellos.is_some(), connection.phase);
        let place = connection.on_segment(time_ns, segment);
        let number = connection.number;
        if had_hellos && connection.hellos.is_none() {
            self.hellos -= 1;
        }
        if phase != Phase::Closed && connection.phase == Phase::Closed {
            self.closing.push_back(Due { at_ns: time_ns.saturating_add(LINGER_NS), key, number });
        }
        Some(place)
    }

    /// Ends and reports connections whose time has come.
    pub fn on_time(&mut self, now_ns: u64) {
        while self.closing.front().is_some_and(|due| due.at_ns <= now_ns) {
            let Some(due) = self.closing.pop_front() else { break };
            if self.connections.get(&due.key).is_some_and(|connection| connection.number == due.number) {
                self.end(&due.key);
            }
        }
        // Each connection once: at the last possible time a review is due again at once.
        for _ in 0..self.due.len() {
            let Some(due) = self.due.pop_front_if(|due| due.at_ns <= now_ns) else { break };
            self.review(due, now_ns);
        }
    }

    /// Ends all connections, as at the Recorder's stop.
    pub fn end_all(&mut self) {
        let mut keys: Vec<(u64, Key)> = self.connections.iter().map(|(key, c)| (c.number, *key)).collect();
        keys.sort_unstable_by_key(|(number, _)| *number);
        for (_, key) in keys {
            self.end(&key);
        }
    }

    /// The next record to write.
    pub fn poll_record(&mut self) -> Option<ConnectionRecord> {
        self.records.pop_front()
    }

    fn begin(&mut self, key: Key, vlan: u16, time_ns: u64, segment: &Segment<'_>) {
        if self.connections.len() >= self.limits.connections {
            self.evict();
        }
        let collects = self.hellos < self.limits.hellos;
        let connection = Connection::new(self.next, vlan, time_ns, segment, collects);
        self.hellos += usize::from(connection.hellos.is_some());
        self.due.push_back(Due { at_ns: time_ns.saturating_add(INTERIM_NS), key, number: self.next });
        self.next += 1;
        if self.limits.connections > 0 {
            self.connections.insert(key, connection);
        }
        self.drop_ended();
    }

    /// Drops what waits for connections that have ended, when it is twice what a full table needs.
    fn drop_ended(&mut self) {
        for waiting in [&mut self.due, &mut self.closing] {
            if waiting.len() > 2 * self.limits.connections {
                waiting.retain(|due| self.connections.get(&due.key).is_some_and(|c| c.number == due.number));
            }
        }
    }

    /// Ends the connection that was reviewed longest ago.
    fn evict(&mut self) {
        while let Some(due) = self.due.pop_front() {
            if self.connections.get(&due.key).is_some_and(|connection| connection.number == due.number) {
                return self.end(&due.key);
            }
        }
    }

    fn review(&mut self, due: Due, now_ns: u64) {
        let idle_ns = self.limits.idle_ns;
        let Some(connection) = self.connections.get_mut(&due.key).filter(|c| c.number == due.number) else {
            return;
        };
        let quiet_ns = now_ns.saturating_sub(connection.counts.last_ns);
        if quiet_ns >= idle_ns {
            return self.end(&due.key);
        }
        if connection.end_hellos() {
            self.hellos -= 1; // no hello comes after a minute
        }
        if quiet_ns < INTERIM_NS {
            self.records.push_back(connection.record(false));
        }
        self.due.push_back(Due { at_ns: now_ns.saturating_add(INTERIM_NS), ..due });
    }

    fn end(&mut self, key: &Key) {
        let Some(mut connection) = self.connections.remove(key) else { return };
        self.hellos -= usize::from(connection.end_hellos());
        self.records.push_back(connection.record(true));
    }
}

impl Connection {
    fn new(number: u64, vlan: u16, time_ns: u64, segment: &Segment<'_>, collects: bool) -> Connection {
        let (client, server) = if is_from_client(segment) {
            (segment.source, segment.destination)
        } else {
            (segment.destination, segment.source)
        };
        Connection {
            number,
            endpoints: Endpoints { client, server, vlan },
            counts: Counts { first_ns: time_ns, ..Counts::default() },
            to_server: Flow::default(),
            to_client: Flow::default(),
            hellos: collects.then(|| Box::new(Hellos::new())),
            tls: None,
            phase: Phase::Open,
        }
    }

    /// Whether a segment begins another connection between the same addresses.
    fn is_replaced_by(&self, segment: &Segment<'_>) -> bool {
        let is_new = segment.flags.is_syn() && !segment.flags.is_ack();
        let from_client = segment.source == self.endpoints.client;
        let flow = if from_client { &self.to_server } else { &self.to_client };
        is_new && flow.syn != Some(segment.seq) && (self.phase != Phase::Open || flow.next.is_some())
    }

    fn on_segment(&mut self, time_ns: u64, segment: &Segment<'_>) -> Place {
        let from_client = segment.source == self.endpoints.client;
        let bytes = u64::from(segment.payload_bytes);
        self.counts.packets += 1;
        self.counts.last_ns = self.counts.last_ns.max(time_ns);
        let (flow, sum, side, direction) = if from_client {
            (&mut self.to_server, &mut self.counts.bytes_c2s, Side::Client, Direction::ToServer)
        } else {
            (&mut self.to_client, &mut self.counts.bytes_s2c, Side::Server, Direction::ToClient)
        };
        *sum += bytes;
        self.counts.holes += u64::from(flow.advance(segment));
        self.read_hellos(side, segment);
        let has_both = self.to_server.has_fin && self.to_client.has_fin;
        self.phase = match self.phase {
            _ if segment.flags.is_rst() || has_both => Phase::Closed,
            Phase::Open if segment.flags.is_fin() => Phase::HalfClosed,
            phase => phase,
        };
        Place { connection: self.number, packet_seq: self.counts.packets, direction }
    }

    fn read_hellos(&mut self, side: Side, segment: &Segment<'_>) {
        let Some(hellos) = &mut self.hellos else { return };
        if segment.flags.is_syn() {
            hellos.on_syn(side, segment.seq);
        }
        if !segment.payload.is_empty() {
            hellos.on_payload(side, segment.seq, segment.payload);
        }
        if !hellos.wants(Side::Client) && !hellos.wants(Side::Server) {
            self.end_hellos();
        }
    }

    /// Keeps what was read of the hellos, and ends their collection; answers whether it was still open.
    fn end_hellos(&mut self) -> bool {
        let Some(hellos) = self.hellos.take() else { return false };
        self.tls = (hellos.tls != TlsHellos::default()).then(|| Box::new(hellos.tls));
        true
    }

    fn record(&self, is_final: bool) -> ConnectionRecord {
        let tls = self.hellos.as_ref().map(|hellos| &hellos.tls).or(self.tls.as_deref());
        ConnectionRecord {
            connection: self.number,
            is_final,
            endpoints: self.endpoints,
            counts: self.counts,
            tls: tls.cloned().unwrap_or_default(),
        }
    }
}

/// Whether a connection's first packet comes from its client: a SYN does, a SYN with ACK does not. Without either the
/// lower port is the server's.
fn is_from_client(segment: &Segment<'_>) -> bool {
    match (segment.flags.is_syn(), segment.flags.is_ack()) {
        (true, is_answer) => !is_answer,
        _ => segment.source.port() >= segment.destination.port(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::tests::frame;
    use crate::frame::{Content, Frame};

    const CLIENT: (u8, u16) = (1, 50_000);
    const SERVER: (u8, u16) = (2, 443);
    const SYN: u8 = 2;
    const RST: u8 = 4;
    const ACK: u8 = 16;
    const FIN_ACK: u8 = 17;

    struct Rig {
        table: ConnectionTable,
        now_ns: u64,
    }

    impl Rig {
        fn new(limits: Limits) -> Rig {
            Rig { table: ConnectionTable::new(limits, 1), now_ns: 1_000 }
        }

        fn send(&mut self, from: (u8, u16), to: (u8, u16), seq: u32, flags: u8, data: &[u8]) -> Place {
            let bytes = frame(&[], from, to, seq, flags, data);
            let frame = Frame::read(&bytes);
            let Content::Tcp(segment) = frame.content else { panic!("no segment") };
            self.now_ns += 1;
            self.table.on_segment(self.now_ns, frame.vlan, &segment)
        }

        fn records(&mut self) -> Vec<ConnectionRecord> {
            std::iter::from_fn(|| self.table.poll_record()).collect()
        }
    }

    #[test]
    fn packets_of_both_directions_are_numbered_together() {
        let mut rig = Rig::new(Limits::default());
        let to_server = Place { connection: 1, packet_seq: 1, direction: Direction::ToServer };
        assert_eq!(rig.send(CLIENT, SERVER, 9, SYN, b""), to_server);
        let to_client = Place { connection: 1, packet_seq: 2, direction: Direction::ToClient };
        assert_eq!(rig.send(SERVER, CLIENT, 99, SYN | ACK, b""), to_client);
        assert_eq!(rig.send(CLIENT, SERVER, 10, ACK, b"abc").packet_seq, 3);
        assert_eq!(rig.send((3, 1), SERVER, 0, SYN, b"").connection, 2);
    }

    #[test]
    fn closed_connection_is_recorded_after_the_linger_time() {
        let mut rig = Rig::new(Limits::default());
        rig.send(CLIENT, SERVER, 9, SYN, b"");
        rig.send(SERVER, CLIENT, 99, SYN | ACK, b"");
        rig.send(CLIENT, SERVER, 10, FIN_ACK, b"abc");
        rig.send(SERVER, CLIENT, 100, FIN_ACK, b"defg");
        assert_eq!(rig.send(CLIENT, SERVER, 14, ACK, b"").packet_seq, 5);
        rig.table.on_time(rig.now_ns + LINGER_NS);
        let [record] = &rig.records()[..] else { panic!("one record") };
        assert!(record.is_final && rig.table.is_empty());
        let Counts { packets, bytes_c2s, bytes_s2c, holes, .. } = record.counts;
        assert_eq!((packets, bytes_c2s, bytes_s2c, holes), (5, 3, 4, 0));
    }

    #[test]
    fn new_syn_between_the_same_ends_begins_another_connection() {
        let mut rig = Rig::new(Limits::default());
        rig.send(CLIENT, SERVER, 9, SYN, b"");
        rig.send(CLIENT, SERVER, 9, SYN, b""); // retransmission
        assert_eq!(rig.send(CLIENT, SERVER, 700, SYN, b"").connection, 2);
        assert_eq!(rig.records().len(), 1);
    }

    #[test]
    fn hole_in_the_payload_is_counted() {
        let mut rig = Rig::new(Limits::default());
        rig.send(CLIENT, SERVER, 9, SYN, b"");
        rig.send(CLIENT, SERVER, 20, ACK, b"abc");
        rig.send(CLIENT, SERVER, 10, ACK, b"late");
        rig.table.end_all();
        assert_eq!(rig.records()[0].counts.holes, 1);
    }

    #[test]
    fn full_table_ends_its_oldest_connection() {
        let mut rig = Rig::new(Limits { connections: 2, ..Limits::default() });
        for port in 1..=3 {
            rig.send((1, port), SERVER, 0, SYN, b"");
        }
        assert_eq!(rig.table.len(), 2);
        assert_eq!(rig.records()[0].connection, 1);
    }

    #[test]
    fn long_connection_is_recorded_each_minute_until_idle() {
        let mut rig = Rig::new(Limits { idle_ns: 3 * INTERIM_NS, ..Limits::default() });
        rig.send(CLIENT, SERVER, 9, SYN, b"");
        for minute in 1..=4 {
            rig.table.on_time(1_001 + minute * INTERIM_NS);
        }
        let records = rig.records();
        assert_eq!(records.iter().filter(|record| record.is_final).count(), 1);
        assert!(rig.table.is_empty());
    }

    #[test]
    fn last_possible_time_is_no_overflow() {
        let mut rig = Rig { now_ns: u64::MAX - 4, ..Rig::new(Limits::default()) };
        rig.send(CLIENT, SERVER, 9, SYN, b"");
        rig.send(CLIENT, SERVER, 10, RST, b"");
        rig.table.on_time(u64::MAX - 1);
        assert_eq!(rig.table.len(), 1);
        rig.table.on_time(u64::MAX);
        assert!(rig.table.is_empty() && rig.records().len() == 1);
        rig.now_ns = u64::MAX - 1;
        rig.send(CLIENT, SERVER, 9, SYN, b"");
        rig.table.on_time(u64::MAX);
        assert!(rig.table.len() == 1 && rig.records().len() == 1);
    }

    #[test]
    fn packets_of_closed_connections_leave_nothing_that_waits() {
        let mut rig = Rig::new(Limits { connections: 4, ..Limits::default() });
        for seq in 0..100 {
            rig.send(CLIENT, SERVER, seq * 1000, SYN, b"");
            rig.send((3, 1), SERVER, seq * 1000, SYN, b"");
            rig.send(CLIENT, SERVER, 1, RST, b"");
            rig.send((3, 1), SERVER, 1, RST, b"");
            rig.send(CLIENT, SERVER, 1, RST, b"");
            assert!(rig.table.due.len() <= 9 && rig.table.closing.len() <= 11);
        }
        rig.table.end_all();
        assert_eq!(rig.records().len(), 200);
    }

    proptest::proptest! {
        /// Every packet of a connection has its number, and the final record has the last one.
        #[test]
        fn packet_numbers_have_no_hole(
            packets in proptest::collection::vec((0u8..3, 0u8..2, 0u8..32, 0u32..40), 0..300),
        ) {
            let mut rig = Rig::new(Limits { connections: 2, hellos: 1, ..Limits::default() });
            let mut last = std::collections::HashMap::new();
            for (client, side, flags, seq) in packets {
                let (a, b) = ((client, 1000), SERVER);
                let (from, to) = if side == 0 { (a, b) } else { (b, a) };
                let place = rig.send(from, to, seq, flags, b"xy");
                let before = last.insert(place.connection, place.packet_seq).unwrap_or(0);
                proptest::prop_assert_eq!(place.packet_seq, before + 1);
            }
            rig.table.end_all();
            for record in rig.records().iter().filter(|record| record.is_final) {
                proptest::prop_assert_eq!(last.remove(&record.connection), Some(record.counts.packets));
            }
            proptest::prop_assert!(last.is_empty() && rig.table.hellos == 0);
        }
    }
}
