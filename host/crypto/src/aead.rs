//! Choice of the library that seals and opens records, by a short measurement on this processor.
//!
//! A list of processor features would go out of date with each version of either library, so both are timed. Noise only
//! slows a round down, so the fastest round of each library counts. The rounds of both take turns, so that both meet
//! the same clock rate.

use std::time::{Duration, Instant};

use evergate_tls::{AeadLibraries, AeadLibrary, Cipher, PAYLOAD_MAX, Suite};

/// Rounds of each library.
const ROUNDS: u32 = 48;
/// Rounds that run even on the slowest processor.
const ROUNDS_MIN: u32 = 4;
/// Processor time per suite after which no further round of either library begins, except for the first [`ROUNDS_MIN`].
/// Every round counts as the fastest one, so that the time of other processes costs no round.
const TIME_MAX: Duration = Duration::from_micros(1500);
/// Least advantage of `ring` over AWS-LC, in percent of AWS-LC's time: below it the choice would vary between starts.
const ADVANTAGE_MIN: u32 = 10;

/// The faster library for each suite, both directions of a full record together. Takes 2 to 4 ms of processor time, and
/// at most 9 ms where a record takes less than 50 us in each direction.
pub fn fastest_aead() -> AeadLibraries {
    let measured =
        |suite| fastest_rounds(suite).map_or(AeadLibrary::AwsLc, |[aws_lc, ring]| faster(aws_lc, ring));
    // Under load every round of one library may be slow, so `ring` must win twice.
    let wins = |suite| measured(suite) == AeadLibrary::Ring;
    AeadLibraries::by(|suite| match wins(suite) && wins(suite) {
        true => AeadLibrary::Ring,
        false => AeadLibrary::AwsLc,
    })
}

fn faster(aws_lc: Duration, ring: Duration) -> AeadLibrary {
    match ring * 100 < aws_lc * (100 - ADVANTAGE_MIN) {
        true => AeadLibrary::Ring,
        false => AeadLibrary::AwsLc,
    }
}

/// The fastest round of AWS-LC and of `ring`; `None` when one of them fails, or when their sealed bytes differ.
fn fastest_rounds(suite: Suite) -> Option<[Duration; 2]> {
    let [aws_lc, ring] = AeadLibrary::ALL;
    let cipher = |library| Cipher::new(library, suite, &vec![7; suite.key_len()]).ok();
    let (aws_lc, ring) = (cipher(aws_lc)?, cipher(ring)?);
    let mut text = vec![7; PAYLOAD_MAX];
    let mut best = [Duration::MAX; 2];
    for round in 0..ROUNDS {
        if round >= ROUNDS_MIN && (best[0] + best[1]) * round > TIME_MAX {
            break;
        }
        let (aws_lc_took, aws_lc_tag) = time_round(&aws_lc, &mut text)?;
        let (ring_took, ring_tag) = time_round(&ring, &mut text)?;
        if aws_lc_tag != ring_tag {
            return None;
        }
        best = [best[0].min(aws_lc_took), best[1].min(ring_took)];
    }
    Some(best)
}

/// Time to seal and to open `text`, which is unchanged afterwards, and the tag.
fn time_round(cipher: &Cipher, text: &mut [u8]) -> Option<(Duration, [u8; 16])> {
    let (nonce, aad) = ([1; 12], [23, 3, 3, 64, 17]);
    let start = Instant::now();
    let tag = cipher.seal(nonce, &aad, text).ok()?;
    cipher.open(nonce, &aad, &tag, text).then(|| (start.elapsed(), tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_wins_only_with_a_clear_advantage() {
        let ns = Duration::from_nanos;
        for (aws_lc, ring, library) in [
            (5966, 3447, AeadLibrary::Ring),    // AES-128-GCM with VAES, without AVX-512
            (2411, 3446, AeadLibrary::AwsLc),   // with AVX-512
            (17294, 17001, AeadLibrary::AwsLc), // ChaCha20-Poly1305
            (1000, 900, AeadLibrary::AwsLc),
            (1000, 899, AeadLibrary::Ring),
        ] {
            assert_eq!(faster(ns(aws_lc), ns(ring)), library, "{aws_lc} {ring}");
        }
    }

    #[test]
    fn both_libraries_are_timed_for_every_suite() {
        for suite in Suite::ALL {
            let best = fastest_rounds(suite).unwrap();
            assert!(best.iter().all(|time| !time.is_zero() && *time < Duration::from_secs(1)), "{best:?}");
        }
    }
}
