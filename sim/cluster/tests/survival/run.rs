//! One run: a scenario, a cluster, faults. A failure is reported with its plan and the last lines of its trace.

use crate::apps::{Client, Log, Server};
use crate::reference::{DOWN, Expected, reference};
use crate::scenario::{Scenario, Wire, config};
use evergate_base::Micros;
use evergate_connection::Snapshot;
use evergate_membership::Mode;
use evergate_sim_cluster::{
    Application, Coverage, Fault, Mutation, Paces, Setup, Target, Template, Time, Weather, World,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock};

/// A cluster by its size: nodes, backups, buckets, mode.
pub(crate) type Shape = (u8, u8, u16, Mode);

/// Two nodes, each the other's backup.
pub(crate) const PAIR: Shape = (2, 1, 1, Mode::Witness);
/// Three nodes, one backup.
pub(crate) const TRIO: Shape = (3, 1, 1, Mode::Witness);
/// Three nodes, two backups.
pub(crate) const TWO_BACKUPS: Shape = (3, 2, 1, Mode::Witness);

/// Longest run in virtual time.
const SPAN: Time = 30_000_000;
/// Longest run whose connections may break.
const SPAN_LENIENT: Time = 2_000_000;
/// Write stall of impatient nodes: they check a peer that reads nothing after half a second.
const WRITE_STALL: Micros = Micros(8_000_000);
/// Lines of the trace that a failure shows; `EVERGATE_SIM_LINES` overrides the number.
const SHOWN: usize = 100;

/// Parts of a run. The same plan repeats the same run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) shape: Shape,
    pub(crate) weather: Weather,
    pub(crate) mutation: Mutation,
    pub(crate) buffer: usize,
    pub(crate) batches: bool,
    pub(crate) clients: usize,
    /// Pause of the clients between handshake and first request.
    pub(crate) asks_after: Time,
    /// Pause of the clients between steps.
    pub(crate) thinks_for: Time,
    /// Reading rates of both sides.
    pub(crate) paces: Paces,
    /// Whether nodes check stalled peers early.
    pub(crate) impatient: bool,
    pub(crate) faults: Vec<(Time, Target, Fault)>,
    /// The faults exceed the guarantee: only safety is checked.
    pub(crate) lenient: bool,
    /// Kind of a random run, if it is one.
    pub(crate) kind: Option<&'static str>,
}

impl Plan {
    pub(crate) fn new(seed: u64, shape: Shape) -> Plan {
        Plan {
            seed,
            shape,
            weather: Weather::FAIR,
            mutation: Mutation::None,
            buffer: 65_536,
            batches: false,
            clients: 1,
            asks_after: 0,
            thinks_for: 0,
            paces: Paces::EAGER,
            impatient: false,
            faults: Vec::new(),
            lenient: false,
            kind: None,
        }
    }

    /// A random run of this kind.
    pub(crate) fn of_kind(self, kind: &'static str) -> Plan {
        Plan { kind: Some(kind), ..self }
    }

    /// The command that runs it again.
    fn replay(&self) -> String {
        const CRATE: &str = "cargo test -p evergate-sim-cluster";
        match self.kind {
            Some(kind) => {
                let run = format!("EVERGATE_SIM_RUN={kind}:{}", self.seed);
                format!("{run} {CRATE} replay -- --ignored --nocapture")
            }
            // The run has no random part.
            None => format!("{CRATE} {}", std::thread::current().name().unwrap_or_default()),
        }
    }

    /// Time at which the last paused node has continued, and somewhat later.
    fn settled_after(&self) -> Time {
        let ends = self.faults.iter().filter_map(|(at, _, fault)| match fault {
            Fault::Pause(span) | Fault::Halt(span) => Some(at + span + 30_000),
            _ => None,
        });
        ends.max().unwrap_or(0)
    }

