//! Decryption of one protected record, for the record layer of a connection and for readers of captures.

use std::ops::Range;

use crate::error::RecordError;
use crate::keys::{Direction, Position, Suite, Version};
use crate::records::{PAYLOAD_MAX, aad_tls12};

/// Bytes of a record's header.
pub(crate) const HEADER: usize = 5;
/// Bytes of a tag, of all suites.
pub(crate) const TAG: usize = 16;
/// Bytes of the nonce that a record of GCM in TLS 1.2 carries.
pub(crate) const EXPLICIT_NONCE: usize = 8;

/// Whether records carry a part of their nonce (RFC 5288 section 3).
pub(crate) fn has_explicit_nonce(version: Version, suite: Suite) -> bool {
    version == Version::Tls12 && suite != Suite::Chacha20Poly1305
}

impl Direction {
    /// Decrypts `body`, the record behind `header`, in place. Answers its content type and the place of its content in
    /// `body`, and moves to the next sequence number. After an error `body` is useless and the position unchanged.
    pub(crate) fn open(
        &mut self,
        version: Version,
        suite: Suite,
        header: &[u8; HEADER],
        body: &mut [u8],
    ) -> Result<(u8, Range<usize>), RecordError> {
        match version {
            Version::Tls13 => self.open_tls13(header, body),
            Version::Tls12 => self.open_tls12(suite, header, body),
        }
    }

    fn open_tls13(
        &mut self,
        header: &[u8; HEADER],
        body: &mut [u8],
    ) -> Result<(u8, Range<usize>), RecordError> {
        let len = HEADER + body.len();
        let inner_len =
            body.len().checked_sub(TAG).filter(|&len| len > 0).ok_or(RecordError::TooShort(len))?;
        // "The full encoded TLSInnerPlaintext MUST NOT exceed 2^14 + 1 octets" (RFC 8446 section 5.4).
        if inner_len > PAYLOAD_MAX + 1 {
            return Err(RecordError::TooLong(len));
        }
        let (inner, tag) = body.split_at_mut(inner_len);
        self.decrypt(self.nonce(), header, inner, tag)?;
        let end = inner.iter().rposition(|&byte| byte != 0).ok_or(RecordError::NoContentType)?;
        Ok((inner[end], 0..end))
    }

    fn open_tls12(
        &mut self,
        suite: Suite,
        header: &[u8; HEADER],
        body: &mut [u8],
    ) -> Result<(u8, Range<usize>), RecordError> {
        let (content, len) = (header[0], HEADER + body.len());
        let (start, nonce, body) = if has_explicit_nonce(Version::Tls12, suite) {
            let Some((explicit, body)) = body.split_first_chunk_mut::<EXPLICIT_NONCE>() else {
                return Err(RecordError::TooShort(len));
            };
            (EXPLICIT_NONCE, self.explicit_nonce(*explicit), body)
        } else {
            (0, self.nonce(), body)
        };
        let inner_len = body.len().checked_sub(TAG).ok_or(RecordError::TooShort(len))?;
        if inner_len > PAYLOAD_MAX {
            return Err(RecordError::TooLong(len));
        }
        let aad = aad_tls12(self.position.sequence, content, inner_len);
        let (inner, tag) = body.split_at_mut(inner_len);
        self.decrypt(nonce, &aad, inner, tag)?;
        Ok((content, start..start + inner_len))
    }

    fn decrypt(
        &mut self,
        nonce: [u8; 12],
        aad: &[u8],
        inner: &mut [u8],
        tag: &[u8],
    ) -> Result<(), RecordError> {
        let Position { generation, sequence } = self.position;
        if !self.cipher.open(nonce, aad, tag, inner) {
            return Err(RecordError::Decrypt { generation, sequence });
        }
        self.position.sequence = sequence + 1;
        Ok(())
    }
}
