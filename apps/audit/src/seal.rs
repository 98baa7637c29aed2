//! `evergate-audit seal`: envelopes for connections of other terminators, from their key logs (RFC 9850).
//!
//! The facts of a connection come from the record: a key log has neither addresses nor the server's random. So a
//! connection must be recorded before its secrets are sealed. Secrets are in memory until then, and are erased behind
//! it; with `--erase` the file is overwritten, which a file system may undo.

use crate::cli::Failure;
use crate::lookup::RecordLookup;
use crate::store::Store;
use clap::Args;
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::connection_record::ConnectionRecord;
use evergate_evidence::deletion::unhex;
use evergate_evidence::envelope::Aad;
use evergate_evidence::epochs::EpochFile;
use evergate_evidence::feed::{FeedHello, FeedSender, FromFeed, ToFeed};
use evergate_evidence::merkle::{Hash, sha256};
use evergate_evidence::note::VerifyingKey;
use evergate_evidence::secrets::SecretList;
use evergate_player::key_log::KeyLog;
use evergate_seal::SealContext;
use evergate_submission::{FeedAddress, FeedChannel};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

const CHUNK_BYTES: usize = 64 << 10;
/// Most bytes of a line of a key log.
const LINE_BYTES_MAX: usize = 512;
/// Longest wait for the Recorder's acknowledgement: it gives one for each batch on its disk.
const FEED_LIMIT: Duration = Duration::from_secs(30);
/// Messages that wait for an acknowledgement at a time.
const WINDOW: usize = 1024;

/// Arguments of `seal`.
#[derive(Debug, Args)]
pub struct SealArgs {
    /// Key log: a file, or a FIFO that is read until its writers close it
    #[arg(long, value_name = "FILE")]
    keylog: PathBuf,
    /// Stores that have the connections
    #[arg(long, value_name = "DIR", required = true)]
    store: Vec<PathBuf>,
    /// Published keys of epochs
    #[arg(long, value_name = "FILE")]
    epochs: PathBuf,
    /// Key of the Master's log, which signed them
    #[arg(long, value_name = "VKEY")]
    log_key: String,
    /// Unix socket of a Recorder's feed
    #[arg(long, value_name = "SOCKET", required_unless_present = "out", conflicts_with = "out")]
    feed: Option<PathBuf>,
    /// File of envelopes, for `reveal --envelopes`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Id of the terminator in envelopes; the same one for the same key log otherwise
    #[arg(long, value_name = "HEX")]
    switch: Option<String>,
    /// Overwrite the key log once everything in it is sealed
    #[arg(long)]
    erase: bool,
}

/// Runs the command.
pub fn run(args: &SealArgs) -> Result<ExitCode, Failure> {
    let epochs = epochs(args)?;
    let switch = match &args.switch {
        Some(digits) => unhex(digits).ok_or_else(|| wrong("--switch has 64 hexadecimal digits"))?,
        None => sha256(args.keylog.as_os_str().as_encoded_bytes()),
    };
    let log = read(&args.keylog)?;
    let records = records(&args.store, &log)?;
    let (mut sealer, mut envelopes, mut left) = (Sealer::new(switch, &epochs), Vec::new(), 0);
    for random in log.client_randoms() {
        let secrets = log.get(&random).filter(|secrets| secrets.is_complete());
        let sealed = records.get(&random).zip(secrets).map(|(record, secrets)| sealer.seal(record, secrets));
        match sealed {
            Some(Ok(envelope)) => envelopes.push(envelope),
            Some(Err(reason)) => {
                eprintln!("evergate-audit: seal: a connection stays open: {reason}");
                left += 1;
            }
            None => left += 1,
        }
    }
    match (&args.feed, &args.out) {
        (Some(socket), _) => feed(socket, switch, &envelopes)?,
        (None, Some(path)) => write(path, &envelopes)?,
        (None, None) => {}
    }
    println!("{} sealed, {left} left", envelopes.len());
    if left > 0 {
        eprintln!(
            "evergate-audit: seal: {left} connections are not in the stores yet, or lack secrets; run it again later"
        );
        return Ok(ExitCode::from(crate::cli::FAILED));
    }
    if args.erase {
        erase(&args.keylog)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn wrong(what: impl std::fmt::Display) -> Failure {
    Failure::wrong(format!("seal: {what}"))
}

fn failed(what: impl std::fmt::Display) -> Failure {
    Failure::failed(format!("seal: {what}"))
}

fn epochs(args: &SealArgs) -> Result<EpochFile, Failure> {
    let file = args.epochs.display();
    let key = VerifyingKey::parse(&args.log_key).map_err(|error| wrong(format!("--log-key: {error}")))?;
    let bytes = std::fs::read(&args.epochs).map_err(|error| wrong(format!("cannot read {file}: {error}")))?;
    EpochFile::open(&bytes, &key, &EvidenceVerifier).map_err(|error| wrong(format!("{file}: {error}")))
}

/// Reads a key log to its end. What was read is erased; only the kept secrets stay.
fn read(path: &Path) -> Result<KeyLog, Failure> {
    let name = path.display();
    let mut file = File::open(path).map_err(|error| wrong(format!("cannot read {name}: {error}")))?;
    let mut log = KeyLog::default();
    let mut buffer = Zeroizing::new(vec![0; CHUNK_BYTES]);
    let (mut filled, mut number) = (0, 0_u64);
    loop {
        let len = file.read(&mut buffer[filled..]).map_err(|error| wrong(format!("{name}: {error}")))?;
        filled += len;
        let is_end = len == 0;
        let mut at = 0;
        while let Some(end) = buffer[at..filled].iter().position(|&byte| byte == b'\n') {
            number += 1;
            push(&mut log, &buffer[at..at + end], number, path)?;
            at += end + 1;
        }
        buffer.copy_within(at..filled, 0);
        filled -= at;
        if is_end {
            if filled > 0 {
                push(&mut log, &buffer[..filled], number + 1, path)?;
            }
            return Ok(log);
        }
        if filled > LINE_BYTES_MAX {
            return Err(wrong(format!("{name}: line {} is too long", number + 1)));
        }
    }
}

fn push(log: &mut KeyLog, line: &[u8], number: u64, path: &Path) -> Result<(), Failure> {
    log.add_line(line).map_err(|reason| wrong(format!("{}: line {number}: {reason}", path.display())))
}

/// Connection records of the key log's connections, by client random: the last one of each.
fn records(stores: &[PathBuf], log: &KeyLog) -> Result<BTreeMap<Hash, ConnectionRecord>, Failure> {
    let mut records = BTreeMap::new();
    for path in stores {
        records
            .extend(RecordLookup::open(&Store::at(path))?.connections(|random| log.get(random).is_some())?);
    }
    Ok(records)
}

/// Contexts of the epochs in use.
struct Sealer<'a> {
    switch: Hash,
    epochs: &'a EpochFile,
    contexts: BTreeMap<u64, SealContext>,
    sealed: u32,
}

impl Sealer<'_> {
    fn new(switch: Hash, epochs: &EpochFile) -> Sealer<'_> {
        Sealer { switch, epochs, contexts: BTreeMap::new(), sealed: 0 }
    }

    fn seal(&mut self, record: &ConnectionRecord, secrets: &SecretList) -> Result<Vec<u8>, String> {
        self.sealed += 1;
        let aad = Aad {
            switch: self.switch,
            connection: record.connection,
            born_ns: record.counts.first_ns,
            client: record.endpoints.client,
            local: record.endpoints.server,
            client_random: record.tls.client_random,
            server_random: record.tls.server_random,
            tls_version: record.tls.version,
            cipher_suite: record.tls.suite,
            feed_number: self.sealed,
            sni: &record.tls.sni,
        };
        let epoch = aad.epoch();
        if self.contexts.get(&epoch).is_none_or(|context| context.left() == 0) {
            let keys = self.epochs.get(epoch).ok_or(format!("no published keys of epoch {epoch}"))?;
            self.contexts.insert(epoch, SealContext::new(keys).map_err(|error| error.to_string())?);
        }
        let context = self.contexts.get_mut(&epoch).ok_or("no context")?;
        context.seal(&aad, secrets).map_err(|error| error.to_string())
    }
}

