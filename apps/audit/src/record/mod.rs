//! `record`: the Recorder's process.
//!
//! Threads: the ring thread takes blocks, the digest thread owns the stream, the writer fills the page cache, the
//! committer waits for the disk, and the link talks to the Master. Each hands its work to the next in order.

mod args;
mod baseline;
mod digest;
mod identity;
mod job;
mod link;
mod receipts;
mod recovery;
mod report;
mod ring_thread;
mod room;
mod rows;
mod session;
mod writer;

pub use args::RecordArgs;

use crate::cli::Failure;
use crate::store::{Store, StoreInfo};
use evergate_capture::{Filter, Group, Interface, Ring, RingOptions, drop_privileges, has_net_raw};
use std::process::ExitCode;

/// Runs the Recorder until a signal ends it.
pub fn run(args: &RecordArgs) -> Result<ExitCode, Failure> {
    let store = Store::at(&args.store);
    store.create()?;
    let _lock = store.lock()?;
    let identity = identity::load(&store, args.identity_files())?;
    let info = check_store(&store, args, &identity.id())?;
    let recovered = recovery::Recovered::load(&store)?;
    let master = args.master()?;
    let before = Interface::named(&args.interface).and_then(|interface| interface.statistics());
    let ring = open_ring(args)?;
    let before = before.map_err(|error| Failure::wrong(error.to_string()))?;
    drop_privileges().map_err(|error| Failure::wrong(error.to_string()))?;
    session::Session { args, store, info, identity, recovered, master, ring, before }.run()
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

fn open_ring(args: &RecordArgs) -> Result<Ring, Failure> {
    if !has_net_raw() {
        return Err(Failure::wrong(
            "capture: CAP_NET_RAW is missing: the kernel gives no packets; run as root, or give the program the \
             capability (setcap cap_net_raw=ep, or AmbientCapabilities= in its unit)",
        ));
    }
    let mut options = RingOptions::new(args.interface.clone());
    options.bytes = (args.ring as usize) << 20;
    options.snaplen = args.snaplen;
    options.promiscuous = !args.no_promiscuous;
    options.fanout = args.fanout.map(Group);
    options.filter = args.part.filter().map(Filter::Partition);
    let ring = Ring::open(&options).map_err(|error| Failure::wrong(error.to_string()))?;
    check_offloads(args, ring.interface())?;
    Ok(ring)
}

/// Packets that the kernel or the card joins are not those of the wire.
fn check_offloads(args: &RecordArgs, interface: &Interface) -> Result<(), Failure> {
    let offloads = interface.offloads().map_err(|error| Failure::wrong(error.to_string()))?;
    let Some(remedy) = offloads.remedy(&args.interface).filter(|_| offloads.aggregates()) else {
        return Ok(());
    };
    let what = format!(
        "capture: {} of {} joins packets: the record has aggregates instead of the packets of the wire, and counters \
         differ; {remedy}",
        offloads.names().join(", "),
        args.interface
    );
    if args.require_wire {
        return Err(Failure::wrong(what));
    }
    eprintln!("evergate-audit: warning: {what}");
    Ok(())
}
