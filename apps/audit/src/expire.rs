//! `evergate-audit expire`: deletes the oldest segments that no hold needs, exactly as many as the limits ask for.
//!
//! Order on disk for each segment: `N.deleted.json`, the log entry in the outbox, then the file is removed. A run that
//! was interrupted is completed by the next one.

use crate::cli::{FAILED, Failure};
use crate::holds::{HoldFile, covers};
use crate::index::{IndexedSegment, SegmentTable, catch_up};
use crate::outbox;
use crate::output::{print_json, shown_bytes};
use crate::progress::Progress;
use crate::store::{Store, StoreInfo, replace_file, sync_folder};
use crate::test_points::{Step, reached};
use crate::when;
use evergate_base::terminal::shown;
use evergate_evidence::deletion;
use evergate_evidence::entry::Deletion;
use evergate_evidence::merkle::Hash;
use evergate_evidence::retention::{HoldCover, Limits, Plan, Reason, SegmentState, Shortage, Verdict, plan};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `expire`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code 1: holds, or segments without known times, keep the store over --max-bytes."
)]
pub struct Args {
    /// Folder of the store
    dir: PathBuf,
    /// Most bytes of all segments; K, M, G and T are powers of 1,000
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    max_bytes: Option<u64>,
    /// Most days since the last record of a segment
    #[arg(long, value_name = "DAYS")]
    max_days: Option<u64>,
    /// Copy each segment and its receipts to file:///PATH or s3://BUCKET/PREFIX before it is deleted
    #[cfg(feature = "object-store")]
    #[arg(long, value_name = "URL")]
    tier: Option<String>,
    /// Show what would be deleted, and delete nothing
    #[arg(long)]
    dry_run: bool,
    /// Result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.max_bytes.is_none() && args.max_days.is_none() {
        return Err(Failure::wrong(
            "expire: give --max-bytes, --max-days or both; nothing is deleted without a limit",
        ));
    }
    let store = Store::at(&args.dir);
    let info = store.require()?;
    let _lock = store.lock_for_maintenance()?;
    let holds = HoldFile::read(&store)?;
    let expiry = Expiry {
        #[cfg(feature = "object-store")]
        tier: args.tier.as_ref().map(|url| crate::tier::Tier::open(url, &info.recorder)).transpose()?,
        ..Expiry::open(&store, &info)?
    };
    let covers = covers(&store, &holds.in_force())?;
    if !args.dry_run {
        holds.complete_outbox(&store, &info)?;
        expiry.complete_interrupted(&covers)?;
    }
    let limits = Limits { bytes_max: args.max_bytes, days_max: args.max_days, shortage: None };
    let plan = plan(expiry.segments()?, &covers, limits, when::now_ns());
    if !args.dry_run {
        expiry.delete(&plan)?;
    }
    if args.json {
        print_json(&to_json(&plan, args.dry_run))?
    } else {
        print(&plan, args.dry_run)
    }
    if plan.bytes_over == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!(
        "expire: the store stays {} over its limit: no other segment may go",
        shown_bytes(plan.bytes_over)
    );
    Ok(ExitCode::from(FAILED))
}

/// What [`free`] deleted.
pub(crate) struct Freed {
    pub(crate) segments: u64,
    pub(crate) bytes: u64,
}

/// Deletes the oldest segments that no hold needs, as many as the disk lacks.
pub(crate) fn free(store: &Store, shortage: Shortage) -> Result<Freed, Failure> {
    let info = store.require()?;
    let _lock = store.lock_for_maintenance()?;
    let holds = HoldFile::read(store)?;
    let expiry = Expiry::open(store, &info)?;
    let covers = covers(store, &holds.in_force())?;
    holds.complete_outbox(store, &info)?;
    expiry.complete_interrupted(&covers)?;
    let limits = Limits { shortage: Some(shortage), ..Limits::default() };
    let plan = plan(expiry.segments()?, &covers, limits, when::now_ns());
    expiry.delete(&plan)?;
    let is_deleted = |(_, verdict): &&(SegmentState, Verdict)| matches!(verdict, Verdict::Delete(_));
    let segments = plan.verdicts.iter().filter(is_deleted).count() as u64;
    Ok(Freed { segments, bytes: plan.bytes_before - plan.bytes_after })
}

struct Expiry<'a> {
    store: &'a Store,
    recorder: Hash,
    /// Segments of the index.
    rows: BTreeMap<u64, IndexedSegment>,
    #[cfg(feature = "object-store")]
    tier: Option<crate::tier::Tier>,
}

