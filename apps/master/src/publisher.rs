//! The thread that signs the newest head, makes the checkpoint durable and answers with receipts.
//!
//! It signs only a head whose root it computed from tiles itself, and only if the tree of the last checkpoint is the
//! beginning of that head's tree. A signature that fails is tried again each second; answers wait.

use crate::checkpoint_file::CheckpointFile;
use crate::config::RECORDERS_MAX;
use crate::disclosures::Place;
use crate::escrow::{Asked, Job, Opening};
use crate::journal::replace_file;
use crate::log::Head;
use crate::metrics::{Metrics, count};
use crate::reply::Reply;
use crate::signer::Signer;
use crate::test_points::{Step, reached};
use crate::tiles::Tiles;
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::checkpoint::{Checkpoint, SignedCheckpoint};
use evergate_evidence::epochs::EpochFile;
use evergate_evidence::merkle::proof::inclusion_proof;
use evergate_evidence::proof::Receipt;
use evergate_evidence::submission::{Refusal, RefusalCode, ToRecorder, UNANSWERED_MAX};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two attempts of a signature that fails.
const RETRY: Duration = Duration::from_secs(1);
/// Part of a signature's time that the publisher waits at most before the next one, and its bound. A Recorder closes
/// and sends its next batch when it receives a receipt. Without the wait, all these statements arrive just after the
/// next signature begins, and wait for two signatures instead of one. The wait ends when as many statements came as
/// receipts went.
const GATHER_PART: u32 = 10;
const GATHER_MAX: Duration = Duration::from_millis(10);
/// Statements and events that wait before those of ended connections are removed. Open connections have at most 4,096.
const PENDING_MAX: usize = 2 * RECORDERS_MAX * UNANSWERED_MAX;

/// Statement or event that waits for its receipt.
pub struct Pending {
    /// Place in the log.
    pub index: u64,
    /// Time in the entry.
    pub received_ms: u64,
    /// Number that the answer repeats.
    pub number: u64,
    /// Form of the answer.
    pub answer: Awaited,
    /// Time of arrival.
    pub arrived: Instant,
    /// Way back.
    pub reply: Reply,
}

/// Form of an answer.
pub enum Awaited {
    /// Receipt of a batch.
    Batch,
    /// Receipt of an event.
    Event,
    /// Entry with its receipt, for a Revealer.
    Entry(Vec<u8>),
    /// Opened layer, for a Revealer.
    Opened(Box<Sealed>),
}

/// What a Revealer sent to be opened.
pub struct Sealed {
    /// Size of the last checkpoint that the Revealer has.
    pub seen: u64,
    /// The request's note.
    pub note: Vec<u8>,
    /// The envelope.
    pub envelope: Vec<u8>,
}

/// What waits for the publisher. Bounded: see [`PENDING_MAX`].
#[derive(Default)]
struct Waiting {
    head: Option<Head>,
    pending: Vec<Pending>,
    /// Keys of epochs that the file does not have yet.
    epochs: Option<EpochFile>,
    is_stopping: bool,
}

/// Meeting point of sequencer and publisher.
#[derive(Default)]
pub struct Publisher {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

/// What the publisher's thread owns.
pub struct Publishing {
    /// Key of the log.
    pub signer: Signer,
    /// Tiles of the log.
    pub tiles: Arc<Tiles>,
    /// The checkpoint.
    pub file: Arc<CheckpointFile>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Longest wait before the next signature.
    pub gather: Duration,
    /// The thread with the escrow keys.
    pub escrow: Option<SyncSender<Job>>,
    /// File of the epochs' keys.
    pub epochs: PathBuf,
}

impl Publisher {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a new head and what waits for receipts.
    pub fn push(&self, head: Option<Head>, pending: Vec<Pending>) {
        if head.is_none() && pending.is_empty() {
            return;
        }
        let mut waiting = self.lock();
        waiting.head = head.or(waiting.head);
        waiting.pending.extend(pending);
        prune(&mut waiting.pending);
        drop(waiting);
        self.changed.notify_one();
    }

