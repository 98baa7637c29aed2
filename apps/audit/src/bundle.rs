//! Bundle of one connection: its records, and what proves each of them, in a folder that a recipient can verify.
//!
//! A bundle has the begin of the segment (interfaces), every packet and every connection record of the connection, and
//! the gaps among them. Of other records in the same batches it has hashes only.

use crate::cli::Failure;
use crate::segment_file::SegmentFile;
use crate::store::Store;
use evergate_evidence::mark::MarkKind;
use evergate_evidence::merkle::multi::multi_proof;
use evergate_evidence::merkle::{Hash, sha256};
use evergate_evidence::record::{Body, Record};
use evergate_evidence::segment::SegmentEncoder;
use evergate_evidence::statement::Statement;
use evergate_evidence::verify::{BATCHES, BatchProof, ReceiptFrame, RecordDigest, SESSION};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

/// Content of `manifest.json`: one line in this order, without spaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Number of the connection.
    pub connection: u64,
    /// SHA-256 of every other file, by its path.
    pub files: BTreeMap<String, String>,
    /// Always `evergate-audit bundle`.
    pub format: String,
    /// Id of the Recorder.
    pub recorder: String,
    /// Version of the layout.
    pub version: u32,
}

impl Manifest {
    /// Manifest of these files.
    pub fn new(connection: u64, recorder: String, files: BTreeMap<String, String>) -> Manifest {
        Manifest { connection, files, format: "evergate-audit bundle".into(), recorder, version: 1 }
    }

    /// Content of the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).unwrap_or_default(); // strings and numbers always serialise
        bytes.push(b'\n');
        bytes
    }

    /// Manifest from exactly its bytes.
    pub fn parse(bytes: &[u8]) -> Result<Manifest, String> {
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let Manifest { connection, recorder, files, .. } = manifest.clone();
        match manifest == Manifest::new(connection, recorder, files) && manifest.to_bytes() == bytes {
            true => Ok(manifest),
            false => Err("unknown format or version, or another form".into()),
        }
    }
}

/// Hexadecimal digits of a hash.
pub(crate) fn hex(hash: &Hash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Receipt of a batch: the statement as logged, and its proof.
struct Received {
    statement: Statement,
    proof: Vec<u8>,
}

/// Writes the bundle of a connection into a new folder. Memory: the leaves of one batch, and the session itself.
pub fn write(store: &Store, connection: u64, folder: &Path) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("bundle: {error}"));
    let wanted = wanted_records(store, connection)?;
    if wanted.len() < 2 {
        return Err(Failure::wrong(format!("bundle: the store has no connection {connection}")));
    }
    let (mut session, mut batches, mut proofs) = (Vec::new(), Vec::new(), Vec::new());
    collect(store, &wanted, &mut session, &mut batches, &mut proofs)?;
    std::fs::create_dir_all(folder.join("proofs")).map_err(|error| failed(&error))?;
    let mut files = vec![(SESSION.to_owned(), session), (BATCHES.to_owned(), batches)];
    files.extend(proofs);
    let mut digests = BTreeMap::new();
    for (name, content) in &files {
        std::fs::write(folder.join(name), content).map_err(|error| failed(&error))?;
        digests.insert(name.clone(), hex(&sha256(content)));
    }
    let info = store.info()?.ok_or_else(|| Failure::wrong("bundle: the folder is no store"))?;
    let manifest = Manifest::new(connection, info.recorder, digests);
    std::fs::write(folder.join("manifest.json"), manifest.to_bytes()).map_err(|error| failed(&error))
}

