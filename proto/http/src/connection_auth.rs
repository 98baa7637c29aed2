//! Authentication of a connection: NTLM and Negotiate (RFC 4559, MS-NTHT) identify the client once, and the server
//! attributes every later request on the same connection to that client.

use crate::bytes::{is_token_byte, trim_ows};

/// Effect of a head, or of one field, on authentication that belongs to a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectionAuth {
    /// No effect.
    #[default]
    None,
    /// Credentials, an offer of such a scheme, or an authenticated connection: the connection must serve no other
    /// client.
    Binds,
    /// A challenge with a token: its answer is only valid on the same connection.
    Continues,
}

/// Kind of field that a value belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// `Authorization`, `Proxy-Authorization`.
    Credentials,
    /// `WWW-Authenticate`, `Proxy-Authenticate`.
    Challenges,
    /// `Persistent-Auth`.
    Persistent,
}

/// Effect of the value of one field line. Scheme names are case-insensitive (RFC 9110 section 11.1); quoted text names
/// no scheme.
pub fn connection_auth(field: Field, value: &[u8]) -> ConnectionAuth {
    if field == Field::Persistent {
        return match trim_ows(value).eq_ignore_ascii_case(b"true") {
            true => ConnectionAuth::Binds,
            false => ConnectionAuth::None,
        };
    }
    let most = members(value).map(of_member).max().unwrap_or_default();
    match field {
        Field::Challenges => most,
        _ => most.min(ConnectionAuth::Binds),
    }
}

/// Effect of one member of a list of challenges: a scheme alone, a scheme with a token or its first parameter, or a
/// further parameter.
fn of_member(member: &[u8]) -> ConnectionAuth {
    let length = member.iter().position(|&b| !is_token_byte(b)).unwrap_or(member.len());
    let (scheme, rest) = member.split_at(length);
    let binds = scheme.eq_ignore_ascii_case(b"ntlm") || scheme.eq_ignore_ascii_case(b"negotiate");
    let token = trim_ows(rest);
    match rest.first() {
        _ if !binds => ConnectionAuth::None,
        None => ConnectionAuth::Binds,
        Some(b' ' | b'\t') if token.first() == Some(&b'=') => ConnectionAuth::None, // a parameter of that name
        Some(b' ' | b'\t') if is_token68(token) => ConnectionAuth::Continues,
        Some(b' ' | b'\t') => ConnectionAuth::Binds,
        Some(_) => ConnectionAuth::None,
    }
}

/// Whether `text` is a `token68` (RFC 9110 section 11.2).
fn is_token68(text: &[u8]) -> bool {
    let end = text.iter().rposition(|&b| b != b'=').map_or(0, |last| last + 1);
    let is_part = |&b: &u8| b.is_ascii_alphanumeric() || b"-._~+/".contains(&b);
    end > 0 && text[..end].iter().all(is_part)
}

/// The members of a comma-separated list, without whitespace around them. A comma in a quoted string does not separate.
fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    value
        .split(move |&b| {
            let literal = std::mem::take(&mut escaped);
            match b {
                _ if literal => {}
                b'\\' => escaped = quoted,
                b'"' => quoted = !quoted,
                _ => {}
            }
            b == b',' && !quoted
        })
        .map(trim_ows)
}

#[cfg(test)]
mod tests {
    use super::ConnectionAuth::{Binds, Continues, None};
    use super::*;
    use crate::{HeaderSlots, Limits, Parsed, parse_request, parse_response};

