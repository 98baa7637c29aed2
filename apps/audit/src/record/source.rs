//! Source of the packets: an interface, or a foreign capture.

use crate::cli::Failure;
use crate::record::baseline::{BaselineFile, missed_since};
use crate::record::digest::{Counts, Digest, Outlet, now_ns};
use crate::record::disk_space::{DiskSpace, RESERVE_BYTES};
use crate::record::feed::{FeedIntake, FeedListener, Uncovered};
use crate::record::file_source;
use crate::record::metrics::Metrics;
use crate::record::ring_thread::{RingThread, Spill};
use crate::record::session::{join, spawn};
use crate::store::Store;
use evergate_capture::{Interface, InterfaceStatistics, Ring};
use evergate_recorder::stream::RecordStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

/// Time after which the kernel passes on a block that is not full.
const RETIRE: Duration = Duration::from_millis(20);

/// Source of the packets.
#[derive(Debug)]
pub(crate) enum Source {
    /// The ring of an interface, and the counters of the interface before the ring opened.
    Interface(Ring, InterfaceStatistics),
    /// A file, and the time of its first packet.
    File(PathBuf, u64),
}

/// A source at work.
#[derive(Debug)]
pub(crate) struct Running {
    ring: Option<JoinHandle<Result<(), String>>>,
    digest: JoinHandle<Result<Fed, String>>,
    interface: Option<Interface>,
}

/// The stream after the source's last packet.
pub(crate) type Fed = (RecordStream, Outlet, Counts);

impl Source {
    /// Name for marks and messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Source::Interface(ring, _) => ring.interface().name().to_owned(),
            Source::File(path, _) => {
                path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned())
            }
        }
    }

    /// Counters of the interface before the first packet.
    pub(crate) fn before(&self) -> InterfaceStatistics {
        match self {
            Source::Interface(_, before) => *before,
            Source::File(..) => InterfaceStatistics::default(),
        }
    }

    /// Time of the stream's start in nanoseconds since 1970.
    pub(crate) fn start_ns(&self) -> u64 {
        match self {
            Source::Interface(..) => now_ns(),
            Source::File(_, first_ns) => *first_ns,
        }
    }

    /// Packets that a Recorder which was down did not see, at most, and the time of the last one that it saw.
    pub(crate) fn missed(&self, store: &Store) -> Option<(u64, u64)> {
        match self {
            Source::Interface(_, before) => missed_since(store, &self.name(), before.rx_packets),
            Source::File(..) => None,
        }
    }

    /// Baseline for the next start.
    pub(crate) fn baseline(&self, is_whole: bool) -> Option<BaselineFile> {
        match self {
            Source::Interface(_, before) => {
                Some(BaselineFile::new(&self.name(), before.rx_packets, is_whole))
            }
            Source::File(..) => None,
        }
    }

    /// Starts the threads that feed the stream.
    pub(crate) fn start(
        self,
        stream: RecordStream,
        outlet: Outlet,
        store: &Store,
        stop: &Arc<AtomicBool>,
        metrics: &Arc<Metrics>,
        feed: Option<(FeedListener, Uncovered)>,
    ) -> Result<Running, Failure> {
        let (ring, before) = match self {
            Source::Interface(ring, before) => (ring, before),
            Source::File(path, _) => {
                let digest = spawn("digest", move || file_source::run(&path, stream, outlet))?;
                return Ok(Running { ring: None, digest, interface: None });
            }
        };
        let interface = Some(ring.interface().clone());
        let (jobs, queue) = channel();
        let folder = store.root().to_owned();
        let intake = feed
            .as_ref()
            .map_or_else(FeedIntake::default, |(_, uncovered)| FeedIntake::new(uncovered.clone()));
        if let Some((listener, _)) = feed {
            let (jobs, stop) = (jobs.clone(), stop.clone());
            // It ends with the flag.
            drop(spawn("feed", move || {
                listener.run(&jobs, &stop);
                Ok(())
            })?);
        }
        let spill = Spill::new(folder.clone(), metrics.spilled.clone());
        let ring = RingThread::new(ring, before, jobs, stop.clone(), RETIRE, spill, metrics.clone());
        let space = DiskSpace::new(folder, RESERVE_BYTES);
        let digest = Digest::new(stream, outlet, space, intake, metrics.clone());
        let ring = spawn("ring", move || ring.run().map_err(|error| error.to_string()))?;
        let digest = spawn("digest", move || digest.run(&queue).map_err(|error| format!("digest: {error}")))?;
        Ok(Running { ring: Some(ring), digest, interface })
    }
}

impl Running {
    /// Whether a thread has ended: a file by itself, a ring by an error.
    pub(crate) fn is_finished(&self) -> bool {
        self.digest.is_finished() || self.ring.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Counters of the interface now.
    pub(crate) fn statistics(&self) -> InterfaceStatistics {
        self.interface.as_ref().and_then(|interface| interface.statistics().ok()).unwrap_or_default()
    }

    /// Waits for the threads. An error of the ring comes beside the stream, which still gets its STOP mark.
    pub(crate) fn join(self) -> (Result<Fed, String>, Option<String>) {
        let error = self.ring.and_then(|ring| join(ring).err());
        (join(self.digest), error)
    }
}
