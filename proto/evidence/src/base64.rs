//! Base64 (RFC 4648 section 4) in its one canonical form.
//!
//! Signed notes are compared byte for byte. The decoder therefore refuses missing or surplus padding, bits behind the
//! last byte, line breaks and other alphabets.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes with padding.
pub fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let mut group = [0; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let group = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for index in 0..4 {
            let digit = ALPHABET[(group >> (18 - 6 * index) & 63) as usize];
            out.push(if index <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    out
}

/// Decodes canonical base64: `encode` of the answer is `text`.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let digits = text.strip_suffix("==").or(text.strip_suffix('=')).unwrap_or(text).as_bytes();
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    for chunk in digits.chunks(4) {
        let mut group = 0_u32;
        for &digit in chunk {
            group = group << 6 | value(digit)?;
        }
        group <<= 6 * (4 - chunk.len());
        let bytes = group.to_be_bytes();
        let (whole, rest) = bytes[1..].split_at(chunk.len() - 1);
        if rest.iter().any(|&bits| bits != 0) {
            return None;
        }
        out.extend_from_slice(whole);
    }
    Some(out)
}

/// Decodes exactly `N` bytes.
pub fn decode_array<const N: usize>(text: &str) -> Option<[u8; N]> {
    decode(text)?.try_into().ok()
}

fn value(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    }

    #[test]
    fn other_forms_are_refused() {
        for wrong in
            ["Z", "Zg", "Zg=", "Zg===", "Zh==", "Zm9=", "Zm 9", "Zm9v\n", "=Zg=", "====", "Zm9-", "Zg==Zg=="]
        {
            assert_eq!(decode(wrong), None, "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn decoded_text_encodes_to_itself(text in "[A-Za-z0-9+/=]{0,24}") {
            if let Some(bytes) = decode(&text) {
                prop_assert_eq!(encode(&bytes), text);
            }
        }

        #[test]
        fn bytes_survive_both_ways(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }
}
