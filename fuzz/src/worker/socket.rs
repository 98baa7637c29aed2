//! Our end of a peer's connection, without a kernel.

/// Our end of a peer's connection.
#[derive(Debug, Default)]
pub struct Socket {
    /// Bytes that the peer sent and we have not read.
    pub inbox: Vec<u8>,
    /// Bytes read so far.
    pub read: u64,
    /// The peer has sent its end.
    pub ended: bool,
    pub(super) end_seen: bool,
    /// How many bytes the socket still takes.
    pub window: usize,
    /// What we wrote.
    pub written: Vec<u8>,
    pub(super) fin_waits: bool,
    /// We sent our end.
    pub fin: bool,
    /// What is written after our end is lost, as with a kernel that says EPIPE.
    pub(super) forgives: bool,
}

impl Socket {
    pub(super) fn take(&mut self, bytes: &[u8]) {
        assert!(bytes.is_empty() || !self.fin || self.forgives, "bytes after our end");
        self.window = if self.window == usize::MAX { usize::MAX } else { self.window - bytes.len() };
        self.written.extend_from_slice(bytes);
    }

    pub(super) fn receive(&mut self, count: usize) -> Vec<u8> {
        let bytes: Vec<u8> = self.inbox.drain(..count.min(self.inbox.len())).collect();
        self.read += bytes.len() as u64;
        bytes
    }
}
