//! Server to client: the response's head is rewritten, its body relayed where it lies.

use crate::bound::Binding;
use crate::connection::{Connection, ReadPlan};
use crate::exchange::{RequestState, ResponseState};
use crate::record_buffer::GROWTH_MAX;
use crate::routing;
use crate::server_leg::ServerLeg;
use crate::timers::Timer;
use crate::unacked_input::TAIL_BYTES;
use crate::{Io, SLOTS, Slots};
use evergate_base::Micros;
use evergate_http::{Body, Parsed, ResponseEdits, ResponseHead, parse_response, write_response_head};
use evergate_tls::{Layout, PAYLOAD_MAX};
use std::ops::Range;

/// What a response head asks for.
struct Turn {
    /// Bytes of the head.
    used: usize,
    /// Whether another head follows.
    interim: bool,
    /// Whether what follows cannot be passed on where it lies.
    copied: bool,
}

impl Connection {
    /// The server's bytes: `n` new ones, placed as `plan` asked.
    pub fn handle_server_data(&mut self, io: &mut Io<'_>, plan: ReadPlan, n: usize) {
        if n > 0 {
            self.progress_down(io, n);
        }
        match plan {
            ReadPlan::Nothing => {}
            ReadPlan::Records { held } => {
                self.take_leg_records(io, held, held + n);
                if n > PAYLOAD_MAX {
                    self.reserve_records();
                }
            }
            ReadPlan::Head { layout, held, .. } => {
                let start = Slots::payload(layout, 0).start;
                let range = start..start + held + n;
                if let Some(leg) = &mut self.servers.leg {
                    leg.response.held = Vec::new();
                }
                self.retain_server(io, held, start + held..range.end);
                if self.must_copy_down() || self.exchange.answering != ResponseState::Head {
                    let bytes = io.scratch.down.at(range).to_vec();
                    self.take_response(io, &bytes);
                } else {
                    self.take_head_in_place(io, range);
                }
            }
            ReadPlan::Body { layout, held, .. } => {
                self.record_down(n as u64);
                self.take_batch(io, layout, held, n);
            }
        }
        self.note_server_point();
        self.finish_call(io);
    }

    /// A body's bytes in the slots, behind `held` ones that were taken before.
    fn take_batch(&mut self, io: &mut Io<'_>, layout: Layout, held: usize, n: usize) {
        if let Some(remote) = &mut self.remote {
            remote.replay.hold.clear();
        }
        let mut left = n;
        for index in 0..SLOTS {
            let room = Slots::body(layout, index, held);
            let range = room.start..room.start + left.min(room.len());
            if range.is_empty() || self.end.is_closed() {
                break;
            }
            left -= range.len();
            if index > 0 && self.is_near_end(range.len()) {
                self.note_server_point(); // a record ends here, and from here on all is kept
            }
            self.retain_server(io, 0, range.clone());
            if index > 0 && range.len() < room.len() && self.waits_for_more(range.len()) {
                self.note_server_point(); // a record ends here
                self.hold_body(io, range);
            } else {
                let start = Slots::payload(layout, index).start;
                self.take_body_in_place(io, start, range, left > 0);
            }
        }
        if n > PAYLOAD_MAX {
            self.reserve_records();
        }
    }

    /// Whether with the next bytes so little is left of a body that they are kept for a stash.
    fn is_near_end(&self, next: usize) -> bool {
        let near = |left: u64| left <= TAIL_BYTES + next as u64;
        self.remote.is_some()
            && matches!(self.exchange.answering, ResponseState::Body(Body::Length { left }) if near(left))
    }

    /// Each byte of a response gives its server more time, but those of its head do not: that has to come as a whole.
    fn progress_down(&mut self, io: &mut Io<'_>, bytes: usize) {
        let timer = self.natural_timer();
        let in_head = timer == Timer::Response
            && self.exchange.answering == ResponseState::Head
            && self.deadline.timer == timer;
        if matches!(timer, Timer::Response | Timer::Tunnel) && !in_head {
            self.progress(timer, bytes, io.now);
        }
    }

