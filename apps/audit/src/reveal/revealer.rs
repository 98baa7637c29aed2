//! The Revealer: from a signed request to a grant, in the order of durable steps.
//!
//! 1. A grant in the journal is the answer, byte for byte.
//! 2. The policy is checked here, too. A refused request still goes to the Master, which logs the refusal.
//! 3. The Master logs, signs, and opens the outer layer.
//! 4. Its proof holds under the pinned key, and its checkpoint continues the last one seen.
//! 5. The inner layer opens, and its secrets are bound to the recorded connection. A session of TLS 1.2 with RSA key
//!    exchange may have no envelope: then the server's key gives its secrets, and only this program enforces step 3.
//! 6. The grant is in the journal before it leaves, and its digest in the log behind that.

use super::args::RevealerArgs;
use super::binding::{FirstRecords, check_binding, check_recorded};
use super::candidates::{Candidates, find_candidates};
use super::state::State;
use super::{failed, keys, wrong};
use crate::cli::Failure;
use crate::lookup::Wanted;
use crate::sessions::RecordedSessions;
use crate::when;
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::checkpoint::SignedCheckpoint;
use evergate_evidence::connection_record::ConnectionRecord;
use evergate_evidence::disclosure::{Grant, Outcome, OutcomeKind, Policy, Refusal, Request, grant};
use evergate_evidence::entry::{Entry, Event};
use evergate_evidence::envelope::Envelope;
use evergate_evidence::merkle::proof::verify_consistency;
use evergate_evidence::merkle::sha256;
use evergate_evidence::note::VerifyingKey;
use evergate_evidence::secrets::SecretList;
use evergate_player::tls::rsa_suite;
use evergate_seal::{KeyStore, OpenError, ServerKey, is_public_key, open_secrets, seal_grant};
use evergate_submission::{Opened, RevealerClient};
use evergate_test_points::reached;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

/// Longest time for each answer of the Master: its witness may take half a minute.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// What one process of the Revealer has.
pub(super) struct Revealer {
    args: RevealerArgs,
    state: State,
    keys: KeyStore,
    policy: Policy,
    /// Private keys of servers, for sessions with RSA key exchange.
    server_keys: Rc<[ServerKey]>,
    witnesses: Vec<VerifyingKey>,
    /// Where the record is.
    stores: Vec<PathBuf>,
    /// Files of envelopes that are not in the record.
    envelopes: Vec<PathBuf>,
    /// Whether the server's end may differ between switch and record.
    nat: bool,
    /// Reader of packets for the last part of the binding.
    packets: Box<dyn FirstRecords>,
}

/// Connection to the Master, and the key of its log.
pub(super) struct Master {
    pub(super) client: RevealerClient,
    pub(super) log: VerifyingKey,
}

/// Grant in the journal.
pub(super) struct Granted {
    /// The grant's bytes.
    pub(super) bytes: Vec<u8>,
    outcome: Outcome,
}

impl Revealer {
    /// Opens state, keys and policy.
    pub(super) fn open(args: &RevealerArgs, stores: &[PathBuf], nat: bool) -> Result<Revealer, Failure> {
        let state = State::open(&args.state)?;
        let (policy, witnesses) = (state.policy(&args.policy)?, args.witnesses()?);
        let keys = keys::open(args)?;
        let server_keys = keys::server_keys(&args.server_key)?;
        let (args, stores) = (args.clone(), stores.to_vec());
        let envelopes = Vec::new();
        let packets = Box::new(RecordedSessions::of(&stores));
        Ok(Revealer { args, state, keys, server_keys, policy, witnesses, stores, envelopes, nat, packets })
    }

    /// Takes files of envelopes, too.
    pub(super) fn with_envelopes(mut self, files: &[PathBuf]) -> Revealer {
        self.envelopes = files.to_vec();
        self
    }

    /// The inner keys.
    pub(super) fn keys(&mut self) -> &mut KeyStore {
        &mut self.keys
    }

    /// Connects to the Master; its log must have the pinned key.
    pub(super) fn connect(&self) -> Result<Master, Failure> {
        let identity = self.state.identity()?;
        let (pinned, trust) = (self.args.pinned()?, self.args.trust()?);
        let client =
            RevealerClient::connect(&self.args.address(), &identity, &trust, String::new(), ANSWER_LIMIT)
                .map_err(|error| {
                    let id = evergate_submission::id_text(&identity.id());
                    failed(format!("{error}; check that the Master runs and has [[revealer]] with id {id}"))
                })?;
        let log = self.state.pin(pinned.as_ref(), &client.welcome().vkey)?;
        Ok(Master { client, log })
    }

