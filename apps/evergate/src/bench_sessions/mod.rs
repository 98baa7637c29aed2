//! `evergate bench sessions`: what dispatch by TLS session saves, measured with real servers. L5, section 5, figures 7
//! to 9 (G. Apostolopoulos and others, "L5: A Self Learning Layer-5 Switch", IBM Research).
//!
//! Clients connect through the switch (this program's daemon) to terminators that share no sessions (nginx). The
//! result is the CPU time of the terminators for each connection: clients and switch on the same processors do not
//! change it. It is compared with a bound from the two costs of a connection. These are measured with the same
//! terminators, while each client has its own terminator: a cost depends on how much work a terminator has, because a
//! busy one handles several events of one wake-up.
//!
//! All processes are children of this one and end with it. Ports are free ones of 127.0.0.1, clients have addresses of
//! 127.64.0.0/10.

mod child;
mod client;
pub mod cost_model;
mod flow;
mod population;
pub mod report;
mod switch;
mod terminators;

use anyhow::{Context, Result, ensure};
use child::Folder;
use client::{Client, FLIGHTS, Steps, Tls};
use cost_model::Costs;
use evergate_balance::Policy;
use population::{Behaviour, Population};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use switch::{Dispatch, Switch};
use terminators::Terminators;

/// Policy without regard to sessions: the base of every gain.
pub const BLIND: Policy = Policy::RoundRobin;

/// Clients of one experiment.
pub const CLIENTS_MAX: usize = 100_000;

/// Connections at a time: enough to keep two processors busy while some of them wait.
const THREADS: usize = 12;

/// Connections of each kind whose steps are timed.
const TIMED: usize = 60;

/// Reuse rates of the runs that the costs come from, in percent.
const ENDS: [u8; 2] = [0, 100];

/// Time for the servers to note the end of the last connections.
const SETTLE: Duration = Duration::from_millis(30);

/// How sessions are resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum SessionKind {
    /// TLS 1.2, session ids: L5's sessions
    #[value(name = "tls12-ids")]
    Tls12Ids,
    /// TLS 1.2, tickets
    #[value(name = "tls12-tickets")]
    Tls12Tickets,
    /// TLS 1.3, tickets
    Tls13,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// nginx; otherwise the one of the search path.
    pub nginx: Option<PathBuf>,
    /// Terminators behind the switch.
    pub servers: usize,
    /// Clients, each with its own sessions.
    pub clients: usize,
    /// Measured time of each run.
    pub time: Duration,
    /// Shares of connections that offer a session, in percent.
    pub reuse_percent: Vec<u8>,
    /// Sizes of the RSA keys.
    pub key_bits: Vec<u16>,
    /// Policies of the switch.
    pub policies: Vec<Policy>,
    /// How sessions are resumed.
    pub sessions: SessionKind,
    /// Whether all clients have one address, as behind a proxy.
    pub shared_address: bool,
    /// Arrivals and think times run so many times as fast as in the workload.
    pub speed: f64,
    /// Seed of the clients.
    pub seed: u64,
    /// Set from outside to end the experiment early.
    pub stop: Arc<AtomicBool>,
}

/// One run: a policy, a reuse rate and a key size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Policy of the switch, or `pinned` where each client has its own terminator.
    pub policy: String,
    /// Terminators behind the switch; 1 in figure 8.
    pub servers: usize,
    /// Share of connections that are meant to offer a session, in percent.
    pub reuse_percent: u8,
    /// Size of the RSA key.
    pub key_bits: u16,
    /// What was counted and measured.
    pub measured: Measured,
    /// Comparison with blind dispatch; `None` without a run of it.
    pub gain: Option<Gain>,
}

/// Measurements of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Connections with a handshake and an answered request.
    pub connections: u64,
    /// Connections that failed.
    pub failed: u64,
    /// Share of the connections that offered a session.
    pub offered: f64,
    /// Share of the connections that resumed a session.
    pub resumed: f64,
    /// CPU time of the busiest terminator over the mean of all.
    pub imbalance: f64,
    /// Handshakes per second of wall-clock time, with clients and switch on the same processors.
    pub handshakes_per_s: f64,
    /// Mean duration of a handshake, in milliseconds.
    pub handshake_ms: f64,
    /// CPU time of the terminators for a connection, in microseconds.
    pub server_cpu_us: f64,
    /// CPU time of the switch for a connection, in microseconds.
    pub switch_cpu_us: f64,
}

