//! Verdicts on whole inputs. Each is taken at once and byte by byte, and both must agree.
#![allow(dead_code)]

use evergate_http::{Body, HeaderSlots, Limits, Parsed, Refusal, parse_request, parse_response};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Partial,
    /// Number of bytes that belong to the message.
    Complete(usize),
    Refused(u16, &'static str),
}

fn of_head<T>(parsed: Result<Parsed<T>, Refusal>, head_len: impl Fn(&T) -> usize) -> Verdict {
    match parsed {
        Ok(Parsed::Partial) => Verdict::Partial,
        Ok(Parsed::Complete(head)) => Verdict::Complete(head_len(&head)),
        Err(refusal) => Verdict::Refused(refusal.status, refusal.reason),
    }
}

/// The verdict on the whole input; panics when byte-by-byte feeding gives another verdict first.
fn at_once_and_bytewise(bytes: &[u8], judge: impl Fn(&[u8]) -> Verdict) -> Verdict {
    let at_once = judge(bytes);
    let bytewise = (0..=bytes.len()).map(|len| judge(&bytes[..len])).find(|v| *v != Verdict::Partial);
    assert_eq!(
        bytewise.unwrap_or(Verdict::Partial),
        at_once,
        "bytewise and at once: {:?}",
        String::from_utf8_lossy(bytes)
    );
    at_once
}

pub(crate) fn request_verdict_within(bytes: &[u8], limits: &Limits) -> Verdict {
    at_once_and_bytewise(bytes, |bytes| {
        of_head(parse_request(bytes, limits, &mut HeaderSlots::new()), |head| head.head_len)
    })
}

pub(crate) fn request_verdict(bytes: &[u8]) -> Verdict {
    request_verdict_within(bytes, &Limits::default())
}

pub(crate) fn response_verdict(bytes: &[u8], head: bool) -> Verdict {
    at_once_and_bytewise(bytes, |bytes| {
        of_head(parse_response(bytes, &Limits::default(), &mut HeaderSlots::new(), head), |head| {
            head.head_len
        })
    })
}

/// Feeds a chunked body in pieces of the given sizes (the last one repeats); encodes and decodes the state between
/// pieces.
pub(crate) fn feed(start: Body, bytes: &[u8], sizes: &[usize], limits: &Limits) -> (Verdict, Body) {
    let mut body = start;
    let (mut at, mut piece) = (0, 0);
    while at < bytes.len() && !body.is_done() {
        let size = sizes.get(piece).or(sizes.last()).copied().unwrap_or(bytes.len()).max(1);
        piece += 1;
        let end = (at + size).min(bytes.len());
        match body.advance(&bytes[at..end], limits) {
            Ok(taken) => {
                assert!(taken == end - at || body.is_done());
                at += taken;
            }
            Err(refusal) => return (Verdict::Refused(refusal.status, refusal.reason), body),
        }
        let mut encoded = Vec::new();
        body.encode(&mut encoded);
        let mut rest = &encoded[..];
        body = match Body::decode(&mut rest) {
            Some(decoded) => {
                assert_eq!(decoded, body);
                assert!(rest.is_empty());
                decoded
            }
            None => panic!("{body:?} does not decode"),
        };
    }
    (if body.is_done() { Verdict::Complete(at) } else { Verdict::Partial }, body)
}

pub(crate) fn stream_verdict_within(bytes: &[u8], limits: &Limits) -> Verdict {
    let (at_once, _) = feed(Body::chunked(), bytes, &[], limits);
    let (bytewise, _) = feed(Body::chunked(), bytes, &[1], limits);
    assert_eq!(at_once, bytewise);
    at_once
}

pub(crate) fn stream_verdict(bytes: &[u8]) -> Verdict {
    stream_verdict_within(bytes, &Limits::default())
}
