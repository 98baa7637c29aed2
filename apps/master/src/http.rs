//! Small HTTP/1.1 client for witnesses and time-stamp authorities: one POST a connection, bounded in time and size.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Most bytes of an answer, head included.
pub const ANSWER_BYTES_MAX: usize = 128 << 10;

/// Address of a server: `http://HOST[:PORT][/PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    host: String,
    port: u16,
    path: String,
}

/// Answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Body.
    pub body: Vec<u8>,
}

impl Url {
    /// Address from its text.
    pub fn parse(text: &str) -> Option<Url> {
        let rest = text.strip_prefix("http://")?;
        if rest.bytes().any(|byte| byte <= b' ' || byte >= 0x7f) || rest.contains(['#', '@']) {
            return None;
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && !port.contains(']') => (host, port.parse().ok()?),
            _ => (authority, 80),
        };
        let is_host = !host.is_empty() && (host.starts_with('[') || !host.contains(':'));
        is_host.then(|| Url { host: host.into(), port, path: path.trim_end_matches('/').into() })
    }

    /// Address of a resource below this one.
    pub fn join(&self, name: &str) -> Url {
        Url { path: format!("{}/{name}", self.path), ..self.clone() }
    }

    /// Sends a body and receives the answer, all within the limit.
    pub fn post(&self, kind: &str, body: &[u8], limit: Duration) -> Result<Answer, String> {
        self.exchange(kind, body, Instant::now() + limit).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                format!("no answer within {} s", limit.as_secs_f32())
            }
            _ => error.to_string(),
        })
    }

    fn exchange(&self, kind: &str, body: &[u8], deadline: Instant) -> std::io::Result<Answer> {
        let left = || match deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(std::io::Error::from(std::io::ErrorKind::TimedOut)),
            left => Ok(left),
        };
        let host = self.host.trim_matches(['[', ']']);
        let address = (host, self.port).to_socket_addrs()?.next().ok_or(std::io::ErrorKind::NotFound)?;
        let mut socket = TcpStream::connect_timeout(&address, left()?)?;
        socket.set_write_timeout(Some(left()?))?;
        let path = if self.path.is_empty() { "/" } else { &self.path };
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            self.host,
            self.port,
            body.len()
        );
        socket.write_all(&[head.as_bytes(), body].concat())?;
        let mut bytes = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            if let Some(answer) = parse(&bytes, false).map_err(invalid)? {
                return Ok(answer);
            }
            if bytes.len() > ANSWER_BYTES_MAX {
                return Err(invalid("the answer is too long"));
            }
            socket.set_read_timeout(Some(left()?))?;
            match socket.read(&mut buffer)? {
                0 => {
                    return parse(&bytes, true).map_err(invalid)?.ok_or_else(|| invalid("the answer is cut"));
                }
                len => bytes.extend_from_slice(&buffer[..len]),
            }
        }
    }
}

fn invalid(what: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, what)
}

/// Whole answer of the bytes, `None` if more are needed.
fn parse(bytes: &[u8], is_end: bool) -> Result<Option<Answer>, &'static str> {
    let Some(head_len) = bytes.windows(4).position(|end| end == b"\r\n\r\n") else { return Ok(None) };
    let head = std::str::from_utf8(&bytes[..head_len]).map_err(|_| "the answer has no HTTP head")?;
    let body = &bytes[head_len + 4..];
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok());
    let status = status.ok_or("the answer has no HTTP status")?;
    let (mut length, mut is_chunked) = (None, false);
    for line in lines {
        let (name, value) = line.split_once(':').ok_or("the answer has a malformed field")?;
        match name.to_ascii_lowercase().as_str() {
            "content-length" => {
                length = Some(value.trim().parse::<usize>().map_err(|_| "its length is no number")?)
            }
            "transfer-encoding" => is_chunked = value.trim().eq_ignore_ascii_case("chunked"),
            _ => {}
        }
    }
    if is_chunked {
        return Ok(unchunk(body)?.map(|body| Answer { status, body }));
    }
    Ok(match length {
        Some(length) => body.get(..length).map(|body| Answer { status, body: body.to_vec() }),
        None => is_end.then(|| Answer { status, body: body.to_vec() }),
    })
}

fn unchunk(mut rest: &[u8]) -> Result<Option<Vec<u8>>, &'static str> {
    let mut body = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|end| end == b"\r\n") else { return Ok(None) };
        let line = std::str::from_utf8(&rest[..end]).map_err(|_| "the answer has a malformed chunk")?;
        let size = line.split(';').next().unwrap_or(line).trim();
        let size = usize::from_str_radix(size, 16).map_err(|_| "the answer has a malformed chunk")?;
        if size > ANSWER_BYTES_MAX {
            return Err("the answer is too long");
        }
        rest = &rest[end + 2..];
        if size == 0 {
            return Ok(Some(body));
        }
        let Some(chunk) = rest.get(..size + 2) else { return Ok(None) };
        body.extend_from_slice(chunk.strip_suffix(b"\r\n").ok_or("the answer has a malformed chunk")?);
        rest = &rest[size + 2..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_host_port_and_path() {
        let url = |host: &str, port, path: &str| Some(Url { host: host.into(), port, path: path.into() });
        assert_eq!(Url::parse("http://w.example"), url("w.example", 80, ""));
        assert_eq!(Url::parse("http://w:81/a/b/"), url("w", 81, "/a/b"));
        assert_eq!(Url::parse("http://[::1]:81/a"), url("[::1]", 81, "/a"));
        assert_eq!(Url::parse("http://[::1]"), url("[::1]", 80, ""));
        for wrong in [
            "",
            "https://w",
            "http://",
            "http://w:x",
            "http://a b",
            "http://w:70000",
            "http://u@w",
            "http://w#",
        ] {
            assert_eq!(Url::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn answers_end_by_length_chunk_or_close() {
        let answer = |status, body: &str| Ok(Some(Answer { status, body: body.as_bytes().to_vec() }));
        let length = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab";
        assert_eq!(parse(length, false), answer(200, "ab"));
        for cut in 0..length.len() {
            assert_eq!(parse(&length[..cut], false), Ok(None));
        }
        let chunked =
            b"HTTP/1.1 409 No\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;x=y\r\nbc\r\n0\r\n\r\n";
        assert_eq!(parse(chunked, false), answer(409, "abc"));
        let close = b"HTTP/1.0 200 OK\r\n\r\nab";
        assert_eq!((parse(close, false), parse(close, true)), (Ok(None), answer(200, "ab")));
        for wrong in [
            "FTP\r\n\r\n",
            "HTTP/1.1 x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nx\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffff\r\n",
        ] {
            assert!(parse(wrong.as_bytes(), true).is_err(), "{wrong}");
        }
    }
}
