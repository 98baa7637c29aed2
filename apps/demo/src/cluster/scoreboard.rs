//! Progress and outcome of every transfer: clients and servers record it here, the show reads it.
//!
//! A silence is the time between two pieces that reached their receiver: the client of a download, the server of an
//! upload, or the client that waits for an echo or a response. Senders are slow on purpose, so that no transfer is over
//! before the show is. [`Board::finish`] lets them send the rest at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Denominator of a piece: senders send this part of the rest per tick, so that two thirds are through after 8 s, and
/// never all.
const PART: u64 = 1600;
/// Pause between two pieces.
const TICK: Duration = Duration::from_millis(5);
/// Largest piece.
pub(super) const PIECE_BYTES: usize = 65_536;

/// Kind of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One large response.
    Download,
    /// One large request.
    Upload,
    /// Messages that come back.
    WebSocket,
    /// Short requests, all on one connection.
    Requests,
    /// Short requests, each on a connection of its own.
    Visits,
}

/// One transfer.
pub(crate) struct Transfer {
    /// Its place on the board.
    pub(super) number: usize,
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Seed of its bytes.
    pub(super) seed: u64,
    state: Mutex<State>,
}

/// Progress and outcome of a transfer.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// Verified bytes.
    pub(super) bytes: u64,
    /// Messages, responses or visits.
    pub(super) count: u64,
    /// Wrong bytes.
    pub(super) corrupted: u64,
    /// Visits that failed, and the reason of the last one.
    pub(super) failed: u64,
    pub(super) failure: Option<String>,
    /// Visits that connected at the second try only.
    pub(super) repeated: u64,
    /// The slowest visit.
    pub(super) slowest: Duration,
    /// Outcome; `None` while it is under way.
    pub(super) ended: Option<Result<(), String>>,
    last: Option<Instant>,
    longest: Duration,
    watched: bool,
}

impl State {
    /// Whether it has begun and is not over.
    pub(super) fn alive(&self) -> bool {
        self.last.is_some() && self.ended.is_none()
    }

    /// Number of incomplete transfers.
    pub(super) fn broken(&self) -> u64 {
        self.failed + u64::from(matches!(self.ended, Some(Err(_))))
    }
}

impl Transfer {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> State {
        self.lock().clone()
    }

    /// Records received bytes, and how many of them are wrong.
    pub(super) fn moved(&self, bytes: u64, wrong: u64) {
        let mut state = self.lock();
        let now = Instant::now();
        if let Some(last) = state.last {
            state.longest = state.longest.max(now - last);
        }
        state.last = Some(now);
        state.bytes += bytes - wrong;
        state.corrupted += wrong;
    }

    /// A visit could not connect, and tries again.
    pub(super) fn repeated(&self) {
        self.lock().repeated += 1;
    }

    /// A message, response or visit is complete.
    pub(super) fn counted(&self) {
        self.lock().count += 1;
    }

    /// Records the outcome and duration of a visit.
    pub(super) fn visited(&self, took: Duration, result: Result<(), String>) {
        let mut state = self.lock();
        state.slowest = state.slowest.max(took);
        match result {
            Ok(()) => state.count += 1,
            Err(why) => {
                state.failed += 1;
                state.failure = Some(why);
            }
        }
    }

    pub(super) fn ended(&self, result: Result<(), String>) {
        self.lock().ended = Some(result);
    }
}

/// All transfers of a show.
pub(crate) struct Board {
    pub(super) transfers: Vec<Transfer>,
    /// Length of each download and upload.
    pub(super) bytes_each: u64,
    finishing: AtomicBool,
}

impl Board {
    /// A board of transfers of each kind, named by kind and number.
    pub(super) fn new(kinds: &[(Kind, usize)], bytes_each: u64, seed: u64) -> Board {
        let mut transfers = Vec::new();
        for (kind, count) in kinds {
            for index in 1..=*count {
                let number = transfers.len();
                let word = match kind {
                    Kind::Download => "download",
                    Kind::Upload => "upload",
                    Kind::WebSocket => "WebSocket",
                    Kind::Requests => "requests",
                    Kind::Visits => "visits",
                };
                let name = if *count == 1 { word.to_owned() } else { format!("{word} {index}") };
                let seed = seed ^ number as u64;
                transfers.push(Transfer { number, name, kind: *kind, seed, state: Mutex::default() });
            }
        }
        Board { transfers, bytes_each, finishing: AtomicBool::new(false) }
    }

