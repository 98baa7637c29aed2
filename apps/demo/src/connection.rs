//! One connection of a demo server.

use super::cluster::Board;
use super::{cluster, websocket};
use evergate_http::{Body, HeaderSlots, Limits, Parsed, RequestHead, parse_request, reason_phrase};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Longest wait that a request can ask for.
const SLOW_MS_MAX: u64 = 600_000;

/// A request, detached from the buffer.
struct Asked {
    method: String,
    path: String,
    query: String,
    headers: BTreeMap<String, String>,
    upgrade: Option<String>,
    websocket_key: Option<String>,
    keep_alive: bool,
    expect_continue: bool,
    body: Body,
}

/// Serves requests one after the other until the client has had enough. `board`: the transfers of a show, if there is
/// one.
pub(super) fn serve(name: &str, mut stream: TcpStream, board: Option<&Board>) {
    // A client that goes away is no error.
    let _ = stream.set_nodelay(true);
    let _ = serve_all(name, &mut stream, board);
}

fn serve_all(name: &str, stream: &mut TcpStream, board: Option<&Board>) -> io::Result<()> {
    let limits = Limits::default();
    let mut slots = Box::new(HeaderSlots::new());
    let mut received = Vec::new();
    loop {
        let parsed = match parse_request(&received, &limits, &mut slots) {
            Ok(Parsed::Complete(head)) => Some((head.head_len, asked(&head))),
            Ok(Parsed::Partial) => None,
            Err(refusal) => return refuse(stream, name, refusal.status, refusal.reason),
        };
        let Some((head_len, mut asked)) = parsed else {
            if fill(stream, &mut received)? == 0 {
                return Ok(());
            }
            continue;
        };
        received.drain(..head_len);
        if let Some(protocol) = &asked.upgrade {
            return echo(stream, protocol, asked.websocket_key.as_deref(), &received);
        }
        if let Some((board, transfer)) = board.and_then(|board| Some((board, board.of_path(&asked.path)?))) {
            return match asked.method.as_str() {
                "POST" => cluster::take(stream, &received, board, transfer),
                _ => cluster::send(stream, board, transfer),
            };
        }
        let Some(body_bytes) = skip_body(stream, &mut received, &mut asked, &limits)? else {
            return refuse(stream, name, 400, "the body is malformed");
        };
        answer(stream, name, &asked, body_bytes)?;
        if !asked.keep_alive {
            return Ok(());
        }
    }
}

fn asked(head: &RequestHead<'_>) -> Asked {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let wanted = |name: &str| name.len() > 2 && name.as_bytes()[..2].eq_ignore_ascii_case(b"x-");
    let upgrade = head.header("upgrade").filter(|_| head.upgrade && head.path == b"/echo");
    Asked {
        method: head.method.to_owned(),
        path: text(head.path),
        query: text(head.query.unwrap_or(b"")),
        headers: head
            .headers
            .iter()
            .filter(|header| wanted(header.name) || header.name.eq_ignore_ascii_case("host"))
            .map(|header| (header.name.to_ascii_lowercase(), text(header.value)))
            .collect(),
        upgrade: upgrade.map(text),
        websocket_key: head.header("sec-websocket-key").map(text),
        keep_alive: head.keep_alive,
        expect_continue: head.expect_continue,
        body: head.body(),
    }
}

fn fill(stream: &mut TcpStream, received: &mut Vec<u8>) -> io::Result<usize> {
    let mut buffer = [0; 16_384];
    let length = stream.read(&mut buffer)?;
    received.extend_from_slice(&buffer[..length]);
    Ok(length)
}

