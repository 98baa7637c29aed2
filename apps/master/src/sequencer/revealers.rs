//! What the sequencer does with messages of Revealers: decides, appends, and passes on what must wait for a signature.

use super::{Input, Sequencer};
use crate::disclosures::{Decision, Place};
use crate::escrow::{Asked, Job};
use crate::metrics::count;
use crate::publisher::{Awaited, Pending, Sealed};
use evergate_evidence::disclosure::{Nonce, Outcome, OutcomeKind, Refusal, Request};
use evergate_evidence::entry::{Entry, Event};
use evergate_evidence::envelope::Point;
use evergate_evidence::epochs::{EpochDestroyed, EpochKeys};
use evergate_evidence::merkle::sha256;
use evergate_evidence::submission::LATER;
use std::time::Instant;

impl Sequencer {
    /// Handles a message of a Revealer, or an answer of the escrow keys to one.
    pub(super) fn handle_revealer(&mut self, input: Input) {
        match input {
            Input::Disclose { seen, note, envelope, asked } => {
                self.handle_disclose(Sealed { seen, note, envelope }, asked);
            }
            Input::Report { outcome, asked } => self.handle_report(outcome, asked),
            Input::Failed { outcome, refusal, asked } => {
                self.append(Event::DisclosureDone(outcome));
                self.deny(asked, refusal.name(), refusal.to_string());
            }
            Input::Announce { epoch, inner, asked } => self.handle_announce(epoch, inner, asked),
            Input::EpochKeys { keys, asked } => self.handle_epoch_keys(keys, asked),
            Input::Destroy { epoch, order, asked } => self.handle_destroy(epoch, &order, asked),
            Input::EpochDestroyed { keys, asked } => self.handle_destroyed(keys, asked),
            _ => {}
        }
    }

    fn handle_disclose(&mut self, sealed: Sealed, asked: Asked) {
        if !self.may_ask() {
            return self.deny(asked, LATER, "too many requests: try again in a second".into());
        }
        match self.log.disclosures().decide(&sealed.note, self.now_ms) {
            None => self.deny(asked, LATER, "the log has too many requests of this week".into()),
            Some(Decision::Known(known)) => match self.destroyed_request(&sealed) {
                None => self.await_opening(known.place, sealed, asked),
                Some(request) => {
                    self.refuse(&sealed.note, Refusal::Destroyed(request.epoch), request.nonce, asked)
                }
            },
            Some(Decision::Accepted) => {
                count(&self.metrics.disclosures);
                let text = String::from_utf8_lossy(&sealed.note).into_owned();
                let place = self.append(Event::DisclosureRequest(text));
                self.await_opening(place, sealed, asked);
            }
            Some(Decision::Refused(refusal, nonce)) => self.refuse(&sealed.note, refusal, nonce, asked),
        }
    }

    fn refuse(&mut self, note: &[u8], refusal: Refusal, nonce: Nonce, asked: Asked) {
        count(&self.metrics.disclosures_refused);
        self.append(Event::DisclosureDone(refused(note, nonce, &refusal)));
        self.deny(asked, refusal.name(), refusal.to_string());
    }

    /// A known request without an envelope whose epoch was destroyed: no key would refuse it.
    fn destroyed_request(&self, sealed: &Sealed) -> Option<Request> {
        let request = sealed.envelope.is_empty().then(|| Request::parse(&sealed.note).ok())??.0;
        self.log.disclosures().destroyed(request.epoch).is_some().then_some(request)
    }

    /// Whether enough time has passed since the last request. Refusals are logged, so their number needs a bound.
    fn may_ask(&mut self) -> bool {
        let is_due = self.now_ms >= self.asked_ms.saturating_add(self.pause_ms);
        if is_due {
            self.asked_ms = self.now_ms;
        }
        is_due
    }

    fn handle_report(&mut self, outcome: Outcome, asked: Asked) {
        let Some(known) = self.log.disclosures().reported(&outcome).cloned() else {
            let text = "the log has no such request".into();
            return self.deny(asked, Refusal::NonceReplayed.name(), text);
        };
        match (outcome.kind, known.granted) {
            (OutcomeKind::Granted, Some((grant, place))) if grant == outcome.grant => {
                self.await_entry(place, Event::DisclosureDone(outcome), asked);
            }
            (OutcomeKind::Granted, Some(_)) => {
                let text = "the log has another grant of this request".into();
                self.deny(asked, Refusal::NonceReplayed.name(), text);
            }
            (OutcomeKind::Granted, None) => self.log_entry(Event::DisclosureDone(outcome), asked),
            _ if self.may_ask() => self.log_entry(Event::DisclosureDone(outcome), asked),
            _ => self.deny(asked, LATER, "too many reports: try again in a second".into()),
        }
    }

