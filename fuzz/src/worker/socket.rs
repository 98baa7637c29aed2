//! The worker's end of a peer's connection, without a kernel.

/// The worker's end of a peer's connection.
#[derive(Debug, Default)]
pub struct Socket {
    /// Bytes that the peer sent and the worker has not read.
    pub inbox: Vec<u8>,
    /// Bytes read so far.
    pub read: u64,
    /// Whether the peer has sent its end.
    pub ended: bool,
    pub(super) end_seen: bool,
    /// Number of further bytes that the socket accepts.
    pub window: usize,
    /// Bytes that the worker wrote.
    pub written: Vec<u8>,
    pub(super) fin_waits: bool,
    /// Whether the worker sent its end.
    pub fin: bool,
    /// Whether bytes written after the end are dropped, like with a kernel that returns EPIPE.
    pub(super) drops_late_writes: bool,
}

impl Socket {
    pub(super) fn take(&mut self, bytes: &[u8]) {
        assert!(bytes.is_empty() || !self.fin || self.drops_late_writes, "bytes after the end of the socket");
        self.window = if self.window == usize::MAX { usize::MAX } else { self.window - bytes.len() };
        self.written.extend_from_slice(bytes);
    }

    pub(super) fn receive(&mut self, count: usize) -> Vec<u8> {
        let bytes: Vec<u8> = self.inbox.drain(..count.min(self.inbox.len())).collect();
        self.read += bytes.len() as u64;
        bytes
    }
}
