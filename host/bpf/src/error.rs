//! Errors between the program and its maps.

use evergate_base::{Bucket, NodeId};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Why the gate refused.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The pin folder is not on a BPF file system and none could be mounted.
    #[error(
        "pinning maps under {path:?}: this is not a BPF file system, and mounting one failed: {reported} \
             (mount -t bpf bpf /sys/fs/bpf; needs CAP_SYS_ADMIN)"
    )]
    Pins {
        /// The folder.
        path: PathBuf,
        /// The kernel's error. Part of the message and not a source, else chains of causes would print it twice.
        reported: io::Error,
    },
    /// A kernel object could not be made or attached.
    #[error("{attempt}: {reported}")]
    Kernel {
        /// The attempted step, with its values.
        attempt: String,
        /// The kernel's error. Part of the message and not a source.
        reported: io::Error,
    },
    /// This process sees another time than the programs that compare its leases.
    #[error(
        "this process's clock (CLOCK_BOOTTIME) is {:.3} s {} the kernel's, by which leases end: it runs in a time \
             namespace that moves it (/proc/self/timens_offsets has the offset); start it in one that does not",
        .apart.as_secs_f64(), if *.ahead { "ahead of" } else { "behind" }
    )]
    Clock {
        /// Difference of the clocks.
        apart: Duration,
        /// Whether this process's is the later one.
        ahead: bool,
    },
    /// Every slot is in use: this many flows are the bound.
    #[error("all {flows_max} slots are in use")]
    NoSlot {
        /// The bound.
        flows_max: u32,
    },
    /// More addresses or listeners than a map holds.
    #[error("gating {address}: the table of addresses or listeners is full")]
    Full {
        /// The address.
        address: IpAddr,
    },
    /// A worker number at or above 64.
    #[error("worker {worker} is outside 0..64")]
    WorkerPort {
        /// The number.
        worker: usize,
    },
    /// A node that the maps have no number for.
    #[error("node {}: the maps of the gate have numbers for the nodes 1 to 63 only", .0.0.saturating_add(1))]
    Node(NodeId),
    /// A bucket outside the tables.
    #[error("bucket {} is outside 0..{}", .0.0, evergate_base::BUCKETS)]
    Bucket(Bucket),
}

impl GateError {
    pub(crate) fn kernel(attempt: impl Into<String>, source: impl Into<io::Error>) -> GateError {
        GateError::Kernel { attempt: attempt.into(), reported: source.into() }
    }

    /// Wraps an error of libbpf: its message has the end of the verifier's log, its kind the errno.
    pub(crate) fn bpf(attempt: impl Into<String>, source: &libbpf_rs::Error) -> GateError {
        let kind = match source.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
            libbpf_rs::ErrorKind::NotFound => io::ErrorKind::NotFound,
            libbpf_rs::ErrorKind::AlreadyExists => io::ErrorKind::AlreadyExists,
            _ => io::ErrorKind::Other,
        };
        GateError::Kernel { attempt: attempt.into(), reported: io::Error::new(kind, format!("{source:#}")) }
    }
}
