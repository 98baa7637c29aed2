//! Position in a message body. The proxy forwards the bytes unchanged; this module only finds where the body ends.

use crate::chunked::Chunked;
use crate::limits::{Limits, Refusal};

/// Position in a body. It is small and can be encoded at any byte, so that another node can continue the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The body has ended.
    Done,
    /// A body of known length.
    Length {
        /// Bytes still to come; never 0.
        left: u64,
    },
    /// Within a chunked body.
    Chunked(Chunked),
    /// The body ends with the connection; the caller sets `Done` when the connection ends.
    UntilClose,
}

const TAG_DONE: u8 = 0;
const TAG_LENGTH: u8 = 1;
const TAG_UNTIL_CLOSE: u8 = 2;
const TAG_CHUNKED: u8 = 3;

impl Body {
    /// A body of `left` bytes.
    pub const fn length(left: u64) -> Self {
        if left == 0 { Body::Done } else { Body::Length { left } }
    }

    /// A chunked body before its first byte.
    pub const fn chunked() -> Self {
        Body::Chunked(Chunked::new())
    }

    /// Consumes the bytes of `data` that belong to this body and returns their number. The number is less than the
    /// length of `data` only when the body is done. After a refusal the message cannot be continued.
    pub fn advance(&mut self, data: &[u8], limits: &Limits) -> Result<usize, Refusal> {
        match self {
            Body::Done => Ok(0),
            Body::UntilClose => Ok(data.len()),
            Body::Length { left } => {
                let taken = usize::try_from(*left).map_or(data.len(), |left| left.min(data.len()));
                *self = Body::length(*left - taken as u64);
                Ok(taken)
            }
            Body::Chunked(chunked) => {
                let (taken, done) = chunked.advance(data, limits, |_| {})?;
                if done {
                    *self = Body::Done;
                }
                Ok(taken)
            }
        }
    }

    /// Like [`Body::advance`]; returns the consumed bytes and how many of these are content.
    pub fn advance_counted(&mut self, data: &[u8], limits: &Limits) -> Result<(usize, usize), Refusal> {
        let Body::Chunked(chunked) = self else {
            let taken = self.advance(data, limits)?;
            return Ok((taken, taken));
        };
        let mut content = 0;
        let (taken, done) = chunked.advance(data, limits, |piece| content += piece.len())?;
        if done {
            *self = Body::Done;
        }
        Ok((taken, content))
    }

    /// Like [`Body::advance`]; appends the content without its framing to `out`.
    pub fn advance_content(
        &mut self,
        data: &[u8],
        limits: &Limits,
        out: &mut Vec<u8>,
    ) -> Result<usize, Refusal> {
        let Body::Chunked(chunked) = self else {
            let taken = self.advance(data, limits)?;
            out.extend_from_slice(&data[..taken]);
            return Ok(taken);
        };
        let (taken, done) = chunked.advance(data, limits, |piece| out.extend_from_slice(piece))?;
        if done {
            *self = Body::Done;
        }
        Ok(taken)
    }

    /// Whether the body has ended.
    pub fn is_done(&self) -> bool {
        matches!(self, Body::Done)
    }

    /// Appends the encoding that [`Body::decode`] reads: a tag, then little-endian integers.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Body::Done => out.push(TAG_DONE),
            Body::Length { left } => {
                out.push(TAG_LENGTH);
                out.extend_from_slice(&left.to_le_bytes());
            }
            Body::UntilClose => out.push(TAG_UNTIL_CLOSE),
            Body::Chunked(chunked) => {
                out.push(TAG_CHUNKED);
                chunked.encode(out);
            }
        }
    }

    /// Decodes a body from the start of `input`. Returns `None` for a truncated encoding and for one that `encode`
    /// never writes.
    pub fn decode(input: &mut &[u8]) -> Option<Body> {
        let (&tag, rest) = input.split_first()?;
        *input = rest;
        match tag {
            TAG_DONE => Some(Body::Done),
            TAG_LENGTH => take_u64(input).filter(|&left| left > 0).map(|left| Body::Length { left }),
            TAG_UNTIL_CLOSE => Some(Body::UntilClose),
            TAG_CHUNKED => Chunked::decode(input).map(Body::Chunked),
            _ => None,
        }
    }
}

pub(crate) fn take_u64(input: &mut &[u8]) -> Option<u64> {
    let (bytes, rest) = input.split_first_chunk::<8>()?;
    *input = rest;
    Some(u64::from_le_bytes(*bytes))
}

pub(crate) fn take_u32(input: &mut &[u8]) -> Option<u32> {
    let (bytes, rest) = input.split_first_chunk::<4>()?;
    *input = rest;
    Some(u32::from_le_bytes(*bytes))
}