    /// A whole head gives its server more time. False when it is one too many of those that are not the last.
    fn note_head(&mut self, interim: bool, now: Micros) -> bool {
        let Some(leg) = &mut self.servers.leg else { return true };
        let few = leg.response.note_head(interim);
        if self.natural_timer() == Timer::Response {
            self.arm(Timer::Response, now);
        }
        few
    }

    /// A head (or the start of one) with what follows it, in the first slot. The rewritten head is put directly before
    /// the body, so that both leave in one record.
    fn take_head_in_place(&mut self, io: &mut Io<'_>, range: Range<usize>) {
        let mut slots = io.scratch.slots.take().unwrap_or_default();
        let mut head_out = std::mem::take(&mut io.scratch.head);
        head_out.clear();
        let turn = self.read_head(io.scratch.down.at(range.clone()), &mut slots, &mut head_out, io.now);
        io.scratch.slots = Some(slots);
        match turn {
            Ok(None) => {
                let partial = io.scratch.down.at(range).to_vec();
                self.hold_head(partial);
            }
            Ok(Some(turn)) => {
                self.forget_request(io, turn.interim);
                let body = range.start + turn.used..range.end;
                let start = body.start.checked_sub(head_out.len());
                let fits =
                    |start: usize| start + GROWTH_MAX >= range.start && body.end - start <= PAYLOAD_MAX;
                match start.filter(|start| fits(*start)) {
                    Some(start) if !turn.copied => {
                        self.count_down(io, head_out.len()); // it goes out, whatever follows
                        let taken = self.advance_body(io, body.clone());
                        io.scratch.down.at_mut(start..body.start).copy_from_slice(&head_out);
                        self.count_down(io, taken);
                        self.seal_in_place(io, start..body.start + taken);
                        self.passed_down(io, turn.used + taken, body.len() > taken, true);
                    }
                    _ => {
                        let rest = io.scratch.down.at(body).to_vec();
                        self.count_down(io, head_out.len());
                        self.frame(io, &head_out);
                        self.passed_down(io, turn.used, !rest.is_empty(), true);
                        self.take_response(io, &rest);
                    }
                }
            }
            Err(refusal) => {
                let first = io.scratch.down.at(range.clone());
                self.explain_tls_answer(first);
                self.server_refused(io, refusal.reason);
            }
        }
        io.scratch.head = head_out;
    }

    /// Reads a response head and prepares what the client gets; `None` when it is incomplete.
    fn read_head(
        &mut self,
        data: &[u8],
        slots: &mut evergate_http::HeaderSlots,
        out: &mut Vec<u8>,
        now: Micros,
    ) -> Result<Option<Turn>, evergate_http::Refusal> {
        let Some(leg) = &self.servers.leg else { return Ok(None) };
        let mut limits = self.listener().limits.http.clone();
        limits.head_bytes_max = limits.head_bytes_max.min(PAYLOAD_MAX); // a partial head is kept in one slot
        let flags = leg.route.flags;
        let Parsed::Complete(head) = parse_response(data, &limits, slots, flags.head)? else {
            return Ok(None);
        };
        let refuse = |reason| Err(evergate_http::Refusal { status: 502, reason });
        if head.is_upgrade && !head.switches_within(&leg.route.offer) {
            return refuse("upstream_unrequested_upgrade");
        }
        let interim = head.is_interim() && !head.is_upgrade;
        let auth = head.connection_auth();
        let unframed = flags.http10 && matches!(head.body(), Body::Chunked(_));
        if !interim && let mut body @ Body::Chunked(_) = head.body() {
            body.advance(&data[head.head_len..], &limits)?; // while an answer to the client is still possible
        }
        let turn = Turn { used: head.head_len, interim, copied: interim || unframed };
        if !self.note_head(interim, now) {
            return refuse("upstream_interim_responses");
        }
        if turn.interim && flags.http10 {
            return Ok(Some(turn)); // HTTP/1.0 knows no interim responses (RFC 9110 section 15.2)
        }
        if !interim && !head.is_upgrade {
            self.exchange.last_response |= self.ends_before_request(&head, &data[head.head_len..]);
        }
        if let Some(leg) = &mut self.servers.leg {
            leg.binding = leg.binding.with(auth);
        }
        self.write_response(&head, out);
        if !turn.interim {
            self.begin_response(&head);
        }
        Ok(Some(turn))
    }

