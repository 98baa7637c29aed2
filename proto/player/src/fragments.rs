//! Reassembly of IP fragments.
//!
//! Overlapping fragments with different bytes make their packet unusable, as RFC 5722 requires for IPv6: no receiver
//! can be known to have taken one of the copies. Bounds: [`PACKETS_MAX`] packets, and the bytes of their fragments. At
//! a bound the oldest incomplete packet is dropped and counted.

use evergate_recorder::frame::{Ends, Fragment};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Most packets that wait for fragments, or that were complete a moment ago.
pub const PACKETS_MAX: usize = 1024;
/// Longest IP packet in bytes.
const PACKET_BYTES_MAX: usize = 65_535;
/// Time for which fragments belong to the same packet (RFC 8200 section 4.5).
const LIFETIME_NS: u64 = 60_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    ends: Ends,
    id: u32,
    /// Of IPv6 it is the same in every fragment as well.
    protocol: u8,
}

#[derive(Debug)]
struct Packet {
    first_ns: u64,
    number: u64,
    /// Fragments by their place; empty once the packet was complete.
    pieces: BTreeMap<usize, Vec<u8>>,
    bytes: usize,
    end: Option<usize>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Complete,
    Contradicting,
}

/// Counts of fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FragmentCounts {
    /// Fragments.
    pub fragments: u64,
    /// Packets that were put together.
    pub complete: u64,
    /// Packets that lack fragments.
    pub incomplete: u64,
    /// Packets whose fragments contradict each other.
    pub contradicting: u64,
    /// Fragments that repeat earlier ones.
    pub repeats: u64,
}

/// Packets whose fragments are being collected.
#[derive(Debug)]
pub struct Reassembly {
    limit: usize,
    packets: HashMap<Key, Packet>,
    order: VecDeque<(u64, Key)>,
    bytes: usize,
    next: u64,
    counts: FragmentCounts,
}

/// Content of a packet that was put together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Addresses.
    pub ends: Ends,
    /// Protocol of the content.
    pub protocol: u8,
    /// Content behind the IP header.
    pub content: Vec<u8>,
}

impl Reassembly {
    /// A reassembly that keeps at most this many bytes.
    pub fn new(limit: usize) -> Reassembly {
        let (packets, order, counts) = (HashMap::new(), VecDeque::new(), FragmentCounts::default());
        Reassembly { limit, packets, order, bytes: 0, next: 0, counts }
    }

    /// Takes a fragment; answers the packet that it completes.
    pub fn on_fragment(&mut self, time_ns: u64, fragment: &Fragment<'_>) -> Option<Joined> {
        self.counts.fragments += 1;
        let key = Key { ends: fragment.ends, id: fragment.id, protocol: fragment.protocol };
        if self.packets.get(&key).is_some_and(|packet| time_ns.saturating_sub(packet.first_ns) > LIFETIME_NS)
        {
            self.remove(&key); // the number is used again
        }
        if !self.packets.contains_key(&key) {
            while self.packets.len() >= PACKETS_MAX && !self.order.is_empty() {
                self.drop_oldest();
            }
            let (pieces, number) = (BTreeMap::new(), self.next);
            let packet =
                Packet { first_ns: time_ns, number, pieces, bytes: 0, end: None, state: State::Open };
            self.packets.insert(key, packet);
            self.order.push_back((number, key));
            self.next += 1;
        }
        let packet = self.packets.get_mut(&key)?;
        let before = packet.bytes;
        match packet.take(fragment) {
            Taken::New => {}
            Taken::Repeat => self.counts.repeats += 1,
            Taken::Contradiction => self.counts.contradicting += 1,
        }
        self.bytes = (self.bytes + packet.bytes).saturating_sub(before);
        let joined = packet.join();
        if let Some(content) = &joined {
            self.bytes = self.bytes.saturating_sub(content.len());
            self.counts.complete += 1;
        }
        while self.bytes > self.limit && !self.order.is_empty() {
            self.drop_oldest();
        }
        joined.map(|content| Joined { ends: key.ends, protocol: key.protocol, content })
    }

    /// Counts; packets that still lack fragments count as incomplete.
    pub fn counts(&self) -> FragmentCounts {
        let open = self.packets.values().filter(|packet| packet.state == State::Open).count() as u64;
        FragmentCounts { incomplete: self.counts.incomplete + open, ..self.counts }
    }

    /// Bytes that wait.
    pub fn buffered(&self) -> usize {
        self.bytes
    }

    fn drop_oldest(&mut self) {
        while let Some((number, key)) = self.order.pop_front() {
            if self.packets.get(&key).is_some_and(|packet| packet.number == number) {
                return self.remove(&key);
            }
        }
    }

