//! Stores from a seed: records, segments, statements, a log with a test key, and receipts.
#![allow(dead_code)] // each test program uses a part

pub(crate) mod mutate;
pub(crate) mod python;
pub(crate) mod records;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use evergate_audit::store::{Store, StoreInfo};
use evergate_crypto::LogKey;
use evergate_evidence::checkpoint::{Checkpoint, SignedCheckpoint};
use evergate_evidence::mark::{Mark, MarkKind, SegmentBegin, SegmentEnd};
use evergate_evidence::merkle::proof::inclusion_proof;
use evergate_evidence::merkle::{Hash, Tree, leaf_hash, root, sha256};
use evergate_evidence::note::{PublicKey, SignatureLine, VerifyingKey, cosigned_text};
use evergate_evidence::proof::Receipt;
use evergate_evidence::record::{Body, GapReason, Record};
use evergate_evidence::segment::SegmentEncoder;
use evergate_evidence::statement::{Counters, Partition, Span, Statement};
use evergate_evidence::verify::{EventReceipt, ReceiptFrame, RecordDigest};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Time of the first record in nanoseconds since 1970.
pub(crate) const BEGIN_NS: u64 = 1_795_000_000_000_000_000;
/// Origin of the test log.
pub(crate) const ORIGIN: &str = "audit.test/2026";

/// Whether tests that record may run. In CI none is skipped.
pub(crate) fn is_root(what: &str) -> bool {
    let is_root =
        std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !is_root {
        assert!(std::env::var_os("CI").is_none(), "in CI no test is skipped, and this one needs root");
        eprintln!("skipped tests {what}: they need root");
    }
    is_root
}

/// Random numbers from a seed (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

/// Whether other Recorders use the log of a store.
pub(crate) fn has_others(seed: u64) -> bool {
    seed % 2 == 1
}

/// Log with a test key: leaves of this Recorder, and of others.
pub(crate) struct TestLog {
    key: LogKey,
    name: VerifyingKey,
    /// Witness that signs every checkpoint as well.
    witness: Option<(Ed25519KeyPair, VerifyingKey)>,
    leaves: Vec<Hash>,
    random: Random,
    /// Whether other Recorders use the log.
    has_others: bool,
}

impl TestLog {
    pub(crate) fn new(seed: u64) -> TestLog {
        let key = LogKey::Ed25519(Ed25519KeyPair::from_seed_unchecked(&sha256(b"test log")).unwrap());
        let name = VerifyingKey::new(ORIGIN, key.public_key()).unwrap();
        let leaves = vec![leaf_hash(&[b"the Master started"])];
        TestLog { key, name, witness: None, leaves, random: Random(seed), has_others: has_others(seed) }
    }

    /// Signs with a new P-256 key, and with a witness.
    pub(crate) fn use_p256_and_witness(&mut self) {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
        self.key = LogKey::EcdsaP256(key);
        self.name = VerifyingKey::new(ORIGIN, self.key.public_key()).unwrap();
        let witness = Ed25519KeyPair::from_seed_unchecked(&sha256(b"test witness")).unwrap();
        let public = PublicKey::Cosignature(witness.public_key().as_ref().try_into().unwrap());
        self.witness = Some((witness, VerifyingKey::new("witness.test/w1", public).unwrap()));
    }

    /// Begins another history: its first entry differs.
    pub(crate) fn fork(&mut self) {
        self.leaves[0] = leaf_hash(&[b"the Master started again"]);
    }

    pub(crate) fn vkey(&self) -> String {
        self.name.to_vkey()
    }

    pub(crate) fn trust(&self) -> String {
        let witness = self.witness.as_ref().map(|(_, name)| name.to_vkey());
        match witness {
            None => format!("{{\"logs\":[\"{}\"]}}\n", self.vkey()),
            Some(witness) => format!(
                "{{\"logs\":[\"{}\"],\"witnesses\":[\"{witness}\"],\"witness_threshold\":1}}\n",
                self.vkey()
            ),
        }
    }

    /// Appends an entry of this Recorder, and sometimes entries of others before it.
    pub(crate) fn append(&mut self, leaf: Hash) -> u64 {
        for _ in 0..if self.has_others { self.random.below(3) } else { 0 } {
            let index = self.leaves.len() as u64;
            self.leaves.push(leaf_hash(&[b"another Recorder", &index.to_be_bytes()]));
        }
        self.leaves.push(leaf);
        self.leaves.len() as u64 - 1
    }

    pub(crate) fn checkpoint(&self) -> SignedCheckpoint {
        let (size, root) = (self.leaves.len() as u64, root(&self.leaves));
        let mut signed = SignedCheckpoint::new(Checkpoint { origin: ORIGIN.into(), size, root }).unwrap();
        let text = signed.note().text().to_owned();
        let signature = self.key.sign(text.as_bytes()).unwrap();
        signed.note_mut().sign(SignatureLine::of(&self.name, signature)).unwrap();
        if let Some((witness, name)) = &self.witness {
            let time_s = BEGIN_NS / 1_000_000_000;
            let signature = witness.sign(cosigned_text(time_s, &text).as_bytes());
            let line = [&time_s.to_be_bytes()[..], signature.as_ref()].concat();
            signed.note_mut().sign(SignatureLine::of(name, line)).unwrap();
        }
        signed
    }