    /// Answers a request.
    pub(super) fn reveal(&mut self, note: &[u8]) -> Result<Granted, Failure> {
        let (request, parsed) = match Request::parse(note) {
            Ok(request) => request,
            Err(error) => return Err(self.log_refusal(note, &error.into())),
        };
        if let Some(bytes) = self.state.grant(&request.nonce)? {
            return repeated(&request, note, bytes);
        }
        let now_s = when::now_ns() / 1_000_000_000;
        if let Err(refusal) = self.policy.decide(&request, &parsed, now_s, 0, &EvidenceVerifier) {
            return Err(self.log_refusal(note, &refusal));
        }
        if !is_public_key(&request.recipient) {
            return Err(wrong("the recipient's key is no point of P-256; correct the request"));
        }
        let wanted = Wanted::ClientRandom(request.client_random);
        let found = find_candidates(&self.stores, &self.envelopes, wanted, Some(&request.recorder))?;
        self.open_one(&request, note, &found)
    }

    /// Tries each envelope: the first that passes the binding counts.
    fn open_one(&mut self, request: &Request, note: &[u8], found: &Candidates) -> Result<Granted, Failure> {
        let Some(record) = &found.record else {
            return Err(wrong("no store of this Recorder has the connection; give it with --store"));
        };
        if found.envelopes.is_empty() && !self.server_keys.is_empty() {
            return self.open_exchange(request, note, record);
        }
        if found.envelopes.is_empty() {
            return Err(wrong("no store has an envelope of the connection; it cannot be disclosed"));
        }
        let mut master = self.connect()?;
        let mut reasons = Vec::new();
        for bytes in &found.envelopes {
            let opened = match self.ask(&mut master, request, note, bytes) {
                Ok(opened) => opened,
                Err(Stop::Denied(reason)) => {
                    reasons.push(reason);
                    continue;
                }
                Err(Stop::Failed(failure)) => return Err(failure),
            };
            let envelope = Envelope::decode(bytes).map_err(wrong)?;
            let secrets = open_secrets(&envelope, &opened.inner, &mut self.keys);
            let bound = secrets.map_err(|error| reason(&error)).and_then(|secrets| {
                // A connection without packets shows in `verify`; it has nothing to open.
                let packets = (record.counts.packets > 0).then_some(&*self.packets);
                check_binding(request, record, &envelope, &secrets, self.nat, packets)?;
                Ok(secrets)
            });
            match bound {
                Ok(secrets) => return self.grant(request, note, bytes, &opened, &secrets),
                Err(reason) => {
                    let outcome = outcome(OutcomeKind::Failed, request, note, &opened, [0; 32], &reason);
                    // The request is logged already; its failure is for the report.
                    let _ = master.client.report(&outcome, &master.log);
                    reasons.push(reason);
                }
            }
        }
        Err(failed(format!("nothing is disclosed: {}", reasons.join("; "))))
    }

    /// Takes the secrets from the recorded key exchange, with the server's key. The Master logs the request first; it
    /// has no layer to open.
    fn open_exchange(
        &mut self,
        request: &Request,
        note: &[u8],
        record: &ConnectionRecord,
    ) -> Result<Granted, Failure> {
        rsa_suite(record.tls.version, record.tls.suite)
            .map_err(|reason| wrong(format!("no store has an envelope of the connection, and {reason}")))?;
        let mut master = self.connect()?;
        let opened = match self.ask(&mut master, request, note, &[]) {
            Ok(opened) => opened,
            Err(Stop::Denied(reason)) => return Err(failed(format!("nothing is disclosed: {reason}"))),
            Err(Stop::Failed(failure)) => return Err(failure),
        };
        let found = check_recorded(request, record)
            .and_then(|()| self.packets.open_exchange(record, &self.server_keys));
        match found {
            Ok(secrets) => self.grant(request, note, &[], &opened, &secrets),
            Err(reason) => {
                let outcome = outcome(OutcomeKind::Failed, request, note, &opened, [0; 32], &reason);
                // The request is logged already; its failure is for the report.
                let _ = master.client.report(&outcome, &master.log);
                Err(failed(format!("nothing is disclosed: {reason}")))
            }
        }
    }

    /// Asks the Master, and verifies its proof against the pinned key and the last checkpoint.
    fn ask(
        &mut self,
        master: &mut Master,
        request: &Request,
        note: &[u8],
        envelope: &[u8],
    ) -> Result<Opened, Stop> {
        let last = self.state.checkpoint().map_err(Stop::Failed)?;
        // A checkpoint of another log, of the year before, proves nothing here.
        let last = last.filter(|last| last.checkpoint().origin == master.log.name());
        let seen = last.as_ref().map_or(0, |last| last.checkpoint().size);
        let opened = master.client.disclose(seen, note, envelope).map_err(|error| match error {
            evergate_submission::RevealError::Denied { name, text } => {
                Stop::Denied(format!("{name}: {text}"))
            }
            error => Stop::Failed(failed(error)),
        })?;
        reached("opened");
        self.check_proof(note, &opened, last.as_ref(), &master.log).map_err(|what| {
            let nonce: String = request.nonce.iter().map(|byte| format!("{byte:02x}")).collect();
            Stop::Failed(failed(format!(
                "the proof of request {nonce} does not hold: {what}; keep the answer and compare with a witness"
            )))
        })?;
        self.state.set_checkpoint(&opened.receipt.checkpoint).map_err(Stop::Failed)?;
        reached("checkpoint_stored");
        Ok(opened)
    }

