//! Findings of a verification, what it checked, and the report of both.

use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Most findings and most warnings of a report. Further ones are counted.
pub const FINDINGS_MAX: usize = 1000;

/// Kind of a finding: what does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// The description of the store or the bundle is damaged, or contradicts the evidence.
    Description,
    /// A file is missing, and no logged deletion declares it.
    Missing,
    /// A segment was deleted although a logged hold covered it.
    Held,
    /// Bytes that no Recorder writes.
    Segment,
    /// The last segment ends within a block, and no Recorder runs.
    TornTail,
    /// The sequence of records has a hole, or goes back.
    Sequence,
    /// The packets of a connection have a hole, or are fewer than its last record counts.
    Connection,
    /// A statement does not follow the one before, or contradicts itself or its receipt.
    Statement,
    /// A batch's records have another root than its statement.
    Root,
    /// A batch's records have other counts or times than its statement.
    Counters,
    /// A receipt is damaged, missing, in a wrong place, or does not prove its statement.
    Receipt,
    /// A checkpoint lacks a valid signature of a trusted log, or has one of an unknown key.
    Signature,
    /// Fewer trusted witnesses signed than the trust file asks for.
    Witness,
    /// Two checkpoints of one log contradict each other.
    Fork,
    /// The store is older than a checkpoint that is known.
    Older,
    /// The store does not prove that it extends the expected checkpoint.
    Unproved,
    /// Time goes back, or runs ahead of the Master's.
    Time,
    /// Batches at the end have no receipt, and no Recorder runs.
    Unacknowledged,
    /// Records at the end have no statement, and no Recorder runs.
    Unsigned,
    /// A time stamp, or its checkpoint, is damaged, or no trusted authority made it.
    Timestamp,
    /// Warning: the log signs with a key that is for trials.
    Trial,
    /// Warning: a file that is no part of the layout.
    UnknownFile,
    /// Warning: what was not verified, such as time stamps without a trusted authority.
    Unchecked,
}

/// Something that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// What does not hold.
    pub kind: FindingKind,
    /// File below the folder that was verified.
    pub path: String,
    /// Place in the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Reason in words. Control characters are escaped.
    pub detail: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path)?;
        if let Some(offset) = self.offset {
            write!(f, " at byte {offset}")?;
        }
        write!(f, ": {}", self.detail)
    }
}

/// Collector of findings and warnings.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    findings: Vec<Finding>,
    warnings: Vec<Finding>,
    omitted: u64,
    /// Kinds that are reported once for each file.
    once: BTreeSet<(FindingKind, String)>,
}

impl Findings {
    /// Adds a finding.
    pub fn add(&mut self, kind: FindingKind, path: &str, offset: Option<u64>, detail: impl fmt::Display) {
        if self.findings.len() >= FINDINGS_MAX {
            self.omitted += 1;
            return;
        }
        let finding = Finding { kind, path: escaped(path), offset, detail: escaped(&detail.to_string()) };
        if self.findings.last() != Some(&finding) {
            self.findings.push(finding);
        }
    }

    /// Adds a finding unless one of this kind names the file already.
    pub fn add_once(&mut self, kind: FindingKind, path: &str, detail: impl fmt::Display) {
        if self.findings.len() < FINDINGS_MAX && self.once.insert((kind, path.to_owned())) {
            self.add(kind, path, None, detail);
        }
    }

    /// Adds a warning. It does not change the result.
    pub fn warn(&mut self, kind: FindingKind, path: &str, detail: impl fmt::Display) {
        let warning =
            Finding { kind, path: escaped(path), offset: None, detail: escaped(&detail.to_string()) };
        if self.warnings.len() < FINDINGS_MAX && !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.findings.is_empty()
    }

    /// Whether there are as many findings as a report has.
    pub fn is_full(&self) -> bool {
        self.findings.len() >= FINDINGS_MAX
    }

    /// The report.
    pub fn report(self, checked: Checked) -> Report {
        Report {
            ok: self.findings.is_empty(),
            findings: self.findings,
            warnings: self.warnings,
            omitted: self.omitted,
            checked,
        }
    }
}

/// What a verification went through.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// Segments read.
    pub segments: u64,
    /// Segments that a logged deletion declares.
    pub deleted_segments: u64,
    /// Records read.
    pub records: u64,
    /// Packets among them.
    pub packets: u64,
    /// Captured bytes of these packets.
    pub packet_bytes: u64,
    /// Packets that gaps declare lost.
    pub declared_lost: u64,
    /// The same by reason.
    pub lost: BTreeMap<&'static str, u64>,
    /// Connections whose last record was read.
    pub connections: u64,
    /// Holes in the payload of connections without a gap in their time.
    pub unexplained: u64,
    /// Batches whose root was computed and equals the statement.
    pub batches: u64,
    /// Batches with a receipt that proves them.
    pub acknowledged: u64,
    /// Batches at the end without a receipt.
    pub unacknowledged: u64,
    /// Records at the end without a statement.
    pub unsigned: u64,
    /// Time stamps of trusted authorities over trees to which the receipts lead.
    pub timestamps: u64,
    /// Time stamps that were not checked, or over trees to which no receipt leads.
    pub timestamps_unverified: u64,
    /// Entries of the largest stamped tree: they existed at `stamped_ms`.
    pub stamped_size: u64,
    /// Time of its stamp in ms since 1970.
    pub stamped_ms: u64,
    /// Entries of the newest checkpoint that was verified.
    pub log_size: u64,
    /// Time of the first packet in nanoseconds since 1970.
    pub first_ns: u64,
    /// Time of the last packet in nanoseconds since 1970.
    pub last_ns: u64,
}

/// Result of a verification.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether the evidence is proved.
    pub ok: bool,
    /// What does not hold.
    pub findings: Vec<Finding>,
    /// Remarks that do not change the result.
    pub warnings: Vec<Finding>,
    /// Findings beyond [`FINDINGS_MAX`].
    pub omitted: u64,
    /// What was checked.
    pub checked: Checked,
}

/// Text with every control character and every character outside ASCII as an escape, at most 400 characters.
pub fn escaped(text: &str) -> String {
    const CHARACTERS_MAX: usize = 400;
    let mut out = String::with_capacity(text.len().min(CHARACTERS_MAX));
    for (count, character) in text.chars().enumerate() {
        match character {
            _ if count == CHARACTERS_MAX => {
                out.push_str("...");
                break;
            }
            ' '..='~' => out.push(character),
            _ => out.extend(character.escape_default()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_text_is_escaped_and_cut() {
        assert_eq!(escaped("a\x1b[31m\n\u{202e}"), "a\\u{1b}[31m\\n\\u{202e}");
        assert_eq!(escaped(&"x".repeat(1000)).len(), 403);
    }

    #[test]
    fn findings_beyond_the_bound_are_counted() {
        let mut findings = Findings::default();
        for number in 0..FINDINGS_MAX as u64 + 5 {
            findings.add(FindingKind::Segment, "a", Some(number), "x");
        }
        let report = findings.report(Checked::default());
        assert_eq!((report.ok, report.findings.len(), report.omitted), (false, FINDINGS_MAX, 5));
    }
}