    pub(crate) fn receipt(&self, index: u64) -> Vec<u8> {
        let path = inclusion_proof(&self.leaves[..], index, self.leaves.len() as u64).unwrap();
        Receipt { index, path, checkpoint: self.checkpoint() }.to_bytes()
    }
}

/// Writer of a store: records in, files out.
pub(crate) struct StoreWriter {
    pub(crate) store: Store,
    pub(crate) log: TestLog,
    pub(crate) seq: u64,
    pub(crate) time_ns: u64,
    recorder: Hash,
    segment: u64,
    encoder: SegmentEncoder,
    file: BufWriter<File>,
    block: Vec<u8>,
    scratch: Vec<u8>,
    batch: Batch,
    statements: Vec<Statement>,
    /// Batches that wait for a checkpoint: place in the log, segment, statement as logged.
    waiting: Vec<(u64, u64, Statement)>,
    pub(crate) counters: Counters,
}

#[derive(Default)]
struct Batch {
    tree: Tree,
    first_seq: u64,
    first_ns: u64,
    packets: u64,
    packet_bytes: u64,
    segment: u64,
}

impl StoreWriter {
    /// Writer of a new store, at the begin of its first segment.
    pub(crate) fn new(root: &Path, seed: u64) -> StoreWriter {
        let store = Store::at(root);
        store.create().unwrap();
        let file = BufWriter::new(File::create(store.segment(1)).unwrap());
        let mut writer = StoreWriter {
            store,
            log: TestLog::new(seed),
            seq: 0,
            time_ns: BEGIN_NS,
            recorder: sha256(b"test recorder"),
            segment: 1,
            encoder: SegmentEncoder::default(),
            file,
            block: Vec::new(),
            scratch: Vec::new(),
            batch: Batch::default(),
            statements: Vec::new(),
            waiting: Vec::new(),
            counters: Counters::default(),
        };
        writer.begin_segment();
        writer
    }

