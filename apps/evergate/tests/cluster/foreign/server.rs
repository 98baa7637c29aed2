//! Server behind the cluster. It sends until the test lets it end, and checks that uploads are the content.

use super::{Desk, LAST_EARLY_REQUEST, PIECE};
use crate::phases::server::{body, receive_body};
use crate::seed::Chance;
use crate::traffic::{Shared, content, head};
use std::io::{BufRead, BufReader, Error, Read, Result, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const PAGE: &str = include_str!("page.html");

pub(super) fn serve(listener: &TcpListener, tls: Option<&Arc<rustls::ServerConfig>>, desk: &Arc<Desk>) {
    for stream in listener.incoming().flatten() {
        let (desk, tls) = (desk.clone(), tls.cloned());
        std::thread::spawn(move || {
            stream.set_nodelay(true).unwrap();
            let mut asked = String::new();
            if let Err(error) = converse(Shared::new(stream, tls), &desk, &mut asked) {
                desk.wrong.lock().unwrap().push(format!("{asked}: {error}"));
            }
        });
    }
}

fn converse(mut output: Shared, desk: &Desk, asked: &mut String) -> Result<()> {
    let mut input = BufReader::with_capacity(PIECE, output.clone());
    loop {
        match input.fill_buf() {
            Ok([]) | Err(_) => return Ok(()), // between requests a connection may end at any time
            Ok(_) => {}
        }
        let head = head(&mut input)?;
        *asked = head.lines().next().unwrap_or_default().to_owned();
        let pauses = desk.chance.of(asked);
        let path = asked.split(' ').nth(1).unwrap_or_default();
        let path = path.split('?').next().unwrap_or_default();
        match path.rsplit_once('/').unwrap_or_default() {
            ("/stream", name) => stream(name, desk, &pauses, &mut output)?,
            ("/n", number) => {
                desk.continues(&pauses);
                if number.parse::<usize>().is_ok_and(|number| number >= LAST_EARLY_REQUEST) {
                    while !desk.over.load(Ordering::Relaxed) {
                        std::thread::park_timeout(Duration::from_millis(5));
                    }
                }
                answer(&mut output, "text/plain", number)?;
            }
            ("", "take") => receive_body(&head, &mut Slow { input: &mut input, desk, pauses }, &mut output)?,
            ("", "echo") => return echo(&head, &mut input, &mut output),
            ("", "page") => answer(&mut output, "text/html", PAGE)?,
            ("", "report") => {
                let report = String::from_utf8(body(&head, &mut input)?).map_err(Error::other)?;
                *desk.report.lock().unwrap() = Some(report);
                answer(&mut output, "text/plain", "")?;
            }
            _ => return Err(Error::other("unexpected request")),
        }
        if head.contains("Connection: close\r\n") {
            return Ok(());
        }
    }
}

fn answer(output: &mut impl Write, kind: &str, text: &str) -> Result<()> {
    let length = text.len();
    write!(output, "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{text}")
}

/// Sends the content in chunks until transfers may end.
fn stream(name: &str, desk: &Desk, pauses: &Chance, output: &mut impl Write) -> Result<()> {
    output.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
    let mut at = 0;
    while desk.continues(pauses) {
        write!(output, "{PIECE:x}\r\n")?;
        output.write_all(&content(at, at + PIECE))?;
        output.write_all(b"\r\n")?;
        at += PIECE;
    }
    desk.sent.lock().unwrap().insert(name.to_owned(), at);
    output.write_all(b"0\r\n\r\n")
}

/// Echoes every WebSocket message.
fn echo(head: &str, input: &mut impl Read, output: &mut impl Write) -> Result<()> {
    let key = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("sec-websocket-key").then(|| value.trim())
    });
    let accept = evergate_demo::websocket_accept(key.ok_or_else(|| Error::other("no key"))?);
    write!(
        output,
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )?;
    evergate_demo::echo_websocket(input, output)
}

/// Input that is read a piece at a time, so that uploads last.
struct Slow<'a, R> {
    input: &'a mut R,
    desk: &'a Desk,
    pauses: Chance,
}

impl<R: Read> Read for Slow<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if buffer.len() >= PIECE {
            self.desk.continues(&self.pauses);
        }
        let most = buffer.len().min(PIECE);
        self.input.read(&mut buffer[..most])
    }
}
