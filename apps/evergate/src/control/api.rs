//! The routes of the admin API and of the metrics listener.

use super::console;
use super::exposition::Form;
use super::metrics::metrics;
use super::published::{Control, Message};
use super::status::{Done, Refused};
use crate::agent::{AgentCommand, Handle};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// Which routes a listener has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Surface {
    /// Everything.
    Admin,
    /// Only what may be read by whoever reaches the address.
    Metrics,
}

type Answer = Response<Full<Bytes>>;

/// `/` of the metrics listener: a page that the package's configuration serves before it names a server.
const START_PAGE: &str = include_str!("start_page.html");

/// Answers one request.
pub(super) async fn answer<B>(control: &Arc<Control>, surface: Surface, request: &Request<B>) -> Answer {
    let path = request.uri().path();
    let allowed: &[Method] = match (surface, path) {
        (_, "/metrics" | "/healthz") | (Surface::Metrics, "/") => &[Method::GET, Method::HEAD],
        (Surface::Metrics, _) => &[],
        (_, "/v1/status" | "/v1/servers" | "/v1/rules" | "/v1/certificates") => &[Method::GET, Method::HEAD],
        (_, "/v1/cluster") => &[Method::GET, Method::HEAD],
        (_, "/v1/reload" | "/v1/drain" | "/v1/upgrade" | "/v1/log/reopen") => &[Method::POST],
        (_, "/v1/cluster/drain" | "/v1/cluster/undrain" | "/v1/cluster/leave") => &[Method::POST],
        (_, path) if path.starts_with("/v1/servers/") => &[Method::POST],
        _ => &[],
    };
    if allowed.is_empty() {
        return refused(
            StatusCode::NOT_FOUND,
            format!("there is no {path}"),
            "see docs/reference/admin-api.md for what there is",
        );
    }
    if !allowed.contains(request.method()) {
        let names: Vec<&str> = allowed.iter().map(Method::as_str).collect();
        let mut answer = refused(
            StatusCode::METHOD_NOT_ALLOWED,
            format!("{path} does not take {}", request.method()),
            &format!("use {}", names.join(" or ")),
        );
        if let Ok(value) = HeaderValue::from_str(&names.join(", ")) {
            answer.headers_mut().insert(ALLOW, value);
        }
        return answer;
    }
    match path {
        "/" => with_type(StatusCode::OK, "text/html; charset=utf-8", START_PAGE.into()),
        "/metrics" => {
            let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
            let form = Form::of(accept);
            with_type(StatusCode::OK, form.content_type(), metrics(control, form).into())
        }
        "/healthz" => healthz(control),
        "/v1/status" => json(StatusCode::OK, &control.status()),
        "/v1/servers" => json(StatusCode::OK, &control.servers()),
        "/v1/rules" => json(StatusCode::OK, &control.rules()),
        "/v1/certificates" => json(StatusCode::OK, &control.certificates()),
        "/v1/reload" => reload(control).await,
        "/v1/log/reopen" => reopen_log(control).await,
        "/v1/drain" => drain(control).await,
        "/v1/upgrade" => upgrade(control, request.uri().query()).await,
        "/v1/cluster" => cluster(control, |cluster| json(StatusCode::OK, &control.cluster_status(cluster))),
        "/v1/cluster/drain" => {
            order(control, AgentCommand::Drain(true), "this node gives its connections to the others")
        }
        "/v1/cluster/undrain" => {
            order(control, AgentCommand::Drain(false), "this node takes connections again")
        }
        "/v1/cluster/leave" => order(control, AgentCommand::Leave, "this node leaves the cluster"),
        path => server(control, path),
    }
}

/// Whether new connections are welcome: what a load balancer in front asks.
fn healthz(control: &Control) -> Answer {
    let reason = match (control.is_draining(), &control.cluster) {
        (true, _) => Some("draining".to_owned()),
        (false, Some(cluster)) => cluster.status().serves_none(),
        (false, None) => None,
    };
    let (status, text) = match reason {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    };
    with_type(status, "text/plain; charset=utf-8", text.into())
}

async fn reload(control: &Control) -> Answer {
    let (reply, outcome) = oneshot::channel();
    if control.messages.send(Message::Reload(reply)).await.is_err() {
        return ending();
    }
    match outcome.await {
        Ok(reloaded) if reloaded.ok => json(StatusCode::OK, &reloaded),
        Ok(reloaded) => json(StatusCode::CONFLICT, &reloaded),
        Err(_) => ending(),
    }
}

async fn reopen_log(control: &Control) -> Answer {
    let (reply, outcome) = oneshot::channel();
    if control.messages.send(Message::ReopenLog(reply)).await.is_err() {
        return ending();
    }
    match outcome.await {
        Ok(done) => json(StatusCode::OK, &Done { done }),
        Err(_) => ending(),
    }
}

async fn drain(control: &Control) -> Answer {
    if control.messages.send(Message::Drain).await.is_err() {
        return ending();
    }
    json(StatusCode::ACCEPTED, &Done { done: "draining".to_owned() })
}

