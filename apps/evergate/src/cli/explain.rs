//! `evergate explain`: what would become of a request, and why. Uses the data path's own parser and rules, so that what
//! would be refused there is refused here for the same reason.

mod connection;
mod passage;

use super::{ExplainArgs, FAILED, WRONG, output, refused};
use connection::{Handshake, handshake, listener, local};
use evergate_base::terminal;
use evergate_config::Config;
use evergate_config::model::{Listener, Policy, Pool, Protocol, SessionFallback, Sticky};
use evergate_http::{
    HOST_BYTES_MAX, HeaderSlots, Limits, Parsed, RequestFraming, RequestHead, canonical_path, parse_request,
};
use evergate_rules::{
    Body, Condition, Decision, Deny, Explanation, HeaderEdit, Outcome, Request, RuleExplanation, Scratch,
    Terminal, TlsFacts, Verdict,
};
use serde::Serialize;
use std::fmt::Write;
use std::net::SocketAddr;

/// Rules shown as text, before it becomes tiresome; JSON has all.
const RULES_SHOWN: usize = 100;
/// Port of a client whose address alone is given.
const CLIENT_PORT: u16 = 40_000;

/// The decision on the request.
#[derive(Debug, Default, Serialize)]
struct Answer {
    listener: String,
    /// Reason for this listener, where the URL fits none.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    method: String,
    host: String,
    /// The path for rules and servers.
    path: String,
    /// The path as given, when it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_sent: Option<String>,
    query: Option<String>,
    /// The outcome, in words.
    outcome: String,
    /// The status that evergate itself answers with.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    location: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    servers: Vec<String>,
    /// Policy that chooses one of the servers.
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sticky: Option<String>,
    request_headers: Vec<String>,
    response_headers: Vec<String>,
    rate_limits: Vec<String>,
    audit: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<String>,
    /// Every rule, in the order tried.
    rules: Vec<RuleExplanation>,
}

impl Answer {
    fn refused(mut self, status: u16, reason: &str) -> Answer {
        self.outcome = format!("refused with status {status}: {reason}");
        self.status = Some(status);
        self
    }
}

pub(super) fn explain(args: &ExplainArgs) -> u8 {
    let config = match super::check::load(&args.file) {
        Ok(loaded) => loaded.config,
        Err(problems) => {
            let code = refused(&problems);
            problems.into_iter().for_each(output::print_error);
            return code;
        }
    };
    match answer(args, &config) {
        Ok(answer) if args.json => output::json(&answer),
        Ok(answer) => output::text(&shown(&answer)),
        Err(Wrong::Usage(what)) => {
            output::print_error(format_args!("error: {what}"));
            WRONG
        }
        Err(Wrong::File(what)) => {
            output::print_error(format_args!("error: {what}"));
            FAILED
        }
    }
}

enum Wrong {
    Usage(String),
    File(String),
}

/// The parts of `--request`.
struct Url<'a> {
    method: &'a str,
    scheme: Option<&'a str>,
    /// With its port, if it has one.
    authority: &'a str,
    target: &'a str,
}

impl Url<'_> {
    fn host(&self) -> &str {
        self.split().0
    }

    /// The port, or that of the scheme.
    fn port(&self) -> u16 {
        let default = if self.scheme == Some("http") { 80 } else { 443 };
        self.split().1.unwrap_or(default)
    }

    fn split(&self) -> (&str, Option<u16>) {
        let parts = self.authority.rsplit_once(':');
        let parts = parts.and_then(|(host, port)| Some((host, Some(port.parse().ok()?))));
        parts.unwrap_or((self.authority, None))
    }
}

fn url(text: &str) -> Result<Url<'_>, Wrong> {
    let (method, url) = match text.trim().split_once(char::is_whitespace) {
        Some((method, url)) => (method, url.trim()),
        None => ("GET", text.trim()),
    };
    if url.starts_with('/') || url == "*" {
        return Ok(Url { method, scheme: None, authority: "localhost", target: url });
    }
    let Some((scheme @ ("https" | "http"), rest)) = url.split_once("://") else {
        return Err(Wrong::Usage(format!(
            "{text:?} is not a request: write it like 'GET https://example.com/path?query'"
        )));
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(end);
    Ok(Url { method, scheme: Some(scheme), authority, target })
}