    /// Whether a packet without retransmission may be lost: by the network, on a cut link, or since several nodes fail.
    fn loses(&self) -> bool {
        let Weather { outside, inside, .. } = self.weather;
        let cut = |(_, _, fault): &(Time, Target, Fault)| {
            matches!(fault, Fault::CutOutside(_) | Fault::CutInside(_))
        };
        outside.loss > 0 || inside.loss > 0 || self.faults.len() > 3 || self.faults.iter().any(cut)
    }
}

/// A scenario with the expected input of both ends.
pub(crate) struct Script {
    /// Empty where the seed makes it.
    name: &'static str,
    pub(crate) scenario: Rc<Scenario>,
    pub(crate) expected: Rc<Expected>,
}

impl Script {
    pub(crate) fn new(scenario: Scenario) -> Script {
        Script::named("", scenario)
    }

    /// A scenario with a name for failure reports.
    pub(crate) fn named(name: &'static str, scenario: Scenario) -> Script {
        // The applications' input does not depend on the servers' wire protocol.
        let expected = Rc::new(reference(&scenario, &snapshot(Wire::Plain, false)));
        Script { name, scenario: Rc::new(scenario), expected }
    }
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ran {
    pub(crate) resumed: u64,
    pub(crate) resumed_at: Option<Time>,
    pub(crate) elapsed: Time,
    pub(crate) steps: u64,
    pub(crate) moments: Vec<Time>,
    /// Time at which a drained node had no bucket left.
    pub(crate) drained_at: Option<Time>,
    pub(crate) coverage: Coverage,
}

/// The configuration of a run whose servers use this wire protocol. With TLS it has its own memory of the servers'
/// sessions: a run does not depend on earlier ones.
fn snapshot(behind: Wire, impatient: bool) -> Arc<Snapshot> {
    static PLAIN: [OnceLock<Arc<Snapshot>>; 2] = [const { OnceLock::new() }; 2];
    let fresh = || {
        let mut config = config(behind);
        if impatient {
            Arc::get_mut(&mut config).unwrap().timeouts.write_stall = WRITE_STALL;
        }
        config
    };
    match behind {
        Wire::Plain => PLAIN[usize::from(impatient)].get_or_init(fresh).clone(),
        _ => fresh(),
    }
}

/// A started cluster of this shape; made once.
fn template(shape: Shape, behind: Wire) -> Arc<Template> {
    type Key = (u8, u8, u16, bool, u8);
    static KNOWN: Mutex<BTreeMap<Key, Arc<Template>>> = Mutex::new(BTreeMap::new());
    let (nodes, backups, buckets, mode) = shape;
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let key = (nodes, backups, buckets, mode == Mode::Majority, behind as u8);
    let fresh =
        || Arc::new(Template::settled(nodes, backups, buckets, mode, 1, &snapshot(behind, false)).unwrap());
    known.entry(key).or_insert_with(fresh).clone()
}

fn world(script: &Script, plan: &Plan, served: &Log, trace: bool) -> World {
    let clients = (0..plan.clients).map(|index| -> Box<dyn Application> {
        let seed = plan.seed * 10 + index as u64;
        let Script { scenario, expected, .. } = script;
        let client = Client::new(scenario, expected, seed, plan.lenient, served, plan.clients);
        let client = client.that_thinks_for(plan.thinks_for).that_asks_after(plan.asks_after);
        Box::new(client.among_faults(!plan.faults.is_empty()).in_bad_weather(plan.loses()))
    });
    let (scenario, log) = (script.scenario.clone(), served.clone());
    World::new(Setup {
        seed: plan.seed,
        template: template(plan.shape, script.scenario.behind),
        snapshot: snapshot(script.scenario.behind, plan.impatient),
        listener: script.scenario.listener(),
        down_pool: DOWN,
        clients: clients.collect(),
        serve: Box::new(move || Box::new(Server::new(&scenario, &log))),
        paces: plan.paces,
        weather: plan.weather,
        mutation: plan.mutation,
        buffer: plan.buffer,
        batches: plan.batches,
        faults: plan.faults.clone(),
        trace,
    })
}

/// Runs the plan. An error is the failure with the last lines of the trace, if one was kept.
fn attempt(script: &Script, plan: &Plan, trace: bool) -> Result<Ran, String> {
    let served: Log = Rc::new(RefCell::new(Vec::new()));
    let mut world = world(script, plan, &served, trace);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        world.run(if plan.lenient { SPAN_LENIENT } else { SPAN })?;
        // A node that was replaced meanwhile must do no harm.
        let elapsed = world.elapsed();
        world.run_for(plan.settled_after().saturating_sub(elapsed))
    }));
    let mut result = match outcome {
        Ok(Err(what)) if plan.lenient && what.starts_with("not done") => Ok(()),
        Ok(result) => result,
        Err(panic) => Err(panic_text(&*panic)),
    };
    if result.is_ok() && !plan.lenient {
        result = compare(script, plan, &served);
    }
    if let Err(what) = result {
        let lines: Vec<&str> = world.trace().collect();
        let wanted = std::env::var("EVERGATE_SIM_LINES").ok().and_then(|lines| lines.parse().ok());
        let shown = lines.len().saturating_sub(wanted.unwrap_or(SHOWN));
        return Err(format!("{what}\n{}", lines[shown..].join("\n")));
    }
    Ok(Ran {
        resumed: world.resumed(),
        resumed_at: world.resumed_at(),
        elapsed: world.elapsed(),
        steps: world.steps(),
        moments: world.moments(),
        drained_at: world.drained_at(),
        coverage: world.coverage(),
    })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

