//! Outcome of a request: body of entry 3.

use super::request::Nonce;
use crate::cursor::{Cursor, Malformed, put_short};
use crate::merkle::Hash;

/// Kind of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OutcomeKind {
    /// The grant is in the Revealer's journal.
    Granted = 1,
    /// The policy, or the state of the log, refuses.
    Refused = 2,
    /// The request was logged, and nothing was disclosed.
    Failed = 3,
}

/// Outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Kind of the outcome.
    pub kind: OutcomeKind,
    /// SHA-256 of the request's note.
    pub request: Hash,
    /// Nonce of the request; zeros if it was no request.
    pub nonce: Nonce,
    /// Place of entry 2 in the log; 0 without one.
    pub index: u64,
    /// SHA-256 of the grant; zeros unless granted.
    pub grant: Hash,
    /// Name and explanation of a refusal or failure, at most 255 bytes; empty for a grant.
    pub reason: String,
}

impl Outcome {
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Outcome, Malformed> {
        let number = cursor.u8()?;
        let kind = match number {
            1 => OutcomeKind::Granted,
            2 => OutcomeKind::Refused,
            3 => OutcomeKind::Failed,
            _ => return Err(Malformed(format!("outcome {number}, expected 1 to 3"))),
        };
        Ok(Outcome {
            kind,
            request: cursor.array()?,
            nonce: cursor.array()?,
            index: cursor.u64()?,
            grant: cursor.array()?,
            reason: cursor.short_text()?,
        })
    }

    pub(crate) fn encode_to(&self, out: &mut Vec<u8>) {
        out.push(self.kind as u8);
        out.extend_from_slice(&self.request);
        out.extend_from_slice(&self.nonce);
        out.extend_from_slice(&self.index.to_be_bytes());
        out.extend_from_slice(&self.grant);
        put_short(out, &self.reason);
    }
}
