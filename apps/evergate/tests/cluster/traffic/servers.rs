//! Servers of the traffic, which check that they receive the content.

use super::{Board, ENDLESS, End, PIECE, Stream, UPLOAD, compare, content};
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;

/// Serves each connection in a thread.
pub(super) fn serve(listener: &TcpListener, tls: Option<&Arc<rustls::ServerConfig>>, board: &Arc<Board>) {
    for stream in listener.incoming().flatten() {
        let (board, tls) = (board.clone(), tls.cloned());
        std::thread::spawn(move || {
            stream.set_nodelay(true).unwrap();
            answer(&mut BufReader::new(server_stream(stream, tls)), &board);
        });
    }
}

/// Application's view of the server end of a connection.
pub(crate) fn server_stream(stream: TcpStream, tls: Option<Arc<rustls::ServerConfig>>) -> Box<dyn Stream> {
    match tls {
        None => Box::new(stream),
        Some(config) => {
            let connection = rustls::ServerConnection::new(config).unwrap();
            Box::new(Secure(rustls::StreamOwned::new(connection, stream)))
        }
    }
}

/// The server's end of a connection, for a reader and a writer in one thread.
#[derive(Clone)]
pub(crate) struct Shared(Rc<RefCell<Box<dyn Stream>>>);

impl Shared {
    pub(crate) fn new(stream: TcpStream, tls: Option<Arc<rustls::ServerConfig>>) -> Shared {
        Shared(Rc::new(RefCell::new(server_stream(stream, tls))))
    }
}

impl Read for Shared {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().read(buffer)
    }
}

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

/// Server's end of a TLS connection. It closes with close_notify.
struct Secure(rustls::StreamOwned<rustls::ServerConnection, TcpStream>);

impl Read for Secure {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Secure {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

impl Drop for Secure {
    fn drop(&mut self) {
        self.0.conn.send_close_notify();
        let _ = self.0.flush(); // the connection may be gone
    }
}

/// Answers until the client's side ends. Requests that began before `stop` must be answered too.
fn answer(stream: &mut BufReader<Box<dyn Stream>>, board: &Board) {
    loop {
        let asked = match next_head(stream) {
            Ok(Some(head)) => head,
            Ok(None) => return,
            Err(error) => return board.wrong(false, format!("the server: {error}")),
        };
        if let Err(error) = respond(&asked, stream, board) {
            let line = asked.lines().next().unwrap_or_default();
            return board.wrong(asked.starts_with("POST "), format!("the server: {line}: {error}"));
        }
        if asked.contains("Connection: close\r\n") {
            return;
        }
    }
}

/// Head of the next request. A connection without one may end at any time, and does when its node dies.
fn next_head(stream: &mut impl BufRead) -> std::io::Result<Option<String>> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let idle = head.is_empty();
        match stream.read_line(&mut head) {
            Ok(0) if idle => return Ok(None),
            Err(_) if idle => return Ok(None),
            Ok(0) => return Err(std::io::Error::other("the end inside a head")),
            result => result?,
        };
    }
    Ok(Some(head))
}

fn respond(head: &str, stream: &mut BufReader<Box<dyn Stream>>, board: &Board) -> std::io::Result<()> {
    let path = head.split(' ').nth(1).unwrap_or_default();
    if let Some(number) = path.strip_prefix("/up/") {
        let number = number.parse().map_err(std::io::Error::other)?;
        return take_upload(number, stream, board);
    }
    if head.starts_with("GET /ws") {
        stream.get_mut().write_all(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        )?;
        let mut buffer = vec![0; PIECE];
        while board.continues() {
            let count = stream.read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            stream.get_mut().write_all(&buffer[..count])?;
        }
        return Ok(());
    }
    let output = stream.get_mut();
    if let Some(number) = path.strip_prefix("/n/") {
        return respond_text(output, number);
    }
    write!(output, "HTTP/1.1 200 OK\r\nContent-Length: {ENDLESS}\r\n\r\n")?;
    let mut at = 0;
    while board.continues() {
        output.write_all(&content(at, at + PIECE))?;
        at += PIECE;
    }
    Ok(())
}

fn respond_text(output: &mut impl Write, text: &str) -> std::io::Result<()> {
    write!(output, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len())
}

/// Receives a whole upload, also after `stop`, and answers with its length.
fn take_upload(number: usize, stream: &mut BufReader<Box<dyn Stream>>, board: &Board) -> std::io::Result<()> {
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    while at < UPLOAD {
        let most = buffer.len().min(UPLOAD - at);
        at = compare(stream, &mut buffer[..most], at)?;
        board.moved(number);
    }
    board.count(number, End::Taken, at);
    respond_text(stream.get_mut(), &at.to_string())
}
