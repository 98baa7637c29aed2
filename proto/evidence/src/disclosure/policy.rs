//! Policy of disclosure: persons, their keys and roles, thresholds and limits.
//!
//! A policy is a signed note. The first one is signed by a threshold of its own approvers, each later one by a
//! threshold of the approvers before it. So no owner of the Master's configuration changes it alone.

use super::request::{Scope, credentials, credentials_name, name};
use super::text::{BadLine, Lines};
use crate::note::{Note, NoteError, PublicKey, SignatureVerifier, VerifyingKey};
use std::collections::BTreeSet;

/// Most members of a policy.
pub const MEMBERS_MAX: usize = 64;
/// Longest validity of a request, in days.
pub const DAYS_MAX: u64 = 7;
const TITLE: &str = "evergate-audit/policy@v1";

/// What a member may sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Requests.
    Requester,
    /// Approvals of other persons' requests, and the next policy.
    Approver,
    /// Both, but never of one request.
    Both,
}

impl Role {
    const ALL: [Role; 3] = [Role::Requester, Role::Approver, Role::Both];

    /// Word in texts.
    pub fn name(self) -> &'static str {
        match self {
            Role::Requester => "requester",
            Role::Approver => "approver",
            Role::Both => "both",
        }
    }

    /// Whether the member may request.
    pub fn requests(self) -> bool {
        self != Role::Approver
    }

    /// Whether the member may approve.
    pub fn approves(self) -> bool {
        self != Role::Requester
    }
}

/// Key of a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The person. A person may have several keys.
    pub person: String,
    /// What the key may sign.
    pub role: Role,
    /// The key: Ed25519.
    pub key: VerifyingKey,
}

/// Policy of disclosure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Number of the policy: 1, 2, …
    pub version: u64,
    /// Approvers that a request needs.
    pub threshold: u64,
    /// Approvers that a request needs beyond `per_day`; 0: it is refused.
    pub threshold_beyond: u64,
    /// Disclosures within 24 hours that need `threshold` approvers only.
    pub per_day: u64,
    /// Longest validity of a request, in days.
    pub days: u64,
    /// Widest scope of a request.
    pub scope: Scope,
    /// Whether a request may include credentials.
    pub with_credentials: bool,
    /// Keys of persons.
    pub members: Vec<Member>,
}