    /// Takes keys of epochs that are to be published behind the next head.
    pub fn push_epochs(&self, epochs: EpochFile) {
        self.lock().epochs = Some(epochs);
    }

    /// Ends the thread after what waits is published.
    pub fn stop(&self) {
        self.lock().is_stopping = true;
        self.changed.notify_one();
    }

    fn wait(&self) -> Option<(Option<Head>, Vec<Pending>)> {
        let is_idle = |w: &mut Waiting| w.head.is_none() && w.pending.is_empty() && !w.is_stopping;
        let mut waiting =
            self.changed.wait_while(self.lock(), is_idle).unwrap_or_else(PoisonError::into_inner);
        let (head, pending) = (waiting.head.take(), std::mem::take(&mut waiting.pending));
        (head.is_some() || !pending.is_empty()).then_some((head, pending))
    }

    /// Waits until the Recorders that were answered have sent their next statements.
    fn gather(&self, answered: usize, limit: Duration) {
        let waiting = self.lock();
        let enough = waiting.pending.len() + answered;
        let is_short = |waiting: &mut Waiting| waiting.pending.len() < enough && !waiting.is_stopping;
        drop(self.changed.wait_timeout_while(waiting, limit, is_short));
    }

    /// Runs until [`Publisher::stop`]. An error means that no checkpoint can be published: the program must end.
    pub fn run(&self, mut publishing: Publishing) -> Result<(), String> {
        while let Some((head, mut pending)) = self.wait() {
            if let Some(mut head) = head {
                while let Err(error) = publishing.sign(head)? {
                    count(&publishing.metrics.signature_failures);
                    eprintln!("evergate-master: no signature: {error}; receipts wait, check the HSM");
                    std::thread::sleep(RETRY);
                    let mut waiting = self.lock();
                    head = waiting.head.take().unwrap_or(head);
                    pending.append(&mut waiting.pending);
                    prune(&mut pending);
                    if waiting.is_stopping {
                        return Ok(());
                    }
                }
            }
            let epochs = self.lock().epochs.take();
            if let Some(epochs) = epochs {
                publishing.publish_epochs(&epochs);
            }
            let answered = pending.len();
            publishing.answer(pending)?;
            self.gather(answered, publishing.gather);
        }
        Ok(())
    }
}

impl Publishing {
    /// Signs a head and publishes it. The inner error is the signer's: try again.
    fn sign(&mut self, head: Head) -> Result<Result<(), String>, String> {
        let newest = self.file.newest();
        if let Some(last) = newest.as_ref().map(SignedCheckpoint::checkpoint) {
            let is_continued = last.size <= head.size && self.tiles.root(last.size) == Some(last.root);
            if !is_continued {
                return Err("the tiles do not continue the last checkpoint: nothing more is signed".into());
            }
        }
        if self.tiles.root(head.size) != Some(head.root) {
            return Err("the tiles do not lead to the root of the log: nothing more is signed".into());
        }
        let origin = self.signer.vkey().name().to_owned();
        let checkpoint = Checkpoint { origin, size: head.size, root: head.root };
        let mut signed = SignedCheckpoint::new(checkpoint).map_err(|error| error.to_string())?;
        let begin = Instant::now();
        let line = match self.signer.sign(signed.note().text()) {
            Ok(line) => line,
            Err(error) => return Ok(Err(error)),
        };
        let time = begin.elapsed();
        self.metrics.record_signature(time);
        self.gather = (time / GATHER_PART).min(GATHER_MAX);
        signed.note_mut().sign(line).map_err(|error| error.to_string())?;
        if signed.verify(self.signer.vkey(), &[], &EvidenceVerifier).is_err() {
            return Ok(Err("the HSM gave a signature that does not verify".into()));
        }
        reached(Step::Signed);
        self.file.replace(signed).map_err(|error| format!("checkpoint: {error}"))?;
        self.metrics.log_size.store(head.size, Ordering::Relaxed);
        Ok(Ok(()))
    }