/// Reads the body and forgets it; its length with its framing, or nothing if it is malformed.
fn skip_body(
    stream: &mut TcpStream,
    received: &mut Vec<u8>,
    asked: &mut Asked,
    limits: &Limits,
) -> io::Result<Option<u64>> {
    if asked.expect_continue && received.is_empty() && !asked.body.is_done() {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let mut total = 0;
    loop {
        match asked.body.advance(received, limits) {
            Ok(taken) => {
                total += taken as u64;
                received.drain(..taken);
            }
            Err(_) => return Ok(None),
        }
        if asked.body.is_done() {
            return Ok(Some(total));
        }
        if fill(stream, received)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The number of a query parameter.
fn number(asked: &Asked, name: &str) -> Option<u64> {
    let pairs = asked.query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(key, _)| *key == name).and_then(|(_, value)| value.parse().ok())
}

fn answer(stream: &mut TcpStream, name: &str, asked: &Asked, body_bytes: u64) -> io::Result<()> {
    let mut status = 200;
    match asked.path.as_str() {
        "/big" => return big(stream, name, asked, number(asked, "bytes").unwrap_or(1_000_000)),
        "/slow" => {
            std::thread::sleep(Duration::from_millis(number(asked, "ms").unwrap_or(1000).min(SLOW_MS_MAX)))
        }
        "/status" => {
            let code = number(asked, "code").and_then(|code| u16::try_from(code).ok());
            status = code.filter(|code| (200..600).contains(code)).unwrap_or(400);
        }
        _ => {}
    }
    let target =
        if asked.query.is_empty() { asked.path.clone() } else { format!("{}?{}", asked.path, asked.query) };
    let described = serde_json::json!({
        "server": name,
        "method": asked.method,
        "target": target,
        "headers": asked.headers,
        "body_bytes": body_bytes,
    });
    let mut text = described.to_string();
    text.push('\n');
    let mut head = head(name, status, asked.keep_alive);
    let has_body = !matches!(status, 204 | 304);
    if has_body {
        head += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", text.len());
    }
    head += "\r\n";
    if has_body && asked.method != "HEAD" {
        head += &text;
    }
    stream.write_all(head.as_bytes())
}

/// Answers a bad request with its fault, and ends the connection.
fn refuse(stream: &mut TcpStream, name: &str, status: u16, why: &str) -> io::Result<()> {
    let head = head(name, status, false);
    let length = why.len();
    stream.write_all(
        format!("{head}Content-Type: text/plain\r\nContent-Length: {length}\r\n\r\n{why}").as_bytes(),
    )
}

fn head(name: &str, status: u16, keep_alive: bool) -> String {
    let close = if keep_alive { "" } else { "Connection: close\r\n" };
    format!(
        "HTTP/1.1 {status} {}\r\nServer: evergate-demo\r\nX-Demo-Server: {name}\r\n{close}",
        reason_phrase(status)
    )
}

/// A body whose byte at position p is p modulo 251, so that a reader can check it.
fn big(stream: &mut TcpStream, name: &str, asked: &Asked, bytes: u64) -> io::Result<()> {
    let mut response = head(name, 200, asked.keep_alive);
    response += &format!("Content-Type: application/octet-stream\r\nContent-Length: {bytes}\r\n\r\n");
    stream.write_all(response.as_bytes())?;
    if asked.method == "HEAD" {
        return Ok(());
    }
    let block: Vec<u8> = (0..251 * 256).map(|position| (position % 251) as u8).collect();
    let mut left = bytes;
    while left > 0 {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(block.len());
        stream.write_all(&block[..length])?;
        left -= length as u64;
    }
    Ok(())
}

/// Messages as WebSocket has them when the client has a key for that, otherwise every byte as it is.
fn echo(stream: &mut TcpStream, protocol: &str, key: Option<&str>, received: &[u8]) -> io::Result<()> {
    let accept = key.map_or_else(String::new, |key| {
        format!("Sec-WebSocket-Accept: {}\r\n", websocket::websocket_accept(key))
    });
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n{accept}\r\n"
    );
    stream.write_all(head.as_bytes())?;
    let mut input = received.chain(stream.try_clone()?);
    match key {
        Some(_) => websocket::echo(&mut input, stream),
        None => io::copy(&mut input, stream).map(drop),
    }
}
