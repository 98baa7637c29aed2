//! The clients: one thread for each transfer, which writes on the board what it sees.

use super::client::{Line, PATIENCE, Target};
use super::scoreboard::{Board, Kind, PIECE_BYTES, Transfer};
use crate::content;
use crate::websocket::{self, frame, read_frame};
use std::io::{self, Read, Write};
use std::time::Instant;

/// Pauses between messages, requests and visits, in ticks of the board.
const MESSAGE_TICKS: u32 = 2;
const REQUEST_TICKS: u32 = 4;
const VISIT_TICKS: u32 = 20;

/// Runs a transfer to its end, and records the outcome on the board. To be called in the client's namespace.
pub(super) fn run(board: &Board, transfer: &Transfer, target: &Target) {
    let result = match transfer.kind {
        Kind::Download => download(board, transfer, target),
        Kind::Upload => upload(board, transfer, target),
        Kind::WebSocket => messages(board, transfer, target),
        Kind::Requests => requests(board, transfer, target),
        Kind::Visits => visits(board, transfer, target),
    };
    transfer.ended(result.map_err(|error| error_text(&error)));
}

/// An error in plain words.
fn error_text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock => format!("nothing came for {PATIENCE:?}"),
        io::ErrorKind::UnexpectedEof => "the connection ended too early".to_owned(),
        _ => error.to_string(),
    }
}

fn download(board: &Board, transfer: &Transfer, target: &Target) -> io::Result<()> {
    let mut line = Line::open(target)?;
    line.ask("GET", &Board::path(transfer), "")?;
    let head = line.head()?;
    if (head.status, head.body_bytes) != (200, board.bytes_each) {
        return Err(io::Error::other(format!("status {} with {} bytes", head.status, head.body_bytes)));
    }
    let mut buffer = vec![0; PIECE_BYTES];
    let mut at = 0;
    while at < board.bytes_each {
        let most = usize::try_from(board.bytes_each - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let count = line.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(io::Error::other(format!("ended after {at} of {} bytes", board.bytes_each)));
        }
        transfer.moved(count as u64, content::differing(transfer.seed, at, &buffer[..count]));
        at += count as u64;
    }
    Ok(())
}

/// What arrives is measured and compared where it arrives: see `servers`.
fn upload(board: &Board, transfer: &Transfer, target: &Target) -> io::Result<()> {
    let mut line = Line::open(target)?;
    line.ask("POST", &Board::path(transfer), &format!("Content-Length: {}\r\n", board.bytes_each))?;
    let mut buffer = vec![0; PIECE_BYTES];
    let mut at = 0;
    while at < board.bytes_each {
        let piece = &mut buffer[..board.portion(board.bytes_each - at)];
        content::fill(transfer.seed, at, piece);
        line.write_all(piece)?;
        at += piece.len() as u64;
        board.pause(1);
    }
    let reported = line.response(200)?;
    let reported = String::from_utf8_lossy(&reported).trim().to_owned();
    if reported == board.bytes_each.to_string() {
        return Ok(());
    }
    Err(io::Error::other(format!("the server has {reported} of {} bytes", board.bytes_each)))
}

fn messages(board: &Board, transfer: &Transfer, target: &Target) -> io::Result<()> {
    let mut line = Line::open(target)?;
    let key = "ZXZlcmdhdGUgZGVtbyBrZXk=";
    line.ask(
        "GET",
        "/echo",
        &format!(
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
        ),
    )?;
    let head = line.head()?;
    if head.status != 101 {
        return Err(io::Error::other(format!("status {} in the place of a WebSocket", head.status)));
    }
    for number in 0_u64.. {
        let last = board.finishing();
        let (kind, length) = if last {
            (websocket::Kind::Close, 0)
        } else {
            (websocket::Kind::Binary, 16 + (number * 37 % 2048) as usize)
        };
        let mut message = vec![0; length];
        content::fill(transfer.seed.wrapping_add(number), 0, &mut message);
        line.write_all(&frame(kind, Some((number as u32).to_be_bytes()), &message))?;
        let (answer, echoed) = read_frame(&mut line)?;
        if (answer, echoed.len()) != (kind, length) {
            transfer.moved(echoed.len() as u64, echoed.len() as u64);
            return Err(io::Error::other(format!("message {number} came back as another one")));
        }
        if last {
            break;
        }
        transfer.moved(length as u64, content::differing(transfer.seed.wrapping_add(number), 0, &echoed));
        transfer.counted();
        board.pause(MESSAGE_TICKS);
    }
    Ok(())
}

fn requests(board: &Board, transfer: &Transfer, target: &Target) -> io::Result<()> {
    let mut line = Line::open(target)?;
    for number in 0_u64.. {
        if board.finishing() {
            break;
        }
        request(&mut line, transfer, number, "")?;
        transfer.counted();
        board.pause(REQUEST_TICKS);
    }
    Ok(())
}

fn visits(board: &Board, transfer: &Transfer, target: &Target) -> io::Result<()> {
    for number in 0_u64.. {
        if board.finishing() {
            break;
        }
        let began = Instant::now();
        // A dying node may leave a handshake unfinished. No request was sent, and every client tries again.
        let line = Line::open(target).or_else(|_| {
            transfer.repeated();
            Line::open(target)
        });
        let result = match line {
            Ok(mut line) => request(&mut line, transfer, number, "Connection: close\r\n")
                .map_err(|error| format!("after its request, {}", error_text(&error))),
            Err(error) => Err(format!("while connecting, {}", error_text(&error))),
        };
        transfer.visited(began.elapsed(), result);
        board.pause(VISIT_TICKS);
    }
    Ok(())
}

/// One short request, whose answer must be its own.
fn request(line: &mut Line, transfer: &Transfer, number: u64, more: &str) -> io::Result<()> {
    line.ask("GET", &format!("/hello?n={number}"), more)?;
    let body = line.response(200)?;
    let reported: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let right = reported["target"] == format!("/hello?n={number}");
    let length = body.len() as u64;
    transfer.moved(length, if right { 0 } else { length });
    Ok(())
}
