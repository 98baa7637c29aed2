//! State of a Master for people and scripts: a small file in the log's folder that the running Master writes each
//! second, and the checkpoint.

use crate::metrics::Metrics;
use crate::problem::Problem;
use evergate_evidence::checkpoint::SignedCheckpoint;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;

/// What the running Master writes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Running {
    /// Address for Recorders.
    pub listen: String,
    /// Key of the log, as a vkey.
    pub vkey: String,
    /// Whether the key is in a file.
    pub is_trial: bool,
    /// Time of this state in ms since 1970.
    pub written_ms: u64,
    /// Recorders connected.
    pub connected: u64,
    /// Entries since the start.
    pub entries: u64,
    /// Signatures since the start.
    pub signatures: u64,
    /// Signatures that failed.
    pub signature_failures: u64,
    /// Requests to witnesses that failed.
    pub witness_failures: u64,
    /// Requests for time stamps that failed.
    pub tsa_failures: u64,
    /// Refusals by reason, those that occurred.
    pub refused: BTreeMap<String, u64>,
}

/// What `status` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    /// Whether a Master runs on this log.
    pub is_running: bool,
    /// Name of the log.
    pub origin: Option<String>,
    /// Entries of the newest checkpoint.
    pub size: u64,
    /// Cosignatures in the newest checkpoint file.
    pub cosignatures: usize,
    /// Last state that a running Master wrote.
    pub master: Option<Running>,
}

impl Running {
    /// Counters now.
    pub fn update(&mut self, metrics: &Metrics, now_ms: u64) {
        let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        self.written_ms = now_ms;
        self.connected = get(&metrics.connected);
        self.entries = get(&metrics.entries);
        self.signatures = get(&metrics.signatures);
        self.signature_failures = get(&metrics.signature_failures);
        self.witness_failures = get(&metrics.witness_failures);
        self.tsa_failures = get(&metrics.tsa_failures);
        self.refused =
            metrics.refused().filter(|&(_, count)| count > 0).map(|(r, c)| (r.into(), c)).collect();
    }

    /// Writes the file. It is no evidence: no sync.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        let temporary = folder.join("status.tmp");
        std::fs::write(&temporary, serde_json::to_vec(self)?)?;
        std::fs::rename(&temporary, folder.join("status.json"))
    }
}

impl Status {
    /// Status from a log's folder.
    pub fn read(folder: &Path) -> Result<Status, Problem> {
        let is_running = File::open(folder.join("lock"))
            .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_err());
        let path = folder.join("checkpoint");
        let checkpoint = match std::fs::read(&path) {
            Ok(bytes) => Some(SignedCheckpoint::parse(&bytes).map_err(|error| {
                let remedy = "do not change files of the log; restore the folder";
                Problem::new(path.display().to_string(), error.to_string(), remedy)
            })?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => {
                let remedy = "use the Master's user, or correct `log`";
                return Err(crate::problem::file_problem(&path, &error, remedy));
            }
        };
        let master = std::fs::read(folder.join("status.json")).ok();
        Ok(Status {
            is_running,
            origin: checkpoint.as_ref().map(|signed| signed.checkpoint().origin.clone()),
            size: checkpoint.as_ref().map_or(0, |signed| signed.checkpoint().size),
            cosignatures: checkpoint
                .as_ref()
                .map_or(0, |signed| signed.note().signatures().len().saturating_sub(1)),
            master: master.and_then(|bytes| serde_json::from_slice(&bytes).ok()),
        })
    }

    /// Lines for people.
    pub fn to_text(&self) -> String {
        let mut out = format!(
            "log: {}, {} entries, {} cosignatures\nmaster: {}\n",
            self.origin.as_deref().unwrap_or("(no checkpoint yet)"),
            self.size,
            self.cosignatures,
            if self.is_running { "running" } else { "not running" },
        );
        if let Some(master) = &self.master {
            out.push_str(&format!(
                "key: {}{}\nsince its start: {} entries, {} signatures ({} failed), {} Recorders connected\n",
                master.vkey,
                if master.is_trial { " (in a file: trial)" } else { "" },
                master.entries,
                master.signatures,
                master.signature_failures,
                master.connected,
            ));
            for (reason, count) in &master.refused {
                out.push_str(&format!("refused: {reason}: {count}\n"));
            }
        }
        out
    }
}
