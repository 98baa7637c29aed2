//! Reader of a store for its verification: files in order, in bounded memory.

use super::segment_digests::{Part, SegmentDigests};
use super::{VerifyArgs, exhausted, read_bounded, timestamps, unreadable};
use crate::cli::Failure;
use crate::progress::Progress;
use crate::segment_file::FileError;
use crate::store::{Store, StoreInfo};
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::checkpoint::SignedCheckpoint;
use evergate_evidence::merkle::Hash;
use evergate_evidence::note::NOTE_BYTES_MAX;
use evergate_evidence::statement::{STATEMENT_BYTES, Statement};
use evergate_evidence::verify::{
    DELETION_BYTES_MAX, Expected, FindingKind, Findings, RECEIPT_BYTES_MAX, Report, StoreFacts,
    StreamVerifier, Trust,
};
use rustix::fs::{FlockOperation, flock};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;

const STORE_INFO_BYTES_MAX: u64 = 64 << 10;

/// Files of one segment.
#[derive(Debug, Default)]
struct Files {
    has_segment: bool,
    has_proofs: bool,
    has_deletion: bool,
}

type Verifier<'a> = StreamVerifier<'a, StatementFile<'a>>;

/// Verifies a store.
pub(super) fn verify(
    args: &VerifyArgs,
    trust: &Trust,
    expected: Option<&Expected>,
) -> Result<Report, Failure> {
    let store = Store::at(&args.folder);
    let is_live = is_live(&args.folder);
    // A running Recorder appends records, then a statement, then its receipt: lengths are taken the other way round.
    let proofs_limit = last_proofs_bytes(&store);
    let fault = RefCell::new(None);
    let statements = StatementFile::open(&store.statements(), &fault)?;
    let trailing = statements.trailing;
    let mut early = Findings::default();
    let layout = layout(&store, &mut early)?;
    let facts = facts(&store)?;
    let memory = args.memory as usize * (1 << 20);
    let is_info_valid = facts.is_valid;
    let mut verifier =
        StreamVerifier::new((trust, &EvidenceVerifier), facts.facts, statements, is_live, memory / 4);
    *verifier.findings() = early;
    if let Err(detail) = is_info_valid {
        verifier.findings().add(FindingKind::Description, "store.json", None, detail);
    }
    if trailing > 0 && !is_live {
        let detail = format!("{trailing} bytes behind the last statement");
        verifier.findings().add(FindingKind::Statement, "statements", None, detail);
    }
    read_outbox(&store, &mut verifier)?;
    timestamps::read(args, trust, |stamp, tokens| verifier.on_stamp(stamp, tokens))?
        .warn(verifier.findings());
    read_segments(args, &store, &layout, (proofs_limit, is_live), &mut verifier)?;
    if let Some(error) = fault.take() {
        return Err(unreadable(&store.statements(), &error));
    }
    if verifier.is_exhausted() {
        return Err(exhausted(args.memory));
    }
    let checkpoint = match read_bounded(&store.checkpoint(), NOTE_BYTES_MAX as u64) {
        Ok(checkpoint) => Some(checkpoint),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) if error.kind() == ErrorKind::FileTooLarge => Some(Vec::new()), // no checkpoint is as long
        Err(error) => return Err(unreadable(&store.checkpoint(), &error)),
    };
    Ok(verifier.finish(checkpoint.as_deref(), expected))
}

/// Whether a Recorder holds the lock of the store.
fn is_live(root: &Path) -> bool {
    let Ok(file) = File::open(root.join("lock")) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared).is_err()
}

fn last_proofs_bytes(store: &Store) -> Option<(u64, u64)> {
    let number = store.segments().ok()?.last()?.number;
    let bytes = std::fs::metadata(store.proofs(number)).map_or(0, |metadata| metadata.len());
    Some((number, bytes))
}

/// Segments of the store, and a warning for each file that is no part of the layout.
fn layout(store: &Store, findings: &mut Findings) -> Result<BTreeMap<u64, Files>, Failure> {
    let folder = store.root().join("segments");
    let mut layout: BTreeMap<u64, Files> = BTreeMap::new();
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            findings.add(FindingKind::Missing, "segments", None, "the store has no segments");
            return Ok(layout);
        }
        Err(error) => return Err(unreadable(&folder, &error)),
    };
    for entry in entries {
        let name = entry.map_err(|error| unreadable(&folder, &error))?.file_name();
        let name = name.to_string_lossy();
        let number = name.get(..10).and_then(|digits| digits.parse().ok()).filter(|number| *number > 0);
        let suffix = name.get(10..).unwrap_or_default();
        match (number, suffix) {
            (Some(number), ".pcapng") => layout.entry(number).or_default().has_segment = true,
            (Some(number), ".proofs") => layout.entry(number).or_default().has_proofs = true,
            (Some(number), ".deleted.json") => layout.entry(number).or_default().has_deletion = true,
            _ => {
                findings.warn(FindingKind::UnknownFile, &format!("segments/{name}"), "no part of a store");
            }
        }
    }
    if layout.is_empty() {
        findings.add(FindingKind::Missing, "segments", None, "the store has no segments");
    }
    Ok(layout)
}

