//! Latency, loss, reordering, duplication, and links that are cut.

use crate::event_queue::Time;
use crate::random::Random;

/// How one network treats packets.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Least time on the way.
    pub latency: Time,
    /// What may come on top.
    pub jitter: Time,
    /// Of a thousand packets, so many are lost.
    pub loss: u64,
    /// ... come twice.
    pub duplicates: u64,
    /// ... are late, and so overtaken by others.
    pub late: u64,
    /// How late at most.
    pub late_max: Time,
}

impl Link {
    /// A link that does nothing wrong.
    pub const fn fair(latency: Time) -> Link {
        Link { latency, jitter: 20, loss: 0, duplicates: 0, late: 0, late_max: 0 }
    }

    /// Delays of the copies of one packet that arrive.
    pub(crate) fn carry(&self, random: &mut Random) -> Vec<Time> {
        let copies = 1 + u64::from(random.chance(self.duplicates));
        let arrives = |random: &mut Random| (!random.chance(self.loss)).then(|| self.delay(random));
        (0..copies).filter_map(|_| arrives(random)).collect()
    }

    /// How long one packet is on its way.
    pub(crate) fn delay(&self, random: &mut Random) -> Time {
        let late = if random.chance(self.late) { random.below(self.late_max) } else { 0 };
        self.latency + random.below(self.jitter) + late
    }
}

/// All networks.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Between clients and nodes.
    pub outside: Link,
    /// Between nodes, and between nodes and servers.
    pub inside: Link,
    /// How late a thread wakes up at most.
    pub wake_late: Time,
    /// Packets reach one node, which passes them on to the owner; otherwise every node sees all of them.
    pub steers: bool,
}

impl Weather {
    /// Nothing goes wrong.
    pub const FAIR: Weather =
        Weather { outside: Link::fair(400), inside: Link::fair(80), wake_late: 30, steers: false };

    /// Something of everything, by chance.
    pub fn random(random: &mut Random) -> Weather {
        let mut link = |latency: Time| Link {
            latency: latency + random.below(latency),
            jitter: 1 + random.below(latency),
            loss: random.pick(&[0, 0, 5, 20, 50]),
            duplicates: random.pick(&[0, 10, 30]),
            late: random.pick(&[0, 0, 20, 80]),
            late_max: 3 * latency,
        };
        let (outside, inside) = (link(500), link(80));
        Weather { outside, inside, wake_late: 1 + random.below(300), steers: random.chance(400) }
    }
}

/// What is cut at one node, each until a moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cuts {
    pub(crate) outside: Time,
    pub(crate) inside: Time,
    /// What it says to other nodes.
    pub(crate) mute: Time,
    /// What goes over its mirror channels, and for how long it has been by then.
    pub(crate) channels: Time,
    pub(crate) channels_for: Time,
    /// What the witness answers, beside what is cut outside.
    pub(crate) witness: Time,
}
