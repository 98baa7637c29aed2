//! `evergate bench sessions`

use super::output;
use super::progress::Bar;
use super::{FAILED, WRONG};
use crate::aead::install_from_environment;
use crate::bench_sessions::report::{files, table};
use crate::bench_sessions::{BLIND, CLIENTS_MAX, Experiment, Report, SessionKind, measure};
use anyhow::{Context, Result, anyhow};
use clap::Args;
use evergate_balance::Policy;
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::StrDeserializer;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Args)]
#[command(
    after_help = "Needs nginx. JSON is {sessions, keys, one_server, rows, ..}; a row is {policy, servers, \
                  reuse_percent, key_bits, measured, gain}. Results: docs/measurements/sslsard.md."
)]
pub(super) struct BenchSessionsArgs {
    /// Measured time of each run, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    seconds: Duration,
    /// Shares of connections that offer a session, in percent
    #[arg(long, value_name = "PERCENT,..", default_value = "0,20,40,60,80,100", value_delimiter = ',',
        value_parser = clap::value_parser!(u8).range(0..=100))]
    reuse: Vec<u8>,
    /// Sizes of the RSA keys: 2048, 3072 or 4096
    #[arg(long, value_name = "BITS,..", default_value = "2048,4096", value_delimiter = ',', value_parser = key_bits)]
    keys: Vec<u16>,
    /// Policies of the pool; gains need round_robin among them
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', value_parser = policy,
        default_value = "round_robin,session_only,sticky_least_outstanding,sslsard")]
    policies: Vec<Policy>,
    /// Terminators behind the switch
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=64))]
    servers: u8,
    /// Clients, each with its own sessions
    #[arg(long, value_name = "N", default_value_t = 300,
        value_parser = clap::value_parser!(u32).range(1..=CLIENTS_MAX as i64))]
    clients: u32,
    /// How sessions are resumed
    #[arg(long, value_name = "KIND", value_enum, default_value = "tls12-ids")]
    sessions: SessionKind,
    /// Give all clients one address, as behind a proxy; otherwise each has its own
    #[arg(long)]
    shared_address: bool,
    /// Arrivals and think times run so many times as fast as in the paper's workload
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    speed: u32,
    /// Seed of the clients
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Program of nginx; otherwise the one of the search path
    #[arg(long, value_name = "PATH")]
    nginx: Option<PathBuf>,
    /// Folder for the figures (SVG) and the data (JSON, CSV); otherwise none
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Limit of a run's time.
const SECONDS_MAX: f64 = 3600.0;

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "write seconds like 3 or 0.5".to_owned())?;
    match seconds {
        0.05..=SECONDS_MAX => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("{seconds} is not in 0.05 to {SECONDS_MAX}")),
    }
}

fn key_bits(text: &str) -> Result<u16, String> {
    match text.trim() {
        "2048" => Ok(2048),
        "3072" => Ok(3072),
        "4096" => Ok(4096),
        _ => Err("use 2048, 3072 or 4096".to_owned()),
    }
}

fn policy(text: &str) -> Result<Policy, String> {
    let name: StrDeserializer<'_, serde::de::value::Error> = text.trim().into_deserializer();
    Policy::deserialize(name).map_err(|error| error.to_string())
}

/// The values without repetitions, in their order.
fn unique<T: PartialEq + Clone>(values: &[T]) -> Vec<T> {
    let mut found: Vec<T> = Vec::new();
    for value in values {
        if !found.contains(value) {
            found.push(value.clone());
        }
    }
    found
}

pub(super) fn sessions(args: &BenchSessionsArgs) -> u8 {
    let experiment = Experiment {
        nginx: args.nginx.clone(),
        servers: args.servers.into(),
        clients: args.clients as usize,
        time: args.seconds,
        reuse_percent: unique(&args.reuse),
        key_bits: unique(&args.keys),
        policies: unique(&args.policies),
        sessions: args.sessions,
        shared_address: args.shared_address,
        speed: args.speed.into(),
        seed: args.seed,
        stop: Arc::default(),
    };
    // So that the folder of the experiment is removed, also on Ctrl-C.
    for signal in [SIGINT, SIGTERM] {
        if let Err(error) = signal_hook::flag::register(signal, experiment.stop.clone()) {
            return output::failed(&anyhow!(error).context("cannot handle signals"));
        }
    }
    // Before the measurements, which take minutes.
    if let Some(Err(error)) = args.out.as_deref().map(make) {
        output::print_error(format_args!("error: {error:#}"));
        return WRONG;
    }
    if !experiment.policies.contains(&BLIND) {
        output::print_error(format_args!("no gains: --policies has no {}", BLIND.as_str()));
    }
    let bar = Bar::new();
    let measured = install_from_environment()
        .and_then(|()| measure(&experiment, |done, of, label| bar.show(done, of, label)));
    bar.clear();
    let report = match measured {
        Ok(report) => report,
        Err(error) => return output::failed(&error),
    };
    let printed = match args.json {
        true => output::json(&report),
        false => output::text(&table(&report)),
    };
    match args.out.as_deref().map(|folder| write(&report, folder)) {
        Some(Err(error)) => output::failed(&error).max(FAILED),
        _ => printed,
    }
}

fn make(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))
}

fn write(report: &Report, folder: &Path) -> Result<()> {
    for file in files(report).context("cannot write JSON")? {
        let path = folder.join(&file.name);
        std::fs::write(&path, file.text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    output::print_error(format_args!("figures and data: {}", folder.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchSessionsArgs,
    }

    fn parsed(args: &[&str]) -> Result<BenchSessionsArgs, String> {
        let line = [&["sessions"], args].concat();
        Line::try_parse_from(line).map(|line| line.args).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_the_experiment_of_the_paper() {
        let args = parsed(&[]).unwrap();
        assert_eq!((args.reuse, args.keys), (vec![0, 20, 40, 60, 80, 100], vec![2048, 4096]));
        assert_eq!(
            (args.servers, args.seconds, args.sessions),
            (3, Duration::from_secs(3), SessionKind::Tls12Ids)
        );
        assert!(args.policies.contains(&BLIND) && !args.shared_address);
    }

    #[test]
    fn lists_are_separated_by_commas() {
        let args =
            parsed(&["--reuse", "80,100,80", "--policies", "lard,sslsard", "--seconds", "0.5"]).unwrap();
        assert_eq!(
            (unique(&args.reuse), args.policies),
            (vec![80, 100], vec![Policy::Lard, Policy::Sslsard])
        );
        assert_eq!(args.seconds, Duration::from_millis(500));
    }

    #[test]
    fn wrong_values_are_refused_with_a_remedy() {
        for (args, part) in [
            (["--reuse", "101"], "0..=100"),
            (["--keys", "1024"], "use 2048, 3072 or 4096"),
            (["--policies", "fastest"], "round_robin"),
            (["--seconds", "0"], "0.05"),
            (["--seconds", "NaN"], "0.05"),
            (["--servers", "0"], "1..=64"),
            (["--clients", "0"], "1..="),
            (["--sessions", "tls11"], "tls12-ids"),
        ] {
            let error = parsed(&args).unwrap_err();
            assert!(error.contains(part), "{args:?}: {error}");
        }
    }
}
