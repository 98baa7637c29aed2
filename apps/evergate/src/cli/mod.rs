//! The command line: `evergate NOUN VERB`.
//!
//! Exit codes are part of the interface: 0 it worked; 1 it failed; 2 the command line or the configuration is wrong.
//! Service managers depend on them: after 1 another try may succeed, after 2 it cannot. `check` exits with 1 when host
//! names do not resolve, and with 3 when the configuration is right but no node starts with it on this machine. Data
//! goes to standard output, everything else to standard error.

mod bench;
mod bench_sessions;
mod check;
mod cluster;
mod cluster_wait;
mod explain;
mod generate;
pub(crate) mod output;
mod progress;
mod remote;
mod run;
mod simulate;

use crate::wire_versions::WireVersions;
use clap::{Args, Parser, Subcommand};
use evergate_config::{Problem, Severity};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// It failed.
const FAILED: u8 = 1;
/// The command line or the configuration is wrong.
const WRONG: u8 = 2;
/// The configuration is right, but no node starts with it on this machine.
const UNSTARTABLE: u8 = 3;

#[derive(Debug, Parser)]
#[command(
    name = "evergate",
    version,
    about = "TLS front end: terminates TLS, routes by content, balances over servers",
    after_help = "Exit codes: 0 it worked, 1 it failed, 2 the command line or the configuration is wrong; `check` has \
                  its own.",
    subcommand_required = true,
    arg_required_else_help = true
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve with a configuration file, or with options
    Run(RunArgs),
    /// Check a configuration, and whether a node would start with it on this machine
    Check(CheckArgs),
    /// Explain the decision on a request
    Explain(ExplainArgs),
    /// Show the state of a running node
    Status(RemoteArgs),
    /// Show the servers of a running node, take them out, and put them back
    Servers {
        #[command(subcommand)]
        command: ServersCommand,
    },
    /// Show the rules of a running node
    Rules {
        #[command(subcommand)]
        command: RulesCommand,
    },
    /// Show the certificates of a running node
    Certificates(RemoteArgs),
    /// Read the configuration again and apply it, without losing a connection
    Reload(RemoteArgs),
    /// Manage the access log of a running node
    Log {
        #[command(subcommand)]
        command: LogCommand,
    },
    /// Take no new connections, let the open ones finish, and exit
    Drain(RemoteArgs),
    /// Replace a running node's process by a new one that inherits all connections
    Upgrade(UpgradeArgs),
    /// Show the cluster of a running node, and make keys
    Cluster {
        #[command(subcommand)]
        command: ClusterCommand,
    },
    /// Take a running node out of its cluster and put it back
    Node {
        #[command(subcommand)]
        command: NodeCommand,
    },
    /// Print the metrics, as a scraper gets them
    Metrics(SocketArgs),
    /// Simulate how policies distribute TLS sessions over nodes, with figures
    Simulate(SimulateArgs),
    /// Measure what this machine can do
    Bench {
        #[command(subcommand)]
        command: BenchCommand,
    },
    /// See a cluster outlive its nodes, and start servers to try things out with
    Demo {
        #[command(subcommand)]
        command: Demo,
    },
    /// Write man pages and shell completions, for packages
    #[command(hide = true)]
    Generate {
        /// Folder, created if missing
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
    /// Print the version
    Version {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Subcommand)]
enum ServersCommand {
    /// Show all servers
    List(RemoteArgs),
    /// Send a server no new requests; those under way continue
    Drain(ServerArgs),
    /// Send a server requests again
    Ready(ServerArgs),
}

#[derive(Debug, Subcommand)]
enum RulesCommand {
    /// Show how many requests each rule has matched since the rules last changed
    Hits(RemoteArgs),
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    /// Reopen the file of the access log after it was renamed, without a reload
    Reopen(RemoteArgs),
}

#[derive(Debug, Subcommand)]
enum ClusterCommand {
    /// Show members, buckets and failovers as the node sees them
    Status(RemoteArgs),
    /// Wait until the node is a member and each of its buckets has its replicas
    Wait(WaitArgs),
    /// Print a new key for `cluster.key_file`
    Key,
}

