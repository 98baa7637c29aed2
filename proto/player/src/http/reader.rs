//! Reader of both directions.

use crate::event::{Event, HoleCause, Note, Side};
use crate::http::message::{Head, Message, Open};
use crate::limits::Limits;
use crate::tls::Plain;
use evergate_http::{Body, HeaderSlots, Headers, Parsed, Version, parse_request, parse_response};
use std::collections::VecDeque;

/// Most requests that wait for their responses.
const REQUESTS_MAX: usize = 1024;
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";
/// Bytes that show whether a record begins with a head.
const BEGIN_BYTES: usize = 16;
/// Memory that an empty buffer keeps.
const IDLE_BYTES_MAX: usize = 4096;
const ZEROS: [u8; 4096] = [0; 4096];

/// A request whose final response has not begun.
#[derive(Clone, Copy, Debug)]
struct Request {
    exchange: u64,
    is_head: bool,
    is_connect: bool,
}

#[derive(Debug, Default)]
enum State {
    /// Before a head, or within one.
    #[default]
    Head,
    /// Within a body.
    Body(Box<(Open, Body)>),
    /// Not HTTP/1.1: bytes are data.
    Data,
    /// Boundaries are lost; a record that begins with a head ends this.
    Lost,
}

#[derive(Debug, Default)]
struct Half {
    state: State,
    buffer: Vec<u8>,
    /// Times of the buffer's parts: place behind the part, and its time.
    times: VecDeque<(usize, u64)>,
    time_ns: u64,
    has_ended: bool,
}

/// Reader of the messages of one connection.
#[derive(Debug)]
pub struct HttpReader {
    limits: evergate_http::Limits,
    slots: Box<HeaderSlots>,
    body_max: usize,
    halves: [Half; 2],
    requests: VecDeque<Request>,
    next: u64,
    /// Request that the last interim response belongs to, or the one in progress.
    tunnel: bool,
}

impl HttpReader {
    /// A reader before the first byte.
    pub fn new(limits: &Limits) -> HttpReader {
        HttpReader {
            limits: evergate_http::Limits {
                head_bytes_max: limits.head,
                headers_max: 128,
                target_bytes_max: limits.head,
                trailer_bytes_max: limits.head,
                chunk_line_bytes_max: 4096,
            },
            slots: Box::default(),
            body_max: limits.body,
            halves: Default::default(),
            requests: VecDeque::new(),
            next: 0,
            tunnel: false,
        }
    }

    /// Takes plaintext of a direction.
    pub fn on_plain(&mut self, side: Side, time_ns: u64, plain: Plain, out: &mut VecDeque<Event>) {
        self.halves[side.index()].time_ns = time_ns;
        match plain {
            Plain::Bytes(bytes) => self.on_bytes(side, &bytes, out),
            Plain::Hole(length, cause) => self.on_hole(side, length, cause, out),
            Plain::Note(note) => out.push_back(Event::Note { side, time_ns, note }),
            Plain::End => {
                self.halves[side.index()].has_ended = true;
                self.advance(side, false, out);
            }
        }
        // A request may be what the other direction waits for.
        self.advance(side.other(), false, out);
    }

    /// Ends the connection: unfinished messages go out as they are.
    pub fn finish(&mut self, out: &mut VecDeque<Event>) {
        for side in Side::ALL {
            self.advance(side, true, out);
            let half = &mut self.halves[side.index()];
            match std::mem::take(&mut half.state) {
                State::Body(body) => {
                    let (open, body) = *body;
                    let is_complete =
                        matches!(body, Body::Done) || (matches!(body, Body::UntilClose) && half.has_ended);
                    out.push_back(Event::Message(Box::new(open.finish(is_complete))));
                }
                State::Head | State::Lost if !half.buffer.is_empty() => half.flush_data(side, out),
                _ => {}
            }
        }
    }

    /// Bytes of memory.
    pub fn buffered(&self) -> usize {
        let body = |half: &Half| match &half.state {
            State::Body(body) => body.0.message.body.len(),
            _ => 0,
        };
        self.halves.iter().map(|half| half.buffer.capacity() + body(half)).sum()
    }

    fn on_bytes(&mut self, side: Side, bytes: &[u8], out: &mut VecDeque<Event>) {
        let half = &mut self.halves[side.index()];
        if matches!(half.state, State::Lost) {
            if !begins_message(side, bytes) {
                let (time_ns, bytes) = (half.time_ns, bytes.to_vec());
                out.push_back(Event::Data { side, time_ns, bytes });
                return;
            }
            half.state = State::Head;
        }
        half.buffer.extend_from_slice(bytes);
        half.times.push_back((half.buffer.len(), half.time_ns));
        self.advance(side, false, out);
    }

