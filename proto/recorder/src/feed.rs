//! Feeds of switches: their messages become records, and a loss in a feed becomes a gap.

use crate::stream::RecordStream;
use evergate_evidence::feed::{FeedHello, FeedNumbers, FeedPlace, ToFeed};
use evergate_evidence::merkle::Hash;
use std::collections::HashMap;

/// Most switches of a Recorder. A further one takes the place of the one that was idle longest.
pub const SWITCHES_MAX: usize = 64;

/// Numbers of every switch that feeds the Recorder.
#[derive(Debug, Default)]
pub struct Feeds {
    switches: HashMap<Hash, Switch>,
}

#[derive(Clone, Copy, Debug)]
struct Switch {
    numbers: FeedNumbers,
    /// Time of its last message in ns since 1970.
    last_ns: u64,
}

impl Feeds {
    /// Takes the first message of a connection.
    pub fn on_hello(&mut self, hello: &FeedHello, now_ns: u64) {
        let before = self.switches.get(&hello.switch).map(|switch| switch.numbers);
        if before.is_none() && self.switches.len() >= SWITCHES_MAX {
            let oldest = self.switches.iter().min_by_key(|(_, switch)| switch.last_ns).map(|(id, _)| *id);
            oldest.map(|id| self.switches.remove(&id));
        }
        let numbers = FeedNumbers::on_hello(hello, before);
        self.switches.insert(hello.switch, Switch { numbers, last_ns: now_ns });
    }

    /// Takes a message of a switch whose HELLO came, and writes its record. Answers the message's number.
    pub fn on_message(
        &mut self,
        switch: &Hash,
        message: ToFeed<'_>,
        now_ns: u64,
        stream: &mut RecordStream,
    ) -> Option<u64> {
        let (number, from) = (message.number()?, self.switches.get_mut(switch)?);
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
            ToFeed::Continued(_, continued) => stream.push_mark(continued.to_mark(switch)),
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

    const SWITCH: Hash = [5; 32];

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

    fn hello(run: u64, next: u64) -> FeedHello {
        FeedHello { switch: SWITCH, run, next }
    }

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
        feeds.on_hello(&hello(1, 1), 11);
        for number in [1, 4] {
            let number = feeds.on_message(&SWITCH, ToFeed::Continued(number, continued()), 12, &mut stream);
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
        feeds.on_hello(&hello(1, 1), 11);
        for _ in 0..2 {
            assert_eq!(
                feeds.on_message(&SWITCH, ToFeed::Continued(1, continued()), 12, &mut stream),
                Some(1)
            );
            feeds.on_hello(&hello(1, 1), 13);
        }
        assert_eq!(bodies(&stream.poll_output(Output::default())).len(), 1);
    }

    #[test]
    fn message_of_an_unknown_switch_is_ignored() {
        let mut stream = stream();
        assert_eq!(
            Feeds::default().on_message(&SWITCH, ToFeed::Continued(1, continued()), 12, &mut stream),
            None
        );
    }
}
