//! Warnings that an operator needs before a node fails: a node without a witness, a view that does not form, and lists
//! of nodes that differ.
//!
//! A node without a witness serves while all nodes agree, and is useless as soon as one node is missing.

use super::{ADDRESS_BUCKET, Agent, State};
use crate::agent::address_probe::{Fault, FaultChange, ProbeContext};
use crate::agent::routes::net;
use crate::agent::status::CutOff;
use crate::agent::timing::name_of_lease;
use evergate_base::Micros;
use evergate_membership::{NodeId, NodePhase, Path, ROLLOUT, Role, Timing};
use std::collections::BTreeMap;
use std::fmt;

/// Time from which on a condition is worth a warning.
const LASTS: Micros = Micros::from_ms(1000);
/// Time until routes exist, before the warning that a network has no witness.
const ROUTES_LAST: Micros = Micros::from_ms(5000);
/// Time for which nodes may lack a new configuration without a warning.
const ROLLOUT_LASTS: Micros = Micros::from_ms(30_000);
/// Time between two log lines about why a node is fenced.
const FENCED_AGAIN: Micros = Micros::from_ms(60_000);
/// Time between two log lines about a network that this node is cut off from.
const CUT_OFF_AGAIN: Micros = Micros::from_ms(60_000);
/// Time between two log lines about an awaited view.
const AGAIN: Micros = Micros::from_ms(10_000);

/// Time after a delay within which a loss of membership counts as its consequence.
const DELAY_COUNTS: Micros = Micros::from_ms(1000);
/// Time for which nodes may run with different timing without a warning, as during a rolling restart.
const TIMING_LASTS: Micros = Micros::from_ms(5000);

/// Time for which a lost replication channel may be the first sign of its node's end.
const CHANNEL_WAITS: Micros = Micros::from_ms(500);
/// Shortest and longest time between two log lines about channels with a node that are lost again and again.
const CHANNEL_LINES: [Micros; 2] = [Micros::from_ms(1000), Micros::from_ms(300_000)];

/// A delay of a thread of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delay {
    /// The agent woke up this late, or one of its turns lasted this long.
    Agent(Micros),
    /// No worker made progress for this long.
    Workers(Micros),
}

impl Delay {
    /// Whether it may cost a node its membership: half a lease passed without a heartbeat, or the heartbeats stopped.
    fn is_long(self, timing: &Timing) -> bool {
        match self {
            Delay::Agent(span) => span.0 >= timing.fence.0 / 2,
            Delay::Workers(span) => span > timing.stall_max,
        }
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Delay::Agent(span) => write!(f, "the agent ran {} ms late", span.as_ms()),
            Delay::Workers(span) => write!(f, "the workers stood still for {} ms", span.as_ms()),
        }
    }
}

/// What the operator sees of a fault of the virtual MAC.
pub(super) fn symptom(fault: Fault) -> &'static str {
    match fault {
        Fault::NoFrames => "no frames for the virtual MAC arrive here",
        Fault::NoAnswer => "a frame to the virtual MAC gets no answer",
    }
}

/// Lost replication channels with one node.
#[derive(Debug)]
struct Channels {
    /// When the first unreported loss happened.
    since: Micros,
    /// Cause of the newest loss.
    why: String,
    unreported: u64,
    logged_at: Option<Micros>,
    /// Time until the next log line.
    pause: Micros,
}

