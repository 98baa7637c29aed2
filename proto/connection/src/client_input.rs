//! Input of the client on a connection with backups: the bytes that may be stashed, and the records that they make.

use crate::replication::position;
use crate::unacked_input::Retained;
use evergate_replication::{ConnectionState, RecordPosition};
use evergate_tls::Position;
use std::collections::VecDeque;

/// A record whose plaintext is not all consumed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) input: u64,
    pub(crate) rx: RecordPosition,
    length: u64,
}

/// The client's input that is not acknowledged yet, and how much of its plaintext is consumed.
#[derive(Debug, Default)]
pub(crate) struct ClientInput {
    pub(crate) retained: Retained,
    spans: VecDeque<Span>,
    /// Plaintext bytes consumed of the first span.
    pub(crate) used: u64,
    /// Plaintext bytes of the first record that were used before.
    pub(crate) skip: u64,
    /// Of what is just being taken in from a client without TLS, so much is yet to be.
    pub(crate) unread: u64,
    /// Client input that the newest decision answers: see [`Route::answered`](evergate_replication::Route::answered).
    pub(crate) answered: u64,
}

impl ClientInput {
    /// What a restored connection starts from.
    pub(crate) fn of(state: &ConnectionState) -> ClientInput {
        ClientInput {
            retained: Retained::starting_at(state.client_frontier()),
            answered: state.answered,
            ..ClientInput::default()
        }
    }

    /// The first record whose plaintext is not all consumed.
    pub(crate) fn first_span(&self) -> Option<&Span> {
        self.spans.front()
    }

    /// Input that a decision answers: the request's head ends `length` plaintext bytes behind what is consumed. Without
    /// TLS, `left` bytes of the input up to `input` follow the head.
    pub(crate) fn head_end(&self, length: usize, input: u64, left: usize) -> u64 {
        let (head_end, mut end) = (self.used + length as u64, 0);
        let in_record = self.spans.iter().find(|span| {
            end += span.length;
            end >= head_end
        });
        in_record.map_or(input.saturating_sub(left as u64), |span| span.input)
    }

    /// A record of `length` plaintext bytes was opened, which began at `input`.
    pub(crate) fn note_record(&mut self, input: u64, rx: Position, length: usize) {
        if length > 0 {
            self.spans.push_back(Span { input, rx: position(rx), length: length as u64 });
        }
    }

    /// How many of the first `length` plaintext bytes after a restore were used before.
    pub(crate) fn skip_used(&mut self, length: usize) -> usize {
        let skip = self.skip.min(length as u64);
        self.skip -= skip;
        self.consumed(skip);
        skip as usize
    }

    /// Plaintext was consumed.
    pub(crate) fn consumed(&mut self, bytes: u64) {
        self.used += bytes;
        while self.spans.front().is_some_and(|span| span.length <= self.used) {
            if let Some(span) = self.spans.pop_front() {
                self.used -= span.length;
            }
        }
        if self.spans.is_empty() {
            self.used = 0;
        }
    }
}