    /// Verified bytes of all transfers.
    pub(super) fn bytes(&self) -> u64 {
        self.transfers.iter().map(|transfer| transfer.lock().bytes).sum()
    }

    /// The transfer that a request is for.
    pub(crate) fn of_path(&self, path: &str) -> Option<&Transfer> {
        self.transfers.get(path.strip_prefix("/transfer/")?.parse::<usize>().ok()?)
    }

    /// Request path of a transfer.
    pub(super) fn path(transfer: &Transfer) -> String {
        format!("/transfer/{}", transfer.number)
    }

    /// Lets the senders send the rest at once.
    pub(super) fn finish(&self) {
        self.finishing.store(true, Ordering::Relaxed);
    }

    pub(super) fn finishing(&self) -> bool {
        self.finishing.load(Ordering::Relaxed)
    }

    /// Size of a sender's next piece, with `left` bytes left.
    pub(super) fn portion(&self, left: u64) -> usize {
        let most = left.min(PIECE_BYTES as u64);
        let wanted = if self.finishing() { most } else { (left / PART).clamp(1, most.max(1)) };
        wanted as usize
    }

    /// A sender's pause between two pieces.
    pub(super) fn pause(&self, ticks: u32) {
        if !self.finishing() {
            std::thread::sleep(TICK * ticks);
        }
    }

    /// Resets the silences, and measures those of all open connections from now on. Visits have none.
    pub(super) fn watch(&self) {
        for transfer in &self.transfers {
            let mut state = transfer.lock();
            state.watched = state.alive() && transfer.kind != Kind::Visits;
            state.longest = Duration::ZERO;
        }
    }

    /// Whether every connection that was open at the last [`Board::watch`] has moved since, or is over.
    pub(super) fn all_moved_since(&self, moment: Instant) -> bool {
        self.transfers.iter().all(|transfer| {
            let state = transfer.lock();
            !state.watched || state.ended.is_some() || state.last.is_some_and(|last| last > moment)
        })
    }

    /// The longest silence of each transfer since [`Board::watch`]; `None` for a transfer that is not watched.
    pub(super) fn silences(&self) -> Vec<Option<Duration>> {
        let silence = |transfer: &Transfer| {
            let state = transfer.lock();
            let now =
                state.last.filter(|_| state.ended.is_none()).map_or(Duration::ZERO, |last| last.elapsed());
            state.watched.then_some(state.longest.max(now))
        };
        self.transfers.iter().map(silence).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sender_sends_all_only_after_the_finish() {
        let board = Board::new(&[(Kind::Download, 1)], 1 << 20, 1);
        let mut left = board.bytes_each;
        for _ in 0..5000 {
            left -= board.portion(left) as u64;
        }
        assert!(left > 0);
        board.finish();
        while left > 0 {
            left -= board.portion(left) as u64;
        }
    }

    #[test]
    fn only_connections_that_were_open_are_watched() {
        let board = Board::new(&[(Kind::Download, 2), (Kind::Upload, 1), (Kind::Visits, 1)], 1, 1);
        let [open, fresh, over, visits] = &board.transfers[..] else { panic!("four transfers") };
        open.moved(1, 0);
        over.moved(1, 0);
        over.ended(Ok(()));
        visits.moved(1, 0);
        board.watch();
        fresh.moved(1, 1);
        let silences = board.silences();
        assert!(silences[0].is_some());
        assert_eq!(&silences[1..], [None, None, None]);
        assert_eq!(fresh.state().corrupted, 1);
        let now = Instant::now();
        assert!(!board.all_moved_since(now));
        open.moved(1, 0);
        assert!(board.all_moved_since(now));
    }
}
