//! A body ends at the same byte, with the same verdict, in any segmentation and after its position is encoded and
//! decoded at any byte. No decoded position consumes more bytes than there are.

#![no_main]

use evergate_fuzz::input::split;
use evergate_http::{Body, Limits, Refusal};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (mut choices, bytes) = split(data);
    let flags = choices.byte();
    let limits = match flags & 1 {
        0 => Limits::default(),
        _ => Limits {
            trailer_bytes_max: usize::from(choices.byte()),
            chunk_line_bytes_max: usize::from(choices.byte()),
            ..Limits::default()
        },
    };
    let (start, bytes) = match flags >> 1 & 3 {
        0 => (Body::chunked(), bytes),
        1 => (Body::length(u64::from(choices.byte()) << (choices.byte() & 31)), bytes),
        2 => (Body::UntilClose, bytes),
        _ => {
            let mut rest = bytes;
            let Some(body) = Body::decode(&mut rest) else { return };
            assert!(rest.len() < bytes.len());
            (carried(body), rest)
        }
    };
    let at_once = feed(start, [bytes], &limits);
    let split = feed(start, choices.pieces(bytes), &limits);
    assert_eq!(at_once, split, "the body's end depends on the split");
    if bytes.len() <= 256 {
        assert_eq!(at_once, feed(start, bytes.chunks(1), &limits), "the body's end depends on the split");
    }
});

/// The position on another node.
fn carried(body: Body) -> Body {
    let mut bytes = Vec::new();
    body.encode(&mut bytes);
    let mut rest = &bytes[..];
    let decoded = Body::decode(&mut rest);
    assert!(decoded == Some(body) && rest.is_empty(), "{body:?} became {decoded:?}");
    body
}

/// Bytes consumed and the position after them, or the reason of a refusal.
fn feed<'a>(
    start: Body,
    pieces: impl IntoIterator<Item = &'a [u8]>,
    limits: &Limits,
) -> Result<(usize, Body), Refusal> {
    let (mut body, mut total) = (start, 0);
    for piece in pieces {
        if body.is_done() {
            break;
        }
        let taken = body.advance(piece, limits)?;
        assert!(
            taken == piece.len() || (taken < piece.len() && body.is_done()),
            "bytes were left before the end"
        );
        total += taken;
        body = carried(body);
    }
    Ok((total, body))
}
