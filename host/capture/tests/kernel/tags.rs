//! VLAN tags in rings, and the partition in the real kernel.

use crate::random_frames::{Random, qinq, random_frame};
use crate::support::{cable, frames_of, options};
use evergate_capture::generator::Load;
use evergate_capture::{Filter, Ring, RingOptions, VlanTag};
use evergate_evidence::partition::part_of;
use evergate_evidence::statement::Partition;
use std::time::Duration;

/// The kernel moves the outer tag to the metadata; the inner tag stays in the frame.
#[test]
fn tags_are_put_back_as_they_were() {
    let Some(cable) = cable() else { return };
    let dot1q = vec![VlanTag { tpid: 0x8100, tci: 0xe00a }];
    for tags in [Vec::new(), dot1q, qinq()] {
        let mut ring = cable.ring(&options(1 << 20, 64 << 10));
        let load = Load { flows: 20, frame_bytes: 300, tags: tags.clone(), ..Load::default() };
        cable.send(load.frames());
        ring.wait(Duration::from_secs(5)).unwrap();
        let block = ring.next_block().unwrap();
        let packet = block.packets().next().unwrap();
        assert_eq!(packet.vlan, tags.first().copied());
        assert_eq!((packet.full_len(), packet.data.len()), (300, 300 - 4 * tags.len().min(1)));
        let mut frames: Vec<Vec<u8>> =
            block.packets().map(|packet| crate::support::whole_frame(&packet)).collect();
        drop(block);
        frames.extend(frames_of(&mut ring));
        assert_eq!(frames, load.frames());
    }
}

/// Random frames through one ring a part: each arrives in the ring of its part only.
#[test]
fn kernel_divides_frames_as_the_pure_hash() {
    let Some(cable) = cable() else { return };
    let mut random = Random::new("EVERGATE_SEED");
    for parts in [2, 5, 8u16] {
        // The kernel refuses to send less than an Ethernet header, and drops tagged frames that end in their tag.
        let frames: Vec<Vec<u8>> = (0..1500).map(|_| random_frame(&mut random, 24)).collect();
        let rings = (0..parts).map(|part| {
            let filter = Partition::new(part, parts).map(Filter::Partition);
            cable.ring(&RingOptions { filter, ..options(4 << 20, 64 << 10) })
        });
        let mut rings: Vec<Ring> = rings.collect();
        cable.send(frames.clone());
        for (part, ring) in (0..).zip(&mut rings) {
            let mut expected: Vec<_> =
                frames.iter().filter(|frame| part_of(frame, false, parts) == part).cloned().collect();
            let mut found = frames_of(ring);
            // The queues of two processors may exchange frames.
            expected.sort_unstable();
            found.sort_unstable();
            assert!(
                found == expected,
                "part {part} of {parts}: {} instead of {}",
                found.len(),
                expected.len()
            );
            assert_eq!(ring.counters().unwrap().seen, expected.len() as u64);
        }
    }
}