/// Conditions that lead to warnings, each with its beginning and whether the warning is logged.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    view_logged_at: Option<Micros>,
    channels: BTreeMap<NodeId, Channels>,
    /// Active nodes that do not answer this one: since when, and when the warning was logged.
    unanswered: Option<(Micros, Option<Micros>)>,
    /// Nodes that lack this node's configuration.
    lacking: BTreeMap<NodeId, (Micros, bool)>,
    /// Nodes without a witness.
    unwitnessed: BTreeMap<NodeId, (Micros, bool)>,
    /// Members whose heartbeats arrive on the other network only.
    half_received: BTreeMap<(NodeId, Path), (Micros, bool)>,
    /// A majority without a spare node.
    scarce: Option<(Micros, bool)>,
    /// When the next line about the cause of the fence is due.
    fence_due: Option<Micros>,
    /// Networks without a witness.
    unvouched: BTreeMap<Path, (Micros, bool)>,
    /// When the next line about a lost network is due, and whether there was one.
    cut_off_due: Option<(Micros, bool)>,
    /// The last delay that may have cost this node its membership, and when it ended.
    delay: Option<(Micros, Delay)>,
    delay_logged_at: Option<Micros>,
    /// Nodes that run with other timing than this one.
    other_timing: BTreeMap<NodeId, (Micros, bool)>,
}

impl Warnings {
    /// A thread ran late until `now`.
    pub(super) fn record_delay(&mut self, now: Micros, delay: Delay, timing: Timing) {
        if delay.is_long(&timing) {
            self.delay = Some((now, delay));
        }
    }

    /// The delay that explains the loss of membership just now, unless a line about a delay was written lately.
    fn delay_to_log(&mut self, now: Micros) -> Option<Delay> {
        let (_, delay) = self.delay.filter(|(at, _)| now.since(*at) <= DELAY_COUNTS)?;
        if self.delay_logged_at.is_some_and(|at| now.since(at) < AGAIN) {
            return None;
        }
        self.delay_logged_at = Some(now);
        Some(delay)
    }

    pub(super) fn record_channel_lost(&mut self, now: Micros, node: NodeId, why: String) {
        let fresh = Channels {
            since: now,
            why: String::new(),
            unreported: 0,
            logged_at: None,
            pause: CHANNEL_LINES[0],
        };
        let channels = self.channels.entry(node).or_insert(fresh);
        if channels.unreported == 0 {
            channels.since = now;
        }
        channels.unreported += 1;
        channels.why = why;
    }

    /// Drops the unreported losses of a node that has left the view, and may be back before the next check. The line
    /// about the view reports more.
    pub(super) fn forget_channels_lost(&mut self, node: NodeId) {
        if let Some(channels) = self.channels.get_mut(&node) {
            channels.unreported = 0;
        }
    }

    /// The due lines about channels, each with its node. `ended`: whether the line about the view covers the node.
    fn channel_lines(&mut self, now: Micros, ended: impl Fn(NodeId) -> bool) -> Vec<(NodeId, String)> {
        let mut lines = Vec::new();
        for (node, channels) in &mut self.channels {
            if channels.unreported == 0 || now.since(channels.since) < CHANNEL_WAITS {
                continue;
            }
            if ended(*node) {
                channels.unreported = 0;
                continue;
            }
            let quiet = channels.logged_at.map(|at| now.since(at));
            if quiet.is_some_and(|quiet| quiet < channels.pause) {
                continue;
            }
            let continues = quiet.is_some_and(|quiet| quiet.0 < channels.pause.0 * 4);
            let times = if channels.unreported > 1 {
                format!(" ({} times)", channels.unreported)
            } else {
                String::new()
            };
            lines.push((*node, format!("{}{times}", channels.why)));
            channels.pause =
                if continues { CHANNEL_LINES[1].min(Micros(channels.pause.0 * 2)) } else { CHANNEL_LINES[0] };
            (channels.logged_at, channels.unreported) = (Some(now), 0);
        }
        lines
    }
}

impl Agent {
    /// Logs conditions that last. Runs each time that the status is published.
    pub(super) fn warn_all(&mut self, state: &mut State, now: Micros) {
        self.warn_about_view(state, now);
        self.warn_about_channels(state, now);
        self.warn_about_lists(state, now);
        self.warn_about_majority(state, now);
        self.warn_about_fence(state, now);
        self.warn_about_being_cut_off(state, now);
        let nodes = self.node.config().nodes;
        for id in nodes.iter().filter(|_| nodes.len() > 1) {
            self.warn_about_witness(state, now, id);
            self.warn_about_configuration(state, now, id);
            self.warn_about_timing(state, now, id);
            self.warn_about_networks(state, now, id);
        }
        if nodes.len() == 2 {
            Path::ALL.into_iter().for_each(|path| self.warn_about_vouching(state, now, path));
        }
    }

