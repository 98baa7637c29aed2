//! Canonical spelling of paths: the rules match the same bytes that the server receives.

use crate::bytes::{hex, is_unreserved};
use crate::limits::Refusal;

/// Appends the canonical form of `path` to `out` and returns whether it differs from `path`.
///
/// Percent-encoded unreserved characters are decoded, the remaining percent-encodings get upper-case digits, and
/// dot segments are resolved (RFC 3986 section 6.2.2); `..` at the root stays at the root. Encoded slashes and
/// backslashes stay encoded: they are data within a segment. Empty segments are kept. `*` is its own canonical form.
///
/// Refused: incomplete or non-hexadecimal encodings, `%00`, and raw backslashes, which some servers read as slashes.
/// After a refusal `out` is unchanged.
pub fn canonical_path(path: &[u8], out: &mut Vec<u8>) -> Result<bool, Refusal> {
    let start = out.len();
    if memchr::memchr2(b'%', b'\\', path).is_none() && memchr::memmem::find(path, b"/.").is_none() {
        out.extend_from_slice(path);
        return Ok(false);
    }
    if let Err(refusal) = decode(path, out) {
        out.truncate(start);
        return Err(refusal);
    }
    resolve_dots(out, start);
    Ok(out[start..] != *path)
}

fn decode(path: &[u8], out: &mut Vec<u8>) -> Result<(), Refusal> {
    let mut rest = path;
    while let [byte, after @ ..] = rest {
        rest = after;
        match byte {
            b'%' => {
                let [high, low, after @ ..] = rest else {
                    return Err(Refusal::bad("path_percent_invalid"));
                };
                let (Some(h), Some(l)) = (hex(*high), hex(*low)) else {
                    return Err(Refusal::bad("path_percent_invalid"));
                };
                rest = after;
                let decoded = h << 4 | l;
                if decoded == 0 {
                    return Err(Refusal::bad("path_nul"));
                }
                if is_unreserved(decoded) {
                    out.push(decoded);
                } else {
                    out.extend_from_slice(&[b'%', high.to_ascii_uppercase(), low.to_ascii_uppercase()]);
                }
            }
            b'\\' => return Err(Refusal::bad("path_backslash")),
            byte => out.push(*byte),
        }
    }
    Ok(())
}

/// RFC 3986 section 5.2.4, in place: every segment is moved down over the dropped ones.
fn resolve_dots(out: &mut Vec<u8>, start: usize) {
    if out.get(start) != Some(&b'/') {
        return;
    }
    let (mut read, mut write, end) = (start, start, out.len());
    // Invariant: `out[read]` is a slash; `out[start..write]` is canonical and empty or starts with a slash.
    while read < end {
        let next = memchr::memchr(b'/', &out[read + 1..end]).map_or(end, |slash| read + 1 + slash);
        let last = next == end;
        match &out[read + 1..next] {
            b"." | b".." => {
                if out[read + 1..next].len() == 2 {
                    write = memchr::memrchr(b'/', &out[start..write]).map_or(start, |slash| start + slash);
                }
                if last {
                    out[write] = b'/';
                    write += 1;
                }
            }
            _ => {
                out.copy_within(read..next, write);
                write += next - read;
            }
        }
        read = next;
    }
    out.truncate(write);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(path: &str) -> Result<String, &'static str> {
        let mut out = b"x".to_vec();
        match canonical_path(path.as_bytes(), &mut out) {
            Ok(changed) => {
                let text = String::from_utf8(out[1..].to_vec()).unwrap();
                assert_eq!(changed, text != path, "{path}");
                // A canonical form is a fixed point.
                let mut second = Vec::new();
                assert_eq!(canonical_path(text.as_bytes(), &mut second), Ok(false));
                Ok(text)
            }
            Err(refusal) => {
                assert_eq!(out, b"x");
                assert_eq!(refusal.status, 400);
                Err(refusal.reason)
            }
        }
    }

    #[test]
    fn paths_have_one_spelling() {
        for (sent, expected) in [
            ("/", "/"),
            ("*", "*"),
            ("/a/b", "/a/b"),
            ("/a//b/", "/a//b/"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/b/..", "/a/"),
            ("/a/b/.", "/a/b/"),
            ("/..", "/"),
            ("/.", "/"),
            ("/../../a", "/a"),
            ("/a/../../../b/", "/b/"),
            ("/a//../b", "/a/b"),
            ("/a/b/c/./../../g", "/a/g"),
            ("/mid/content=5/../6", "/mid/6"),
            ("/%2e%2E/a", "/a"),
            ("/a/%2e%2e%2fb", "/a/..%2Fb"),
            ("/%7Euser", "/~user"),
            ("/%41%5a%30", "/AZ0"),
            ("/a%2fb%5c", "/a%2Fb%5C"),
            ("/%e2%82%ac", "/%E2%82%AC"),
            ("/%252e%252e/", "/%252e%252e/"),
            ("/...", "/..."),
            ("/.hidden/..a", "/.hidden/..a"),
            ("/a..", "/a.."),
            ("/%20", "/%20"),
        ] {
            assert_eq!(canonical(sent).as_deref(), Ok(expected), "{sent}");
        }
    }

    #[test]
    fn broken_encodings_are_refused() {
        for sent in ["/%", "/%1", "/%zz", "/a%2", "/%+1", "/%%41"] {
            assert_eq!(canonical(sent), Err("path_percent_invalid"), "{sent}");
        }
        assert_eq!(canonical("/%00"), Err("path_nul"));
        assert_eq!(canonical("/a\\..\\b"), Err("path_backslash"));
    }
}
