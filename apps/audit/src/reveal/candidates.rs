//! What stores have about one connection: its envelopes and its last connection record.
//!
//! The scan reads every segment, in bounded memory. All envelopes of a client random are kept: HPKE authenticates no
//! sender, so that the first one may be bogus.

use super::wrong;
use crate::cli::Failure;
use crate::segment_file::SegmentFile;
use crate::store::Store;
use evergate_evidence::connection_record::ConnectionRecord;
use evergate_evidence::deletion::unhex;
use evergate_evidence::envelope::Envelope;
use evergate_evidence::merkle::Hash;
use evergate_evidence::record::Body;
use evergate_evidence::submission::first_frame;
use std::path::{Path, PathBuf};

/// Most envelopes that are tried for one request.
pub(super) const ENVELOPES_MAX: usize = 16;

/// How a connection is known.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    /// By its number in the Recorder.
    Number(u64),
    /// By the random of its ClientHello.
    ClientRandom(Hash),
}

/// What stores have about one connection.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    /// Recorder whose store has the connection.
    pub(super) recorder: Hash,
    /// Its last connection record.
    pub(super) record: Option<ConnectionRecord>,
    /// Envelopes with its client random.
    pub(super) envelopes: Vec<Vec<u8>>,
}

/// Searches stores, of one Recorder only if it is given. The envelopes may be in other stores: a feed has one Recorder.
pub(super) fn find(
    stores: &[PathBuf],
    envelopes: &[PathBuf],
    wanted: Wanted,
    recorder: Option<&Hash>,
) -> Result<Candidates, Failure> {
    let mut found = Candidates::default();
    for path in stores {
        let store = Store::at(path);
        let id = unhex(&store.require()?.recorder)
            .ok_or_else(|| wrong(format!("{}: store.json has no id of a Recorder", path.display())))?;
        if recorder.is_some_and(|recorder| *recorder != id) {
            continue;
        }
        scan(&store, |body| {
            if let Body::Connection(record) = body
                && is_wanted(record, wanted)
            {
                found.recorder = id;
                found.record = Some(record.as_ref().clone());
            }
        })?;
        if found.record.is_some() {
            break;
        }
    }
    let random = match (wanted, &found.record) {
        (Wanted::ClientRandom(random), _) => random,
        (_, Some(record)) => record.tls.client_random,
        (_, None) => return Ok(found),
    };
    for path in stores {
        scan(&Store::at(path), |body| {
            if let Body::Envelope(bytes) = body {
                found.add(bytes, &random);
            }
        })?;
    }
    for path in envelopes {
        add_file(&mut found, path, &random)?;
    }
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
    /// Adds an envelope if it is of the connection with this client random.
    pub(super) fn add(&mut self, bytes: &[u8], client_random: &Hash) {
        let is_wanted =
            Envelope::decode(bytes).is_ok_and(|envelope| envelope.aad.client_random == *client_random);
        let is_new = !self.envelopes.iter().any(|known| known == bytes);
        if is_wanted && is_new && self.envelopes.len() < ENVELOPES_MAX {
            self.envelopes.push(bytes.to_vec());
        }
    }
}

fn is_wanted(record: &ConnectionRecord, wanted: Wanted) -> bool {
    match wanted {
        Wanted::Number(number) => record.connection == number,
        Wanted::ClientRandom(random) => record.tls.client_random == random,
    }
}

/// Calls `each` for the body of every record of a store.
pub(crate) fn scan(store: &Store, mut each: impl FnMut(&Body<'_>)) -> Result<(), Failure> {
    let root = store.root().display();
    let segments =
        store.segments().map_err(|error| wrong(format!("{root}: cannot list segments: {error}")))?;
    for segment in segments {
        let name = segment.path.display();
        let mut file = SegmentFile::open(&segment.path).map_err(|error| wrong(format!("{name}: {error}")))?;
        loop {
            match file.read() {
                Ok(Some(located)) => each(&located.record.body),
                // The newest segment of a running Recorder ends within a block.
                Ok(None) | Err(crate::segment_file::FileError::Torn { .. }) => break,
                Err(error) => {
                    return Err(wrong(format!("{name}: {error}; verify the store first")));
                }
            }
        }
    }
    Ok(())
}