    /// Passes on only what the log lacks: a key of a destroyed epoch is never made again.
    fn handle_announce(&mut self, epoch: u64, inner: Point, asked: Asked) {
        match self.log.disclosures().epoch(epoch).cloned() {
            Some((keys, place)) if keys.inner == inner => {
                self.await_entry(place, Event::EpochKeys(keys), asked);
            }
            None if self.log.disclosures().destroyed(epoch).is_none() => {
                self.pass(Job::Create { epoch, inner, asked: asked.clone() }, asked);
            }
            _ => self.refuse_keys(epoch, asked),
        }
    }

    fn refuse_keys(&mut self, epoch: u64, asked: Asked) {
        match self.log.disclosures().destroyed(epoch) {
            Some(_) => {
                let refusal = Refusal::Destroyed(epoch);
                self.deny(asked, refusal.name(), refusal.to_string());
            }
            None => self.deny(asked, "differs", format!("the log has other keys of epoch {epoch}")),
        }
    }

    /// Passes a job to the thread with the escrow keys.
    fn pass(&mut self, job: Job, asked: Asked) {
        let passed = self.escrow.as_ref().map(|escrow| escrow.try_send(job));
        if !matches!(passed, Some(Ok(()))) {
            self.deny(asked, LATER, "too many requests wait, or the Master has no escrow keys".into());
        }
    }

    fn handle_epoch_keys(&mut self, keys: EpochKeys, asked: Asked) {
        let epoch = keys.epoch;
        match self.log.disclosures().epoch(epoch).cloned() {
            Some((known, place)) if known == keys => {
                self.await_entry(place, Event::EpochKeys(keys), asked);
            }
            None if self.log.disclosures().destroyed(epoch).is_none() => {
                self.has_new_epochs = true;
                self.log_entry(Event::EpochKeys(keys), asked);
            }
            _ => self.refuse_keys(epoch, asked),
        }
    }

    fn handle_destroy(&mut self, epoch: u64, order: &[u8], asked: Asked) {
        let state = self.log.disclosures();
        if let Some((keys, place)) = state.destroyed(epoch).cloned() {
            return self.await_entry(place, Event::EpochDestroyed(keys), asked);
        }
        if let Err(refusal) = state.decide_destroy(epoch, order, self.now_ms) {
            return self.deny(asked, refusal.name(), refusal.to_string());
        }
        let Some(keys) = state.epoch(epoch).map(|(keys, _)| keys.destroyed()) else { return };
        self.pass(Job::Destroy { keys, asked: asked.clone() }, asked);
    }

    fn handle_destroyed(&mut self, keys: EpochDestroyed, asked: Asked) {
        match self.log.disclosures().destroyed(keys.epoch).cloned() {
            Some((keys, place)) => self.await_entry(place, Event::EpochDestroyed(keys), asked),
            None => {
                self.has_new_epochs = true;
                self.log_entry(Event::EpochDestroyed(keys), asked);
            }
        }
    }

    fn append(&mut self, event: Event) -> Place {
        let received_ms = self.now_ms;
        Place { index: self.log.append(&Entry::Event(received_ms, event)), received_ms }
    }

    fn log_entry(&mut self, event: Event, asked: Asked) {
        let place = self.append(event.clone());
        self.await_entry(place, event, asked);
    }

    /// Answers with an entry of the log once it is signed.
    fn await_entry(&mut self, place: Place, event: Event, asked: Asked) {
        let entry = Entry::Event(place.received_ms, event).encode();
        self.push_pending(place, Awaited::Entry(entry), asked);
    }

    /// Passes a request to the escrow keys once it is signed.
    fn await_opening(&mut self, place: Place, sealed: Sealed, asked: Asked) {
        self.push_pending(place, Awaited::Opened(Box::new(sealed)), asked);
    }

    fn push_pending(&mut self, place: Place, answer: Awaited, asked: Asked) {
        let (Place { index, received_ms }, Asked { number, reply }) = (place, asked);
        self.pending.push(Pending { index, received_ms, number, answer, arrived: Instant::now(), reply });
    }

    fn deny(&mut self, asked: Asked, name: &str, text: String) {
        let answer = asked.denial(name, text);
        self.answers.push((asked.reply, answer));
    }
}

/// Entry of a refused request.
fn refused(note: &[u8], nonce: Nonce, refusal: &Refusal) -> Outcome {
    Outcome {
        kind: OutcomeKind::Refused,
        request: sha256(note),
        nonce,
        index: 0,
        grant: [0; 32],
        reason: refusal.reason(),
    }
}
