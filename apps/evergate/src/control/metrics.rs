//! The content of `GET /metrics`. Everything is read from the counters at the request; nothing is counted twice.

use super::exposition::{Exposition, Family, Form};
use super::published::Control;
use super::status::{Counts, ServerStatus, Status};
use crate::audit::Audit;
use evergate_worker::{Kind, Metric, Section, Value};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The whole document.
pub(super) fn metrics(control: &Control, form: Form) -> String {
    let status = control.status();
    let mut out = Exposition::new(form);
    process(&mut out, control, &status);
    traffic(&mut out, &status);
    pools(&mut out, &status);
    if let Some(cluster) = &control.cluster {
        super::metrics_cluster::cluster(&mut out, &control.cluster_status(cluster));
    }
    if let Some(audit) = &control.audit {
        audited(&mut out, audit);
    }
    let rules = control.rules();
    let mut hits = out
        .counter("evergate_rule_hits_total", "Requests that a rule matched, since the rules last changed.");
    for rule in &rules.rules {
        hits.sample(&[("rule", &rule.name)], rule.hits);
    }
    let mut expiry =
        out.gauge("evergate_certificate_not_after_seconds", "End of a certificate's validity, in unix time.");
    for certificate in &control.certificates().certificates {
        expiry.sample(&[("certificate", &certificate.name)], certificate.not_after_unix_s);
    }
    out.finish()
}

fn process(out: &mut Exposition, control: &Control, status: &Status) {
    out.gauge("evergate_build_info", "Version of the program.").sample(&[("version", &status.version)], 1);
    out.gauge("process_start_time_seconds", "Start of the process, in unix time.")
        .sample(&[], status.started_unix_s);
    out.gauge("process_resident_memory_bytes", "Resident memory of the process.")
        .sample(&[], status.resident_bytes);
    out.gauge("evergate_draining", "1 while the process lets its connections finish.")
        .sample(&[], u8::from(control.is_draining()));
    out.gauge("evergate_config_generation", "Generation of the configuration in force.")
        .sample(&[], status.generation);
    out.counter("evergate_reloads_total", "Reloads by result.")
        .sample(&[("result", "success")], status.reloads.succeeded)
        .sample(&[("result", "failure")], status.reloads.failed);
    out.gauge("evergate_files_stale", "1 while changed certificates or keys cannot be used.")
        .sample(&[], u8::from(status.reloads.files_stale));
    let mut alive = out.gauge("evergate_worker_alive", "Whether a worker's thread runs.");
    for worker in &status.workers {
        alive.sample(&[("worker", &worker.index.to_string())], u8::from(worker.alive));
    }
    let workers: Vec<String> = status.workers.iter().map(|worker| worker.index.to_string()).collect();
    let of_workers: Vec<_> =
        status.workers.iter().map(|worker| worker.counts.metrics(Section::Worker)).collect();
    for row in 0..of_workers.first().map_or(0, Vec::len) {
        let mut family = family(out, &of_workers[0][row].0);
        for (worker, metrics) in workers.iter().zip(&of_workers) {
            sample(&mut family, &metrics[row], &[("worker", worker)]);
        }
    }
}

/// The metrics of a section, of all workers together.
fn section(out: &mut Exposition, counts: &Counts, section: Section) {
    for rows in counts.metrics(section).chunk_by(|(one, _), (other, _)| one.name == other.name) {
        let mut family = family(out, &rows[0].0);
        for row in rows {
            sample(&mut family, row, &[]);
        }
    }
}

fn family<'e>(out: &'e mut Exposition, metric: &Metric) -> Family<'e> {
    match metric.kind {
        Kind::Counter | Kind::CounterOfNs => out.counter(metric.name, metric.help),
        Kind::Gauge => out.gauge(metric.name, metric.help),
    }
}

/// Adds the samples of a row of the table. `more`: labels in front of its own.
fn sample(family: &mut Family<'_>, (metric, value): &(Metric, Value<'_>), more: &[(&str, &str)]) {
    let labels = [more, metric.labels].concat();
    match (*value, metric.kind) {
        (Value::One(ns), Kind::CounterOfNs) => drop(family.sample(&labels, ns as f64 / 1e9)),
        (Value::One(value), _) => drop(family.sample(&labels, value)),
        (Value::Classes(classes), _) => by_class(family, &labels, classes),
    }
}

