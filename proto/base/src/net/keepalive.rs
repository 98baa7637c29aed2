//! Times of TCP keep-alive, which detects a peer that has vanished without FIN or RST.

use std::time::Duration;

/// Times after which the peer of a socket is probed and considered lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Seconds without a segment of the peer before it is probed (`TCP_KEEPIDLE`), 1 to 32,767. Probes follow each
    /// other after a quarter of it (`TCP_KEEPINTVL`).
    pub idle_s: u16,
    /// Milliseconds without an acknowledgement, of probes or of data, before the connection breaks (`TCP_USER_TIMEOUT`,
    /// RFC 5482). Linux counts a closed window too: it must not be shorter than slow readers may take.
    pub timeout_ms: u32,
}

impl Keepalive {
    /// Raises the timeout to one probe interval more than `patience`, for a peer that may stop reading that long.
    pub fn outlast(&mut self, patience: Duration) {
        let least = patience + Duration::from_secs(self.idle_s.into());
        self.timeout_ms = self.timeout_ms.max(u32::try_from(least.as_millis()).unwrap_or(u32::MAX));
    }
}
