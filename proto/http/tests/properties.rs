//! Properties over generated and mutated messages.

mod support;

use evergate_http::{
    Body, HeaderSlots, Limits, Parsed, RequestEdits, ResponseEdits, canonical_path, parse_request,
    parse_response, write_request_head, write_response_head,
};
use proptest::collection::vec;
use proptest::prelude::*;
use support::{feed, request_verdict, request_verdict_within, response_verdict, stream_verdict};

const HEADS: &[&str] = &[
    "GET /where?q=now HTTP/1.1\r\nHost: www.example.org\r\nAccept: */*\r\nCookie: a=b; c=d\r\n\r\n",
    "POST http://a:80/x HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\nExpect: 100-continue\r\n\r\n",
    "PUT / HTTP/1.1\r\nHost: [::1]:8443\r\nTransfer-Encoding: chunked\r\nConnection: close, x\r\nX: y\r\n\r\n",
    "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nTE: trailers\r\n\r\n",
    "m!x http://a,b%20c/x HTTP/1.7\r\nHost: a,b%20c:\r\nConnection: upgrade\r\nUpgrade: h2c, x/1, y\r\n\r\n",
    "\r\nOPTIONS * HTTP/1.0\r\nHost: a\r\nX-Forwarded-For: 1.1.1.1\r\nX_Request_Id: 7\r\nEmpty:\r\n\r\n",
];

const RESPONSES: &[&str] = &[
    "HTTP/1.4 200 OK\r\nContent-Length: 5\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive, A\r\nA: b\r\n\r\n",
    "HTTP/1.0 404 Not Found\r\nServer: x\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Digest\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "HTTP/1.1 204\r\n\r\n",
];

const STREAMS: &[&str] = &[
    "5\r\nhello\r\n0\r\n\r\n",
    "1;a=\"b\\\" c\"\r\nx\r\nB\r\n01234567890\r\n00\r\nServer-Timing: a\r\nX-Check: 1\r\n\r\n",
    "3\r\n\r\n\r\r\n0;e\r\nHos: t\r\n\r\n",
];

/// The head as HTTP/1.1, for a parser that knows no higher minor version; `before` is put in front of it.
fn as_http11(bytes: &[u8], before: &[u8]) -> Vec<u8> {
    let mut all = bytes.to_vec();
    let at = all.windows(before.len()).position(|window| window == before).map(|at| at + before.len());
    if let Some(minor @ b'2'..=b'9') = at.and_then(|at| all.get_mut(at)) {
        *minor = b'1';
    }
    all
}

/// One of the texts with a few bytes replaced, inserted, deleted or doubled; significant bytes are frequent.
fn mutated(texts: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        proptest::sample::select(b"\r\n\t :;,\0\x0b\x7f/?#*%@[]0159afAFxX-_+\"\\".to_vec()),
        any::<u8>()
    ];
    let edit = (0u8..4, any::<proptest::sample::Index>(), byte);
    (proptest::sample::select(texts), vec(edit, 0..5)).prop_map(|(text, edits)| {
        let mut bytes = text.as_bytes().to_vec();
        for (kind, index, byte) in edits {
            if bytes.is_empty() {
                break;
            }
            let at = index.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, bytes[at]),
            }
        }
        bytes
    })
}