    fn on_hole(&mut self, side: Side, length: Option<u64>, cause: HoleCause, out: &mut VecDeque<Event>) {
        self.advance(side, true, out); // whatever is before the hole is decided now
        let half = &mut self.halves[side.index()];
        if let State::Body(body) = &mut half.state {
            let (open, place) = &mut **body;
            open.add_hole(length, cause);
            let is_within =
                length.is_some_and(|length| fill(open, place, length, &self.limits, half.time_ns));
            if is_within {
                self.advance(side, false, out);
                return;
            }
            if let Some(last) = open.message.holes.last_mut() {
                last.length = None;
            }
            if let State::Body(body) = std::mem::take(&mut half.state) {
                out.push_back(Event::Message(Box::new(body.0.finish(false))));
            }
        } else {
            half.flush_data(side, out);
            out.push_back(Event::Hole { side, length, cause });
        }
        if !matches!(half.state, State::Data) {
            half.state = State::Lost;
            let note = Note::MessagesLost("bytes are missing");
            out.push_back(Event::Note { side, time_ns: half.time_ns, note });
        }
    }

    /// Reads what the buffer has. `is_final`: a direction does not wait for the other any longer.
    fn advance(&mut self, side: Side, is_final: bool, out: &mut VecDeque<Event>) {
        loop {
            let half = &mut self.halves[side.index()];
            let has_moved = match &mut half.state {
                State::Lost => false,
                State::Data => {
                    half.flush_data(side, out);
                    false
                }
                State::Body(_) => self.read_body(side, out),
                State::Head if half.buffer.is_empty() => false,
                State::Head if self.tunnel => {
                    half.state = State::Data;
                    true
                }
                State::Head => match side {
                    Side::Client => self.read_request(out),
                    Side::Server => self.read_response(is_final, out),
                },
            };
            if !has_moved {
                break;
            }
        }
    }

    fn read_request(&mut self, out: &mut VecDeque<Event>) -> bool {
        let half = &mut self.halves[Side::Client.index()];
        if half.buffer.starts_with(HTTP2_PREFACE) {
            return self.give_up(Side::Client, "http/2", out);
        }
        let head = match parse_request(&half.buffer, &self.limits, &mut self.slots) {
            Ok(Parsed::Complete(head)) => head,
            Ok(Parsed::Partial) => return false,
            Err(refusal) => return self.give_up(Side::Client, refusal.reason, out),
        };
        let request = Request {
            exchange: self.next,
            is_head: head.method == "HEAD",
            is_connect: head.method == "CONNECT",
        };
        let (body, length) = (head.body(), head.head_len);
        let (method, target, host) =
            (head.method.to_owned(), head.target.to_vec(), head.host_name().to_vec());
        let message = Message {
            head: Head::Request { method, target, host },
            minor: minor(head.version),
            headers: lines(head.headers),
            ..half.begin(Side::Client, self.next, length)
        };
        self.next += 1;
        if self.requests.len() < REQUESTS_MAX {
            self.requests.push_back(request);
        }
        half.take(length);
        half.state = State::Body(Box::new((Open::new(message, self.body_max), body)));
        true
    }

    fn read_response(&mut self, is_final: bool, out: &mut VecDeque<Event>) -> bool {
        let client = &self.halves[Side::Client.index()];
        let is_blind = matches!(client.state, State::Lost | State::Data) || client.has_ended || is_final;
        let half = &mut self.halves[Side::Server.index()];
        let request = self.requests.front().copied();
        if request.is_none() && !is_blind && half.buffer.len() < self.limits.head_bytes_max {
            return false; // its request comes, as packets may be out of order
        }
        let is_head = request.is_some_and(|request| request.is_head);
        let head = match parse_response(&half.buffer, &self.limits, &mut self.slots, is_head) {
            Ok(Parsed::Complete(head)) => head,
            Ok(Parsed::Partial) => return false,
            Err(refusal) => return self.give_up(Side::Server, refusal.reason, out),
        };
        let (length, is_interim, is_upgrade, status) =
            (head.head_len, head.is_interim(), head.is_upgrade, head.status);
        let is_tunnel =
            is_upgrade || (request.is_some_and(|request| request.is_connect) && (200..300).contains(&status));
        let body = if is_tunnel { Body::Done } else { head.body() };
        let exchange = request.map_or(self.next, |request| request.exchange);
        let message = Message {
            head: Head::Response { status, reason: head.reason.to_owned() },
            minor: minor(head.version),
            headers: lines(head.headers),
            ..half.begin(Side::Server, exchange, length)
        };
        if !is_interim {
            self.requests.pop_front();
            self.next = self.next.max(exchange + 1);
        }
        self.tunnel |= is_tunnel;
        half.take(length);
        half.state = State::Body(Box::new((Open::new(message, self.body_max), body)));
        true
    }

