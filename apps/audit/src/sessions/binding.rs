//! The last part of a disclosure's binding: the secrets open the first protected record of each direction.

use crate::cli::Failure;
use crate::find::Query;
use crate::reveal::FirstRecords;
use crate::segment_file::SegmentFile;
use crate::sessions::{Catalog, Outcome, Playback, SecretFile, Sink};
use crate::store::Store;
use evergate_evidence::connection_record::{ConnectionRecord, Endpoints};
use evergate_evidence::envelope::Aad;
use evergate_evidence::record::Body;
use evergate_evidence::secrets::SecretList;
use evergate_player::{Ends, Event, Limits, Report, Session};
use evergate_seal::ServerKey;
use std::path::PathBuf;
use std::rc::Rc;

/// Most packets of a session that are read for its first records.
const PACKETS_MAX: u64 = 10_000;
/// Bound of memory.
const MEMORY_BYTES: usize = 64 << 20;
const CONNECTIONS_MAX: usize = 16;
/// Packets between two looks at what was opened.
const CHECK_PACKETS: u64 = 32;

/// Packets of recorded sessions.
#[derive(Clone, Debug)]
pub struct RecordedSessions {
    stores: Vec<PathBuf>,
}

impl RecordedSessions {
    /// Sessions of these stores.
    pub fn of(stores: &[PathBuf]) -> RecordedSessions {
        RecordedSessions { stores: stores.to_vec() }
    }

    /// Whether the secrets open a record of each direction.
    fn opens(&self, record: &ConnectionRecord, secrets: &SecretFile) -> Result<bool, Failure> {
        let random = record.tls.client_random;
        let mut catalog = Catalog::open(&self.stores)?;
        let query = Query { client_random: Some(random.to_vec()), ..Query::all() };
        let sessions = catalog.select(&query, CONNECTIONS_MAX)?;
        if sessions.is_empty() {
            return self.scan(record, secrets);
        }
        let mut opened = Opened(false);
        for number in 0..sessions.len() {
            let sessions = &sessions[number..=number];
            let catalog = &mut catalog;
            let mut playback =
                Playback { catalog, sessions, secrets, memory: MEMORY_BYTES, label: "binding" };
            playback.begin(PACKETS_MAX, &mut opened)?;
        }
        Ok(opened.0)
    }

    /// The same without an index: reads the segments in their order.
    fn scan(&self, record: &ConnectionRecord, secrets: &SecretFile) -> Result<bool, Failure> {
        let Endpoints { client, server, .. } = record.endpoints;
        let mut player = Session::new(Ends { client, server }, &Limits::of_memory(MEMORY_BYTES, 1));
        let mut packets = 0;
        for dir in &self.stores {
            let segments = Store::at(dir).segments();
            for segment in segments.map_err(|error| Failure::wrong(format!("{}: {error}", dir.display())))? {
                let Ok(mut file) = SegmentFile::open(&segment.path) else { continue };
                // A segment that is being written ends anywhere; a damaged one is the business of `verify`.
                while let Ok(Some(located)) = file.read() {
                    let Body::Packet(packet) = &located.record.body else { continue };
                    if packet.connection != record.connection || packets >= PACKETS_MAX {
                        continue;
                    }
                    // A connection of the same number in another store has other ends.
                    packets += u64::from(player.on_frame(packet.time_ns, 0, packet.data, secrets));
                    while player.poll().is_some() {}
                    if packets % CHECK_PACKETS == 0 && has_opened(&player.report()) {
                        return Ok(true);
                    }
                }
            }
        }
        player.finish(secrets);
        Ok(has_opened(&player.report()))
    }
}

/// Whether a record of each direction was opened.
fn has_opened(report: &Report) -> bool {
    report.sides.iter().all(|side| side.records > 0)
}

impl FirstRecords for RecordedSessions {
    fn open_first(&self, record: &ConnectionRecord, _: &Aad<'_>, secrets: &SecretList) -> Result<(), String> {
        match self.opens(record, &SecretFile::of(record.tls.client_random, secrets)) {
            Ok(true) => Ok(()),
            Ok(false) => Err("the secrets of the envelope do not open the recorded packets".into()),
            Err(failure) => Err(failure.message),
        }
    }

    fn open_exchange(&self, record: &ConnectionRecord, keys: &Rc<[ServerKey]>) -> Result<SecretList, String> {
        let secrets = SecretFile::of_server_keys(keys.clone());
        let is_open = self.opens(record, &secrets).map_err(|failure| failure.message)?;
        match secrets.exchanged(&record.tls.client_random) {
            Some(list) if is_open => Ok(list),
            Some(_) => Err("the server's key gives secrets that do not open the recorded packets".into()),
            None => Err("no key of --server-key decrypts the recorded key exchange: it resumed a session, \
                         was not captured whole, or is for another key"
                .into()),
        }
    }
}

struct Opened(bool);

impl Sink for Opened {
    fn on_event(&mut self, _: usize, _: Event) -> Result<bool, Failure> {
        Ok(false)
    }

    fn on_end(&mut self, _: usize, report: &Report, _: Outcome) -> Result<(), Failure> {
        self.0 |= has_opened(report);
        Ok(())
    }
}
