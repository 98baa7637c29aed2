//! Requests that a client sends again after a failover: their leg is known, and nothing is decided again.

use crate::Io;
use crate::connection::Connection;
use crate::exchange::{BodyPrefixScan, RequestState, ResponseState};
use crate::unacked_input::UNDECIDED_MAX;
use evergate_base::sip_hash;
use evergate_http::RequestHead;
use evergate_replication::Route;

impl Connection {
    /// The decision on the request that comes again, if it is known.
    pub(crate) fn replayed_route(&self) -> Option<Route> {
        let leg = self
            .servers
            .leg
            .as_ref()
            .filter(|leg| leg.pending.awaits_head && leg.route.exchange == self.exchange.request())?;
        Some(leg.route.clone())
    }

    /// After a failover the client resends a request whose leg is known. Nothing is decided again, so the request must
    /// be the same as far as rules looked at it.
    pub(crate) fn repeat_request(
        &mut self,
        io: &mut Io<'_>,
        head: &RequestHead<'_>,
        data: &[u8],
        known: &Route,
    ) -> usize {
        let looked_at = head.head_len.saturating_add(known.looked_at as usize);
        if data.len() < looked_at && self.await_repeated(head, data, looked_at) {
            return 0;
        }
        self.exchange.prefix = None;
        io.scratch.path.clear();
        let key = self.snapshot.request_key.0;
        let same = self.head_end(head, data) == known.answered
            && data.get(..looked_at).is_some_and(|reported| sip_hash(key, reported) == known.hash)
            && evergate_http::canonical_path(head.path, &mut io.scratch.path).is_ok();
        let Some(mut leg) = self.servers.leg.take().filter(|leg| same && leg.pending.awaits_head) else {
            self.end_abruptly(io, "request_replay_mismatch");
            return data.len();
        };
        leg.pending.awaits_head = false;
        self.find_request_client(head);
        self.log_client();
        self.write_head(io, head, &mut leg);
        let open = leg.is_open();
        self.servers.leg = Some(leg);
        self.pass_head(io, head);
        if matches!(self.exchange.answering, ResponseState::Tunnel | ResponseState::Ended) {
            self.exchange.receiving = RequestState::Tunnel; // the server's 101 came before the head came again
        }
        if open {
            self.leg_ready(io);
        }
        head.head_len
    }

    /// Waits for what was looked at of a body before. False when no more of it comes.
    fn await_repeated(&mut self, head: &RequestHead<'_>, data: &[u8], enough: usize) -> bool {
        let limits = &self.listener().limits;
        let (mut body, reported) = (head.body(), &data[head.head_len..]);
        let continues = body.advance(reported, &limits.http).is_ok() && !body.is_done();
        // The other node may have looked at more than this one would.
        if !continues || enough > UNDECIDED_MAX {
            return false;
        }
        let at = data.len();
        self.exchange.receiving = RequestState::Prefix;
        self.exchange.prefix = Some(Box::new(BodyPrefixScan { body, at, seen: at, enough }));
        true
    }

    /// Input that a decision on this request answers; 0 without backups.
    pub(crate) fn head_end(&self, head: &RequestHead<'_>, data: &[u8]) -> u64 {
        let left = data.len() - head.head_len;
        self.remote
            .as_ref()
            .map_or(0, |remote| remote.client_input.head_end(head.head_len, self.client.in_pos, left))
    }
}
