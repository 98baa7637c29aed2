//! Access-log record of a request, or of a connection without requests.

use crate::connection::Connection;
use crate::routing;
use crate::timers::Timer;
use crate::{Answered, Effect, Io, RequestLog, Snapshot};
use evergate_base::{Micros, terminal};
use evergate_http::RequestHead;
use evergate_replication::Route;
use evergate_rules::RuleId;

impl Connection {
    /// Log fields of a request that is refused as a whole: bytes received, and its first line where that is well
    /// formed.
    pub(crate) fn log_line_of(&mut self, data: &[u8]) {
        let Some(log) = &mut self.exchange.log else { return };
        log.bytes_in = data.len() as u64;
        let line = data.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let mut words = line.trim_ascii_end().splitn(3, |byte| *byte == b' ');
        let (Some(method), Some(target)) = (words.next(), words.next()) else { return };
        if evergate_http::is_method(method) && !target.is_empty() {
            log.method = String::from_utf8_lossy(method).into_owned();
            log.target = printable_target(target);
        }
    }

    pub(crate) fn begin_log(&mut self, io: &mut Io<'_>, head: Option<&RequestHead<'_>>) {
        if !io.node.wants_logs() && !self.is_audited() {
            return;
        }
        let mut id = [0u8; 24];
        let text = printable_target;
        let wanted = io.node.logged_headers();
        let given_id = head.and_then(RequestHead::given_id);
        let header = |is_wanted: bool, name| {
            is_wanted.then(|| head.and_then(|head| head.header(name))).flatten().map(text)
        };
        self.exchange.log = Some(Box::new(RequestLog {
            id: self.request_id(head, &mut id).to_owned(),
            request: self.exchange.request(),
            given_id: given_id.filter(|_| self.is_audited()).map(str::to_owned),
            client: head.and(self.exchange.client),
            method: head.map_or("-".to_owned(), |head| head.method.to_owned()),
            host: head.map_or(String::new(), |head| text(head.host)),
            target: head.map_or("-".to_owned(), |head| text(head.target)),
            started: if self.deadline.timer == Timer::RequestHead { self.deadline.began } else { io.now },
            bytes_in: head.map_or(0, |head| head.head_len as u64),
            user_agent: header(wanted.user_agent, "user-agent"),
            referer: header(wanted.referer, "referer"),
            snapshot: Some(self.snapshot.clone()),
            ..RequestLog::default()
        }));
    }

    /// The request under way began at another node, which alone has seen its head.
    pub(crate) fn continue_log(&mut self, io: &Io<'_>, route: &Route, matched: &[RuleId]) {
        if !io.node.wants_logs() && !self.is_audited() {
            return;
        }
        let mut id = [0u8; 24];
        let rules = &self.snapshot.rules;
        self.exchange.log = Some(Box::new(RequestLog {
            id: routing::request_id(self.id.0, self.exchange.number(), &mut id).to_owned(),
            request: self.exchange.number(),
            method: "-".to_owned(),
            target: "-".to_owned(),
            started: io.now,
            snapshot: Some(self.snapshot.clone()),
            pool: Some(route.pool),
            server: Some(route.server),
            audit: matched
                .iter()
                .any(|rule| rules.effects_of(*rule).any(|effect| effect == evergate_rules::Effect::Audit)),
            class: class_of(&self.snapshot, matched).map(str::to_owned),
            continued: true,
            ..RequestLog::default()
        }));
    }

    /// The head came again after a failover, and with it the client that it names.
    pub(crate) fn log_client(&mut self) {
        if let Some(log) = &mut self.exchange.log {
            log.client = self.exchange.client;
        }
    }

    /// Another node continues the connection: the record of the request under way, as known here.
    pub fn part(&mut self, now: Micros) -> Option<Box<RequestLog>> {
        let mut log = self.exchange.log.take()?;
        log.total = now.since(log.started);
        log.reason = "handoff_interrupted";
        Some(log)
    }

    pub(crate) fn log_request(&mut self, io: &mut Io<'_>, reason: &'static str) {
        let (status, own) = std::mem::take(&mut self.exchange.status);
        let reason = if own.is_empty() { reason } else { own };
        if status != 0 || !reason.is_empty() {
            let generation = self.snapshot.generation;
            let pool = self.exchange.status_pool.take().or(self.servers.leg.as_ref().map(|leg| leg.pool));
            let listener = self.listener;
            io.effects.answered.push(Answered { status, reason, generation, listener, pool });
        }
        if let Some(mut log) = self.exchange.log.take() {
            log.total = io.now.since(log.started);
            if log.reason.is_empty() {
                log.reason = reason;
            }
            io.effects.push(Effect::Logged(log));
        }
    }
}

/// The service class that rules give: that of the first of them that names one.
pub(crate) fn class_of<'s>(snapshot: &'s Snapshot, rules: &[RuleId]) -> Option<&'s str> {
    rules.iter().flat_map(|rule| snapshot.rules.effects_of(*rule)).find_map(|effect| match effect {
        evergate_rules::Effect::Class(class) => Some(class),
        _ => None,
    })
}

/// The part of a target, a host or another header that the log takes. Characters that terminals interpret or do not
/// show are replaced: JSON escapes only those of ASCII.
pub(crate) fn printable_target(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(2048)]);
    let acts = |c: char| c >= '\u{7f}' && terminal::acts(c);
    if text.is_ascii() && !text.contains('\u{7f}') {
        return text.into_owned();
    }
    text.replace(acts, "\u{fffd}")
}