    /// Sends receipts under the newest checkpoint.
    fn answer(&self, pending: Vec<Pending>) -> Result<(), String> {
        if pending.is_empty() {
            return Ok(());
        }
        let checkpoint = self.file.newest().ok_or("no checkpoint")?;
        let size = checkpoint.checkpoint().size;
        let nodes = self.tiles.nodes(size);
        for Pending { index, received_ms, number, answer, arrived, reply } in pending {
            let answer = match answer {
                Awaited::Opened(parts) => {
                    let Sealed { seen, note, envelope } = *parts;
                    let place = Place { index, received_ms };
                    self.pass(Opening { place, seen, note, envelope, asked: Asked { number, reply } });
                    continue;
                }
                other => other,
            };
            let path = match inclusion_proof(&nodes, index, size) {
                Ok(path) => path,
                Err(error) => {
                    eprintln!(
                        "evergate-master: no receipt for entry {index}: {error}; restore the tiles of the log"
                    );
                    let text = format!("the log lacks a tile for entry {index}");
                    let refusal = Refusal { code: RefusalCode::Unavailable, text };
                    reply.send(ToRecorder::Refused(refusal));
                    continue;
                }
            };
            let proof = Receipt { index, path, checkpoint: checkpoint.clone() }.to_bytes();
            let answer = match answer {
                Awaited::Entry(entry) => ToRecorder::Logged { request: number, entry, proof },
                Awaited::Batch => ToRecorder::Receipt { batch: number, received_ms, proof },
                _ => ToRecorder::EventReceipt { request: number, received_ms, proof },
            };
            if reply.send(answer) {
                self.metrics.record_receipt(arrived.elapsed());
            }
        }
        Ok(())
    }
}

impl Publishing {
    /// Passes a request that is signed to the thread with the escrow keys.
    fn pass(&self, opening: Opening) {
        let asked = opening.asked.clone();
        let passed = self.escrow.as_ref().map(|escrow| escrow.try_send(Job::Open(opening)));
        if !matches!(passed, Some(Ok(()))) {
            asked.deny_for_now("too many requests wait, or the Master has no escrow keys");
        }
    }

    /// Signs and replaces the file of the epochs' keys. A switch with the file before continues with it.
    fn publish_epochs(&mut self, epochs: &EpochFile) {
        let published = epochs.to_note().map_err(|error| error.to_string()).and_then(|mut note| {
            let line = self.signer.sign(note.text())?;
            note.sign(line).map_err(|error| error.to_string())?;
            replace_file(&self.epochs, &note.to_bytes(), || ()).map_err(|error| error.to_string())
        });
        if let Err(error) = published {
            eprintln!(
                "evergate-master: cannot publish {}: {error}; it is tried again with the next epoch",
                self.epochs.display()
            );
        }
    }
}

/// Removes what no open connection waits for: Recorders that connect again and again while the HSM is away ask for the
/// same receipts each time.
fn prune(pending: &mut Vec<Pending>) {
    if pending.len() > PENDING_MAX {
        pending.retain(|pending| pending.reply.is_open());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::reply;

    #[test]
    fn pending_of_ended_connections_is_removed_at_the_bound() {
        let publisher = Publisher::default();
        let (open, alive, _answers) = reply();
        let pending = |index, reply: &Reply| Pending {
            index,
            received_ms: 0,
            number: index,
            answer: Awaited::Batch,
            arrived: Instant::now(),
            reply: reply.clone(),
        };
        publisher.push(None, (0..64).map(|index| pending(index, &alive)).collect());
        for _ in 0..1000 {
            let (_, gone, _) = reply();
            assert!(!gone.is_open());
            publisher.push(None, (0..64).map(|index| pending(index, &gone)).collect());
            assert!(publisher.lock().pending.len() <= PENDING_MAX);
        }
        let waiting = publisher.wait().unwrap().1;
        assert_eq!(waiting.iter().filter(|pending| pending.reply.is_open()).count(), 64);
        drop(open);
        assert!(!alive.send(ToRecorder::EventReceipt { request: 1, received_ms: 1, proof: Vec::new() }));
    }
}