struct Facts {
    facts: StoreFacts,
    is_valid: Result<(), String>,
}

/// Content of `store.json`. Where it is damaged, the first statement and the checkpoint give the facts.
fn facts(store: &Store) -> Result<Facts, Failure> {
    let path = store.root().join("store.json");
    let text = match read_bounded(&path, STORE_INFO_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::FileTooLarge) => {
            return Ok(Facts { facts: other_facts(store), is_valid: Err(error.to_string()) });
        }
        Err(error) => return Err(unreadable(&path, &error)),
    };
    let parsed = parse_info(&text);
    Ok(match parsed {
        Ok(facts) => Facts { facts, is_valid: Ok(()) },
        Err(error) => Facts { facts: other_facts(store), is_valid: Err(error) },
    })
}

fn parse_info(text: &[u8]) -> Result<StoreFacts, String> {
    let info: StoreInfo = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let new = StoreInfo::new(info.recorder.clone(), info.part, info.parts);
    if (&info.format, info.version) != (&new.format, new.version) {
        return Err("unknown format or version".into());
    }
    let mut canonical = serde_json::to_vec(&info).map_err(|error| error.to_string())?;
    canonical.push(b'\n');
    if canonical != text {
        return Err("it has another form than a Recorder writes".into());
    }
    let recorder = hash(&info.recorder).ok_or("recorder is no id")?;
    Ok(StoreFacts { recorder, installation: info.installation, part: info.part, parts: info.parts })
}

fn other_facts(store: &Store) -> StoreFacts {
    let mut first = [0; STATEMENT_BYTES];
    let read = File::open(store.statements()).and_then(|mut file| file.read_exact(&mut first));
    let statement = read.ok().and_then(|()| Statement::decode(&first).ok());
    let checkpoint = read_bounded(&store.checkpoint(), NOTE_BYTES_MAX as u64).ok();
    let checkpoint = checkpoint.and_then(|bytes| SignedCheckpoint::parse(&bytes).ok());
    StoreFacts {
        recorder: statement.as_ref().map_or([0; 32], |statement| statement.recorder),
        installation: checkpoint.map(|signed| signed.checkpoint().origin.clone()).unwrap_or_default(),
        part: statement.as_ref().map_or(0, |statement| statement.partition.part),
        parts: statement.as_ref().map_or(1, |statement| statement.partition.parts),
    }
}

