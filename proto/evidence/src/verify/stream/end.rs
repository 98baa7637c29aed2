//! End of a store: what has no statement or receipt, the newest checkpoint, and the expected one.

use super::{Expected, StreamVerifier, segment_path};
use crate::checkpoint::SignedCheckpoint;
use crate::verify::Statements;
use crate::verify::finding::{FindingKind, Report};
use crate::verify::log_view::Extension;
use crate::verify::statements::STATEMENTS;
use std::rc::Rc;

impl<S: Statements> StreamVerifier<'_, S> {
    /// End of the store: `checkpoint` is the content of its file, `expected` a checkpoint from outside.
    pub fn finish(mut self, checkpoint: Option<&[u8]>, expected: Option<&Expected>) -> Report {
        self.end_segment();
        let path = self.place.path.clone();
        let detail = match &self.batch {
            Some(batch) => {
                let (number, last) = (batch.statement.batch, batch.statement.span.last_seq);
                let end = self.place.seq - 1;
                Some(format!("batch {number} ends at record {last}, the store at record {end}"))
            }
            None if self.statements.next().is_some() => {
                Some(format!("statements cover records behind record {}", self.place.seq - 1))
            }
            None => None,
        };
        if let Some(detail) = detail.filter(|_| !self.place.is_excused) {
            if self.place.has_ended {
                let next = segment_path(self.place.segment + 1);
                self.findings.add(FindingKind::Missing, &next, None, detail);
            } else {
                self.findings.add(FindingKind::Sequence, &path, None, detail);
            }
        }
        self.finish_tail(&path);
        self.finish_log(checkpoint, expected);
        self.stamps.finish(&self.log, &mut self.findings, &mut self.checked);
        self.checked.log_size = self.log.size_max();
        self.findings.report(self.checked)
    }

    /// Records without statement and batches without receipt at the end.
    fn finish_tail(&mut self, path: &str) {
        let (records, batches) = (self.checked.unsigned, self.checked.unacknowledged);
        if records > 0 && !self.is_live {
            let detail = format!("{records} records at the end have no statement");
            self.findings.add(FindingKind::Unsigned, path, None, detail);
        }
        let is_unproved = !self.is_live || self.checked.acknowledged == 0;
        if let Some((first, path)) = self.receipts.missing.take().filter(|_| is_unproved) {
            let detail = format!("{batches} batches from {first} on have no receipt of a Master");
            self.findings.add(FindingKind::Unacknowledged, &path, None, detail);
        }
        if self.checked.acknowledged == 0 && batches == 0 {
            self.findings.add(FindingKind::Missing, STATEMENTS, None, "the store has no statement");
        }
    }

    fn finish_log(&mut self, checkpoint: Option<&[u8]>, expected: Option<&Expected>) {
        const CHECKPOINT: &str = "checkpoint";
        let parsed = checkpoint.map(SignedCheckpoint::parse);
        match parsed {
            None if self.checked.acknowledged > 0 => {
                self.findings.add(FindingKind::Missing, CHECKPOINT, None, "the file is missing");
            }
            None => {}
            Some(Err(error)) => self.findings.add(FindingKind::Signature, CHECKPOINT, None, error),
            Some(Ok(signed)) => {
                let (origin, size) = (signed.checkpoint().origin.clone(), signed.checkpoint().size);
                let newest = self.log.size(&origin).unwrap_or(0);
                let path = Rc::from(CHECKPOINT);
                let is_valid = self.log.accept_checkpoint(&signed, (&path, 0), &mut self.findings);
                // A running Recorder replaces the file once a second.
                if is_valid && size < newest && !self.is_live {
                    let detail = format!("its size is {size}, receipts have checkpoints of size {newest}");
                    self.findings.add(FindingKind::Older, CHECKPOINT, None, detail);
                }
            }
        }
        let is_known = self.log.origins().any(|origin| origin == self.facts.installation);
        if !is_known && (self.checked.acknowledged > 0 || checkpoint.is_some()) {
            let detail = "installation is not the log of the receipts and the checkpoint";
            self.findings.add_once(FindingKind::Description, "store.json", detail);
        }
        if let Some(expected) = expected {
            self.finish_expected(expected);
        }
    }

    fn finish_expected(&mut self, expected: &Expected) {
        let size = self.log.size(&expected.origin).unwrap_or(0);
        let (kind, detail) = match self.log.extends(expected) {
            Extension::Proved => return,
            _ if size < expected.size => (
                FindingKind::Older,
                format!(
                    "its log has {size} entries, the expected checkpoint {}: the store is older",
                    expected.size
                ),
            ),
            Extension::Forked => (
                FindingKind::Fork,
                format!("at size {} the log has another root than the expected checkpoint", expected.size),
            ),
            Extension::Unknown => (
                FindingKind::Unproved,
                format!("the receipts do not lead to the root of the expected size {}", expected.size),
            ),
        };
        self.findings.add(kind, "checkpoint", None, detail);
    }
}
