//! Cursor over the bytes of a handshake message.

/// A cursor that never reads beyond its end.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().copied().map(u16::from_be_bytes)
    }

    /// A vector whose length is in the `prefix` bytes before it.
    pub(crate) fn vector(&mut self, prefix: usize) -> Option<&'a [u8]> {
        let len = self.take(prefix)?.iter().fold(0, |len, &byte| len << 8 | usize::from(byte));
        self.take(len)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
