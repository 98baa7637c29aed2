//! Commands to a running node, over its admin socket.

use super::output;
use super::{RemoteArgs, ServerArgs, SocketArgs, UpgradeArgs, WRONG};
use crate::aead;
use crate::control::client::{ask, request, understood};
use crate::control::status::{
    Certificates, Done, LearnedStatus, MeasuredCosts, PoolStatus, Reloaded, Rules, ServerStatus, Servers,
    SessionStatus, Status, Upgraded,
};
use anyhow::anyhow;
use evergate_base::Table;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;

const SOCKET_DEFAULT: &str = "/run/evergate/admin.sock";
/// Longer than a node needs for a reload or an upgrade.
const PATIENCE: Duration = Duration::from_secs(130);
/// Status of the answer of a process that ends before it has done what was requested.
const ENDING: u16 = 503;
/// A node answers reads at once.
pub(super) const PATIENCE_TO_READ: Duration = Duration::from_secs(5);

pub(super) fn status(args: &RemoteArgs) -> u8 {
    show(args, "/v1/status", |status: &Status| {
        let mut text = format!(
            "evergate {} (pid {}), {}, up {}\nconfiguration: {}, generation {}\n",
            status.version,
            status.pid,
            status.state,
            span(status.uptime_s),
            status.configuration,
            status.generation,
        );
        let total = &status.total;
        text += &format!(
            "connections:   {} open of {}, {} accepted, {} refused\n",
            status.connections.open, status.connections.max, total.accepted, total.refused
        );
        text +=
            &format!("handshakes:    {} full, {} resumed\n", total.handshakes_full, total.handshakes_resumed);
        if !status.aead.is_empty() {
            text += &format!("encryption:    {}\n", aead::list(&status.aead));
        }
        let classes: Vec<String> =
            total.responses.iter().map(|(class, count)| format!("{class} {count}")).collect();
        text += &format!("responses:     {}\n", classes.join(", "));
        text += &format!(
            "bytes:         clients {} in, {} out; servers {} in, {} out\n",
            total.client_bytes_in, total.client_bytes_out, total.server_bytes_in, total.server_bytes_out
        );
        text += &format!("memory:        {} MiB resident\n", status.resident_bytes / (1024 * 1024));
        if !status.reasons.is_empty() {
            let reasons: Vec<String> =
                status.reasons.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
            text += &format!("ended for:     {}\n", reasons.join(", "));
        }
        let mut listeners = Table::new(&["LISTENER", "PROTOCOL", "ADDRESS"]);
        for listener in &status.listeners {
            listeners.row(vec![listener.name.clone(), listener.protocol.clone(), listener.address.clone()]);
        }
        text += &format!("\n{}", listeners.show(""));
        let mut workers = Table::new(&["WORKER", "STATE", "OPEN", "ACCEPTED", "QUEUED", "CPU"]);
        for worker in &status.workers {
            let counts = &worker.counts;
            workers.row(vec![
                worker.index.to_string(),
                if worker.alive { "running" } else { "ended" }.to_owned(),
                counts.open.to_string(),
                counts.accepted.to_string(),
                counts.queued.to_string(),
                format!("{:.1} s", counts.cpu_ns as f64 / 1e9),
            ]);
        }
        text += &format!("\n{}", workers.show(""));
        if status.pools.iter().any(|pool| pool.sessions.is_some()) {
            text += &format!("\n{}", session_table(&status.pools));
        }
        let servers: Vec<ServerStatus> =
            status.pools.iter().flat_map(|pool| pool.servers.iter().cloned()).collect();
        text + "\n" + &server_table(&servers)
    })
}

