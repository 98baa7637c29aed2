//! Decision about a request: whether its signatures, times and content satisfy the policy.
//!
//! Every refusal has a name that the log keeps. Signatures are verified before anything in the text counts.

use super::policy::{Member, Policy};
use super::request::{Request, Scope};
use crate::note::{Note, NoteError, SignatureVerifier};
use std::collections::BTreeSet;

/// Longest time by which a request may be ahead of the clock, in seconds.
pub const AHEAD_S_MAX: u64 = 300;
const DAY_S: u64 = 86_400;

/// Reason why nothing is disclosed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Bytes that are no request.
    #[error("no valid request: {0}")]
    Malformed(String),
    /// There is no policy in force.
    #[error("the log has no policy")]
    NoPolicy,
    /// Signature of a key that the policy lacks.
    #[error("the policy has no key {0}")]
    UnknownKey(String),
    /// Signature that does not verify.
    #[error("the signature of {0} does not verify")]
    WrongSignature(String),
    /// Two signatures of one key.
    #[error("two signatures of the key {0}")]
    ApproverTwice(String),
    /// Two keys of one person.
    #[error("two keys of {0} approve")]
    SamePerson(String),
    /// The requester did not sign, or may not request.
    #[error("the requester {0} did not sign, or may not request")]
    NoRequester(String),
    /// The requester approves with another key.
    #[error("the requester {0} approves the own request")]
    RequesterApproves(String),
    /// Signature of a member that may not approve.
    #[error("{0} may not approve")]
    NotApprover(String),
    /// Too few approvers.
    #[error("{found} approvers signed, {needed} are needed")]
    TooFew {
        /// Persons that approve.
        found: u64,
        /// Persons that must approve.
        needed: u64,
    },
    /// More disclosures than the policy permits within 24 hours.
    #[error("the log has {0} disclosures within 24 hours: as many as the policy permits")]
    PerDay(u64),
    /// The request has expired.
    #[error("the request has expired")]
    Expired,
    /// The request is from the future.
    #[error("the request is from the future: set the clock of its author")]
    Early,
    /// The request is valid for longer than the policy permits, or for no time.
    #[error("the request is valid for {0} s, at most {1} are possible")]
    Validity(u64, u64),
    /// No reason.
    #[error("the request has no reason")]
    NoReason,
    /// A wider scope than the policy permits.
    #[error("the policy does not permit the scope '{0}'")]
    WrongScope(&'static str),
    /// Credentials that the policy does not permit.
    #[error("the policy does not permit credentials in exports")]
    Credentials,
    /// Another request has this nonce.
    #[error("another request has this nonce")]
    NonceReplayed,
    /// The keys of the epoch are destroyed, or never were here.
    #[error("there is no key of epoch {0}: it was destroyed")]
    Destroyed(u64),
    /// Envelope of another connection than the request.
    #[error("the envelope is of another connection: its {0} differs")]
    OtherEnvelope(&'static str),
    /// Envelope that the key does not open.
    #[error("the envelope does not open: it was changed, or is of another key")]
    Closed,
    /// A hold needs the epoch.
    #[error("a hold needs epoch {0}")]
    Held(u64),
}

impl Refusal {
    /// Name in the log, in metrics and for programs.
    pub fn name(&self) -> &'static str {
        match self {
            Refusal::Malformed(_) => "malformed",
            Refusal::NoPolicy => "no_policy",
            Refusal::UnknownKey(_) => "unknown_key",
            Refusal::WrongSignature(_) => "wrong_signature",
            Refusal::ApproverTwice(_) => "approver_twice",
            Refusal::SamePerson(_) => "same_person",
            Refusal::NoRequester(_) => "no_requester",
            Refusal::RequesterApproves(_) => "requester_approves",
            Refusal::NotApprover(_) => "not_approver",
            Refusal::TooFew { .. } => "too_few",
            Refusal::PerDay(_) => "per_day",
            Refusal::Expired => "expired",
            Refusal::Early => "early",
            Refusal::Validity(..) => "validity",
            Refusal::NoReason => "no_reason",
            Refusal::WrongScope(_) => "wrong_scope",
            Refusal::Credentials => "credentials",
            Refusal::NonceReplayed => "nonce_replayed",
            Refusal::Destroyed(_) => "destroyed",
            Refusal::OtherEnvelope(_) => "other_envelope",
            Refusal::Closed => "closed",
            Refusal::Held(_) => "held",
        }
    }

    /// Name and explanation: the reason in entry 3.
    pub fn reason(&self) -> String {
        format!("{}: {self}", self.name())
    }
}

