//! SHA-256 of many messages at once.
//!
//! A recorder digests each packet. SHA instructions are bound by their latency on one message. Sixteen messages side by
//! side in AVX-512 registers take half of that time. Processors without AVX-512 get the same digests from `sha2`, one
//! message after the other.
//!
//! Invariant: the digests equal those of `sha2`, whatever the lengths and their order. Tests compare them. The verifier
//! of evidence uses `sha2` alone, so that a mistake here cannot confirm itself.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod scheduler;
#[cfg(target_arch = "x86_64")]
mod wide;

use sha2::{Digest, Sha256};

/// A SHA-256 digest.
pub type Sha256Digest = [u8; 32];

/// Longest head of a message that is digested side by side, in bytes. Messages with a longer head take the slow way.
pub const HEAD_BYTES_MAX: usize = 128;

/// A message: `head` and `body`, one behind the other. The body is read in place.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// First part, short.
    pub head: &'a [u8],
    /// Second part.
    pub body: &'a [u8],
}

/// The digest of one message.
pub fn sha256(message: &Message<'_>) -> Sha256Digest {
    let mut hash = Sha256::new();
    hash.update(message.head);
    hash.update(message.body);
    hash.finalize().into()
}

/// Appends the digests of all messages, in their order. Pass at least some dozens at a time.
pub fn sha256_many(messages: &[Message<'_>], digests: &mut Vec<Sha256Digest>) {
    #[cfg(target_arch = "x86_64")]
    if messages.len() >= wide::LANES_WORTH
        && let Some(wide) = wide::Wide::detect()
    {
        return scheduler::digest_side_by_side(wide, messages, digests);
    }
    digests.extend(messages.iter().map(sha256));
}

/// Whether [`sha256_many`] digests messages side by side on this processor.
pub fn is_wide() -> bool {
    #[cfg(target_arch = "x86_64")]
    return wide::Wide::detect().is_some();
    #[cfg(not(target_arch = "x86_64"))]
    false
}