/// `/v1/upgrade?binary=PATH`, or without the query.
async fn upgrade(control: &Control, query: Option<&str>) -> Answer {
    let binary = match query.map(|query| query.strip_prefix("binary=").and_then(percent_decoded)) {
        None => None,
        Some(Some(path)) if path.starts_with('/') => Some(std::path::PathBuf::from(path)),
        Some(_) => {
            let what = format!("the query {:?} is not binary=PATH", query.unwrap_or_default());
            return refused(
                StatusCode::BAD_REQUEST,
                what,
                "name the program by its whole path, percent-encoded",
            );
        }
    };
    let (reply, outcome) = oneshot::channel();
    if control.messages.send(Message::Upgrade(binary, reply)).await.is_err() {
        return ending();
    }
    match outcome.await {
        Ok(Ok(upgraded)) => json(StatusCode::OK, &upgraded),
        Ok(Err(refused)) => json(StatusCode::CONFLICT, &refused),
        Err(_) => ending(),
    }
}

/// What a node of a cluster answers.
fn cluster(control: &Control, answer: impl FnOnce(&Handle) -> Answer) -> Answer {
    match &control.cluster {
        Some(cluster) => answer(cluster),
        None => refused(
            StatusCode::NOT_FOUND,
            "this node is not part of a cluster".to_owned(),
            "add the table [cluster] to its configuration and restart it",
        ),
    }
}

fn order(control: &Control, order: AgentCommand, done: &str) -> Answer {
    cluster(control, |cluster| {
        let status = cluster.status();
        if status.phase == "left" {
            return refused(
                StatusCode::CONFLICT,
                "this node has left the cluster, which is for good".to_owned(),
                "end the process, and start it again to let the node join",
            );
        }
        let waits = match order {
            AgentCommand::Drain(true) if !status.has_takers() => {
                ", as soon as others take them: no other node is a member now that is not drained itself"
                    .to_owned()
            }
            AgentCommand::Drain(true) | AgentCommand::Leave => {
                status.must_stay().map_or_else(String::new, |why| format!("; but {why}"))
            }
            _ => String::new(),
        };
        cluster.order(order);
        json(StatusCode::ACCEPTED, &Done { done: format!("{done}{waits}") })
    })
}

fn ending() -> Answer {
    refused(StatusCode::SERVICE_UNAVAILABLE, "the process is ending".to_owned(), "start it again")
}

/// `/v1/servers/POOL/SERVER/drain` or `/ready`
fn server(control: &Control, path: &str) -> Answer {
    let parts: Vec<Option<String>> =
        path.trim_start_matches("/v1/servers/").split('/').map(percent_decoded).collect();
    let [Some(pool), Some(name), Some(action)] = parts.as_slice() else {
        return refused(
            StatusCode::NOT_FOUND,
            format!("there is no {path}"),
            "write /v1/servers/POOL/SERVER/drain or /ready, with other characters than letters and digits encoded",
        );
    };
    let draining = match action.as_str() {
        "drain" => true,
        "ready" => false,
        _ => {
            let what = format!("a server cannot be told to {action:?}");
            return refused(StatusCode::NOT_FOUND, what, "use drain or ready");
        }
    };
    let view = control.view();
    let Some(server) = view.server(pool, name) else {
        let what = format!("there is no server {name:?} in a pool {pool:?}");
        return refused(StatusCode::NOT_FOUND, what, "`evergate servers list` shows what there is");
    };
    if server.draining.swap(draining, Ordering::Relaxed) != draining {
        let what =
            if draining { "is draining: it gets no new requests" } else { "is ready for requests again" };
        console::info(format_args!("server {pool}/{name} {what} (admin API)"));
    }
    let done = format!("{pool}/{name} {}", if draining { "is draining" } else { "is ready" });
    json(StatusCode::OK, &Done { done })
}

/// The text that a path segment stands for; nothing if it is not UTF-8 or badly encoded.
fn percent_decoded(segment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        bytes.push((digit()? * 16 + digit()?) as u8);
    }
    String::from_utf8(bytes).ok()
}

fn refused(status: StatusCode, error: String, remedy: &str) -> Answer {
    json(status, &Refused { error, remedy: remedy.to_owned() })
}

fn json(status: StatusCode, value: &impl Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(mut text) => {
            text.push(b'\n');
            with_type(status, "application/json", text.into())
        }
        Err(_) => with_type(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", Bytes::new()),
    }
}

fn with_type(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_decoded_or_refused() {
        assert_eq!(percent_decoded("10.0.0.1:80").as_deref(), Some("10.0.0.1:80"));
        assert_eq!(percent_decoded("%5b::1%5D:80").as_deref(), Some("[::1]:80"));
        for wrong in ["%", "%5", "%zz", "%ff"] {
            assert_eq!(percent_decoded(wrong), None, "{wrong}");
        }
    }
}