impl From<super::RequestError> for Refusal {
    fn from(error: super::RequestError) -> Refusal {
        match error {
            super::RequestError::Note(NoteError::Duplicate(name)) => Refusal::ApproverTwice(name),
            other => Refusal::Malformed(other.to_string()),
        }
    }
}

impl Policy {
    /// Decides about a request whose nonce is new. `disclosed` is the number of disclosures within the last 24 hours.
    pub fn decide(
        &self,
        request: &Request,
        signatures: &Note,
        now_s: u64,
        disclosed: u64,
        verifier: &dyn SignatureVerifier,
    ) -> Result<(), Refusal> {
        let signers = self.signers(signatures, verifier)?;
        let approvers = self.approvers(&request.requester, &signers)?;
        check_times(request.created_s, request.expires_s, now_s, self.days)?;
        if request.reason.trim().is_empty() {
            return Err(Refusal::NoReason);
        }
        if request.scope == Scope::Family && self.scope == Scope::Connection {
            return Err(Refusal::WrongScope(request.scope.name()));
        }
        if request.with_credentials && !self.with_credentials {
            return Err(Refusal::Credentials);
        }
        let needed = match disclosed < self.per_day {
            true => self.threshold,
            false if self.threshold_beyond == 0 => return Err(Refusal::PerDay(disclosed)),
            false => self.threshold_beyond,
        };
        if approvers < needed { Err(Refusal::TooFew { found: approvers, needed }) } else { Ok(()) }
    }

    /// Members whose signatures verify: every line must be one.
    pub(super) fn signers(
        &self,
        note: &Note,
        verifier: &dyn SignatureVerifier,
    ) -> Result<Vec<&Member>, Refusal> {
        let verified = match note.verify(&self.keys(), verifier) {
            Ok(verified) => verified,
            Err(NoteError::Wrong(name)) => return Err(Refusal::WrongSignature(name)),
            Err(_) => {
                let first = note.signatures().first().map(|line| line.name.clone());
                return Err(Refusal::UnknownKey(first.unwrap_or_default()));
            }
        };
        match verified.foreign.into_iter().next() {
            Some(name) => Err(Refusal::UnknownKey(name)),
            None => Ok(verified.keys.iter().filter_map(|(index, _)| self.members.get(*index)).collect()),
        }
    }

    /// Number of persons that approve.
    fn approvers(&self, requester: &str, signers: &[&Member]) -> Result<u64, Refusal> {
        let own = signers.iter().find(|member| member.key.name() == requester && member.role.requests());
        let Some(own) = own else { return Err(Refusal::NoRequester(requester.to_owned())) };
        let others = signers.iter().filter(|member| member.key.name() != requester);
        let mut persons = BTreeSet::new();
        for member in others {
            if member.person == own.person {
                return Err(Refusal::RequesterApproves(member.person.clone()));
            }
            if !member.role.approves() {
                return Err(Refusal::NotApprover(member.person.clone()));
            }
            if !persons.insert(&member.person) {
                return Err(Refusal::SamePerson(member.person.clone()));
            }
        }
        Ok(persons.len() as u64)
    }
}

