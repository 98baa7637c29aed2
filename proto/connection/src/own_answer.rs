//! Answers of our own to a request that no server gets: by a rule, or because of the request's form.

use crate::Io;
use crate::bound::Binding;
use crate::connection::Connection;
use crate::exchange::RequestState;
use crate::routing;
use evergate_http::{After, Body, RequestHead, Version};
use evergate_rules::RuleId;

impl Connection {
    /// An answer of ours that rules have asked for: what they set in responses is set in it too.
    pub(crate) fn answer_by_rule(
        &mut self,
        io: &mut Io<'_>,
        head: &RequestHead<'_>,
        rest: &[u8],
        (status, reason): (u16, &'static str),
        field: (&str, &str),
        matched: &[RuleId],
    ) -> usize {
        let snapshot = self.snapshot.clone();
        let (mut fields, _) = routing::response_edits(&snapshot.rules, matched.iter().copied());
        fields.retain(|(name, _)| !name.eq_ignore_ascii_case(field.0));
        fields.extend(Some(field).filter(|(name, _)| !name.is_empty()));
        self.answer(io, head, rest, status, reason, &fields)
    }

    /// Answers a request ourselves, with `rest` behind its head. The connection stays open when that is all of its body
    /// (with backups, when it has no body: another node does not know how much was here).
    pub(crate) fn answer(
        &mut self,
        io: &mut Io<'_>,
        head: &RequestHead<'_>,
        rest: &[u8],
        status: u16,
        reason: &'static str,
        extra: &[(&str, &str)],
    ) -> usize {
        let body = head.body();
        let is_last = self.is_last(io, Binding::Shared);
        let ends = !head.keep_alive || self.is_spent() || is_last || self.exchange.last_response;
        let whole = body.is_done() || self.remote.is_none() && self.is_whole_in(body, rest);
        let close = ends || !whole;
        let mut bytes = Vec::new();
        let after = match (close, head.version) {
            (true, _) => After::Close,
            (false, Version::H11) => After::Stay,
            (false, Version::H10) => After::StayHttp10,
        };
        evergate_http::error_response(&mut bytes, status, reason, after, head.method == "HEAD", extra);
        self.generate(io, status, reason, &bytes, close);
        self.pass_answered(io, body, head.head_len)
    }

    /// Whether a body ends within these bytes.
    pub(crate) fn is_whole_in(&self, mut body: Body, rest: &[u8]) -> bool {
        body.advance(rest, &self.listener().limits.http).is_ok() && body.is_done()
    }

    /// After an answer of ours: forget the request's body, if it has one.
    pub(crate) fn pass_answered(&mut self, io: &mut Io<'_>, body: Body, head_len: usize) -> usize {
        if !self.end.is_closing() {
            match body.is_done() {
                true => self.exchange.end_request(RequestState::Head),
                false => self.exchange.receiving = RequestState::Skip(body),
            }
            let timer = self.natural_timer();
            self.arm(timer, io.now);
        }
        head_len
    }
}
