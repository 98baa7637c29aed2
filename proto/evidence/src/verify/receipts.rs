//! Frames of a `.proofs` file: receipts of the batches whose first record lies in the segment, in order.
//!
//! A frame of another kind has the receipt of the segment's deletion.

use crate::cursor::Cursor;
use crate::statement::STATEMENT_BYTES;
use crate::tile::ENTRY_BYTES_MAX;

/// Longest frame in bytes, behind its length: kind, entry, path and checkpoint.
pub const RECEIPT_BYTES_MAX: usize = 3 + ENTRY_BYTES_MAX + (80 << 10);
const KIND_BATCH: u8 = 1;
const KIND_EVENT: u8 = 2;

/// Content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiptFrame<'a> {
    /// Receipt of a batch: the statement as the Master logged it, and the text of its tlog-proof.
    Batch(&'a [u8; STATEMENT_BYTES], &'a [u8]),
    /// Receipt of an event: the entry as the Master logged it, and the text of its tlog-proof.
    Event(&'a [u8], &'a [u8]),
}

impl<'a> ReceiptFrame<'a> {
    /// Appends the frame: length, kind, content.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let start = to.len();
        to.extend_from_slice(&[0; 4]);
        match self {
            ReceiptFrame::Batch(statement, proof) => {
                to.push(KIND_BATCH);
                to.extend_from_slice(*statement);
                to.extend_from_slice(proof);
            }
            ReceiptFrame::Event(entry, proof) => {
                to.push(KIND_EVENT);
                crate::cursor::put_long(to, entry);
                to.extend_from_slice(proof);
            }
        }
        let length = (to.len() - start - 4) as u32; // proofs and entries are below RECEIPT_BYTES_MAX
        to[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    /// Frame behind its length; `None` if it is no receipt.
    pub fn decode(bytes: &'a [u8]) -> Option<ReceiptFrame<'a>> {
        let mut cursor = Cursor::new(bytes);
        match cursor.u8().ok()? {
            KIND_BATCH => {
                let (statement, proof) = cursor.rest().split_first_chunk()?;
                Some(ReceiptFrame::Batch(statement, proof))
            }
            KIND_EVENT => Some(ReceiptFrame::Event(cursor.long().ok()?, cursor.rest())),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_both_ways() {
        let mut bytes = Vec::new();
        let frame = ReceiptFrame::Batch(&[7; STATEMENT_BYTES], b"proof");
        frame.encode(&mut bytes);
        assert_eq!(bytes[..5], [0, 0, 0, 218, 1]);
        assert_eq!(ReceiptFrame::decode(&bytes[4..]), Some(frame));
        assert_eq!(ReceiptFrame::decode(&bytes[4..216]), None);
        bytes.clear();
        let frame = ReceiptFrame::Event(b"entry", b"proof");
        frame.encode(&mut bytes);
        assert_eq!(bytes[..7], [0, 0, 0, 13, 2, 0, 5]);
        assert_eq!(ReceiptFrame::decode(&bytes[4..]), Some(frame));
        assert_eq!(ReceiptFrame::decode(&[]), None);
        assert_eq!(ReceiptFrame::decode(&[3, 0]), None);
    }
}