/// Checks creation and expiry against the clock and the longest validity.
pub(super) fn check_times(created_s: u64, expires_s: u64, now_s: u64, days: u64) -> Result<(), Refusal> {
    let validity = expires_s.saturating_sub(created_s);
    if validity == 0 || validity > days * DAY_S {
        return Err(Refusal::Validity(validity, days * DAY_S));
    }
    if created_s > now_s.saturating_add(AHEAD_S_MAX) {
        return Err(Refusal::Early);
    }
    if expires_s <= now_s { Err(Refusal::Expired) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::super::policy::{PolicyError, Role};
    use super::super::request::tests::request;
    use super::*;
    use crate::note::{Algorithm, PublicKey, SignatureLine, VerifyingKey};

    /// Verifier that accepts a signature that repeats the key behind the message.
    struct Echo;

    impl SignatureVerifier for Echo {
        fn is_valid(&self, _: Algorithm, key: &[u8], message: &[u8], signature: &[u8]) -> bool {
            [message, key].concat() == signature
        }
    }

    fn member(person: &str, key: &str, number: u8, role: Role) -> Member {
        let key = VerifyingKey::new(key, PublicKey::Ed25519([number; 32])).unwrap();
        Member { person: person.into(), role, key }
    }

    fn policy() -> Policy {
        Policy {
            version: 1,
            threshold: 2,
            threshold_beyond: 3,
            per_day: 20,
            days: 7,
            scope: Scope::Connection,
            with_credentials: false,
            members: vec![
                member("alice", "alice", 1, Role::Both),
                member("alice", "alice-2", 2, Role::Both),
                member("bob", "bob", 3, Role::Approver),
                member("bob", "bob-2", 4, Role::Approver),
                member("carol", "carol", 5, Role::Approver),
                member("dave", "dave", 6, Role::Requester),
                member("erin", "erin", 7, Role::Approver),
            ],
        }
    }

    fn signature(text: &str, key: &VerifyingKey) -> SignatureLine {
        let PublicKey::Ed25519(bytes) = key.key() else { panic!() };
        SignatureLine::of(key, [text.as_bytes(), &bytes].concat())
    }

    fn sign(text: &str, keys: &[&str]) -> Note {
        let mut note = Note::new(text.to_owned()).unwrap();
        for name in keys {
            let member = policy().members.into_iter().find(|member| member.key.name() == *name);
            let key = member.map_or_else(|| member_key(name), |member| member.key);
            note.sign(signature(text, &key)).unwrap();
        }
        note
    }

    fn member_key(name: &str) -> VerifyingKey {
        VerifyingKey::new(name, PublicKey::Ed25519([99; 32])).unwrap()
    }

    fn decide(request: &Request, keys: &[&str], disclosed: u64) -> Result<(), &'static str> {
        let note = sign(&request.to_text(), keys);
        let now_s = 1_795_000_100;
        policy().decide(request, &note, now_s, disclosed, &Echo).map_err(|refusal| refusal.name())
    }

    const GOOD: [&str; 3] = ["alice", "bob", "carol"];

    #[test]
    fn threshold_of_distinct_persons_is_accepted() {
        assert_eq!(decide(&request(), &GOOD, 0), Ok(()));
        assert_eq!(decide(&request(), &["carol", "alice", "bob-2", "erin"], 19), Ok(()));
        let request = Request { requester: "dave".into(), ..request() };
        assert_eq!(decide(&request, &["dave", "alice", "bob"], 0), Ok(()));
    }

    #[test]
    fn each_wrong_set_of_signatures_has_its_refusal() {
        for (keys, name) in [
            (&["alice", "bob"][..], "too_few"),
            (&["alice"], "too_few"),
            (&["alice", "bob", "bob-2"], "same_person"),
            (&["alice", "alice-2", "bob"], "requester_approves"),
            (&["alice", "bob", "dave"], "not_approver"),
            (&["bob", "carol"], "no_requester"),
            (&["alice", "bob", "mallory"], "unknown_key"),
            (&["mallory"], "unknown_key"),
        ] {
            assert_eq!(decide(&request(), keys, 0), Err(name), "{keys:?}");
        }
        let requester = |name: &str| Request { requester: name.into(), ..request() };
        assert_eq!(decide(&requester("bob"), &["bob", "alice", "carol"], 0), Err("no_requester"));
        assert_eq!(decide(&requester("nemo"), &GOOD, 0), Err("no_requester"));
    }

    #[test]
    fn signature_over_another_text_is_refused() {
        let note = sign(&request().to_text(), &GOOD);
        let other = Request { epoch: 1, ..request() };
        let text = String::from_utf8(note.to_bytes()).unwrap().replace("epoch 497000", "epoch 1");
        let note = Note::parse(text.as_bytes()).unwrap();
        let refused = policy().decide(&other, &note, 1_795_000_100, 0, &Echo);
        assert_eq!(refused, Err(Refusal::WrongSignature("alice".into())));
    }

    #[test]
    fn two_lines_of_one_key_are_an_approver_twice() {
        let note = String::from_utf8(sign(&request().to_text(), &GOOD).to_bytes()).unwrap();
        let last = note.lines().last().unwrap();
        let error = Request::parse(format!("{note}{last}\n").as_bytes()).unwrap_err();
        assert_eq!(Refusal::from(error), Refusal::ApproverTwice("carol".into()));
    }

    #[test]
    fn wrong_content_has_its_refusal() {
        let now = 1_795_000_100;
        for (request, name) in [
            (Request { expires_s: now, ..request() }, "expired"),
            (Request { expires_s: request().created_s, ..request() }, "validity"),
            (Request { expires_s: request().created_s + 7 * DAY_S + 1, ..request() }, "validity"),
            (Request { created_s: now + AHEAD_S_MAX + 1, ..request() }, "early"),
            (Request { reason: " ".into(), ..request() }, "no_reason"),
            (Request { scope: Scope::Family, ..request() }, "wrong_scope"),
            (Request { with_credentials: true, ..request() }, "credentials"),
        ] {
            assert_eq!(decide(&request, &GOOD, 0), Err(name));
        }
        assert_eq!(decide(&Request { expires_s: now + 1, ..request() }, &GOOD, 0), Ok(()));
    }

    #[test]
    fn more_disclosures_a_day_need_the_higher_threshold() {
        assert_eq!(decide(&request(), &GOOD, 20), Err("too_few"));
        assert_eq!(decide(&request(), &["alice", "bob", "carol", "erin"], 20), Ok(()));
        let closed = Policy { threshold_beyond: 0, ..policy() };
        let note = sign(&request().to_text(), &["alice", "bob", "carol", "erin"]);
        assert_eq!(closed.decide(&request(), &note, 1_795_000_100, 20, &Echo), Err(Refusal::PerDay(20)));
    }

    #[test]
    fn policy_survives_its_text_and_refuses_others() {
        let policy = policy();
        let text = policy.to_text();
        assert_eq!(Policy::parse_text(&text), Ok(policy.clone()));
        for (from, to) in [
            ("threshold 2", "threshold 0"),
            ("threshold 2", "threshold 5"),
            ("threshold-beyond 3", "threshold-beyond 1"),
            ("days 7", "days 8"),
            ("member bob approver bob+", "member bob judge bob+"),
            ("version 1", "version 01"),
        ] {
            assert!(Policy::parse_text(&text.replacen(from, to, 1)).is_err(), "{to}");
        }
        let mut same = policy.clone();
        same.members.push(member("mallory", "mallory", 1, Role::Approver));
        assert!(matches!(Policy::parse_text(&same.to_text()), Err(PolicyError::Value(_))));
    }

    #[test]
    fn policy_is_signed_by_the_approvers_before_it() {
        let first = policy();
        let open = |policy: &Policy, keys: &[&str], previous: Option<&Policy>| {
            Policy::open(&sign(&policy.to_text(), keys).to_bytes(), previous, &Echo)
        };
        assert_eq!(open(&first, &["bob", "carol"], None), Ok(first.clone()));
        let few = Err(PolicyError::Approvals { found: 1, needed: 2 });
        assert_eq!(open(&first, &["bob", "bob-2", "dave"], None), few);
        let mut second = Policy { version: 2, threshold: 1, threshold_beyond: 0, ..first.clone() };
        second.members = vec![member("mallory", "mallory", 99, Role::Both)];
        assert_eq!(open(&second, &["mallory", "bob"], Some(&first)), few);
        assert_eq!(open(&second, &["carol", "bob"], Some(&first)), Ok(second.clone()));
        let versions = Err(PolicyError::Version { found: 2, expected: 1 });
        assert_eq!(open(&second, &["mallory"], None), versions);
    }
}