    /// Whether the connection closes because this response, with the bytes behind its head, ends before its request
    /// (RFC 9112 section 9.6: the closing side announces it). With backups nothing is announced: another node writes
    /// the same head, and does not know how much of the request was here.
    fn ends_before_request(&self, head: &ResponseHead<'_>, rest: &[u8]) -> bool {
        let mut body = head.body();
        let unfinished = self.remote.is_none() && !self.exchange.is_request_whole();
        unfinished && body.advance(rest, &self.listener().limits.http).is_ok() && body == Body::Done
    }

    fn write_response(&self, head: &ResponseHead<'_>, out: &mut Vec<u8>) {
        let Some(leg) = &self.servers.leg else { return };
        let snapshot = &self.snapshot;
        let (set, remove) = routing::response_edits(&snapshot.rules, leg.rules.iter().copied());
        let cookie = self.sticky_cookie(head);
        let append: &[(&str, &str)] = match &cookie {
            Some(value) => &[("Set-Cookie", value)],
            None => &[],
        };
        let flags = leg.route.flags;
        let edits = ResponseEdits {
            // A decision since, such as to drain; with backups all nodes have to write the same.
            close: flags.close || (self.exchange.last_response && self.remote.is_none()),
            http10_client: flags.http10,
            set: &set,
            remove: &remove,
            append,
            upgrade: head.is_upgrade,
        };
        write_response_head(out, head, &edits);
    }

    fn sticky_cookie(&self, head: &ResponseHead<'_>) -> Option<String> {
        let route = &self.servers.leg.as_ref()?.route;
        if !route.flags.set_cookie || head.is_interim() {
            return None;
        }
        let pool = self.snapshot.pools.get(route.pool as usize)?;
        let server = pool.servers.get(route.server as usize)?;
        let secure = if self.listener().protocol.is_tls() { "; Secure" } else { "" };
        Some(format!("{}={}; Path=/; HttpOnly; SameSite=Lax{secure}", pool.cookie, server.cookie))
    }

    /// A request that is being answered is not repeated: its copy is of no use any more.
    fn forget_request(&mut self, io: &mut Io<'_>, interim: bool) {
        if let Some(leg) = self.servers.leg.as_mut().filter(|_| !interim) {
            io.scratch.spare_sent(std::mem::take(&mut leg.request.bytes));
        }
    }

    fn begin_response(&mut self, head: &ResponseHead<'_>) {
        let Some(leg) = &mut self.servers.leg else { return };
        leg.response.keep_alive = head.keep_alive;
        let until_close = match head.body() {
            Body::UntilClose => true,
            Body::Chunked(_) => leg.route.flags.http10, // loses its framing
            _ => false,
        };
        let framed = !head.is_upgrade && matches!(head.body(), Body::Length { .. } | Body::Done);
        self.exchange.last_response |= leg.route.flags.close || until_close;
        self.exchange.answering =
            if head.is_upgrade { ResponseState::Tunnel } else { ResponseState::Body(head.body()) };
        if head.is_upgrade {
            leg.response.keep_alive = false;
            if self.exchange.receiving == RequestState::Head && !leg.pending.awaits_head {
                self.exchange.receiving = RequestState::Tunnel;
            }
        }
        self.exchange.status.0 = head.status;
        self.exchange.status_pool = Some(leg.pool);
        self.begin_deterministic(framed);
        if let Some(log) = &mut self.exchange.log {
            log.status = head.status;
        }
    }

    pub(crate) fn hold_head(&mut self, partial: Vec<u8>) {
        if let Some(leg) = &mut self.servers.leg {
            leg.response.held = partial;
        }
    }

    /// Body bytes in a slot: sealed where they lie, with those from `start` on that were taken before.
    fn take_body_in_place(&mut self, io: &mut Io<'_>, start: usize, range: Range<usize>, more: bool) {
        let taken = self.advance_body(io, range.clone());
        self.count_down(io, taken);
        self.seal_in_place(io, start..range.start + taken);
        self.passed_down(io, taken, more || taken < range.len(), false);
    }