fn body(argument: &str) -> Result<Vec<u8>, Wrong> {
    match argument.strip_prefix('@') {
        Some(path) => {
            std::fs::read(path).map_err(|error| Wrong::File(format!("cannot read the body {path}: {error}")))
        }
        None => Ok(argument.as_bytes().to_vec()),
    }
}

/// The request as it would come over the wire.
fn wire(args: &ExplainArgs, url: &Url<'_>, body: Option<&[u8]>) -> Vec<u8> {
    let target = if url.target.starts_with('?') { format!("/{}", url.target) } else { url.target.to_owned() };
    let target = if target.is_empty() { "/".to_owned() } else { target };
    let mut head = format!("{} {target} HTTP/1.1\r\n", url.method);
    let has = |name: &str| {
        args.headers
            .iter()
            .any(|line| line.split(':').next().is_some_and(|n| n.trim().eq_ignore_ascii_case(name)))
    };
    if !has("host") {
        head += &format!("Host: {}\r\n", url.authority);
    }
    for line in &args.headers {
        head += &format!("{line}\r\n");
    }
    if let Some(body) = body
        && !has("content-length")
        && !has("transfer-encoding")
    {
        head += &format!("Content-Length: {}\r\n", body.len());
    }
    head += "\r\n";
    head.into_bytes()
}

fn answer(args: &ExplainArgs, config: &Config) -> Result<Answer, Wrong> {
    if let Some(line) = args.headers.iter().find(|line| !line.contains(':') || line.contains(['\r', '\n'])) {
        return Err(Wrong::Usage(format!("{line:?} is not a header: write it like 'Name: value'")));
    }
    let Some(request) = &args.request else { return passage::answer(args, config) };
    let url = url(request)?;
    let (listener, note) = listener(args, config, &url)?;
    let body = args.body.as_deref().map(body).transpose()?;
    let wire = wire(args, &url, body.as_deref());
    let answer = Answer {
        listener: listener.name.clone(),
        note,
        method: url.method.to_owned(),
        path: url.target.to_owned(),
        ..Answer::default()
    };
    let limits = Limits {
        head_bytes_max: listener.limits.head_bytes_max,
        headers_max: listener.limits.headers_max,
        ..Limits::default()
    };
    let mut slots = HeaderSlots::new();
    let head = match parse_request(&wire, &limits, &mut slots) {
        Ok(Parsed::Complete(head)) => head,
        Ok(Parsed::Partial) => return Ok(answer.refused(400, "the head does not end")),
        Err(refusal) => return Ok(answer.refused(refusal.status, refusal.reason)),
    };
    follow(args, config, &url, listener, &head, body.as_deref(), answer)
}

/// Decides on a head, in the order of the data path: redirecting listener, size of the body, path, rules.
fn follow(
    args: &ExplainArgs,
    config: &Config,
    url: &Url<'_>,
    listener: &Listener,
    head: &RequestHead<'_>,
    body: Option<&[u8]>,
    mut answer: Answer,
) -> Result<Answer, Wrong> {
    let mut host = [0; HOST_BYTES_MAX];
    answer.host = String::from_utf8_lossy(head.canonical_host(&mut host)).into_owned();
    answer.query = head.query.map(|query| String::from_utf8_lossy(query).into_owned());
    if let Some(port) = listener.redirect_to_https {
        answer.outcome = format!("redirected by the listener to https on port {port}, before any rule");
        answer.status = Some(308);
        return Ok(answer);
    }
    if let (RequestFraming::Length(length), Some(max)) = (head.framing, listener.limits.body_bytes_max)
        && length > max.get()
    {
        return Ok(answer.refused(413, "body_too_long"));
    }
    let mut path = Vec::new();
    match canonical_path(head.path, &mut path) {
        Ok(changed) => {
            answer.path = String::from_utf8_lossy(&path).into_owned();
            answer.path_sent = changed.then(|| String::from_utf8_lossy(head.path).into_owned());
        }
        Err(refusal) => return Ok(answer.refused(refusal.status, refusal.reason)),
    }
    let handshake = handshake(args, config, listener, url, &answer.host)?;
    decide(args, config, &Asked { listener, head, path: &path, body, handshake }, &mut answer);
    Ok(answer)
}

/// The request as rules see it.
struct Asked<'a> {
    listener: &'a Listener,
    head: &'a RequestHead<'a>,
    path: &'a [u8],
    body: Option<&'a [u8]>,
    handshake: Option<Handshake>,
}