    /// Logs the delay that cost this node its membership, if there was one, and the configuration key that helps.
    pub(super) fn warn_about_delay(&mut self, state: &mut State) {
        let Some(delay) = state.warnings.delay_to_log(self.clock.now()) else { return };
        let config = self.node.config();
        let shorter = |id: &NodeId| self.node.lease_of(*id).is_some_and(|lease| lease < config.timing.fence);
        let shorter: Vec<u8> = config.nodes.iter().filter(shorter).map(|id| id.0.saturating_add(1)).collect();
        let (name, remedy) = (self.timing.name(), self.timing.remedy(&shorter));
        self.warn(format!(
            "lost its membership because its threads run late: {delay} (timing {name}); {remedy}"
        ));
    }

    /// Sends and reads the probes of the shared addresses, and logs what they find.
    pub(super) fn probe_addresses(&mut self, now: Micros) {
        let (node, flood) = (&self.node, self.flood);
        let me = node.me().id;
        let members = node.members().set().without(me);
        let has_others = node.view().is_some() && !members.is_empty();
        let is_active = has_others && node.phase() == NodePhase::Active;
        let answers = match node.role(ADDRESS_BUCKET) {
            Role::Owner { .. } => Some(me),
            Role::Backup { owner, .. } => Some(owner),
            Role::Outside { owner, .. } => owner,
        };
        let received =
            |id: NodeId, path| node.last_received_at(id, path).is_some_and(|at| now.since(at) < LASTS);
        let context = |path| ProbeContext {
            has_others,
            expects_frames: is_active
                && (flood || answers == Some(me))
                && members.iter().any(|id| received(id, path)),
            expects_answer: is_active && answers.is_some_and(|id| id != me && received(id, path)),
        };
        let changes = self.probes.poll(now, context);
        let number = answers.map_or(0, |id| id.0.saturating_add(1));
        for FaultChange { path, shared, fault } in changes {
            let link = self.links.iter().find(|link| link.path == path);
            let interface = link.map(|link| link.interface.clone()).unwrap_or_default();
            let mac = self.probes.virtual_mac();
            match fault {
                None => self.info(format!("no longer sees a fault of the shared address {shared} on {interface}")),
                Some(Fault::NoFrames) => self.warn(format!(
                    "gets no frames for the shared address {shared} on {interface}: probes that other nodes send to \
                     the virtual MAC {mac} do not arrive, as with port security of a switch or hypervisor; allow \
                     that MAC on the port of this node, unless routes lead to the nodes' own addresses \
                     (docs/guide/networks.md)"
                )),
                Some(Fault::NoAnswer) => self.warn(format!(
                    "gets no answer for the shared address {shared} on {interface}: a probe to the virtual MAC \
                     {mac} reaches no node, or the answer is dropped, as with port security of a switch or \
                     hypervisor; allow that MAC on the port of node {number}, unless routes lead to the nodes' own \
                     addresses (docs/guide/networks.md)"
                )),
            }
        }
    }

    /// The times differ: the shortest lease counts for all nodes, so a late node is replaced early.
    fn warn_about_timing(&mut self, state: &mut State, now: Micros, id: NodeId) {
        let number = id.0.saturating_add(1);
        let own = self.node.config().timing.fence;
        let Some(lease) = self.node.lease_of(id) else { return };
        if lease == own {
            if let Some((_, true)) = state.warnings.other_timing.remove(&id) {
                self.info(format!("runs with the same timing as node {number} again"));
            }
            return;
        }
        let (since, reported) = state.warnings.other_timing.entry(id).or_insert((now, false));
        if !*reported && now.since(*since) >= TIMING_LASTS {
            *reported = true;
            let there = name_of_lease(lease).unwrap_or("of another version");
            let (here, reason) = (self.timing.name(), &self.timing.reason);
            self.warn(format!(
                "runs with timing {here} ({reason}), and node {number} with timing {there}: leases last {} ms on \
                 both, and a late node is replaced early; set cluster.timing = \"virtual_machine\" on all nodes, or \
                 \"bare_metal\" if none is virtual",
                lease.min(own).as_ms()
            ));
        }
    }

