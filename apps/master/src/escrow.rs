//! The thread with the escrow keys: it makes them, opens outer layers, and destroys them.
//!
//! # Invariants
//! - It opens a layer only for a request whose entry is in a signed checkpoint on disk, and in a cosigned one where
//!   witnesses are configured.
//! - It opens only the envelope of the connection that the request names.
//! - What it opens is still sealed for the Revealer: the Master sees no secret of a session.

use crate::checkpoint_file::CheckpointFile;
use crate::disclosures::Place;
use crate::reply::Reply;
use crate::sequencer::{Input, wall_ms};
use crate::test_points::{Step, reached};
use crate::tiles::Tiles;
use evergate_evidence::checkpoint::SignedCheckpoint;
use evergate_evidence::disclosure::{Outcome, OutcomeKind, Refusal, Request};
use evergate_evidence::envelope::{Envelope, Layer, Point};
use evergate_evidence::epochs::{EpochDestroyed, EpochKeys};
use evergate_evidence::merkle::proof::{consistency_proof, inclusion_proof};
use evergate_evidence::merkle::sha256;
use evergate_evidence::proof::Receipt;
use evergate_evidence::submission::{LATER, ToRecorder};
use evergate_seal::{KeyStore, OpenError, open_layer};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::Duration;

/// Jobs that wait for the thread.
pub const JOBS_MAX: usize = 64;
/// Longest wait for a witness.
const WITNESS_LIMIT: Duration = Duration::from_secs(30);
/// Hours ahead of the clock for which keys are made.
const AHEAD_H_MAX: u64 = 48;

/// Way back to a Revealer for one message.
#[derive(Clone)]
pub struct Asked {
    /// Number that the answer repeats.
    pub number: u64,
    /// Way back.
    pub reply: Reply,
}

/// Request whose entry is durable and signed.
pub struct Opening {
    /// Place of entry 2.
    pub place: Place,
    /// Size of the last checkpoint that the Revealer has.
    pub seen: u64,
    /// The request's note.
    pub note: Vec<u8>,
    /// The envelope.
    pub envelope: Vec<u8>,
    /// Way back.
    pub asked: Asked,
}

/// Job of the thread.
pub enum Job {
    /// Opens an outer layer.
    Open(Opening),
    /// Makes the Master's key of an epoch.
    Create {
        /// The epoch.
        epoch: u64,
        /// The Revealer's key.
        inner: Point,
        /// Way back.
        asked: Asked,
    },
    /// Destroys the Master's key of an epoch.
    Destroy {
        /// What entry 5 will have.
        keys: EpochDestroyed,
        /// Way back.
        asked: Asked,
    },
}

/// What the thread owns.
pub struct Escrow {
    /// The keys.
    pub keys: KeyStore,
    /// The checkpoint.
    pub file: Arc<CheckpointFile>,
    /// Tiles of the log.
    pub tiles: Arc<Tiles>,
    /// Whether a cosignature must cover a request.
    pub is_witnessed: bool,
    /// The sequencer.
    pub inputs: SyncSender<Input>,
}

impl Asked {
    /// Answers that the message is refused.
    pub fn deny(&self, refusal: &Refusal) {
        self.send_denial(refusal.name(), refusal.to_string());
    }

    /// Answers that the message may succeed later.
    pub fn deny_for_now(&self, text: impl Into<String>) {
        self.send_denial(LATER, text.into());
    }

    fn send_denial(&self, name: &str, text: String) {
        self.reply.send(self.denial(name, text));
    }

    /// The answer of a refusal.
    pub fn denial(&self, name: &str, text: String) -> ToRecorder {
        ToRecorder::Denied { request: self.number, name: name.into(), text }
    }
}

