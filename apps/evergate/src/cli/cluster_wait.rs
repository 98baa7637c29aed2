//! Commands that wait until a node of a cluster has reached a state, for rolling restarts.

use super::output;
use super::remote::{PATIENCE_TO_READ, order, socket_of};
use super::{DrainArgs, WaitArgs};
use crate::agent::status::ClusterStatus;
use crate::control::client::{request, understood};
use crate::control::status::Done;
use anyhow::anyhow;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time between two polls of the node.
const POLL_EVERY: Duration = Duration::from_millis(200);
/// Time between two lines about what is missing.
const LINE: Duration = Duration::from_secs(5);
/// Buckets are replicated in groups: the state must last this long.
const SETTLED: Duration = Duration::from_secs(2);

/// Result of one poll of the node.
enum Found {
    /// The state is reached; a sentence about it.
    Done(String),
    /// Not yet; the reason.
    Missing(String),
    /// The state cannot be reached by waiting; the reason, and what to do.
    Never(String),
}

pub(super) fn drain(args: &DrainArgs) -> u8 {
    let socket = socket_of(&args.remote.socket);
    let ordered = match order(&socket, "/v1/cluster/drain") {
        Ok(done) => done,
        Err(error) => return output::failed(&error),
    };
    match args.wait {
        None => output::done(args.remote.json, &ordered),
        Some(span) => {
            let mut began = false; // the node drains a moment after it has accepted the order
            wait(&socket, span, args.remote.json, |status| is_drained(status, &mut began))
        }
    }
}

pub(super) fn cluster(args: &WaitArgs) -> u8 {
    let mut replicated_since = None;
    wait(&socket_of(&args.remote.socket), args.timeout, args.remote.json, |status| {
        has_replicas(status, args.without_backup, &mut replicated_since, Instant::now())
    })
}

fn wait(socket: &Path, seconds: u64, json: bool, mut look: impl FnMut(&ClusterStatus) -> Found) -> u8 {
    let began = Instant::now();
    let (until, mut next_line) = (began + Duration::from_secs(seconds), began + LINE);
    loop {
        let asked = ("GET", "/v1/cluster");
        let found = match request(socket, PATIENCE_TO_READ, asked)
            .map(|reported| understood(reported, asked, &[200]))
        {
            Ok(Ok((_, status))) => look(&status),
            Ok(Err(error)) => Found::Never(format!("{error:#}")), // a node on its own
            Err(error) => Found::Missing(format!("{error:#}")), // a process that has just begun has no socket yet
        };
        let now = Instant::now();
        match found {
            Found::Done(done) => return output::done(json, &Done { done }),
            Found::Never(why) => return output::failed(&anyhow!(why)),
            Found::Missing(why) if now >= until => {
                return output::failed(&anyhow!("not within {seconds} s: {why}"));
            }
            Found::Missing(why) if now >= next_line => {
                output::print_error(format_args!("waits for {} s: {why}", (now - began).as_secs()));
                next_line = now + LINE;
            }
            Found::Missing(_) => {}
        }
        std::thread::sleep(POLL_EVERY.min(until - now));
    }
}

fn is_drained(status: &ClusterStatus, began: &mut bool) -> Found {
    let (node, buckets) = (status.node, &status.buckets);
    *began |= status.draining;
    if !*began {
        return Found::Missing(format!("node {node} has not begun"));
    }
    if !status.draining {
        return Found::Never(format!(
            "node {node} no longer drains: it was ordered to take connections again"
        ));
    }
    if status.drained {
        if let Some(why) = status.must_stay() {
            return Found::Never(format!(
                "node {node} is drained, but {why}; let it run, or bring others back first"
            ));
        }
        return Found::Done(format!("node {node} is drained: the other nodes have its connections"));
    }
    let takers = match status.has_takers() {
        true => "",
        false => ", and no other node takes them: `evergate cluster status` shows which are members",
    };
    Found::Missing(format!("node {node} still serves {} buckets{takers}", buckets.owned))
}

/// The node is a member, and each bucket that it owns or replicates has its replicas. Where no other node takes
/// replicas, that is so only if the configuration has no other node, or with `without_backup`.
fn has_replicas(
    status: &ClusterStatus,
    without_backup: bool,
    replicated_since: &mut Option<Instant>,
    now: Instant,
) -> Found {
    let (node, buckets) = (status.node, &status.buckets);
    if status.draining {
        return Found::Never(format!(
            "node {node} is ordered to drain; `evergate node undrain` reverts that"
        ));
    }
    if status.phase == "left" {
        return Found::Never(format!("node {node} has left its cluster; start its process again"));
    }
    let alone = !status.has_takers();
    let moving = buckets.unowned + buckets.recovering + buckets.syncing + buckets.catching_up;
    let unprotected = if alone { 0 } else { buckets.without_backup };
    if status.phase != "active" {
        *replicated_since = None;
        let phase = &status.phase;
        return Found::Missing(format!("node {node} is no member of its cluster: {phase}"));
    }
    if !alone && buckets.owned + buckets.backup + moving == 0 {
        let takes_none = status.nodes.iter().any(|own| own.number == node && own.draining == Some(true));
        if takes_none {
            return Found::Done(format!(
                "node {node} is a member, and takes neither connections nor replicas: its weight is 0"
            ));
        }
        *replicated_since = None;
        return Found::Missing(format!(
            "node {node} is a member, and has neither buckets nor replicas; if that lasts, other nodes refuse its \
             replication channels, and the logs have the reason"
        ));
    }
    if moving + unprotected > 0 || buckets.owned + buckets.backup == 0 {
        *replicated_since = None;
        return Found::Missing(format!(
            "node {node} is a member; of its buckets {} are without a backup, {} are being replicated from it, {} \
             are being replicated to it, {} are recovering, {} are unowned",
            buckets.without_backup, buckets.syncing, buckets.catching_up, buckets.recovering, buckets.unowned
        ));
    }
    if alone && !without_backup && status.nodes.len() > 1 {
        *replicated_since = None;
        return Found::Missing(format!(
            "node {node} serves alone: {} buckets are without a backup, and no other node takes replicas; start \
             another node, or accept that with --without-backup",
            buckets.without_backup
        ));
    }
    let since = *replicated_since.get_or_insert(now);
    if now - since < SETTLED {
        return Found::Missing(format!("node {node} is a member, and still receives buckets or replicas"));
    }
    Found::Done(match alone {
        true => format!("node {node} serves alone: its buckets are without a backup"),
        false => format!("node {node} is a member, and each of its buckets has its replicas"),
    })
}