    /// Body bytes in a slot that wait until they fill a record.
    fn hold_body(&mut self, io: &mut Io<'_>, range: Range<usize>) {
        let taken = self.advance_body(io, range.clone());
        self.count_down(io, taken);
        if let Some(remote) = &mut self.remote {
            remote.replay.hold.extend_from_slice(io.scratch.down.at(range.start..range.start + taken));
        }
        self.passed_down(io, taken, false, false);
    }

    /// How many of these bytes belong to the body (or tunnel) under way.
    fn advance_body(&mut self, io: &mut Io<'_>, range: Range<usize>) -> usize {
        let data = io.scratch.down.at(range);
        match self.advance(data, io.now) {
            Ok(taken) => taken,
            Err(refusal) => {
                self.server_refused(io, refusal.reason);
                0
            }
        }
    }

    fn advance(&mut self, data: &[u8], now: Micros) -> Result<usize, evergate_http::Refusal> {
        match self.exchange.answering {
            ResponseState::Body(mut body) => {
                let taken = body.advance(data, &self.listener().limits.http)?;
                self.exchange.answering = ResponseState::Body(body);
                Ok(taken)
            }
            ResponseState::Tunnel => {
                self.observe_server(data, now);
                Ok(data.len())
            }
            _ => Ok(0),
        }
    }

    /// Records bytes that were forwarded, and the response's end. `surplus`: more bytes of the server follow. `head`: a
    /// head is among the forwarded bytes.
    fn passed_down(&mut self, io: &mut Io<'_>, bytes: usize, surplus: bool, head: bool) {
        if let Some(leg) = &mut self.servers.leg {
            if !leg.is_tls() {
                leg.in_pos += bytes as u64; // else it counts records
            }
            let interim = self.exchange.answering == ResponseState::Head;
            leg.response.note_passed_on(interim);
            leg.response.ended |= surplus && self.exchange.answering == ResponseState::Body(Body::Done);
        }
        match self.exchange.answering {
            ResponseState::Body(Body::Done) => self.end_response(io),
            ResponseState::Tunnel if head => {
                self.arm(Timer::Tunnel, io.now);
                if self.exchange.receiving == RequestState::Ended {
                    self.shutdown_server(io);
                }
            }
            _ => {}
        }
    }

    /// The stash of a restored leg's input. It comes at once, and its last bytes may wait for more before the client
    /// gets them. Checkpoints in between release the stash nevertheless, which makes space for new input.
    pub(crate) fn take_stash(&mut self, io: &mut Io<'_>, stashed: &[u8]) {
        let id = self.leg_id();
        for piece in stashed.chunks(PAYLOAD_MAX) {
            if self.leg_id() != id {
                return; // the remaining bytes belong to no leg
            }
            self.take_response(io, piece);
            self.note_server_point();
        }
    }

    /// A server's bytes by copying: a TLS server, an interim response, or a restored connection.
    pub(crate) fn take_response(&mut self, io: &mut Io<'_>, data: &[u8]) {
        let mut joined = Vec::new();
        let mut rest = data;
        if let Some(leg) = self.servers.leg.as_mut().filter(|leg| !leg.response.held.is_empty()) {
            joined = std::mem::take(&mut leg.response.held);
            joined.extend_from_slice(data);
        }
        if !joined.is_empty() {
            rest = &joined;
        }
        while !rest.is_empty() && !self.end.is_closed() && self.servers.leg.is_some() {
            let used = match self.exchange.answering {
                ResponseState::Head => self.take_head_copied(io, rest),
                ResponseState::Body(_) | ResponseState::Tunnel => self.take_body_copied(io, rest),
                ResponseState::Ended => return,
            };
            if used == 0 {
                break;
            }
            rest = &rest[used..];
        }
    }

    fn take_head_copied(&mut self, io: &mut Io<'_>, data: &[u8]) -> usize {
        let mut slots = io.scratch.slots.take().unwrap_or_default();
        let mut head_out = Vec::new();
        let turn = self.read_head(data, &mut slots, &mut head_out, io.now);
        io.scratch.slots = Some(slots);
        match turn {
            Ok(None) => {
                self.hold_head(data.to_vec());
                0
            }
            Ok(Some(turn)) => {
                self.forget_request(io, turn.interim);
                self.count_down(io, head_out.len());
                self.frame(io, &head_out);
                self.passed_down(io, turn.used, turn.used < data.len(), true);
                turn.used
            }
            Err(refusal) => {
                self.explain_tls_answer(data);
                self.server_refused(io, refusal.reason);
                0
            }
        }
    }

