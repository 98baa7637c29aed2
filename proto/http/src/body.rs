//! Where a message body stands. The bytes themselves are forwarded as they are; this only finds where they end.

use crate::chunked::Chunked;
use crate::limits::{Limits, Refusal};

/// Where a body stands. Small, and serialisable at any byte position, so that another node can continue it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Nothing more belongs to this message.
    Done,
    /// So many bytes are still to come; never 0.
    Length {
        /// Bytes still to come.
        left: u64,
    },
    /// Within a chunked body.
    Chunked(Chunked),
    /// Everything until the connection ends; the caller sets `Done` when it does.
    UntilClose,
}

const TAG_DONE: u8 = 0;
const TAG_LENGTH: u8 = 1;
const TAG_UNTIL_CLOSE: u8 = 2;
const TAG_CHUNKED: u8 = 3;

impl Body {
    /// A body of so many bytes.
    pub const fn length(left: u64) -> Self {
        if left == 0 { Body::Done } else { Body::Length { left } }
    }

    /// A chunked body before its first byte.
    pub const fn chunked() -> Self {
        Body::Chunked(Chunked::new())
    }

    /// Takes the bytes of `data` that belong to this body and says how many. Fewer than all of them are taken only
    /// when the body is done. After a refusal the message cannot be continued.
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

    /// The same as [`Body::advance`], and says how many of them are content and not framing.
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

    /// The same as [`Body::advance`], and appends the content without its framing to `out`.
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

    /// Nothing more belongs to this message.
    pub fn is_done(&self) -> bool {
        matches!(self, Body::Done)
    }

    /// Appends a form that [`Body::decode`] reads back: a tag, then integers in little-endian order.
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

    /// Takes an encoded body from the start of `input`; nothing when it is cut short or not one we would write.
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
