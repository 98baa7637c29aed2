//! Verifier of a bundle: the records of one connection, each proved to be in a logged batch.
//!
//! `batches.bin` has, for each batch in order, the statement as logged, the number of its records, the indexes of the
//! wanted ones and the hashes that lead to the root. The caller bounds the length of that file; the verifier keeps it.

use super::digest::{Event, RecordDigest};
use super::finding::{Checked, FindingKind, Findings, Report};
use super::log_view::{Extension, LogView};
use super::stream::Expected;
use super::timestamps::{StampFiles, Stamps, TokenVerifier};
use super::trust::Trust;
use crate::cursor::{Cursor, Malformed};
use crate::merkle::Hash;
use crate::merkle::multi::root_from_multi;
use crate::note::SignatureVerifier;
use crate::proof::Receipt;
use crate::statement::{STATEMENT_BYTES, Statement};
use std::rc::Rc;

/// Path of the batches in a bundle.
pub const BATCHES: &str = "batches.bin";
/// Path of the records in a bundle.
pub const SESSION: &str = "session.pcapng";

const MANIFEST: &str = "manifest.json";

/// Proof of a batch's wanted records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchProof {
    /// The statement as logged.
    pub statement: Statement,
    /// Indexes of the wanted records within the batch, ascending; at least one.
    pub wanted: Vec<u32>,
    /// Hashes that lead to the root.
    pub hashes: Vec<Hash>,
}

impl BatchProof {
    /// Appends the batch.
    pub fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.statement.encode());
        to.extend_from_slice(&self.records().to_be_bytes());
        to.extend_from_slice(&(self.wanted.len() as u32).to_be_bytes());
        self.wanted.iter().for_each(|index| to.extend_from_slice(&index.to_be_bytes()));
        to.extend_from_slice(&(self.hashes.len() as u32).to_be_bytes());
        self.hashes.iter().for_each(|hash| to.extend_from_slice(hash));
    }

    /// Number of records in the batch.
    fn records(&self) -> u64 {
        let span = &self.statement.span;
        span.last_seq.saturating_sub(span.first_seq).saturating_add(1)
    }

    /// All batches of a file.
    pub fn decode_all(bytes: &[u8]) -> Result<Vec<BatchProof>, (u64, Malformed)> {
        let (mut cursor, mut batches) = (Cursor::new(bytes), Vec::new());
        let mut offset = 0;
        while cursor.end().is_err() {
            let batch = BatchProof::decode(&mut cursor).map_err(|error| (offset, error))?;
            offset += (STATEMENT_BYTES + 16 + 4 * batch.wanted.len() + 32 * batch.hashes.len()) as u64;
            batches.push(batch);
        }
        Ok(batches)
    }

    fn decode(cursor: &mut Cursor<'_>) -> Result<BatchProof, Malformed> {
        let statement = Statement::decode(cursor.bytes(STATEMENT_BYTES)?)?;
        statement.check()?;
        let records = cursor.u64()?;
        let wanted = cursor.u32()? as usize;
        let wanted = cursor.bytes(wanted.saturating_mul(4))?.as_chunks::<4>().0;
        let wanted = wanted.iter().map(|index| u32::from_be_bytes(*index)).collect();
        let hashes = cursor.u32()? as usize;
        let hashes = cursor.bytes(hashes.saturating_mul(32))?.as_chunks::<32>().0.to_vec();
        let batch = BatchProof { statement, wanted, hashes };
        match (batch.records() == records, batch.wanted.is_empty()) {
            (true, false) => Ok(batch),
            (true, true) => Err(Malformed::new("batch without a wanted record")),
            (false, _) => Err(Malformed::new("number of records differs from the statement")),
        }
    }
}

/// What the manifest of a bundle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Id of the Recorder.
    pub recorder: Hash,
    /// Number of the connection.
    pub connection: u64,
}

/// Verifier of a bundle.
pub struct SessionVerifier<'a> {
    session: Session,
    log: LogView<'a>,
    findings: Findings,
    checked: Checked,
    batches: Vec<BatchProof>,
    /// Batch of the next wanted record, and its place among the wanted ones.
    next: (usize, usize),
    /// Leaves of that batch so far.
    leaves: Vec<(u64, Hash)>,
    packet_seq: u64,
    has_final: bool,
    index: Option<u64>,
    received_ms: u64,
    stamps: Stamps,
}

