//! `evergate cluster`

use super::output;
use super::{RemoteArgs, remote};
use crate::agent::status::{ClusterStatus, CutOff, NodeStatus, Quorum, UnreachableAddress};
use evergate_agent::FailoverStatus;
use evergate_base::Table;
use evergate_worker::TimesStatus;

pub(super) fn key() -> u8 {
    output::text(&format!("{}\n", crate::agent::fresh_key()))
}

pub(super) fn status(args: &RemoteArgs) -> u8 {
    remote::show(args, "/v1/cluster", |status: &ClusterStatus| {
        let mut text = phase_lines(status);
        text += &bucket_lines(status);
        text += &network_lines(status);
        text += &format!("\n{}", nodes(status).show(""));
        if !status.failovers.is_empty() {
            text += &format!("\n{}", failovers(&status.failovers));
        }
        text
    })
}

/// The node's part in the cluster.
fn phase_lines(status: &ClusterStatus) -> String {
    let mut text = format!("cluster {}, node {}: {}", status.name, status.node, status.phase);
    if status.draining {
        text += if status.drained { ", drained" } else { ", draining" };
    }
    if let Some(wait) = status.rejoin_delay_ms {
        text += &format!(", waits {:.1} s before it joins again", seconds(wait));
    }
    text += "\n";
    text += &timing_line(status);
    if let Some(CutOff { network, why }) = &status.cut_off {
        text += &format!("cut off:       the {network} network: {why}\n");
    }
    if let Some(view) = &status.view {
        let (members, age) = (numbers(&view.members), seconds(view.age_ms));
        text += &format!("view:          {} with nodes {members}, for {age:.1} s\n", view.epoch);
    }
    if let Some(waits) = status.waits_for_view_ms.filter(|waits| *waits >= 1000) {
        let missing = if status.waits_for.is_empty() { "all".to_owned() } else { numbers(&status.waits_for) };
        text += &format!("waits:         {:.1} s until nodes agree: {missing}\n", seconds(waits));
    }
    text
}

/// Its timing profile, and the nodes with another one: the shortest times count for all.
fn timing_line(status: &ClusterStatus) -> String {
    let differs = |node: &&NodeStatus| node.timing.as_ref().is_some_and(|timing| *timing != status.timing);
    let others: String = status
        .nodes
        .iter()
        .filter(differs)
        .map(|node| format!("; node {}: {}", node.number, node.timing.as_deref().unwrap_or_default()))
        .collect();
    format!("timing:        {} ({}){others}\n", status.timing, status.timing_reason)
}

/// Buckets, connections, and the outcomes of failovers.
fn bucket_lines(status: &ClusterStatus) -> String {
    let buckets = &status.buckets;
    let mut text = format!(
        "buckets:       {} owned ({} recovering, {} without a backup), {} backed up, {} catching up here, {} unowned\n",
        buckets.owned,
        buckets.recovering,
        buckets.without_backup,
        buckets.backup,
        buckets.catching_up,
        buckets.unowned
    );
    let replication = &status.replication;
    text += &format!(
        "connections:   {}, replicated {}, replicas of other nodes' {}\n",
        replication.connections, replication.replicated, replication.replicas
    );
    for lag in &replication.backups {
        let behind_ms = lag.behind_us as f64 / 1000.0;
        text += &format!(
            "backup lag:    node {}: {} frames, {} bytes unsent, {behind_ms:.1} ms\n",
            lag.node, lag.frames, lag.unsent_bytes
        );
    }
    let counts = &status.counts;
    text += &format!(
        "failovers:     {}, buckets handed off {}, connections continued {}, lost {}\n",
        counts.failovers, counts.handoffs, counts.connections_continued, counts.connections_lost
    );
    text += &stalls("active", &status.stalls.active);
    text += &stalls("idle", &status.stalls.idle);
    text + &format!("fenced:        {} times, {} times state dropped\n", counts.fenced, counts.state_dropped)
}

