//! Queue and thread of the feed: messages for a Recorder, numbered without holes.
//!
//! A message stays in the queue until the Recorder acknowledges it, and is sent again over the next connection. Bound:
//! [`QUEUE_BYTES_MAX`]; a message beyond it is dropped, but has a number: the Recorder finds the hole and declares it.

use crate::control::console;
use evergate_evidence::feed::{Continuation, FeedHello, FeedSender, FromFeed, ToFeed};
use evergate_evidence::record::RequestRecord;
use evergate_submission::{ChannelError, FeedAddress, FeedChannel};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Most bytes of messages without an acknowledgement.
const QUEUE_BYTES_MAX: usize = 16 << 20;
/// Bytes from which new connections may be refused: those under way have requests too.
const QUEUE_BYTES_HIGH: usize = QUEUE_BYTES_MAX / 4 * 3;
/// Bytes of one write.
const SEND_BYTES: usize = 256 << 10;
/// Time in which messages gather before they are sent together: waking the thread for each would cost a handshake more
/// than sealing does.
const TURN: Duration = Duration::from_millis(20);
/// Longest time without a look at a connection that has nothing to send.
const IDLE: Duration = Duration::from_secs(1);
/// Time between two attempts to connect.
const RETRY: Duration = Duration::from_secs(1);
/// Limit of each step of a connection.
const LIMIT: Duration = Duration::from_secs(10);

/// The feed of the process.
#[derive(Debug)]
pub struct Feed {
    sender: FeedSender,
    queue: Mutex<Queue>,
    changed: Condvar,
    envelopes: AtomicU32,
    is_connected: AtomicBool,
    lost: AtomicU64,
}

#[derive(Debug)]
struct Queue {
    frames: VecDeque<(u64, Vec<u8>)>,
    bytes: usize,
    /// Number of the next message.
    next: u64,
    /// Highest number that a Recorder has acknowledged.
    acknowledged: u64,
    /// Messages at the front that were sent over the present connection.
    sent: usize,
}

impl Feed {
    /// Starts the thread. `switch` is the id of this switch.
    pub(super) fn start(address: FeedAddress, switch: [u8; 32]) -> io::Result<Arc<Feed>> {
        let run = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let queue = Queue { frames: VecDeque::new(), bytes: 0, next: 1, acknowledged: 0, sent: 0 };
        let feed = Arc::new(Feed {
            sender: FeedSender { switch, run },
            queue: Mutex::new(queue),
            changed: Condvar::new(),
            envelopes: AtomicU32::new(0),
            is_connected: AtomicBool::new(false),
            lost: AtomicU64::new(0),
        });
        let thread = feed.clone();
        std::thread::Builder::new().name("audit-feed".to_owned()).spawn(move || thread.run(&address))?;
        Ok(feed)
    }

    /// Id of this switch.
    pub fn switch(&self) -> [u8; 32] {
        self.sender.switch
    }

