//! Commands that wait until a node of a cluster is where it was told to go: for whoever replaces one after the other.

use super::output;
use super::remote::{PATIENCE_TO_READ, order, socket_of};
use super::{DrainArgs, WaitArgs};
use crate::agent::status::ClusterStatus;
use crate::control::client::{request, understood};
use crate::control::status::Done;
use anyhow::anyhow;
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two looks at the node.
const POLL_EVERY: Duration = Duration::from_millis(200);
/// Between two lines about what is missing.
const LINE: Duration = Duration::from_secs(5);
/// Buckets are copied some at a time: for so long no more must come.
const SETTLED: Duration = Duration::from_secs(2);

/// What one look at the node has found.
enum Found {
    /// It is so; in a sentence.
    Done(String),
    /// Not yet; why.
    Missing(String),
    /// It will not be so while one waits; why, and what to do.
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
            let mut began = false; // the order reaches the node a moment after it was taken
            wait(&socket, span, args.remote.json, |status| is_drained(status, &mut began))
        }
    }
}

pub(super) fn cluster(args: &WaitArgs) -> u8 {
    let mut whole_since = None;
    wait(&socket_of(&args.remote.socket), args.timeout, args.remote.json, |status| {
        takes_part(status, args.without_backup, &mut whole_since, Instant::now())
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
            "node {node} does not drain any more: it was told to take connections again"
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
fn takes_part(
    status: &ClusterStatus,
    without_backup: bool,
    whole_since: &mut Option<Instant>,
    now: Instant,
) -> Found {
    let (node, buckets) = (status.node, &status.buckets);
    if status.draining {
        return Found::Never(format!(
            "node {node} is told to drain; `evergate node undrain` takes that back"
        ));
    }
    if status.phase == "left" {
        return Found::Never(format!("node {node} has left its cluster; start its process anew"));
    }
    let alone = !status.has_takers();
    let moving = buckets.unowned + buckets.recovering + buckets.syncing + buckets.catching_up;
    let bare = if alone { 0 } else { buckets.without_backup };
    if status.phase != "active" {
        *whole_since = None;
        let standing = &status.phase;
        return Found::Missing(format!("node {node} is no member of its cluster: {standing}"));
    }
    if !alone && buckets.owned + buckets.backup + moving == 0 {
        let takes_none = status.nodes.iter().any(|own| own.number == node && own.draining == Some(true));
        if takes_none {
            return Found::Done(format!(
                "node {node} is a member, and takes neither connections nor copies: its weight is 0"
            ));
        }
        *whole_since = None;
        return Found::Missing(format!(
            "node {node} is a member, and has neither buckets nor copies; should that last, others refuse its mirror channels, and the \
             logs say why"
        ));
    }
    if moving + bare > 0 || buckets.owned + buckets.backup == 0 {
        *whole_since = None;
        return Found::Missing(format!(
            "node {node} is a member; of its buckets {} are without a copy, {} being copied from it, {} being copied to it, {} \
             taken over and not going on yet, {} served by nobody",
            buckets.without_backup, buckets.syncing, buckets.catching_up, buckets.recovering, buckets.unowned
        ));
    }
    if alone && !without_backup && status.nodes.len() > 1 {
        *whole_since = None;
        return Found::Missing(format!(
            "node {node} serves alone: {} buckets are without a backup, and no other node takes replicas; start another node, or \
             accept that with --without-backup",
            buckets.without_backup
        ));
    }
    let since = *whole_since.get_or_insert(now);
    if now - since < SETTLED {
        return Found::Missing(format!("node {node} is a member, and is still given buckets or copies"));
    }
    Found::Done(match alone {
        true => format!("node {node} serves alone: its buckets are without a backup"),
        false => format!("node {node} is a member, and everything that it has is at another node too"),
    })
}