/// Reachable nodes and witnesses, and rejected messages.
fn network_lines(status: &ClusterStatus) -> String {
    let mut text = String::new();
    if let Some(Quorum { reachable, needed }) = status.quorum {
        let all = status.nodes.len();
        text += &format!(
            "majority:      {reachable} of {all} nodes reachable, this one included; {needed} needed\n"
        );
    }
    for found in &status.unreachable_addresses {
        let UnreachableAddress { network, interface, address, why } = found;
        text += &format!("unreachable:   {address} on {interface} ({network}): {why}\n");
    }
    for witness in &status.witnesses {
        let network = witness.network.as_deref().unwrap_or("on neither network");
        text += &format!("witness:       {} ({network}) {}\n", witness.address, ago(witness.answered_ms));
    }
    text += &listed("rejected:", status.rejected.iter());
    text + &listed("gate:", status.gate.iter())
}

fn nodes(status: &ClusterStatus) -> Table {
    let heads =
        ["NODE", "MEMBER", "WITNESS", "GENERATION", "LOAD", "INSIDE", "LAST SEEN", "OUTSIDE", "LAST SEEN"];
    let mut table = Table::new(&heads);
    for node in &status.nodes {
        table.row(row(node, node.number == status.node));
    }
    table
}

fn row(node: &NodeStatus, own: bool) -> Vec<String> {
    let last_seen = |ms, network: &str| {
        let at = if own { "this node".to_owned() } else { ago(ms) };
        let lost = node.lost.iter().any(|lost| lost == network);
        if lost { format!("{at} (down there)") } else { at }
    };
    let member = match (node.member, node.draining) {
        (true, Some(true)) => "drains",
        (true, _) => "yes",
        (false, _) => "no",
    };
    let witnessed = node.witnessed.map_or("-", |witnessed| if witnessed { "yes" } else { "no" });
    vec![
        node.number.to_string(),
        member.to_owned(),
        witnessed.to_owned(),
        generation(node, own),
        node.load.map_or_else(|| "-".to_owned(), |load| format!("{:.1} %", load as f64 / 10_000.0)),
        node.inside.clone(),
        last_seen(node.silent_inside_ms, "inside"),
        node.outside.clone(),
        last_seen(node.silent_outside_ms, "outside"),
    ]
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

fn numbers(nodes: &[u8]) -> String {
    nodes.iter().map(u8::to_string).collect::<Vec<_>>().join(" ")
}

/// Configuration generation of a node, and whether this node's configuration is compatible with it.
fn generation(node: &NodeStatus, own: bool) -> String {
    match (node.generation, node.config_compatible) {
        (None, _) => "-".to_owned(),
        (Some(generation), Some(false)) if !own => format!("{generation} (incompatible)"),
        (Some(generation), _) => generation.to_string(),
    }
}

fn failovers(all: &[FailoverStatus]) -> String {
    let mut table = Table::new(&[
        "FAILOVER AT",
        "BUCKETS FAILED OVER",
        "HANDED OFF",
        "CONNECTIONS",
        "LOST",
        "SILENT",
        "TOOK",
    ]);
    for one in all {
        table.row(vec![
            evergate_base::rfc3339(one.began_unix_s.cast_signed()),
            one.failed_over.to_string(),
            one.handed_off.to_string(),
            one.connections.to_string(),
            one.lost.to_string(),
            if one.failed_over > 0 { format!("{:.1} ms", one.silent_ms) } else { "-".to_owned() },
            if one.running { "under way".to_owned() } else { format!("{:.1} ms", one.took_ms) },
        ]);
    }
    table.show("")
}

/// Number of stalls, and the bound on 99 of 100 of them.
fn stalls(name: &str, counts: &TimesStatus) -> String {
    if counts.count == 0 {
        return String::new();
    }
    let most = counts.count - counts.count / 100;
    let bound = counts.within.iter().find(|within| within.count >= most);
    let bound =
        bound.map_or("longer than all bounds".to_owned(), |within| format!("within {} ms", within.ms));
    format!("stalls:        {} of {name} connections, 99 of 100 {bound}\n", counts.count)
}

/// All counts above zero, on one line.
fn listed<'a>(title: &str, counts: impl Iterator<Item = (&'a String, &'a u64)>) -> String {
    let counts = counts.filter(|(_, count)| **count > 0);
    let words: Vec<String> = counts.map(|(name, count)| format!("{name} {count}")).collect();
    if words.is_empty() { String::new() } else { format!("{title:<15}{}\n", words.join(", ")) }
}

fn ago(ms: Option<u64>) -> String {
    ms.map_or_else(|| "never".to_owned(), |ms| format!("{ms} ms ago"))
}