/// Evaluates the rules, and fills in their decision.
fn decide(args: &ExplainArgs, config: &Config, asked: &Asked<'_>, answer: &mut Answer) {
    let Asked { listener, head, path, body, handshake } = asked;
    let (peer, port) = (args.client.0, args.client.1.unwrap_or(CLIENT_PORT));
    let trust = &listener.trust_forwarded;
    let client = trust.client(peer, head.headers).map(|client| SocketAddr::new(client, 0));
    let headers: Vec<(&[u8], &[u8])> =
        head.for_rules(trust.trusts(peer)).map(|line| (line.name.as_bytes(), line.value)).collect();
    let host = answer.host.clone();
    let prefix_max = listener.limits.body_prefix_bytes;
    let request = Request {
        listener: &listener.name,
        method: head.method.as_bytes(),
        scheme: listener.protocol.as_str(),
        host: host.as_bytes(),
        path,
        query: head.query.unwrap_or(b""),
        headers: &headers,
        client: client.unwrap_or(SocketAddr::new(peer, port)),
        local: local(args, listener),
        tls: handshake.as_ref().map(|agreed| TlsFacts {
            sni: agreed.sni.as_deref(),
            alpn: agreed.alpn,
            version: agreed.version,
            client_subject: agreed.client_subject.as_deref(),
        }),
        body: match body {
            None if matches!(head.framing, RequestFraming::None | RequestFraming::Length(0)) => {
                Body::Complete(b"")
            }
            None => Body::Pending,
            Some(body) if body.len() > prefix_max => Body::Prefix(&body[..prefix_max]),
            Some(body) => Body::Complete(body),
        },
    };
    let Explanation { rules, .. } = config.rules.ruleset.explain(&request);
    answer.rules = rules;
    decided(config, listener, &request, answer);
}

/// Fills in the decision of the rules.
fn decided(config: &Config, listener: &Listener, request: &Request<'_>, answer: &mut Answer) {
    let ruleset = &config.rules.ruleset;
    let mut scratch = Scratch::new();
    match ruleset.decide(request, &mut scratch) {
        Outcome::NeedBody => answer.outcome = "the body decides: give it with --body".to_owned(),
        Outcome::Decided(decision) => {
            answer.rule = decision.rule.map(|rule| ruleset.name(rule).to_owned());
            effects(&decision, answer);
            outcome(config, listener, &decision, answer);
        }
    }
}

fn outcome(config: &Config, listener: &Listener, decision: &Decision<'_>, answer: &mut Answer) {
    let by = match &answer.rule {
        Some(rule) => format!("rule \"{rule}\""),
        None => format!("the default of listener \"{}\"", listener.name),
    };
    match &decision.terminal {
        Terminal::Deny(Deny::Status(status)) => {
            answer.status = Some(*status);
            answer.outcome = format!("denied with status {status} by {by}");
        }
        Terminal::Deny(Deny::Reset) => answer.outcome = format!("reset by {by}"),
        Terminal::Deny(alert) => answer.outcome = format!("denied with the TLS alert {alert} by {by}"),
        Terminal::Redirect { status, location } => {
            answer.status = Some(*status);
            answer.location = Some(location.clone());
            answer.outcome = format!("redirected with status {status} to {location} by {by}");
        }
        Terminal::Route { pool, sticky, .. } => {
            let sticky = sticky.map(|sticky| match sticky {
                evergate_rules::Sticky::None => Sticky::None,
                evergate_rules::Sticky::Cookie => Sticky::Cookie,
                evergate_rules::Sticky::Source => Sticky::Source,
            });
            if let Some(pool) = config.pool_named(pool) {
                to_pool(listener, config.pool(pool), sticky, &by, answer);
            }
        }
        Terminal::None => match listener.pool {
            Some(pool) => to_pool(listener, config.pool(pool), None, &by, answer),
            None => {
                answer.status = listener.protocol.is_http().then_some(404);
                if answer.status.is_none() {
                    answer.outcome =
                        format!("closed: no rule routes it, and listener \"{}\" has no pool", listener.name);
                    return;
                }
                answer.outcome = format!(
                    "answered with 404: no rule routes it, and listener \"{}\" has no pool",
                    listener.name
                );
            }
        },
    }
}