/// Calls `each` for every record of the store, in order.
fn for_each_record(
    store: &Store,
    mut each: impl FnMut(&Record<'_>, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let segments =
        store.segments().map_err(|error| Failure::wrong(format!("bundle: cannot list segments: {error}")))?;
    for segment in segments {
        let wrong = |error: &dyn std::fmt::Display| {
            Failure::wrong(format!("bundle: {}: {error}; verify the store first", segment.path.display()))
        };
        let mut file = SegmentFile::open(&segment.path).map_err(|error| wrong(&error))?;
        while let Some(located) = file.read().map_err(|error| wrong(&error))? {
            each(&located.record, segment.number)?;
        }
    }
    Ok(())
}

/// Numbers of the records that the bundle has, ascending. The first is the begin of the first segment.
fn wanted_records(store: &Store, connection: u64) -> Result<Vec<u64>, Failure> {
    let (mut wanted, mut gaps, mut begin) = (Vec::new(), Vec::new(), None);
    for_each_record(store, |record, _| {
        let is_wanted = match &record.body {
            Body::Packet(packet) => packet.connection == connection,
            Body::Connection(other) => other.connection == connection,
            Body::Mark(mark) if mark.what == MarkKind::SegmentBegins && wanted.is_empty() => {
                begin = Some(record.seq);
                false
            }
            Body::Gap(_) if !wanted.is_empty() => {
                gaps.push(record.seq);
                false
            }
            _ => false,
        };
        if is_wanted {
            wanted.append(&mut gaps);
            wanted.push(record.seq);
        }
        Ok(())
    })?;
    Ok(begin.into_iter().chain(wanted).collect())
}

/// Collects the session's blocks, the proofs of its batches and their receipts.
fn collect(
    store: &Store,
    wanted: &[u64],
    session: &mut Vec<u8>,
    batches: &mut Vec<u8>,
    proofs: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), Failure> {
    let mut wanted: VecDeque<u64> = wanted.iter().copied().collect();
    let mut receipts: VecDeque<Received> = VecDeque::new();
    let (mut segment, mut encoder, mut scratch) = (0, SegmentEncoder::default(), Vec::new());
    let (mut leaves, mut indexes) = (Vec::new(), Vec::new());
    for_each_record(store, |record, number| {
        if segment != number {
            segment = number;
            receipts.extend(read_receipts(store, number)?);
        }
        let unproved = || {
            Failure::failed(format!(
                "bundle: record {} has no receipt yet; hand its batch in first",
                record.seq
            ))
        };
        while receipts.front().is_some_and(|receipt| receipt.statement.span.last_seq < record.seq) {
            receipts.pop_front();
        }
        let is_wanted = wanted.front() == Some(&record.seq);
        let Some(receipt) = receipts.front() else {
            return if is_wanted { Err(unproved()) } else { Ok(()) };
        };
        let span = receipt.statement.span;
        if record.seq == span.first_seq {
            leaves.clear();
        }
        if wanted.front().is_none_or(|next| *next > span.last_seq) && indexes.is_empty() {
            return Ok(());
        }
        leaves.push(RecordDigest::of(record, 0, &mut scratch).leaf);
        if is_wanted {
            wanted.pop_front();
            indexes.push(record.seq - span.first_seq);
            encoder.push(record, session);
        }
        if record.seq == span.last_seq {
            let hashes = multi_proof(&leaves[..], leaves.len() as u64, &indexes)
                .map_err(|error| Failure::failed(format!("bundle: {error}")))?;
            let wanted = std::mem::take(&mut indexes).into_iter().map(|index| index as u32).collect();
            let proof = BatchProof { statement: receipt.statement.clone(), wanted, hashes };
            proof.encode(batches);
            let name = format!("proofs/{}.tlog-proof", receipt.statement.batch);
            proofs.push((name, receipt.proof.clone()));
        }
        Ok(())
    })?;
    match wanted.is_empty() && indexes.is_empty() {
        true => Ok(()),
        false => Err(Failure::failed("bundle: the last batch of the connection has no receipt yet")),
    }
}

/// Receipts of a segment. They are not verified here: the recipient does that.
fn read_receipts(store: &Store, number: u64) -> Result<Vec<Received>, Failure> {
    let path = store.proofs(number);
    let wrong = || {
        Failure::wrong(format!(
            "bundle: {} has no receipts that can be read; verify the store",
            path.display()
        ))
    };
    let content = std::fs::read(&path).map_err(|_| wrong())?;
    let (mut rest, mut receipts) = (&content[..], Vec::new());
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let (frame, behind) =
            behind.split_at_checked(u32::from_be_bytes(*length) as usize).ok_or_else(wrong)?;
        let frame = ReceiptFrame::decode(frame).ok_or_else(wrong)?;
        let statement = Statement::decode(frame.statement).map_err(|_| wrong())?;
        receipts.push(Received { statement, proof: frame.proof.to_vec() });
        rest = behind;
    }
    Ok(receipts)
}
