//! HAR 1.2 (HTTP Archive): one entry for each exchange, in the order in which exchanges end.
//!
//! Bodies are as sent: a compressed body is base64. Missing bytes and other facts of the capture are in fields that
//! begin with `_`, as the format allows.

use crate::cli::Failure;
use crate::export::{Writer, unwritten};
use crate::sessions::{Outcome, Redaction, Selected, Sink, hex_of, holes_json};
use crate::when;
use evergate_evidence::base64;
use evergate_player::http::{Head, Message};
use evergate_player::{Event, Report, Side};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};

pub(super) struct HarWriter<'a> {
    out: BufWriter<File>,
    sessions: &'a [Selected],
    redaction: Redaction,
    /// Requests without their response, by session and exchange.
    open: BTreeMap<(usize, u64), Message>,
    /// Responses that ended before their request.
    early: BTreeMap<(usize, u64), Message>,
    entries: u64,
}

impl<'a> HarWriter<'a> {
    pub(super) fn new(
        mut out: BufWriter<File>,
        sessions: &'a [Selected],
        redaction: Redaction,
    ) -> Result<Self, Failure> {
        let creator = json!({"name": "evergate-audit", "version": env!("CARGO_PKG_VERSION")});
        write!(out, "{{\"log\":{{\"version\":\"1.2\",\"creator\":{creator},\"entries\":[")
            .map_err(|error| unwritten(&error))?;
        let (open, early) = (BTreeMap::new(), BTreeMap::new());
        Ok(HarWriter { out, sessions, redaction, open, early, entries: 0 })
    }

    fn write(
        &mut self,
        session: usize,
        request: Option<&Message>,
        response: Option<&Message>,
    ) -> Result<(), Failure> {
        let entry = entry(&self.sessions[session], request, response);
        let comma = if self.entries > 0 { "," } else { "" };
        self.entries += 1;
        write!(self.out, "{comma}\n{entry}").map_err(|error| unwritten(&error))
    }
}

impl Sink for HarWriter<'_> {
    fn on_event(&mut self, session: usize, event: Event) -> Result<bool, Failure> {
        let Event::Message(mut message) = event else { return Ok(false) };
        if message.is_interim() {
            return Ok(false);
        }
        let redacted = self.redaction.apply(&mut message);
        let key = (session, message.exchange);
        match message.side {
            Side::Client => match self.early.remove(&key) {
                Some(response) => self.write(session, Some(&message), Some(&response))?,
                None => {
                    self.open.insert(key, *message);
                }
            },
            Side::Server => match self.open.remove(&key) {
                Some(request) => self.write(session, Some(&request), Some(&message))?,
                None => {
                    self.early.insert(key, *message);
                }
            },
        }
        Ok(redacted)
    }

    fn on_end(&mut self, session: usize, _: &Report, _: Outcome) -> Result<(), Failure> {
        let keys = (session, 0)..=(session, u64::MAX);
        let open: Vec<_> = self.open.range(keys.clone()).map(|(key, _)| *key).collect();
        for key in open {
            let request = self.open.remove(&key);
            self.write(session, request.as_ref(), None)?;
        }
        let early: Vec<_> = self.early.range(keys).map(|(key, _)| *key).collect();
        for key in early {
            let response = self.early.remove(&key);
            self.write(session, None, response.as_ref())?;
        }
        Ok(())
    }
}

impl Writer for HarWriter<'_> {
    fn finish(mut self: Box<Self>) -> Result<File, Failure> {
        writeln!(self.out, "\n]}}}}").map_err(|error| unwritten(&error))?;
        self.out.into_inner().map_err(|error| unwritten(&error))
    }
}

fn entry(session: &Selected, request: Option<&Message>, response: Option<&Message>) -> Value {
    let begin = request.or(response).map_or(0, |message| message.first_ns);
    let ms = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e6;
    let sent = request.map_or(begin, |request| request.last_ns);
    let answered = response.map_or(sent, |response| response.first_ns.max(sent));
    let ended = response.map_or(answered, |response| response.last_ns.max(answered));
    json!({
        "startedDateTime": when::shown_ns(begin),
        "time": ms(begin, ended),
        "request": request_json(session, request),
        "response": response_json(response),
        "cache": {},
        "timings": {"send": ms(begin, sent), "wait": ms(sent, answered), "receive": ms(answered, ended)},
        "serverIPAddress": session.ends.server.ip().to_string(),
        "connection": session.ends.client.port().to_string(),
        "_session": hex_of(session.client_random),
        "_client": session.ends.client.to_string(),
        "_exchange": request.or(response).map_or(0, |message| message.exchange),
    })
}