    fn remove(&mut self, key: &Key) {
        if let Some(packet) = self.packets.remove(key) {
            self.bytes = self.bytes.saturating_sub(packet.bytes);
            self.counts.incomplete += u64::from(packet.state == State::Open);
        }
        if self.order.len() > 2 * PACKETS_MAX {
            self.order.retain(|(number, key)| self.packets.get(key).is_some_and(|p| p.number == *number));
        }
    }
}

enum Taken {
    New,
    Repeat,
    Contradiction,
}

impl Packet {
    fn take(&mut self, fragment: &Fragment<'_>) -> Taken {
        let (begin, end) = (fragment.offset, fragment.offset + fragment.data.len());
        if self.state != State::Open {
            return Taken::Repeat;
        }
        let is_known = self.pieces.get(&begin).is_some_and(|piece| piece == fragment.data);
        let ends_twice = !fragment.has_more && self.end.is_some_and(|known| known != end);
        let is_beyond = self.end.is_some_and(|known| end > known) || end > PACKET_BYTES_MAX;
        if is_known && !ends_twice && !is_beyond {
            return Taken::Repeat;
        }
        let before = self.pieces.range(..begin).next_back().map_or(0, |(at, piece)| at + piece.len());
        let after = self.pieces.range(begin..).next().map_or(usize::MAX, |(at, _)| *at);
        if ends_twice
            || is_beyond
            || before > begin
            || after < end
            || (after == begin && !fragment.data.is_empty())
        {
            self.state = State::Contradicting;
            self.pieces.clear();
            self.bytes = 0;
            return Taken::Contradiction;
        }
        if !fragment.has_more {
            self.end = Some(end);
        }
        if !fragment.data.is_empty() {
            self.pieces.insert(begin, fragment.data.to_vec());
            self.bytes += fragment.data.len();
        }
        Taken::New
    }

    fn join(&mut self) -> Option<Vec<u8>> {
        if self.state != State::Open || self.end != Some(self.bytes) {
            return None; // pieces never overlap, so equal lengths leave no hole
        }
        self.state = State::Complete;
        self.bytes = 0;
        Some(std::mem::take(&mut self.pieces).into_values().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fragment(id: u32, offset: usize, has_more: bool, data: &[u8]) -> Fragment<'_> {
        let ends = Ends { source: [10, 0, 0, 1].into(), destination: [10, 0, 0, 2].into() };
        Fragment { ends, id, protocol: 6, offset, has_more, data }
    }

    #[test]
    fn fragments_in_any_order_and_repeated_are_joined_once() {
        let data: Vec<u8> = (0..40).collect();
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut reassembly = Reassembly::new(1000);
            let pieces = [(0, &data[..16]), (16, &data[16..32]), (32, &data[32..])];
            let mut joined = Vec::new();
            for number in order.into_iter().chain(order) {
                let (offset, data) = pieces[number];
                joined.extend(reassembly.on_fragment(5, &fragment(7, offset, number != 2, data)));
            }
            assert_eq!(joined.len(), 1);
            assert_eq!(joined[0].content, data);
            let counts = reassembly.counts();
            assert_eq!(
                (counts.complete, counts.repeats, counts.incomplete, reassembly.buffered()),
                (1, 3, 0, 0)
            );
        }
    }

    #[test]
    fn contradicting_fragments_make_no_packet() {
        let mut reassembly = Reassembly::new(1000);
        assert_eq!(reassembly.on_fragment(1, &fragment(1, 0, true, &[1; 16])), None);
        assert_eq!(reassembly.on_fragment(1, &fragment(1, 8, true, &[2; 16])), None);
        assert_eq!(reassembly.on_fragment(1, &fragment(1, 16, false, &[1; 8])), None);
        assert_eq!(reassembly.counts().contradicting, 1);
    }

    #[test]
    fn bounds_drop_the_oldest_packets() {
        let mut reassembly = Reassembly::new(100);
        for id in 0..5000 {
            reassembly.on_fragment(u64::from(id), &fragment(id, 8, true, &[1; 16]));
            assert!(reassembly.buffered() <= 100 && reassembly.order.len() <= 2 * PACKETS_MAX + 1);
        }
        assert_eq!(reassembly.counts().incomplete, 5000);
    }

    #[test]
    fn number_may_be_used_again_after_its_lifetime() {
        let mut reassembly = Reassembly::new(1000);
        for time_ns in [1, 2 + LIFETIME_NS] {
            reassembly.on_fragment(time_ns, &fragment(1, 0, true, &[1; 8]));
            assert!(reassembly.on_fragment(time_ns, &fragment(1, 8, false, &[2])).is_some());
        }
    }
}
