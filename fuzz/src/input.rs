//! Decomposition of inputs: decisions first, then the bytes that a peer sends.

/// Decisions, one byte each; a missing decision is 0.
#[derive(Clone, Copy, Debug)]
pub struct Choices<'a>(&'a [u8]);

/// Splits an input into decisions and payload: the first byte is the number of decisions.
pub fn split(data: &[u8]) -> (Choices<'_>, &[u8]) {
    let (count, rest) = data.split_first().map_or((0, data), |(count, rest)| (usize::from(*count), rest));
    let (choices, payload) = rest.split_at(count.min(rest.len()));
    (Choices(choices), payload)
}

/// Splits an input into chunks: a 16-bit length (big-endian) precedes each; the last one takes the rest.
pub fn chunks(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (head, rest) = data.split_first_chunk::<2>()?;
        let (chunk, rest) = rest.split_at(usize::from(u16::from_be_bytes(*head)).min(rest.len()));
        data = rest;
        Some(chunk)
    })
}

/// Appends one chunk for [`chunks`].
pub fn put_chunk(chunk: &[u8], out: &mut Vec<u8>) {
    let len = chunk.len().min(usize::from(u16::MAX));
    out.extend_from_slice(&(len as u16).to_be_bytes());
    out.extend_from_slice(&chunk[..len]);
}

/// An input for [`split`].
pub fn join(choices: &[u8], payload: &[u8]) -> Vec<u8> {
    let count = choices.len().min(255);
    [&[count as u8], &choices[..count], payload].concat()
}

impl<'a> Choices<'a> {
    /// Decisions from these bytes.
    pub fn new(bytes: &'a [u8]) -> Choices<'a> {
        Choices(bytes)
    }

    /// The next decision.
    pub fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    /// Cuts `data` into pieces of the decided sizes; the rest after the last decision is one piece. Size 0 means a
    /// large piece.
    pub fn pieces<'d>(&self, data: &'d [u8]) -> Vec<&'d [u8]> {
        let mut rest = data;
        let mut pieces = Vec::new();
        for &size in self.0 {
            let size = if size == 0 { 1000 } else { usize::from(size) };
            if size >= rest.len() {
                break;
            }
            let (piece, after) = rest.split_at(size);
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        pieces
    }
}

impl Iterator for Choices<'_> {
    type Item = u8;
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }
}