impl<'a> SessionVerifier<'a> {
    /// Verifier of a session with these batches.
    pub fn new(
        trust: &'a Trust,
        signatures: &'a dyn SignatureVerifier,
        session: Session,
        batches: Vec<BatchProof>,
    ) -> SessionVerifier<'a> {
        SessionVerifier {
            session,
            log: LogView::new(trust, signatures),
            findings: Findings::default(),
            checked: Checked::default(),
            batches,
            next: (0, 0),
            leaves: Vec::new(),
            packet_seq: 0,
            has_final: false,
            index: None,
            received_ms: 0,
            stamps: Stamps::default(),
        }
    }

    /// The findings so far, for faults of files that the caller sees.
    pub fn findings(&mut self) -> &mut Findings {
        &mut self.findings
    }

    /// Numbers of the batches: each has a file `proofs/<batch>.tlog-proof`.
    pub fn batches(&self) -> Vec<u64> {
        self.batches.iter().map(|batch| batch.statement.batch).collect()
    }

    /// Checks that the batches ascend and are of the Recorder. Call it before the proofs.
    pub fn check_batches(&mut self) {
        let mut before = (0, 0);
        for batch in &self.batches {
            let Statement { batch: number, recorder, span, .. } = &batch.statement;
            if *recorder != self.session.recorder {
                let detail = format!("batch {number} is of another Recorder than the manifest");
                self.findings.add_once(FindingKind::Statement, BATCHES, detail);
                let detail = "its Recorder is not the one of the batches";
                self.findings.add_once(FindingKind::Description, MANIFEST, detail);
            }
            if *number <= before.0 || span.first_seq <= before.1 {
                let detail = format!("batch {number} does not ascend");
                self.findings.add(FindingKind::Statement, BATCHES, None, detail);
            }
            before = (*number, span.last_seq);
        }
    }

    /// Files of a time stamp. All of them come before the proofs.
    pub fn on_stamp(&mut self, files: &StampFiles<'_>, tokens: Option<&dyn TokenVerifier>) {
        self.stamps.on_stamp(files, tokens, &mut self.log, &mut self.findings);
    }

    /// The proof of a batch, in order of the batches.
    pub fn on_proof(&mut self, batch: u64, content: &[u8], path: &str) {
        let path: Rc<str> = path.into();
        let receipt = match Receipt::parse(content) {
            Ok(receipt) => receipt,
            Err(error) => return self.findings.add(FindingKind::Receipt, &path, None, error),
        };
        let Some(proof) = self.batches.iter().find(|proof| proof.statement.batch == batch) else { return };
        let (leaf, received_ms) = (proof.statement.leaf(), proof.statement.received_ms);
        if !self.log.accept_receipt(&receipt, leaf, (&path, 0), &mut self.findings) {
            return;
        }
        if self.index.is_some_and(|index| index >= receipt.index) {
            let detail = format!("batch {batch} is logged before the batch before it");
            self.findings.add(FindingKind::Receipt, &path, None, detail);
        }
        if received_ms < self.received_ms {
            let detail = format!("batch {batch}: time of receipt goes back");
            self.findings.add(FindingKind::Time, &path, None, detail);
        }
        (self.index, self.received_ms) = (Some(receipt.index), received_ms);
        self.checked.acknowledged += 1;
    }

    /// A record of the session, in order.
    pub fn on_record(&mut self, record: &RecordDigest) {
        self.checked.records += 1;
        match &record.event {
            Event::Packet { time_ns, connection, packet_seq, bytes } => {
                self.checked.packets += 1;
                self.checked.packet_bytes += u64::from(*bytes);
                if self.checked.packets == 1 {
                    self.checked.first_ns = *time_ns;
                }
                self.checked.last_ns = *time_ns;
                self.on_packet(record, *connection, *packet_seq);
            }
            Event::Final(last) if last.connection == self.session.connection => {
                self.has_final = true;
                self.checked.connections += 1;
                self.checked.unexplained += last.holes;
                if last.packets != self.packet_seq {
                    let detail = format!(
                        "its last record counts {} packets, {} are here",
                        last.packets, self.packet_seq
                    );
                    self.findings.add(FindingKind::Connection, SESSION, Some(record.offset), detail);
                }
            }
            Event::Gap(gap) => {
                self.checked.declared_lost = self.checked.declared_lost.saturating_add(gap.count);
                let lost = self.checked.lost.entry(gap.reason.name()).or_default();
                *lost = lost.saturating_add(gap.count);
            }
            _ => {}
        }
        self.add_leaf(record);
    }

    fn on_packet(&mut self, record: &RecordDigest, connection: u64, packet_seq: u64) {
        if connection != self.session.connection {
            let detail = format!("packet of connection {connection}");
            self.findings.add(FindingKind::Connection, SESSION, Some(record.offset), detail);
            let detail = "its connection is not the one of the session";
            self.findings.add_once(FindingKind::Description, MANIFEST, detail);
        } else if packet_seq != self.packet_seq + 1 {
            let detail = format!("packet {packet_seq} follows {}", self.packet_seq);
            self.findings.add(FindingKind::Connection, SESSION, Some(record.offset), detail);
        }
        self.packet_seq = packet_seq.min(u64::MAX - 1);
    }

    /// Takes the record as the next wanted one of its batch.
    fn add_leaf(&mut self, record: &RecordDigest) {
        let Some(batch) = self.batches.get(self.next.0) else {
            let detail = format!("no batch proves record {}", record.seq);
            return self.findings.add(FindingKind::Root, SESSION, Some(record.offset), detail);
        };
        let Some(&wanted) = batch.wanted.get(self.next.1) else { return };
        let seq = batch.statement.span.first_seq.saturating_add(u64::from(wanted));
        if seq != record.seq {
            let detail = format!("record {} is here, {BATCHES} proves record {seq} next", record.seq);
            return self.findings.add(FindingKind::Sequence, SESSION, Some(record.offset), detail);
        }
        self.leaves.push((u64::from(wanted), record.leaf));
        self.next.1 += 1;
        if self.next.1 == batch.wanted.len() {
            self.close_batch();
        }
    }

    fn close_batch(&mut self) {
        let batch = &self.batches[self.next.0];
        let number = batch.statement.batch;
        let root = root_from_multi(batch.records(), &self.leaves, &batch.hashes);
        if root == Ok(batch.statement.root) {
            self.checked.batches += 1;
        } else {
            let detail = format!("the records and hashes of batch {number} do not lead to its root");
            self.findings.add(FindingKind::Root, SESSION, None, &detail);
            self.findings.add(FindingKind::Root, BATCHES, None, &detail);
        }
        self.leaves.clear();
        self.next = (self.next.0 + 1, 0);
    }

    /// End of the session.
    pub fn finish(mut self, expected: Option<&Expected>) -> Report {
        if self.next.0 < self.batches.len() {
            let number = self.batches[self.next.0].statement.batch;
            let detail = format!("records of batch {number} and later are missing");
            self.findings.add(FindingKind::Sequence, SESSION, None, detail);
        }
        if self.batches.is_empty() || self.checked.packets == 0 {
            self.findings.add(FindingKind::Missing, SESSION, None, "the bundle has no packet");
        }
        if !self.has_final {
            let detail = "the connection's last record is not here: its end is not proved";
            self.findings.add(FindingKind::Connection, SESSION, None, detail);
        }
        if let Some(expected) = expected {
            let size = self.log.size(&expected.origin).unwrap_or(0);
            let kind = match self.log.extends(expected) {
                Extension::Proved => None,
                _ if size < expected.size => Some(FindingKind::Older),
                Extension::Forked => Some(FindingKind::Fork),
                Extension::Unknown => Some(FindingKind::Unproved),
            };
            if let Some(kind) = kind {
                let detail = format!("log of size {size}, expected checkpoint of size {}", expected.size);
                self.findings.add(kind, BATCHES, None, detail);
            }
        }
        self.stamps.finish(&self.log, &mut self.findings, &mut self.checked);
        self.checked.log_size = self.log.size_max();
        self.findings.report(self.checked)
    }
}
