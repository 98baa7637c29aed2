//! Partition without a kernel: the hash, and its program in an interpreter.

mod frames;
mod interpreter;

use evergate_capture::generator::Load;
use evergate_evidence::partition::part_of;
use evergate_evidence::statement::Partition;
use frames::Random;

const WHOLE: u32 = u32::MAX;

/// Whether the program of `part` accepts the frame.
fn is_accepted(frame: &[u8], tag_in_metadata: bool, part: u16, parts: u16) -> bool {
    let program = Partition::new(part, parts).unwrap().program(WHOLE);
    match interpreter::run(&program, frame, tag_in_metadata) {
        WHOLE => true,
        0 => false,
        other => panic!("the program returned {other}"),
    }
}

#[test]
fn program_accepts_exactly_the_frames_of_its_part() {
    let mut random = Random::new("EVERGATE_SEED");
    for _ in 0..20_000 {
        let frame = frames::random_frame(&mut random, 0);
        let (parts, is_tagged) = (1 + random.below(16) as u16, random.below(2) == 1);
        let expected = part_of(&frame, is_tagged, parts);
        assert!(expected < parts);
        for part in 0..parts {
            let accepted = is_accepted(&frame, is_tagged, part, parts);
            assert_eq!(accepted, part == expected, "part {part} of {parts}: {frame:02x?} tag {is_tagged}");
        }
    }
}

#[test]
fn program_at_every_cut_of_a_frame_agrees() {
    for ipv6 in [false, true] {
        let load = Load { ipv6, frame_bytes: 90, tags: frames::qinq(), ..Load::default() };
        for flow in 0..20 {
            let frame = load.frame(flow, false);
            for length in 0..frame.len() {
                let parts: Vec<u16> =
                    (0..5).filter(|part| is_accepted(&frame[..length], false, *part, 5)).collect();
                assert_eq!(parts, [part_of(&frame[..length], false, 5)], "{length}");
            }
        }
    }
}

#[test]
fn flow_has_one_part_in_both_directions_and_with_tags() {
    for ipv6 in [false, true] {
        let plain = Load { ipv6, frame_bytes: 120, ..Load::default() };
        let tagged = Load { tags: frames::qinq(), ..plain.clone() };
        let single = Load { tags: frames::qinq()[1..].to_vec(), ..plain.clone() };
        for flow in 0..500 {
            for parts in 2..=8 {
                let part = part_of(&plain.frame(flow, false), false, parts);
                assert_eq!(part, part_of(&plain.frame(flow, true), false, parts), "back");
                assert_eq!(part, part_of(&tagged.frame(flow, true), false, parts), "two tags");
                assert_eq!(part, part_of(&single.frame(flow, true), true, parts), "one in metadata");
                assert_eq!(part, part_of(&plain.frame(flow, true), true, parts), "one, in metadata");
            }
        }
    }
}

#[test]
fn shares_of_ten_thousand_flows_are_even() {
    // Even ports of one client, and of several; then random addresses and ports.
    let mut random = Random::new("EVERGATE_SEED");
    let load = Load { frame_bytes: 80, ..Load::default() };
    let even: Vec<Vec<u8>> = (0..10_000).map(|flow| load.frame(flow, false)).collect();
    let mut any = even.clone();
    for frame in &mut any {
        frame[26..38].iter_mut().for_each(|byte| *byte = random.below(256) as u8);
    }
    for (what, flows) in [("even ports", even), ("random", any)] {
        for parts in 2..=8u16 {
            let mut shares = vec![0u32; parts.into()];
            flows.iter().for_each(|frame| shares[usize::from(part_of(frame, false, parts))] += 1);
            let mean = 10_000.0 / f64::from(parts);
            let most = f64::from(*shares.iter().max().unwrap()) / mean;
            assert!(most <= 1.15, "{what}: {shares:?} have max/mean {most:.3}");
        }
    }
}

#[test]
fn fragments_of_a_datagram_share_a_part() {
    let load = Load { frame_bytes: 100, ..Load::default() };
    for flow in 0..200 {
        let whole = load.frame(flow, false);
        let (mut first, mut later) = (whole.clone(), whole.clone());
        first[20] |= 0x20;
        later[21] = 7;
        later[34..38].fill(0xaa);
        assert_eq!(part_of(&first, false, 7), part_of(&later, false, 7));
    }
}

#[test]
fn frames_without_ip_belong_to_part_0() {
    let mut frame = Load::default().frame(3, false);
    frame[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(part_of(&frame, false, 8), 0);
    assert_eq!(part_of(&[], false, 8), 0);
    assert_eq!(part_of(&frame, false, 0), 0);
}

#[test]
fn partition_of_impossible_numbers_is_refused() {
    assert_eq!(Partition::new(2, 2), None);
    assert_eq!(Partition::new(0, 0), None);
    let last = Partition::new(u16::MAX - 1, u16::MAX).unwrap();
    assert_eq!((last.part, last.parts), (u16::MAX - 1, u16::MAX));
}
