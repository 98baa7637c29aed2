//! Blocks as untrusted bytes: whole ones are read back, others end early.

use evergate_capture::{BlockView, PacketType, RawPacket, VlanTag};
use proptest::prelude::*;

/// A block as the kernel writes it.
fn block(packets: &[(u32, Vec<u8>, Option<VlanTag>)]) -> Vec<u8> {
    let mut bytes = vec![0; 48];
    for (index, (wire_len, data, vlan)) in packets.iter().enumerate() {
        let is_last = index + 1 == packets.len();
        let length = (82 + data.len()).next_multiple_of(8);
        let status = 1 | if vlan.is_some() { 0x50 } else { 0 };
        let next = if is_last { 0 } else { length as u32 };
        let start = bytes.len();
        for word in [next, 7 + index as u32, 999_999_999, data.len() as u32, *wire_len, status] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(82u16.to_ne_bytes());
        bytes.extend([0; 6]); // network header, hash
        bytes.extend(u32::from(vlan.map_or(0, |tag| tag.tci)).to_ne_bytes());
        bytes.extend(vlan.map_or(0, |tag| tag.tpid).to_ne_bytes());
        bytes.resize(start + 58, 0);
        bytes.push(3);
        bytes.resize(start + 82, 0);
        bytes.extend(data);
        bytes.resize(start + length, 0);
    }
    let length = bytes.len() as u32;
    for (at, word) in [(8, 0x21), (12, packets.len() as u32), (16, 48), (20, length)] {
        bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes[24..32].copy_from_slice(&5u64.to_ne_bytes());
    bytes
}

fn packets() -> impl Strategy<Value = Vec<(u32, Vec<u8>, Option<VlanTag>)>> {
    let tag = (any::<u16>(), any::<u16>()).prop_map(|(tpid, tci)| VlanTag { tpid, tci });
    let packet = (any::<u32>(), prop::collection::vec(any::<u8>(), 0..100), prop::option::of(tag));
    prop::collection::vec(packet, 0..8)
}

proptest! {
    #[test]
    fn whole_blocks_are_read_back(packets in packets(), behind in 0usize..50) {
        let mut bytes = block(&packets);
        let used = bytes.len();
        bytes.resize(used + behind, 0xee);
        let view = BlockView::new(&bytes).unwrap();
        prop_assert_eq!(view.bytes().len(), used);
        prop_assert_eq!((view.sequence(), view.is_timed_out()), (5, true));
        let mut read = view.packets();
        let found: Vec<RawPacket<'_>> = read.by_ref().collect();
        prop_assert_eq!((found.len(), read.missing()), (packets.len(), 0));
        for (index, (packet, (wire_len, data, vlan))) in found.iter().zip(&packets).enumerate() {
            prop_assert_eq!(packet.time_ns, (7 + index as u64) * 1_000_000_000 + 999_999_999);
            prop_assert_eq!((packet.data, packet.wire_len, packet.vlan), (&data[..], *wire_len, *vlan));
            prop_assert_eq!(packet.packet_type, PacketType::OtherHost);
            let (addresses, tag, rest) = packet.parts();
            prop_assert_eq!(tag.is_some(), vlan.is_some() && data.len() >= 12);
            prop_assert_eq!([addresses, rest].concat(), data.clone());
        }
    }

    #[test]
    fn cut_blocks_end_early_and_count_the_rest(packets in packets(), cut in any::<prop::sample::Index>()) {
        let bytes = block(&packets);
        let kept = cut.index(bytes.len());
        if let Some(view) = BlockView::new(&bytes[..kept]) {
            let mut read = view.packets();
            let found = read.by_ref().count();
            prop_assert_eq!(found + read.missing() as usize, packets.len());
        } else {
            prop_assert!(kept < 48);
        }
    }

    #[test]
    fn damaged_blocks_stay_within_their_bytes(
        packets in packets(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut bytes = block(&packets);
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let view = BlockView::new(&bytes).unwrap();
        let range = bytes.as_ptr_range();
        let mut count = 0;
        for packet in view.packets() {
            let data = packet.data.as_ptr_range();
            prop_assert!(range.start <= data.start && data.end <= range.end);
            count += 1;
        }
        // Each packet moves on by a header at least.
        prop_assert!(count <= 1 + bytes.len() / 48);
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        if let Some(view) = BlockView::new(&bytes) {
            prop_assert!(view.packets().count() <= 1 + bytes.len() / 48);
        }
    }
}