/// Reason why bytes are no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The note itself is wrong.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// Line that is not as the format asks: its number, from 1.
    #[error("policy line {0} has no valid '{1}'")]
    Line(usize, &'static str),
    /// Value that makes no sense.
    #[error("policy: {0}")]
    Value(&'static str),
    /// Policy that does not follow the one in force.
    #[error("policy has version {found}, expected {expected}")]
    Version {
        /// Its version.
        found: u64,
        /// The next version.
        expected: u64,
    },
    /// Too few approvers signed.
    #[error("policy has signatures of {found} approvers of the policy before it, needs {needed}")]
    Approvals {
        /// Persons that signed.
        found: u64,
        /// Persons that must sign.
        needed: u64,
    },
}

impl From<BadLine> for PolicyError {
    fn from(BadLine(number, what): BadLine) -> PolicyError {
        PolicyError::Line(number, what)
    }
}

impl Policy {
    /// Policy from a note's text.
    pub fn parse_text(text: &str) -> Result<Policy, PolicyError> {
        let mut lines = Lines::new(text, TITLE)?;
        let mut policy = Policy {
            version: lines.number("version")?,
            threshold: lines.number("threshold")?,
            threshold_beyond: lines.number("threshold-beyond")?,
            per_day: lines.number("per-day")?,
            days: lines.number("days")?,
            scope: lines.parse("scope", Scope::of)?,
            with_credentials: lines.parse("credentials", credentials)?,
            members: Vec::new(),
        };
        // The lines before: the title and seven values.
        for number in 9.. {
            let Some(line) = lines.next() else { break };
            if policy.members.len() == MEMBERS_MAX {
                return Err(PolicyError::Value("it has too many members"));
            }
            policy.members.push(Member::of_line(line).ok_or(PolicyError::Line(number, "member"))?);
        }
        policy.check()?;
        Ok(policy)
    }

    /// Text that is signed.
    pub fn to_text(&self) -> String {
        let head = format!(
            "{TITLE}\nversion {}\nthreshold {}\nthreshold-beyond {}\nper-day {}\ndays {}\nscope {}\ncredentials {}\n",
            self.version,
            self.threshold,
            self.threshold_beyond,
            self.per_day,
            self.days,
            self.scope.name(),
            credentials_name(self.with_credentials),
        );
        self.members.iter().fold(head, |text, member| text + &member.to_line())
    }

    /// Policy that may follow `previous`: signed by a threshold of its approvers, or of its own if there is none.
    pub fn open(
        bytes: &[u8],
        previous: Option<&Policy>,
        verifier: &dyn SignatureVerifier,
    ) -> Result<Policy, PolicyError> {
        let note = Note::parse(bytes)?;
        let policy = Policy::parse_text(note.text())?;
        let (found, expected) = (policy.version, previous.map_or(1, |previous| previous.version + 1));
        if found != expected {
            return Err(PolicyError::Version { found, expected });
        }
        let judge = previous.unwrap_or(&policy);
        let keys = judge.keys();
        let verified = note.verify(&keys, verifier)?;
        let persons: BTreeSet<&str> = verified
            .keys
            .iter()
            .filter_map(|(index, _)| judge.members.get(*index))
            .filter(|member| member.role.approves())
            .map(|member| member.person.as_str())
            .collect();
        let (found, needed) = (persons.len() as u64, judge.threshold);
        if found < needed { Err(PolicyError::Approvals { found, needed }) } else { Ok(policy) }
    }

    /// Keys of the members, in their order.
    pub fn keys(&self) -> Vec<VerifyingKey> {
        self.members.iter().map(|member| member.key.clone()).collect()
    }

    fn check(&self) -> Result<(), PolicyError> {
        let approvers: BTreeSet<&str> = self
            .members
            .iter()
            .filter(|member| member.role.approves())
            .map(|member| member.person.as_str())
            .collect();
        let approvers = approvers.len() as u64;
        let beyond = self.threshold_beyond;
        let is_distinct = |index: usize, member: &Member| {
            self.members[..index]
                .iter()
                .all(|other| other.key.key() != member.key.key() && other.key.name() != member.key.name())
        };
        if self.threshold == 0 || self.threshold > approvers || beyond > approvers {
            return Err(PolicyError::Value("a threshold is 0, or higher than the number of approvers"));
        }
        if beyond != 0 && beyond < self.threshold {
            return Err(PolicyError::Value("threshold-beyond is lower than threshold"));
        }
        if !(1..=DAYS_MAX).contains(&self.days) {
            return Err(PolicyError::Value("days is not 1 to 7"));
        }
        match self.members.iter().enumerate().all(|(index, member)| is_distinct(index, member)) {
            true => Ok(()),
            false => Err(PolicyError::Value("two members have one key or one name of a key")),
        }
    }
}

impl Member {
    fn of_line(line: &str) -> Option<Member> {
        let mut parts = line.strip_prefix("member ")?.split(' ');
        let (person, role) = (name(parts.next()?)?, parts.next()?);
        let role = Role::ALL.into_iter().find(|other| other.name() == role)?;
        let key = VerifyingKey::parse(parts.next()?).ok()?;
        let is_usable = parts.next().is_none() && matches!(key.key(), PublicKey::Ed25519(_));
        is_usable.then_some(Member { person, role, key })
    }

    fn to_line(&self) -> String {
        format!("member {} {} {}\n", self.person, self.role.name(), self.key.to_vkey())
    }
}
