//! Verification of a Recorder's evidence: pure decisions over records, statements and receipts that arrive in order.
//!
//! [`StreamVerifier`] takes the segments of a store by number: of each its receipts, then the digests of its records.
//! It pulls statements as records need them. Everything that does not hold becomes a [`Finding`] with the path of its
//! file. Memory: one tree, the open connections, the receipts of one segment, and at most [`FINDINGS_MAX`] findings.
//!
//! Not done here: reading files, hashing records (a [`RecordDigest`] is made on any thread), signature algorithms.

mod connections;
mod digest;
mod finding;
mod holds;
mod log_view;
mod receipts;
mod session;
mod statements;
mod stream;
mod timestamps;
mod trust;

pub use digest::{Event, RecordDigest};
pub use finding::{Checked, FINDINGS_MAX, Finding, FindingKind, Findings, Report, escaped};
pub use log_view::LogView;
pub use receipts::{EventReceipt, RECEIPT_BYTES_MAX, ReceiptFrame};
pub use session::{BATCHES, BatchProof, SESSION, Session, SessionVerifier};
pub use stream::{Expected, StoreFacts, StreamVerifier};
pub use timestamps::{STAMPS, STAMPS_MAX, StampFiles, TokenVerifier};
pub use trust::{TRUST_BYTES_MAX, Trust, TrustError};

use crate::statement::STATEMENT_BYTES;

/// Most bytes of `N.deleted.json`.
pub const DELETION_BYTES_MAX: usize = 16 << 10;

/// Statements of a store in order.
pub trait Statements {
    /// The next statement; `None` at the end.
    fn next(&mut self) -> Option<[u8; STATEMENT_BYTES]>;
}

impl<T: Iterator<Item = [u8; STATEMENT_BYTES]>> Statements for T {
    fn next(&mut self) -> Option<[u8; STATEMENT_BYTES]> {
        Iterator::next(self)
    }
}
