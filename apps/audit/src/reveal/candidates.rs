//! What stores have about one connection: its envelopes and its last connection record.
//!
//! All envelopes of a client random are kept: HPKE authenticates no sender, so that the first one may be bogus.

use super::wrong;
use crate::cli::Failure;
use crate::lookup::{RecordLookup, Wanted};
use crate::store::Store;
use evergate_evidence::connection_record::ConnectionRecord;
use evergate_evidence::deletion::unhex;
use evergate_evidence::envelope::Envelope;
use evergate_evidence::merkle::Hash;
use evergate_evidence::submission::first_frame;
use std::path::{Path, PathBuf};

/// Most envelopes that are tried for one request.
const ENVELOPES_MAX: usize = 16;

/// What stores have about one connection.
#[derive(Debug, Default)]
pub struct Candidates {
    /// Recorder whose store has the connection.
    pub recorder: Hash,
    /// Its last connection record.
    pub record: Option<ConnectionRecord>,
    /// Envelopes with its client random.
    pub envelopes: Vec<Vec<u8>>,
    /// Records that were read: the cost of the search.
    pub records_read: u64,
}

/// Searches stores, of one Recorder only if it is given. The envelopes may be in other stores: a feed has one Recorder.
///
/// The answer comes from the index if it has one. If it has no envelope, every segment is scanned.
pub fn find_candidates(
    stores: &[PathBuf],
    envelopes: &[PathBuf],
    wanted: Wanted,
    recorder: Option<&Hash>,
) -> Result<Candidates, Failure> {
    let mut found = Candidates::default();
    let mut lookups =
        stores.iter().map(|path| RecordLookup::open(&Store::at(path))).collect::<Result<Vec<_>, _>>()?;
    found.find_record(stores, &mut lookups, wanted, recorder)?;
    if found.record.is_none() && lookups.iter().any(RecordLookup::has_index) {
        // An index may lack it.
        lookups.iter_mut().for_each(RecordLookup::ignore_index);
        found.find_record(stores, &mut lookups, wanted, recorder)?;
    }
    let random = match (wanted, &found.record) {
        (Wanted::ClientRandom(random), _) => Some(random),
        (_, record) => record.as_ref().map(|record| record.tls.client_random),
    };
    if let Some(random) = random {
        found.find_envelopes(&mut lookups, envelopes, &random)?;
    }
    found.records_read = lookups.iter().map(RecordLookup::records_read).sum();
    Ok(found)
}

/// Adds envelopes of a file of `seal`: each behind its length in 32 bits.
fn add_file(found: &mut Candidates, path: &Path, client_random: &Hash) -> Result<(), Failure> {
    let bytes =
        std::fs::read(path).map_err(|error| wrong(format!("cannot read {}: {error}", path.display())))?;
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let envelope = first_frame(rest).ok().flatten();
        let (envelope, len) = envelope.ok_or_else(|| {
            let at = bytes.len() - rest.len();
            wrong(format!("{}: no envelope at byte {at}; make the file again", path.display()))
        })?;
        found.add(envelope, client_random);
        rest = &rest[len..];
    }
    Ok(())
}

impl Candidates {
    fn find_record(
        &mut self,
        stores: &[PathBuf],
        lookups: &mut [RecordLookup],
        wanted: Wanted,
        recorder: Option<&Hash>,
    ) -> Result<(), Failure> {
        for (path, lookup) in stores.iter().zip(lookups) {
            let id = unhex(&Store::at(path).require()?.recorder)
                .ok_or_else(|| wrong(format!("{}: store.json has no id of a Recorder", path.display())))?;
            if recorder.is_some_and(|recorder| *recorder != id) {
                continue;
            }
            self.record = lookup.connection(wanted)?;
            if self.record.is_some() {
                self.recorder = id;
                break;
            }
        }
        Ok(())
    }

    fn find_envelopes(
        &mut self,
        lookups: &mut [RecordLookup],
        files: &[PathBuf],
        client_random: &Hash,
    ) -> Result<(), Failure> {
        let add_found = |lookup: &mut RecordLookup, found: &mut Candidates| {
            let envelopes = lookup.envelopes(client_random, ENVELOPES_MAX)?;
            envelopes.iter().for_each(|bytes| found.add(bytes, client_random));
            Ok::<(), Failure>(())
        };
        lookups.iter_mut().try_for_each(|lookup| add_found(lookup, self))?;
        files.iter().try_for_each(|path| add_file(self, path, client_random))?;
        if !self.envelopes.is_empty() {
            return Ok(());
        }
        for lookup in lookups.iter_mut().filter(|lookup| lookup.has_index()) {
            lookup.ignore_index();
            add_found(lookup, self)?;
        }
        if !self.envelopes.is_empty() {
            eprintln!(
                "evergate-audit: the index lacks an envelope; run `evergate-audit index DIR --rebuild`"
            );
        }
        Ok(())
    }

    /// Adds an envelope if it is of the connection with this client random.
    fn add(&mut self, bytes: &[u8], client_random: &Hash) {
        let is_wanted =
            Envelope::decode(bytes).is_ok_and(|envelope| envelope.aad.client_random == *client_random);
        let is_new = !self.envelopes.iter().any(|known| known == bytes);
        if is_wanted && is_new && self.envelopes.len() < ENVELOPES_MAX {
            self.envelopes.push(bytes.to_vec());
        }
    }
}