    /// Number of the next envelope.
    pub fn next_envelope(&self) -> u32 {
        self.envelopes.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Queues an envelope.
    pub fn push_envelope(&self, envelope: &[u8]) {
        self.push(|number| ToFeed::Envelope(number, envelope).to_frame());
    }

    /// Queues a request.
    pub fn push_request(&self, request: RequestRecord<'_>) {
        self.push(|number| ToFeed::Request(number, request).to_frame());
    }

    /// Queues that this node continues a connection.
    pub fn push_continued(&self, continued: Continuation) {
        self.push(|number| ToFeed::Continued(number, continued).to_frame());
    }

    /// Leaves out a number: secrets could not be sealed.
    pub fn lose(&self) {
        self.lock().next += 1;
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the queue is so full that new connections may be refused.
    pub fn is_nearly_full(&self) -> bool {
        self.lock().bytes >= QUEUE_BYTES_HIGH
    }

    /// Bytes without an acknowledgement, messages lost, and whether a Recorder is connected.
    pub fn state(&self) -> (usize, u64, bool) {
        let bytes = self.lock().bytes;
        (bytes, self.lost.load(Ordering::Relaxed), self.is_connected.load(Ordering::Relaxed))
    }

    /// Waits until every message is acknowledged, at most for this time.
    pub fn drain(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while !self.lock().frames.is_empty() && Instant::now() < deadline {
            std::thread::sleep(TURN);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, frame: impl FnOnce(u64) -> Vec<u8>) {
        let mut queue = self.lock();
        let number = queue.next;
        queue.next += 1;
        let frame = frame(number);
        if queue.bytes + frame.len() > QUEUE_BYTES_MAX {
            drop(queue);
            if self.lost.fetch_add(1, Ordering::Relaxed) == 0 {
                console::warning(
                    "audit: the feed is full: 16 MiB wait for a Recorder, and envelopes and requests are lost \
                     (evergate_audit_feed_lost_total); the record will declare them; start the Recorder",
                );
            }
            return;
        }
        queue.bytes += frame.len();
        queue.frames.push_back((number, frame));
        let is_first = queue.frames.len() == 1;
        drop(queue);
        if is_first {
            self.changed.notify_one();
        }
    }

    fn run(&self, address: &FeedAddress) {
        let mut was_logged = false;
        loop {
            let ended = FeedChannel::connect(address, LIMIT).and_then(|mut channel| {
                self.is_connected.store(true, Ordering::Relaxed);
                if std::mem::take(&mut was_logged) {
                    console::info("audit: the Recorder is connected");
                }
                self.serve(&mut channel)
            });
            self.is_connected.store(false, Ordering::Relaxed);
            if let Err(error) = ended
                && !std::mem::replace(&mut was_logged, true)
            {
                console::warning(format!(
                    "audit: no Recorder takes the feed: {error}; up to 16 MiB wait; start evergate-audit record --feed"
                ));
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Sends the queue until the connection ends.
    fn serve(&self, channel: &mut FeedChannel) -> Result<(), ChannelError> {
        let hello = {
            let mut queue = self.lock();
            queue.sent = 0;
            // Also a Recorder that knows nothing of this process must see the hole of messages that were lost.
            let next = queue.acknowledged + 1;
            FeedHello { sender: self.sender, next }
        };
        channel.send(&ToFeed::Hello(hello).to_frame())?;
        let mut bytes = Vec::new();
        loop {
            self.collect(&mut bytes);
            if !bytes.is_empty() {
                channel.send(&bytes)?;
            }
            // The wait for acknowledgements is the time in which the next messages gather.
            let limit = if bytes.len() >= SEND_BYTES { Duration::ZERO } else { TURN };
            let until = Instant::now() + limit;
            while let Some(frame) = channel.receive(until.saturating_duration_since(Instant::now()))? {
                match FromFeed::decode(&frame)? {
                    FromFeed::Acknowledged(number) => self.release(number),
                    FromFeed::Refused(reason) => {
                        return Err(io::Error::other(format!("it refuses this switch: {reason}")).into());
                    }
                }
            }
        }
    }

    /// Collects messages that were not sent over this connection. An empty queue waits for some, and lets more gather.
    fn collect(&self, bytes: &mut Vec<u8>) {
        bytes.clear();
        let mut queue = self.lock();
        if queue.frames.is_empty() {
            drop(self.changed.wait_timeout_while(queue, IDLE, |queue| queue.frames.is_empty()));
            std::thread::sleep(TURN);
            queue = self.lock();
        }
        let mut count = 0;
        for (_, frame) in queue.frames.iter().skip(queue.sent) {
            if bytes.len() >= SEND_BYTES {
                break;
            }
            bytes.extend_from_slice(frame);
            count += 1;
        }
        queue.sent += count;
    }

    fn release(&self, acknowledged: u64) {
        let mut queue = self.lock();
        queue.acknowledged = acknowledged.clamp(queue.acknowledged, queue.next - 1);
        while let Some((_, frame)) = queue.frames.pop_front_if(|(number, _)| *number <= acknowledged) {
            queue.bytes -= frame.len();
            queue.sent = queue.sent.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_evidence::record::RequestLeg;
    use std::os::unix::net::UnixListener;

    const WAIT: Duration = Duration::from_secs(20);

    fn request(id: &[u8]) -> RequestRecord<'_> {
        let end = "10.0.0.1:1".parse().expect("an address");
        let leg = RequestLeg { peer: end, local: end };
        RequestRecord {
            switch_connection: 1,
            index: 0,
            time_ns: 0,
            client_random: [0; 32],
            client: leg,
            server: None,
            status: 200,
            flags: 0,
            id: id.into(),
            given_id: b"".into(),
        }
    }

    fn numbers(channel: &mut FeedChannel, count: usize) -> Vec<u64> {
        let mut numbers = Vec::new();
        while numbers.len() < count {
            let frame = channel.receive(WAIT).expect("open").expect("a message in time");
            numbers.extend(ToFeed::decode(&frame).expect("a message").number());
        }
        numbers
    }

    #[test]
    fn losses_before_the_first_connection_are_a_hole() {
        let socket = std::env::temp_dir().join(format!("evergate-hole-{}", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let feed = Feed::start(FeedAddress::Unix(socket.clone()), [1; 32]).expect("a thread");
        feed.lose();
        feed.lose();
        feed.push_request(request(b"id"));
        let listener = UnixListener::bind(&socket).expect("a socket");
        let mut channel =
            FeedChannel::of_unix(listener.accept().expect("the feed").0, WAIT).expect("a channel");
        let hello = channel.receive(WAIT).expect("open").expect("HELLO in time");
        let Ok(ToFeed::Hello(hello)) = ToFeed::decode(&hello) else { panic!("{hello:?}") };
        assert_eq!((hello.next, numbers(&mut channel, 1)), (1, vec![3]));
        let _ = std::fs::remove_file(&socket);
    }

    #[test]
    fn full_queue_drops_messages_but_not_their_numbers() {
        let folder = std::env::temp_dir().join(format!("evergate-feed-{}", std::process::id()));
        let _ = std::fs::remove_file(&folder);
        let feed = Feed::start(FeedAddress::Unix(folder.clone()), [1; 32]).expect("a thread");
        let id = [b'x'; 255];
        let mut sent = 0;
        while !feed.is_nearly_full() {
            feed.push_request(request(&id));
            sent += 1;
        }
        while feed.state().1 < 10 {
            feed.push_request(request(&id));
            sent += 1;
        }
        let (bytes, lost, is_connected) = feed.state();
        assert!(bytes <= QUEUE_BYTES_MAX && !is_connected, "{bytes}");
        let listener = UnixListener::bind(&folder).expect("a socket");
        let mut channel =
            FeedChannel::of_unix(listener.accept().expect("the feed").0, WAIT).expect("a channel");
        let kept = (sent - lost) as usize;
        assert_eq!(numbers(&mut channel, kept), (1..=sent - lost).collect::<Vec<_>>());
        channel.send(&FromFeed::Acknowledged(sent - lost).to_frame()).expect("open");
        feed.drain(WAIT);
        feed.push_request(request(&id));
        assert_eq!(numbers(&mut channel, 1), [sent + 1], "a hole of the lost ones is before it");
        let _ = std::fs::remove_file(&folder);
    }
}