    fn check_proof(
        &self,
        note: &[u8],
        opened: &Opened,
        last: Option<&SignedCheckpoint>,
        log: &VerifyingKey,
    ) -> Result<(), String> {
        let text = String::from_utf8_lossy(note).into_owned();
        let leaf = Entry::Event(opened.received_ms, Event::DisclosureRequest(text)).leaf();
        let verified = opened.receipt.verify(&leaf, log, &self.witnesses, &EvidenceVerifier);
        let verified = verified.map_err(|error| error.to_string())?;
        if verified.keys.len() <= self.witnesses.len() {
            return Err("the witness has not cosigned it".into());
        }
        let (Some(last), new) = (last, opened.receipt.checkpoint.checkpoint()) else { return Ok(()) };
        let old = last.checkpoint();
        verify_consistency((old.size, &old.root), (new.size, &new.root), &opened.consistency)
            .map_err(|error| format!("its checkpoint does not continue the last one seen: {error}"))
    }

    /// Seals the secrets for the recipient and makes the grant durable.
    fn grant(
        &mut self,
        request: &Request,
        note: &[u8],
        envelope: &[u8],
        opened: &Opened,
        secrets: &SecretList,
    ) -> Result<Granted, Failure> {
        let note_text = String::from_utf8_lossy(note).into_owned();
        let leaf = Entry::Event(opened.received_ms, Event::DisclosureRequest(note_text.clone())).leaf();
        let aad = grant::aad(&leaf, opened.receipt.index);
        let (enc, sealed) = seal_grant(&request.recipient, &aad, secrets).map_err(failed)?;
        let grant = Grant {
            index: opened.receipt.index,
            received_ms: opened.received_ms,
            note: note_text,
            proof: opened.receipt.to_bytes(),
            envelope: envelope.to_vec(),
            enc,
            sealed,
        };
        let bytes = grant.encode();
        self.state.set_grant(&request.nonce, &bytes)?;
        reached("grant_stored");
        let outcome = outcome(OutcomeKind::Granted, request, note, opened, sha256(&bytes), "");
        Ok(Granted { bytes, outcome })
    }

    /// Logs that a grant left. Without this entry it counts as disclosed, too.
    pub(super) fn report(&self, granted: &Granted) -> Result<(), Failure> {
        let mut master = self.connect()?;
        master.client.report(&granted.outcome, &master.log).map_err(failed)?;
        reached("reported");
        Ok(())
    }

    /// Sends a refused request to the Master, which logs the refusal. The answer discloses nothing.
    fn log_refusal(&self, note: &[u8], refusal: &Refusal) -> Failure {
        let logged = self.connect().and_then(|mut master| match master.client.disclose(0, note, &[]) {
            Err(evergate_submission::RevealError::Denied { .. }) => Ok(()),
            Err(error) => Err(failed(error)),
            Ok(_) => {
                Err(failed("the Master accepts what the policy here refuses; give both the same policy"))
            }
        });
        match logged {
            Ok(()) => failed(format!("refused: {}: {refusal}; the log has the refusal", refusal.name())),
            Err(error) => failed(format!("refused: {}: {refusal}; {}", refusal.name(), error.message)),
        }
    }
}

/// Reason why an envelope leads to no grant.
enum Stop {
    /// The Master refused this envelope or the request.
    Denied(String),
    /// Nothing more is tried.
    Failed(Failure),
}

fn reason(error: &OpenError) -> String {
    match error {
        OpenError::NoKey(..) => format!("destroyed: {error}"),
        _ => format!("closed: {error}"),
    }
}

fn outcome(
    kind: OutcomeKind,
    request: &Request,
    note: &[u8],
    opened: &Opened,
    grant: [u8; 32],
    reason: &str,
) -> Outcome {
    Outcome {
        kind,
        request: sha256(note),
        nonce: request.nonce,
        index: opened.receipt.index,
        grant,
        reason: reason.to_owned(),
    }
}

/// Grant of the journal, if it is of the same request.
fn repeated(request: &Request, note: &[u8], bytes: Vec<u8>) -> Result<Granted, Failure> {
    let grant = Grant::decode(&bytes).map_err(|error| failed(format!("journal of grants: {error}")))?;
    if grant.note.as_bytes() != note {
        return Err(failed("refused: nonce_replayed: another request with this nonce was granted"));
    }
    let outcome = Outcome {
        kind: OutcomeKind::Granted,
        request: sha256(note),
        nonce: request.nonce,
        index: grant.index,
        grant: sha256(&bytes),
        reason: String::new(),
    };
    Ok(Granted { bytes, outcome })
}