/// Meaning of a request for a server, to compare before and after rewriting.
fn meaning(bytes: &[u8]) -> Option<impl PartialEq + std::fmt::Debug + use<>> {
    let mut slots = HeaderSlots::new();
    match parse_request(bytes, &Limits::default(), &mut slots) {
        Ok(Parsed::Complete(h)) => {
            let end_to_end: Vec<_> = h
                .headers
                .iter()
                .filter(|line| matches!(line.name, "Accept" | "Cookie" | "Empty"))
                .map(|line| (line.name.to_string(), line.value.to_vec()))
                .collect();
            Some((
                h.method.to_string(),
                (h.path.to_vec(), h.query.map(<[u8]>::to_vec), h.host.to_vec()),
                (h.framing, h.expect_continue, h.upgrade), // the proxy always writes HTTP/1.1
                end_to_end,
            ))
        }
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    /// The verdict helpers compare byte-by-byte feeding with the whole.
    #[test]
    fn mutated_requests_have_one_verdict(bytes in mutated(HEADS)) {
        request_verdict(&bytes);
    }

    #[test]
    fn verdict_under_tight_limits_is_independent_of_the_split(
        bytes in mutated(HEADS), head in 1usize..120, headers in 0usize..6, target in 0usize..30,
    ) {
        let limits = Limits {
            head_bytes_max: head, headers_max: headers, target_bytes_max: target, ..Limits::default()
        };
        request_verdict_within(&bytes, &limits);
    }

    #[test]
    fn mutated_responses_have_one_verdict(bytes in mutated(RESPONSES), to_head: bool) {
        response_verdict(&bytes, to_head);
    }

    #[test]
    fn mutated_chunk_streams_have_one_verdict(bytes in mutated(STREAMS)) {
        stream_verdict(&bytes);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        request_verdict(&bytes);
        response_verdict(&bytes, false);
        stream_verdict(&bytes);
        let mut out = Vec::new();
        let _ = canonical_path(&bytes, &mut out);
        let _ = Body::decode(&mut &bytes[..]);
    }

    /// The state is encoded and decoded between the pieces.
    #[test]
    fn body_end_is_independent_of_the_split(bytes in mutated(STREAMS), sizes in vec(1usize..9, 1..20)) {
        let limits = Limits::default();
        prop_assert_eq!(
            feed(Body::chunked(), &bytes, &sizes, &limits).0,
            feed(Body::chunked(), &bytes, &[], &limits).0
        );
        let length = Body::length(bytes.len() as u64 / 2);
        prop_assert_eq!(feed(length, &bytes, &sizes, &limits), feed(length, &bytes, &[], &limits));
    }

    #[test]
    fn content_and_length_are_independent_of_the_split(bytes in mutated(STREAMS), cut in 0usize..200) {
        let limits = Limits::default();
        let (mut whole, mut split, mut framed) = (Body::chunked(), Body::chunked(), Body::chunked());
        let (mut whole_out, mut split_out) = (Vec::new(), Vec::new());
        let taken = whole.advance_content(&bytes, &limits, &mut whole_out);
        prop_assert_eq!(&taken, &framed.advance(&bytes, &limits));
        let (first, second) = bytes.split_at(cut.min(bytes.len()));
        let both = split.advance_content(first, &limits, &mut split_out).and_then(|one| {
            let two = split.advance_content(second, &limits, &mut split_out)?;
            Ok(one + two)
        });
        prop_assert_eq!(taken, both);
        if taken.is_ok() {
            prop_assert_eq!(whole_out, split_out);
        }
    }

    #[test]
    fn decoded_bodies_never_panic(
        tag in 0u8..5, state in vec(any::<u8>(), 0..20), data in vec(any::<u8>(), 0..60),
    ) {
        let mut encoded = vec![tag];
        encoded.extend(state);
        if let Some(mut body) = Body::decode(&mut &encoded[..]) {
            let taken = body.advance(&data, &Limits::default()).unwrap_or(0);
            prop_assert!(taken <= data.len());
        }
    }

    /// An independent parser reads every accepted message in the same way.
    #[test]
    fn another_parser_reads_accepted_requests_the_same(bytes in mutated(HEADS)) {
        let mut slots = HeaderSlots::new();
        if let Ok(Parsed::Complete(ours)) = parse_request(&bytes, &Limits::default(), &mut slots) {
            let mut headers = [httparse::EMPTY_HEADER; 128];
            let mut theirs = httparse::Request::new(&mut headers);
            let bytes = as_http11(&bytes, b" HTTP/1.");
            prop_assert_eq!(theirs.parse(&bytes), Ok(httparse::Status::Complete(ours.head_len)));
            prop_assert_eq!(theirs.method, Some(ours.method));
            prop_assert_eq!(theirs.path.map(str::as_bytes), Some(ours.target));
            let a: Vec<_> = ours.headers.iter().map(|h| (h.name, h.value)).collect();
            let b: Vec<_> = theirs.headers.iter().map(|h| (h.name, h.value)).collect();
            prop_assert_eq!(a, b);
        }
    }

    #[test]
    fn another_parser_reads_accepted_responses_the_same(bytes in mutated(RESPONSES)) {
        let mut slots = HeaderSlots::new();
        if let Ok(Parsed::Complete(ours)) = parse_response(&bytes, &Limits::default(), &mut slots, false) {
            let mut headers = [httparse::EMPTY_HEADER; 128];
            let mut theirs = httparse::Response::new(&mut headers);
            let bytes = as_http11(&bytes, b"HTTP/1.");
            prop_assert_eq!(theirs.parse(&bytes), Ok(httparse::Status::Complete(ours.head_len)));
            prop_assert_eq!(theirs.code, Some(ours.status));
            let a: Vec<_> = ours.headers.iter().map(|h| (h.name, h.value)).collect();
            let b: Vec<_> = theirs.headers.iter().map(|h| (h.name, h.value)).collect();
            prop_assert_eq!(a, b);
        }
    }

    #[test]
    fn rewritten_requests_mean_the_same(bytes in mutated(HEADS)) {
        let Some(before) = meaning(&bytes) else { return Ok(()) };
        let mut slots = HeaderSlots::new();
        let Ok(Parsed::Complete(head)) = parse_request(&bytes, &Limits::default(), &mut slots) else {
            return Ok(());
        };
        // A client of HTTP/1.0 that names no host receives the default one.
        prop_assume!(!head.host.is_empty());
        let mut offer = Vec::new();
        head.write_offer(&mut offer, usize::MAX);
        prop_assert_eq!(head.upgrade, !offer.is_empty());
        let edits =
            RequestEdits { client_ip: "::1", scheme: "http", offer: &offer, ..RequestEdits::default() };
        let mut out = Vec::new();
        write_request_head(&mut out, &head, &edits);
        let after = meaning(&out);
        prop_assert_eq!(Some(before), after, "{}", String::from_utf8_lossy(&out));
    }

    #[test]
    fn rewritten_responses_mean_the_same(bytes in mutated(RESPONSES), to_head: bool) {
        let limits = Limits::default();
        let (mut a, mut b) = (HeaderSlots::new(), HeaderSlots::new());
        let Ok(Parsed::Complete(before)) = parse_response(&bytes, &limits, &mut a, to_head) else {
            return Ok(());
        };
        let mut out = Vec::new();
        let edits = ResponseEdits { upgrade: true, close: !before.keep_alive, ..ResponseEdits::default() };
        write_response_head(&mut out, &before, &edits);
        let parsed = parse_response(&out, &limits, &mut b, to_head);
        let Ok(Parsed::Complete(after)) = parsed else { panic!("{parsed:?}") };
        prop_assert_eq!((before.status, before.framing), (after.status, after.framing));
        prop_assert!(before.status < 200 || before.keep_alive == after.keep_alive);
        prop_assert_eq!(out.len(), after.head_len);
    }

    #[test]
    fn canonical_paths_are_fixed_points_without_dot_segments(path in "(/|\\.|%2[eEfF]|%4[1a]|a|%c3){0,24}") {
        let path = format!("/{path}");
        let (mut once, mut twice) = (Vec::new(), Vec::new());
        let changed = canonical_path(path.as_bytes(), &mut once).unwrap();
        prop_assert_eq!(changed, once != path.as_bytes());
        prop_assert_eq!(canonical_path(&once, &mut twice), Ok(false));
        prop_assert_eq!(&once, &twice);
        prop_assert!(once.starts_with(b"/"));
        prop_assert!(!once.split(|&b| b == b'/').any(|segment| segment == b"." || segment == b".."));
    }
}
