//! A request head has one verdict in any segmentation. An accepted head means the same to another parser, and again
//! after it was rewritten for the server.

#![no_main]

use evergate_fuzz::input::{Choices, split};
use evergate_fuzz::version::as_http11;
use evergate_http::{
    HOST_BYTES_MAX, HeaderSlots, Limits, Parsed, Refusal, RequestEdits, RequestHead, Version, canonical_path,
    parse_request, write_request_head,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (mut choices, bytes) = split(data);
    let flags = choices.byte();
    let limits = limits(flags, &mut choices);
    one_verdict(&choices, bytes, &limits);
    let mut slots = HeaderSlots::new();
    if let Ok(Parsed::Complete(head)) = parse_request(bytes, &limits, &mut slots) {
        second_opinion(bytes, &head);
        rewritten(&head, flags);
        let _ = (head.host_name(), head.cookies("eg").count(), head.is_idempotent());
        one_spelling(&head);
        assert!(head.head_len <= bytes.len());
    }
});

/// The usual limits, or tight ones.
fn limits(flags: u8, choices: &mut Choices<'_>) -> Limits {
    if flags & 1 == 0 {
        return Limits::default();
    }
    Limits {
        head_bytes_max: usize::from(choices.byte()) * 4,
        headers_max: usize::from(choices.byte()),
        target_bytes_max: usize::from(choices.byte()),
        ..Limits::default()
    }
}

fn verdict(parsed: Result<Parsed<RequestHead<'_>>, Refusal>) -> Option<Result<usize, Refusal>> {
    match parsed {
        Ok(Parsed::Partial) => None,
        Ok(Parsed::Complete(head)) => Some(Ok(head.head_len)),
        Err(refusal) => Some(Err(refusal)),
    }
}

fn one_verdict(choices: &Choices<'_>, bytes: &[u8], limits: &Limits) {
    let judge = |end: usize| verdict(parse_request(&bytes[..end], limits, &mut HeaderSlots::new()));
    let mut end = 0;
    let first = choices.pieces(bytes).iter().find_map(|piece| {
        end += piece.len();
        judge(end)
    });
    assert_eq!(first, judge(bytes.len()), "the verdict depends on the split");
}

/// The host that rules compare has only one spelling.
fn one_spelling(head: &RequestHead<'_>) {
    let mut once = [0; HOST_BYTES_MAX];
    let host = head.canonical_host(&mut once);
    assert!(host.len() <= head.host.len() && !host.iter().any(u8::is_ascii_uppercase));
    let bytes = [&b"GET / HTTP/1.1\r\nHost: "[..], host, b"\r\n\r\n"].concat();
    let mut slots = HeaderSlots::new();
    if let Ok(Parsed::Complete(again)) = parse_request(&bytes, &Limits::default(), &mut slots) {
        let mut twice = [0; HOST_BYTES_MAX];
        assert_eq!(again.canonical_host(&mut twice), host, "the canonical form is no fixed point");
    } else {
        assert!(host.is_empty());
    }
}

fn second_opinion(bytes: &[u8], ours: &RequestHead<'_>) {
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut theirs = httparse::Request::new(&mut headers);
    let bytes = as_http11(bytes, b" HTTP/1.");
    assert_eq!(theirs.parse(&bytes), Ok(httparse::Status::Complete(ours.head_len)));
    assert_eq!(theirs.method, Some(ours.method));
    assert_eq!(theirs.path.map(str::as_bytes), Some(ours.target));
    let theirs = theirs.headers.iter().map(|header| (header.name, header.value));
    assert!(ours.headers.iter().map(|header| (header.name, header.value)).eq(theirs));
}

/// Host of an HTTP/1.0 request that names none.
const HOST: &str = "198.51.100.1";

/// Meaning of a request for a server.
fn meaning<'a>(head: &RequestHead<'a>) -> impl PartialEq + std::fmt::Debug + use<'a> {
    (
        (head.method, head.query, if head.host.is_empty() { HOST.as_bytes() } else { head.host }),
        (head.framing, head.expect_continue, head.upgrade),
        head.headers.all("accept").collect::<Vec<_>>(),
        head.headers.all("cookie").collect::<Vec<_>>(),
    )
}

fn rewritten(head: &RequestHead<'_>, flags: u8) {
    let mut path = Vec::new();
    let canonical = canonical_path(head.path, &mut path).is_ok();
    if canonical {
        let mut again = Vec::new();
        assert_eq!(canonical_path(&path, &mut again), Ok(false), "the canonical form is no fixed point");
        assert_eq!(path, again);
    }
    let mut offer = Vec::new();
    head.write_offer(&mut offer, usize::MAX);
    let edits = RequestEdits {
        path: if canonical { &path } else { b"" },
        default_host: HOST,
        client_ip: "192.0.2.7",
        scheme: "http",
        request_id: "0123456789abcdef",
        trust_forwarded: flags & 2 != 0,
        set: &[("X-Set", "a\r\nContent-Length: 7"), ("Content-Length", "9"), ("Bad Name", "x")],
        remove: &["X-Removed", "Host", "Transfer-Encoding"],
        offer: &offer,
        continued: false,
        close: flags & 4 != 0,
    };
    let mut out = b"before".to_vec();
    write_request_head(&mut out, head, &edits);
    let out = out.strip_prefix(b"before").expect("the head is appended");
    // The rewritten head may be longer, and may have a few more lines than a client is allowed.
    let limits =
        Limits { head_bytes_max: 1 << 20, headers_max: 128, target_bytes_max: 1 << 16, ..Limits::default() };
    let mut slots = HeaderSlots::new();
    let parsed = parse_request(out, &limits, &mut slots);
    let Ok(Parsed::Complete(again)) = parsed else { panic!("{parsed:?}: {}", String::from_utf8_lossy(out)) };
    assert_eq!((again.head_len, again.version), (out.len(), Version::H11));
    assert_eq!(again.path, if canonical { &path[..] } else { head.path });
    assert_eq!(meaning(&again), meaning(head), "{}", String::from_utf8_lossy(out));
}
