//! The last part of a disclosure's binding: the secrets open the first protected record of each direction.

use crate::cli::Failure;
use crate::find::Query;
use crate::reveal::FirstRecords;
use crate::sessions::{Catalog, Outcome, Playback, SecretFile, Sink};
use evergate_evidence::connection_record::ConnectionRecord;
use evergate_evidence::envelope::Aad;
use evergate_evidence::secrets::SecretList;
use evergate_player::{Event, Report};
use std::path::PathBuf;

/// Most packets of a session that are read for its first records.
const PACKETS_MAX: u64 = 10_000;
/// Bound of memory.
const MEMORY_BYTES: usize = 64 << 20;
const CONNECTIONS_MAX: usize = 16;

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
    fn opens(&self, random: [u8; 32], secrets: &SecretList) -> Result<bool, Failure> {
        let mut catalog = Catalog::open(&self.stores)?;
        let query = Query {
            from_ns: 0,
            to_ns: u64::MAX,
            client: None,
            server: None,
            sni: None,
            client_random: Some(random.to_vec()),
            request_id: None,
            connection: None,
        };
        let sessions = catalog.select(&query, CONNECTIONS_MAX)?;
        let secrets = SecretFile::of(random, secrets);
        let mut opened = Opened(false);
        for number in 0..sessions.len() {
            let sessions = &sessions[number..=number];
            let (catalog, secrets) = (&mut catalog, &secrets);
            let mut playback =
                Playback { catalog, sessions, secrets, memory: MEMORY_BYTES, label: "binding" };
            playback.begin(PACKETS_MAX, &mut opened)?;
        }
        Ok(opened.0)
    }
}

impl FirstRecords for RecordedSessions {
    fn open_first(&self, record: &ConnectionRecord, _: &Aad<'_>, secrets: &SecretList) -> Result<(), String> {
        match self.opens(record.tls.client_random, secrets) {
            Ok(true) => Ok(()),
            Ok(false) => Err("the secrets of the envelope do not open the recorded packets".into()),
            Err(failure) => Err(failure.message),
        }
    }
}

struct Opened(bool);

impl Sink for Opened {
    fn on_event(&mut self, _: usize, _: Event) -> Result<bool, Failure> {
        Ok(false)
    }

    fn on_end(&mut self, _: usize, report: &Report, _: Outcome) -> Result<(), Failure> {
        self.0 |= report.sides.iter().all(|side| side.records > 0);
        Ok(())
    }
}