fn session_table(pools: &[PoolStatus]) -> String {
    let by_session = || pools.iter().filter_map(|pool| Some((pool, pool.sessions?)));
    let mut table = Table::new(&["POOL", "POLICY", "SESSIONS", "NEW", "RETURNED", "MISSED", "EVICTED"]);
    for (pool, sessions) in by_session() {
        let counts = [sessions.known, sessions.new, sessions.returned, sessions.missed, sessions.evicted];
        let names = [pool.name.clone(), pool.policy.clone()];
        table.row(names.into_iter().chain(counts.map(|count| count.to_string())).collect());
    }
    let mut text = table.show("");
    let relayed = |sessions: &SessionStatus| {
        let LearnedStatus { entries, found, unknown, unoffered, .. } = sessions.learned;
        entries + found + unknown + unoffered > 0
    };
    if !by_session().any(|(_, sessions)| relayed(&sessions)) {
        return text;
    }
    let mut table = Table::new(&[
        "RELAYED",
        "BY SESSION",
        "BY ADDRESS",
        "BY SNI",
        "ENTRIES",
        "LEARNED",
        "RECEIVED",
        "FORGOTTEN",
        "EVICTED",
        "MEMORY",
    ]);
    for (pool, sessions) in by_session().filter(|(_, sessions)| relayed(sessions)) {
        let (decided, learned) = (sessions.decided, sessions.learned);
        let counts = [
            decided.session,
            decided.address,
            decided.sni,
            learned.entries,
            learned.learned,
            learned.received,
            learned.forgotten,
            learned.evicted,
        ];
        let counts = counts.map(|count| count.to_string());
        let memory = format!("{} KiB", learned.memory_bytes.div_ceil(1024));
        table.row([pool.name.clone()].into_iter().chain(counts).chain([memory]).collect());
    }
    text += &format!("\n{}", table.show(""));
    if by_session().any(|(_, sessions)| sessions.learned.unknown > 0) {
        text += ONCE_ONLY;
    }
    text + &cost_table(pools)
}

/// Why few clients of TLS 1.3 are found by their session.
const ONCE_ONLY: &str = "TLS 1.3 servers send new sessions encrypted, and clients use each one once: for such \
    clients the address or the server name decides.\n";

/// Measured costs of handshakes; empty where none was relayed.
fn cost_table(pools: &[PoolStatus]) -> String {
    let mut table = Table::new(&["SERVER", "FULL", "FULL COST", "RESUMED", "RESUMED COST"]);
    let mut is_empty = true;
    for server in pools.iter().flat_map(|pool| &pool.servers) {
        let Some(MeasuredCosts { full_us, resumed_us, full, resumed }) = server.handshakes else { continue };
        let cost = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), |us| format!("{us:.0} us"));
        let name = format!("{}/{}", server.pool, server.name);
        table.row(vec![name, full.to_string(), cost(full_us), resumed.to_string(), cost(resumed_us)]);
        is_empty = false;
    }
    if is_empty { String::new() } else { format!("\n{}", table.show("")) }
}

pub(super) fn servers(args: &RemoteArgs) -> u8 {
    show(args, "/v1/servers", |servers: &Servers| server_table(&servers.servers))
}

fn server_table(servers: &[ServerStatus]) -> String {
    let mut table = Table::new(&[
        "SERVER",
        "ADDRESS",
        "STATE",
        "WEIGHT",
        "OUTSTANDING",
        "REQUESTS",
        "FAILURES",
        "LAST CHECK",
    ]);
    for server in servers {
        let health = server.health.as_ref().map_or_else(
            || "-".to_owned(),
            |health| format!("{}: {}", if health.ok { "passed" } else { "failed" }, health.detail),
        );
        table.row(vec![
            format!("{}/{}", server.pool, server.name),
            server.address.clone(),
            server.state.clone(),
            server.weight.to_string(),
            server.outstanding.to_string(),
            server.requests.to_string(),
            server.failures.to_string(),
            health,
        ]);
    }
    table.show("")
}

pub(super) fn rules(args: &RemoteArgs) -> u8 {
    show(args, "/v1/rules", |rules: &Rules| {
        let mut table = Table::new(&["HITS", "RULE", "ACTION"]);
        for rule in &rules.rules {
            table.row(vec![rule.hits.to_string(), rule.name.clone(), rule.action.clone()]);
        }
        table.show("")
    })
}

pub(super) fn certificates(args: &RemoteArgs) -> u8 {
    show(args, "/v1/certificates", |all: &Certificates| {
        let mut table = Table::new(&["CERTIFICATE", "DAYS LEFT", "NOT AFTER", "ISSUER", "SERIAL", "NAMES"]);
        for certificate in &all.certificates {
            table.row(vec![
                certificate.name.clone(),
                certificate.days_left.to_string(),
                certificate.not_after.clone(),
                certificate.issuer.clone(),
                certificate.serial.clone(),
                certificate.names.join(" "),
            ]);
        }
        table.show("")
    })
}

pub(super) fn server(args: &ServerArgs, action: &str) -> u8 {
    let Some((pool, server)) = args.server.split_once('/') else {
        output::print_error(format_args!(
            "error: {:?} is not POOL/SERVER, such as web/10.0.0.11:8080",
            args.server
        ));
        return WRONG;
    };
    let path = format!("/v1/servers/{}/{}/{action}", percent_encoded(pool), percent_encoded(server));
    post(&args.remote, &path)
}

