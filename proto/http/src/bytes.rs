//! Byte classes of RFC 9110 section 5.6 and the small scans built on them.

const TOKEN: u8 = 1;
const REG_NAME: u8 = 2;
const UNRESERVED: u8 = 4;
const PLAIN_NAME: u8 = 8;

static CLASS: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut table = [0u8; 256];
    let mut i = 0;
    while i < 256 {
        let b = i as u8;
        let alnum = b.is_ascii_alphanumeric();
        if alnum || in_set(b, b"!#$%&'*+-.^_`|~") {
            table[i] |= TOKEN;
        }
        if alnum || in_set(b, b"-._~") {
            table[i] |= REG_NAME | UNRESERVED;
        }
        if in_set(b, b"!$&'()*+,;=") {
            table[i] |= REG_NAME;
        }
        if alnum || b == b'-' {
            table[i] |= PLAIN_NAME;
        }
        i += 1;
    }
    table
}

const fn in_set(b: u8, set: &[u8]) -> bool {
    let mut i = 0;
    while i < set.len() {
        if set[i] == b {
            return true;
        }
        i += 1;
    }
    false
}

/// `tchar`: the bytes of header names and of most protocol words.
#[inline]
pub(crate) fn is_token_byte(b: u8) -> bool {
    CLASS[b as usize] & TOKEN != 0
}

/// Bytes that header names usually consist of. Some servers map the other token bytes to `-`.
#[inline]
pub(crate) fn is_plain_name_byte(b: u8) -> bool {
    CLASS[b as usize] & PLAIN_NAME != 0
}

/// Bytes of a registered name or an IPv4 address besides percent-encoding: `unreserved` and `sub-delims` (RFC 3986
/// section 3.2.2).
#[inline]
pub(crate) fn is_reg_name_byte(b: u8) -> bool {
    CLASS[b as usize] & REG_NAME != 0
}

/// `unreserved` of RFC 3986 section 2.3.
#[inline]
pub(crate) fn is_unreserved(b: u8) -> bool {
    CLASS[b as usize] & UNRESERVED != 0
}

/// Value of a hexadecimal digit.
pub(crate) fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|value| value as u8)
}

pub(crate) fn is_token(s: &[u8]) -> bool {
    !s.is_empty() && s.iter().all(|&b| is_token_byte(b))
}

/// Whether `s` has a control byte other than HTAB.
#[inline]
pub(crate) fn has_control(s: &[u8]) -> bool {
    // Header values mostly have some tens of bytes: eight at a time beats wide vectors with their long tails.
    let (words, tail) = s.as_chunks::<8>();
    let suspect = words.iter().fold(0, |bits, word| bits | control_bits(u64::from_le_bytes(*word)));
    if suspect == 0 {
        return any_control(tail);
    }
    any_control(s)
}

/// Non-zero when a byte of the word is a control byte, HTAB included.
#[inline]
fn control_bits(word: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x80 * ONES;
    let below_space = word.wrapping_sub(0x20 * ONES) & !word;
    let del = word ^ (0x7f * ONES);
    (below_space | (del.wrapping_sub(ONES) & !del)) & HIGH
}

#[inline]
fn any_control(s: &[u8]) -> bool {
    s.iter().any(|&b| (b < 0x20 && b != b'\t') || b == 0x7f)
}

/// Whether `s` has a byte outside VCHAR (0x21 to 0x7e).
#[inline]
pub(crate) fn has_non_vchar(s: &[u8]) -> bool {
    s.iter().fold(false, |bad, &b| bad | (b.wrapping_sub(0x21) > 0x7e - 0x21))
}

/// `s` without the optional whitespace (SP and HTAB) around it.
#[inline]
pub(crate) fn trim_ows(mut s: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = s {
        s = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = s {
        s = rest;
    }
    s
}

/// The non-empty members of a comma-separated list.
pub(crate) fn list_members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(trim_ows).filter(|member| !member.is_empty())
}

/// Token bytes as text; token bytes are ASCII.
pub(crate) fn ascii(s: &[u8]) -> &str {
    std::str::from_utf8(s).unwrap_or("")
}

pub(crate) fn push_decimal(out: &mut Vec<u8>, mut n: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_match_the_standard_library() {
        for n in [0, 9, 10, 1234567890, u64::MAX] {
            let mut out = Vec::new();
            push_decimal(&mut out, n);
            assert_eq!(out, n.to_string().into_bytes());
        }
    }

    #[test]
    fn control_bytes_are_found_at_every_position() {
        for len in 0..20 {
            for at in 0..len {
                for byte in 0..=255u8 {
                    let mut s = vec![b'~'; len];
                    s[at] = byte;
                    assert_eq!(has_control(&s), any_control(&s), "{byte} at {at} of {len}");
                    s[len - 1] = b'\t';
                    assert_eq!(has_control(&s), any_control(&s), "{byte} at {at} of {len}, then a tab");
                }
            }
        }
    }

    #[test]
    fn classes_agree_with_the_grammar() {
        assert!(is_token(b"x-y!#$%&'*+-.^_`|~09AZ"));
        for b in b"\"(),/:;<=>?@[\\]{} \t\r\n\0\x7f\x80" {
            assert!(!is_token_byte(*b));
        }
        assert!(!has_control(b"a\tb \xff") && has_control(b"a\x7f") && has_control(b"\0"));
        assert!(
            !has_non_vchar(b"!~") && has_non_vchar(b" ") && has_non_vchar(b"\x7f") && has_non_vchar(b"\x80")
        );
    }
}
