//! Queue between threads of different priority.
//!
//! The agent has real-time priority. If it waited for a lock, or spun, while an ordinary thread holds the lock without
//! a processor, the node would fall silent. So ordinary threads lock, and the agent only tries to.

use evergate_base::Wake;
use evergate_sys::Waker;
use std::sync::{Mutex, PoisonError, TryLockError};

/// A queue. Its senders bound it: each sends a few messages per message that it receives, or has a bound of its own.
#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    messages: Mutex<Vec<T>>,
    waker: Waker,
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> std::io::Result<Mailbox<T>> {
        Ok(Mailbox { messages: Mutex::new(Vec::new()), waker: Waker::new()? })
    }

    /// Wakes the reader, which registers it for input and drains it.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// For ordinary threads: adds a message and wakes the reader.
    pub(crate) fn post(&self, message: T) {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).push(message);
        self.waker.wake();
    }

    /// For ordinary threads: takes all messages.
    pub(crate) fn take(&self) -> Vec<T> {
        std::mem::take(&mut *self.messages.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// For the agent: takes all messages into `into`, which is empty. False when another thread holds the mailbox.
    pub(crate) fn try_take(&self, into: &mut Vec<T>) -> bool {
        match self.messages.try_lock() {
            Ok(mut messages) => std::mem::swap(&mut *messages, into),
            Err(TryLockError::Poisoned(messages)) => std::mem::swap(&mut *messages.into_inner(), into),
            Err(TryLockError::WouldBlock) => return false,
        }
        true
    }

    /// For the agent: adds all messages and wakes the reader, or leaves them in `from`.
    pub(crate) fn try_post(&self, from: &mut Vec<T>) {
        if from.is_empty() {
            return;
        }
        let Ok(mut messages) = self.messages.try_lock() else { return };
        messages.append(from);
        drop(messages);
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_mailbox_loses_nothing_and_blocks_no_thread() {
        let mailbox = Mailbox::new().unwrap();
        mailbox.post(1);
        let (mut out, mut taken) = (vec![2, 3], Vec::new());
        let held = mailbox.messages.lock().unwrap();
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
