//! The show: transfers through the cluster's address while node after node is killed.

use super::admin::ClusterStatus;
use super::network::Network;
use super::node::Node;
use super::output::Console;
use super::progress;
use super::scoreboard::{Board, Kind};
use super::{Interrupted, Stop};
use anyhow::{Context, Result, bail};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bound on each step.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two polls of the nodes.
const POLL_EVERY: Duration = Duration::from_millis(5);
/// Time between two lines about the transfers.
const PROGRESS: Duration = Duration::from_secs(2);
/// How long everything runs undisturbed before each kill, for the viewer.
const CALM: Duration = Duration::from_secs(1);
const BUCKETS: u64 = evergate_membership::BUCKETS as u64;

/// One node's death, and its effects.
pub(super) struct Kill {
    pub(super) node: String,
    /// Connections that other nodes continued, and transfers under way at the kill.
    pub(super) continued: u64,
    pub(super) under_way: usize,
    /// The longest silence of each transfer.
    pub(super) silences: Vec<Option<Duration>>,
}

impl Kill {
    /// Whether it hit anything.
    pub(super) fn counts(&self) -> bool {
        self.continued > 0 && self.under_way > 0
    }

    pub(super) fn longest(&self) -> Duration {
        self.silences.iter().flatten().copied().max().unwrap_or_default()
    }
}

/// Everything that takes part.
pub(super) struct Show<'a> {
    pub(super) network: &'a Network,
    pub(super) nodes: Vec<Node>,
    pub(super) board: Arc<Board>,
    pub(super) console: &'a Console,
    pub(super) stop: &'a Stop,
    pub(super) kills: Vec<Kill>,
    pub(super) next_line: Instant,
}

