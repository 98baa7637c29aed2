//! Base64 (RFC 4648 section 4) for ticket key files. Not in constant time: these files are only read at start.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes with padding.
pub fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0_u32, |group, &byte| group << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let digit = ALPHABET[(group >> (18 - 6 * index) & 63) as usize];
            out.push(if index <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

/// Decodes; padding may be missing, everything else must be canonical.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if text.len() - digits.len() > 2 || digits.len() % 4 == 1 {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len() * 3 / 4);
    for chunk in digits.as_bytes().chunks(4) {
        let mut group = 0_u32;
        for &digit in chunk {
            group = group << 6 | ALPHABET.iter().position(|&other| other == digit)? as u32;
        }
        group <<= 6 * (4 - chunk.len());
        out.extend_from_slice(&group.to_be_bytes()[1..chunk.len()]);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_rfc_4648_hold_both_ways() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).unwrap(), bytes.as_bytes());
        }
        for wrong in ["Z", "Zg===", "Zm 9v", "Zm9v\n", "=Zg="] {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }
}