/// Gain of a policy over blind dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// CPU time of a connection under blind dispatch over that under the policy.
    pub gain: f64,
    /// The most that it can be: see [`Costs::bound`].
    pub bound: f64,
    /// The first over the second.
    pub of_bound: f64,
}

/// Costs of a connection with keys of one size, and the steps of its handshake.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KeyCosts {
    /// Size of the RSA key.
    pub key_bits: u16,
    /// CPU time of the terminator.
    pub costs: Costs,
    /// Steps of the fastest full handshake.
    pub full: StepTimes,
    /// Steps of the fastest resumption.
    pub resumed: StepTimes,
}

/// Steps of a handshake as one client sees them, with nothing else under way, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepTimes {
    /// TCP connection.
    pub connect_us: f64,
    /// Waits for the server's flights; 0 for a flight that does not occur.
    pub server_us: [f64; FLIGHTS],
    /// Client's computation after each of them.
    pub client_us: [f64; FLIGHTS],
    /// From the ClientHello to the end of the handshake.
    pub handshake_us: f64,
}

/// Results of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// How sessions are resumed.
    pub sessions: SessionKind,
    /// Protocol of the switch's listener.
    pub protocol: String,
    /// Whether all clients have one address.
    pub shared_address: bool,
    /// Number of clients.
    pub clients: usize,
    /// Measured seconds of each run.
    pub seconds: f64,
    /// Costs of each key size: figure 7.
    pub keys: Vec<KeyCosts>,
    /// Runs with one terminator: figure 8.
    pub one_server: Vec<Row>,
    /// Runs with several terminators in which each client has its own: the costs come from them.
    pub pinned: Vec<Row>,
    /// Runs with several terminators: figure 9.
    pub rows: Vec<Row>,
}

/// Measures everything. `progress` receives the runs that are done, their number, and the name of the current one.
///
/// # Errors
/// A process that cannot be started, a run in which most connections fail, or an early end.
pub fn measure(experiment: &Experiment, progress: impl Fn(usize, usize, &str)) -> Result<Report> {
    let bench = Bench::new(experiment)?;
    let mut report = Report {
        sessions: experiment.sessions,
        protocol: switch::PROTOCOL.as_str().to_owned(),
        shared_address: experiment.shared_address,
        clients: experiment.clients,
        seconds: experiment.time.as_secs_f64(),
        keys: Vec::new(),
        one_server: Vec::new(),
        pinned: Vec::new(),
        rows: Vec::new(),
    };
    let reuses = &experiment.reuse_percent;
    let runs_of_key = reuses.len() * (1 + experiment.policies.len()) + ENDS.len();
    let (mut done, of) = (0, runs_of_key * experiment.key_bits.len());
    for &key_bits in &experiment.key_bits {
        let mut run = |terminators: &Terminators, dispatch: Dispatch, reuse_percent, costs| {
            let (servers, name) = (terminators.count(), dispatch.name());
            progress(
                done,
                of,
                &format!("RSA-{key_bits}, {servers} servers, {name}, {reuse_percent} % reuse"),
            );
            done += 1;
            bench.row(terminators, dispatch, reuse_percent, key_bits, costs)
        };
        let one = bench.terminators(key_bits, 1)?;
        for &reuse_percent in reuses {
            report.one_server.push(run(&one, Dispatch::Policy(BLIND), reuse_percent, None)?);
        }
        let [full, resumed] = bench.steps(&one)?;
        drop(one);
        let several = bench.terminators(key_bits, experiment.servers)?;
        let [none, all] = ENDS;
        let pinned =
            [run(&several, Dispatch::Pinned, none, None)?, run(&several, Dispatch::Pinned, all, None)?];
        let costs = costs(&pinned);
        report.keys.push(KeyCosts { key_bits, costs, full, resumed });
        report.pinned.extend(pinned);
        for &reuse_percent in reuses {
            let mut rows = Vec::new();
            for &policy in &experiment.policies {
                rows.push(run(&several, Dispatch::Policy(policy), reuse_percent, Some(costs))?);
            }
            compare(&mut rows, costs);
            report.rows.append(&mut rows);
        }
    }
    Ok(report)
}

