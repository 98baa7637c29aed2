//! The thread that signs the newest head, makes the checkpoint durable and answers with receipts.
//!
//! It signs only a head whose root it computed from tiles itself, and only if the tree of the last checkpoint is the
//! beginning of that head's tree. A signature that fails is tried again each second; answers wait.

use crate::checkpoint_file::CheckpointFile;
use crate::log::Head;
use crate::metrics::{Metrics, count};
use crate::sequencer::Reply;
use crate::signer::Signer;
use crate::test_points::{Step, reached};
use crate::tiles::Tiles;
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::checkpoint::{Checkpoint, SignedCheckpoint};
use evergate_evidence::merkle::proof::inclusion_proof;
use evergate_evidence::proof::Receipt;
use evergate_evidence::submission::ToRecorder;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two attempts of a signature that fails.
const RETRY: Duration = Duration::from_secs(1);
/// Part of a signature's time that the publisher waits before the next one, at most [`GATHER_MAX`]. A Recorder closes
/// its next batch when it receives a receipt. Without the wait, all these statements arrive just after the next
/// signature begins, and wait for two signatures instead of one.
const GATHER_PART: u32 = 10;
const GATHER_MAX: Duration = Duration::from_millis(10);

/// Statement or event that waits for its receipt.
pub struct Pending {
    /// Place in the log.
    pub index: u64,
    /// Time in the entry.
    pub received_ms: u64,
    /// Number that the answer repeats.
    pub number: u64,
    /// Whether it is an event.
    pub is_event: bool,
    /// Time of arrival.
    pub arrived: Instant,
    /// Way back.
    pub reply: Reply,
}

/// What waits for the publisher. Bounded: each Recorder has at most 64 statements and events without an answer.
#[derive(Default)]
struct Waiting {
    head: Option<Head>,
    pending: Vec<Pending>,
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
    /// Wait before the next signature.
    pub gather: Duration,
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
        drop(waiting);
        self.changed.notify_one();
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
                    if waiting.is_stopping {
                        return Ok(());
                    }
                }
            }
            publishing.answer(pending)?;
            std::thread::sleep(publishing.gather);
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
        for Pending { index, received_ms, number, is_event, arrived, reply } in pending {
            let path = inclusion_proof(&nodes, index, size).map_err(|error| format!("receipt: {error}"))?;
            let proof = Receipt { index, path, checkpoint: checkpoint.clone() }.to_bytes();
            let answer = match is_event {
                true => ToRecorder::EventReceipt { request: number, received_ms, proof },
                false => ToRecorder::Receipt { batch: number, received_ms, proof },
            };
            // A Recorder that is gone asks again.
            if reply.try_send(answer).is_ok() {
                self.metrics.record_receipt(arrived.elapsed());
            }
        }
        Ok(())
    }
}