pub(super) fn drain(args: &RemoteArgs) -> u8 {
    post(args, "/v1/drain")
}

pub(super) fn upgrade(args: &UpgradeArgs) -> u8 {
    let binary = args.binary.as_deref().map(std::path::absolute).transpose();
    let path = match binary {
        Ok(None) => "/v1/upgrade".to_owned(),
        Ok(Some(path)) => match path.to_str() {
            Some(path) => format!("/v1/upgrade?binary={}", percent_encoded(path)),
            None => return output::failed(&anyhow!("the path {} is not UTF-8", path.display())),
        },
        Err(error) => return output::failed(&anyhow!("cannot make the path of --binary whole: {error}")),
    };
    let socket = socket_of(&args.remote.socket);
    let upgraded = match ask::<Upgraded>(&socket, PATIENCE, ("POST", &path), &[200]) {
        Ok((_, upgraded)) => upgraded,
        Err(error) => return output::failed(&error),
    };
    if args.remote.json {
        return output::json(&upgraded);
    }
    let Upgraded { version, pid, passed, waiting } = &upgraded;
    let mut text = format!(
        "evergate {version} (pid {pid}) serves now: it has {passed} connections of the process before\n"
    );
    for (reason, count) in waiting {
        text += &format!("{count} follow later: {reason}\n");
    }
    output::text(&text)
}

pub(super) fn reload(args: &RemoteArgs) -> u8 {
    let (socket, asked) = (socket_of(&args.socket), ("POST", "/v1/reload"));
    let mut reported = request(&socket, PATIENCE, asked);
    if matches!(reported, Ok((ENDING, _)))
        && let Ok(successors) = request(&socket, PATIENCE, asked)
    {
        // An upgrade has replaced the process that was asked: its successor has the socket.
        reported = Ok(successors);
    }
    let (status, reloaded) = match reported.and_then(|it| understood::<Reloaded>(it, asked, &[200, 409])) {
        Ok(answer) => answer,
        Err(error) => return output::failed(&error),
    };
    for problem in &reloaded.problems {
        output::print_error(format_args!("{}: {problem}", problem.severity));
    }
    let is_in_force = status == 200;
    let printed = if args.json {
        output::json(&reloaded)
    } else if is_in_force {
        output::text(&format!("reloaded: generation {} is in force\n", reloaded.generation))
    } else {
        output::print_error(format_args!("refused: generation {} stays in force", reloaded.generation));
        WRONG
    };
    if is_in_force { printed } else { WRONG }
}

pub(super) fn metrics(args: &SocketArgs) -> u8 {
    match request(&socket_of(args), PATIENCE_TO_READ, ("GET", "/metrics")) {
        Ok((200, body)) => output::text(&String::from_utf8_lossy(&body)),
        Ok((status, _)) => output::failed(&anyhow!("the node answers with status {status}")),
        Err(error) => output::failed(&error),
    }
}

pub(super) fn show<T: Serialize + DeserializeOwned>(
    args: &RemoteArgs,
    path: &str,
    text: impl Fn(&T) -> String,
) -> u8 {
    match ask::<T>(&socket_of(&args.socket), PATIENCE_TO_READ, ("GET", path), &[200]) {
        Ok((_, value)) if args.json => output::json(&value),
        Ok((_, value)) => output::text(&text(&value)),
        Err(error) => output::failed(&error),
    }
}

pub(super) fn post(args: &RemoteArgs, path: &str) -> u8 {
    match order(&socket_of(&args.socket), path) {
        Ok(done) => output::done(args.json, &done),
        Err(error) => output::failed(&error),
    }
}

/// Sends an order to the node.
pub(super) fn order(socket: &Path, path: &str) -> anyhow::Result<Done> {
    ask::<Done>(socket, PATIENCE, ("POST", path), &[200, 202]).map(|(_, done)| done)
}

/// The socket that the arguments name, or the environment, or the usual one.
pub(super) fn socket_of(args: &SocketArgs) -> PathBuf {
    let from_environment =
        || std::env::var_os("EVERGATE_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from);
    args.socket.clone().or_else(from_environment).unwrap_or_else(|| SOCKET_DEFAULT.into())
}

fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b':' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// A span of time, as exact as its size deserves.
fn span(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{minutes} min {} s", seconds % 60),
        3600..86_400 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}
