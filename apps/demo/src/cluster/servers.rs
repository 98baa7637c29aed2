//! The servers' part of a transfer.

use super::scoreboard::{Board, PIECE_BYTES, Transfer};
use crate::{connection, content};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// Serves until the process ends. To be called in the server's namespace.
pub(super) fn start(name: &'static str, address: SocketAddr, board: Arc<Board>) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let board = board.clone();
            std::thread::spawn(move || connection::serve(name, stream, Some(&board)));
        }
    });
    Ok(())
}

/// Sends a download after its head.
pub(crate) fn send(stream: &mut TcpStream, board: &Board, transfer: &Transfer) -> io::Result<()> {
    let length = board.bytes_each;
    stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").as_bytes())?;
    let mut buffer = vec![0; PIECE_BYTES];
    let mut at = 0;
    while at < length {
        let piece = &mut buffer[..board.portion(length - at)];
        content::fill(transfer.seed, at, piece);
        stream.write_all(piece)?;
        at += piece.len() as u64;
        board.pause(1);
    }
    Ok(())
}

/// Receives an upload, and answers with the number of right bytes. `received`: the bytes behind its head.
pub(crate) fn take(
    stream: &mut TcpStream,
    received: &[u8],
    board: &Board,
    transfer: &Transfer,
) -> io::Result<()> {
    let length = board.bytes_each;
    let mut input = received.chain(stream.try_clone()?).take(length);
    let mut buffer = vec![0; PIECE_BYTES];
    let (mut at, mut right) = (0, 0);
    while at < length {
        let count = input.read(&mut buffer)? as u64;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let wrong = content::differing(transfer.seed, at, &buffer[..count as usize]);
        transfer.moved(count, wrong);
        at += count;
        right += count - wrong;
    }
    let answer = format!("{right}\n");
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n", answer.len());
    stream.write_all((head + &answer).as_bytes())
}
