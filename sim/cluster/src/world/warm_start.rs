//! Started clusters: a run begins with one instead of waiting for it each time.

use super::{Event, World};
use crate::doings::Doings;
use crate::endpoint::Paces;
use crate::event_queue::Time;
use crate::host::Clock;
use crate::host::fresh_agent;
use crate::network::Weather;
use crate::random::Random;
use crate::{Mutation, Setup};
use evergate_base::Micros;
use evergate_connection::Snapshot;
use evergate_membership::{
    ClusterId, Config, Incarnation, KeyId, Keyring, MemberSet, Mode, Node, NodeId, Role, Timing,
};
use std::sync::Arc;

/// The default timers with short listening and rejoin delays: a run need not wait for them.
const TIMING: Timing = Timing {
    listen_start: Micros::from_ms(200),
    listen_lapse: Micros::from_ms(100),
    hold_down_min: Micros::from_ms(50),
    hold_down_max: Micros::from_ms(200),
    freeze_max: Micros::from_ms(200),
    balance: Micros::from_ms(60),
    ..Timing::BARE_METAL
};

/// Time within which everything in flight after the start of a cluster arrives.
const SETTLE: Time = 100_000;

/// The nodes of a cluster at a moment.
pub struct Template {
    pub(super) now: Time,
    pub(super) hosts: Vec<(Clock, Node)>,
    pub(super) config: Config,
}

impl Template {
    /// A started cluster of so many nodes, every bucket with its backups.
    pub fn settled(
        nodes: u8,
        backups: u8,
        buckets: u16,
        mode: Mode,
        seed: u64,
        snapshot: &Arc<Snapshot>,
    ) -> Result<Template, String> {
        let id = ClusterId(7);
        let config = Config { buckets, backups, mode, timing: TIMING, ..Config::new(id, NodeId(0), nodes) };
        let mut random = Random::new(seed);
        let now = 1_000_000;
        let hosts = (0..nodes).map(|number| {
            let clock = Clock { skew: random.below(120_000_000), drift_ppm: random.below(1801) as i64 - 900 };
            (clock, fresh_node(&config, number, random.bits() >> 1, clock.at(now)))
        });
        let template = Arc::new(Template { now, hosts: hosts.collect(), config });
        let mut world = World::new(Setup {
            seed,
            template: template.clone(),
            snapshot: snapshot.clone(),
            listener: 0,
            down_pool: u32::MAX,
            clients: Vec::new(),
            serve: Box::new(|| unreachable!("there is no traffic")),
            paces: Paces::EAGER,
            weather: Weather::FAIR,
            mutation: Mutation::None,
            batches: false,
            buffer: 1,
            faults: Vec::new(),
            trace: false,
        });
        while !world.is_settled() {
            if world.elapsed() > 5_000_000 {
                return Err(format!("the cluster does not settle at start\n{}", world.describe()));
            }
            world.step()?;
        }
        world.run_for(SETTLE)?;
        let (now, hosts) = (world.now, std::mem::take(&mut world.hosts));
        let hosts = hosts.into_iter().map(|host| (host.clock, host.node)).collect();
        Ok(Template { now, hosts, config: template.config.clone() })
    }
}

/// A newly started node.
pub(super) fn fresh_node(config: &Config, number: u8, incarnation: u64, clock: Micros) -> Node {
    let config = Config { id: NodeId(number), ..config.clone() };
    let keys = Keyring::new(KeyId(1), [0x42; 32]);
    Node::new(config, keys, Incarnation(incarnation.max(1)), clock).expect("the template's timers are valid")
}

impl World {
    /// Whether all running nodes are in one view, and every bucket is served with its backups.
    pub fn is_settled(&self) -> bool {
        let living: Vec<usize> = (0..self.hosts.len()).filter(|id| self.hosts[*id].runs()).collect();
        let set: MemberSet = living.iter().map(|id| NodeId(*id as u8)).collect();
        let backups = usize::from(self.template.config.backups).min(living.len().saturating_sub(1));
        let together = living.iter().all(|id| self.hosts[*id].node.members().set() == set);
        together
            && self.buckets().all(|bucket| {
                let mut open = living.iter().filter(|id| self.may_transmit(**id, bucket));
                let (Some(owner), None) = (open.next(), open.next()) else { return false };
                match self.hosts[*owner].node.role(bucket) {
                    Role::Owner { required, syncing, freeze_for: None, .. } => {
                        syncing.is_empty() && required.len() >= backups
                    }
                    _ => false,
                }
            })
    }

    /// Gives agent and worker the roles that the node has in the template, at the start of a run.
    pub(super) fn adopt_roles(&mut self, host: usize) {
        let buckets: Vec<_> = self.buckets().collect();
        let it = &mut self.hosts[host];
        let now = it.clock.at(self.now);
        let mut machine = it.machine.borrow_mut();
        machine.kernel.resets_unknown = it.node.view().is_some();
        let mut doings = Doings::of(NodeId(host as u8), &mut machine.kernel);
        it.agent.adopt(&mut it.node, now, buckets, &mut doings);
        let instructions = doings.instructions;
        drop(machine);
        if let Some(process) = &it.process {
            instructions.into_iter().for_each(|instruction| process.instruct(instruction));
        }
        self.turn(host);
    }

    /// Starts a new process, which listens for the other nodes.
    pub(super) fn restart(&mut self, host: usize) {
        self.count_join();
        let clock = self.hosts[host].clock.at(self.now);
        let incarnation = self.random.bits() >> 1;
        self.hosts[host].node = fresh_node(&self.template.config, host as u8, incarnation, clock);
        let it = &mut self.hosts[host];
        it.kernel().begin_again();
        it.agent = fresh_agent(&it.node, &mut it.machine.borrow_mut());
        self.start_process(host);
        self.plan(0, Event::Work { host, at: self.now });
        self.hosts[host].work_at = self.now;
        self.schedule(host);
    }
}
