//! Receipts in files: of batches in `.proofs`, in order of the batches; of deletions and holds in `outbox/`.

use crate::cursor::Cursor;
use crate::statement::STATEMENT_BYTES;
use crate::tile::ENTRY_BYTES_MAX;

/// Longest receipt in bytes, behind the length of its frame: entry, path and checkpoint.
pub const RECEIPT_BYTES_MAX: usize = 4 + ENTRY_BYTES_MAX + (80 << 10);
const KIND_BATCH: u8 = 1;

/// Frame of a `.proofs` file: the receipt of a batch whose first record lies in the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiptFrame<'a> {
    /// The statement as the Master logged it.
    pub statement: &'a [u8; STATEMENT_BYTES],
    /// Text of the tlog-proof.
    pub proof: &'a [u8],
}

/// Content of `outbox/NAME.receipt`: the receipt of a deletion or of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventReceipt<'a> {
    /// The entry as the Master logged it.
    pub entry: &'a [u8],
    /// Text of the tlog-proof.
    pub proof: &'a [u8],
}

impl<'a> ReceiptFrame<'a> {
    /// Appends the frame: length, kind, statement, proof.
    pub fn encode(&self, to: &mut Vec<u8>) {
        let length = (1 + STATEMENT_BYTES + self.proof.len()) as u32; // proofs are below RECEIPT_BYTES_MAX
        to.extend_from_slice(&length.to_be_bytes());
        to.push(KIND_BATCH);
        to.extend_from_slice(self.statement);
        to.extend_from_slice(self.proof);
    }

    /// Frame behind its length; `None` if it is no receipt.
    pub fn decode(bytes: &'a [u8]) -> Option<ReceiptFrame<'a>> {
        let (&kind, rest) = bytes.split_first()?;
        let (statement, proof) = rest.split_first_chunk()?;
        (kind == KIND_BATCH).then_some(ReceiptFrame { statement, proof })
    }
}

impl<'a> EventReceipt<'a> {
    /// Appends the receipt: length of the entry, entry, proof.
    pub fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&(self.entry.len() as u32).to_be_bytes()); // entries are below ENTRY_BYTES_MAX
        to.extend_from_slice(self.entry);
        to.extend_from_slice(self.proof);
    }

    /// Receipt from the bytes of its file.
    pub fn decode(bytes: &'a [u8]) -> Option<EventReceipt<'a>> {
        let mut cursor = Cursor::new(bytes);
        let length = cursor.u32().ok()? as usize;
        Some(EventReceipt { entry: cursor.bytes(length).ok()?, proof: cursor.rest() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receipts_survive_both_ways() {
        let mut bytes = Vec::new();
        let frame = ReceiptFrame { statement: &[7; STATEMENT_BYTES], proof: b"proof" };
        frame.encode(&mut bytes);
        assert_eq!(bytes[..5], [0, 0, 0, 218, 1]);
        assert_eq!(ReceiptFrame::decode(&bytes[4..]), Some(frame));
        assert_eq!(ReceiptFrame::decode(&bytes[4..216]), None);
        bytes.clear();
        let receipt = EventReceipt { entry: b"entry", proof: b"proof" };
        receipt.encode(&mut bytes);
        assert_eq!(bytes[..4], [0, 0, 0, 5]);
        assert_eq!(EventReceipt::decode(&bytes), Some(receipt));
        assert_eq!(EventReceipt::decode(&bytes[..8]), None);
    }
}
