//! Checks of what concerns the whole process: node, timeouts, limits, logs, admin.

use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use super::context::Checks;
use super::runtime_files;
use crate::address;
use crate::model::{AccessLog, Admin, ListenerLimits, LogFields, Logs, Node, NodeLimits, Timeouts};
use crate::problem::REFUSED;
use crate::raw::{RawAdmin, RawLimits, RawLogs, RawNode, RawTimeouts};
use crate::span::KeyPath;
use crate::suggest::{did_you_mean, listed};

pub(crate) fn node(raw: &RawNode, checks: &mut Checks<'_>) -> Node {
    let at = KeyPath::root().key("node");
    for (key, name) in [("user", &raw.user), ("group", &raw.group)] {
        let Some(name) = name else { continue };
        let valid = !name.is_empty()
            && name.len() <= 32
            && !name.starts_with('-')
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'$'));
        if !valid {
            let what = format!("{name:?} cannot be the name of a {key}");
            checks.report.error(
                &at.key(key),
                what,
                format!("write the name of an existing {key}, such as \"evergate\""),
            );
        }
    }
    if let Some(user) = &raw.user
        && !checks.report.has_errors()
        && !checks.world.has_account(user, raw.group.as_deref())
    {
        let group = raw.group.as_ref().map(|group| format!(" with the group {group:?}")).unwrap_or_default();
        checks.report.hindrance(
            &at.key("user"),
            format!("this machine has no user {user:?}{group}"),
            format!("make it: `useradd --system {user}`, or write the name of one that exists"),
        );
    }
    if raw.group.is_some() && raw.user.is_none() {
        checks.report.warning(
            &at.key("group"),
            "`group` is given without `user`",
            "the process keeps its user and loses only its group's rights",
            "add `user`, or remove `group`",
        );
    }
    Node {
        workers: raw.workers.and_then(NonZeroUsize::new),
        user: raw.user.clone(),
        group: raw.group.clone(),
        pid_file: raw.pid_file.as_deref().and_then(|path| pid_file(path, checks)),
    }
}

/// Refuses `node.user`, because another user than root has no rights that the node needs later.
pub(crate) fn user_loses_rights(what: &str, needs: &str, checks: &mut Checks<'_>) {
    checks.report.error_because(
        &KeyPath::root().key("node").key("user"),
        what,
        format!("{needs}; {REFUSED}"),
        "remove `user` and `group`; to run without root, start it with only these capabilities (systemd: \
         `AmbientCapabilities`)",
    );
}

fn pid_file(path: &str, checks: &mut Checks<'_>) -> Option<PathBuf> {
    if path.is_empty() {
        let at = KeyPath::root().key("node").key("pid_file");
        checks.report.error(&at, "the path is empty", "write the path of a file, or remove `pid_file`");
        return None;
    }
    Some(checks.own_file(path, &KeyPath::root().key("node").key("pid_file"), false))
}

pub(crate) fn timeouts(raw: &RawTimeouts, checks: &mut Checks<'_>) -> Timeouts {
    let at = KeyPath::root().key("timeouts");
    if raw.write_stall_ms > raw.tunnel_idle_ms {
        checks.report.error_because(
            &pick_given(checks, &at, "write_stall_ms", "tunnel_idle_ms"),
            format!(
                "`write_stall_ms` ({}) is longer than `tunnel_idle_ms` ({})",
                raw.write_stall_ms, raw.tunnel_idle_ms
            ),
            format!("a stalled tunnel would end as idle before it could end as stalled; {REFUSED}"),
            "make `tunnel_idle_ms` the longer of the two",
        );
    }
    if raw.request_head_ms > raw.keep_alive_ms && checks.report.is_given(&at.key("keep_alive_ms")) {
        checks.report.warning(
            &at.key("keep_alive_ms"),
            format!(
                "a client may take longer for a request head ({} ms) than between two requests ({} ms)",
                raw.request_head_ms, raw.keep_alive_ms
            ),
            "slow clients keep connections that idle ones lose",
            "lower `request_head_ms` below `keep_alive_ms`",
        );
    }
    let ms = Duration::from_millis;
    Timeouts {
        handshake: ms(raw.handshake_ms),
        request_head: ms(raw.request_head_ms),
        request_body: ms(raw.request_body_ms),
        keep_alive: ms(raw.keep_alive_ms),
        response: ms(raw.response_ms),
        tunnel_idle: ms(raw.tunnel_idle_ms),
        write_stall: ms(raw.write_stall_ms),
        drain: ms(raw.drain_ms),
        tcp_keepalive: Duration::from_secs(raw.tcp_keepalive_s.into()),
    }
}

