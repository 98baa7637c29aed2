//! Order to destroy the keys of an epoch that a hold needs: the text that a threshold of approvers signs.

use super::decide::{Refusal, check_times};
use super::policy::Policy;
use super::request::{REASON_BYTES_MAX, RequestError};
use super::text::{Lines, one_line};
use crate::envelope::EPOCH_NS;
use crate::note::{Note, SignatureVerifier};
use std::collections::BTreeSet;

/// Longest life of a connection in ns: a hold on packets needs the epochs of that time before them.
pub const CONNECTION_NS_MAX: u64 = 24 * EPOCH_NS;
const TITLE: &str = "evergate-audit/destroy@v1";

/// Order to destroy the keys of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestroyOrder {
    /// The epoch.
    pub epoch: u64,
    /// Reason, for people.
    pub reason: String,
    /// Time of the order in seconds since 1970.
    pub created_s: u64,
    /// Time from which the order is void, in seconds since 1970.
    pub expires_s: u64,
}

impl DestroyOrder {
    /// Order and note from exactly the note's bytes.
    pub fn parse(bytes: &[u8]) -> Result<(DestroyOrder, Note), RequestError> {
        let note = Note::parse(bytes)?;
        let mut lines = Lines::new(note.text(), TITLE)?;
        let order = DestroyOrder {
            epoch: lines.number("epoch")?,
            reason: lines.parse("reason", |text| one_line(text, REASON_BYTES_MAX))?,
            created_s: lines.number("created")?,
            expires_s: lines.number("expires")?,
        };
        lines.end()?;
        Ok((order, note))
    }

    /// Text that is signed.
    pub fn to_text(&self) -> String {
        format!(
            "{TITLE}\nepoch {}\nreason {}\ncreated {}\nexpires {}\n",
            self.epoch, self.reason, self.created_s, self.expires_s
        )
    }
}

impl Policy {
    /// Decides about an order for an epoch: a threshold of approvers must have signed it.
    pub fn decide_destroy(
        &self,
        epoch: u64,
        order: &[u8],
        now_s: u64,
        verifier: &dyn SignatureVerifier,
    ) -> Result<(), Refusal> {
        let (order, note) = DestroyOrder::parse(order)?;
        if order.epoch != epoch {
            return Err(Refusal::Malformed(format!("the order is for epoch {}", order.epoch)));
        }
        check_times(order.created_s, order.expires_s, now_s, self.days)?;
        let mut persons = BTreeSet::new();
        for member in self.signers(&note, verifier)? {
            if !member.role.approves() {
                return Err(Refusal::NotApprover(member.person.clone()));
            }
            if !persons.insert(&member.person) {
                return Err(Refusal::SamePerson(member.person.clone()));
            }
        }
        let (found, needed) = (persons.len() as u64, self.threshold);
        if found < needed { Err(Refusal::TooFew { found, needed }) } else { Ok(()) }
    }
}

/// Whether a hold on this period, in ns since 1970, needs the keys of an epoch. A connection may live for a day behind
/// its epoch.
pub fn hold_needs_epoch(epoch: u64, from_ns: u64, to_ns: u64) -> bool {
    let begin = epoch.saturating_mul(EPOCH_NS);
    let end = begin.saturating_add(EPOCH_NS + CONNECTION_NS_MAX);
    begin <= to_ns && from_ns < end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_its_text() {
        let order = DestroyOrder { epoch: 5, reason: "court order".into(), created_s: 1, expires_s: 2 };
        let mut note = Note::new(order.to_text()).unwrap();
        assert!(DestroyOrder::parse(&note.to_bytes()).is_err());
        let line = crate::note::SignatureLine { name: "a".into(), id: 1, signature: vec![1] };
        note.sign(line).unwrap();
        assert_eq!(DestroyOrder::parse(&note.to_bytes()), Ok((order, note)));
    }

    #[test]
    fn hold_needs_the_epochs_of_a_day_before_it() {
        let hour = |number: u64| number * EPOCH_NS;
        assert!(hold_needs_epoch(100, hour(100), hour(100)));
        assert!(hold_needs_epoch(100, hour(124), hour(200)));
        assert!(!hold_needs_epoch(100, hour(125), hour(200)));
        assert!(!hold_needs_epoch(100, 0, hour(100) - 1));
        assert!(hold_needs_epoch(100, 0, u64::MAX));
        assert!(hold_needs_epoch(u64::MAX, 0, u64::MAX));
    }
}