    fn hex(hash: &Hash) -> String {
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn begin_segment(&mut self) {
        let begin = SegmentBegin {
            filter: String::new(),
            interfaces: vec!["eth0".into()],
            link_type: 1,
            next_connection: 1,
            recorder: Self::hex(&self.recorder),
            segment: self.segment,
            snaplen: 0,
        };
        self.push(Body::Mark(Mark::new(MarkKind::SegmentBegins, &begin)));
    }

    /// Appends the record.
    pub(crate) fn push(&mut self, body: Body<'_>) {
        self.seq += 1;
        let record = Record { seq: self.seq, interface: 0, body };
        self.block.clear();
        self.encoder.push(&record, &mut self.block);
        self.file.write_all(&self.block).unwrap();
        let digest = RecordDigest::of(&record, 0, &mut self.scratch);
        if self.batch.tree.size() == 0 {
            self.batch = Batch { first_seq: self.seq, segment: self.segment, ..Batch::default() };
            self.batch.first_ns = self.time_ns;
        }
        self.batch.tree.push(digest.leaf);
        match &record.body {
            Body::Packet(packet) => {
                self.batch.packets += 1;
                self.batch.packet_bytes += packet.data.len() as u64;
                self.counters.written += 1;
                self.counters.seen += 1;
            }
            Body::Gap(gap) if gap.reason == GapReason::Ring => {
                self.counters.dropped += gap.count;
                self.counters.seen += gap.count;
            }
            _ => {}
        }
        self.counters.if_rx = self.counters.seen;
    }

    pub(crate) fn end_segment(&mut self) {
        let end = SegmentEnd {
            dropped: self.counters.dropped,
            missed: 0,
            received: self.counters.if_rx,
            time_ns: self.time_ns.to_string(),
        };
        self.push(Body::Mark(Mark::new(MarkKind::SegmentEnds, &end)));
        self.file.flush().unwrap();
    }

    /// Begins the next segment with a batch of its own, as a Recorder does that starts again.
    pub(crate) fn restart(&mut self) {
        self.end_segment();
        self.end_batch();
        self.sign();
        self.begin_next();
    }

    pub(crate) fn rotate(&mut self) {
        self.end_segment();
        self.begin_next();
    }

    fn begin_next(&mut self) {
        self.segment += 1;
        self.encoder = SegmentEncoder::default();
        self.file = BufWriter::new(File::create(self.store.segment(self.segment)).unwrap());
        self.begin_segment();
    }

    /// Ends the batch, if it has records, and logs its statement.
    pub(crate) fn end_batch(&mut self) {
        if self.batch.tree.size() == 0 {
            return;
        }
        let batch = std::mem::take(&mut self.batch);
        let mut statement = Statement {
            received_ms: 0,
            recorder: self.recorder,
            batch: self.statements.len() as u64 + 1,
            span: Span {
                first_seq: batch.first_seq,
                last_seq: self.seq,
                first_ns: batch.first_ns,
                last_ns: self.time_ns,
            },
            packets: batch.packets,
            packet_bytes: batch.packet_bytes,
            root: batch.tree.root(),
            previous: self.statements.last().map_or([0; 32], Statement::link),
            counters: self.counters,
            partition: Partition { part: 0, parts: 1 },
            emergency_ms: 0,
        };
        self.statements.push(statement.clone());
        statement.received_ms = self.time_ns / 1_000_000 + 3;
        let index = self.log.append(statement.leaf());
        self.waiting.push((index, batch.segment, statement));
    }

    /// Signs a checkpoint and hands out the receipts that wait for it.
    pub(crate) fn sign(&mut self) {
        for (index, segment, statement) in std::mem::take(&mut self.waiting) {
            self.append_receipt(
                segment,
                ReceiptFrame { statement: &statement.encode(), proof: &self.log.receipt(index) },
            );
        }
        std::fs::write(self.store.checkpoint(), self.log.checkpoint().to_bytes()).unwrap();
    }

    fn append_receipt(&self, segment: u64, frame: ReceiptFrame<'_>) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        let path = self.store.proofs(segment);
        File::options().create(true).append(true).open(path).unwrap().write_all(&bytes).unwrap();
    }

    /// Writes statements and description. The store is whole after it.
    pub(crate) fn finish(mut self) -> Built {
        self.end_batch();
        self.sign();
        self.file.flush().unwrap();
        let statements: Vec<u8> = self.statements.iter().flat_map(|statement| statement.encode()).collect();
        std::fs::write(self.store.statements(), statements).unwrap();
        let mut info = StoreInfo::new(Self::hex(&self.recorder), 0, 1);
        info.installation = ORIGIN.into();
        self.store.set_info(&info).unwrap();
        Built { root: self.store.root().to_owned(), trust: self.log.trust(), last_segment: self.segment }
    }

    /// Logs a change of hold 1 as statement `number`, and stores its receipt.
    pub(crate) fn hold(&mut self, number: u64, is_set: bool, (from_ns, to_ns): (u64, u64), query: &str) {
        use evergate_evidence::entry::{Entry, Event, Hold};
        let (recorder, query, reason) = (self.recorder, query.to_owned(), "a: case".to_owned());
        let hold = Hold { is_set, recorder, hold: 1, from_ns, to_ns, query, reason };
        let entry = Entry::Event(self.time_ns / 1_000_000, Event::Hold(hold));
        self.store_event(&format!("hold-{number:010}"), &entry);
    }

    /// Logs an event, and stores its receipt.
    fn store_event(&mut self, name: &str, entry: &evergate_evidence::entry::Entry) {
        let index = self.log.append(entry.leaf());
        let mut receipt = Vec::new();
        EventReceipt { entry: &entry.encode(), proof: &self.log.receipt(index) }.encode(&mut receipt);
        let outbox = self.store.root().join("outbox");
        std::fs::create_dir_all(&outbox).unwrap();
        std::fs::write(outbox.join(format!("{name}.receipt")), receipt).unwrap();
    }

    /// Deletes a segment as `expire` does: the log's entry, its receipt, its declaration, then the file.
    pub(crate) fn delete(&mut self, number: u64, first_seq: u64, last_seq: u64) {
        use evergate_evidence::entry::{Deletion, Entry, Event};
        let path = self.store.segment(number);
        let content = std::fs::read(&path).unwrap();
        let (bytes, sha256) = (content.len() as u64, sha256(&content));
        let recorder = self.recorder;
        let rule = "older than 1 day".to_owned();
        let deletion = Deletion { recorder, segment: number, bytes, sha256, first_seq, last_seq, rule };
        let json = evergate_evidence::deletion::to_json(&deletion);
        let entry = Entry::Event(self.time_ns / 1_000_000, Event::Deletion(deletion));
        self.store_event(&format!("deletion-{number:010}"), &entry);
        std::fs::write(self.store.root().join(format!("segments/{number:010}.deleted.json")), json).unwrap();
        std::fs::remove_file(path).unwrap();
    }
}

/// A store on disk.
#[derive(Clone, Debug)]
pub(crate) struct Built {
    pub(crate) root: PathBuf,
    pub(crate) trust: String,
    pub(crate) last_segment: u64,
}

/// Folder for the files of a test; removed at its end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("evergate-audit-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Report on a folder, with two threads.
pub(crate) fn verify(
    folder: &Path,
    trust: &Path,
    expected: Option<&Path>,
) -> Result<evergate_evidence::verify::Report, String> {
    verify_with(folder, trust, expected, 2)
}

/// Report on a folder.
pub(crate) fn verify_with(
    folder: &Path,
    trust: &Path,
    expected: Option<&Path>,
    threads: usize,
) -> Result<evergate_evidence::verify::Report, String> {
    let args = evergate_audit::verify::VerifyArgs {
        folder: folder.to_owned(),
        trust: trust.to_owned(),
        expect_checkpoint: expected.map(Path::to_owned),
        timestamps: None,
        memory: 64,
        threads,
        json: false,
    };
    evergate_audit::verify::report(&args).map_err(|failure| failure.message)
}