/// The key to change of two keys that contradict each other: the one that the file gives.
pub(crate) fn pick_given(checks: &Checks<'_>, at: &KeyPath, first: &str, second: &str) -> KeyPath {
    let first = at.key(first);
    if checks.report.is_given(&first) { first } else { at.key(second) }
}

pub(crate) fn node_limits(raw: &RawLimits, checks: &mut Checks<'_>) -> NodeLimits {
    let at = KeyPath::root().key("limits");
    let size = |n: Option<u32>, otherwise: usize| {
        n.and_then(|n| NonZeroUsize::new(n as usize)).map_or(otherwise, NonZeroUsize::get)
    };
    let megabytes = size(raw.buffers_max_mb, 512);
    NodeLimits {
        listener: listener_limits(raw, raw, &at, checks),
        handshakes_per_turn: NonZeroUsize::new(size(raw.handshakes_per_turn, 8)).unwrap_or(NonZeroUsize::MIN),
        event_batching: Duration::from_micros(raw.event_batching_us.unwrap_or(0).into()),
        buffers_bytes_max: NonZeroUsize::new(megabytes.saturating_mul(1024 * 1024))
            .unwrap_or(NonZeroUsize::MIN),
        session_cache_bytes_max: raw.session_cache_mb.unwrap_or(0) as usize * 1024 * 1024,
    }
}

/// The limits of `own`, completed by those of `node`.
pub(crate) fn listener_limits(
    own: &RawLimits,
    node: &RawLimits,
    at: &KeyPath,
    checks: &mut Checks<'_>,
) -> ListenerLimits {
    // The shape pass has given `node` all its defaults, so the zeros below are never reached.
    let pick = |own: Option<u32>, node: Option<u32>| own.or(node).unwrap_or(0);
    let limits = ListenerLimits {
        connections_max: pick(own.connections_max, node.connections_max) as usize,
        connections_per_source_max: NonZeroU32::new(pick(
            own.connections_per_source_max,
            node.connections_per_source_max,
        )),
        head_bytes_max: pick(own.head_bytes_max, node.head_bytes_max) as usize,
        headers_max: pick(own.headers_max, node.headers_max) as usize,
        body_bytes_max: NonZeroU64::new(own.body_bytes_max.or(node.body_bytes_max).unwrap_or(0)),
        body_prefix_bytes: pick(own.body_prefix_bytes, node.body_prefix_bytes) as usize,
        requests_per_connection_max: NonZeroU32::new(pick(
            own.requests_per_connection_max,
            node.requests_per_connection_max,
        )),
        bytes_per_s_min: NonZeroU32::new(pick(own.bytes_per_s_min, node.bytes_per_s_min)),
    };
    if let Some(body_max) = limits.body_bytes_max
        && limits.body_prefix_bytes as u64 > body_max.get()
        && checks.report.is_given(&at.key("body_prefix_bytes"))
    {
        checks.report.warning(
            &at.key("body_prefix_bytes"),
            format!(
                "`body_prefix_bytes` ({}) is larger than `body_bytes_max` ({body_max})",
                limits.body_prefix_bytes
            ),
            "bodies of that size never reach the rules; the rest of the value has no effect",
            format!("write `body_prefix_bytes = {body_max}`, or raise `body_bytes_max`"),
        );
    }
    if let (Some(per_source), true) =
        (limits.connections_per_source_max, checks.report.is_given(&at.key("connections_per_source_max")))
        && per_source.get() as usize > limits.connections_max
    {
        checks.report.warning(
            &at.key("connections_per_source_max"),
            format!(
                "one address may have more connections ({per_source}) than all together ({})",
                limits.connections_max
            ),
            "the limit per address has no effect",
            "lower it, or raise `connections_max`",
        );
    }
    limits
}