    fn warn_about_view(&mut self, state: &mut State, now: Micros) {
        let logged_at = state.warnings.view_logged_at;
        let Some(waits) = self.node.waits_for_view(now).filter(|waits| *waits >= LASTS) else { return };
        if logged_at.is_some_and(|at| now.since(at) < AGAIN) {
            return;
        }
        state.warnings.view_logged_at = Some(now);
        let awaited: Vec<String> = self.node.awaited().iter().map(|id| (id.0 + 1).to_string()).collect();
        let missing = match awaited.is_empty() {
            true => String::new(),
            false => format!("; nodes {} have not agreed to the view that it proposes", awaited.join(", ")),
        };
        let waits_s = waits.as_ms() as f64 / 1e3;
        self.warn(format!("has waited {waits_s:.1} s for a view in which all agree{missing}"));
    }

    /// A node that stops closes its channels before it leaves, and channels of a dead node end first. The view reports
    /// those.
    fn warn_about_channels(&mut self, state: &mut State, now: Micros) {
        let node = &self.node;
        let ended = |id: NodeId| node.has_left(id) || !node.members().set().contains(id);
        let lines = state.warnings.channel_lines(now, ended);
        for (id, why) in lines {
            let (number, count) = (id.0.saturating_add(1), state.core.replicated_to(id));
            self.warn(format!(
                "lost a replication channel with node {number} ({count} buckets are replicated there): {why}; see \
                 also the log of that node"
            ));
        }
    }

    fn warn_about_lists(&mut self, state: &mut State, now: Micros) {
        let waits_by_itself = self.node.rejoin_delay(now).is_some() || self.node.cut_off().is_some();
        if self.node.phase() != NodePhase::Listening || waits_by_itself || !self.node.saw_active_cluster(now)
        {
            state.warnings.unanswered = None;
            return;
        }
        let (since, logged_at) = state.warnings.unanswered.get_or_insert((now, None));
        if now.since(*since) >= LASTS && logged_at.is_none_or(|at| now.since(at) >= AGAIN) {
            *logged_at = Some(now);
            self.warn(
                "listens, because an active cluster does not answer it: is it in [[cluster.nodes]] there, and under \
                 the same addresses?"
                    .to_owned(),
            );
        }
    }

    /// A rollout takes its time. A longer difference is a mistake, or a forgotten node.
    fn warn_about_configuration(&mut self, state: &mut State, now: Micros, id: NodeId) {
        let number = id.0.saturating_add(1);
        if self.node.config_compatible(id) != Some(false) {
            if let Some((_, true)) = state.warnings.lacking.remove(&id) {
                self.info(format!("node {number} has this node's configuration now, or is gone"));
            }
            return;
        }
        let (since, reported) = state.warnings.lacking.entry(id).or_insert((now, false));
        if !*reported && now.since(*since) >= ROLLOUT_LASTS {
            *reported = true;
            self.warn(format!(
                "node {number} lacks this node's configuration: it gets no buckets from here for {} minutes, and if \
                 this node fails, requests without a response are reset there; deploy the same file to all nodes \
                 and reload them",
                ROLLOUT.as_ms() / 60_000
            ));
        }
    }

    /// The first line appears when the node is fenced; only later lines name the missing nodes.
    fn warn_about_fence(&mut self, state: &mut State, now: Micros) {
        if self.node.phase() != NodePhase::Fenced {
            state.warnings.fence_due = None;
            return;
        }
        let first = if self.node.quorum().is_some() { LASTS } else { FENCED_AGAIN };
        let due = state.warnings.fence_due.get_or_insert(now + first);
        if now >= *due {
            *due = now + FENCED_AGAIN;
            let why = self.why_fenced();
            self.warn(why);
        }
    }

