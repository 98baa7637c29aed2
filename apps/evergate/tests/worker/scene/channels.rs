//! Silent peers that open channels to the worker, and other reasons that keep it from accepting channels.

use super::*;
use crate::worker::tls_channel::{TlsChannel, TlsChannels};
use evergate_replication::{Answer, Sender};
use evergate_worker::host::{Channel, Channels};
use std::net::Shutdown;

/// Places of another node's address before it has identified its channels; all other addresses share as many.
const OF_A_NODE: usize = 2;
const OF_UNLISTED: usize = 16;
const MORE: usize = 100;
/// So long is waited for a name.
const PATIENCE: Micros = Micros::from_ms(5_000);

/// The other end of a channel to the worker: an owner's.
struct Owner {
    channel: TlsChannel,
    feed: Sender<()>,
}

impl Owner {
    /// Sends what waits, and takes the worker's answers.
    fn exchange(&mut self) -> std::io::Result<()> {
        let sent = self.channel.send(self.feed.unsent())?;
        self.feed.advance(sent);
        let ended = self.channel.receive(false);
        while let Some((answer, length)) = Answer::decode(self.channel.input()).unwrap() {
            self.channel.input().drain(..length);
            self.feed.handle_answer(answer.frames, drop).unwrap();
        }
        ended
    }
}

impl Scene {
    /// A peer at this address opens so many channels, one after the other, and sends nothing.
    fn silent(&mut self, from: [u8; 4], count: usize) -> Vec<TcpStream> {
        let to = SocketAddr::from((REPLICATION, REPLICATION_PORT));
        let connect = |_| {
            let socket = evergate_sys::connect_from(from.into(), 20_000..=60_000, to).unwrap();
            self.steps().pass_time(Micros(1)); // the first one is older
            self.steps().accept_channels();
            TcpStream::from(socket)
        };
        (0..count).map(connect).collect()
    }

    /// Channels from the address of this node, or of none: how many there are, and when the oldest was made.
    fn channels(&mut self, host: Option<NodeId>) -> (usize, Option<Micros>) {
        self.steps().channels_from(host)
    }

    /// The backup's worker, with this clock, opens a channel and sends these connections of a bucket.
    fn channel_with(&mut self, clock_ms: u64, connections: &[u64]) -> Owner {
        self.channel_of(9, clock_ms, connections)
    }

    /// The same in this life of the backup.
    fn channel_of(&mut self, incarnation: u64, clock_ms: u64, connections: &[u64]) -> Owner {
        let bucket = Bucket(5);
        let hello = Frame::Hello {
            version: evergate_replication::FRAME_VERSION,
            node: BACKUP,
            incarnation: Incarnation(incarnation),
            worker: 0,
            workers: 1,
            clock_ms,
        };
        let settings = Frame::Settings(BTreeMap::new());
        let mut frames = vec![hello, settings, Frame::Term { bucket, term: term(3) }];
        frames.extend(connections.iter().map(|number| Frame::Begin {
            connection: ConnectionId(*number),
            bucket,
            state: None,
            legs: BTreeMap::new(),
        }));
        frames.push(Frame::Complete { bucket });
        let to = SocketAddr::from((REPLICATION, REPLICATION_PORT));
        let mut feed = Sender::default();
        frames.iter().for_each(|frame| feed.push(frame, None).unwrap());
        let channel = TlsChannels::new(self.ends.clone(), 0).connect(to).unwrap();
        self.steps().accept_channels();
        Owner { channel, feed }
    }

    /// Reads what the channel carries; false at its end.
    fn read_from(&mut self, channel: &mut Owner) -> bool {
        while channel.feed.lag() > 0 {
            if channel.exchange().is_err() {
                return false;
            }
            self.turn();
        }
        true
    }

    fn counted(&self, reason: &str) -> u64 {
        self.counters().reasons.lock().unwrap().get(reason).copied().unwrap_or(0)
    }
}