/// Adds a sample for each class of status.
fn by_class(family: &mut Family<'_>, labels: &[(&str, &str)], classes: &BTreeMap<String, u64>) {
    for (class, count) in classes {
        family.sample(&[labels, &[("class", class)]].concat(), count);
    }
}

fn traffic(out: &mut Exposition, status: &Status) {
    out.gauge("evergate_connections", "Client connections open.").sample(&[], status.connections.open);
    out.gauge("evergate_connections_limit", "Bound on client connections.")
        .sample(&[], status.connections.max);
    section(out, &status.total, Section::Clients);
    out.gauge("evergate_session_ids", "TLS 1.2 sessions kept for clients that resume them by their ids.")
        .sample(&[], status.session_ids);
    section(out, &status.total, Section::Traffic);
    let mut responses = out
        .counter("evergate_listener_responses_total", "Responses sent to clients of a listener, by class.");
    for listener in &status.listeners {
        by_class(&mut responses, &[("listener", &listener.name)], &listener.responses);
    }
    let mut reasons = out
        .counter("evergate_ended_total", "Requests and connections that evergate itself ended, by reason.");
    for (reason, count) in &status.reasons {
        reasons.sample(&[("reason", reason)], count);
    }
}

fn audited(out: &mut Exposition, audit: &Audit) {
    let (bytes, lost, is_connected) = audit.feed.state();
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    out.counter("evergate_audit_sealed_total", "Connections whose secrets were sealed.")
        .sample(&[], count(&audit.counts.sealed));
    out.counter("evergate_audit_unsealed_total", "Audited connections whose secrets could not be sealed.")
        .sample(&[], count(&audit.counts.unsealed));
    out.counter("evergate_audit_feed_lost_total", "Messages that the Recorder never gets; it declares them.")
        .sample(&[], lost);
    out.gauge("evergate_audit_feed_bytes", "Bytes of messages that no Recorder has acknowledged.")
        .sample(&[], bytes);
    out.gauge("evergate_audit_feed_connected", "Whether a Recorder takes the feed.")
        .sample(&[], u8::from(is_connected));
    out.gauge("evergate_audit_epoch_ready", "Whether there are keys for connections of this hour.")
        .sample(&[], u8::from(audit.contexts.is_ready()));
}

fn pools(out: &mut Exposition, status: &Status) {
    let mut responses = out
        .counter("evergate_pool_responses_total", "Responses to clients for requests of a pool, by class.");
    for pool in &status.pools {
        by_class(&mut responses, &[("pool", &pool.name)], &pool.responses);
    }
    let mut unavailable =
        out.counter("evergate_pool_unavailable_total", "Requests that no server of a pool could take.");
    for pool in &status.pools {
        unavailable.sample(&[("pool", &pool.name)], pool.unavailable);
    }
    sessions(out, status);
    let servers = || status.pools.iter().flat_map(|pool| &pool.servers);
    let state = |server: &ServerStatus, name: &str| u8::from(server.state == name);
    let mut up = out.gauge("evergate_server_up", "Whether new requests may go to a server.");
    for server in servers() {
        up.sample(&labels(server), state(server, "up"));
    }
    let mut draining = out.gauge("evergate_server_draining", "1 while an operator has drained the server.");
    for server in servers() {
        draining.sample(&labels(server), state(server, "draining"));
    }
    let mut outstanding = out.gauge("evergate_server_outstanding", "Requests under way at a server.");
    for server in servers() {
        outstanding.sample(&labels(server), server.outstanding);
    }
    let mut requests = out.counter("evergate_server_requests_total", "Requests sent to a server.");
    for server in servers() {
        requests.sample(&labels(server), server.requests);
    }
    let mut failures = out.counter("evergate_server_failures_total", "Connects and responses that failed.");
    for server in servers() {
        failures.sample(&labels(server), server.failures);
    }
    let mut times = out.histogram(
        "evergate_server_response_seconds",
        "From sending a request to a server, or connecting for it, to the beginning of the response.",
    );
    for server in servers() {
        times.times(&labels(server), &server.response_times);
    }
    let mut checks = out.counter("evergate_health_checks_total", "Health checks by result.");
    for server in servers() {
        if let Some(health) = &server.health {
            let [pool, name] = labels(server);
            checks.sample(&[pool, name, ("result", "success")], health.passed);
            checks.sample(&[pool, name, ("result", "failure")], health.failed);
        }
    }
}

