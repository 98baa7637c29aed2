//! The cluster's part of `GET /metrics`.

use super::exposition::Exposition;
use crate::agent::status::{ClusterStatus, LagStatus};

pub(super) fn cluster(out: &mut Exposition, status: &ClusterStatus) {
    members(out, status);
    let buckets = &status.buckets;
    out.gauge("evergate_cluster_buckets", "Buckets by this node's role.")
        .sample(&[("role", "owned")], buckets.owned)
        .sample(&[("role", "backup")], buckets.backup)
        .sample(&[("role", "catching_up")], buckets.catching_up)
        .sample(&[("role", "unowned")], buckets.unowned);
    out.gauge(
        "evergate_cluster_buckets_recovering",
        "Owned buckets after a failover or handoff whose connections have not resumed yet.",
    )
    .sample(&[], buckets.recovering);
    out.gauge(
        "evergate_cluster_buckets_without_backup",
        "Owned buckets without a complete replica elsewhere.",
    )
    .sample(&[], buckets.without_backup);
    replication(out, status);
    let counts = &status.counts;
    out.counter("evergate_cluster_views_total", "Views installed.").sample(&[], counts.views);
    out.counter("evergate_cluster_fenced_total", "Times that this node was fenced.")
        .sample(&[], counts.fenced);
    out.counter("evergate_cluster_state_dropped_total", "Times that this node dropped all state.")
        .sample(&[], counts.state_dropped);
    out.counter("evergate_cluster_failovers_total", "Failovers from nodes that died.")
        .sample(&[], counts.failovers);
    out.counter("evergate_cluster_handoffs_total", "Buckets of planned handoffs to this node.")
        .sample(&[], counts.handoffs);
    out.counter(
        "evergate_cluster_connections_total",
        "Connections of other nodes after a failover or handoff, by result.",
    )
    .sample(&[("result", "continued")], counts.connections_continued)
    .sample(&[("result", "lost")], counts.connections_lost);
    let ended = || status.failovers.iter().rev().filter(|one| !one.running);
    let newest = ended().next();
    out.gauge("evergate_cluster_failover_seconds", "Duration of the last failover or handoff.")
        .sample(&[], newest.map_or(0.0, |one| one.took_ms / 1000.0));
    out.gauge(
        "evergate_cluster_failover_detection_seconds",
        "Silence of the node that died when the last failover began.",
    )
    .sample(&[], ended().find(|one| one.failed_over > 0).map_or(0.0, |one| one.silent_ms / 1000.0));
    out.counter(
        "evergate_cluster_loss_notices_total",
        "Peers with a notice about segments that they had sent to a silent node.",
    )
    .sample(&[], status.loss_notices);
    out.counter(
        "evergate_cluster_loss_notices_late_total",
        "Peers with a notice about lost segments because they were silent for a while after a failover or handoff.",
    )
    .sample(&[], status.loss_notices_late);
    out.counter("evergate_cluster_channels_lost_total", "Replication channels that broke or were too slow.")
        .sample(&[], counts.channels_lost);
    out.counter("evergate_cluster_datagrams_total", "Datagrams of the agent, by direction.")
        .sample(&[("direction", "in")], counts.datagrams_received)
        .sample(&[("direction", "out")], counts.datagrams_sent);
    out.counter("evergate_cluster_datagrams_unsent_total", "Datagrams that this machine did not send.")
        .sample(&[], counts.datagrams_unsent);
    out.gauge("evergate_agent_late_seconds_max", "How late the agent woke up at worst, since the start.")
        .sample(&[], counts.late_us_max as f64 / 1e6);
    out.gauge("evergate_agent_turn_seconds_max", "Longest turn of the agent since the start.")
        .sample(&[], counts.turn_us_max as f64 / 1e6);
    let mut rejected =
        out.counter("evergate_cluster_rejected_total", "Datagrams that were dropped, by reason.");
    for (reason, count) in &status.rejected {
        rejected.sample(&[("reason", reason)], count);
    }
    out.gauge("evergate_gate_flows", "TCP connections that the gate carries, counted every 10 s.")
        .sample(&[], status.flows);
    out.gauge("evergate_gate_flows_max", "How many it can carry.").sample(&[], status.flows_max);
    let mut gate = out.counter("evergate_gate_total", "What happened to packets at the gate.");
    for (event, count) in &status.gate {
        gate.sample(&[("event", event)], count);
    }
}