    #[test]
    fn field_binds_by_its_scheme_alone() {
        use Field::{Challenges, Credentials, Persistent};
        let cases: &[(Field, &str, ConnectionAuth)] = &[
            (Credentials, "NTLM TlRMTVNTUAABAAAA", Binds),
            (Credentials, "ntlm TlRMTVNTUAADAAAA==", Binds),
            (Credentials, "nEGOTIATE YIIJ", Binds),
            (Credentials, "Negotiate", Binds),
            (Credentials, "Basic TlRMTTpOZWdvdGlhdGU=", None),
            (Credentials, "Bearer Negotiate", None),
            (Credentials, "NTLMv2 x", None),
            (Credentials, "Digest username=\"a, NTLM b\", realm=\"NTLM\"", None),
            (Credentials, "Digest username=\"a\\\", NTLM b\"", None),
            (Credentials, "", None),
            (Challenges, "NTLM", Binds),
            (Challenges, "Negotiate", Binds),
            (Challenges, "NTLM TlRMTVNTUAACAAAA", Continues),
            (Challenges, "negotiate oYG2MIGzoAMKAQGh==", Continues),
            (Challenges, "Basic realm=\"x\", NTLM", Binds),
            (Challenges, "Basic realm=\"x\",Negotiate oYG2, NTLM", Continues),
            (Challenges, "Negotiate, Basic realm=\"NTLM\"", Binds),
            (Challenges, "Basic realm=\"NTLM, Negotiate\"", None),
            (Challenges, "Basic realm=\"a\\\", NTLM, \\\"b\"", None),
            (Challenges, "Basic realm=\"a\\\\\", NTLM", Binds),
            (Challenges, "Basic realm=NTLM", None),
            (Challenges, "Digest ntlm=\"x\", nonce=\"y\"", None),
            (Challenges, "Digest nonce=\"y\", negotiate = x", None),
            (Challenges, "NTLM realm=\"x\"", Binds),
            (Challenges, ", ,\tNTLM\t,", Binds),
            (Challenges, "XNTLM", None),
            (Persistent, "true", Binds),
            (Persistent, " TRUE ", Binds),
            (Persistent, "false", None),
        ];
        for (field, value, expected) in cases {
            assert_eq!(connection_auth(*field, value.as_bytes()), *expected, "{field:?}: {value}");
        }
    }

    #[test]
    fn head_binds_by_any_of_its_fields() {
        let limits = Limits::default();
        let request = |fields: &str| {
            let head = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
            let mut slots = HeaderSlots::new();
            match parse_request(head.as_bytes(), &limits, &mut slots) {
                Ok(Parsed::Complete(head)) => head.connection_auth(),
                other => panic!("{fields}: {other:?}"),
            }
        };
        assert_eq!(request("Authorization: Basic eA==\r\n"), None);
        assert_eq!(request("AUTHORIZATION: Basic eA==\r\nauthorization: ntlm x\r\n"), Binds);
        assert_eq!(request("Proxy-Authorization: Negotiate x\r\n"), Binds);
        assert_eq!(request("WWW-Authenticate: NTLM x\r\nPersistent-Auth: true\r\n"), None, "of a request");
        let response = |status: u16, fields: &str| {
            let head = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n{fields}\r\n");
            let mut slots = HeaderSlots::new();
            match parse_response(head.as_bytes(), &limits, &mut slots, false) {
                Ok(Parsed::Complete(head)) => head.connection_auth(),
                other => panic!("{fields}: {other:?}"),
            }
        };
        assert_eq!(response(401, "WWW-Authenticate: Basic realm=x\r\n"), None);
        assert_eq!(response(401, "WWW-Authenticate: Basic realm=x\r\nWWW-Authenticate: NTLM\r\n"), Binds);
        assert_eq!(response(401, "www-authenticate: Negotiate\r\nwww-authenticate: NTLM x\r\n"), Continues);
        assert_eq!(response(407, "Proxy-Authenticate: NTLM x\r\n"), Continues);
        assert_eq!(response(200, "WWW-Authenticate: Negotiate x\r\n"), Binds, "its last message");
        assert_eq!(response(200, "Persistent-Auth: true\r\n"), Binds);
        assert_eq!(response(200, "Authorization: NTLM x\r\nPersistent-Auth: false\r\n"), None);
    }
}
