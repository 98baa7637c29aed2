//! Sources of packets, and the sessions in them.

use crate::bundle::Manifest;
use crate::cli::Failure;
use crate::find::{self, Connection, Counts, EndFilter, Query, Source};
use crate::index::{RecordPlace, text_of};
use crate::record::file_source::Capture;
use crate::segment_file::SegmentFile;
use crate::store::Store;
use evergate_base::net::Network;
use evergate_evidence::connection_record::ConnectionRecord;
use evergate_evidence::record::Body;
use evergate_evidence::verify::SESSION;
use evergate_player::Ends;
use evergate_recorder::connection_table::{ConnectionTable, Limits};
use evergate_recorder::frame::{Content, Frame};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Time around a session in which packets of the same ends without a hello belong to it: a Recorder's idle time.
const NEAR_NS: u64 = 15 * 60 * 1_000_000_000;
/// Time between connections of the same ends without a hello that are one session.
const TOUCH_NS: u64 = 2_000_000_000;
/// Most connections of the same ends that are looked at for one session.
const PARTS_MAX: usize = 256;

/// Sources of packets.
pub(crate) struct Catalog {
    pub(crate) sources: Vec<Origin>,
}

/// A source of packets.
pub(crate) enum Origin {
    /// Store of a Recorder.
    Store(Box<Source>),
    /// Bundle: file of its session, and that session's connection.
    Bundle(PathBuf, u64),
    /// Capture of another tool.
    Capture(PathBuf),
}

/// A session, and where its packets are.
#[derive(Clone, Debug)]
pub(crate) struct Selected {
    pub(crate) ends: Ends,
    pub(crate) client_random: Option<[u8; 32]>,
    pub(crate) sni: String,
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    pub(crate) parts: Vec<Part>,
}

/// Packets of a session in one source.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Place of the source on the command line.
    pub(crate) source: usize,
    pub(crate) connection: Connection,
}

impl Catalog {
    /// Opens the sources.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Catalog, Failure> {
        let sources = paths.iter().map(|path| Origin::open(path)).collect::<Result<_, _>>()?;
        Ok(Catalog { sources })
    }

    /// Paths of the sources, as texts.
    pub(crate) fn names(&self) -> Vec<String> {
        let path = |origin: &Origin| match origin {
            Origin::Store(source) => source.store.root().to_string_lossy().into_owned(),
            Origin::Bundle(path, _) => path.parent().unwrap_or(path).to_string_lossy().into_owned(),
            Origin::Capture(path) => path.to_string_lossy().into_owned(),
        };
        self.sources.iter().map(path).collect()
    }

    /// Sessions that meet the query, in the order of their begin, at most `limit`.
    pub(crate) fn select(&mut self, query: &Query, limit: usize) -> Result<Vec<Selected>, Failure> {
        let mut parts: Vec<Part> = Vec::new();
        for (source, origin) in self.sources.iter_mut().enumerate() {
            let found = origin.connections(query, limit)?;
            parts.extend(found.into_iter().map(|connection| Part { source, connection }));
        }
        parts.sort_by_key(|part| (part.connection.client_random.is_none(), part.connection.first_ns));
        let mut sessions: Vec<Selected> = Vec::new();
        let mut by_ends: HashMap<[SocketAddr; 2], Vec<usize>> = HashMap::new();
        for part in parts {
            let same = by_ends.entry(unordered(&part.connection)).or_default();
            match same.iter().find(|session| sessions[**session].has(&part.connection)) {
                Some(session) => sessions[*session].add(part),
                None => {
                    same.push(sessions.len());
                    sessions.push(Selected::new(part));
                }
            }
        }
        sessions.sort_by_key(|session| (session.first_ns, session.ends));
        sessions.truncate(limit);
        self.add_parts(&mut sessions)?;
        sessions.sort_by_key(|session| (session.first_ns, session.ends));
        Ok(sessions)
    }

    /// Adds connections of the same ends without a hello: what another Recorder has of a session, or what followed a
    /// node's death.
    fn add_parts(&mut self, sessions: &mut Vec<Selected>) -> Result<(), Failure> {
        let mut taken: BTreeSet<(usize, u64)> = BTreeSet::new();
        for session in sessions.iter_mut() {
            taken.extend(session.parts.iter().map(|part| (part.source, part.connection.number)));
        }
        let mut joined = BTreeSet::new();
        for session in sessions.iter_mut().filter(|session| session.client_random.is_some()) {
            let queries = session.neighbours();
            for (source, origin) in self.sources.iter_mut().enumerate() {
                let Origin::Store(_) = origin else { continue };
                let mut near = origin.connections(&queries[0], PARTS_MAX)?;
                near.extend(origin.connections(&queries[1], PARTS_MAX)?);
                for connection in near {
                    let key = (source, connection.number);
                    let is_part =
                        connection.client_random.is_none_or(|own| Some(own) == session.client_random);
                    let is_known =
                        session.parts.iter().any(|part| (part.source, part.connection.number) == key);
                    if is_part && !is_known && joined.insert(key) {
                        session.add(Part { source, connection });
                    }
                }
            }
        }
        sessions.retain(|session| {
            session.client_random.is_some()
                || !session.parts.iter().all(|part| joined.contains(&(part.source, part.connection.number)))
        });
        Ok(())
    }
}

