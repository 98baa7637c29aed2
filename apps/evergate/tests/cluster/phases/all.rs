//! Phases of a connection: each function stops a client exactly there and returns its continuation.

use super::server::{HALF, HUGE, LARGE, LONG, read_chunked};
use super::wire::Wire;
use crate::traffic::{Transport, content};
use std::io::{Error, Result};
use std::time::Duration;

/// Remaining work of a stopped client; an error when a byte differs from the expected one.
pub(super) type Rest = Box<dyn FnOnce() -> Result<()> + Send>;

/// One phase, and the transports under which it is tried.
#[derive(Clone, Copy)]
pub(super) struct Phase {
    pub(super) name: &'static str,
    pub(super) over: &'static [Transport],
    pub(super) stop: fn(Wire) -> Result<Rest>,
}

const HTTP: &[Transport] = &[Transport::Http, Transport::Tls12, Transport::Tls13];
const TLS: &[Transport] = &[Transport::Tls12, Transport::Tls13, Transport::Relayed12, Transport::Relayed13];
const TLS13: &[Transport] = &[Transport::Tls13, Transport::Relayed13];
const RAW: &[Transport] = &[Transport::Tcp];
const SOME: &[Transport] = &[Transport::Http, Transport::Tls13, Transport::Relayed13];
const BULK: &[Transport] = &[Transport::Http, Transport::Tls12, Transport::Tls13, Transport::Relayed13];
const ANY: &[Transport] =
    &[Transport::Tcp, Transport::Http, Transport::Tls12, Transport::Tls13, Transport::Relayed12];

macro_rules! phases {
    ($($name:ident: $over:ident),+ $(,)?) => {
        pub(super) const PHASES: &[Phase] =
            &[$(Phase { name: stringify!($name), over: $over, stop: $name }),+];
    };
}

phases! {
    connected: TLS,
    first_byte_sent: TLS,
    half_a_hello: TLS,
    half_a_hello_in_segments: TLS,
    half_a_hello_in_single_bytes: TLS,
    hello_sent: TLS,
    flight_received: TLS,
    half_an_answer_to_the_flight: TLS,
    answer_sent: TLS,
    handshake_done: TLS,
    half_a_record: TLS,
    half_a_key_update: TLS13,
    key_update_sent: TLS13,
    key_update_while_a_response_comes: TLS13,
    half_a_head: HTTP,
    half_a_body: BULK,
    inside_a_chunk: HTTP,
    inside_a_chunk_size: HTTP,
    continue_received: HTTP,
    pipelined: HTTP,
    between_requests: HTTP,
    half_a_response: BULK,
    half_a_chunked_response: HTTP,
    half_an_endless_response: ANY,
    end_sent_while_a_response_comes: ANY,
    end_sent_before_the_response: ANY,
    end_received_unread: ANY,
    end_received_and_read: ANY,
    end_waits_behind_unread: ANY,
    half_open_behind_unread: RAW,
    more_than_buffers_unread: SOME,
    close_notify_while_idle: TLS,
    half_open_by_the_server: RAW,
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n")
}

fn post(body: &str) -> String {
    format!("POST /up HTTP/1.1\r\nHost: shop.test\r\n{body}\r\n\r\n")
}

fn rest(rest: impl FnOnce() -> Result<()> + Send + 'static) -> Result<Rest> {
    Ok(Box::new(rest))
}

fn connected(mut wire: Wire) -> Result<Rest> {
    rest(move || {
        wire.shake()?;
        wire.ask(0..3)
    })
}

fn first_byte_sent(wire: Wire) -> Result<Rest> {
    hello_from(wire, |_| 1, usize::MAX)
}

fn half_a_hello_in_segments(wire: Wire) -> Result<Rest> {
    hello_from(wire, |length| length / 2, 40)
}

fn half_a_hello_in_single_bytes(wire: Wire) -> Result<Rest> {
    hello_from(wire, |length| length / 2, 1)
}

/// Sends the hello up to a length and stops there, in pieces of so many bytes before and after it.
fn hello_from(mut wire: Wire, first: fn(usize) -> usize, piece: usize) -> Result<Rest> {
    let mut hello = wire.outgoing()?;
    let other = hello.split_off(first(hello.len()));
    wire.put_pieces(&hello, piece)?;
    rest(move || {
        wire.put_pieces(&other, piece)?;
        wire.shake()?;
        wire.ask(0..3)
    })
}

