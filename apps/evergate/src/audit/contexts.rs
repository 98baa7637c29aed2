//! Sealing contexts, made ahead of their use from the published keys of epochs.
//!
//! A context takes two key agreements, so a thread makes them. Bound: [`READY_MAX`] contexts wait. A worker that finds
//! none makes its own. The thread reads the file of epochs again when it has changed.

use crate::control::console;
use anyhow::{Context, Result};
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::epochs::{EpochFile, EpochKeys};
use evergate_evidence::note::VerifyingKey;
use evergate_seal::SealContext;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Contexts that wait for workers.
const READY_MAX: usize = 8;
/// Time between two looks at the file and the clock.
const TURN: Duration = Duration::from_secs(1);
/// Most bytes of the file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Sealing contexts of the process.
#[derive(Debug)]
pub struct Contexts {
    state: Mutex<State>,
    taken: Condvar,
}

#[derive(Debug, Default)]
struct State {
    file: EpochFile,
    ready: Vec<SealContext>,
}

/// The file of epochs, as the thread has read it.
struct Source {
    path: PathBuf,
    key: VerifyingKey,
    modified: Option<SystemTime>,
    /// Last problem that was logged.
    problem: Option<String>,
}

impl Contexts {
    /// Reads the file, and starts the thread that makes contexts. An error: the log's key is none.
    pub(super) fn start(path: &Path, log_key: &str) -> Result<Arc<Contexts>> {
        let key = VerifyingKey::parse(log_key).context("log_key is no key of a log")?;
        let contexts = Arc::new(Contexts { state: Mutex::default(), taken: Condvar::new() });
        let mut source = Source { path: path.to_owned(), key, modified: None, problem: None };
        contexts.refresh(&mut source);
        let shared = contexts.clone();
        std::thread::Builder::new()
            .name("audit-keys".to_owned())
            .spawn(move || shared.run(source))
            .context("cannot start the thread of the sealing contexts")?;
        Ok(contexts)
    }

    /// Whether connections accepted now can be sealed.
    pub fn is_ready(&self) -> bool {
        self.lock().file.get(present_epoch()).is_some()
    }

    /// A fresh context of an epoch; `None` without its keys.
    pub(super) fn take(&self, epoch: u64) -> Option<SealContext> {
        let mut state = self.lock();
        let ready = state.ready.iter().rposition(|context| context.epoch() == epoch);
        if let Some(context) = ready.map(|index| state.ready.swap_remove(index)) {
            self.taken.notify_one();
            return Some(context);
        }
        let keys = state.file.get(epoch).cloned()?;
        drop(state);
        SealContext::new(&keys).ok()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut source: Source) {
        loop {
            self.refresh(&mut source);
            while let Some(keys) = self.missing() {
                let Ok(context) = SealContext::new(&keys) else { break };
                self.lock().ready.push(context);
            }
            let state = self.lock();
            drop(self.taken.wait_timeout(state, TURN));
        }
    }

    /// Keys of which a context is to be made; contexts of other epochs go.
    fn missing(&self) -> Option<EpochKeys> {
        let epoch = present_epoch();
        let mut state = self.lock();
        state.ready.retain(|context| context.epoch() == epoch);
        let is_short = state.ready.len() < READY_MAX;
        is_short.then(|| state.file.get(epoch).cloned()).flatten()
    }

    fn refresh(&self, source: &mut Source) {
        let problem = match source.read() {
            Ok(None) if self.is_ready() => None,
            Ok(None) => source.problem.clone().or_else(|| {
                Some(
                    "it has no keys for this hour; publish newer ones (evergate-audit reveal serve)"
                        .to_owned(),
                )
            }),
            Ok(Some(file)) => {
                let has_keys = file.get(present_epoch()).is_some();
                self.lock().file = file;
                (!has_keys).then(|| {
                    "it has no keys for this hour; publish newer ones (evergate-audit reveal serve)"
                        .to_owned()
                })
            }
            Err(error) => Some(format!("{error:#}; secrets are sealed with the keys read before, if any")),
        };
        if problem != source.problem
            && let Some(problem) = &problem
        {
            console::warning(format!("audit: epochs {}: {problem}", source.path.display()));
        }
        source.problem = problem;
    }
}

impl Source {
    /// The file, if it has changed.
    fn read(&mut self) -> Result<Option<EpochFile>> {
        let metadata = std::fs::metadata(&self.path).context("cannot read it")?;
        let modified = metadata.modified().ok();
        if modified.is_some() && modified == self.modified {
            return Ok(None);
        }
        anyhow::ensure!(metadata.len() <= FILE_BYTES_MAX, "it has more than {FILE_BYTES_MAX} bytes");
        let bytes = std::fs::read(&self.path).context("cannot read it")?;
        let file =
            EpochFile::open(&bytes, &self.key, &EvidenceVerifier).context("it is no file of this log")?;
        self.modified = modified;
        Ok(Some(file))
    }
}

fn present_epoch() -> u64 {
    evergate_sys::wall_clock_s() / 3600
}
