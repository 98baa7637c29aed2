//! Feeds of switches: their messages become records, and a loss in a feed becomes a gap.

use crate::stream::RecordStream;
use evergate_evidence::feed::{FeedHello, FeedNumbers, FeedPlace, FeedSender, ToFeed};
use std::collections::HashMap;

/// Most senders that a Recorder knows. A further one takes the place of the one that was idle longest.
pub const SENDERS_MAX: usize = 256;

/// Numbers of every sender that feeds the Recorder.
#[derive(Debug, Default)]
pub struct Feeds {
    senders: HashMap<FeedSender, Sender>,
}

#[derive(Clone, Copy, Debug)]
struct Sender {
    numbers: FeedNumbers,
    /// Time of its last message in ns since 1970.
    last_ns: u64,
}

impl Feeds {
    /// Takes the first message of a connection.
    pub fn on_hello(&mut self, hello: &FeedHello, now_ns: u64) {
        if self.senders.contains_key(&hello.sender) {
            return;
        }
        if self.senders.len() >= SENDERS_MAX {
            let oldest = self.senders.iter().min_by_key(|(_, sender)| sender.last_ns).map(|(id, _)| *id);
            oldest.map(|id| self.senders.remove(&id));
        }
        self.senders.insert(hello.sender, Sender { numbers: FeedNumbers::new(hello), last_ns: now_ns });
    }

    /// Takes a message of a sender whose HELLO came, and writes its record. Answers the message's number.
    pub fn on_message(
        &mut self,
        sender: &FeedSender,
        message: ToFeed<'_>,
        now_ns: u64,
        stream: &mut RecordStream,
    ) -> Option<u64> {
        let (number, from) = (message.number()?, self.senders.get_mut(sender)?);
        let from_ns = std::mem::replace(&mut from.last_ns, now_ns);
        match from.numbers.on_number(number) {
            FeedPlace::Repeated => return Some(number),
            FeedPlace::New { lost: 0 } => {}
            FeedPlace::New { lost } => stream.on_feed_loss(lost, from_ns),
        }
        match message {
            ToFeed::Hello(_) => {}
            ToFeed::Envelope(_, envelope) => stream.on_envelope(envelope.to_vec()),
            ToFeed::Request(_, request) => stream.on_request(request.into_owned()),
            ToFeed::Continued(_, continued) => stream.push_mark(continued.to_mark(&sender.switch)),
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection_table::Limits;
    use crate::stream::{Event, Origin, Output, SegmentLimits};
    use evergate_evidence::feed::Continuation;
    use evergate_evidence::record::{Body, GapReason};
    use evergate_evidence::statement::Partition;

    const SENDER: FeedSender = FeedSender { switch: [5; 32], run: 1 };

    fn stream() -> RecordStream {
        let origin = Origin {
            recorder: [7; 32],
            partition: Partition::default(),
            chain: None,
            next_seq: 1,
            next_connection: 1,
            next_segment: 1,
            interfaces: vec!["eth0".into()],
            filter: String::new(),
            snaplen: 0,
        };
        RecordStream::new(origin, Limits::default(), SegmentLimits::default(), 10)
    }

    const HELLO: FeedHello = FeedHello { sender: SENDER, next: 1 };

    fn continued() -> Continuation {
        let (from_client, to_client) = ((0, 1), (0, 2));
        Continuation { connection: 1, client_random: [3; 32], time_ns: 4, from_client, to_client }
    }

    fn bodies(output: &Output) -> Vec<&Body<'static>> {
        let records = output.events.iter().filter_map(|(_, event)| match event {
            Event::Record(record, _) => Some(&record.body),
            _ => None,
        });
        records.skip(1).collect() // the mark that begins the segment
    }

    #[test]
    fn lost_messages_are_a_gap_before_the_next_one() {
        let (mut feeds, mut stream) = (Feeds::default(), stream());
        feeds.on_hello(&HELLO, 11);
        for number in [1, 4] {
            let number = feeds.on_message(&SENDER, ToFeed::Continued(number, continued()), 12, &mut stream);
            assert!(number.is_some());
        }
        let output = stream.poll_output(Output::default());
        let [Body::Mark(_), Body::Gap(gap), Body::Mark(_)] = bodies(&output)[..] else {
            panic!("{output:?}")
        };
        assert_eq!((gap.reason, gap.exact, gap.count), (GapReason::Feed, true, 2));
    }

    #[test]
    fn repeated_messages_are_acknowledged_and_not_written_again() {
        let (mut feeds, mut stream) = (Feeds::default(), stream());
        feeds.on_hello(&HELLO, 11);
        for _ in 0..2 {
            assert_eq!(
                feeds.on_message(&SENDER, ToFeed::Continued(1, continued()), 12, &mut stream),
                Some(1)
            );
            feeds.on_hello(&HELLO, 13);
        }
        assert_eq!(bodies(&stream.poll_output(Output::default())).len(), 1);
    }

    #[test]
    fn message_of_an_unknown_sender_is_ignored() {
        let mut stream = stream();
        assert_eq!(
            Feeds::default().on_message(&SENDER, ToFeed::Continued(1, continued()), 12, &mut stream),
            None
        );
    }
}
