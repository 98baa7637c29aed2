//! The newest checkpoint: its file, and the copy that witnesses and time stamps read.

use crate::journal::replace_file;
use crate::test_points::{Step, reached};
use evergate_evidence::checkpoint::SignedCheckpoint;
use evergate_evidence::note::SignatureLine;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Newest checkpoint of the log.
pub struct CheckpointFile {
    path: PathBuf,
    newest: Mutex<Option<SignedCheckpoint>>,
    changed: Condvar,
    cosigned: Mutex<Option<SignedCheckpoint>>,
    cosigned_changed: Condvar,
}

impl CheckpointFile {
    /// File `checkpoint` in the log's folder, with what was found in it.
    pub fn new(folder: &Path, found: Option<SignedCheckpoint>) -> CheckpointFile {
        CheckpointFile {
            path: folder.join("checkpoint"),
            newest: Mutex::new(found),
            changed: Condvar::new(),
            cosigned: Mutex::new(None),
            cosigned_changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<SignedCheckpoint>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest checkpoint.
    pub fn newest(&self) -> Option<SignedCheckpoint> {
        self.lock().clone()
    }

    /// Waits until there is a checkpoint larger than `size`, or the limit passes.
    pub fn wait_larger(&self, size: u64, limit: Duration) -> Option<SignedCheckpoint> {
        let is_small = |newest: &mut Option<SignedCheckpoint>| {
            newest.as_ref().is_none_or(|newest| newest.checkpoint().size <= size)
        };
        let waited = self.changed.wait_timeout_while(self.lock(), limit, is_small);
        let (newest, result) = waited.unwrap_or_else(PoisonError::into_inner);
        if result.timed_out() { None } else { newest.clone() }
    }

    /// Waits until a witness has cosigned a checkpoint larger than `size`, or the limit passes.
    pub fn wait_cosigned(&self, size: u64, limit: Duration) -> Option<SignedCheckpoint> {
        let is_small = |cosigned: &mut Option<SignedCheckpoint>| {
            cosigned.as_ref().is_none_or(|cosigned| cosigned.checkpoint().size <= size)
        };
        let cosigned = self.cosigned.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.cosigned_changed.wait_timeout_while(cosigned, limit, is_small);
        let (cosigned, result) = waited.unwrap_or_else(PoisonError::into_inner);
        if result.timed_out() { None } else { cosigned.clone() }
    }

    /// Makes a checkpoint durable and the newest one.
    pub fn replace(&self, checkpoint: SignedCheckpoint) -> io::Result<()> {
        let mut newest = self.lock();
        replace_file(&self.path, &checkpoint.to_bytes(), || reached(Step::CheckpointWritten))?;
        reached(Step::CheckpointRenamed);
        *newest = Some(checkpoint);
        drop(newest);
        self.changed.notify_all();
        Ok(())
    }

    /// Adds cosignatures if the checkpoint with this text is still the newest, and keeps the cosigned checkpoint as
    /// `witnessed` in any case: a log under load has a newer one before a witness answers.
    pub fn cosign(&self, checkpoint: &SignedCheckpoint, lines: Vec<SignatureLine>) -> io::Result<()> {
        let mut newest = self.lock();
        let is_newest =
            newest.as_ref().is_some_and(|newest| newest.note().text() == checkpoint.note().text());
        let mut cosigned =
            if is_newest { newest.clone() } else { None }.unwrap_or_else(|| checkpoint.clone());
        for line in lines {
            // A second line of one witness adds nothing.
            let _ = cosigned.note_mut().sign(line);
        }
        if is_newest {
            replace_file(&self.path, &cosigned.to_bytes(), || ())?;
            *newest = Some(cosigned.clone());
        }
        replace_file(&self.path.with_file_name("witnessed"), &cosigned.to_bytes(), || ())?;
        *self.cosigned.lock().unwrap_or_else(PoisonError::into_inner) = Some(cosigned);
        self.cosigned_changed.notify_all();
        Ok(())
    }
}