    fn take_body_copied(&mut self, io: &mut Io<'_>, data: &[u8]) -> usize {
        if self.unframes() {
            return self.take_body_unframed(io, data);
        }
        match self.advance(data, io.now) {
            Ok(taken) => {
                self.count_down(io, taken);
                self.frame(io, &data[..taken]);
                self.passed_down(io, taken, taken < data.len(), false);
                taken
            }
            Err(refusal) => {
                self.server_refused(io, refusal.reason);
                0
            }
        }
    }

    /// Whether the body under way is chunked and goes to a client of HTTP/1.0, which gets its content only.
    pub(crate) fn unframes(&self) -> bool {
        let http10 = self.servers.leg.as_ref().is_some_and(|leg| leg.route.flags.http10);
        http10 && matches!(self.exchange.answering, ResponseState::Body(Body::Chunked(_)))
    }

    fn take_body_unframed(&mut self, io: &mut Io<'_>, data: &[u8]) -> usize {
        let ResponseState::Body(mut body) = self.exchange.answering else { return 0 };
        let mut content = Vec::with_capacity(data.len());
        match body.advance_content(data, &self.listener().limits.http, &mut content) {
            Ok(taken) => {
                self.exchange.answering = ResponseState::Body(body);
                self.count_down(io, content.len());
                self.frame(io, &content);
                self.passed_down(io, taken, taken < data.len(), false);
                taken
            }
            Err(refusal) => {
                self.server_refused(io, refusal.reason);
                0
            }
        }
    }

    pub(crate) fn count_down(&mut self, io: &mut Io<'_>, bytes: usize) {
        if let Some(log) = &mut self.exchange.log {
            if log.bytes_out == 0 {
                log.first_byte = io.now.since(log.started);
            }
            log.bytes_out += bytes as u64;
        }
    }

    /// The response is complete.
    pub(crate) fn end_response(&mut self, io: &mut Io<'_>) {
        let closes = self.end_deterministic(io);
        if self.end.is_closing() || self.end.is_closed() {
            return;
        }
        let idle = |leg: &ServerLeg| leg.response.keep_alive || leg.request.closes;
        let clean = self.servers.leg.as_deref().is_some_and(idle) && self.exchange.is_request_whole();
        let mut unfinished = !self.exchange.is_request_whole();
        if unfinished && self.servers.leg.as_ref().is_some_and(|leg| leg.restored) {
            // The node before us may have received all of the request: the rest comes again and is passed over.
            unfinished = false;
            if let RequestState::Body(body) = self.exchange.receiving {
                self.exchange.receiving = RequestState::Skip(body);
            }
        }
        self.part_with_leg(io, clean);
        self.exchange.end_response();
        self.exchange.answering = ResponseState::Head;
        self.log_request(io, "");
        self.note_message_end();
        if self.exchange.last_response || unfinished {
            return self.end_deterministically(io, closes);
        }
        self.arm(Timer::KeepAlive, io.now);
    }

    /// The response is over: a bound leg idles, another one goes back. Where a leg can be kept no longer that its
    /// server would keep, or that has to carry the rest of a handshake, the client's connection ends with it.
    fn part_with_leg(&mut self, io: &mut Io<'_>, clean: bool) {
        let Some(leg) = self.servers.leg.as_ref().filter(|leg| leg.binding != Binding::Shared) else {
            return self.release_leg(io, clean);
        };
        // What was bound by this response alone has no identity yet.
        let known = leg.response.keep_alive && leg.route.flags.bound;
        let needed = known || leg.binding == Binding::Challenged;
        let stays = clean && !leg.request.closes && !self.exchange.last_response;
        if !(stays && self.retain_leg(io)) {
            self.exchange.last_response |= needed;
            self.release_leg(io, clean);
        }
    }
}