/// F and R, from runs without reuse and with full reuse.
fn costs([none, all]: &[Row; 2]) -> Costs {
    let (full_us, resumed) = (none.measured.server_cpu_us, all.measured.resumed);
    // A session that a server has dropped costs a full handshake.
    let resumed_us = (all.measured.server_cpu_us - (1.0 - resumed) * full_us) / resumed;
    Costs { full_us, resumed_us }
}

/// Sets the gains of runs that differ in their policy only.
fn compare(rows: &mut [Row], costs: Costs) {
    let Some(blind) = rows.iter().find(|row| row.policy == BLIND.as_str()).map(|row| row.measured.clone())
    else {
        return;
    };
    for row in rows.iter_mut().filter(|row| row.policy != BLIND.as_str()) {
        let gain = blind.server_cpu_us / row.measured.server_cpu_us;
        let bound = costs.bound(row.measured.offered, row.servers);
        row.gain = Some(Gain { gain, bound, of_bound: gain / bound });
    }
}

/// What all runs share.
struct Bench<'a> {
    experiment: &'a Experiment,
    program: PathBuf,
    nginx: PathBuf,
    tls: Tls,
    folder: Folder,
}

impl Bench<'_> {
    fn new(experiment: &Experiment) -> Result<Bench<'_>> {
        let nginx = terminators::find_nginx(experiment.nginx.as_deref())?;
        let program = std::env::current_exe().context("cannot find this program")?;
        Ok(Bench { experiment, program, nginx, tls: Tls::new(experiment.sessions)?, folder: Folder::new()? })
    }

    fn terminators(&self, key_bits: u16, count: usize) -> Result<Terminators> {
        Terminators::start(&self.nginx, &self.folder, self.experiment.sessions, key_bits, count)
            .with_context(|| format!("cannot start {count} terminators with RSA-{key_bits}"))
    }

    /// One run through a new switch with new clients.
    fn row(
        &self,
        terminators: &Terminators,
        dispatch: Dispatch,
        reuse_percent: u8,
        key_bits: u16,
        costs: Option<Costs>,
    ) -> Result<Row> {
        let measured = self
            .measured(terminators, dispatch, reuse_percent, costs)
            .with_context(|| format!("{}, {reuse_percent} % reuse, RSA-{key_bits}", dispatch.name()));
        ensure!(!self.experiment.stop.load(Ordering::Relaxed), "interrupted");
        let measured = measured?;
        Ok(Row {
            policy: dispatch.name().to_owned(),
            servers: terminators.count(),
            reuse_percent,
            key_bits,
            measured,
            gain: None,
        })
    }

    fn measured(
        &self,
        terminators: &Terminators,
        dispatch: Dispatch,
        reuse_percent: u8,
        costs: Option<Costs>,
    ) -> Result<Measured> {
        let experiment = self.experiment;
        let servers = terminators.addresses();
        let switch = Switch::start(&self.program, &self.folder, dispatch, &servers, costs)
            .context("cannot start the switch")?;
        let behaviour = Behaviour {
            clients: experiment.clients,
            reuse: f64::from(reuse_percent) / 100.0,
            speed: experiment.speed,
            shared_address: experiment.shared_address,
            threads: THREADS,
            seed: experiment.seed,
        };
        let mut population =
            Population::new(behaviour, &self.tls, switch.addresses.clone(), experiment.stop.clone());
        population.arrive()?;
        std::thread::sleep(SETTLE);
        let (cpu_before, switch_before, begun) = (terminators.cpu()?, switch.cpu()?, Instant::now());
        let tally = population.run(experiment.time)?;
        let took = begun.elapsed();
        std::thread::sleep(SETTLE);
        let (cpu_after, switch_after) = (terminators.cpu()?, switch.cpu()?);
        ensure!(tally.served > 0, "no connection within {} s", experiment.time.as_secs_f64());
        let served = tally.served as f64;
        let cpu_us: Vec<f64> = cpu_after
            .iter()
            .zip(&cpu_before)
            .map(|(after, before)| after.saturating_sub(*before).as_secs_f64() * 1e6)
            .collect();
        let sum_us: f64 = cpu_us.iter().sum();
        let busiest_us = cpu_us.iter().copied().fold(0.0, f64::max);
        Ok(Measured {
            connections: tally.served,
            failed: tally.failed,
            offered: tally.offered as f64 / served,
            resumed: tally.resumed as f64 / served,
            imbalance: busiest_us * cpu_us.len() as f64 / sum_us,
            handshakes_per_s: served / took.as_secs_f64(),
            handshake_ms: tally.handshakes.as_secs_f64() * 1e3 / served,
            server_cpu_us: sum_us / served,
            switch_cpu_us: switch_after.saturating_sub(switch_before).as_secs_f64() * 1e6 / served,
        })
    }

    /// Times the steps of full and resumed handshakes, one connection at a time and without the switch.
    fn steps(&self, terminators: &Terminators) -> Result<[StepTimes; 2]> {
        let to = terminators.addresses().into_iter().next().context("no terminator")?;
        let mut client = Client::new(self.tls.clone(), None);
        let mut timed = |reuse| -> Result<StepTimes> {
            client.connect(to, false)?; // a session to resume, and a warm server
            let steps: Result<Vec<Steps>> =
                (0..TIMED).map(|_| client.connect(to, reuse).map(|served| served.steps)).collect();
            Ok(fastest(&steps?))
        };
        Ok([timed(false).context("a full handshake")?, timed(true).context("a resumption")?])
    }
}

