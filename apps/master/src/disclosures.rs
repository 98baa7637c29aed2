//! State of disclosure in the log: the policy in force, requests by their nonces, keys of epochs, holds.
//!
//! It is a function of the log's entries. Decisions change nothing: entries do.

use evergate_crypto::EvidenceVerifier;
use evergate_evidence::cursor::{Cursor, Malformed, put_long};
use evergate_evidence::disclosure::destroy::hold_needs_epoch;
use evergate_evidence::disclosure::{Nonce, Outcome, OutcomeKind, Policy, Refusal, Request};
use evergate_evidence::entry::{Entry, Event};
use evergate_evidence::epochs::{EPOCHS_MAX, EpochDestroyed, EpochFile, EpochKeys};
use evergate_evidence::merkle::{Hash, sha256};
use evergate_evidence::note::Note;
use std::collections::BTreeMap;

/// Requests whose nonces are known. More of one week are refused.
pub const REQUESTS_MAX: usize = 65_536;
/// Time for which a nonce is known behind its log entry, in ms: the longest validity and a day.
const NONCE_MS: u64 = 8 * DAY_MS;
const DAY_MS: u64 = 86_400_000;
/// Epochs before the present one that the published file keeps.
const EPOCHS_KEPT: u64 = 26;

/// Place of an entry in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Place in the log.
    pub index: u64,
    /// Time of receipt in ms since 1970.
    pub received_ms: u64,
}

/// Request that the log has as entry 2. A refused one leaves its nonce free: it may get the approvals that it lacks,
/// and a forged one must not take the nonce of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// SHA-256 of its note.
    pub request: Hash,
    /// Place of entry 2.
    pub place: Place,
    /// Grant that was reported, and the place of entry 3.
    pub granted: Option<(Hash, Place)>,
}

/// Decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The log has it.
    Known(Known),
    /// It is new and good: log it.
    Accepted,
    /// It is refused: log the refusal with this nonce.
    Refused(Refusal, Nonce),
}

/// State of disclosure in the log.
#[derive(Clone, Debug, Default)]
pub struct Disclosures {
    policy: Option<(Policy, String)>,
    requests: BTreeMap<Nonce, Known>,
    epochs: BTreeMap<u64, (EpochKeys, Place)>,
    destroyed: BTreeMap<u64, (EpochDestroyed, Place)>,
    holds: BTreeMap<(Hash, u64), (u64, u64)>,
}

impl Disclosures {
    /// Takes an entry of the log into account.
    pub fn record(&mut self, index: u64, entry: &Entry) {
        let Entry::Event(received_ms, event) = entry else { return };
        let place = Place { index, received_ms: *received_ms };
        match event {
            Event::DisclosureRequest(note) => self.record_request(note, place),
            Event::DisclosureDone(outcome) => self.record_outcome(outcome, place),
            Event::EpochKeys(keys) => drop(self.epochs.insert(keys.epoch, (keys.clone(), place))),
            Event::EpochDestroyed(keys) => {
                self.epochs.remove(&keys.epoch);
                self.destroyed.insert(keys.epoch, (keys.clone(), place));
            }
            Event::Policy(note) => {
                let parsed = Note::parse(note.as_bytes()).ok();
                if let Some(policy) = parsed.and_then(|parsed| Policy::parse_text(parsed.text()).ok()) {
                    self.policy = Some((policy, note.clone()));
                }
            }
            Event::Hold(hold) => {
                match hold.is_set {
                    true => self.holds.insert((hold.recorder, hold.hold), (hold.from_ns, hold.to_ns)),
                    false => self.holds.remove(&(hold.recorder, hold.hold)),
                };
            }
            _ => {}
        }
    }

    fn record_request(&mut self, note: &str, place: Place) {
        self.forget(place.received_ms);
        let Ok((request, _)) = Request::parse(note.as_bytes()) else { return };
        let known = Known { request: sha256(note.as_bytes()), place, granted: None };
        self.requests.insert(request.nonce, known);
    }

    fn record_outcome(&mut self, outcome: &Outcome, place: Place) {
        if outcome.kind == OutcomeKind::Granted
            && let Some(known) = self.requests.get_mut(&outcome.nonce)
        {
            known.granted.get_or_insert((outcome.grant, place));
        }
    }

    fn forget(&mut self, now_ms: u64) {
        if self.requests.len() >= REQUESTS_MAX {
            self.requests.retain(|_, known| known.place.received_ms.saturating_add(NONCE_MS) > now_ms);
        }
    }

    /// Decides about a request. `None` if as many nonces are known as may be: later.
    pub fn decide(&self, note: &[u8], now_ms: u64) -> Option<Decision> {
        let refused = |refusal, nonce| Some(Decision::Refused(refusal, nonce));
        let (request, parsed) = match Request::parse(note) {
            Ok(request) => request,
            Err(error) => return refused(error.into(), [0; 16]),
        };
        if let Some(known) = self.requests.get(&request.nonce) {
            return match known.request == sha256(note) {
                true => Some(Decision::Known(known.clone())),
                false => refused(Refusal::NonceReplayed, request.nonce),
            };
        }
        if self.requests.len() >= REQUESTS_MAX {
            return None;
        }
        let Some((policy, _)) = &self.policy else { return refused(Refusal::NoPolicy, request.nonce) };
        let disclosed = self.disclosed(now_ms);
        let decided = policy.decide(&request, &parsed, now_ms / 1000, disclosed, &EvidenceVerifier);
        match decided {
            Ok(()) if self.epochs.contains_key(&request.epoch) => Some(Decision::Accepted),
            Ok(()) => refused(Refusal::Destroyed(request.epoch), request.nonce),
            Err(refusal) => refused(refusal, request.nonce),
        }
    }

