//! What a restored connection repeats: records towards the client that were decided, or may have been sent as planned.

use evergate_replication::{ConnectionState, RecordLayout};
use std::collections::VecDeque;

/// Records that the node before has decided or sent, and their content as far as it has arrived again.
#[derive(Debug, Default)]
pub(crate) struct RecordReplay {
    /// Decided records.
    pub(crate) forced: VecDeque<RecordLayout>,
    /// The records being made are known to the backups.
    pub(crate) repeating: bool,
    /// The node before may have sent records of the response under way that no entry names (deterministic records).
    pub(crate) resumed: bool,
    /// Digest of the run under way.
    pub(crate) digest: u64,
    /// Plaintext that waits until it fills a decided run, or a record. Bound: one run.
    pub(crate) hold: Vec<u8>,
    /// Plaintext bytes behind the newest parser point that the client has already.
    pub(crate) skip: u64,
    /// Plaintext position at which a connection without TLS ends.
    pub(crate) end_at: Option<u64>,
    /// The client's key generation whose KeyUpdate is answered after the replay; 0 when none.
    pub(crate) owed: u32,
    /// How the connection ends after the replay: by this alert, for this reason.
    pub(crate) end_after_replay: Option<(u8, &'static str)>,
}

impl RecordReplay {
    /// What a restored connection starts from.
    pub(crate) fn of(state: &ConnectionState) -> RecordReplay {
        let in_clear = !state.open.as_ref().is_some_and(|open| open.tls);
        RecordReplay {
            forced: state.boundaries.clone(),
            skip: state.server.plain.saturating_sub(state.server.point_plain),
            owed: state.client.owed,
            end_at: if in_clear { state.closed.map(|(end, _)| end) } else { None },
            ..RecordReplay::default()
        }
    }

    /// Whether decided records are still to be repeated.
    pub(crate) fn replays(&self) -> bool {
        !self.forced.is_empty()
    }

    /// Whether records that are decided, or may have been sent as planned, keep everything else from being sent.
    pub(crate) fn is_repeating(&self) -> bool {
        self.replays() || self.resumed
    }

    /// Whether decided records wait for bytes that no peer may send any more.
    pub(crate) fn is_stuck(&self) -> bool {
        self.replays() || (self.resumed && !self.hold.is_empty())
    }

    /// Whether part of the message under way has been sent by the node before us.
    pub(crate) fn has_begun(&self) -> bool {
        self.is_repeating() || self.skip > 0
    }

    /// Whether output waits for the end of the replay.
    pub(crate) fn has_waiting(&self) -> bool {
        self.owed > 0 || self.end_after_replay.is_some()
    }
}
