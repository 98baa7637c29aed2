//! Derivation of many secrets from one: HKDF-SHA256 (RFC 5869) with a label for each purpose.

use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};

/// Salt that separates these secrets from other uses of the same input.
const SALT: &[u8] = b"evergate 1";

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// `N` bytes that depend on all of `secret` and on `label`. They are equal on every node; the bytes of one label reveal
/// nothing about another.
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
    fn derived_bytes_depend_on_secret_and_label_alone() {
        let one: [u8; 32] = derive(&[1; 32], "a");
        assert_eq!(one, derive::<32>(&[1; 32], "a"));
        assert_ne!(one, derive::<32>(&[1; 32], "b"));
        assert_ne!(one, derive::<32>(&[2; 32], "a"));
        assert_eq!(one[..16], derive::<16>(&[1; 32], "a"));
    }
}
