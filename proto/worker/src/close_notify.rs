//! The orderly end of a TLS connection to a server: close_notify before FIN (RFC 8446 section 6.1, RFC 5246 section
//! 7.2.1).
//!
//! Best effort, in one write that never blocks. The record is the last that its key seals: the record layer is dropped.

use crate::host::{Host, Socket};
use crate::upstreams::Upstream;
use evergate_base::Micros;
use evergate_base::net::Transfer;
use evergate_tls::{Records, alert};

/// Reads of 4 KiB before the end; session tickets and the server's own close_notify take one.
const UNREAD_READS_MAX: usize = 16;

impl<H: Host> Upstream<H> {
    /// Sends close_notify if the socket takes it at once. Reads unread data before: closing a socket with unread data
    /// sends RST instead of FIN.
    pub(super) fn close_tls(&mut self, mut records: Records, now: Micros) {
        let mut unread = [0; 4096];
        for _ in 0..UNREAD_READS_MAX {
            if !matches!(self.socket.read(&mut unread), Transfer::Moved(_)) {
                break;
            }
        }
        let mut record = Vec::new();
        records.seal_alert(alert::CLOSE_NOTIFY, &mut record);
        if record.is_empty() {
            return; // the key is used up
        }
        if let Transfer::Moved(count) = self.socket.write(&record)
            && let Some(gated) = &mut self.gated
        {
            gated.handle_written(count, now); // the FIN's sequence number comes after it
        }
    }
}