fn to_pool(listener: &Listener, pool: &Pool, sticky: Option<Sticky>, by: &str, answer: &mut Answer) {
    answer.outcome = format!("sent to pool \"{}\" by {by}", pool.name);
    answer.pool = Some(pool.name.clone());
    answer.servers = pool.servers.iter().map(|server| server.name.clone()).collect();
    answer.policy = Some(pool.policy.as_str());
    if pool.policy.is_by_session() {
        answer.sticky = Some(by_session(listener, pool, !answer.host.is_empty()));
        return;
    }
    answer.sticky = match sticky.unwrap_or(pool.sticky) {
        Sticky::None => None,
        Sticky::Cookie => Some(format!("by the cookie {}", pool.sticky_cookie)),
        Sticky::Source => Some("by the client's address".to_owned()),
    };
}

/// What decides about the server in a pool by session. Only a passthrough listener relays handshakes.
fn by_session(listener: &Listener, pool: &Pool, has_name: bool) -> String {
    if listener.protocol != Protocol::Passthrough {
        return "by the client's address: only a relayed handshake offers sessions".to_owned();
    }
    let fallback = pool.sessions.as_ref().map(|sessions| sessions.fallback);
    let fallback = match fallback {
        Some(SessionFallback::Sni) if has_name => "by the server name",
        _ => "by the client's address",
    };
    match pool.policy {
        Policy::BoundedHash => fallback.to_owned(),
        _ => format!("by a known session that the client offers, else {fallback}"),
    }
}

fn effects(decision: &Decision<'_>, answer: &mut Answer) {
    let shown = |edit: HeaderEdit<'_>| match edit {
        HeaderEdit::Set { name, value } => format!("set {name}: {value}"),
        HeaderEdit::Remove { name } => format!("remove {name}"),
    };
    answer.request_headers = decision.request_edits().map(shown).collect();
    answer.response_headers = decision.response_edits().map(shown).collect();
    answer.rate_limits = decision
        .rate_limits()
        .map(|(_, limit)| {
            let key = match limit.key {
                evergate_rules::RateKey::Source => "client address",
                evergate_rules::RateKey::Host => "host",
                evergate_rules::RateKey::Global => "rule",
            };
            format!("{} requests/s per {key}, bursts of {}", limit.requests_per_s, limit.burst)
        })
        .collect();
    answer.audit = decision.audit();
    answer.class = decision.class().map(str::to_owned);
}

fn shown(answer: &Answer) -> String {
    let query = answer.query.as_ref().map_or_else(String::new, |query| format!("?{query}"));
    let mut text = match answer.method.is_empty() {
        true => format!("a connection {}on listener \"{}\"\n", answer.path, answer.listener),
        false => format!(
            "{} {}{}{query} on listener \"{}\"\n",
            answer.method, answer.host, answer.path, answer.listener
        ),
    };
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "  {name:<17} {value}");
    };
    if let Some(note) = &answer.note {
        line("note:", note);
    }
    line("outcome:", &answer.outcome);
    if let Some(sent) = &answer.path_sent {
        line("canonical path:", &format!("{} (sent as {sent})", answer.path));
    }
    if !answer.servers.is_empty() {
        line("servers:", &answer.servers.join(", "));
        line("policy:", answer.policy.unwrap_or_default());
        line("sticky:", answer.sticky.as_deref().unwrap_or("no"));
    }
    for (name, values) in [
        ("request header:", &answer.request_headers),
        ("response header:", &answer.response_headers),
        ("rate limit:", &answer.rate_limits),
    ] {
        for value in values {
            line(name, value);
        }
    }
    if answer.audit {
        line("audit:", "marks the line in the access log");
    }
    if let Some(class) = &answer.class {
        line("class:", class);
    }
    if !answer.rules.is_empty() {
        text += "rules, in the order tried:\n";
    }
    for rule in answer.rules.iter().take(RULES_SHOWN) {
        let verdict = match rule.verdict {
            Verdict::Wins => "wins",
            Verdict::Contributes => "matches and contributes its edits",
            Verdict::Shadowed => "would match, but an earlier rule ended the search",
            Verdict::Fails => "does not match",
            Verdict::Undecidable => "cannot be decided",
            Verdict::NeedsBody => "needs the body",
        };
        let _ = writeln!(text, "  {}: {verdict}", rule.rule);
        for Condition { condition, value } in &rule.failed {
            let _ = writeln!(text, "    because {condition} meets {value}");
        }
    }
    if answer.rules.len() > RULES_SHOWN {
        let _ = writeln!(text, "  and {} more: --json shows all", answer.rules.len() - RULES_SHOWN);
    }
    text.lines().flat_map(|line| [terminal::shown(line), "\n".into()]).collect()
}