fn half_a_hello(mut wire: Wire) -> Result<Rest> {
    let hello = wire.outgoing()?;
    let other = wire.put_half(hello)?;
    rest(move || {
        wire.put(&other)?;
        wire.shake()?;
        wire.ask(0..3)
    })
}

fn hello_sent(mut wire: Wire) -> Result<Rest> {
    let hello = wire.outgoing()?;
    wire.put(&hello)?;
    rest(move || {
        wire.shake()?;
        wire.ask(0..3)
    })
}

fn flight_received(mut wire: Wire) -> Result<Rest> {
    let hello = wire.outgoing()?;
    wire.put(&hello)?;
    let answer = wire.take_flight()?;
    rest(move || {
        wire.put(&answer)?;
        wire.shake()?;
        wire.ask(0..3)
    })
}

fn half_an_answer_to_the_flight(mut wire: Wire) -> Result<Rest> {
    let hello = wire.outgoing()?;
    wire.put(&hello)?;
    let answer = wire.take_flight()?;
    let other = wire.put_half(answer)?;
    rest(move || {
        wire.put(&other)?;
        wire.shake()?;
        wire.ask(0..3)
    })
}

fn answer_sent(mut wire: Wire) -> Result<Rest> {
    let hello = wire.outgoing()?;
    wire.put(&hello)?;
    let answer = wire.take_flight()?;
    wire.put(&answer)?;
    rest(move || {
        wire.shake()?;
        wire.ask(0..3)
    })
}

fn handshake_done(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    rest(move || wire.ask(0..3))
}

fn half_a_record(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.send(post("Content-Length: 16000"))?;
    let record = wire.sealed(&content(0, 16_000))?;
    let other = wire.put_half(record)?;
    rest(move || {
        wire.put(&other)?;
        wire.expect_text("whole 16000")?;
        wire.ask(0..3)
    })
}

fn half_a_key_update(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.ask(0..2)?;
    wire.tls().refresh_traffic_keys().map_err(Error::other)?;
    let update = wire.outgoing()?;
    let other = wire.put_half(update)?;
    rest(move || {
        wire.put(&other)?;
        wire.ask(2..5)
    })
}

fn key_update_sent(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.ask(0..2)?;
    wire.tls().refresh_traffic_keys().map_err(Error::other)?;
    let update = wire.outgoing()?;
    wire.put(&update)?;
    rest(move || wire.ask(2..5))
}

fn key_update_while_a_response_comes(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.send(get("/half"))?;
    wire.expect_head(200)?;
    wire.expect_content(0..HALF / 2)?;
    wire.tls().refresh_traffic_keys().map_err(Error::other)?;
    let update = wire.outgoing()?;
    wire.put(&update)?;
    rest(move || {
        wire.expect_content(HALF / 2..LONG)?;
        wire.ask(0..3)
    })
}

fn half_a_head(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.send("GET /n/7 HTTP/1.1\r\nHost: sh")?;
    rest(move || {
        wire.send("op.test\r\n\r\n")?;
        wire.expect_text("7")?;
        wire.ask(0..3)
    })
}

fn half_a_body(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.send(post(&format!("Content-Length: {LONG}")))?;
    wire.send(content(0, HALF))?;
    rest(move || {
        wire.send(content(HALF, LONG))?;
        wire.expect_text(&format!("whole {LONG}"))?;
        wire.ask(0..3)
    })
}

fn inside_a_chunk(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.send(post("Transfer-Encoding: chunked"))?;
    wire.send(b"3e8\r\n")?;
    wire.send(content(0, 400))?;
    rest(move || {
        wire.send(content(400, 1000))?;
        wire.send(b"\r\n2\r\n")?;
        wire.send(content(1000, 1002))?;
        wire.send(b"\r\n0\r\n\r\n")?;
        wire.expect_text("whole 1002")?;
        wire.ask(0..3)
    })
}

fn inside_a_chunk_size(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.send(post("Transfer-Encoding: chunked"))?;
    wire.send(b"2\r\n")?;
    wire.send(content(0, 2))?;
    wire.send(b"\r\n3e")?;
    rest(move || {
        wire.send(b"8\r\n")?;
        wire.send(content(2, 1002))?;
        wire.send(b"\r\n0\r\n\r\n")?;
        wire.expect_text("whole 1002")?;
        wire.ask(0..3)
    })
}

