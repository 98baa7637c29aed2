//! Server behind the cluster. It stops in the middle of its answers until the test lets it proceed.

use crate::traffic::{Shared, content, head};
use std::io::{BufRead, BufReader, Error, Read, Result, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

/// Bytes of a response or a request that is stopped in its middle.
pub(super) const LONG: usize = 200_000;
pub(super) const HALF: usize = LONG / 2;
/// More than the buffers of a client that does not read, and less than those buffers and a node hold.
pub(super) const LARGE: usize = 1 << 20;
/// More than the client's buffers and a node hold.
pub(super) const HUGE: usize = 10 << 20;

/// State that the server and the test share.
#[derive(Default)]
pub(super) struct Desk {
    continues: Mutex<bool>,
    changed: Condvar,
    wrong: Mutex<Vec<String>>,
    /// Tunnels whose client bytes arrived whole after the server's end.
    pub(super) whole: Mutex<usize>,
}

impl Desk {
    /// Releases the second halves of all answers.
    pub(super) fn proceed(&self) {
        *self.continues.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let guard = self.continues.lock().unwrap();
        drop(self.changed.wait_while(guard, |continues| !*continues).unwrap());
    }

    /// Errors that the server found.
    pub(super) fn wrong(&self) -> Vec<String> {
        self.wrong.lock().unwrap().clone()
    }
}

pub(super) fn serve(listener: &TcpListener, tls: Option<&Arc<rustls::ServerConfig>>, desk: &Arc<Desk>) {
    for stream in listener.incoming().flatten() {
        let (desk, tls) = (desk.clone(), tls.cloned());
        std::thread::spawn(move || {
            stream.set_nodelay(true).unwrap();
            let shared = Shared::new(stream.try_clone().unwrap(), tls);
            let mut asked = String::new();
            if let Err(error) = converse(&stream, shared, &desk, &mut asked) {
                desk.wrong.lock().unwrap().push(format!("{asked}: {error}"));
            }
        });
    }
}

fn converse(socket: &TcpStream, shared: Shared, desk: &Desk, asked: &mut String) -> Result<()> {
    let mut input = BufReader::new(shared.clone());
    let mut output = shared;
    loop {
        // A connection without a request may end at any time.
        match input.fill_buf() {
            Ok([]) | Err(_) => return Ok(()),
            Ok(_) => {}
        }
        let head = head(&mut input)?;
        *asked = head.lines().next().unwrap_or_default().to_owned();
        let path = asked.split(' ').nth(1).unwrap_or_default().to_owned();
        match path.as_str() {
            "/up" => receive_body(&head, &mut input, &mut output)?,
            "/wait" => {
                desk.wait();
                output.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nwaited")?;
            }
            "/half" => {
                write!(output, "HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n")?;
                halves(desk, |from, to| output.write_all(&content(from, to)))?;
            }
            "/chunked" => {
                output.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
                halves(desk, |from, to| {
                    for from in (from..to).step_by(10_000) {
                        write!(output, "{:x}\r\n", 10_000)?;
                        output.write_all(&content(from, from + 10_000))?;
                        output.write_all(b"\r\n")?;
                    }
                    Ok(())
                })?;
                output.write_all(b"0\r\n\r\n")?;
            }
            "/ends" => {
                output.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
                return halves(desk, |from, to| output.write_all(&content(from, to)));
            }
            "/ended" => {
                output.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
                return output.write_all(&content(0, LONG));
            }
            "/large" => {
                output.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
                return output.write_all(&content(0, LARGE));
            }
            "/huge" => {
                output.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
                return output.write_all(&content(0, HUGE));
            }
            "/tunnel" => return tunnel(desk, LONG, &mut input, socket),
            "/tunnel/large" => return tunnel(desk, LARGE, &mut input, socket),
            _ => {
                let number = path.rsplit('/').next().unwrap_or_default();
                write!(output, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{number}", number.len())?;
            }
        }
    }
}

fn halves(desk: &Desk, mut send: impl FnMut(usize, usize) -> Result<()>) -> Result<()> {
    send(0, HALF)?;
    desk.wait();
    send(HALF, LONG)
}

/// Sends the server's bytes and end first, then reads until the client's end.
fn tunnel(desk: &Desk, bytes: usize, input: &mut impl Read, mut output: &TcpStream) -> Result<()> {
    output.write_all(&content(0, bytes))?;
    output.shutdown(Shutdown::Write)?;
    let mut came = Vec::new();
    input.read_to_end(&mut came)?;
    if came != content(0, LONG) {
        return Err(Error::other(format!("{} other bytes", came.len())));
    }
    *desk.whole.lock().unwrap() += 1;
    Ok(())
}

/// Receives a request body, which must be the content.
pub(crate) fn receive_body(head: &str, input: &mut impl Read, output: &mut impl Write) -> Result<()> {
    if head.to_ascii_lowercase().contains("expect: 100-continue") {
        output.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let body = body(head, input)?;
    if body != content(0, body.len()) {
        return Err(Error::other(format!("a body of {} other bytes", body.len())));
    }
    let reported = format!("whole {}", body.len());
    write!(output, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{reported}", reported.len())
}

/// Body of the request with this head.
pub(crate) fn body(head: &str, input: &mut impl Read) -> Result<Vec<u8>> {
    let (lower, mut body) = (head.to_ascii_lowercase(), Vec::new());
    match lower.split("content-length: ").nth(1).and_then(|rest| rest.split_once('\r')) {
        Some((length, _)) => {
            body.resize(length.parse().map_err(Error::other)?, 0);
            input.read_exact(&mut body)?;
        }
        None => read_chunked(input, &mut body)?,
    }
    Ok(body)
}

/// Reads a chunked body up to its end.
pub(crate) fn read_chunked(input: &mut impl Read, body: &mut Vec<u8>) -> Result<()> {
    loop {
        let line = line(input)?;
        let size = usize::from_str_radix(line.trim_end(), 16)
            .map_err(|_| Error::other(format!("a chunk of {line:?} bytes after {}", body.len())))?;
        let start = body.len();
        body.resize(start + size + 2, 0);
        input.read_exact(&mut body[start..])?;
        if !body.ends_with(b"\r\n") {
            return Err(Error::other(format!("a chunk longer than its size, after {start}")));
        }
        body.truncate(start + size);
        if size == 0 {
            return Ok(());
        }
    }
}

fn line(input: &mut impl Read) -> Result<String> {
    let (mut line, mut byte) = (String::new(), [0]);
    while !line.ends_with("\r\n") {
        input.read_exact(&mut byte)?;
        line.push(char::from(byte[0]));
    }
    Ok(line)
}
