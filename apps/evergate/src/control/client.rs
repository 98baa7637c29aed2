//! Client of the admin API, for the command line and the demonstration.

use super::status::Refused;
use anyhow::{Context, Result, bail};
use evergate_http::{HeaderSlots, Limits, Parsed, parse_response};
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

/// Bound on an answer: a node with a hundred thousand rules sends a few megabytes.
const ANSWER_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// An answer with one of the statuses that are expected, within `patience`; others are errors in the node's words.
pub fn ask<T: DeserializeOwned>(
    socket: &Path,
    patience: Duration,
    (method, path): (&str, &str),
    expected: &[u16],
) -> Result<(u16, T)> {
    understood(request(socket, patience, (method, path))?, (method, path), expected)
}

/// The answer of a node with one of the expected statuses. Other statuses are errors with the node's text.
pub fn understood<T: DeserializeOwned>(
    (status, body): (u16, Vec<u8>),
    (method, path): (&str, &str),
    expected: &[u16],
) -> Result<(u16, T)> {
    if expected.contains(&status) {
        let value =
            serde_json::from_slice(&body).context("the node's answer cannot be read: another version?")?;
        return Ok((status, value));
    }
    match serde_json::from_slice::<Refused>(&body) {
        Ok(refused) => bail!("{}; {}", refused.error, refused.remedy),
        Err(_) => bail!("the node answers {method} {path} with status {status}"),
    }
}

/// Status and body of an answer, whatever they are.
pub fn request(socket: &Path, patience: Duration, (method, path): (&str, &str)) -> Result<(u16, Vec<u8>)> {
    let mut stream = match connect(socket, patience) {
        Err(error) if is_late(&error) => bail!(unanswered(socket, patience, method)),
        connected => connected.with_context(|| {
            format!(
                "cannot reach a node at {}: does it run, and may you open its socket? Name the socket with --socket or \
                 EVERGATE_SOCKET",
                socket.display()
            )
        })?,
    };
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(
        format!(
            "{method} {path} HTTP/1.1\r\nHost: evergate\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .as_bytes(),
    )?;
    let mut answer = Vec::new();
    match stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer) {
        Err(error) if is_late(&error) => bail!(unanswered(socket, patience, method)),
        read => read.context("the node's answer broke off")?,
    };
    let mut slots = HeaderSlots::new();
    match parse_response(&answer, &Limits::default(), &mut slots, false) {
        Ok(Parsed::Complete(head)) => Ok((head.status, answer[head.head_len..].to_vec())),
        Ok(Parsed::Partial) => bail!("the node closed the connection without an answer: is it ending?"),
        Err(refusal) => bail!("what answers there is not an evergate node: {}", refusal.reason),
    }
}

/// Connects within `patience`. When the queue of a process that accepts no connection is full, the system lets one more
/// wait without end.
fn connect(socket: &Path, patience: Duration) -> io::Result<UnixStream> {
    let (to, connected) = channel();
    let socket = socket.to_owned();
    std::thread::spawn(move || to.send(UnixStream::connect(socket)));
    connected.recv_timeout(patience).unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn unanswered(socket: &Path, patience: Duration, method: &str) -> String {
    let asked = if method == "GET" { "" } else { "; it may still do what it was asked" };
    format!(
        "the node at {} does not answer within {} s{asked}: is its process stopped (state T in `ps -C evergate -o \
          pid,stat,args`), or has the machine no time or memory for it? See its messages on standard error",
        socket.display(),
        patience.as_secs()
    )
}