impl Selected {
    fn new(part: Part) -> Selected {
        let connection = &part.connection;
        Selected {
            ends: Ends { client: connection.client, server: connection.server },
            client_random: connection.client_random,
            sni: connection.sni.clone(),
            first_ns: connection.first_ns,
            last_ns: connection.last_ns,
            parts: vec![part],
        }
    }

    fn add(&mut self, part: Part) {
        self.first_ns = self.first_ns.min(part.connection.first_ns);
        self.last_ns = self.last_ns.max(part.connection.last_ns);
        self.parts.push(part);
    }

    /// Whether a connection of the same ends belongs to the session: it has the same hello, or one of both has none and
    /// their times touch.
    fn has(&self, connection: &Connection) -> bool {
        match (self.client_random, connection.client_random) {
            (Some(own), Some(other)) => own == other,
            _ => {
                connection.first_ns <= self.last_ns.saturating_add(TOUCH_NS)
                    && self.first_ns <= connection.last_ns.saturating_add(TOUCH_NS)
            }
        }
    }

    /// Queries for connections of the same ends near this session, in both roles: without a SYN a Recorder may have
    /// taken the client for the server.
    fn neighbours(&self) -> [Query; 2] {
        let end =
            |end: SocketAddr| Some(EndFilter { net: Some(Network::from(end.ip())), port: Some(end.port()) });
        let Ends { client, server } = self.ends;
        [(client, server), (server, client)].map(|(client, server)| Query {
            from_ns: self.first_ns.saturating_sub(NEAR_NS),
            to_ns: self.last_ns.saturating_add(NEAR_NS),
            client: end(client),
            server: end(server),
            sni: None,
            client_random: None,
            request_id: None,
            connection: None,
        })
    }
}

/// Both ends in one order.
fn unordered(connection: &Connection) -> [SocketAddr; 2] {
    let mut ends = [connection.client, connection.server];
    ends.sort_unstable();
    ends
}

impl Origin {
    fn open(path: &Path) -> Result<Origin, Failure> {
        if !path.is_dir() {
            return Ok(Origin::Capture(path.to_owned()));
        }
        let manifest = path.join("manifest.json");
        if manifest.exists() {
            let wrong = |error: &dyn std::fmt::Display| {
                Failure::wrong(format!("sessions: {}: {error}; verify the bundle first", manifest.display()))
            };
            let bytes = std::fs::read(&manifest).map_err(|error| wrong(&error))?;
            let content = Manifest::parse(&bytes).map_err(|error| wrong(&error))?;
            return Ok(Origin::Bundle(path.join(SESSION), content.connection));
        }
        let store = Store::at(path);
        store.require()?;
        let source = Source::open(store)?;
        find::warn_of_incomplete(std::slice::from_ref(&source))?;
        Ok(Origin::Store(Box::new(source)))
    }

