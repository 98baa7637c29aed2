//! Frames of a `.proofs` file: receipts of the batches whose first record lies in the segment, in order.

use crate::statement::STATEMENT_BYTES;

/// Longest receipt in bytes, behind its length: kind, statement, path and checkpoint.
pub const RECEIPT_BYTES_MAX: usize = 1 + STATEMENT_BYTES + (80 << 10);
const KIND_RECEIPT: u8 = 1;

/// Content of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiptFrame<'a> {
    /// The statement as the Master logged it.
    pub statement: &'a [u8; STATEMENT_BYTES],
    /// Text of the tlog-proof.
    pub proof: &'a [u8],
}

/// Appends a frame: length, kind, the statement as logged, and the text of its proof.
pub fn encode_receipt(statement: &[u8; STATEMENT_BYTES], proof: &[u8], to: &mut Vec<u8>) {
    let length = (1 + STATEMENT_BYTES + proof.len()) as u32; // proofs are below RECEIPT_BYTES_MAX
    to.extend_from_slice(&length.to_be_bytes());
    to.push(KIND_RECEIPT);
    to.extend_from_slice(statement);
    to.extend_from_slice(proof);
}

/// Frame behind its length; `None` if it is no receipt.
pub fn receipt_frame(bytes: &[u8]) -> Option<ReceiptFrame<'_>> {
    let (&kind, rest) = bytes.split_first()?;
    let (statement, proof) = rest.split_first_chunk()?;
    (kind == KIND_RECEIPT && !proof.is_empty()).then_some(ReceiptFrame { statement, proof })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_survives_both_ways() {
        let mut bytes = Vec::new();
        encode_receipt(&[7; STATEMENT_BYTES], b"proof", &mut bytes);
        assert_eq!(bytes[..4], 218u32.to_be_bytes());
        let frame = ReceiptFrame { statement: &[7; STATEMENT_BYTES], proof: b"proof" };
        assert_eq!(receipt_frame(&bytes[4..]), Some(frame));
        assert_eq!(receipt_frame(&bytes[4..217]), None);
        assert_eq!(receipt_frame(&[]), None);
    }
}