pub(crate) fn logs(raw: &RawLogs, checks: &mut Checks<'_>) -> Logs {
    let access = match raw.access.as_str() {
        "stdout" => AccessLog::Stdout,
        "off" => AccessLog::Off,
        "" => {
            let at = KeyPath::root().key("logs").key("access");
            checks.report.error(&at, "the path is empty", "write \"stdout\", \"off\" or the path of a file");
            AccessLog::Off
        }
        word if is_keyword_elsewhere(word) => {
            let at = KeyPath::root().key("logs").key("access");
            checks.report.error_because(
                &at,
                format!("{word:?} is neither \"stdout\" nor \"off\", and would be a file of that name"),
                format!("an administrator would not find the access log there; {REFUSED}"),
                format!("write \"stdout\", \"off\" or the path of a file; \"./{word}\" if that is the file"),
            );
            AccessLog::Off
        }
        path => AccessLog::File(runtime_files::access_log(path, checks)),
    };
    Logs { access, fields: log_fields(&raw.fields, checks), time: raw.time }
}

fn log_fields(names: &[String], checks: &mut Checks<'_>) -> LogFields {
    const NAMES: [&str; 3] = ["client_subject", "user_agent", "referer"];
    let mut fields = LogFields::default();
    let list = KeyPath::root().key("logs").key("fields");
    for (i, name) in names.iter().enumerate() {
        let at = list.index(i);
        let field = match name.as_str() {
            "client_subject" => &mut fields.client_subject,
            "user_agent" => &mut fields.user_agent,
            "referer" => &mut fields.referer,
            _ => {
                let meant = did_you_mean(name, NAMES);
                let remedy = format!("{meant}use {}", listed(NAMES));
                checks.report.error(&at, format!("there is no additional field {name:?}"), remedy);
                continue;
            }
        };
        if std::mem::replace(field, true) {
            let what = format!("the field {name:?} is in the list already");
            checks.report.error(&at, what, "remove one of them");
        }
    }
    fields
}

/// Whether other programs take the word for a place to write to, or for none.
fn is_keyword_elsewhere(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    let word = word.split(':').next().unwrap_or_default();
    const WORDS: [&str; 11] =
        ["stdout", "stderr", "off", "on", "none", "null", "false", "true", "syslog", "journal", "journald"];
    WORDS.contains(&word)
}

/// Longest path of a Unix socket on Linux (`sun_path` is 108 bytes with its terminator).
const SOCKET_PATH_LEN_MAX: usize = 107;

pub(crate) fn admin(raw: &RawAdmin, checks: &mut Checks<'_>) -> Admin {
    let at = KeyPath::root().key("admin");
    let socket = match raw.socket.as_str() {
        "off" => None,
        "" => {
            checks.report.error(
                &at.key("socket"),
                "the path is empty",
                "write a path, or \"off\" for no admin API",
            );
            None
        }
        text => {
            let path = runtime_files::admin_socket(text, checks);
            let len = path.as_os_str().len();
            if len > SOCKET_PATH_LEN_MAX {
                checks.report.error(
                    &at.key("socket"),
                    format!(
                        "the path has {len} bytes; a Unix socket's path has at most {SOCKET_PATH_LEN_MAX}"
                    ),
                    "choose a shorter path, such as \"/run/evergate/admin.sock\"",
                );
            }
            Some(path)
        }
    };
    let metrics_at = at.key("metrics_listen");
    let metrics_listen = match raw.metrics_listen.as_deref().map(address::listen) {
        None => None,
        Some(Ok(address)) => {
            if address.socket.ip().is_unspecified() {
                checks.report.warning(
                    &metrics_at,
                    "the metrics are served on all addresses, without authentication",
                    "every host that reaches this machine can read names and load of its pools and servers",
                    format!(
                        "write \"127.0.0.1:{}\", or an address of an internal network",
                        address.socket.port()
                    ),
                );
            }
            Some(address)
        }
        Some(Err(wrong)) => {
            checks.report.error(&metrics_at, wrong.what, wrong.remedy);
            None
        }
    };
    Admin { socket, metrics_listen }
}
