//! Clients of the traffic.

use super::{Action, Board, End, PATIENCE, PAUSE, PIECE, Stream, Transport, UPLOAD, compare, content, head};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

pub(super) fn transfer(
    transport: Transport,
    action: Action,
    to: SocketAddr,
    number: usize,
    board: &Board,
) -> std::io::Result<()> {
    let mut stream = connect(transport, to, &board.roots)?;
    match action {
        Action::Download => {
            stream.write_all(b"GET /down HTTP/1.1\r\nHost: shop.test\r\n\r\n")?;
            expect(&mut stream, "HTTP/1.1 200")?;
            let (mut buffer, mut at) = (vec![0; PIECE], 0);
            while board.continues() {
                at = compare(&mut stream, &mut buffer, at)?;
                board.moved(number);
                std::thread::sleep(PAUSE);
            }
            Ok(())
        }
        Action::Upload => {
            while board.continues() {
                upload(&mut stream, number, board)?;
            }
            Ok(())
        }
        Action::WebSocket => {
            stream.write_all(
                b"GET /ws HTTP/1.1\r\nHost: shop.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            )?;
            expect(&mut stream, "HTTP/1.1 101")?;
            let mut at = 0;
            while board.continues() {
                let (body, mut back) = (content(at, at + 1000), [0; 1000]);
                stream.write_all(&body)?;
                stream.read_exact(&mut back)?;
                if back[..] != body {
                    return Err(std::io::Error::other(format!("another echo at {at}")));
                }
                at += 1000;
                board.moved(number);
                std::thread::sleep(PAUSE);
            }
            Ok(())
        }
        Action::Requests | Action::Fresh => {
            let fresh = action == Action::Fresh;
            for request in 0u64.. {
                if !board.continues() {
                    break;
                }
                ask(&mut stream, request, if fresh { "Connection: close\r\n" } else { "" })?;
                if fresh {
                    if stream.read(&mut [0])? != 0 {
                        return Err(std::io::Error::other(format!("more comes after answer {request}")));
                    }
                    stream = connect(transport, to, &board.roots)?;
                }
                board.moved(number);
                std::thread::sleep(PAUSE);
            }
            Ok(())
        }
    }
}

/// Uploads one request body, which the server must confirm. After `stop` it no longer pauses.
fn upload(stream: &mut impl Stream, number: usize, board: &Board) -> std::io::Result<()> {
    write!(stream, "POST /up/{number} HTTP/1.1\r\nHost: shop.test\r\nContent-Length: {UPLOAD}\r\n\r\n")?;
    for at in (0..UPLOAD).step_by(PIECE) {
        stream.write_all(&content(at, at + PIECE))?;
        board.count(number, End::Sent, PIECE);
        if board.continues() {
            std::thread::sleep(PAUSE);
        }
    }
    expect_answer(stream, &UPLOAD.to_string())
}

/// Sends a request with these fields and checks that the answer belongs to it.
pub(crate) fn ask(stream: &mut impl Stream, request: u64, fields: &str) -> std::io::Result<()> {
    write!(stream, "GET /n/{request} HTTP/1.1\r\nHost: shop.test\r\n{fields}\r\n")?;
    expect_answer(stream, &request.to_string())
}

/// Checks that the answer is exactly this text.
fn expect_answer(stream: &mut impl Read, text: &str) -> std::io::Result<()> {
    expect(stream, "HTTP/1.1 200")?;
    let mut body = vec![0; text.len()];
    stream.read_exact(&mut body)?;
    if body == text.as_bytes() {
        return Ok(());
    }
    Err(std::io::Error::other(format!("{:?} instead of {text:?}", String::from_utf8_lossy(&body))))
}

fn expect(stream: &mut impl Read, start: &str) -> std::io::Result<()> {
    let head = head(stream)?;
    if head.starts_with(start) { Ok(()) } else { Err(std::io::Error::other(head)) }
}

pub(crate) fn connect(
    transport: Transport,
    to: SocketAddr,
    roots: &Arc<rustls::RootCertStore>,
) -> std::io::Result<Box<dyn Stream>> {
    let stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    match transport {
        Transport::Tcp | Transport::Http => Ok(Box::new(stream)),
        _ => Ok(Box::new(rustls::StreamOwned::new(transport.client(roots)?, stream))),
    }
}