fn request_json(session: &Selected, request: Option<&Message>) -> Value {
    let Some(request) = request else {
        return json!({"method": "", "url": "", "httpVersion": "", "cookies": [], "headers": [], "queryString": [],
            "headersSize": -1, "bodySize": -1, "_missing": true});
    };
    let Head::Request { method, target, .. } = &request.head else { return Value::Null };
    let target = lossy(target);
    let host = request.header("host").next().map_or_else(|| session.ends.server.to_string(), lossy);
    let scheme = if session.client_random.is_some() { "https" } else { "http" };
    let url = if target.starts_with('/') { format!("{scheme}://{host}{target}") } else { target.clone() };
    let query = target.split_once('?').map_or("", |(_, query)| query);
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let query: Vec<Value> = pairs.map(|pair| pair_json(pair, '=')).collect();
    let cookies = request.header("cookie").flat_map(|line| {
        let line = lossy(line);
        line.split(';').map(|pair| pair_json(pair.trim(), '=')).collect::<Vec<_>>()
    });
    let mut value = json!({
        "method": method,
        "url": url,
        "httpVersion": format!("HTTP/1.{}", request.minor),
        "cookies": cookies.collect::<Vec<_>>(),
        "headers": headers_json(request),
        "queryString": query,
        "headersSize": request.head_bytes,
        "bodySize": request.body_bytes,
    });
    if request.body_bytes > 0 {
        let mut data = content(request);
        data["params"] = json!([]);
        value["postData"] = data;
    }
    note_gaps(&mut value, request);
    value
}

fn response_json(response: Option<&Message>) -> Value {
    let Some(response) = response else {
        return json!({"status": 0, "statusText": "", "httpVersion": "", "cookies": [], "headers": [],
            "content": {"size": 0, "mimeType": ""}, "redirectURL": "", "headersSize": -1, "bodySize": -1,
            "_missing": true});
    };
    let Head::Response { status, reason } = &response.head else { return Value::Null };
    let cookies = response.header("set-cookie").map(|line| {
        let line = lossy(line);
        pair_json(line.split(';').next().unwrap_or_default(), '=')
    });
    let mut body = content(response);
    body["size"] = response.body_bytes.into();
    let mut value = json!({
        "status": status,
        "statusText": reason,
        "httpVersion": format!("HTTP/1.{}", response.minor),
        "cookies": cookies.collect::<Vec<_>>(),
        "headers": headers_json(response),
        "content": body,
        "redirectURL": response.header("location").next().map(lossy).unwrap_or_default(),
        "headersSize": response.head_bytes,
        "bodySize": response.body_bytes,
    });
    note_gaps(&mut value, response);
    value
}

/// Content of a message: text, or base64 if it is not UTF-8.
fn content(message: &Message) -> Value {
    let kind = message.header("content-type").next().map(lossy).unwrap_or_default();
    match std::str::from_utf8(&message.body) {
        Ok(text) => json!({"mimeType": kind, "text": text}),
        Err(_) => json!({"mimeType": kind, "text": base64::encode(&message.body), "encoding": "base64"}),
    }
}

/// Adds what the capture lacks of a message.
fn note_gaps(value: &mut Value, message: &Message) {
    if !message.holes.is_empty() {
        value["_holes"] = holes_json(message);
    }
    if !message.is_complete {
        value["_incomplete"] = true.into();
    }
}

fn headers_json(message: &Message) -> Vec<Value> {
    message.headers.iter().map(|(name, value)| json!({"name": name, "value": lossy(value)})).collect()
}

fn pair_json(pair: &str, separator: char) -> Value {
    let (name, value) = pair.split_once(separator).unwrap_or((pair, ""));
    json!({"name": name, "value": value})
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