impl Show<'_> {
    /// Starts all nodes and waits until they are a cluster.
    pub(super) fn begin(&mut self) -> Result<()> {
        for (node, namespace) in self.nodes.iter_mut().zip(&self.network.nodes) {
            node.start(namespace)?;
        }
        let names: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
        self.console.event(&format!("{} start", listed(&names)));
        self.until("the nodes are a cluster", |show| show.settled())?;
        let shares: Vec<String> = self
            .nodes
            .iter()
            .map(|node| Ok(format!("{} serves {}", node.name, node.cluster()?.buckets.owned)))
            .collect::<Result<_>>()?;
        self.console
            .event(&format!("one cluster: {} of {BUCKETS} buckets, each with a backup", shares.join(", ")));
        Ok(())
    }

    /// Kills node after node until one is left, brings the first one back, and lets the transfers end.
    pub(super) fn go(&mut self) -> Result<()> {
        self.until("all transfers are under way", |show| {
            let state = |transfer: &super::scoreboard::Transfer| transfer.state();
            Ok(show
                .board
                .transfers
                .iter()
                .map(state)
                .all(|state| state.count + state.bytes > 0)
                .then_some(()))
        })?;
        while self.nodes.iter().filter(|node| node.runs()).count() > 1 {
            self.wait_for_calm()?;
            self.kill_one()?;
        }
        self.wait_for_calm()?;
        self.bring_back()?;
        self.wait_for_calm()?;
        self.board.finish();
        self.console.event("the transfers send the rest at full speed");
        self.finish_transfers()
    }

    /// Waits as long as any transfer moves: a slow machine is no fault of the cluster.
    fn finish_transfers(&mut self) -> Result<()> {
        loop {
            let so_far = self.board.bytes();
            let over = self.until("all transfers end", |show| {
                let over = show.board.transfers.iter().all(|transfer| transfer.state().ended.is_some());
                Ok((over || show.board.bytes() > so_far).then_some(over))
            })?;
            if over {
                return Ok(());
            }
        }
    }

    /// Waits until a second has passed in which every open connection moved, and every bucket has a backup.
    fn wait_for_calm(&mut self) -> Result<()> {
        self.board.watch();
        let begin = Instant::now();
        self.until("every transfer continues", |show| {
            Ok((begin.elapsed() > CALM && show.board.all_moved_since(begin)).then_some(()))
        })?;
        self.until("every bucket has a backup", |show| show.settled())
    }

    fn kill_one(&mut self) -> Result<()> {
        let mut most: Option<(usize, u64)> = None;
        for (index, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.runs()) {
            let open = node.open()?;
            if most.is_none_or(|(_, before)| open > before) {
                most = Some((index, open));
            }
        }
        let (index, open) = most.context("no node is left")?;
        let before = self.statuses()?;
        let under_way = self.board.transfers.iter().filter(|transfer| transfer.state().alive()).count();
        self.board.watch();
        let moment = Instant::now();
        self.nodes[index].kill();
        let name = self.nodes[index].name.clone();
        self.console.event(&format!("{name} killed (SIGKILL), with {open} connections"));
        let after = self.until("others serve the dead node's buckets", |show| show.served())?;
        let took = moment.elapsed();
        self.console.event(&failed_over(&before, &after, self, took));
        let since = Instant::now();
        self.until("every transfer continues", |show| Ok(show.board.all_moved_since(since).then_some(())))?;
        self.until("every bucket has a backup again", |show| show.settled())?;
        let now = self.statuses()?;
        let continued =
            |all: &[ClusterStatus]| all.iter().map(|one| one.counts.connections_continued).sum::<u64>();
        let dead = (index + 1) as u8;
        let earlier: u64 =
            before.iter().filter(|one| one.node != dead).map(|one| one.counts.connections_continued).sum();
        let kill = Kill {
            node: name,
            continued: continued(&now).saturating_sub(earlier),
            under_way,
            silences: self.board.silences(),
        };
        let backups = if now.len() > 1 {
            format!("every bucket has a backup again after {:.1} s", moment.elapsed().as_secs_f64())
        } else {
            "one node is left, without a backup".to_owned()
        };
        self.console.event(&format!(
            "{} connections continued elsewhere; longest stall of a client {}; {backups}",
            kill.continued,
            progress::ms(kill.longest())
        ));
        self.kills.push(kill);
        Ok(())
    }

    fn bring_back(&mut self) -> Result<()> {
        let Some(first) = self.kills.first().map(|kill| kill.node.clone()) else { return Ok(()) };
        let Some(index) = self.nodes.iter().position(|node| node.name == first) else { return Ok(()) };
        let begin = Instant::now();
        self.nodes[index].start(&self.network.nodes[index])?;
        self.console.event(&format!("{first} starts again"));
        self.until("the node is back", |show| {
            let Ok(status) = show.nodes[index].cluster() else { return Ok(None) };
            Ok(show.settled()?.filter(|()| status.buckets.owned > 0))
        })?;
        let owned = self.nodes[index].cluster()?.buckets.owned;
        self.console.event(&format!(
            "{first} is back after {:.1} s: every bucket has a backup again, and the first {owned} moved to it",
            begin.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    /// Polls until `look` returns a value; prints the progress of the transfers meanwhile.
    pub(super) fn until<T>(&mut self, what: &str, look: impl Fn(&Self) -> Result<Option<T>>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if self.stop.requested() {
                return Err(Interrupted.into());
            }
            if let Some(value) = look(self)? {
                return Ok(value);
            }
            for node in &mut self.nodes {
                node.check()?;
            }
            if Instant::now() > deadline {
                bail!("not within {PATIENCE:?}: {what}: {}", self.situation());
            }
            self.progress();
            std::thread::sleep(POLL_EVERY);
        }
    }

    fn progress(&mut self) {
        if Instant::now() < self.next_line {
            return;
        }
        self.next_line = Instant::now() + PROGRESS;
        if let Some(line) = progress::line(&self.board) {
            self.console.event(&line);
        }
    }

    /// Status of the running nodes; an error while one of them does not answer.
    fn statuses(&self) -> Result<Vec<ClusterStatus>> {
        self.nodes.iter().filter(|node| node.runs()).map(Node::cluster).collect()
    }

    /// Status of the running nodes, if each reports exactly them as the members of the cluster.
    fn members(&self) -> Option<Vec<ClusterStatus>> {
        let all = self.statuses().ok()?;
        let running: Vec<u8> = self.nodes.iter().filter(|node| node.runs()).map(|node| node.number).collect();
        let agrees = |status: &ClusterStatus| {
            status.phase == "active" && status.view.as_ref().is_some_and(|view| view.members == running)
        };
        all.iter().all(agrees).then_some(all)
    }

    /// [`members`](Self::members), when every bucket is served by one of them.
    fn served(&self) -> Result<Option<Vec<ClusterStatus>>> {
        let Some(all) = self.members() else { return Ok(None) };
        let owned: u64 = all.iter().map(|status| status.buckets.owned).sum();
        let is_recovering = |status: &ClusterStatus| {
            status.buckets.recovering + status.buckets.unowned > 0
                || status.failovers.iter().any(|one| one.running)
        };
        Ok((owned == BUCKETS && !all.iter().any(is_recovering)).then_some(all))
    }

    /// Whether every bucket is served, and has a complete replica unless only one node runs.
    fn settled(&self) -> Result<Option<()>> {
        let Some(all) = self.served()? else { return Ok(None) };
        let replicated = |status: &ClusterStatus| {
            status.buckets.syncing == 0 && (status.buckets.without_backup == 0 || all.len() == 1)
        };
        Ok(all.iter().all(replicated).then_some(()))
    }

    /// For an error message.
    fn situation(&self) -> String {
        let node = |node: &Node| match node.cluster() {
            Ok(status) => format!(
                "{} is {} with {:?}, {:?}",
                node.name,
                status.phase,
                status.view.map(|view| view.members),
                status.buckets
            ),
            Err(error) => format!("{}: {error:#}", node.name),
        };
        let open = |transfer: &&super::scoreboard::Transfer| {
            transfer.kind != Kind::Visits && transfer.state().ended.is_none()
        };
        let transfers: Vec<&str> =
            self.board.transfers.iter().filter(open).map(|transfer| transfer.name.as_str()).collect();
        let nodes: Vec<String> = self.nodes.iter().filter(|node| node.runs()).map(node).collect();
        format!("{}; open: {}", nodes.join("; "), transfers.join(", "))
    }
}

/// Text about the nodes that serve the dead node's buckets.
fn failed_over(before: &[ClusterStatus], after: &[ClusterStatus], show: &Show<'_>, took: Duration) -> String {
    let gain = |now: &ClusterStatus| {
        let then = before.iter().find(|then| then.node == now.node).map_or(0, |then| then.buckets.owned);
        let name =
            show.nodes.iter().find(|node| node.number == now.node).map_or("", |node| node.name.as_str());
        let gained = now.buckets.owned.saturating_sub(then);
        (gained > 0).then(|| format!("{name} serves {gained}"))
    };
    let gains: Vec<String> = after.iter().filter_map(gain).collect();
    let gains: Vec<&str> = gains.iter().map(String::as_str).collect();
    format!("{} of its buckets after {}", listed(&gains), progress::ms(took))
}

fn listed(words: &[&str]) -> String {
    match words {
        [] => "nobody".to_owned(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}