    /// A node that is cut off does not join, and no other line reports it.
    fn warn_about_being_cut_off(&mut self, state: &mut State, now: Micros) {
        let cut_off = self.cut_off().filter(|_| self.node.phase() != NodePhase::Left);
        let Some(CutOff { network, why }) = cut_off else {
            if let Some((_, true)) = state.warnings.cut_off_due.take() {
                self.info("is no longer cut off a network, as far as it can detect");
            }
            return;
        };
        let (due, reported) = state.warnings.cut_off_due.get_or_insert((now + LASTS, false));
        if now >= *due {
            (*due, *reported) = (now + CUT_OFF_AGAIN, true);
            self.warn(format!(
                "is cut off the {network} network: {why}; it accepts no buckets until it is back there"
            ));
        }
    }

    /// One more failure, and no node serves.
    fn warn_about_majority(&mut self, state: &mut State, now: Micros) {
        let scarce = self.node.quorum().filter(|(reachable, needed)| reachable == needed);
        let all = self.node.config().nodes.len();
        let Some((reachable, needed)) = scarce.filter(|_| all > 2 && self.node.phase() == NodePhase::Active)
        else {
            state.warnings.scarce = None;
            return;
        };
        let (since, reported) = state.warnings.scarce.get_or_insert((now, false));
        if !*reported && now.since(*since) >= LASTS {
            *reported = true;
            self.warn(format!(
                "reaches {reachable} of {all} nodes, itself included: a majority needs {needed}; if one more fails, \
                 no node serves"
            ));
        }
    }

    /// Two nodes cannot decide whether one of them is cut off from a network or the network is broken in between.
    fn warn_about_networks(&mut self, state: &mut State, now: Micros, id: NodeId) {
        let number = id.0.saturating_add(1);
        let member = self.node.view().is_some() && self.node.members().set().contains(id);
        for (path, net, other) in
            [(Path::Inside, "inside", Path::Outside), (Path::Outside, "outside", Path::Inside)]
        {
            let lately = |path| self.node.last_received_at(id, path).is_some_and(|at| now.since(at) < LASTS);
            let half = member && id != self.node.me().id && lately(other) && !lately(path);
            if !half {
                if let Some((_, true)) = state.warnings.half_received.remove(&(id, path)) {
                    self.info(format!(
                        "receives from node {number} on the {net} network again, or no more at all"
                    ));
                }
                continue;
            }
            let (since, reported) = state.warnings.half_received.entry((id, path)).or_insert((now, false));
            if !*reported && now.since(*since) >= LASTS {
                *reported = true;
                self.warn(format!(
                    "receives nothing from node {number} on the {net} network, only on the other one: that network \
                     is broken at one of the two or between them; if they cannot decide where, both stay, and \
                     clients of either may wait; check both nodes",
                ));
            }
        }
    }

    /// The witnesses of a network show on whose side it is broken; with three nodes the third node does.
    fn warn_about_vouching(&mut self, state: &mut State, now: Micros, path: Path) {
        let Some(witnesses) = &self.witnesses else { return };
        let there = |of: Option<Path>| witnesses.all.iter().filter(move |witness| witness.path() == of);
        if there(Some(path)).next().is_some() {
            state.warnings.unvouched.remove(&path);
            return;
        }
        let lost: String = there(None)
            .map(|witness| format!("; no route leads to {} over either interface", witness.ip))
            .collect();
        let (since, reported) = state.warnings.unvouched.entry(path).or_insert((now, false));
        if !*reported && now.since(*since) >= ROUTES_LAST {
            *reported = true;
            self.warn(format!(
                "has no witness on the {} network: if it loses packets and no interface its carrier, the two nodes \
                 cannot decide whose side is broken, and both stay; configure a witness there, if it fails together \
                 with the link between the nodes (docs/guide/cluster.md){lost}",
                net(path)
            ));
        }
    }

