//! Time stamps of RFC 3161 over checkpoints: with them, a clock of another party dates the log.
//!
//! A stamp is a checkpoint and the authority's response (`tsa/SIZE.checkpoint`, `tsa/SIZE.tsr`). It counts if the token
//! verifies at its own time and the receipts lead to the root of its checkpoint. It dates every entry before its size:
//! these existed at that time. Bound: [`STAMPS_MAX`] stamps, further ones are not checked.

use super::finding::{Checked, FindingKind, Findings};
use super::log_view::LogView;
use crate::checkpoint::SignedCheckpoint;
use std::rc::Rc;

/// Most stamps that count.
pub const STAMPS_MAX: usize = 1 << 20;
/// Folder of stamps in a store or a bundle.
pub const STAMPS: &str = "tsa";

/// Verifier of tokens against authorities that the reader trusts.
pub trait TokenVerifier {
    /// Time of the token in ms since 1970, if a trusted authority signed it over these bytes. Certificates count at
    /// that time, not now.
    fn verify(&self, token: &[u8], content: &[u8]) -> Result<u64, String>;
}

/// Files of one stamp.
#[derive(Clone, Copy, Debug)]
pub struct StampFiles<'a> {
    /// Size in the names of the files.
    pub size: u64,
    /// Content of `SIZE.checkpoint`.
    pub checkpoint: &'a [u8],
    /// Content of `SIZE.tsr`.
    pub token: &'a [u8],
}

/// Stamps whose tokens verified, or that were not checked.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    /// Origin and size of the tree, and time of the token in ms since 1970.
    verified: Vec<(Rc<str>, u64, u64)>,
    unchecked: u64,
}

impl Stamps {
    /// Takes a stamp before the receipts that lead to it. Without a verifier its token is not checked.
    pub(crate) fn on_stamp(
        &mut self,
        files: &StampFiles<'_>,
        tokens: Option<&dyn TokenVerifier>,
        log: &mut LogView<'_>,
        findings: &mut Findings,
    ) {
        let path: Rc<str> = format!("{STAMPS}/{}.checkpoint", files.size).into();
        let signed = match SignedCheckpoint::parse(files.checkpoint) {
            Ok(signed) => signed,
            Err(error) => return findings.add(FindingKind::Timestamp, &path, None, error),
        };
        if signed.checkpoint().size != files.size {
            return findings.add(FindingKind::Timestamp, &path, None, "it has another size than its name");
        }
        if !log.accept_stamped(&signed, &path, findings) {
            return;
        }
        let Some(tokens) = tokens.filter(|_| self.verified.len() < STAMPS_MAX) else {
            self.unchecked += 1;
            return;
        };
        match tokens.verify(files.token, files.checkpoint) {
            Ok(time_ms) => {
                let origin = signed.checkpoint().origin.as_str().into();
                self.verified.push((origin, files.size, time_ms));
            }
            Err(error) => {
                let path = format!("{STAMPS}/{}.tsr", files.size);
                findings.add(FindingKind::Timestamp, &path, None, error);
            }
        }
    }

    /// Counts the stamps, once every receipt was read.
    pub(crate) fn finish(self, log: &LogView<'_>, findings: &mut Findings, checked: &mut Checked) {
        let mut apart = 0;
        for (origin, size, time_ms) in self.verified {
            if !log.leads_to_stamped(&origin, size) {
                apart += 1;
                continue;
            }
            checked.timestamps += 1;
            if size >= checked.stamped_size {
                (checked.stamped_size, checked.stamped_ms) = (size, time_ms);
            }
        }
        if apart > 0 {
            let detail = format!("{apart} time stamps: the receipts do not lead to their checkpoints");
            findings.warn(FindingKind::Unchecked, STAMPS, detail);
        }
        checked.timestamps_unverified = self.unchecked + apart;
    }
}
