//! One node: a machine with a clock and a kernel, and the process on it.

use crate::doings::Doings;
use crate::event_queue::Time;
use crate::kernel::Kernel;
use crate::model_host::Machine;
use crate::network::Cuts;
use crate::process::Process;
use evergate_agent::Agent;
use evergate_base::Micros;
use evergate_membership::{Bucket, Node, Path};
use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// A machine's clock, with its own start and a small drift.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) skew: u64,
    pub(crate) drift_ppm: i64,
}

impl Clock {
    pub(crate) fn at(self, now: Time) -> Micros {
        let drift = now as i128 * i128::from(self.drift_ppm) / 1_000_000;
        Micros(self.skew + (now as i128 + drift) as u64)
    }

    /// The time at which the clock shows `clock`, within a microsecond.
    pub(crate) fn when(self, clock: Micros) -> Time {
        let local = clock.0.saturating_sub(self.skew) as i128;
        (local * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm)) + 1) as u64
    }
}

/// Workers of a process.
pub(crate) const WORKERS: usize = 1;

/// One node: see the module's description.
pub(crate) struct Host {
    pub(crate) clock: Clock,
    pub(crate) node: Node,
    pub(crate) agent: Agent,
    pub(crate) machine: Rc<RefCell<Machine>>,
    /// The running process, if any.
    pub(crate) process: Option<Process>,
    pub(crate) up: bool,
    pub(crate) paused: bool,
    /// The kernel stands still too.
    pub(crate) halted: bool,
    /// Whether the node is to drain.
    pub(crate) draining: bool,
    pub(crate) cuts: Cuts,
    /// Times of power losses, each with whether packets in flight to other nodes were lost too.
    pub(crate) blackouts: Vec<(Time, bool)>,
    /// Time of the end of each of its processes.
    pub(crate) ends: BTreeMap<u64, Time>,
    pub(crate) inbox: VecDeque<(Path, Vec<u8>)>,
    pub(crate) timer_at: Time,
    pub(crate) work_at: Time,
    pub(crate) asked_for: Micros,
}

impl Host {
    pub(crate) fn new(clock: Clock, node: Node, machine: Machine) -> Host {
        let mut machine = machine;
        let agent = fresh_agent(&node, &mut machine);
        Host {
            clock,
            node,
            agent,
            machine: Rc::new(RefCell::new(machine)),
            process: None,
            up: true,
            paused: false,
            halted: false,
            draining: false,
            cuts: Cuts::default(),
            blackouts: Vec::new(),
            ends: BTreeMap::new(),
            inbox: VecDeque::new(),
            timer_at: Time::MAX,
            work_at: Time::MAX,
            asked_for: Micros(0),
        }
    }

    /// Whether a process runs and is not stopped.
    pub(crate) fn runs(&self) -> bool {
        self.up && !self.paused && self.process.is_some()
    }

    pub(crate) fn process_number(&self) -> u64 {
        self.process.as_ref().map_or(0, |process| process.number)
    }

    pub(crate) fn kernel(&self) -> RefMut<'_, Kernel> {
        RefMut::map(self.machine.borrow_mut(), |machine| &mut machine.kernel)
    }

    /// The gate's owner word: this node owns the bucket, as far as it knows.
    pub(crate) fn owns(&self, bucket: Bucket) -> bool {
        self.node.gate_listed(bucket).is_some()
    }

    /// Whether a packet of this stamp really left, in view of later power losses.
    pub(crate) fn has_left(&self, stamp: Stamp, inside: bool) -> bool {
        let blackout = self.blackouts.get(stamp.power);
        let dark = blackout.is_some_and(|(at, lossy)| stamp.left_at >= *at || (*lossy && inside));
        let ended = inside && self.ends.get(&stamp.process).is_some_and(|at| stamp.left_at >= *at);
        !dark && !ended
    }

    pub(crate) fn stamp(&self, left_at: Time) -> Stamp {
        Stamp { power: self.blackouts.len(), process: self.process_number(), left_at }
    }
}

/// Time at which a packet left its host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    power: usize,
    process: u64,
    left_at: Time,
}

/// The agent of a process that starts: as in the daemon, nothing is owned.
pub(crate) fn fresh_agent(node: &Node, machine: &mut Machine) -> Agent {
    let me = node.me().id;
    Agent::new(me, WORKERS, &mut Doings::of(me, &mut machine.kernel))
}
