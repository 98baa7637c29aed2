//! A Revealer's connection to the Master: one message, one answer.

use crate::client::{Greeted, greet};
use crate::{ChannelError, ClientError, Identity, Receiver, Sender, Trust};
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::disclosure::Outcome;
use evergate_evidence::entry::{Entry, Event};
use evergate_evidence::envelope::Point;
use evergate_evidence::merkle::{Hash, leaf_hash};
use evergate_evidence::note::VerifyingKey;
use evergate_evidence::proof::Receipt;
use evergate_evidence::submission::{Hello, LATER, ToMaster, ToRecorder, Welcome};
use std::time::{Duration, Instant};

/// Pause before a message that the Master refused for now is sent again.
const PAUSE: Duration = Duration::from_millis(250);

/// Connection of a Revealer.
pub struct RevealerClient {
    sender: Sender,
    receiver: Receiver,
    welcome: Welcome,
    limit: Duration,
    next: u64,
}

/// Outer layer that the Master opened for a logged request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Time of entry 2 in ms since 1970.
    pub received_ms: u64,
    /// The inner ciphertext.
    pub inner: Vec<u8>,
    /// Receipt of entry 2, parsed and not verified.
    pub receipt: Receipt,
    /// Hashes that prove its checkpoint to continue the one seen before, not verified.
    pub consistency: Vec<Hash>,
}

/// Reason why the Master did not do what a Revealer asked for.
#[derive(Debug, thiserror::Error)]
pub enum RevealError {
    /// The connection failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The Master refused: name and explanation.
    #[error("refused by the Master: {name}: {text}")]
    Denied {
        /// Name of the refusal.
        name: String,
        /// Explanation.
        text: String,
    },
}

impl RevealerClient {
    /// Connects. `limit` is for each step and each answer.
    pub fn connect(
        address: &str,
        identity: &Identity,
        master: &Trust,
        origin: String,
        limit: Duration,
    ) -> Result<RevealerClient, ClientError> {
        let hello = Hello { origin, ..Hello::default() };
        let Greeted { welcome, sender, receiver, .. } = greet(address, identity, master, hello, limit)?;
        Ok(RevealerClient { sender, receiver, welcome, limit, next: 1 })
    }

    /// What the Master sent first: the log's key, which the caller compares with the pinned one.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Asks the Master to log a request and to open the outer layer of an envelope.
    /// `seen` is the size of the last checkpoint that the caller has; 0 without one.
    pub fn disclose(&mut self, seen: u64, note: &[u8], envelope: &[u8]) -> Result<Opened, RevealError> {
        let message =
            |request| ToMaster::Disclose { request, seen, note: note.to_vec(), envelope: envelope.to_vec() };
        match self.ask(message)? {
            ToRecorder::Opened { received_ms, inner, proof, consistency, .. } => {
                let receipt = Receipt::parse(&proof).map_err(ClientError::from)?;
                Ok(Opened { received_ms, inner, receipt, consistency })
            }
            _ => Err(unexpected()),
        }
    }

    /// Logs the outcome of a request.
    pub fn report(&mut self, outcome: &Outcome, log: &VerifyingKey) -> Result<Receipt, RevealError> {
        let answer = self.ask(|request| ToMaster::Report { request, outcome: outcome.clone() })?;
        let (event, receipt) = logged(answer, log)?;
        match event {
            Event::DisclosureDone(found) if found == *outcome => Ok(receipt),
            _ => Err(unexpected()),
        }
    }

    /// Announces the Revealer's key of an epoch; answers with the keys as logged.
    pub fn announce(&mut self, epoch: u64, inner: &Point, log: &VerifyingKey) -> Result<(), RevealError> {
        let answer = self.ask(|request| ToMaster::Announce { request, epoch, inner: *inner })?;
        match logged(answer, log)?.0 {
            Event::EpochKeys(keys) if keys.epoch == epoch && keys.inner == *inner => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Asks the Master to destroy its key of an epoch.
    pub fn destroy(&mut self, epoch: u64, order: &[u8], log: &VerifyingKey) -> Result<(), RevealError> {
        let answer = self.ask(|request| ToMaster::Destroy { request, epoch, order: order.to_vec() })?;
        match logged(answer, log)?.0 {
            Event::EpochDestroyed(keys) if keys.epoch == epoch => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Sends a message and waits for its answer. The Master may refuse for now: then again, within the limit.
    fn ask(&mut self, message: impl Fn(u64) -> ToMaster) -> Result<ToRecorder, RevealError> {
        let deadline = Instant::now() + self.limit;
        loop {
            let number = self.next;
            self.next += 1;
            self.sender.send(&message(number).to_frame()).map_err(ClientError::from)?;
            let left = deadline.saturating_duration_since(Instant::now());
            let frame = self.receiver.receive(left).map_err(ClientError::from)?;
            let frame = frame.ok_or(ClientError::Channel(ChannelError::Slow(self.limit)))?;
            match ToRecorder::decode(&frame).map_err(ClientError::from)? {
                ToRecorder::Refused(refusal) => return Err(ClientError::Refused(refusal).into()),
                ToRecorder::Denied { request, name, text } if request == number => {
                    if name != LATER || Instant::now() + PAUSE > deadline {
                        return Err(RevealError::Denied { name, text });
                    }
                    std::thread::sleep(PAUSE);
                }
                answer if answered(&answer) == Some(number) => return Ok(answer),
                _ => return Err(unexpected()),
            }
        }
    }
}

impl Drop for RevealerClient {
    fn drop(&mut self) {
        self.sender.close();
    }
}

fn answered(answer: &ToRecorder) -> Option<u64> {
    match answer {
        ToRecorder::Opened { request, .. } | ToRecorder::Logged { request, .. } => Some(*request),
        _ => None,
    }
}

/// Entry of an answer, if its receipt proves it under the log's key.
fn logged(answer: ToRecorder, log: &VerifyingKey) -> Result<(Event, Receipt), RevealError> {
    let ToRecorder::Logged { entry, proof, .. } = answer else { return Err(unexpected()) };
    let receipt = Receipt::parse(&proof).map_err(ClientError::from)?;
    let leaf = leaf_hash(&[&entry]);
    receipt.verify(&leaf, log, &[], &EvidenceVerifier).map_err(ClientError::from)?;
    match Entry::decode(&entry).map_err(ClientError::from)? {
        Entry::Event(_, event) => Ok((event, receipt)),
        Entry::Statement(_) => Err(unexpected()),
    }
}

fn unexpected() -> RevealError {
    ClientError::Unexpected("the answer is to another message".into()).into()
}
