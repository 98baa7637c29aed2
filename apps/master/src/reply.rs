//! Way back to a Recorder.

use evergate_evidence::submission::{ToRecorder, UNANSWERED_MAX};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};

/// Answers that wait for the sending thread of a connection: all receipts, WELCOME and a refusal, twice.
const ANSWERS_MAX: usize = 2 * UNANSWERED_MAX + 2;

/// Way back to the Recorder of one connection.
#[derive(Clone)]
pub struct Reply {
    answers: SyncSender<ToRecorder>,
    connection: Weak<()>,
}

/// Owner of a way back: when it is dropped, the way is closed.
pub struct Connection(Arc<()>);

/// New connection with its way back, and the answers for its sending thread.
pub fn reply() -> (Connection, Reply, Receiver<ToRecorder>) {
    let (sender, answers) = sync_channel(ANSWERS_MAX);
    let connection = Connection(Arc::new(()));
    let reply = Reply { answers: sender, connection: Arc::downgrade(&connection.0) };
    (connection, reply, answers)
}

impl Reply {
    /// Whether the connection is still there.
    pub fn is_open(&self) -> bool {
        self.connection.strong_count() > 0
    }

    /// Passes an answer to the sending thread, never waits; answers whether it was passed. A Recorder that is gone asks
    /// again.
    pub fn send(&self, answer: ToRecorder) -> bool {
        self.is_open() && self.answers.try_send(answer).is_ok()
    }
}