#[derive(Debug, Subcommand)]
enum NodeCommand {
    /// Give all connections to the other nodes and take no new ones
    Drain(DrainArgs),
    /// Take connections again
    Undrain(RemoteArgs),
    /// Leave the cluster permanently: the other nodes recover its remaining connections
    Leave(RemoteArgs),
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Measure what handshakes and encryption cost on one core
    Crypto(BenchCryptoArgs),
    /// Measure records in both libraries of which `run` chooses the faster
    Records(BenchCryptoArgs),
    /// Measure what dispatch by TLS session saves, with real servers (nginx)
    Sessions(bench_sessions::BenchSessionsArgs),
}

/// `evergate demo`: parsed here, performed by the caller of [`main`].
#[derive(Debug, Subcommand)]
pub enum Demo {
    /// Start HTTP servers that answer with their name and the request they received
    Servers(DemoServers),
    /// Build a cluster in network namespaces, kill its nodes under traffic, and show what the client sees. Needs root
    Cluster(DemoCluster),
}

/// The two forms of `evergate run`.
const RUN_USAGE: &str = "evergate run [OPTIONS] <FILE>\n       \
                         evergate run [OPTIONS] --listen <ADDRESS> --to <ADDRESS> [--to ..] \
                         [--cert <FILE> --key <FILE>]";

