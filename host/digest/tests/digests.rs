//! Digests side by side equal those of `sha2`.

use evergate_digest::{Message, is_wide, sha256, sha256_many};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

fn check(messages: &[(Vec<u8>, Vec<u8>)]) {
    let parts: Vec<Message<'_>> = messages.iter().map(|(head, body)| Message { head, body }).collect();
    let mut digests = vec![[7; 32]];
    sha256_many(&parts, &mut digests);
    assert_eq!(digests.len(), messages.len() + 1);
    assert_eq!(digests[0], [7; 32], "present digests stay");
    for ((head, body), digest) in messages.iter().zip(&digests[1..]) {
        let expected: [u8; 32] = Sha256::digest([&head[..], body].concat()).into();
        assert_eq!(*digest, expected, "head of {} and body of {} bytes", head.len(), body.len());
        assert_eq!(sha256(&Message { head, body }), expected);
    }
}

fn filled(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + seed * 31 + at / 251) as u8).collect()
}

/// Tests of this file show little on a processor without AVX-512; CI has one.
#[test]
fn digest_of_known_messages_is_the_standards() {
    println!("side by side: {}", is_wide());
    let messages = vec![(b"a".to_vec(), b"bc".to_vec()); 16];
    let parts: Vec<Message<'_>> = messages.iter().map(|(head, body)| Message { head, body }).collect();
    let mut digests = Vec::new();
    sha256_many(&parts, &mut digests);
    // FIPS 180-4, example "abc".
    let expected = [
        0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea, 0x41, 0x41, 0x40, 0xde, 0x5d, 0xae, 0x22, 0x23, 0xb0,
        0x03, 0x61, 0xa3, 0x96, 0x17, 0x7a, 0x9c, 0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad,
    ];
    assert_eq!(digests, vec![expected; 16]);
}

#[test]
fn digests_of_every_length_are_equal() {
    let messages: Vec<_> = (0..400).map(|length| (filled(length % 140, length), filled(length, 3))).collect();
    check(&messages);
    let bodies: Vec<_> = (0..300).map(|length| (Vec::new(), filled(length, 5))).collect();
    check(&bodies);
    let heads: Vec<_> = (0..300).map(|length| (filled(length, 5), Vec::new())).collect();
    check(&heads);
}

#[test]
fn digests_of_few_and_of_uneven_messages_are_equal() {
    for count in 0..40 {
        let uneven = |index: usize| {
            (filled(53, index), filled(if index.is_multiple_of(3) { 20_000 } else { index }, index))
        };
        check(&(0..count).map(uneven).collect::<Vec<_>>());
    }
}

proptest! {
    #[test]
    fn digests_of_random_messages_are_equal(
        messages in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..150), prop::collection::vec(any::<u8>(), 0..1600)),
            0..60,
        ),
    ) {
        check(&messages);
    }
}