/// Checks that the servers received the requests of the undisturbed run, each once.
fn compare(script: &Script, plan: &Plan, served: &Log) -> Result<(), String> {
    // The client's reset may have been lost.
    let reset_may_be_lost = script.scenario.breaks() && plan.loses();
    let key = |bytes: &[u8], end: Option<bool>| (masked(bytes), end.filter(|_| !reset_may_be_lost));
    let served = served.borrow();
    let mut got: Vec<_> = served.iter().map(|served| key(&served.bytes, served.tunnel_end)).collect();
    let once = script.expected.servers.iter().map(|served| key(&served.bytes, served.tunnel_end));
    let mut expected: Vec<_> = std::iter::repeat_n(once, plan.clients).flatten().collect();
    got.sort();
    expected.sort();
    if got == expected {
        return Ok(());
    }
    let show = |all: &[(Vec<u8>, Option<bool>)]| {
        let one = |(bytes, end): &(Vec<u8>, Option<bool>)| {
            format!(
                "{} bytes, end {end:?}: {:?}",
                bytes.len(),
                String::from_utf8_lossy(&bytes[..bytes.len().min(60)])
            )
        };
        all.iter().map(one).collect::<Vec<_>>().join("; ")
    };
    Err(format!("servers got [{}] instead of [{}]", show(&got), show(&expected)))
}

/// Masks the request's id and its client's address, which differ between connections.
fn masked(bytes: &[u8]) -> Vec<u8> {
    const NAME: &[u8] = b"X-Request-Id: ";
    let mut masked = bytes.to_vec();
    if let Some(at) = bytes.windows(NAME.len()).position(|window| window == NAME) {
        let end = masked.len().min(at + NAME.len() + 16);
        masked[at + NAME.len()..end].fill(b'?');
    }
    masked
}

/// Runs the plan, and panics with the whole report of a failure.
pub(crate) fn run(script: &Script, plan: &Plan) -> Ran {
    run_quietly(script, plan).unwrap_or_else(|what| {
        let traced = attempt(script, plan, true).err().unwrap_or_default();
        panic!(
            "seed {}: {}\n{plan:?}\nscenario {:?}: {:?}\nthe end of its trace:\n{traced}\nagain: {}",
            plan.seed,
            what.trim(),
            script.name,
            script.scenario,
            plan.replay(),
        )
    })
}

/// Runs the plan, and returns a failure as an error.
pub(crate) fn run_quietly(script: &Script, plan: &Plan) -> Result<Ran, String> {
    attempt(script, plan, false)
}