#[test]
fn unlisted_peers_have_few_places_and_none_of_a_node() {
    play(1, |mut scene| {
        let before = scene.steps().now();
        let at = |span: usize| Some(before + Micros(span as u64));
        let _first = scene.silent([127, 0, 0, 1], 1);
        let _unlisted = scene.silent(CLIENT, MORE);
        assert_eq!(
            scene.channels(None),
            (OF_UNLISTED, at(1 + MORE - OF_UNLISTED + 1)),
            "the oldest give way"
        );
        assert_eq!(scene.counted("replication_channels_max"), (MORE - OF_UNLISTED) as u64);
        assert_eq!(scene.channels(Some(BACKUP)), (1, at(1)));
        let _again = scene.silent([127, 0, 0, 1], OF_A_NODE);
        assert_eq!(scene.channels(Some(BACKUP)), (OF_A_NODE, at(1 + MORE + 1)));
        scene.steps().pass_time(PATIENCE);
        scene.steps().tend_channels();
        assert_eq!((scene.channels(None).0, scene.channels(Some(BACKUP)).0), (0, 0));
        assert_eq!(scene.counted("replication_channel_refused"), (OF_UNLISTED + OF_A_NODE) as u64);
    });
}

#[test]
fn unlisted_peers_get_none_of_the_last_descriptors() {
    play(1, |mut scene| {
        scene.shared.room.set_limit(0); // clients get none
        let _unlisted = scene.silent(CLIENT, 1);
        assert_eq!((scene.channels(None).0, scene.counted("replication_channels_max")), (0, 1));
        let _node = scene.silent([127, 0, 0, 1], 1);
        assert_eq!(scene.channels(Some(BACKUP)).0, 1);
    });
}

#[test]
fn a_worker_that_can_take_no_channel_asks_again_once_a_second() {
    play(1, |mut scene| {
        let listener = scene.ends.listeners[0].try_clone().unwrap();
        // Always ready, and each accept fails.
        TcpStream::from(listener).shutdown(Shutdown::Both).unwrap();
        scene.steps().set_next_second(Micros(u64::MAX));
        for _ in 0..10 {
            scene.turn();
        }
        assert_eq!(scene.counted("accept_failed"), 1);
        scene.steps().set_next_second(Micros(0));
        scene.turn();
        assert_eq!(scene.counted("accept_failed"), 1);
        scene.turn();
        assert_eq!(scene.counted("accept_failed"), 2);
    });
}

#[test]
fn older_channel_that_is_read_last_changes_nothing() {
    play(1, |mut scene| {
        let mut older = scene.channel_with(1000, &[1]);
        let mut newer = scene.channel_with(3000, &[1, 2]);
        assert!(scene.read_from(&mut newer));
        drop(newer); // its process dies
        for _ in 0..3 {
            scene.turn();
        }
        assert_eq!(scene.steps().channels(), 1, "its end was read");
        assert!(!scene.read_from(&mut older));
        let held: Vec<u64> = scene.steps().store().unwrap().iter().map(|(id, _)| id.0).collect();
        assert_eq!(held, [1, 2], "what was acknowledged");
    });
}

#[test]
fn channel_of_an_earlier_incarnation_changes_nothing() {
    play(1, |mut scene| {
        let mut first = scene.channel_of(9, 1000, &[1]);
        assert!(scene.read_from(&mut first));
        let mut late = scene.channel_of(9, 2000, &[1]);
        let mut newer = scene.channel_of(10, 500, &[1, 2]); // its machine restarted, and so did its clock
        assert!(scene.read_from(&mut newer));
        assert!(!scene.read_from(&mut late));
        newer.feed.push(&Frame::End { connection: ConnectionId(1) }, None).unwrap();
        assert!(scene.read_from(&mut newer), "it continues");
        let held: Vec<u64> = scene.steps().store().unwrap().iter().map(|(id, _)| id.0).collect();
        assert_eq!(held, [2], "what was acknowledged");
    });
}

#[test]
fn newest_of_two_channels_of_a_worker_counts() {
    for late in [true, false] {
        play(1, move |mut scene| {
            let mut older = scene.channel_with(1000, &[1]);
            let mut newer = scene.channel_with(3000, &[1, 2]);
            let (first, second) = if late { (&mut newer, &mut older) } else { (&mut older, &mut newer) };
            assert!(scene.read_from(first));
            assert_eq!(scene.read_from(second), !late);
            let held: Vec<u64> = scene.steps().store().unwrap().iter().map(|(id, _)| id.0).collect();
            assert_eq!(held, [1, 2], "what was acknowledged: {late}");
            newer.feed.push(&Frame::End { connection: ConnectionId(2) }, None).unwrap();
            assert!(scene.read_from(&mut newer));
            assert_eq!(scene.steps().store().unwrap().iter().count(), 1, "it continues: {late}");
            assert_eq!(scene.counted("replication_channel_ended"), u64::from(late));
        });
    }
}
