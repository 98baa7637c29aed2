//! `record`: the Recorder's process.
//!
//! Threads: the ring thread takes blocks, the digest thread owns the stream, the writer fills the page cache, the
//! committer waits for the disk, and the link talks to the Master. Each hands its work to the next in order.

mod args;
mod baseline;
mod digest;
mod disk_space;
mod feed;
pub(crate) mod file_source;
mod identity;
mod job;
mod link;
mod metrics;
mod receipts;
mod recovery;
mod report;
mod reserve;
mod ring_thread;
mod rows;
mod session;
mod source;
mod writer;

pub use args::RecordArgs;
pub(crate) use args::with_port;

use crate::cli::Failure;
use crate::record::recovery::Recovered;
use crate::record::source::Source;
use crate::store::{Store, StoreInfo};
use crate::when;
use evergate_capture::{Group, Interface, Ring, RingOptions, drop_privileges, has_net_raw};
use std::path::Path;
use std::process::ExitCode;

/// Most that the clock may be behind the last record: the verifier allows it.
const CLOCK_BACK_NS: u64 = 1_000_000_000;

/// Runs the Recorder until a signal ends it.
pub fn run(args: &RecordArgs) -> Result<ExitCode, Failure> {
    let store = Store::at(&args.store);
    store.create()?;
    let _lock = store.lock()?;
    let identity = identity::load(&store, args.identity_files())?;
    let info = check_store(&store, args, &identity.id())?;
    let recovered = Recovered::load(&store)?;
    let master = args.master()?;
    let source = match (&args.interface, &args.read) {
        (_, Some(file)) => file_source(file, &store, &recovered)?,
        (Some(interface), None) => {
            check_clock(&recovered)?;
            interface_source(args, interface)?
        }
        (None, None) => return Err(Failure::wrong("give --interface IF or --read FILE")),
    };
    let feed = args.feed_listener(&identity)?;
    let metrics = args.metrics.map(metrics::listen).transpose()?;
    drop_privileges().map_err(|error| Failure::wrong(error.to_string()))?;
    session::Session { args, store, info, identity, recovered, master, source, feed, metrics }.run()
}

fn file_source(file: &Path, store: &Store, recovered: &Recovered) -> Result<Source, Failure> {
    if recovered.next_seq > 1 {
        return Err(Failure::wrong(format!(
            "store: {} has records already, and times of a file would go back behind them; read the file into a \
             new folder",
            store.root().display()
        )));
    }
    let first_ns = file_source::first_time(file).map_err(Failure::wrong)?;
    Ok(Source::File(file.to_owned(), first_ns.unwrap_or_else(digest::now_ns)))
}

/// Times of records may not go back: `verify` would report it for ever.
fn check_clock(recovered: &Recovered) -> Result<(), Failure> {
    let now_ns = digest::now_ns();
    if now_ns.saturating_add(CLOCK_BACK_NS) >= recovered.last_ns {
        return Ok(());
    }
    Err(Failure::wrong(format!(
        "clock: it is {}, before the last record of the store ({}): times would go back, and `verify` would report it; \
         set the clock, or record into a new folder",
        when::shown_ns(now_ns),
        when::shown_ns(recovered.last_ns)
    )))
}

fn interface_source(args: &RecordArgs, interface: &str) -> Result<Source, Failure> {
    let statistics = Interface::named(interface).and_then(|interface| interface.statistics());
    let before = statistics.map_err(|error| Failure::wrong(error.to_string()))?;
    Ok(Source::Interface(open_ring(args, interface)?, before))
}

/// Creates the store's description, or checks that the store is this Recorder's.
fn check_store(store: &Store, args: &RecordArgs, id: &[u8; 32]) -> Result<StoreInfo, Failure> {
    let root = store.root().display();
    let recorder = evergate_submission::id_text(id);
    let Some(info) = store.info()? else {
        let info = StoreInfo::new(recorder, args.part.part, args.part.parts);
        store
            .set_info(&info)
            .map_err(|error| Failure::wrong(format!("store: cannot write {root}/store.json: {error}")))?;
        return Ok(info);
    };
    if info.recorder != recorder {
        return Err(Failure::wrong(format!(
            "store: {root} belongs to Recorder {}, and this one is {recorder}; give its --certificate and --key, or \
             record into a new folder",
            info.recorder
        )));
    }
    if (info.part, info.parts) != (args.part.part, args.part.parts) {
        return Err(Failure::wrong(format!(
            "store: {root} holds part {}/{} of the traffic, and --part is {}/{}; record another part into a new folder",
            info.part, info.parts, args.part.part, args.part.parts
        )));
    }
    Ok(info)
}

fn open_ring(args: &RecordArgs, interface: &str) -> Result<Ring, Failure> {
    if !has_net_raw() {
        return Err(Failure::wrong(
            "capture: CAP_NET_RAW is missing: the kernel gives no packets; run as root, or give the program the \
             capability (setcap cap_net_raw=ep, or AmbientCapabilities= in its unit)",
        ));
    }
    let mut options = RingOptions::new(interface);
    options.bytes = (args.ring as usize) << 20;
    options.snaplen = args.snaplen;
    options.promiscuous = !args.no_promiscuous;
    options.fanout = args.fanout.map(Group);
    options.filter = args.filter();
    options.outgoing = args.outgoing;
    let ring = Ring::open(&options).map_err(|error| Failure::wrong(error.to_string()))?;
    check_offloads(args, ring.interface())?;
    Ok(ring)
}

/// Packets that the kernel or the card joins are not those of the wire.
fn check_offloads(args: &RecordArgs, interface: &Interface) -> Result<(), Failure> {
    let offloads = interface.offloads().map_err(|error| Failure::wrong(error.to_string()))?;
    let Some(remedy) = offloads.remedy(interface.name()).filter(|_| offloads.aggregates()) else {
        return Ok(());
    };
    let what = format!(
        "capture: {} of {} joins packets: the record has aggregates instead of the packets of the wire, and counters \
         differ; {remedy}",
        offloads.names().join(", "),
        interface.name()
    );
    if args.require_wire {
        return Err(Failure::wrong(what));
    }
    eprintln!("evergate-audit: warning: {what}");
    Ok(())
}

/// Options of `identity`.
#[derive(Debug, clap::Args)]
pub struct IdentityArgs {
    /// Folder of a record; a new one gets its identity
    #[arg(long, value_name = "DIR", required_unless_present = "certificate")]
    store: Option<std::path::PathBuf>,
    /// Certificate in PEM
    #[arg(long, value_name = "FILE", conflicts_with = "store")]
    certificate: Option<std::path::PathBuf>,
}

/// Prints the id of a Recorder or of a certificate: what configurations name.
pub fn print_identity(args: &IdentityArgs) -> Result<ExitCode, Failure> {
    let id = match (&args.certificate, &args.store) {
        (Some(file), _) => identity::of_certificate(file)?,
        (None, Some(folder)) => {
            let store = Store::at(folder);
            store.create()?;
            identity::load(&store, None)?.id()
        }
        (None, None) => return Err(Failure::wrong("give --store DIR or --certificate FILE")),
    };
    println!("{}", evergate_submission::id_text(&id));
    Ok(ExitCode::SUCCESS)
}
