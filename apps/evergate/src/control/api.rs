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
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// Which routes a listener has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Surface {
    /// Everything.
    Admin,
    /// Only the metrics, because any client may reach the address.
    Metrics,
}

type Answer = Response<Full<Bytes>>;

/// `/` of the metrics listener: a page that the package's configuration serves before it names a server.
const START_PAGE: &str = include_str!("start_page.html");

const READ: &[Method] = &[Method::GET, Method::HEAD];
const POST: &[Method] = &[Method::POST];

/// A route: its listeners, methods, path and handler. A path that ends with `/`, except `/` itself, stands for all
/// paths below it.
struct Route {
    surfaces: &'static [Surface],
    methods: &'static [Method],
    path: &'static str,
    handler: Handler,
}

/// Handler of a route. It needs the state of the process and parts of the request.
type Handler = for<'r> fn(&'r Control, &'r Asked<'r>) -> Pin<Box<dyn Future<Output = Answer> + Send + 'r>>;

/// The parts of a request that handlers read.
struct Asked<'r> {
    path: &'r str,
    query: Option<&'r str>,
    accept: &'r str,
}

/// A row of [`ROUTES`]: `METHODS "PATH" on SURFACES => |control, asked| ANSWER`. The answer may await.
macro_rules! routes {
    ($($methods:ident $path:literal on $surfaces:expr => |$control:pat_param, $asked:pat_param| $answer:expr;)*) => {
        &[$(Route {
            surfaces: &$surfaces,
            methods: $methods,
            path: $path,
            handler: |$control, $asked| Box::pin(async move { $answer }),
        }),*]
    };
}

/// Everything that the listeners answer. A new route is a row here and in `docs/reference/admin-api.md`.
static ROUTES: &[Route] = {
    use Surface::{Admin, Metrics};
    routes! {
        READ "/" on [Metrics] => |_, _| with_type(StatusCode::OK, "text/html; charset=utf-8", START_PAGE.into());
        READ "/metrics" on [Admin, Metrics] => |control, asked| exposition(control, asked.accept);
        READ "/healthz" on [Admin, Metrics] => |control, _| healthz(control);
        READ "/v1/status" on [Admin] => |control, _| json(StatusCode::OK, &control.status());
        READ "/v1/servers" on [Admin] => |control, _| json(StatusCode::OK, &control.servers());
        POST "/v1/servers/" on [Admin] => |control, asked| server(control, asked.path);
        READ "/v1/rules" on [Admin] => |control, _| json(StatusCode::OK, &control.rules());
        READ "/v1/certificates" on [Admin] => |control, _| json(StatusCode::OK, &control.certificates());
        POST "/v1/reload" on [Admin] => |control, _| reload(control).await;
        POST "/v1/log/reopen" on [Admin] => |control, _| reopen_log(control).await;
        POST "/v1/drain" on [Admin] => |control, _| drain(control).await;
        POST "/v1/upgrade" on [Admin] => |control, asked| upgrade(control, asked.query).await;
        READ "/v1/cluster" on [Admin] => |control, _| {
            cluster(control, |cluster| json(StatusCode::OK, &control.cluster_status(cluster)))
        };
        POST "/v1/cluster/drain" on [Admin] => |control, _| {
            order(control, AgentCommand::Drain(true), "this node hands its connections to the other nodes")
        };
        POST "/v1/cluster/undrain" on [Admin] => |control, _| {
            order(control, AgentCommand::Drain(false), "this node accepts connections again")
        };
        POST "/v1/cluster/leave" on [Admin] => |control, _| {
            order(control, AgentCommand::Leave, "this node leaves the cluster")
        };
    }
};

impl Route {
    fn has(&self, surface: Surface, path: &str) -> bool {
        let below = self.path.len() > 1 && self.path.ends_with('/');
        let has_path = if below { path.starts_with(self.path) } else { path == self.path };
        has_path && self.surfaces.contains(&surface)
    }
}

/// Answers one request.
pub(super) async fn answer<B>(control: &Arc<Control>, surface: Surface, request: &Request<B>) -> Answer {
    let path = request.uri().path();
    let Some(route) = ROUTES.iter().find(|route| route.has(surface, path)) else {
        return refused(
            StatusCode::NOT_FOUND,
            format!("there is no {path}"),
            "docs/reference/admin-api.md lists all paths",
        );
    };
    if !route.methods.contains(request.method()) {
        let names: Vec<&str> = route.methods.iter().map(Method::as_str).collect();
        let mut answer = refused(
            StatusCode::METHOD_NOT_ALLOWED,
            format!("{path} does not accept {}", request.method()),
            &format!("use {}", names.join(" or ")),
        );
        if let Ok(value) = HeaderValue::from_str(&names.join(", ")) {
            answer.headers_mut().insert(ALLOW, value);
        }
        return answer;
    }
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("");
    (route.handler)(control, &Asked { path, query: request.uri().query(), accept }).await
}

/// The metrics in the format that the caller accepts.
fn exposition(control: &Control, accept: &str) -> Answer {
    let form = Form::of(accept);
    with_type(StatusCode::OK, form.content_type(), metrics(control, form).into())
}

/// Whether new connections are accepted: the check of a load balancer in front.
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

/// Answers for a node of a cluster.
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
                "this node has left the cluster permanently".to_owned(),
                "end the process, and start it again to let the node join",
            );
        }
        let waits = match order {
            AgentCommand::Drain(true) if !status.has_takers() => {
                ", as soon as a node accepts them: every other node is drained itself, or no member now"
                    .to_owned()
            }
            AgentCommand::Drain(true) | AgentCommand::Leave => {
                status.must_stay().map_or_else(String::new, |why| format!("; but {why}"))
            }
            _ => String::new(),
        };
        cluster.send(order);
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
            let what = format!("a server has no action {action:?}");
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

    #[test]
    fn route_is_found_on_its_listener_only() {
        let find = |surface, path: &str| {
            ROUTES.iter().find(|route| route.has(surface, path)).map(|route| route.methods)
        };
        assert_eq!(find(Surface::Admin, "/v1/servers"), Some(READ));
        assert_eq!(find(Surface::Admin, "/v1/servers/web/a/drain"), Some(POST));
        assert_eq!(find(Surface::Admin, "/v1/reload/now"), None);
        assert_eq!((find(Surface::Admin, "/"), find(Surface::Metrics, "/")), (None, Some(READ)));
        assert_eq!(find(Surface::Metrics, "/v1/status"), None);
        assert_eq!(find(Surface::Metrics, "/metrics"), Some(READ));
    }

    #[test]
    fn no_two_routes_share_a_path() {
        let paths: std::collections::BTreeSet<&str> = ROUTES.iter().map(|route| route.path).collect();
        assert_eq!(paths.len(), ROUTES.len());
    }
}
