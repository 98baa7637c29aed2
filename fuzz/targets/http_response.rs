//! A response head has one verdict in any segmentation. An accepted head means the same to another parser, and again
//! after it was rewritten for the client.

#![no_main]

use evergate_fuzz::input::{Choices, split};
use evergate_fuzz::version::as_http11;
use evergate_http::{
    HeaderSlots, Limits, Parsed, Refusal, ResponseEdits, ResponseFraming, ResponseHead, parse_response,
    write_response_head,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (mut choices, bytes) = split(data);
    let flags = choices.byte();
    let to_head = flags & 1 != 0;
    let limits = match flags & 2 {
        0 => Limits::default(),
        _ => Limits {
            head_bytes_max: usize::from(choices.byte()) * 4,
            headers_max: usize::from(choices.byte()),
            ..Limits::default()
        },
    };
    one_verdict(&choices, bytes, &limits, to_head);
    let mut slots = HeaderSlots::new();
    if let Ok(Parsed::Complete(head)) = parse_response(bytes, &limits, &mut slots, to_head) {
        assert!(head.head_len <= bytes.len() && (100..600).contains(&head.status));
        second_opinion(bytes, &head);
        rewritten(&head, flags, to_head);
    }
});

fn verdict(parsed: Result<Parsed<ResponseHead<'_>>, Refusal>) -> Option<Result<usize, Refusal>> {
    match parsed {
        Ok(Parsed::Partial) => None,
        Ok(Parsed::Complete(head)) => Some(Ok(head.head_len)),
        Err(refusal) => Some(Err(refusal)),
    }
}

fn one_verdict(choices: &Choices<'_>, bytes: &[u8], limits: &Limits, to_head: bool) {
    let judge = |end: usize| verdict(parse_response(&bytes[..end], limits, &mut HeaderSlots::new(), to_head));
    let mut end = 0;
    let first = choices.pieces(bytes).iter().find_map(|piece| {
        end += piece.len();
        judge(end)
    });
    assert_eq!(first, judge(bytes.len()), "the verdict depends on the split");
}

fn second_opinion(bytes: &[u8], ours: &ResponseHead<'_>) {
    let mut headers = [httparse::EMPTY_HEADER; 128];
    let mut theirs = httparse::Response::new(&mut headers);
    let bytes = as_http11(bytes, b"HTTP/1.");
    assert_eq!(theirs.parse(&bytes), Ok(httparse::Status::Complete(ours.head_len)));
    assert_eq!(theirs.code, Some(ours.status));
    let theirs = theirs.headers.iter().map(|header| (header.name, header.value));
    assert!(ours.headers.iter().map(|header| (header.name, header.value)).eq(theirs));
}

fn rewritten(head: &ResponseHead<'_>, flags: u8, to_head: bool) {
    let edits = ResponseEdits {
        close: flags & 4 != 0 || !head.keep_alive,
        http10_client: flags & 8 != 0,
        set: &[("X-Set", "a\r\nContent-Length: 7"), ("Transfer-Encoding", "chunked"), ("Bad Name", "x")],
        remove: &["Content-Length", "X-Removed"],
        append: &[("Set-Cookie", "eg=a0; Path=/")],
        upgrade: true,
    };
    let mut out = b"before".to_vec();
    write_response_head(&mut out, head, &edits);
    let out = out.strip_prefix(b"before").expect("the head is appended");
    let limits = Limits { head_bytes_max: 1 << 20, headers_max: 128, ..Limits::default() };
    let mut slots = HeaderSlots::new();
    let parsed = parse_response(out, &limits, &mut slots, to_head);
    let Ok(Parsed::Complete(again)) = parsed else { panic!("{parsed:?}: {}", String::from_utf8_lossy(out)) };
    assert_eq!(again.head_len, out.len());
    // A client of HTTP/1.0 receives a chunked body without its framing.
    let framing = match head.framing {
        ResponseFraming::Chunked if edits.http10_client => ResponseFraming::UntilClose,
        framing => framing,
    };
    assert_eq!((again.status, again.framing), (head.status, framing), "{}", String::from_utf8_lossy(out));
    let closes = edits.close || framing == ResponseFraming::UntilClose;
    assert!(head.status < 200 || again.keep_alive != closes);
}
