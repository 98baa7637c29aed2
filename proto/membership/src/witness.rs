//! Answers of the witness: an address outside the cluster whose answer shows that this node is not cut off.
//!
//! Invariant: an answer counts from the time of its question.

use evergate_base::Micros;

/// Answers of the witness so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Witness {
    /// End of the validity of the last answer.
    pub(crate) until: Micros,
    /// Since then answers have been valid without a gap.
    pub(crate) since: Option<Micros>,
    /// Time of the newest question that was answered.
    pub(crate) asked_at: Micros,
}

impl Witness {
    /// Records an answer to a question of `asked_at`, valid for `fence`.
    pub(crate) fn record_answer(&mut self, now: Micros, asked_at: Micros, fence: Micros) {
        if !self.answers(now) || self.since.is_none() {
            self.since = Some(now);
        }
        self.until = self.until.max(asked_at + fence);
        self.asked_at = self.asked_at.max(asked_at);
    }

    /// Records that the witness is known not to answer.
    pub(crate) fn record_failure(&mut self) {
        self.until = Micros(0);
        self.since = None;
    }

    /// Ends the unbroken time when the last answer is no longer valid.
    pub(crate) fn note_now(&mut self, now: Micros) {
        if !self.answers(now) {
            self.since = None;
        }
    }

    /// Begins the unbroken time again.
    pub(crate) fn restart(&mut self) {
        self.since = None;
    }

    /// Whether the last answer is valid.
    pub(crate) fn answers(&self, now: Micros) -> bool {
        self.until > now
    }

    /// Whether answers have been valid without a gap for `span`.
    pub(crate) fn answers_for(&self, now: Micros, span: Micros) -> bool {
        self.answers(now) && self.since.is_some_and(|since| now.since(since) >= span)
    }
}