    fn warn_about_witness(&mut self, state: &mut State, now: Micros, id: NodeId) {
        let whose = match id == self.node.me().id {
            true => "itself".to_owned(),
            false => format!("node {}", id.0.saturating_add(1)),
        };
        match self.node.witnessed(id) {
            Some(false) => {}
            Some(true) => {
                if let Some((_, true)) = state.warnings.unwitnessed.remove(&id) {
                    self.info(format!("no longer lacks a witness for {whose}"));
                }
                return;
            }
            None => return, // it is silent: nothing new
        }
        let (since, reported) = state.warnings.unwitnessed.entry(id).or_insert((now, false));
        if !*reported && now.since(*since) >= LASTS {
            *reported = true;
            self.warn(format!(
                "finds no witness for {whose}: without one a node cannot continue when another one is missing"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: NodeId = NodeId(1);
    const SECOND: u64 = 1_000_000;

    #[test]
    fn long_delay_is_logged_once_after_a_loss() {
        let mut warnings = Warnings::default();
        let (timing, late) = (Timing::BARE_METAL, Delay::Agent(Micros::from_ms(60)));
        warnings.record_delay(Micros(SECOND), Delay::Agent(Micros::from_ms(16)), timing);
        warnings.record_delay(Micros(SECOND), Delay::Workers(Micros::from_ms(100)), timing);
        assert_eq!(warnings.delay_to_log(Micros(SECOND)), None, "too short to matter");
        warnings.record_delay(Micros(SECOND), late, timing);
        warnings.record_delay(Micros(SECOND + 10), Delay::Agent(Micros(10)), timing);
        assert_eq!(warnings.delay_to_log(Micros(SECOND + 50_000)), Some(late));
        assert_eq!(warnings.delay_to_log(Micros(SECOND + 60_000)), None, "once");
        let workers = Delay::Workers(Micros::from_ms(101));
        warnings.record_delay(Micros(20 * SECOND), workers, timing);
        assert_eq!(warnings.delay_to_log(Micros(22 * SECOND)), None, "too long ago");
        warnings.record_delay(Micros(30 * SECOND), workers, timing);
        assert_eq!(warnings.delay_to_log(Micros(30 * SECOND)), Some(workers));
        assert_eq!(workers.to_string(), "the workers stood still for 101 ms");
    }

    fn lines(warnings: &mut Warnings, at_s: u64) -> Vec<String> {
        let lines = warnings.channel_lines(Micros(at_s * SECOND), |_| false);
        lines.into_iter().map(|(_, line)| line).collect()
    }

    #[test]
    fn lost_channel_is_logged_once_if_its_node_stays() {
        let mut warnings = Warnings::default();
        warnings.record_channel_lost(Micros(SECOND), PEER, "eof".to_owned());
        assert!(warnings.channel_lines(Micros(SECOND + 100_000), |_| false).is_empty());
        assert_eq!(lines(&mut warnings, 2), ["eof"]);
        assert!(lines(&mut warnings, 3).is_empty());
        warnings.record_channel_lost(Micros(20 * SECOND), PEER, "eof".to_owned());
        assert!(warnings.channel_lines(Micros(21 * SECOND), |_| true).is_empty());
        assert!(lines(&mut warnings, 22).is_empty(), "it has ended");
        warnings.record_channel_lost(Micros(40 * SECOND), PEER, "eof".to_owned());
        warnings.forget_channels_lost(PEER);
        assert!(lines(&mut warnings, 41).is_empty(), "it has ended, and is back");
    }

    #[test]
    fn repeated_channel_losses_are_logged_at_growing_intervals() {
        let mut warnings = Warnings::default();
        let mut reported = Vec::new();
        for at in 1..7200 {
            warnings.record_channel_lost(Micros(at * SECOND), PEER, "eof".to_owned());
            reported.extend(lines(&mut warnings, at + 1));
        }
        assert!((20..40).contains(&reported.len()), "{}", reported.len());
        assert!(reported.last().unwrap().ends_with(" times)"), "{reported:?}");
    }
}
