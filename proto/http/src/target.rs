//! The four forms of a request target (RFC 9112 section 3.2), of which a reverse proxy accepts three.

use crate::authority::{self, Authority};
use crate::bytes::has_non_vchar;
use crate::limits::Refusal;
use memchr::memchr;

/// A checked request target.
pub(crate) struct Target<'a> {
    /// Starts with `/`, or is `*`.
    pub(crate) path: &'a [u8],
    pub(crate) query: Option<&'a [u8]>,
    /// Authority as sent, its parts, and the default port of its scheme; absolute-form only.
    pub(crate) authority: Option<(&'a [u8], Authority<'a>, u16)>,
}

pub(crate) fn parse<'a>(method: &[u8], target: &'a [u8]) -> Result<Target<'a>, Refusal> {
    if has_non_vchar(target) {
        return Err(Refusal::bad("target_bytes"));
    }
    if memchr(b'#', target).is_some() {
        return Err(Refusal::bad("target_fragment"));
    }
    match target {
        [b'/', ..] => {
            let (path, query) = split_query(target);
            Ok(Target { path, query, authority: None })
        }
        b"*" if method == b"OPTIONS" => Ok(Target { path: target, query: None, authority: None }),
        _ => absolute(method, target),
    }
}

fn absolute<'a>(method: &[u8], target: &'a [u8]) -> Result<Target<'a>, Refusal> {
    let (port_default, rest) = if has_prefix(target, b"http://") {
        (80, &target[7..])
    } else if has_prefix(target, b"https://") {
        (443, &target[8..])
    } else if memchr::memmem::find(target, b"://").is_some() {
        return Err(Refusal::bad("target_scheme"));
    } else {
        return Err(Refusal::bad("target_form"));
    };
    let end = memchr::memchr2(b'/', b'?', rest).unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    let parts = authority::parse(name)?;
    let (path, query) = split_query(rest);
    let path: &[u8] = match path {
        // RFC 9112 section 3.2.4: OPTIONS without path and query is forwarded as "*".
        [] if method == b"OPTIONS" && query.is_none() => b"*",
        [] => b"/",
        _ => path,
    };
    Ok(Target { path, query, authority: Some((name, parts, port_default)) })
}

fn has_prefix(target: &[u8], prefix: &[u8]) -> bool {
    target.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

fn split_query(s: &[u8]) -> (&[u8], Option<&[u8]>) {
    match memchr(b'?', s) {
        Some(mark) => (&s[..mark], Some(&s[mark + 1..])),
        None => (s, None),
    }
}