fn replication(out: &mut Exposition, status: &ClusterStatus) {
    let replicated_state = &status.replication;
    out.gauge("evergate_cluster_replication_connections", "Connections by role in replication.")
        .sample(&[("role", "own")], replicated_state.connections)
        .sample(&[("role", "replicated")], replicated_state.replicated)
        .sample(&[("role", "replica")], replicated_state.replicas);
    let node = |lag: &LagStatus| lag.node.to_string();
    let mut frames =
        out.gauge("evergate_cluster_replication_lag_frames", "Frames that a backup has not acknowledged.");
    for lag in &replicated_state.backups {
        frames.sample(&[("node", &node(lag))], lag.frames);
    }
    let mut unsent = out.gauge(
        "evergate_cluster_replication_unsent_bytes",
        "Bytes of frames that wait to be sent to a backup.",
    );
    for lag in &replicated_state.backups {
        unsent.sample(&[("node", &node(lag))], lag.unsent_bytes);
    }
    let mut behind = out.gauge(
        "evergate_cluster_replication_lag_seconds",
        "Longest time until a backup acknowledged a frame, of the frames timed in a second.",
    );
    for lag in &replicated_state.backups {
        behind.sample(&[("node", &node(lag))], lag.behind_us as f64 / 1e6);
    }
    let mut stalls = out.histogram(
        "evergate_cluster_stall_seconds",
        "How long connections of nodes that died stood still once they were known to be this node's.",
    );
    for (name, of) in [("active", &status.stalls.active), ("idle", &status.stalls.idle)] {
        stalls.times(&[("connection", name)], of);
    }
}

fn members(out: &mut Exposition, status: &ClusterStatus) {
    let mut standing = out.gauge("evergate_cluster_phase", "1 for the standing of this node.");
    for name in ["listening", "active", "fenced", "left"] {
        standing.sample(&[("phase", name)], u8::from(status.phase == name));
    }
    out.gauge("evergate_cluster_view", "Epoch of the view in force here; 0 without one.")
        .sample(&[], status.view.as_ref().map_or(0, |view| view.epoch));
    out.gauge("evergate_cluster_draining", "1 while this node hands its buckets off.")
        .sample(&[], u8::from(status.draining));
    let mut member = out.gauge("evergate_cluster_member", "Whether a node is a member of the view.");
    for node in &status.nodes {
        member.sample(&[("node", &node.number.to_string())], u8::from(node.member));
    }
    let mut load = out.gauge("evergate_cluster_load", "The work that a node's buckets make, in cores.");
    for node in &status.nodes {
        if let Some(work) = node.load {
            load.sample(&[("node", &node.number.to_string())], work as f64 / 1e6);
        }
    }
    let mut follows = out.gauge(
        "evergate_cluster_config_compatible",
        "Whether a node has this node's newest configuration too.",
    );
    for node in &status.nodes {
        if let Some(config_compatible) = node.config_compatible {
            follows.sample(&[("node", &node.number.to_string())], u8::from(config_compatible));
        }
    }
    let mut silence =
        out.gauge("evergate_cluster_silence_seconds", "Time since a node's last heartbeat, by network.");
    for node in status.nodes.iter().filter(|node| node.number != status.node) {
        for (network, ms) in [("inside", node.silent_inside_ms), ("outside", node.silent_outside_ms)] {
            let labels = [("node", &node.number.to_string()[..]), ("network", network)];
            silence.sample(&labels, ago_s(ms));
        }
    }
    let mut witness = out.gauge("evergate_cluster_witness_seconds", "How long ago a witness answered.");
    for one in &status.witnesses {
        witness.sample(&[("witness", &one.address)], ago_s(one.answered_ms));
    }
}

/// Time in seconds; a time that is unknown counts as infinite, since alerts would ignore a missing sample.
fn ago_s(ms: Option<u64>) -> String {
    ms.map_or_else(|| "+Inf".to_owned(), |ms| (ms as f64 / 1000.0).to_string())
}