/// The steps of the fastest handshake: every disturbance makes one longer.
fn fastest(steps: &[Steps]) -> StepTimes {
    let Some(fastest) = steps.iter().min_by_key(|steps| steps.handshake) else { return StepTimes::default() };
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    StepTimes {
        connect_us: us(fastest.connect),
        server_us: fastest.waits.map(us),
        client_us: fastest.works.map(us),
        handshake_us: us(fastest.handshake),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(policy: &str, reuse_percent: u8, server_cpu_us: f64, resumed: f64) -> Row {
        let measured = Measured {
            connections: 100,
            failed: 0,
            offered: f64::from(reuse_percent) / 100.0,
            resumed,
            imbalance: 1.0,
            handshakes_per_s: 100.0,
            handshake_ms: 1.0,
            server_cpu_us,
            switch_cpu_us: 50.0,
        };
        Row { policy: policy.to_owned(), servers: 3, reuse_percent, key_bits: 2048, measured, gain: None }
    }

    #[test]
    fn costs_leave_out_sessions_that_a_server_dropped() {
        let found = costs(&[row("pinned", 0, 1000.0, 0.0), row("pinned", 100, 190.0, 0.9)]);
        assert_eq!(found.full_us, 1000.0);
        assert!((found.resumed_us - 100.0).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn steps_are_those_of_the_fastest_handshake() {
        let steps = |handshake, wait| {
            let [handshake, wait] = [handshake, wait].map(Duration::from_micros);
            Steps { handshake, waits: [wait, Duration::ZERO], ..Steps::default() }
        };
        let found = fastest(&[steps(90, 10), steps(50, 40), steps(60, 20)]);
        assert_eq!((found.handshake_us, found.server_us), (50.0, [40.0, 0.0]));
        assert_eq!(fastest(&[]), StepTimes::default());
    }

    #[test]
    fn gain_is_that_over_blind_dispatch() {
        let costs = Costs { full_us: 1000.0, resumed_us: 100.0 };
        let mut rows = [row("sslsard", 100, 140.0, 0.96), row(BLIND.as_str(), 100, 700.0, 1.0 / 3.0)];
        compare(&mut rows, costs);
        let gain = rows[0].gain.unwrap();
        assert!((gain.gain - 5.0).abs() < 1e-9 && (gain.bound - 7.0).abs() < 1e-9, "{gain:?}");
        assert!((gain.of_bound - 5.0 / 7.0).abs() < 1e-9);
        assert_eq!(rows[1].gain, None);
        let mut alone = [row("sslsard", 100, 140.0, 0.96)];
        compare(&mut alone, costs);
        assert_eq!(alone[0].gain, None);
    }
}