/// Hands envelopes to a Recorder and waits until they are on its disk.
fn feed(socket: &Path, switch: Hash, envelopes: &[Vec<u8>]) -> Result<(), Failure> {
    let lost = |error: &dyn std::fmt::Display| {
        failed(format!("feed {}: {error}; check that the Recorder runs with --feed", socket.display()))
    };
    let address = FeedAddress::Unix(socket.into());
    let mut channel = FeedChannel::connect(&address, FEED_LIMIT).map_err(|error| lost(&error))?;
    let sender = FeedSender { switch, run: crate::when::now_ns() };
    let hello = ToFeed::Hello(FeedHello { sender, next: 1 }).to_frame();
    channel.send(&hello).map_err(|error| lost(&error))?;
    let mut number = 0;
    for window in envelopes.chunks(WINDOW) {
        for envelope in window {
            number += 1;
            let frame = ToFeed::Envelope(number, envelope).to_frame();
            channel.send(&frame).map_err(|error| lost(&error))?;
        }
        wait(&mut channel, number).map_err(|error| lost(&error))?;
    }
    Ok(())
}

fn wait(channel: &mut FeedChannel, number: u64) -> Result<(), String> {
    let deadline = Instant::now() + FEED_LIMIT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let frame = channel.receive(left).map_err(|error| error.to_string())?;
        let frame = frame.ok_or_else(|| format!("no acknowledgement within {FEED_LIMIT:?}"))?;
        match FromFeed::decode(&frame).map_err(|error| error.to_string())? {
            FromFeed::Acknowledged(found) if found >= number => return Ok(()),
            FromFeed::Acknowledged(_) => {}
            FromFeed::Refused(text) => return Err(text),
        }
    }
}

/// Writes envelopes, each behind its length in 32 bits.
fn write(path: &Path, envelopes: &[Vec<u8>]) -> Result<(), Failure> {
    let write = || {
        let mut file = File::options().create(true).truncate(true).write(true).mode(0o600).open(path)?;
        for envelope in envelopes {
            file.write_all(&(envelope.len() as u32).to_be_bytes())?;
            file.write_all(envelope)?;
        }
        file.sync_all()
    };
    write().map_err(|error| failed(format!("cannot write {}: {error}", path.display())))
}

/// Overwrites a file with zeros and empties it. A FIFO has nothing left.
fn erase(path: &Path) -> Result<(), Failure> {
    let erase = || {
        let metadata = std::fs::metadata(path)?;
        if metadata.file_type().is_fifo() {
            return Ok(());
        }
        let mut file = File::options().write(true).open(path)?;
        std::io::copy(&mut std::io::repeat(0).take(metadata.len()), &mut file)?;
        file.sync_all()?;
        file.set_len(0)?;
        file.sync_all()
    };
    erase().map_err(|error: std::io::Error| failed(format!("cannot erase {}: {error}", path.display())))
}