fn continue_received(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.send(post(&format!("Expect: 100-continue\r\nContent-Length: {LONG}")))?;
    wire.expect_head(100)?;
    rest(move || {
        wire.send(content(0, LONG))?;
        wire.expect_text(&format!("whole {LONG}"))?;
        wire.ask(0..3)
    })
}

fn pipelined(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.send(format!("{}{}{}", get("/half"), get("/n/1"), get("/n/2")))?;
    wire.expect_head(200)?;
    wire.expect_content(0..HALF / 2)?;
    rest(move || {
        wire.expect_content(HALF / 2..LONG)?;
        wire.expect_text("1")?;
        wire.expect_text("2")?;
        wire.ask(3..6)
    })
}

fn between_requests(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.ask(0..5)?;
    rest(move || wire.ask(5..10))
}

fn half_a_response(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.ask(0..1)?;
    wire.send(get("/half"))?;
    wire.expect_head(200)?;
    wire.expect_content(0..HALF)?;
    rest(move || {
        wire.expect_content(HALF..LONG)?;
        wire.ask(1..4)
    })
}

fn half_a_chunked_response(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.send(get("/chunked"))?;
    let head = wire.expect_head(200)?;
    let mut first = [0; 3000];
    std::io::Read::read_exact(&mut wire, &mut first)?;
    rest(move || {
        let mut body = Vec::new();
        read_chunked(&mut std::io::Read::chain(&first[..], &mut wire), &mut body)?;
        if body != content(0, LONG) {
            return Err(Error::other(format!("{} other bytes after {head}", body.len())));
        }
        wire.ask(0..3)
    })
}

fn half_an_endless_response(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.send(get("/ends"))?;
    wire.expect_head(200)?;
    wire.expect_content(0..HALF)?;
    rest(move || {
        wire.expect_content(HALF..LONG)?;
        wire.expect_end()
    })
}

fn end_sent_while_a_response_comes(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.send(get("/half"))?;
    wire.expect_head(200)?;
    wire.expect_content(0..HALF)?;
    wire.end()?;
    rest(move || {
        wire.expect_content(HALF..LONG)?;
        wire.expect_end()
    })
}

fn end_sent_before_the_response(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.send(get("/wait"))?;
    wire.end()?;
    rest(move || {
        wire.expect_text("waited")?;
        wire.expect_end()
    })
}

fn end_received_unread(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.send(get("/ended"))?;
    wire.expect_head(200)?;
    wire.expect_content(0..HALF)?;
    rest(move || {
        wire.expect_content(HALF..LONG)?;
        wire.expect_end()
    })
}

fn end_received_and_read(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.send(get("/ended"))?;
    wire.expect_head(200)?;
    wire.expect_content(0..LONG)?;
    wire.expect_end()?;
    rest(move || wire.finish())
}

/// The server has closed. Only the nodes still hold the bytes that the client has not read.
fn end_waits_behind_unread(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.send(get("/large"))?;
    wire.expect_head(200)?;
    wire.expect_content(0..HALF)?;
    rest(move || {
        wire.expect_content(HALF..LARGE)?;
        wire.expect_end()
    })
}

/// [`end_waits_behind_unread`] with a server that still reads.
fn half_open_behind_unread(mut wire: Wire) -> Result<Rest> {
    wire.send(get("/tunnel/large"))?;
    // So slowly that the rest must be stashed, and the server has its end acknowledged.
    let (piece, slow) = (30_000, 10 * 30_000);
    for from in (0..slow).step_by(piece) {
        wire.expect_content(from..from + piece)?;
        std::thread::sleep(Duration::from_millis(30));
    }
    rest(move || {
        wire.expect_content(slow..LARGE)?;
        wire.expect_end()?;
        wire.send(content(0, LONG))?;
        wire.end()
    })
}

fn more_than_buffers_unread(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.send(get("/huge"))?;
    wire.expect_head(200)?;
    wire.expect_content(0..HALF)?;
    rest(move || {
        wire.expect_content(HALF..HUGE)?;
        wire.expect_end()
    })
}

fn close_notify_while_idle(mut wire: Wire) -> Result<Rest> {
    wire.shake()?;
    wire.ask(0..2)?;
    wire.notify_close()?;
    rest(move || wire.expect_end())
}

/// The client has the server's end, and only then begins to send.
fn half_open_by_the_server(mut wire: Wire) -> Result<Rest> {
    wire.send(get("/tunnel"))?;
    wire.expect_content(0..LONG)?;
    wire.expect_end()?;
    rest(move || {
        wire.send(content(0, LONG))?;
        wire.end()
    })
}
