//! The attempts to get a server connection for one request.

use crate::ServerHint;
use crate::bound::Carrier;
use evergate_base::Micros;

/// Which server connection a leg asks for, and which servers were tried before.
#[derive(Debug)]
pub(crate) struct LegAttempt {
    pub(crate) hint: ServerHint,
    /// An idle connection may be used.
    pub(crate) reuse: bool,
    /// The worker connects for it, or has.
    pub(crate) connects: bool,
    /// Which connections it may use for its client.
    pub(crate) carrier: Carrier,
    /// Until when the request may wait for a server with room, while it waits.
    pub(crate) queued_until: Option<Micros>,
    /// The server that the worker connects to, or has connected to.
    pub(crate) trying: Option<u32>,
    pub(crate) tried: Vec<u32>,
    /// Further executions of the request so far, of the pool's `retries`.
    pub(crate) retries: u32,
}

impl LegAttempt {
    /// The first attempt.
    pub(crate) fn new(hint: ServerHint) -> LegAttempt {
        LegAttempt {
            hint,
            reuse: true,
            connects: false,
            carrier: Carrier::Any,
            queued_until: None,
            trying: None,
            tried: Vec::new(),
            retries: 0,
        }
    }

    /// The attempt after this one: at another server, unless all that happened is that the connection was `stale`. A
    /// `free` attempt counts nowhere.
    pub(crate) fn next(mut self, stale: bool, free: bool) -> LegAttempt {
        if !stale {
            self.tried.push(self.trying.unwrap_or(u32::MAX));
        }
        LegAttempt {
            reuse: false, // what failed may have been a stale idle connection
            tried: self.tried,
            retries: self.retries + u32::from(!free),
            ..LegAttempt::new(if stale { self.hint } else { ServerHint::Policy })
        }
    }

    /// See [`crate::upgrade_state`].
    #[rustfmt::skip]
    pub(crate) fn all_fields_are_exported(&self) {
        let LegAttempt {
            hint: _, reuse: _, connects: _, carrier: _, queued_until: _, trying: _, tried: _, retries: _,
        } = self;
    }

    /// Whether the request waits in the worker's queue.
    pub(crate) fn is_queued(&self) -> bool {
        self.queued_until.is_some()
    }

    /// How long the request may still wait in the worker's queue.
    pub(crate) fn queue_time_left(&self, now: Micros) -> Micros {
        self.queued_until.map_or(Micros(0), |until| until.since(now))
    }
}
