//! Redaction of credentials in messages.
//!
//! Left out: values of Authorization, Proxy-Authorization, Cookie and Set-Cookie (names of cookies stay), and passwords
//! in forms, JSON bodies and queries of targets. A field is a password by its name. What an application puts elsewhere
//! is not recognised, and compressed bodies are not searched: a disclosure has to be read before it is passed on.

use evergate_player::http::{Head, Message};

const MARK: &[u8] = b"[redacted]";
/// Parts of names of fields with credentials, in lower case.
const NAMES: [&str; 8] = ["passw", "pwd", "passphrase", "secret", "token", "credential", "pin", "otp"];

/// Rule of what is left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Redaction {
    /// Whether anything is left out.
    pub(crate) is_on: bool,
}

impl Redaction {
    /// Leaves credentials out of a message; whether it had any.
    pub(crate) fn apply(self, message: &mut Message) -> bool {
        if !self.is_on {
            return false;
        }
        let mut has_any = false;
        for (name, value) in &mut message.headers {
            let redacted = match name.to_ascii_lowercase().as_str() {
                "authorization" | "proxy-authorization" => scheme(value),
                "cookie" => cookies(value),
                "set-cookie" => first_cookie(value),
                "referer" | "location" => query(value),
                "x-api-key" => MARK.to_vec(),
                other if is_secret(other.as_bytes()) => MARK.to_vec(),
                _ => continue,
            };
            has_any |= redacted != *value;
            *value = redacted;
        }
        if let Head::Request { target, .. } = &mut message.head {
            let redacted = query(target);
            has_any |= redacted != *target;
            *target = redacted;
        }
        let kind = message.header("content-type").next().unwrap_or_default().to_ascii_lowercase();
        let body = match () {
            () if kind.starts_with(b"application/x-www-form-urlencoded") => form(&message.body),
            () if kind.starts_with(b"multipart/form-data") => parts(&message.body),
            () if kind.starts_with(b"application/json") => json(&message.body),
            () => None,
        };
        if let Some(body) = body {
            has_any = true;
            message.body = body;
            message.body_sha256 = [0; 32]; // short passwords could be found by trial
        }
        has_any
    }
}

fn is_secret(name: &[u8]) -> bool {
    let name = String::from_utf8_lossy(name).to_ascii_lowercase();
    NAMES.iter().any(|word| match word.len() {
        3 => name.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part == *word),
        _ => name.contains(word),
    })
}

/// `Basic [redacted]`.
fn scheme(value: &[u8]) -> Vec<u8> {
    match value.iter().position(|&byte| byte == b' ') {
        Some(space) => [&value[..=space], MARK].concat(),
        None => MARK.to_vec(),
    }
}

/// `name=[redacted]; other=[redacted]`.
fn cookies(value: &[u8]) -> Vec<u8> {
    let pairs = value.split(|&byte| byte == b';').map(without_value);
    pairs.collect::<Vec<_>>().join(&b';')
}

/// `name=[redacted]; Path=/`: attributes stay.
fn first_cookie(value: &[u8]) -> Vec<u8> {
    let end = value.iter().position(|&byte| byte == b';').unwrap_or(value.len());
    [&without_value(&value[..end])[..], &value[end..]].concat()
}

fn without_value(pair: &[u8]) -> Vec<u8> {
    match pair.iter().position(|&byte| byte == b'=') {
        Some(equals) => [&pair[..=equals], MARK].concat(),
        None => MARK.to_vec(),
    }
}

/// The target with passwords of its query left out.
fn query(target: &[u8]) -> Vec<u8> {
    let Some(mark) = target.iter().position(|&byte| byte == b'?') else { return target.to_vec() };
    match form(&target[mark + 1..]) {
        Some(query) => [&target[..=mark], &query].concat(),
        None => target.to_vec(),
    }
}