    fn read_body(&mut self, side: Side, out: &mut VecDeque<Event>) -> bool {
        let half = &mut self.halves[side.index()];
        let State::Body(body) = &mut half.state else { return false };
        let (open, place) = &mut **body;
        let mut content = Vec::new();
        let time_ns = half.times.front().map_or(half.time_ns, |(_, time_ns)| *time_ns);
        let part = half.times.front().map_or(0, |(end, _)| *end);
        let advanced = place.advance_content(&half.buffer[..part], &self.limits, &mut content);
        open.push(time_ns, &content);
        let is_done = place.is_done() || (matches!(place, Body::UntilClose) && half.has_ended && part == 0);
        match advanced {
            Ok(taken) if is_done => {
                half.take(taken);
                let State::Body(body) = std::mem::take(&mut half.state) else { return false };
                out.push_back(Event::Message(Box::new(body.0.finish(true))));
                true
            }
            Ok(taken) => {
                half.take(taken);
                taken > 0
            }
            Err(refusal) => {
                let State::Body(body) = std::mem::take(&mut half.state) else { return false };
                out.push_back(Event::Message(Box::new(body.0.finish(false))));
                self.give_up(side, refusal.reason, out)
            }
        }
    }

    /// The direction is no HTTP/1.1 from here on.
    fn give_up(&mut self, side: Side, reason: &'static str, out: &mut VecDeque<Event>) -> bool {
        let half = &mut self.halves[side.index()];
        half.state = State::Data;
        out.push_back(Event::Note { side, time_ns: half.time_ns, note: Note::NotHttp(reason) });
        if reason == "http/2" {
            self.tunnel = true;
        }
        true
    }
}

impl Half {
    /// The parts of a message that do not depend on its kind, at the begin of its head.
    fn begin(&self, side: Side, exchange: u64, head_bytes: usize) -> Message {
        let first_ns = self.times.front().map_or(self.time_ns, |(_, time_ns)| *time_ns);
        let last = self.times.iter().find(|(end, _)| *end >= head_bytes);
        Message {
            exchange,
            side,
            first_ns,
            last_ns: last.map_or(self.time_ns, |(_, time_ns)| *time_ns),
            head: Head::Response { status: 0, reason: String::new() },
            minor: 1,
            headers: Vec::new(),
            head_bytes: head_bytes as u64,
            body: Vec::new(),
            body_bytes: 0,
            body_sha256: [0; 32],
            holes: Vec::new(),
            is_complete: false,
        }
    }

    /// Removes bytes from the front of the buffer.
    fn take(&mut self, bytes: usize) {
        self.buffer.drain(..bytes);
        if self.buffer.is_empty() && self.buffer.capacity() > IDLE_BYTES_MAX {
            self.buffer = Vec::new();
        }
        while self.times.front().is_some_and(|(end, _)| *end <= bytes) {
            self.times.pop_front();
        }
        self.times.iter_mut().for_each(|(end, _)| *end -= bytes);
    }

    fn flush_data(&mut self, side: Side, out: &mut VecDeque<Event>) {
        if !self.buffer.is_empty() {
            let bytes = std::mem::take(&mut self.buffer);
            self.times.clear();
            out.push_back(Event::Data { side, time_ns: self.time_ns, bytes });
        }
    }
}

/// Puts zeros in place of a hole; false if the body ends within the hole.
fn fill(
    open: &mut Open,
    place: &mut Body,
    length: u64,
    limits: &evergate_http::Limits,
    time_ns: u64,
) -> bool {
    let mut left = length;
    while left > 0 {
        let part = &ZEROS[..left.min(ZEROS.len() as u64) as usize];
        let mut content = Vec::new();
        let advanced = place.advance_content(part, limits, &mut content);
        open.push(time_ns, &content);
        match advanced {
            Ok(taken) if taken == part.len() && content.len() == taken => left -= taken as u64,
            _ => return false,
        }
    }
    true
}

/// Whether a record begins with a head, as far as its first bytes show.
fn begins_message(side: Side, bytes: &[u8]) -> bool {
    match side {
        Side::Server => bytes.starts_with(b"HTTP/1."),
        Side::Client => {
            let method = bytes.iter().take(BEGIN_BYTES).position(|&byte| byte == b' ');
            method.is_some_and(|end| end > 2 && bytes[..end].iter().all(u8::is_ascii_uppercase))
                && bytes.windows(9).any(|window| window.starts_with(b" HTTP/1."))
        }
    }
}

fn lines(headers: Headers<'_>) -> Vec<(String, Vec<u8>)> {
    headers.iter().map(|line| (line.name.to_owned(), line.value.to_vec())).collect()
}

fn minor(version: Version) -> u8 {
    match version {
        Version::H10 => 0,
        Version::H11 => 1,
    }
}
