//! Latency, loss, reordering, duplication, and links that are cut.

use crate::event_queue::Time;
use crate::random::Random;

/// Behaviour of one network for packets.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Least latency.
    pub latency: Time,
    /// Largest random addition to the latency.
    pub jitter: Time,
    /// Lost packets per thousand.
    pub loss: u64,
    /// Duplicated packets per thousand.
    pub duplicates: u64,
    /// Late packets per thousand, which others overtake.
    pub late: u64,
    /// Largest lateness.
    pub late_max: Time,
}

impl Link {
    /// A link without faults.
    pub const fn fair(latency: Time) -> Link {
        Link { latency, jitter: 20, loss: 0, duplicates: 0, late: 0, late_max: 0 }
    }

    /// Delays of the copies of one packet that arrive.
    pub(crate) fn carry(&self, random: &mut Random) -> Vec<Time> {
        let copies = 1 + u64::from(random.chance(self.duplicates));
        let arrives = |random: &mut Random| (!random.chance(self.loss)).then(|| self.delay(random));
        (0..copies).filter_map(|_| arrives(random)).collect()
    }

    /// Delay of one packet.
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
    /// Largest delay of a thread's wake-up.
    pub wake_late: Time,
    /// Packets reach one node, which passes them on to the owner. Otherwise every node receives all of them.
    pub steers: bool,
}

impl Weather {
    /// No faults.
    pub const FAIR: Weather =
        Weather { outside: Link::fair(400), inside: Link::fair(80), wake_late: 30, steers: false };

    /// Random faults of every kind.
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

/// Cuts at one node, each until a time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cuts {
    pub(crate) outside: Time,
    pub(crate) inside: Time,
    /// Its output to other nodes.
    pub(crate) output: Time,
    /// Its replication channels, and the time at which the cut began.
    pub(crate) channels: Time,
    pub(crate) channels_for: Time,
    /// The witness's answers, in addition to a cut outside.
    pub(crate) witness: Time,
}