    /// Requests that were logged for disclosure within the last 24 hours.
    fn disclosed(&self, now_ms: u64) -> u64 {
        let is_recent = |known: &&Known| known.place.received_ms.saturating_add(DAY_MS) > now_ms;
        self.requests.values().filter(is_recent).count() as u64
    }

    /// Request of a report, if it was logged for disclosure under this nonce and place.
    pub fn reported(&self, outcome: &Outcome) -> Option<&Known> {
        let known = self.requests.get(&outcome.nonce)?;
        let is_same = known.request == outcome.request
            && known.place.index == outcome.index
            && outcome.kind != OutcomeKind::Refused;
        is_same.then_some(known)
    }

    /// Keys of an epoch, and the place of their entry.
    pub fn epoch(&self, epoch: u64) -> Option<&(EpochKeys, Place)> {
        self.epochs.get(&epoch)
    }

    /// Destruction of an epoch's keys, and the place of its entry.
    pub fn destroyed(&self, epoch: u64) -> Option<&(EpochDestroyed, Place)> {
        self.destroyed.get(&epoch)
    }

    /// Decides about the destruction of an epoch's keys; an order of the approvers overrides holds.
    pub fn decide_destroy(&self, epoch: u64, order: &[u8], now_ms: u64) -> Result<(), Refusal> {
        if !self.epochs.contains_key(&epoch) {
            return Err(Refusal::Destroyed(epoch));
        }
        if !self.holds.values().any(|(from_ns, to_ns)| hold_needs_epoch(epoch, *from_ns, *to_ns)) {
            return Ok(());
        }
        match &self.policy {
            Some((policy, _)) if !order.is_empty() => {
                policy.decide_destroy(epoch, order, now_ms / 1000, &EvidenceVerifier)
            }
            _ => Err(Refusal::Held(epoch)),
        }
    }

    /// Policy in force, and its note.
    pub fn policy(&self) -> Option<&(Policy, String)> {
        self.policy.as_ref()
    }

    /// Keys that the Master publishes: of the present day and later.
    pub fn epoch_file(&self, now_ms: u64) -> EpochFile {
        let first = (now_ms / 3_600_000).saturating_sub(EPOCHS_KEPT);
        let keys = self.epochs.range(first..).map(|(_, (keys, _))| keys.clone());
        EpochFile::new(keys.take(EPOCHS_MAX).collect()).unwrap_or_default()
    }

    /// Appends the state for a snapshot.
    pub fn encode_to(&self, out: &mut Vec<u8>) {
        put_long(out, self.policy.as_ref().map_or(&[][..], |(_, note)| note.as_bytes()));
        put(out, &[self.requests.len() as u64]);
        for (nonce, known) in &self.requests {
            out.extend_from_slice(nonce);
            out.extend_from_slice(&known.request);
            put(out, &[known.place.index, known.place.received_ms]);
            let (grant, place) = known.granted.unwrap_or(([0; 32], Place { index: 0, received_ms: 0 }));
            out.extend_from_slice(&grant);
            put(out, &[place.index, place.received_ms]);
        }
        put(out, &[self.epochs.len() as u64, self.destroyed.len() as u64, self.holds.len() as u64]);
        for (keys, place) in self.epochs.values() {
            put_event(out, Event::EpochKeys(keys.clone()), *place);
        }
        for (keys, place) in self.destroyed.values() {
            put_event(out, Event::EpochDestroyed(keys.clone()), *place);
        }
        for ((recorder, hold), (from_ns, to_ns)) in &self.holds {
            out.extend_from_slice(recorder);
            put(out, &[*hold, *from_ns, *to_ns]);
        }
    }

    /// State from a snapshot.
    pub fn decode(cursor: &mut Cursor<'_>) -> Result<Disclosures, Malformed> {
        let mut state = Disclosures::default();
        let note = cursor.long_text()?;
        if !note.is_empty() {
            let parsed = Note::parse(note.as_bytes()).map_err(|error| Malformed(error.to_string()))?;
            let policy = Policy::parse_text(parsed.text()).map_err(|error| Malformed(error.to_string()))?;
            state.policy = Some((policy, note));
        }
        for _ in 0..cursor.u64()? {
            let (nonce, request) = (cursor.array()?, cursor.array()?);
            let place = Place { index: cursor.u64()?, received_ms: cursor.u64()? };
            let grant: Hash = cursor.array()?;
            let end = Place { index: cursor.u64()?, received_ms: cursor.u64()? };
            let granted = (end.index > 0).then_some((grant, end));
            state.requests.insert(nonce, Known { request, place, granted });
        }
        let (epochs, destroyed, holds) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
        for _ in 0..epochs.saturating_add(destroyed) {
            let index = cursor.u64()?;
            state.record(index, &Entry::decode(cursor.long()?)?);
        }
        for _ in 0..holds {
            let recorder = cursor.array()?;
            state.holds.insert((recorder, cursor.u64()?), (cursor.u64()?, cursor.u64()?));
        }
        Ok(state)
    }
}

fn put_event(out: &mut Vec<u8>, event: Event, place: Place) {
    put(out, &[place.index]);
    put_long(out, &Entry::Event(place.received_ms, event).encode());
}

fn put(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_be_bytes()));
}
