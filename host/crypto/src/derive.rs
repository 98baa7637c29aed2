//! Many secrets from one: HKDF-SHA256 (RFC 5869) with a label for each purpose.

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};

/// Separates what is derived here from whatever else a secret may be used for.
const SALT: &[u8] = b"evergate 1";

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// `N` bytes that depend on all of `secret` and on `label`. The same on every node; one label tells nothing of another.
pub fn derive<const N: usize>(secret: &[u8], label: &str) -> [u8; N] {
    const { assert!(N > 0 && N <= 255 * 32) }
    let mut out = [0; N];
    let info = [label.as_bytes()];
    let key = Salt::new(HKDF_SHA256, SALT).extract(secret);
    let filled = key.expand(&info, Length(N)).and_then(|okm| okm.fill(&mut out));
    filled.expect("the length is within what HKDF gives");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_and_every_secret_gives_other_bytes_and_the_same_ones_the_same() {
        let one: [u8; 32] = derive(&[1; 32], "a");
        assert_eq!(one, derive::<32>(&[1; 32], "a"));
        assert_ne!(one, derive::<32>(&[1; 32], "b"));
        assert_ne!(one, derive::<32>(&[2; 32], "a"));
        assert_eq!(one[..16], derive::<16>(&[1; 32], "a"));
    }
}
