//! Aliases of host names that clients request and `rustls` refuses: labels with a hyphen at an edge, such as
//! `-a.example`, and bytes that no host name has, such as those of `[a.example]`.
//!
//! RFC 1123 has no such host names, but DNS wildcards answer for the former. `rustls` parses a hello in which an
//! underscore replaces each of these bytes. Transcripts have the client's own bytes: the provider's hashes restore the
//! name ([`Alias::restore`]), so that both ends compute the same. Certificates are chosen by the client's own name.

use std::net::IpAddr;

use evergate_base::seed::Alias;

use crate::hello_info::{hello_message, name_range};

/// Puts an alias into a whole ClientHello, given as raw records. Returns `None`, without a change, when it needs none.
pub(crate) fn show_alias(raw: &mut [u8]) -> Option<Alias> {
    let message = hello_message(raw)?.into_owned();
    let range = name_range(&message)?;
    let real = message.get(range.clone())?.to_vec();
    if std::str::from_utf8(&real).is_ok_and(|name| name.parse::<IpAddr>().is_ok()) {
        return None; // `rustls` does not treat an address as a name
    }
    let mut shown = real.clone();
    for label in shown.split_mut(|&byte| byte == b'.') {
        let inner = label.iter().position(|&byte| byte != b'-').unwrap_or(label.len());
        let end = label.iter().rposition(|&byte| byte != b'-').map_or(label.len(), |last| last + 1);
        label.iter_mut().take(inner).for_each(|byte| *byte = b'_');
        label.iter_mut().skip(end).for_each(|byte| *byte = b'_');
        let odd = label.iter_mut().filter(|byte| !byte.is_ascii_alphanumeric() && **byte != b'-');
        odd.for_each(|byte| *byte = b'_');
    }
    if shown == real {
        return None;
    }
    write(raw, range.start, &shown);
    Some(Alias { offset: range.start, real, shown })
}

/// Writes at an offset of the message in the records.
fn write(mut records: &mut [u8], offset: usize, bytes: &[u8]) {
    let mut before = 0; // message bytes in the records so far
    while let Some((header, rest)) = records.split_first_chunk_mut::<5>() {
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let Some((body, next)) = rest.split_at_mut_checked(len) else { return };
        for (index, byte) in body.iter_mut().enumerate() {
            if let Some(new) = (before + index).checked_sub(offset).and_then(|at| bytes.get(at)) {
                *byte = *new;
            }
        }
        before += len;
        records = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hello_info::read_hello;

    /// A ClientHello with this name, in records of `fragment` bytes.
    fn hello(name: &[u8], fragment: usize) -> Vec<u8> {
        let len = name.len() as u8;
        let names = [&[0, 0, 0, len + 5, 0, len + 3, 0, 0, len], name].concat();
        let head = [&[3, 3][..], &[9; 32], &[0, 0, 2, 0x13, 1, 1, 0, 0, names.len() as u8]].concat();
        let body = [&head[..], &names].concat();
        let message = [&[1, 0, 0, body.len() as u8], &body[..]].concat();
        let record = |part: &[u8]| [&[22, 3, 1, 0, part.len() as u8], part].concat();
        message.chunks(fragment).flat_map(record).collect()
    }

    #[test]
    fn alias_replaces_only_bytes_that_rustls_refuses() {
        for (name, shown) in [
            (&b"-a.w.test"[..], &b"_a.w.test"[..]),
            (b"a-.w.test", b"a_.w.test"),
            (b"--a--b--.w-.test", b"__a--b__.w_.test"),
            (b"-.test", b"_.test"),
            (b"A.-.", b"A._."),
            (b"[a.w.test]", b"_a.w.test_"),
            (b"a.w.test:443", b"a.w.test_443"),
            (b"\xc3\xa4.test", b"__.test"),
        ] {
            for fragment in [1, 7, 200] {
                let own = hello(name, fragment);
                let mut raw = own.clone();
                let alias = show_alias(&mut raw).unwrap();
                assert_eq!((&alias.real[..], &alias.shown[..]), (name, shown));
                assert_eq!(raw, hello(shown, fragment));
                let message = hello_message(&raw).unwrap();
                for end in [message.len(), alias.offset + name.len()] {
                    let restored = alias.restore(&message[..end]).unwrap().concat();
                    assert_eq!(restored, hello_message(&own).unwrap()[..end]);
                }
                assert_eq!(alias.restore(&message[1..]), None);
                assert_eq!(alias.restore(&message[..alias.offset]), None);
            }
        }
    }

    #[test]
    fn name_without_edge_hyphens_needs_no_alias() {
        for name in [
            &b"a.w.test"[..],
            b"a-b.test",
            b"a--b.test",
            b"_a.test",
            b"..",
            b"",
            b"192.0.2.1",
            b"2001:db8::1",
        ] {
            let mut raw = hello(name, 50);
            assert_eq!((show_alias(&mut raw), &raw), (None, &hello(name, 50)));
        }
        let facts = read_hello(&hello(b"-a.w.test", 9)).unwrap();
        assert_eq!(facts.sni.as_deref(), Some("-a.w.test"), "rules and logs have the client's own name");
    }

    #[test]
    fn alias_never_panics() {
        let whole = hello(b"-a.-b-.test", 30);
        for at in 0..whole.len() {
            assert_eq!(show_alias(&mut whole[..at].to_vec()), None);
            for value in [0, 1, 0x2d, 0x2e, 0x7f, 0x80, 0xff] {
                let mut raw = whole.clone();
                raw[at] = value;
                let before = raw.clone();
                let alias = show_alias(&mut raw);
                assert_eq!((raw.len(), alias.is_some()), (before.len(), raw != before));
            }
        }
    }
}
