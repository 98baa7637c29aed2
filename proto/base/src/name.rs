//! Names of header fields in the interpretation of servers.
//!
//! Some servers put header fields into an environment whose names have only letters, digits and `_` (RFC 3875 section
//! 4.1.18). Some of them write `_` for `-` alone, others for every byte that is neither letter nor digit. For the
//! latter, `X.Role` is `X-Role`.

/// A byte of a name as all of these servers could read it: in lower case, `-` for a byte that is neither letter nor
/// digit.
#[inline]
pub const fn folded(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'-' }
}

/// Whether a server may mistake one name for the other.
pub fn is_same(name: &[u8], other: &[u8]) -> bool {
    name.len() == other.len() && name.iter().zip(other).all(|(a, b)| folded(*a) == folded(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_in_any_case_and_with_any_byte_for_a_dash() {
        for other in b"!#$%&'*+-.^_`|~".map(|byte| [b'X', byte, b'a']) {
            assert!(is_same(&other, b"x-A"), "{}", other.escape_ascii());
        }
        for other in ["X0a", "XXa", "X-a-", "X-", "X--a"] {
            assert!(!is_same(other.as_bytes(), b"x-a"), "{other}");
        }
    }
}
