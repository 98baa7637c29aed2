//! Letters between threads of different priority.
//!
//! The agent runs before everything else. Were it to wait for a lock, or to spin, while an ordinary thread that holds it
//! has no processor, the node would fall silent. So ordinary threads lock, and the agent only tries to.

use evergate_sys::Waker;
use std::sync::{Mutex, PoisonError, TryLockError};

/// A queue. Its bound is its senders': each says a few things for each thing that it is told, or knows a bound.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    letters: Mutex<Vec<T>>,
    waker: Waker,
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> std::io::Result<Mailbox<T>> {
        Ok(Mailbox { letters: Mutex::new(Vec::new()), waker: Waker::new()? })
    }

    /// Wakes whoever reads; to be registered for input, and drained by the reader.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// For ordinary threads: adds a letter and wakes the reader.
    pub(crate) fn post(&self, letter: T) {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner).push(letter);
        self.waker.wake();
    }

    /// For ordinary threads: takes all letters.
    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.letters.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// For the agent: takes all letters into `into`, which is empty. False when another thread is at the box.
    pub(crate) fn try_take(&self, into: &mut Vec<T>) -> bool {
        match self.letters.try_lock() {
            Ok(mut letters) => std::mem::swap(&mut *letters, into),
            Err(TryLockError::Poisoned(letters)) => std::mem::swap(&mut *letters.into_inner(), into),
            Err(TryLockError::WouldBlock) => return false,
        }
        true
    }

    /// For the agent: adds all letters and wakes the reader, or leaves them where they are.
    pub(crate) fn try_post(&self, from: &mut Vec<T>) {
        if from.is_empty() {
            return;
        }
        let Ok(mut letters) = self.letters.try_lock() else { return };
        letters.append(from);
        drop(letters);
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_and_nobody_waits_when_the_box_is_in_use() {
        let mailbox = Mailbox::new().unwrap();
        mailbox.post(1);
        let (mut out, mut taken) = (vec![2, 3], Vec::new());
        let held = mailbox.letters.lock().unwrap();
        mailbox.try_post(&mut out);
        assert!(!mailbox.try_take(&mut taken));
        assert_eq!((out.as_slice(), taken.as_slice()), (&[2, 3][..], &[][..]));
        drop(held);
        mailbox.try_post(&mut out);
        assert!(mailbox.try_take(&mut taken) && out.is_empty());
        assert_eq!(taken, [1, 2, 3]);
        assert!(mailbox.take().is_empty());
    }
}