/// Hash from 64 hexadecimal digits in lower case.
pub(super) fn hash(text: &str) -> Option<Hash> {
    let mut hash = [0; 32];
    let digits = text.as_bytes();
    if digits.len() != 64 || digits.iter().any(|digit| !matches!(digit, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(hash)
}

fn read_segments(
    args: &VerifyArgs,
    store: &Store,
    layout: &BTreeMap<u64, Files>,
    (proofs_limit, is_live): (Option<(u64, u64)>, bool),
    verifier: &mut Verifier<'_>,
) -> Result<(), Failure> {
    let present = layout.iter().filter(|(_, files)| files.has_segment);
    let paths: Vec<PathBuf> = present.map(|(number, _)| store.segment(*number)).collect();
    let bytes: u64 = paths.iter().map(|path| std::fs::metadata(path).map_or(0, |file| file.len())).sum();
    let mut progress = Progress::new("verify", bytes);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if args.threads == 0 { cores } else { args.threads }.min(paths.len()).clamp(1, 256);
    let (next, mut index) = (AtomicUsize::new(0), 0);
    let last = layout.keys().next_back().copied();
    std::thread::scope(|scope| {
        let memory = args.memory as usize * (1 << 19);
        let mut digests = SegmentDigests::start(scope, &paths, &next, threads, memory);
        for (&number, files) in layout {
            verifier.begin_segment(number);
            if files.has_proofs {
                let limit = proofs_limit.filter(|(last, _)| is_live && number >= *last);
                let limit = limit.map(|(last, bytes)| if number == last { bytes } else { 0 });
                read_receipts(&store.proofs(number), limit, verifier)?;
            }
            if files.has_segment {
                let mut parts = digests.parts(index);
                read_records(&mut parts, &paths[index], last == Some(number), &mut progress, verifier)?;
                index += 1;
            } else if files.has_deletion {
                read_deletion(store, number, verifier)?;
            } else {
                verifier.on_missing();
            }
            if verifier.is_exhausted() {
                break;
            }
        }
        Ok(())
    })
}

fn read_records(
    parts: &mut impl Iterator<Item = Part>,
    path: &Path,
    is_last: bool,
    progress: &mut Progress,
    verifier: &mut Verifier<'_>,
) -> Result<(), Failure> {
    let mut done = 0;
    for part in parts {
        match part {
            Part::Records(records, end) => {
                verifier.on_records(&records);
                progress.add(end - done);
                done = end;
            }
            Part::Fault(FileError::Io(error)) => return Err(unreadable(path, &error)),
            Part::Fault(FileError::Content { offset, error }) => {
                verifier.on_segment_fault(offset, false, is_last, &error.to_string());
            }
            Part::Fault(FileError::Torn { offset }) => {
                verifier.on_segment_fault(offset, true, is_last, "the file ends within a block");
            }
        }
    }
    verifier.finish_segment();
    Ok(())
}

/// Feeds the receipts of deletions and holds.
fn read_outbox(store: &Store, verifier: &mut Verifier<'_>) -> Result<(), Failure> {
    let folder = store.root().join("outbox");
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unreadable(&folder, &error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(|error| unreadable(&folder, &error))?.file_name();
        names.extend(name.to_str().filter(|name| name.ends_with(".receipt")).map(str::to_owned));
    }
    names.sort_unstable();
    for name in names {
        let path = folder.join(&name);
        let content = match read_bounded(&path, RECEIPT_BYTES_MAX as u64) {
            Err(error) if error.kind() == ErrorKind::FileTooLarge => Vec::new(), // no receipt is as long
            content => content.map_err(|error| unreadable(&path, &error))?,
        };
        verifier.on_event_receipt(&content, &format!("outbox/{name}"));
    }
    Ok(())
}

fn read_deletion(store: &Store, number: u64, verifier: &mut Verifier<'_>) -> Result<(), Failure> {
    let name = format!("segments/{number:010}.deleted.json");
    let path = store.root().join(&name);
    match read_bounded(&path, DELETION_BYTES_MAX as u64) {
        Ok(content) => verifier.on_deleted(&content, &name),
        Err(error) if error.kind() == ErrorKind::FileTooLarge => verifier.on_deleted(&[], &name),
        Err(error) => return Err(unreadable(&path, &error)),
    }
    Ok(())
}

/// Feeds the frames of a `.proofs` file, up to `limit` bytes of it.
fn read_receipts(path: &Path, limit: Option<u64>, verifier: &mut Verifier<'_>) -> Result<(), Failure> {
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    let mut file = BufReader::new(file.take(limit.unwrap_or(u64::MAX)));
    let (mut offset, mut frame) = (0, Vec::new());
    loop {
        let mut length = [0; 4];
        match read_full(&mut file, &mut length).map_err(|error| unreadable(path, &error))? {
            0 => return Ok(()),
            4 => {}
            _ => return finish_torn(offset, limit, verifier),
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > RECEIPT_BYTES_MAX {
            verifier.on_receipt_fault(offset, "frame is longer than a receipt");
            return Ok(());
        }
        frame.resize(length, 0);
        if read_full(&mut file, &mut frame).map_err(|error| unreadable(path, &error))? < length {
            return finish_torn(offset, limit, verifier);
        }
        verifier.on_receipt(&frame, offset);
        offset += 4 + length as u64;
    }
}

/// The file ends within a frame. A running Recorder may be about to write the rest.
fn finish_torn(offset: u64, limit: Option<u64>, verifier: &mut Verifier<'_>) -> Result<(), Failure> {
    if limit.is_none() {
        verifier.on_receipt_fault(offset, "the file ends within a frame");
    }
    Ok(())
}

/// Fills the buffer as far as the file has bytes.
fn read_full(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Statements of the store in order, up to the length that the file had at the beginning.
struct StatementFile<'a> {
    file: Option<io::Take<BufReader<File>>>,
    /// Bytes behind the last whole statement.
    trailing: u64,
    fault: &'a RefCell<Option<io::Error>>,
}

impl<'a> StatementFile<'a> {
    fn open(path: &Path, fault: &'a RefCell<Option<io::Error>>) -> Result<StatementFile<'a>, Failure> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(StatementFile { file: None, trailing: 0, fault });
            }
            Err(error) => return Err(unreadable(path, &error)),
        };
        let bytes = file.metadata().map_err(|error| unreadable(path, &error))?.len();
        let trailing = bytes % STATEMENT_BYTES as u64;
        let file = BufReader::new(file).take(bytes - trailing);
        Ok(StatementFile { file: Some(file), trailing, fault })
    }
}

impl Iterator for StatementFile<'_> {
    type Item = [u8; STATEMENT_BYTES];

    fn next(&mut self) -> Option<[u8; STATEMENT_BYTES]> {
        let mut statement = [0; STATEMENT_BYTES];
        match read_full(self.file.as_mut()?, &mut statement) {
            Ok(STATEMENT_BYTES) => Some(statement),
            Ok(_) => None,
            Err(error) => {
                *self.fault.borrow_mut() = Some(error);
                None
            }
        }
    }
}
