//! `evergate demo cluster`: a cluster on this machine that loses node after node under traffic, and what the client
//! sees.
//!
//! The client, a switch, the nodes and the servers are network namespaces. The nodes are processes of this program. The
//! clients and servers are threads of this process, which sees both ends of a transfer: every byte is compared where it
//! arrives, and silences are measured there. Everything ends with this process; `cleanup` removes the rest if it is
//! killed.

mod admin;
mod cleanup;
mod client;
mod clients;
mod network;
mod node;
mod output;
mod preflight;
mod progress;
mod report;
mod scenario;
mod scoreboard;
mod servers;

pub(crate) use scoreboard::Board;
pub(crate) use servers::{send, take};

use anyhow::{Context, Result, bail};
use client::Target;
use evergate_crypto::{ClientSettings, Verify};
use network::{ADDRESS, Network, SERVERS};
use node::{Node, PORT, SERVER_PORT, SITE};
use output::Console;
use report::Report;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use scenario::Show;
use scoreboard::Kind;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Transfers of each kind.
const TRANSFERS: [(Kind, usize); 5] =
    [(Kind::Download, 3), (Kind::Upload, 3), (Kind::WebSocket, 2), (Kind::Requests, 1), (Kind::Visits, 1)];
const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];
/// Lines of a node's log that are printed after a failure.
const LAST_LINES: usize = 40;

/// Options of the show.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// End after the show.
    pub once: bool,
    /// Keep standard output for the figures, as JSON.
    pub json: bool,
    /// Length of each download and upload, in bytes.
    pub transfer_bytes: u64,
}

/// The user ended the show early.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; everything is removed")]
pub struct Interrupted;

/// Flag of an early end: Ctrl-C, SIGTERM, or a closed terminal.
struct Stop(Arc<AtomicBool>);

impl Stop {
    fn new() -> Result<Stop> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, flag.clone())?;
        }
        Ok(Stop(flag))
    }

    fn requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The folder of a show, gone with this value.
struct Folder {
    path: PathBuf,
    _held: File,
}

impl Folder {
    fn new() -> Result<Folder> {
        let path = cleanup::folder();
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        let held = cleanup::hold(&path).with_context(|| format!("cannot write to {}", path.display()))?;
        Ok(Folder { path, _held: held })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Fails with what is missing here for a show, and the remedies.
pub fn check() -> Result<()> {
    let missing = preflight::missing();
    if missing.is_empty() {
        return Ok(());
    }
    bail!("the cluster's demonstration cannot run here: {}", missing.join("; "))
}

/// Runs the show; whether all went well.
pub fn run(options: &Options) -> Result<bool> {
    check()?;
    let stop = Stop::new()?;
    let console = Console::new(options.json);
    let names = NODES.map(str::to_owned);
    cleanup::remove(&console, network::hosts(&names));
    let folder = Folder::new()?;
    let network = Network::build(&names)?;
    console.print(&format!("{}\n", output::picture(&names, &ADDRESS.to_string())));
    let certificate = node::prepare(&folder.path, names.len())?;
    let nodes = (1..).zip(&names).map(|(number, name)| Node::new(name, number, &folder.path)).collect();
    let seed = u64::from_le_bytes(evergate_crypto::random_bytes());
    let mut show = Show {
        network: &network,
        nodes,
        board: Arc::new(Board::new(&TRANSFERS, options.transfer_bytes, seed)),
        console: &console,
        stop: &stop,
        kills: Vec::new(),
        next_line: Instant::now(),
    };
    let result = perform(&mut show, &certificate);
    if result.as_ref().is_err_and(|error| error.is::<Interrupted>()) {
        return result.map(|()| false);
    }
    let report = Report::new(names.len(), &show.board, &show.kills);
    let good = result.is_ok() && report.good();
    if !good {
        print_logs(&show);
    }
    console.print(&format!("\n{}\n{}", report::table(&show.board, &show.kills), report.verdict()));
    let printed = if options.json { output::json(&report.json()) } else { Ok(()) };
    result?;
    if !options.once {
        stay(&mut show, &folder.path)?;
    }
    printed?;
    Ok(good)
}

fn perform(show: &mut Show<'_>, certificate: &str) -> Result<()> {
    for ((name, address), namespace) in SERVERS.into_iter().zip(&show.network.servers) {
        let (address, board) = (SocketAddr::new(address, SERVER_PORT), show.board.clone());
        namespace
            .run(move || servers::start(name, address, board))
            .with_context(|| format!("cannot start {name}"))?;
    }
    show.begin()?;
    let root =
        CertificateDer::from_pem_slice(certificate.as_bytes()).context("cannot read the certificate")?;
    let settings = ClientSettings { verify: Verify::Roots(vec![root]), ..ClientSettings::default() };
    let target = Target {
        address: SocketAddr::new(ADDRESS, PORT),
        name: SITE,
        config: evergate_crypto::client_config(settings)?,
    };
    for number in 0..show.board.transfers.len() {
        let (board, target) = (show.board.clone(), target.clone());
        // These threads are not joined: the board shows when they are done.
        drop(show.network.client.spawn(move || {
            if let Some(transfer) = board.transfers.get(number) {
                clients::run(&board, transfer, &target);
            }
        }));
    }
    show.console.event(&format!(
        "{} downloads and {} uploads of {:.0} MiB, {} WebSockets, a connection with short requests, visits",
        TRANSFERS[0].1,
        TRANSFERS[1].1,
        show.board.bytes_each as f64 / f64::from(1 << 20),
        TRANSFERS[2].1
    ));
    show.go()
}

/// Prints the nodes' last log lines, to find the reason of a failure.
fn print_logs(show: &Show<'_>) {
    for node in &show.nodes {
        eprintln!("\nLast log lines of {}:\n{}", node.name, node.last_lines(LAST_LINES));
    }
}

/// Keeps everything up, and prints how to inspect it, until the user ends the show.
fn stay(show: &mut Show<'_>, folder: &Path) -> Result<()> {
    let program = std::env::current_exe()?;
    let program = program.display();
    let running = show.nodes.iter().find(|node| node.runs()).context("no node is left")?;
    show.console.print(&format!(
        "\nIt stays up until Ctrl-C. In another terminal, as root:\n\
         \x20 ip netns exec {} curl --cacert {}/site.pem --resolve {SITE}:{PORT}:{ADDRESS} https://{SITE}/\n\
         \x20 ip netns exec {} {program} cluster status --socket {}\n\
         The nodes' configuration and messages are in {}.",
        cleanup::namespace("client"),
        folder.display(),
        cleanup::namespace(&running.name),
        running.socket.display(),
        folder.display(),
    ));
    while !show.stop.requested() {
        for node in &mut show.nodes {
            node.check()?;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
