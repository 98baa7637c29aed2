//! Base64 (RFC 4648 section 4) for ticket key files. Not in constant time: these files are only read at start.

pub use evergate_evidence::base64::encode;
use zeroize::Zeroizing;

/// Decodes; padding may be missing, everything else must be canonical.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if text.len() - digits.len() > 2 {
        return None;
    }
    let padding = digits.len().wrapping_neg() % 4;
    let padded = Zeroizing::new(format!("{digits}{:=<padding$}", "")); // the text is a key
    evergate_evidence::base64::decode(&padded)
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