impl Escrow {
    /// Runs until the senders are gone.
    pub fn run(mut self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Open(opening) => self.open(&opening),
                Job::Create { epoch, inner, asked } => self.create(epoch, inner, asked),
                Job::Destroy { keys, asked } => self.destroy(keys, asked),
            }
        }
    }

    fn open(&mut self, opening: &Opening) {
        let Opening { place, seen, note, envelope, asked } = opening;
        let Some(checkpoint) = self.checkpoint(place.index) else {
            return asked.deny_for_now("no witness has cosigned the request yet");
        };
        let size = checkpoint.checkpoint().size;
        let Ok(path) = inclusion_proof(&self.tiles.nodes(size), place.index, size) else {
            return asked.deny_for_now("the log lacks a tile; restore the tiles of the log");
        };
        let consistency = match seen {
            0 => Ok(Vec::new()),
            seen => consistency_proof(&self.tiles.nodes(size), *seen, size),
        };
        let Ok(consistency) = consistency else {
            return asked.deny_for_now(format!("the Revealer has seen {seen} entries, the log has {size}"));
        };
        let proof = Receipt { index: place.index, path, checkpoint }.to_bytes();
        match self.open_envelope(note, envelope) {
            Ok(inner) => {
                reached(Step::LayerOpened);
                let (request, received_ms) = (asked.number, place.received_ms);
                asked.reply.send(ToRecorder::Opened { request, received_ms, inner, proof, consistency });
            }
            Err(Stop::Refusal(refusal)) => self.fail(opening, refusal),
            Err(Stop::Keys(error)) => {
                eprintln!("evergate-master: escrow keys: {error}; requests are refused for now");
                asked.deny_for_now(error);
            }
        }
    }

    /// Checkpoint that covers an entry, cosigned if it must be.
    fn checkpoint(&self, index: u64) -> Option<SignedCheckpoint> {
        match self.is_witnessed {
            true => self.file.wait_cosigned(index, WITNESS_LIMIT),
            false => self.file.newest().filter(|newest| newest.checkpoint().size > index),
        }
    }

    /// The inner ciphertext. Without an envelope there is none: the Revealer has the server's key, and asks only for
    /// the entry.
    fn open_envelope(&mut self, note: &[u8], envelope: &[u8]) -> Result<Vec<u8>, Stop> {
        if envelope.is_empty() {
            return Ok(Vec::new());
        }
        let (request, _) = Request::parse(note).map_err(Refusal::from)?;
        let envelope =
            Envelope::decode(envelope).map_err(|error| Refusal::Malformed(format!("envelope: {error}")))?;
        check_envelope(&request, &envelope)?;
        match open_layer(&envelope, Layer::Outer, envelope.sealed, &mut self.keys) {
            Ok(inner) => Ok(inner.to_vec()),
            Err(OpenError::NoKey(_, epoch)) => Err(Refusal::Destroyed(epoch).into()),
            Err(OpenError::Keys(error)) => Err(Stop::Keys(error)),
            Err(_) => Err(Refusal::Closed.into()),
        }
    }

    /// Logs that a request led to nothing, and answers. Another envelope may still be the right one.
    fn fail(&self, opening: &Opening, refusal: Refusal) {
        let nonce = Request::parse(&opening.note).map_or([0; 16], |(request, _)| request.nonce);
        let outcome = Outcome {
            kind: OutcomeKind::Failed,
            request: sha256(&opening.note),
            nonce,
            index: opening.place.index,
            grant: [0; 32],
            reason: refusal.reason(),
        };
        let _ = self.inputs.send(Input::Failed { outcome, refusal, asked: opening.asked.clone() });
    }

    fn create(&mut self, epoch: u64, inner: Point, asked: Asked) {
        let now = wall_ms() / 3_600_000;
        if epoch + 1 < now || epoch > now + AHEAD_H_MAX || !evergate_seal::is_public_key(&inner) {
            let what = format!("keys of epoch {epoch} are too early or too late, or are no point of P-256");
            return asked.deny(&Refusal::Malformed(what));
        }
        match self.keys.create(epoch) {
            Ok(outer) => {
                reached(Step::KeyCreated);
                let keys = EpochKeys { epoch, inner, outer };
                let _ = self.inputs.send(Input::EpochKeys { keys, asked });
            }
            Err(error) => asked.deny_for_now(error.to_string()),
        }
    }

    /// A repeated call finds no key, and continues.
    fn destroy(&mut self, keys: EpochDestroyed, asked: Asked) {
        match self.keys.destroy(keys.epoch) {
            Ok(_) => {
                reached(Step::KeyDestroyed);
                let _ = self.inputs.send(Input::EpochDestroyed { keys, asked });
            }
            Err(error) => asked.deny_for_now(error.to_string()),
        }
    }
}

/// Reason why a layer is not opened.
enum Stop {
    Refusal(Refusal),
    Keys(String),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Stop {
        Stop::Refusal(refusal)
    }
}

/// Error unless the envelope is of the connection that the request names.
pub fn check_envelope(request: &Request, envelope: &Envelope<'_>) -> Result<(), Refusal> {
    let aad = &envelope.aad;
    match () {
        () if aad.client_random != request.client_random => Err(Refusal::OtherEnvelope("client random")),
        () if aad.server_random != request.server_random => Err(Refusal::OtherEnvelope("server random")),
        () if aad.epoch() != request.epoch => Err(Refusal::OtherEnvelope("epoch")),
        () => Ok(()),
    }
}