fn sessions(out: &mut Exposition, status: &Status) {
    let pools = || status.pools.iter().filter_map(|pool| Some((pool.name.as_str(), pool.sessions?)));
    let mut known =
        out.gauge("evergate_pool_sessions", "Clients whose server a pool knows by their address.");
    for (pool, sessions) in pools() {
        known.sample(&[("pool", pool)], sessions.known);
    }
    let mut requests = out.counter(
        "evergate_pool_session_requests_total",
        "Attempts at requests of a pool that chooses by session, by result for the session.",
    );
    for (pool, sessions) in pools() {
        requests
            .sample(&[("pool", pool), ("session", "new")], sessions.new)
            .sample(&[("pool", pool), ("session", "returned")], sessions.returned)
            .sample(&[("pool", pool), ("session", "missed")], sessions.missed);
    }
    let mut evicted = out
        .counter("evergate_pool_sessions_evicted_total", "Sessions forgotten because there were too many.");
    for (pool, sessions) in pools() {
        evicted.sample(&[("pool", pool)], sessions.evicted);
    }
    learned_sessions(out, status);
}

/// Sessions of relayed handshakes.
fn learned_sessions(out: &mut Exposition, status: &Status) {
    let pools = || status.pools.iter().filter_map(|pool| Some((pool.name.as_str(), pool.sessions?)));
    let mut decided = out.counter(
        "evergate_pool_session_decisions_total",
        "Attempts at requests of a pool that chooses by session, by what decided.",
    );
    for (pool, sessions) in pools() {
        decided
            .sample(&[("pool", pool), ("by", "session")], sessions.decided.session)
            .sample(&[("pool", pool), ("by", "address")], sessions.decided.address)
            .sample(&[("pool", pool), ("by", "sni")], sessions.decided.sni);
    }
    let mut hellos = out.counter(
        "evergate_pool_session_hellos_total",
        "Relayed ClientHellos by the sessions that they offer.",
    );
    for (pool, sessions) in pools() {
        hellos
            .sample(&[("pool", pool), ("sessions", "found")], sessions.learned.found)
            .sample(&[("pool", pool), ("sessions", "unknown")], sessions.learned.unknown)
            .sample(&[("pool", pool), ("sessions", "none")], sessions.learned.unoffered);
    }
    let mut entries = out.gauge("evergate_pool_learned_sessions", "Entries learned from relayed handshakes.");
    for (pool, sessions) in pools() {
        entries.sample(&[("pool", pool)], sessions.learned.entries);
    }
    let mut memory =
        out.gauge("evergate_pool_learned_sessions_bytes", "Memory of the table of learned sessions.");
    for (pool, sessions) in pools() {
        memory.sample(&[("pool", pool)], sessions.learned.memory_bytes);
    }
    let mut changes = out.counter(
        "evergate_pool_learned_sessions_total",
        "Changes of learned sessions: stored here, received from other nodes, forgotten, evicted.",
    );
    for (pool, sessions) in pools() {
        changes
            .sample(&[("pool", pool), ("change", "learned")], sessions.learned.learned)
            .sample(&[("pool", pool), ("change", "received")], sessions.learned.received)
            .sample(&[("pool", pool), ("change", "forgotten")], sessions.learned.forgotten)
            .sample(&[("pool", pool), ("change", "evicted")], sessions.learned.evicted);
    }
    let measured = || {
        let servers = status.pools.iter().flat_map(|pool| &pool.servers);
        servers.filter_map(|server| Some((labels(server), server.handshakes?)))
    };
    let mut costs = out.gauge(
        "evergate_server_handshake_seconds",
        "Measured cost of a relayed handshake at a server, by kind: p_new and p_reu of SSLSARD.",
    );
    for ([pool, server], measured) in measured() {
        for (kind, us) in [("full", measured.full_us), ("resumed", measured.resumed_us)] {
            if let Some(us) = us {
                costs.sample(&[pool, server, ("kind", kind)], us / 1e6);
            }
        }
    }
    let mut handshakes =
        out.counter("evergate_server_handshakes_total", "Relayed handshakes that a server finished.");
    for ([pool, server], measured) in measured() {
        handshakes
            .sample(&[pool, server, ("kind", "full")], measured.full)
            .sample(&[pool, server, ("kind", "resumed")], measured.resumed);
    }
}

fn labels(server: &ServerStatus) -> [(&str, &str); 2] {
    [("pool", &server.pool), ("server", &server.name)]
}
