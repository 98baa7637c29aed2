//! Context of a call: the connection's access to its worker.

use crate::Peer;
use crate::host::{AuditedCapture, Host};
use crate::limits::{Hold, is_crowded};
use crate::pools::Generation;
use crate::{Counters, NamedSessions, Shared};
use evergate_base::Micros;
use evergate_base::session::{Sealed, SessionId};
use evergate_connection::{Birth, ConnectionHost, LoggedHeaders, Snapshot};
use evergate_rules::RuleId;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Context of one call: the connection's access to its worker.
pub(super) struct CallContext<'a, H> {
    pub(super) host: &'a H,
    pub(super) snapshot: &'a Arc<Snapshot>,
    pub(super) current: &'a Generation,
    pub(super) draining: bool,
    /// Headers that the access log wants; absent without an access log.
    pub(super) logs: Option<LoggedHeaders>,
    pub(super) now: Micros,
    pub(super) sessions: &'a NamedSessions,
    pub(super) counters: &'a Counters,
    pub(super) audit: Option<&'a mut (dyn AuditedCapture + 'static)>,
    pub(super) crowd: Crowd<'a>,
}

/// Distance of one connection's limits from being reached.
pub(super) struct Crowd<'a> {
    pub(super) shared: &'a Shared,
    pub(super) connections_max: usize,
    pub(super) peers: &'a [Peer],
    pub(super) holds: &'a [Hold],
}

impl Crowd<'_> {
    fn is_there(&self) -> bool {
        let open = self.shared.connections.load(Ordering::Relaxed);
        // Without free descriptors, the open connections are the maximum.
        let max =
            if self.shared.room.is_short() { open.min(self.connections_max) } else { self.connections_max };
        let evictable = || self.peers.iter().map(|peer| peer.counters.evictable.get() as usize).sum();
        is_crowded(open, max, evictable) || self.holds.iter().any(Hold::is_crowded)
    }
}

impl<H: Host> ConnectionHost for CallContext<'_, H> {
    fn snapshot(&self) -> &Arc<Snapshot> {
        self.snapshot
    }

    fn is_draining(&self) -> bool {
        self.draining
    }

    fn is_crowded(&self) -> bool {
        self.crowd.is_there()
    }

    fn allow(&mut self, snapshot: &Snapshot, rule: RuleId, client: IpAddr, host: &[u8]) -> bool {
        // A request under an older generation does not count against the limits of the new one.
        snapshot.generation != self.current.snapshot.generation
            || self.current.rates.allow(rule, client, host, self.now.0)
    }

    fn give_back(&mut self, snapshot: &Snapshot, rule: RuleId, client: IpAddr, host: &[u8]) {
        if snapshot.generation == self.current.snapshot.generation {
            self.current.rates.give_back(rule, client, host);
        }
    }

    fn session(&mut self, id: &SessionId) -> Option<Sealed> {
        let found = self.sessions.find(id, self.host.wall_clock_s());
        let counters = self.counters;
        if found.is_some() { &counters.session_ids_found } else { &counters.session_ids_missed }.add(1);
        found
    }

    fn seal(&mut self, birth: &Birth<'_>) -> Option<Vec<u8>> {
        self.audit.as_mut()?.seal(birth, self.now)
    }

    fn wants_logs(&self) -> bool {
        self.logs.is_some()
    }

    fn logged_headers(&self) -> LoggedHeaders {
        self.logs.unwrap_or_default()
    }
}
