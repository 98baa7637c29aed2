//! Handling of a worker that ended unexpectedly.
//!
//! The kernel divides new connections between the listening sockets of all workers (SO_REUSEPORT), and a socket without
//! a worker keeps its share: those clients would wait forever. So its sockets, queues included, move to the next
//! running worker, and so do those that a reload creates for it. A new process gets one socket per worker again.
//!
//! Not in a cluster: there the agent stops sending heartbeats for a node with an ended worker, the gate closes, and the
//! other nodes continue its connections.

use super::{Daemon, WorkerHandle, copies};
use crate::worker::{Command, ListenerSocket};
use anyhow::Result;

impl Daemon {
    /// Gives the listening sockets of workers that have ended to others. On an error they wait for the next call.
    pub fn pass_on_listeners(&self) -> Result<()> {
        let mut sockets = self.sockets();
        for index in 0..self.workers.len() {
            let heir = self.heir(index);
            if heir == index || sockets[index].is_empty() {
                continue;
            }
            let copies = copies(&sockets[index..=index])?.into_iter().flatten().collect();
            self.workers[heir].notify(Command::Listeners { add: copies, remove: Vec::new() });
            inherit(&mut sockets, index, heir);
        }
        Ok(())
    }

    /// Moves sockets on which no worker listens yet.
    pub(super) fn reassign_unlistened(&self, sockets: &mut [Vec<ListenerSocket>]) {
        for index in 0..sockets.len() {
            inherit(sockets, index, self.heir(index));
        }
    }

    /// The worker that serves in this worker's place: itself, or the next running worker.
    fn heir(&self, index: usize) -> usize {
        if self.agent.is_some() {
            return index;
        }
        let count = self.workers.len();
        let mut from_here = (index..index + count).map(|next| next % count);
        from_here.find(|next| !WorkerHandle::is_finished(&self.workers[*next])).unwrap_or(index)
    }
}

fn inherit(sockets: &mut [Vec<ListenerSocket>], from: usize, to: usize) {
    if from != to {
        let list = std::mem::take(&mut sockets[from]);
        sockets[to].extend(list);
    }
}