#[derive(Debug, Args)]
#[command(override_usage = RUN_USAGE)]
struct RunArgs {
    /// Configuration file
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Configuration file
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    config: Option<PathBuf>,
    /// Without a file: where to listen, such as :8443
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["file", "config"])]
    listen: Option<String>,
    /// Without a file: a server, such as 127.0.0.1:8080; repeat it for several
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["file", "config"])]
    to: Vec<String>,
    /// Without a file: the certificate chain; without it a self-signed one is made
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "config"])]
    cert: Option<PathBuf>,
    /// Without a file: the private key
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "config"])]
    key: Option<PathBuf>,
    /// Number of this node in `[[cluster.nodes]]`, in the place of the configuration's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=32), conflicts_with = "listen")]
    node: Option<u8>,
    /// Admin socket, in the place of the configuration's
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// From one look at certificate and key files to the next, in milliseconds
    #[arg(long, hide = true, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(10..))]
    watch_interval_ms: u64,
    /// Standard input is the process whose place this one takes: see `evergate upgrade`
    #[arg(long, hide = true)]
    successor: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 it can be used, 1 host names do not resolve, 2 it is wrong, 3 it can be used, but no \
                  node starts with it on this machine."
)]
struct CheckArgs {
    /// Configuration file; - reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ExplainArgs {
    /// Configuration file; - reads standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The request: method and URL, such as 'GET https://example.com/path?query'; GET may be left out
    #[arg(long, value_name = "REQUEST", required_unless_present = "listener")]
    request: Option<String>,
    /// A header of the request; repeat it for several
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// The body: text, or @FILE
    #[arg(long, value_name = "BODY")]
    body: Option<String>,
    /// Address of the client, and its port
    #[arg(long, value_name = "IP[:PORT]", default_value = "192.0.2.1:40000", value_parser = end)]
    client: (IpAddr, Option<u16>),
    /// Address that the client connects to, and the port; otherwise those of the listener
    #[arg(long, value_name = "IP[:PORT]", value_parser = end)]
    local: Option<(IpAddr, Option<u16>)>,
    /// Subject of the client's certificate, as `tls.client_subject` shows it; otherwise it has none
    #[arg(long, value_name = "SUBJECT")]
    client_subject: Option<String>,
    /// Server name that the client sends, empty for none; otherwise the URL's host, and none for an IP address
    #[arg(long, value_name = "NAME")]
    sni: Option<String>,
    /// Protocols that the client offers to a passthrough listener, such as h2,http/1.1
    #[arg(long, value_name = "NAMES", conflicts_with = "request")]
    alpn: Option<String>,
    /// Newest TLS version of the client; otherwise that of the listener
    #[arg(long, value_name = "VERSION", value_parser = ["1.2", "1.3"])]
    tls_version: Option<String>,
    /// The listener; otherwise the first that fits the URL, whose port is that of its scheme if it names none. Without
    /// --request: a listener that routes whole connections
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One end of a connection: an address, with a port or without.
fn end(text: &str) -> Result<(IpAddr, Option<u16>), String> {
    let alone = text.parse().map(|ip| (ip, None));
    alone
        .or_else(|_| text.parse().map(|at: SocketAddr| (at.ip(), Some(at.port()))))
        .map_err(|_| "write it like 192.0.2.1, 192.0.2.1:443, 2001:db8::1 or [2001:db8::1]:443".to_owned())
}

/// An address to listen on; without a host all addresses of IPv4 and IPv6.
fn listen(text: &str) -> Result<SocketAddr, String> {
    let port = text.strip_prefix(':').and_then(|port| port.parse().ok());
    let any = port.map(|port| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    any.or_else(|| text.parse().ok())
        .ok_or_else(|| "write it like 127.0.0.1:8080, [::1]:8080 or :8080".to_owned())
}

#[derive(Debug, Args)]
struct SocketArgs {
    /// Admin socket of the node; otherwise EVERGATE_SOCKET, or /run/evergate/admin.sock
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct RemoteArgs {
    #[command(flatten)]
    socket: SocketArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct DrainArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// Wait until the other nodes have everything, so many seconds at most
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    wait: Option<u64>,
}

#[derive(Debug, Args)]
struct WaitArgs {
    #[command(flatten)]
    remote: RemoteArgs,
    /// Seconds until the command fails
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Accept buckets without a backup while no other node takes replicas, as for the first node of a cluster
    #[arg(long)]
    without_backup: bool,
}

#[derive(Debug, Args)]
struct UpgradeArgs {
    /// The new program; otherwise the one that the node was started as, as it is there now
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    #[command(flatten)]
    remote: RemoteArgs,
}

#[derive(Debug, Args)]
struct ServerArgs {
    /// The server, such as web/10.0.0.11:8080
    #[arg(value_name = "POOL/SERVER")]
    server: String,
    #[command(flatten)]
    remote: RemoteArgs,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Plans: examples/sslsard.toml (the paper) and examples/simulate/. Keys: docs/measurements/sslsard.md. \
    JSON is a list of {policy, newcomers_per_s, resumption, throughput, load_std, ..}, each figure with its _ci."
)]
struct SimulateArgs {
    /// Plan, such as examples/sslsard.toml
    #[arg(value_name = "PLAN")]
    plan: PathBuf,
    /// How many seeds, in the place of the plan's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: Option<u32>,
    /// The first seed, in the place of the plan's
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
    /// A policy, in the place of the plan's; repeat it for several
    #[arg(long, value_name = "NAME")]
    policy: Vec<String>,
    /// What handshakes cost, as `evergate bench crypto --json` printed it
    #[arg(long, value_name = "FILE", requires = "handshake")]
    costs: Option<PathBuf>,
    /// Which of them: tls12_rsa, tls13_rsa or tls13_ecdsa
    #[arg(long, value_name = "NAME", requires = "costs")]
    handshake: Option<String>,
    /// Folder for the figures and the page; otherwise PLAN-report here, or none with --json
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Threads; otherwise one for each processor. They change nothing but the time it takes
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct BenchCryptoArgs {
    /// Time for each measurement, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    time_ms: u64,
    /// Print JSON; that of `bench crypto` is for `evergate simulate --costs`
    #[arg(long)]
    json: bool,
}

/// `evergate demo servers`
#[derive(Debug, Args)]
pub struct DemoServers {
    /// How many
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub count: u16,
    /// Port of the first; the others follow. Otherwise any free ports
    #[arg(long)]
    pub port: Option<u16>,
    /// Address of the first, such as `0.0.0.0:8080`, `[::1]:8080` or `:8080`; the others have the ports after it
    #[arg(long, value_name = "ADDRESS", conflicts_with = "port", value_parser = listen)]
    pub listen: Option<SocketAddr>,
    /// Name of the server; several are NAME-1, NAME-2, and so on
    #[arg(long, default_value = "demo")]
    pub name: String,
}

/// `evergate demo cluster`
#[derive(Debug, Args)]
pub struct DemoCluster {
    /// End after the show instead of staying up
    #[arg(long)]
    pub once: bool,
    /// Print the figures as JSON, and everything else to standard error
    #[arg(long)]
    pub json: bool,
    /// Only check whether this machine can run it
    #[arg(long)]
    pub check: bool,
    /// Length of each download and upload, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub transfer_mib: u32,
}

/// The exit code for a configuration with these problems. That names do not resolve may be the resolver's fault, above
/// all where this machine has just begun.
fn refused(problems: &[Problem]) -> u8 {
    let mut errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
    if errors.all(|error| error.may_pass) { FAILED } else { WRONG }
}

/// Runs the command of this process's command line. `demo` performs `evergate demo` and returns its exit code: the
/// demonstration is a crate that this library does not depend on.
pub fn main(demo: impl FnOnce(Demo) -> anyhow::Result<u8>) -> ExitCode {
    let code = match Cli::parse().command {
        Command::Run(args) => run::run(args),
        Command::Check(args) => check::check(&args.file, args.json),
        Command::Explain(args) => explain::explain(&args),
        Command::Status(args) => remote::status(&args),
        Command::Servers { command: ServersCommand::List(args) } => remote::servers(&args),
        Command::Servers { command: ServersCommand::Drain(args) } => remote::server(&args, "drain"),
        Command::Servers { command: ServersCommand::Ready(args) } => remote::server(&args, "ready"),
        Command::Rules { command: RulesCommand::Hits(args) } => remote::rules(&args),
        Command::Certificates(args) => remote::certificates(&args),
        Command::Reload(args) => remote::reload(&args),
        Command::Log { command: LogCommand::Reopen(args) } => remote::post(&args, "/v1/log/reopen"),
        Command::Drain(args) => remote::drain(&args),
        Command::Upgrade(args) => remote::upgrade(&args),
        Command::Cluster { command: ClusterCommand::Status(args) } => cluster::status(&args),
        Command::Cluster { command: ClusterCommand::Key } => cluster::key(),
        Command::Cluster { command: ClusterCommand::Wait(args) } => cluster_wait::cluster(&args),
        Command::Node { command: NodeCommand::Drain(args) } => cluster_wait::drain(&args),
        Command::Node { command: NodeCommand::Undrain(args) } => remote::post(&args, "/v1/cluster/undrain"),
        Command::Node { command: NodeCommand::Leave(args) } => remote::post(&args, "/v1/cluster/leave"),
        Command::Metrics(args) => remote::metrics(&args),
        Command::Simulate(args) => simulate::simulate(&args),
        Command::Bench { command: BenchCommand::Crypto(args) } => bench::crypto(&args),
        Command::Bench { command: BenchCommand::Records(args) } => bench::records(&args),
        Command::Bench { command: BenchCommand::Sessions(args) } => bench_sessions::sessions(&args),
        Command::Demo { command } => demo(command).unwrap_or_else(|error| output::failed(&error)),
        Command::Generate { folder } => generate::generate(&folder),
        Command::Version { json } => version(json),
    };
    ExitCode::from(code)
}

fn version(json: bool) -> u8 {
    let version = env!("CARGO_PKG_VERSION");
    match json {
        true => output::json(&serde_json::json!({ "version": version, "forms": WireVersions::ours() })),
        false => output::text(&format!("evergate {version} ({})\n", WireVersions::ours())),
    }
}

impl From<&RunArgs> for crate::control::Options {
    fn from(args: &RunArgs) -> Self {
        Self { watch_interval: Duration::from_millis(args.watch_interval_ms) }
    }
}