impl<'a> Expiry<'a> {
    fn open(store: &'a Store, info: &StoreInfo) -> Result<Expiry<'a>, Failure> {
        Ok(Expiry {
            store,
            recorder: recorder(info)?,
            rows: read_rows(store)?,
            #[cfg(feature = "object-store")]
            tier: None,
        })
    }

    /// Segments of the store. The last one may be open.
    fn segments(&self) -> Result<Vec<SegmentState>, Failure> {
        let files =
            self.store.segments().map_err(|error| failure(&self.store.root().join("segments"), &error))?;
        let last = files.last().map(|file| file.number);
        let state = |file: &crate::store::SegmentPath| SegmentState {
            number: file.number,
            bytes: file.bytes,
            times_ns: self
                .rows
                .get(&file.number)
                .filter(|row| row.is_complete)
                .and_then(|row| row.row.times_ns),
            is_open: Some(file.number) == last,
        };
        Ok(files.iter().map(state).collect())
    }

    /// Removes the files of segments whose deletion is stated. A hold that was set since then keeps the file; a run
    /// after its end removes it.
    fn complete_interrupted(&self, covers: &[HoldCover]) -> Result<(), Failure> {
        let path = self.store.root().join("segments");
        let states = self.segments()?;
        for number in self.store.deleted_segments().map_err(|error| failure(&path, &error))? {
            let path = self.store.deleted(number);
            let Some(state) = states.iter().find(|state| state.number == number) else { continue };
            if let Some(hold) = held(state, covers) {
                eprintln!(
                    "expire: segment {number:010} stays, although its deletion is stated: {}",
                    shown(&hold)
                );
                continue;
            }
            let json = std::fs::read(&path).map_err(|error| failure(&path, &error))?;
            let stated =
                deletion::from_json(&json).ok_or_else(|| failure(&path, &"the statement is damaged"))?;
            let (bytes, sha256) =
                digest(&self.store.segment(number), &mut Progress::new("digest", stated.bytes))?;
            if (stated.segment, stated.bytes, stated.sha256) != (number, bytes, sha256) {
                return Err(failure(
                    &path,
                    &"it states another content of its segment; run `evergate-audit verify`",
                ));
            }
            self.remove(&stated)?;
        }
        Ok(())
    }

    fn delete(&self, plan: &Plan) -> Result<(), Failure> {
        let deleted: Vec<_> = plan
            .verdicts
            .iter()
            .filter_map(|(segment, verdict)| match verdict {
                Verdict::Delete(rule) => Some((segment, rule)),
                Verdict::Keep(_) => None,
            })
            .collect();
        let mut progress = Progress::new("digest", deleted.iter().map(|(segment, _)| segment.bytes).sum());
        for (segment, rule) in deleted {
            let Some(row) = self.rows.get(&segment.number).map(|indexed| indexed.row) else { continue };
            let (bytes, sha256) = digest(&self.store.segment(segment.number), &mut progress)?;
            let copied = self.copy(segment.number, bytes, &sha256)?;
            let deletion = Deletion {
                recorder: self.recorder,
                segment: segment.number,
                bytes,
                sha256,
                first_seq: row.first_seq,
                last_seq: row.last_seq,
                rule: format!("{rule}{copied}"),
            };
            let path = self.store.deleted(segment.number);
            replace_file(&path, deletion::to_json(&deletion).as_bytes())
                .map_err(|error| failure(&path, &error))?;
            reached(Step::DeletionStated);
            self.remove(&deletion)?;
        }
        Ok(())
    }

    /// Copies a segment and its receipts to the tier. Answers words for the rule.
    #[cfg(feature = "object-store")]
    fn copy(&self, number: u64, bytes: u64, sha256: &Hash) -> Result<String, Failure> {
        let Some(tier) = &self.tier else { return Ok(String::new()) };
        let proofs = self.store.proofs(number);
        if proofs.exists() {
            let (bytes, sha256) = digest(&proofs, &mut Progress::new("digest", 0))?;
            tier.put(&format!("segments/{number:010}.proofs"), &proofs, bytes, &deletion::hex(&sha256))?;
        }
        let name = format!("segments/{number:010}.pcapng");
        tier.put(&name, &self.store.segment(number), bytes, &deletion::hex(sha256))?;
        Ok(format!("; copied to {}", tier.url()))
    }

    #[cfg(not(feature = "object-store"))]
    #[allow(clippy::unnecessary_wraps, reason = "one form with and without the feature")]
    fn copy(&self, _: u64, _: u64, _: &Hash) -> Result<String, Failure> {
        Ok(String::new())
    }

    /// Puts the entry into the outbox, then removes the file.
    fn remove(&self, deletion: &Deletion) -> Result<(), Failure> {
        let name = format!("deletion-{:010}", deletion.segment);
        outbox::put(self.store, &name, &deletion::entry(deletion))
            .map_err(|error| failure(&self.store.outbox(), &error))?;
        let path = self.store.segment(deletion.segment);
        let removed = std::fs::remove_file(&path).and_then(|()| sync_folder(&path));
        removed.map_err(|error| failure(&path, &error))?;
        reached(Step::SegmentRemoved);
        Ok(())
    }
}

/// Reason for which a hold keeps a segment.
fn held(state: &SegmentState, covers: &[HoldCover]) -> Option<String> {
    let limits = Limits { bytes_max: Some(0), ..Limits::default() };
    let plan = plan(vec![SegmentState { is_open: false, ..*state }], covers, limits, when::now_ns());
    plan.verdicts.into_iter().find_map(|(_, verdict)| match verdict {
        Verdict::Keep(reason @ (Reason::Held(_) | Reason::MaybeHeld(_))) => Some(reason.to_string()),
        _ => None,
    })
}

/// Rows of the segments. Segments that the index lacks are read first.
fn read_rows(store: &Store) -> Result<BTreeMap<u64, IndexedSegment>, Failure> {
    for damaged in catch_up(store)?.damaged {
        eprintln!("expire: {}", shown(&damaged.to_string()));
    }
    let rows = SegmentTable::open(store)?.all()?;
    Ok(rows.into_iter().map(|segment| (segment.row.number, segment)).collect())
}

fn recorder(info: &StoreInfo) -> Result<Hash, Failure> {
    deletion::unhex(&info.recorder).ok_or_else(|| {
        Failure::wrong(format!("store: {:?} in store.json is no id of a Recorder", info.recorder))
    })
}

/// Length and SHA-256 of a file.
pub(crate) fn digest(path: &Path, progress: &mut Progress) -> Result<(u64, Hash), Failure> {
    let mut file = File::open(path).map_err(|error| failure(path, &error))?;
    let (mut hash, mut buffer, mut total) = (Sha256::new(), vec![0; 1 << 20], 0);
    loop {
        match file.read(&mut buffer).map_err(|error| failure(path, &error))? {
            0 => return Ok((total, hash.finalize().into())),
            bytes => {
                hash.update(&buffer[..bytes]);
                total += bytes as u64;
                progress.add(bytes as u64);
            }
        }
    }
}

fn failure(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::wrong(format!("expire: {}: {error}", path.display()))
}

fn to_json(plan: &Plan, is_dry: bool) -> Value {
    let segments: Vec<Value> = plan
        .verdicts
        .iter()
        .map(|(segment, verdict)| {
            let (action, reason) = words(verdict);
            json!({
                "segment": segment.number, "bytes": segment.bytes, "action": action, "reason": reason,
                "first": segment.times_ns.map(|(first, _)| when::shown_ns(first)),
                "last": segment.times_ns.map(|(_, last)| when::shown_ns(last)),
            })
        })
        .collect();
    json!({
        "segments": segments, "bytes_before": plan.bytes_before, "bytes_after": plan.bytes_after,
        "bytes_over": plan.bytes_over, "dry_run": is_dry,
    })
}

fn words(verdict: &Verdict) -> (&'static str, String) {
    match verdict {
        Verdict::Delete(rule) => ("delete", rule.to_string()),
        Verdict::Keep(reason) => ("keep", reason.to_string()),
    }
}

fn print(plan: &Plan, is_dry: bool) {
    for (segment, verdict) in &plan.verdicts {
        let (action, reason) = words(verdict);
        let last =
            segment.times_ns.map_or_else(|| "unknown time".into(), |(_, last)| when::shown_short(last));
        println!(
            "{:010}  {:>9}  until {last}  {action}: {reason}",
            segment.number,
            shown_bytes(segment.bytes)
        );
    }
    let would = if is_dry { "would be" } else { "are" };
    println!("{} {would} left of {}", shown_bytes(plan.bytes_after), shown_bytes(plan.bytes_before));
}

/// `500G`, `1500000`.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T', 'k']);
    let factor = match &text[digits.len()..] {
        "" => 1,
        "K" | "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        _ => return Err(format!("{text:?} is no number of bytes: write 1500000, 200M, 1T")),
    };
    let number: u64 =
        digits.parse().map_err(|_| format!("{text:?} is no number of bytes: write 1500000, 200M, 1T"))?;
    number.checked_mul(factor).ok_or_else(|| format!("{text:?} is too large"))
}