    fn connections(&mut self, query: &Query, limit: usize) -> Result<Vec<Connection>, Failure> {
        let found = match self {
            Origin::Store(source) => {
                let found = find::search(std::slice::from_mut(&mut **source), query, limit)?;
                return Ok(found.into_iter().map(|found| found.connection).collect());
            }
            Origin::Bundle(path, number) => bundle_connection(path, *number)?.into_iter().collect(),
            Origin::Capture(path) => capture_connections(path, query, limit)?,
        };
        Ok(found.into_iter().filter(|connection| query.matches(connection)).take(limit).collect())
    }
}

/// Number and hellos of a bundle's connection.
fn bundle_connection(path: &Path, number: u64) -> Result<Option<Connection>, Failure> {
    let wrong = |error: &dyn std::fmt::Display| {
        Failure::wrong(format!("sessions: {}: {error}; verify the bundle first", path.display()))
    };
    let (mut file, mut last) = (SegmentFile::open(path).map_err(|error| wrong(&error))?, None);
    while let Some(located) = file.read().map_err(|error| wrong(&error))? {
        if let Body::Connection(record) = located.record.body
            && record.connection == number
        {
            // A bundle's file is no segment of a store.
            let place = RecordPlace { seq: located.record.seq, segment: 0, offset: located.offset };
            last = Some(connection_of(&record, place));
        }
    }
    Ok(last)
}

/// Connections of a capture that meet the query, numbered as a Recorder numbers them.
fn capture_connections(path: &Path, query: &Query, limit: usize) -> Result<Vec<Connection>, Failure> {
    let wrong = |error: String| Failure::wrong(error);
    let (mut capture, mut table) = (Capture::open(path).map_err(wrong)?, capture_table());
    let mut found: BTreeMap<u64, Connection> = BTreeMap::new();
    let mut has_more = true;
    while has_more {
        has_more = capture
            .next(&mut |packet| {
                table.on_time(packet.time_ns);
                let frame = Frame::read(packet.data);
                if let Content::Tcp(segment) = frame.content {
                    table.on_segment(packet.time_ns, frame.vlan, &segment);
                }
            })
            .map_err(wrong)?;
        if !has_more {
            table.end_all();
        }
        while let Some(record) = table.poll_record() {
            let connection = connection_of(&record, RecordPlace::default()); // a capture has no records
            // An interim record may lack what the last one has.
            if record.is_final && query.matches(&connection) && found.len() < limit.max(1) {
                found.insert(connection.number, connection);
            }
        }
    }
    Ok(found.into_values().collect())
}

/// Table that numbers the connections of a capture, the same in every pass.
pub(super) fn capture_table() -> ConnectionTable {
    ConnectionTable::new(Limits::default(), 1)
}

fn connection_of(record: &ConnectionRecord, place: RecordPlace) -> Connection {
    let random = |random: [u8; 32]| (random != [0; 32]).then_some(random);
    Connection {
        number: record.connection,
        record: place,
        first_ns: record.counts.first_ns,
        last_ns: record.counts.last_ns,
        client: record.endpoints.client,
        server: record.endpoints.server,
        vlan: record.endpoints.vlan,
        sni: text_of(&record.tls.sni).to_ascii_lowercase(),
        alpn: text_of(&record.tls.alpn).into_owned(),
        client_random: random(record.tls.client_random),
        server_random: random(record.tls.server_random),
        version: record.tls.version,
        suite: record.tls.suite,
        counts: Counts {
            packets: record.counts.packets,
            bytes_c2s: record.counts.bytes_c2s,
            bytes_s2c: record.counts.bytes_s2c,
            holes: record.counts.holes,
            is_final: record.is_final,
        },
    }
}