/// `user=a&password=[redacted]`; `None` if no field is a password.
fn form(body: &[u8]) -> Option<Vec<u8>> {
    let mut has_any = false;
    let fields = body.split(|&byte| byte == b'&').map(|field| {
        let end = field.iter().position(|&byte| byte == b'=').unwrap_or(field.len());
        let name = percent_decoded(&field[..end]);
        if end == field.len() || !is_secret(&name) {
            return field.to_vec();
        }
        has_any = true;
        without_value(field)
    });
    let fields = fields.collect::<Vec<_>>().join(&b'&');
    has_any.then_some(fields)
}

fn percent_decoded(name: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (Vec::with_capacity(name.len()), 0);
    while let Some(&byte) = name.get(at) {
        let digits = name.get(at + 1..at + 3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| byte == b'%') {
            Some(decoded) => {
                out.push(decoded);
                at += 3;
            }
            None => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

/// A multipart form with the content of password fields left out.
fn parts(body: &[u8]) -> Option<Vec<u8>> {
    let line_end = body.windows(2).position(|pair| pair == b"\r\n")?;
    let delimiter = body.get(..line_end).filter(|line| line.starts_with(b"--") && line.len() > 2)?;
    let (mut out, mut rest, mut has_any) = (Vec::with_capacity(body.len()), body, false);
    while let Some(begin) = find(rest, delimiter) {
        let after = begin + delimiter.len();
        out.extend_from_slice(&rest[..after]);
        rest = &rest[after..];
        let Some(head) = find(rest, b"\r\n\r\n") else { break };
        let end = find(rest, delimiter).unwrap_or(rest.len());
        if head + 4 > end || !has_secret_name(&rest[..head]) {
            continue;
        }
        has_any = true;
        out.extend_from_slice(&rest[..head + 4]);
        out.extend_from_slice(MARK);
        out.extend_from_slice(b"\r\n");
        rest = &rest[end..];
    }
    out.extend_from_slice(rest);
    has_any.then_some(out)
}

fn has_secret_name(head: &[u8]) -> bool {
    let Some(name) = find(head, b"name=\"").map(|at| &head[at + 6..]) else { return false };
    is_secret(&name[..name.iter().position(|&byte| byte == b'"').unwrap_or(name.len())])
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// A JSON body with the strings and numbers of password fields left out. It is scanned and not parsed: a body may be
/// cut, or have holes.
fn json(body: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut at, mut has_any) = (Vec::with_capacity(body.len()), 0, false);
    while let Some(begin) = body[at..].iter().position(|&byte| byte == b'"').map(|begin| at + begin) {
        let end = string_end(body, begin);
        out.extend_from_slice(&body[at..end]);
        at = end;
        let value = value_of_field(body, end).filter(|_| is_secret(&unescaped(&body[begin..end])));
        let Some(value) = value else { continue };
        let value_end = match body.get(value) {
            Some(b'"') => string_end(body, value),
            Some(b'-' | b'0'..=b'9') => {
                let is_number = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
                value + body[value..].iter().take_while(is_number).count()
            }
            _ => continue,
        };
        has_any = true;
        out.extend_from_slice(&body[end..value]);
        out.extend_from_slice(b"\"[redacted]\"");
        at = value_end;
    }
    out.extend_from_slice(&body[at..]);
    has_any.then_some(out)
}

/// Place behind the string that begins at `begin`; the end of the body if it is cut.
fn string_end(body: &[u8], begin: usize) -> usize {
    let mut at = begin + 1;
    while let Some(&byte) = body.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    body.len()
}

/// Place of the value of a field whose name ends at `end`.
fn value_of_field(body: &[u8], end: usize) -> Option<usize> {
    let skip = |from: usize| from + body[from..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let colon = skip(end);
    (body.get(colon) == Some(&b':')).then(|| skip(colon + 1))
}

/// Content of a string with its quotes.
fn unescaped(string: &[u8]) -> Vec<u8> {
    serde_json::from_slice::<String>(string).map_or_else(|_| string.to_vec(), String::into_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_player::Side;

    fn request(headers: &[(&str, &str)], body: &str) -> Message {
        Message {
            exchange: 0,
            side: Side::Client,
            first_ns: 0,
            last_ns: 0,
            head: Head::Request {
                method: "POST".into(),
                target: b"/a?x=1&token=abc".to_vec(),
                host: b"h".to_vec(),
            },
            minor: 1,
            headers: headers
                .iter()
                .map(|(name, value)| ((*name).into(), value.as_bytes().to_vec()))
                .collect(),
            head_bytes: 0,
            body: body.as_bytes().to_vec(),
            body_bytes: 0,
            body_sha256: [7; 32],
            holes: Vec::new(),
            is_complete: true,
        }
    }

    #[test]
    fn credentials_are_left_out() {
        let headers = [
            ("Authorization", "Basic c2VjcmV0"),
            ("cookie", "a=s1; b=s2"),
            ("Set-Cookie", "id=s3; Path=/; HttpOnly"),
            ("Content-Type", "application/x-www-form-urlencoded"),
        ];
        let mut message = request(&headers, "user=ann&pass%77ord=s4&shipping=x");
        assert!(Redaction { is_on: true }.apply(&mut message));
        let values: Vec<_> =
            message.headers.iter().map(|(_, value)| String::from_utf8_lossy(value)).collect();
        assert_eq!(values[0], "Basic [redacted]");
        assert_eq!(values[1], "a=[redacted]; b=[redacted]");
        assert_eq!(values[2], "id=[redacted]; Path=/; HttpOnly");
        assert_eq!(message.body, b"user=ann&pass%77ord=[redacted]&shipping=x");
        let Head::Request { target, .. } = &message.head else { panic!("a request") };
        assert_eq!(target, b"/a?x=1&token=[redacted]");
    }

    #[test]
    fn passwords_in_other_forms_are_left_out() {
        let multipart = "--b\r\nContent-Disposition: form-data; name=\"password\"\r\n\r\ns1\r\n--b\r\n\
            Content-Disposition: form-data; name=\"note\"\r\n\r\nkept\r\n--b--\r\n";
        let mut message = request(&[("Content-Type", "multipart/form-data; boundary=b")], multipart);
        assert!(Redaction { is_on: true }.apply(&mut message));
        assert_eq!(message.body, multipart.replace("s1", "[redacted]").as_bytes());
        let mut message =
            request(&[("Content-Type", "application/json")], r#"{"a":[{"Password":"s1"}],"b":"kept"}"#);
        assert!(Redaction { is_on: true }.apply(&mut message));
        assert_eq!(message.body, br#"{"a":[{"Password":"[redacted]"}],"b":"kept"}"#);
        let kind = [("Content-Type", "application/json; charset=utf-8"), ("X-Auth-Token", "s2")];
        for (body, redacted) in [
            (r#"{"pin" : 1234, "n":5}"#, r#"{"pin" : "[redacted]", "n":5}"#),
            (r#"{"p\u0061ssword":"a\"b","n":5}"#, r#"{"p\u0061ssword":"[redacted]","n":5}"#),
            (r#"{"password":"cut off her"#, r#"{"password":"[redacted]""#),
        ] {
            let mut message = request(&kind, body);
            assert!(Redaction { is_on: true }.apply(&mut message));
            assert_eq!(String::from_utf8_lossy(&message.body), redacted);
            assert_eq!((&message.headers[1].1[..], message.body_sha256), (MARK, [0; 32]));
        }
    }

    #[test]
    fn nothing_is_left_out_with_credentials() {
        let mut message = request(&[("Cookie", "a=b")], "password=x");
        let before = message.clone();
        assert!(!Redaction { is_on: false }.apply(&mut message));
        assert_eq!(message, before);
    }

    proptest::proptest! {
        #[test]
        fn any_body_never_panics(body: Vec<u8>, kind in 0usize..3) {
            let kinds = ["application/x-www-form-urlencoded", "multipart/form-data", "application/json"];
            let mut message = request(&[("Content-Type", kinds[kind])], "");
            message.body = [&b"--b\r\n"[..], &body].concat();
            Redaction { is_on: true }.apply(&mut message);
        }
    }
}
