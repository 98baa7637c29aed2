//! Witnesses: C2SP tlog-witness `add-checkpoint`, one thread for each.
//!
//! A witness cosigns a checkpoint only if it continues the last one that it cosigned. So it knows the largest size that
//! this log ever had: a Master with an older copy of the log does not start. A witness that is away stops nothing.

use crate::checkpoint_file::CheckpointFile;
use crate::config::WitnessConfig;
use crate::http::Url;
use crate::metrics::{Metrics, count};
use crate::problem::Problem;
use crate::tiles::Tiles;
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::base64;
use evergate_evidence::checkpoint::SignedCheckpoint;
use evergate_evidence::merkle::proof::consistency_proof;
use evergate_evidence::note::SignatureLine;
use std::sync::Arc;
use std::time::Duration;

/// Shortest time between two requests to a witness.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest time between two attempts at a witness that is away.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// One witness.
pub struct Witness {
    config: WitnessConfig,
    url: Url,
    tiles: Arc<Tiles>,
    limit: Duration,
    /// Size that the witness cosigned last, as far as known.
    cosigned: u64,
}

/// Reason why a witness did not cosign.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The witness cosigned more entries of this log than are here.
    LogIsOlder(u64),
    /// Everything else, in words.
    Other(String),
}

impl Witness {
    /// Witness of the configuration.
    pub fn new(config: &WitnessConfig, tiles: &Arc<Tiles>, limit: Duration) -> Option<Witness> {
        let url = Url::parse(&config.url)?.join("add-checkpoint");
        Some(Witness { config: config.clone(), url, tiles: tiles.clone(), limit, cosigned: 0 })
    }

    /// Name of its key.
    pub fn name(&self) -> &str {
        self.config.vkey.name()
    }

    /// Cosignatures of a checkpoint.
    pub fn cosign(&mut self, checkpoint: &SignedCheckpoint) -> Result<Vec<SignatureLine>, Refusal> {
        let size = checkpoint.checkpoint().size;
        // The first answer may correct the size that the witness has.
        for _ in 0..2 {
            let answer = self.submit(checkpoint)?;
            match answer.status {
                200 => {
                    let lines = self.verified_lines(checkpoint, &answer.body)?;
                    self.cosigned = size;
                    return Ok(lines);
                }
                409 => {
                    let text = std::str::from_utf8(&answer.body).unwrap_or_default();
                    let known = text.strip_suffix('\n').unwrap_or(text).parse::<u64>();
                    match known {
                        Ok(known) if known > size => return Err(Refusal::LogIsOlder(known)),
                        Ok(known) if known != self.cosigned => self.cosigned = known,
                        _ => {
                            return Err(Refusal::Other("conflict: it knows another tree of this log".into()));
                        }
                    }
                }
                status => return Err(Refusal::Other(format!("status {status}"))),
            }
        }
        Err(Refusal::Other("its size of the log changes all the time".into()))
    }

    fn submit(&self, checkpoint: &SignedCheckpoint) -> Result<crate::http::Answer, Refusal> {
        let size = checkpoint.checkpoint().size;
        let proof = consistency_proof(&self.tiles.nodes(size), self.cosigned.min(size), size);
        let proof = proof.map_err(|error| Refusal::Other(error.to_string()))?;
        let mut body = format!("old {}\n", self.cosigned.min(size));
        for hash in proof {
            body.push_str(&base64::encode(&hash));
            body.push('\n');
        }
        body.push('\n');
        let body = [body.into_bytes(), checkpoint.to_bytes()].concat();
        self.url.post("text/plain", &body, self.limit).map_err(Refusal::Other)
    }

    /// Lines of this witness; its signatures must verify.
    fn verified_lines(
        &self,
        checkpoint: &SignedCheckpoint,
        body: &[u8],
    ) -> Result<Vec<SignatureLine>, Refusal> {
        let vkey = &self.config.vkey;
        let text = std::str::from_utf8(body).map_err(|_| Refusal::Other("its answer is no text".into()))?;
        let lines: Vec<SignatureLine> = text
            .lines()
            .filter_map(SignatureLine::parse)
            .filter(|line| line.name == vkey.name() && line.id == vkey.id())
            .collect();
        let mut note = evergate_evidence::note::Note::new(checkpoint.note().text().into())
            .map_err(|error| Refusal::Other(error.to_string()))?;
        for line in &lines {
            note.sign(line.clone()).map_err(|error| Refusal::Other(error.to_string()))?;
        }
        match note.verify(std::slice::from_ref(vkey), &EvidenceVerifier) {
            Ok(_) => Ok(lines),
            Err(error) => Err(Refusal::Other(format!("its answer: {error}"))),
        }
    }

    /// Error if the witness knows a larger log. A witness that is away is logged.
    pub fn check_start(&mut self, file: &CheckpointFile) -> Result<(), Problem> {
        let Some(checkpoint) = file.newest() else { return Ok(()) };
        match self.cosign(&checkpoint) {
            Ok(lines) => {
                let _ = file.cosign(&checkpoint, lines);
                Ok(())
            }
            Err(Refusal::LogIsOlder(size)) => Err(Problem::new(
                format!("witness {}", self.name()),
                format!(
                    "it cosigned {size} entries of this log, only {} are here",
                    checkpoint.checkpoint().size
                ),
                "this is an older copy of the log: restore the newest one; signing on would fork the log",
            )),
            Err(Refusal::Other(error)) => {
                eprintln!("evergate-master: witness {}: {error}; continuing without it", self.name());
                Ok(())
            }
        }
    }

    /// Cosigns each new checkpoint, until the process ends.
    pub fn run(mut self, file: &CheckpointFile, metrics: &Metrics) {
        let mut pause = PAUSE;
        let mut is_away = false;
        loop {
            std::thread::sleep(pause);
            let Some(checkpoint) = file.wait_larger(self.cosigned, PAUSE_MAX) else { continue };
            match self.cosign(&checkpoint) {
                Ok(lines) => {
                    if let Err(error) = file.cosign(&checkpoint, lines) {
                        eprintln!("evergate-master: cannot store a cosignature: {error}; check the disk");
                    }
                    if is_away {
                        eprintln!("evergate-master: witness {} cosigns again", self.name());
                    }
                    (pause, is_away) = (PAUSE, false);
                }
                Err(refusal) => {
                    count(&metrics.witness_failures);
                    let reason = match refusal {
                        Refusal::LogIsOlder(size) => {
                            format!("it knows a log of {size} entries: the log was forked")
                        }
                        Refusal::Other(error) => error,
                    };
                    if !is_away {
                        let name = self.name();
                        eprintln!(
                            "evergate-master: witness {name} does not cosign: {reason}; receipts continue without it"
                        );
                    }
                    (pause, is_away) = ((pause * 2).min(PAUSE_MAX), true);
                }
            }
        }
    }
}
