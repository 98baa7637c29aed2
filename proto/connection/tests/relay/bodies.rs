//! Large and oddly framed bodies, heads that change size, slow peers.

use super::harness::peer::Peer;
use super::harness::rig::Rig;
use super::harness::setup::{self, set_rules, snapshot};
use super::{GET, noise, on_each, plain, same, text};
use evergate_rules::RuleSpec;

fn chunked(body: &[u8], sizes: &[usize], trailer: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let (mut rest, mut index) = (body, 0);
    while !rest.is_empty() {
        let size = sizes[index % sizes.len()].min(rest.len());
        index += 1;
        out.extend_from_slice(format!("{size:x};x=y\r\n").as_bytes());
        out.extend_from_slice(&rest[..size]);
        out.extend_from_slice(b"\r\n");
        rest = &rest[size..];
    }
    out.extend_from_slice(format!("0\r\n{trailer}\r\n").as_bytes());
    out
}

#[test]
fn large_bodies_pass_both_ways_whatever_the_segments() {
    let body = noise(700_000);
    for segment in [usize::MAX, 100_000, 16_389, 1448, 333] {
        on_each(|mut rig, _| {
            rig.segment = segment;
            rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 700000\r\n\r\n");
            rig.server_got(1);
            rig.send(&body);
            same(&rig.server_got(1), &body);
            rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 700000\r\n\r\n");
            rig.received();
            rig.serve(1, &body);
            same(&rig.received(), &body);
            assert_eq!(rig.legs[&1].released, Some(true));
            let framed = chunked(&body, &[1, 10, 5000, 16_384, 40_000], "Sum: 1\r\n");
            rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nTransfer-Encoding: chunked\r\n\r\n");
            rig.server_got(2);
            rig.send(&framed);
            same(&rig.server_got(2), &framed);
            rig.serve(2, &[b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", &framed[..]].concat());
            same(
                &rig.received(),
                &[b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", &framed[..]].concat(),
            );
            assert_eq!(rig.legs[&2].released, Some(true));
        });
    }
}

#[test]
fn bodies_pass_byte_by_byte() {
    let body = noise(3000);
    on_each(|mut rig, _| {
        rig.segment = 1;
        rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 3000\r\n\r\n");
        rig.server_got(1);
        rig.send(&body);
        same(&rig.server_got(1), &body);
        rig.serve(1, &[b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n", &body[..]].concat());
        assert!(rig.received().ends_with(&body));
    });
}

#[test]
fn a_response_may_begin_and_end_before_its_request_does() {
    on_each(|mut rig, _| {
        rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 300000\r\n\r\n");
        rig.send(&noise(1000));
        rig.serve(1, b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno");
        let ends = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno";
        same(&rig.received(), ends);
        assert_eq!((rig.legs[&1].released, rig.client_fin), (Some(false), true));
        // What is still on its way is read and dropped, so that no RST destroys the answer.
        rig.send(&noise(200_000));
        assert_eq!(rig.closed, None);
        rig.end_client();
        assert_eq!(rig.closed, Some(false));
    });
}

#[test]
fn response_announces_the_known_end_of_the_connection() {
    on_each(|mut rig, _| {
        // The rest of the request may come before the rest of the response: the order is unknown.
        let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok";
        rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 6\r\n\r\nfoo");
        rig.serve(1, ok);
        same(&rig.received(), ok);
        rig.send(b"bar");
        rig.serve(1, b"ok");
        assert_eq!((rig.client_fin, rig.legs[&1].released), (false, Some(true)));
        // Nothing but the head, and not the one that comes before it.
        rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 6\r\n\r\nfoo");
        rig.serve(2, b"HTTP/1.1 100 Continue\r\n\r\n");
        rig.serve(2, b"HTTP/1.1 204 No Content\r\n\r\n");
        let received = text(&rig.received());
        assert!(
            received.ends_with(
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
            )
        );
        assert!(rig.client_fin);
    });
}

/// Rules that change the size of response heads.
fn resized(set: usize, remove: bool) -> Vec<RuleSpec> {
    let values = (0..set).map(|n| (format!("X-Pad-{n}"), "p".repeat(1000))).collect();
    let remove_response_headers = if remove { vec!["X-Big".to_owned()] } else { Vec::new() };
    vec![RuleSpec {
        name: "resize".to_owned(),
        set_response_headers: values,
        remove_response_headers,
        ..RuleSpec::default()
    }]
}

#[test]
fn heads_grow_and_shrink_in_place_and_beyond() {
    let body = noise(40_000);
    for (set, remove) in [(0, true), (2, false), (3, false), (5, true), (12, false)] {
        for version in [None, Some(super::TLS12), Some(super::TLS13)] {
            let config = snapshot(|snapshot| set_rules(snapshot, &resized(set, remove)));
            for segment in [usize::MAX, 1000, 17] {
                let mut rig = match version {
                    None => Rig::new(&config, setup::HTTP, Peer::plain()),
                    Some(version) => Rig::new(&config, setup::HTTPS, Peer::rustls(version)),
                };
                rig.segment = segment;
                rig.send(format!("{GET}\r\n").as_bytes());
                let big = "b".repeat(3000);
                let head = format!("HTTP/1.1 200 OK\r\nX-Big: {big}\r\nContent-Length: 40000\r\n\r\n");
                rig.serve(1, &[head.as_bytes(), &body].concat());
                let got = rig.received();
                let end = got.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
                same(&got[end..], &body);
                let head = text(&got[..end]);
                assert_eq!(head.matches("x-pad").count(), set);
                assert_eq!(head.contains("X-Big"), !remove);
                assert_eq!(rig.legs[&1].released, Some(true));
            }
        }
    }
}

#[test]
fn a_response_head_may_fill_what_is_allowed_but_no_more() {
    for (pad, passes) in [(12_000, true), (12_260, true), (15_000, true), (16_200, true), (17_000, false)] {
        for segment in [usize::MAX, 5000, 900] {
            on_each(|mut rig, _| {
                rig.segment = segment;
                rig.send(format!("{GET}\r\n").as_bytes());
                let head =
                    format!("HTTP/1.1 200 OK\r\nX-Pad: {}\r\nContent-Length: 30000\r\n\r\n", "p".repeat(pad));
                let body = noise(30_000);
                rig.serve(1, &[head.as_bytes(), &body].concat());
                match passes {
                    true => same(&rig.received(), &[head.as_bytes(), &body].concat()),
                    false => assert!(text(&rig.received()).starts_with("HTTP/1.1 502 Bad Gateway\r\n")),
                }
            });
        }
    }
}

#[test]
fn a_slow_client_stops_the_server_and_gets_everything() {
    let body = noise(900_000);
    on_each(|mut rig, _| {
        rig.client_reads = false;
        rig.client_room = rig.to_client.len() + 10_000;
        rig.send(format!("{GET}Connection: close\r\n\r\n").as_bytes());
        rig.serve(1, &[b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n", &body[..]].concat());
        assert!(rig.conn.down().len() <= 300_000, "read on although the client is slow");
        rig.client_reads = true;
        // Less than the write timeout between any two reads, but long after the linger of the end.
        while rig.closed.is_none() && !rig.client_fin {
            rig.client_room += 100_000;
            rig.run();
            rig.wait(20_000);
        }
        rig.wait(1);
        let got = rig.received();
        assert!(got.ends_with(&body), "{} bytes", got.len());
        rig.end_client();
        assert_eq!(rig.closed, Some(false));
    });
}

#[test]
fn a_client_that_ended_gets_the_rest_before_the_close() {
    let body = noise(500_000);
    let mut rig = plain(|_| {});
    rig.client_room = 5000;
    rig.wire(format!("{GET}\r\n").as_bytes());
    rig.run();
    rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n");
    rig.cut_client();
    rig.serve(1, &body);
    for _ in 0..200 {
        assert_eq!(rig.closed, None);
        rig.client_room += 5000;
        rig.wait(3000);
        if rig.closed.is_some() {
            break;
        }
    }
    assert_eq!(rig.closed, Some(false));
    assert!(rig.received().ends_with(&body));
}

#[test]
fn a_slow_server_stops_the_client_and_gets_everything() {
    let body = noise(900_000);
    on_each(|mut rig, _| {
        rig.server_room = 1000;
        rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 900000\r\n\r\n");
        rig.send(&body);
        assert!(rig.conn.up().len() <= 100_000 && !rig.conn.wants_client());
        while !rig.conn.up().is_empty() {
            rig.server_room += 7777;
            rig.wait(1000);
        }
        assert!(rig.server_got(1).ends_with(&body));
        assert_eq!(rig.closed, None);
    });
}

#[test]
fn plain_bodies_may_be_spliced() {
    let mut rig = plain(|_| {});
    rig.wire(format!("{GET}\r\n{GET}\r\n").as_bytes());
    rig.run();
    assert_eq!((rig.conn.splice_down(), rig.conn.splice_up()), (0, 0));
    rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
    assert_eq!((rig.conn.splice_down(), rig.conn.splice_up()), (100_000, 0));
    rig.call(|conn, io| conn.handle_spliced_down(io, 60_000, 0));
    assert_eq!((rig.conn.splice_down(), rig.legs.len()), (40_000, 1));
    rig.call(|conn, io| conn.handle_spliced_down(io, 40_000, 0));
    assert_eq!((rig.conn.splice_down(), rig.legs[&1].released), (0, Some(true)));
    assert_eq!(rig.legs.len(), 2, "the waiting request proceeds");
    assert!(rig.logs[0].bytes_out > 100_000);
    on_each(|mut rig, scheme| {
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
        assert_eq!(rig.conn.splice_down() > 0, scheme == "http");
    });
}
