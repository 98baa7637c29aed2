//! Cases of TLS alone: handshakes in pieces, KeyUpdates, clients with another protocol, servers with TLS.

use super::harness::peer::{Peer, rustls_config};
use super::harness::rig::Rig;
use super::harness::secure::ServerTls;
use super::harness::setup::{self, forwarded, root, snapshot, upstream_tls};
use super::{GET, TLS12, TLS13, noise, same, text};
use evergate_connection::Snapshot;
use rustls::pki_types::ServerName;
use std::io::{Read, Write};
use std::sync::Arc;

#[test]
fn handshake_passes_in_any_segmentation_with_a_request() {
    for version in [TLS12, TLS13] {
        for segment in [1, 5, 100, 1000] {
            let mut rig = Rig::new_wired(&snapshot(|_| {}), setup::HTTPS, Peer::rustls(version), segment);
            rig.send(format!("{GET}\r\n").as_bytes());
            same(&rig.server_got(1), &forwarded(GET, "https", 0));
            rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            let (name, _, sni) = rig.conn.session().unwrap();
            assert_eq!(name, if version == TLS12 { "TLSv1.2" } else { "TLSv1.3" });
            assert_eq!(sni, Some("test.example"));
        }
    }
}

#[test]
fn data_that_follows_the_handshake_in_one_read_is_not_lost() {
    for cut in [0, 1, 4, 30, 80] {
        let (mut peer, hello) = Peer::ours(TLS13, 1);
        let early = peer.send(format!("{GET}\r\n").as_bytes());
        assert!(early.is_empty());
        let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::plain());
        rig.peer = peer;
        rig.wire(&hello);
        rig.hold_back(cut);
        rig.run();
        rig.hold_back(0);
        rig.run();
        same(&rig.server_got(1), &forwarded(GET, "https", 0));
    }
}

#[test]
fn tickets_leave_with_the_first_response_and_resume() {
    for version in [TLS12, TLS13] {
        let config = rustls_config(version);
        for resumed in [false, true, true] {
            let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::rustls_with(&config));
            let before = rig.to_client.len();
            rig.send(format!("{GET}\r\n").as_bytes());
            assert_eq!(rig.to_client.len(), before, "something was sent before the first response");
            rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            assert_eq!(rig.conn.session_resumed(), Some(resumed));
            rig.end_client();
            assert_eq!(rig.closed, Some(false));
        }
    }
    // A connection without a request ends with its tickets before the alert.
    let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::rustls(TLS13));
    rig.end_client();
    assert!(rig.peer.saw_close_notify());
}

#[test]
fn key_updates_of_the_client_are_followed_and_answered() {
    let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::rustls(TLS13));
    for leg in 1..=3 {
        rig.peer.as_rustls().refresh_traffic_keys().unwrap();
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(leg, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    }
    for request in [false, true] {
        let (peer, hello) = Peer::ours(TLS13, 2);
        let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::plain());
        rig.peer = peer;
        rig.wire(&hello);
        rig.run();
        for leg in 1..=3 {
            let mut bytes = rig.peer.as_ours().key_update(request);
            bytes.extend(rig.peer.send(format!("{GET}\r\n").as_bytes()));
            rig.wire(&bytes);
            rig.run();
            // In the middle of a response too.
            rig.serve(leg, b"HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n\r\n");
            let update = rig.peer.as_ours().key_update(request);
            rig.wire(&update);
            rig.run();
            let body = noise(40_000);
            rig.serve(leg, &body);
            assert!(rig.received().ends_with(&body));
        }
        assert_eq!(rig.peer.as_ours().key_updates, if request { 6 } else { 0 });
    }
}

/// A request between each two: the base secret follows, so the number has no bound.
#[test]
fn key_updates_between_requests_have_no_bound() {
    for request in [false, true] {
        let (peer, hello) = Peer::ours(TLS13, 2);
        let mut rig = Rig::new(&snapshot(|_| {}), setup::TLS, Peer::plain());
        rig.peer = peer;
        rig.wire(&hello);
        rig.run();
        for round in 0..1100_u32 {
            let update = rig.peer.as_ours().key_update(request);
            rig.wire(&update);
            rig.send(&round.to_be_bytes());
            rig.serve(1, &round.to_be_bytes());
        }
        assert_eq!(rig.peer.as_ours().key_updates, if request { 1100 } else { 0 });
        assert_eq!((rig.server_got(1).len(), rig.received().len(), rig.closed), (4400, 4400, None));
    }
}

#[test]
fn tls12_renegotiation_is_warned_of_and_served_on() {
    let (peer, hello) = Peer::ours(TLS12, 2);
    let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::plain());
    rig.peer = peer;
    rig.wire(&hello);
    rig.run();
    for leg in 1..=3 {
        let asked = rig.peer.as_ours().request_renegotiation();
        rig.wire(&asked);
        rig.run();
        assert_eq!(rig.peer.as_ours().alert.take(), Some(evergate_tls::alert::NO_RENEGOTIATION));
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.serve(leg, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        assert!(rig.received().ends_with(b"\r\n\r\nok"));
    }
    assert_eq!(rig.closed, None);
}

#[test]
fn plain_http_on_the_tls_port_is_answered() {
    let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::plain());
    rig.segment = 3;
    rig.send(format!("{GET}\r\n").as_bytes());
    assert!(text(&rig.received()).starts_with("HTTP/1.1 400 Bad Request\r\n"));
    assert_eq!(rig.logs[0].reason, "plain_http_on_tls_port");
    rig.send(&noise(1000));
    rig.cut_client();
    assert_eq!(rig.closed, Some(false));
}

#[test]
fn proxy_header_on_a_tls_listener_ends_with_its_own_reason() {
    let text: &[u8] = b"PROXY TCP4 192.0.2.1 198.51.100.1 40000 443\r\n";
    let binary: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc6\x33\x64\x01\x9c\x40\x01\xbb";
    for listener in [setup::HTTPS, setup::TLS] {
        for header in [text, binary] {
            let mut rig = Rig::new(&snapshot(|_| {}), listener, Peer::plain());
            rig.segment = 3;
            rig.send(header);
            assert_eq!((rig.closed, rig.received().len()), (Some(true), 0));
            assert_eq!((rig.logs.len(), rig.logs[0].reason), (1, "proxy_protocol_unexpected"));
        }
    }
}

#[test]
fn garbage_ends_the_connection_and_nothing_else() {
    let too_long = [&[22, 3, 1, 0x40, 1][..], &[1; 100]].concat();
    let old = [&[22, 3, 1, 0, 51, 1, 0, 0, 47, 3, 0][..], &[7; 32], &[0, 0, 6, 0, 1, 0, 2, 0, 3, 1, 0, 0, 0]]
        .concat();
    for (bytes, description, reason) in [
        (&b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00"[..], 10, "tls_handshake"),
        (b"SSH-2.0-x\r\n", 10, "not_tls"),
        (&[0; 64], 10, "not_tls"),
        (&[0xff; 64], 10, "not_tls"),
        (&too_long, 22, "tls_handshake"),
        (&[22, 3, 1, 0, 4, 1, 0xff, 0, 0], 50, "tls_handshake"),
        (&old, 70, "tls_handshake"),
    ] {
        // An alert, then FIN, whatever the client sends behind it.
        for segment in [1, 1000] {
            let mut rig = Rig::new_wired(&snapshot(|_| {}), setup::HTTPS, Peer::plain(), segment);
            rig.wire(bytes);
            rig.wire(&noise(3000));
            rig.run();
            same(&rig.received(), &evergate_tls::alert::clear_alert(description));
            assert_eq!((rig.client_fin, rig.closed), (true, None), "{bytes:?}");
            let logged: Vec<_> = rig.logs.iter().map(|log| log.reason).collect();
            assert_eq!((logged, &rig.reasons[..]), (vec![reason], &[reason][..]), "{bytes:?}");
            rig.cut_client();
            assert_eq!(rig.closed, Some(false), "{bytes:?}");
        }
    }
    // After the handshake: an alert, then the end.
    for version in [TLS12, TLS13] {
        for bytes in [
            noise(100),
            vec![23, 3, 3, 0, 40].into_iter().chain(noise(40)).collect(),
            vec![23, 3, 3, 255, 255],
            vec![24, 3, 3, 0, 1, 0],
        ] {
            let (peer, hello) = Peer::ours(version, 3);
            let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::plain());
            rig.peer = peer;
            rig.wire(&hello);
            rig.run();
            rig.wire(&bytes);
            rig.run();
            assert!(rig.peer.as_ours().alert.is_some(), "{bytes:?}");
            assert!(rig.client_fin || rig.closed.is_some());
            rig.wire(&noise(100));
            rig.wait(100_000);
            assert!(rig.closed.is_some());
        }
    }
}

#[test]
fn session_ended_by_a_fatal_alert_is_not_resumed() {
    use evergate_tls::alert;
    for (description, kept) in [(alert::CLOSE_NOTIFY, 1), (alert::USER_CANCELED, 1), (alert::DECODE_ERROR, 0)]
    {
        let (peer, hello) = Peer::ours_with(&super::harness::peer::without_tickets(), 3);
        let mut rig = Rig::new(&snapshot(|_| {}), setup::HTTPS, Peer::plain());
        rig.peer = peer;
        rig.wire(&hello);
        rig.run();
        assert_eq!(rig.node.sessions.len(), 1);
        let reported = rig.peer.as_ours().warn(description);
        rig.wire(&reported);
        rig.run();
        assert_eq!(rig.node.sessions.len(), kept, "alert {description}");
        assert_eq!(rig.closed == Some(true), kept == 0, "alert {description}");
    }
}

/// A TLS server between the rig's leg and a test.
struct TlsServer(rustls::ServerConnection);

impl TlsServer {
    fn new() -> TlsServer {
        // The listener's own configuration would need a seed: this one draws from the system.
        let key = rustls::pki_types::PrivateKeyDer::from(setup::key());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![root()], key)
            .unwrap();
        TlsServer(rustls::ServerConnection::new(Arc::new(config)).unwrap())
    }

    /// Exchanges bytes with the leg until nothing moves; returns new plaintext.
    fn turn(&mut self, rig: &mut Rig, leg: u32) -> Vec<u8> {
        let mut got = Vec::new();
        loop {
            let bytes = rig.server_got(leg);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                self.0.read_tls(&mut rest).unwrap();
                self.0.process_new_packets().unwrap();
                let mut chunk = [0; 16_384];
                while let Ok(n @ 1..) = self.0.reader().read(&mut chunk) {
                    got.extend_from_slice(&chunk[..n]);
                }
            }
            let mut out = Vec::new();
            while self.0.wants_write() {
                self.0.write_tls(&mut out).unwrap();
            }
            if bytes.is_empty() && out.is_empty() {
                return got;
            }
            rig.serve(leg, &out);
        }
    }

    fn send(&mut self, data: &[u8]) {
        self.0.set_buffer_limit(None);
        self.0.writer().write_all(data).unwrap();
    }
}

#[test]
fn servers_behind_tls_get_and_give_the_same_bytes() {
    let _ = ServerName::try_from("test.example").unwrap();
    let body = noise(300_000);
    for segment in [usize::MAX, 1448, 100] {
        for (listener, peer, scheme) in
            [(setup::HTTP, Peer::plain(), "http"), (setup::HTTPS, Peer::rustls(TLS13), "https")]
        {
            let config = snapshot(|snapshot| snapshot.pools[0].tls = Some(upstream_tls()));
            let mut rig = Rig::new(&config, listener, peer);
            rig.segment = segment;
            rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 300000\r\n\r\n");
            let mut server = TlsServer::new();
            let head = "PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 300000\r\n";
            same(&server.turn(&mut rig, 1), &forwarded(head, scheme, 0));
            rig.send(&body);
            same(&server.turn(&mut rig, 1), &body);
            server.send(&[b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n", &body[..]].concat());
            server.turn(&mut rig, 1);
            let got = rig.received();
            same(&got, &[b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n", &body[..]].concat());
            assert_eq!(rig.legs[&1].released, Some(true));
        }
    }
}

#[test]
fn a_server_whose_tls_fails_is_answered_for() {
    let config = snapshot(|snapshot| {
        snapshot.pools[0].tls = Some(upstream_tls());
        snapshot.pools[0].retries = 0;
    });
    let mut rig = Rig::new(&config, setup::HTTP, Peer::plain());
    rig.send(format!("{GET}\r\n").as_bytes());
    rig.serve(1, b"HTTP/1.1 400 no TLS here\r\n\r\n");
    assert!(text(&rig.received()).starts_with("HTTP/1.1 502 Bad Gateway\r\n"));
    let line = &rig.logs[0];
    assert_eq!(line.reason, "upstream_tls");
    assert_eq!(line.detail, "server answered in plain HTTP, not in TLS");
    // The next server has not failed.
    let config = snapshot(|snapshot| snapshot.pools[0].tls = Some(upstream_tls()));
    let mut rig = Rig::new(&config, setup::HTTP, Peer::plain());
    rig.send(format!("{GET}\r\n").as_bytes());
    rig.serve(1, b"HTTP/1.1 400 no TLS here\r\n\r\n");
    rig.call(|conn, io| conn.handle_abort(io, "client_reset"));
    let line = &rig.logs[0];
    assert_eq!((line.reason, line.retries, line.detail.as_str()), ("client_reset", 1, ""));
}

/// In TLS 1.3 a server without the client's certificate refuses when the client takes the handshake for complete.
#[test]
fn refusal_of_a_server_after_the_handshake_is_in_the_log() {
    let config = snapshot(|snapshot| {
        snapshot.pools[0].tls = Some(upstream_tls());
        snapshot.pools[0].retries = 0;
    });
    let mut rig = Rig::new(&config, setup::HTTP, Peer::plain());
    rig.send(format!("{GET}\r\n").as_bytes());
    let mut server = ServerTls::new(16_384, false, 1);
    while !server.is_open() {
        let mut out = Vec::new();
        server.take(&rig.server_got(1), &mut out);
        rig.serve(1, &out);
    }
    let mut out = Vec::new();
    server.warn(116, &mut out);
    rig.serve(1, &out);
    let line = &rig.logs[0];
    assert_eq!((line.status, line.reason), (502, "upstream_tls"));
    assert_eq!(line.detail, "received fatal alert: certificate_required");
}

/// The name in a ClientHello.
fn asked_for(hello: &[u8]) -> Option<String> {
    let mut acceptor = rustls::server::Acceptor::default();
    acceptor.read_tls(&mut &hello[..]).unwrap();
    let accepted = acceptor.accept().ok()??;
    accepted.client_hello().server_name().map(str::to_owned)
}

#[test]
fn each_server_is_asked_for_and_verified_under_its_own_name() {
    let named = |second: Option<&'static str>| {
        snapshot(|snapshot| {
            snapshot.pools[0].tls = Some(upstream_tls());
            snapshot.pools[0].servers[0].tls_name = Some(ServerName::try_from("elsewhere.example").unwrap());
            snapshot.pools[0].servers[1].tls_name = second.map(|name| ServerName::try_from(name).unwrap());
        })
    };
    let mut rig = Rig::new(&named(Some("test.example")), setup::HTTP, Peer::plain());
    rig.send(format!("{GET}\r\n").as_bytes());
    assert_eq!(asked_for(&rig.server_got(1)).as_deref(), Some("elsewhere.example"));
    rig.reset_server(1);
    let hello = rig.server_got(2);
    assert_eq!(asked_for(&hello).as_deref(), Some("test.example"));
    let mut server = TlsServer::new();
    server.0.read_tls(&mut &hello[..]).unwrap();
    server.0.process_new_packets().unwrap();
    same(&server.turn(&mut rig, 2), &forwarded(GET, "http", 0));
    // The first server shows a certificate that is good for the others only; the second one has no name.
    let mut rig = Rig::new(&named(None), setup::HTTP, Peer::plain());
    rig.send(format!("{GET}\r\n").as_bytes());
    let mut first = TlsServer::new();
    first.0.read_tls(&mut &rig.server_got(1)[..]).unwrap();
    first.0.process_new_packets().unwrap();
    let mut flight = Vec::new();
    while first.0.wants_write() {
        first.0.write_tls(&mut flight).unwrap();
    }
    rig.serve(1, &flight);
    assert!(rig.legs[&1].released.is_some(), "not verified");
    assert!(rig.legs[&2].released.is_some() && rig.server_got(2).is_empty(), "nothing is sent to it");
    assert_eq!(asked_for(&rig.server_got(3)).as_deref(), Some("test.example"));
}

/// Its next client would take what is left for the answer to its own request.
#[test]
fn records_behind_a_response_cost_a_tls_server_its_connection() {
    let config = snapshot(|snapshot| snapshot.pools[0].tls = Some(upstream_tls()));
    for (surplus, cut) in [(&b""[..], 0), (b"HTTP/1.1 200 OK\r\n", 0), (b"x", 0), (b"x", 1), (b"x", 20)] {
        let mut rig = Rig::new(&config, setup::HTTP, Peer::plain());
        let mut server = TlsServer::new();
        rig.send(format!("{GET}\r\n").as_bytes());
        server.turn(&mut rig, 1);
        let mut reported = Vec::new();
        for part in [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", surplus] {
            server.send(part);
            while server.0.wants_write() {
                server.0.write_tls(&mut reported).unwrap();
            }
        }
        rig.serve(1, &reported[..reported.len() - cut]);
        same(&rig.received(), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        assert_eq!(rig.legs[&1].released, Some(surplus.is_empty()), "{surplus:?}, without {cut}");
    }
}

#[test]
fn response_without_a_length_needs_close_notify_of_its_server() {
    let config = snapshot(|snapshot| snapshot.pools[0].tls = Some(upstream_tls()));
    for whole in [true, false] {
        let mut rig = Rig::new(&config, setup::HTTPS, Peer::rustls(TLS13));
        let mut server = TlsServer::new();
        rig.send(format!("{GET}\r\n").as_bytes());
        server.turn(&mut rig, 1);
        server.send(b"HTTP/1.1 200 OK\r\n\r\nhalf of it");
        if whole {
            server.0.send_close_notify();
        }
        server.turn(&mut rig, 1);
        rig.end_server(1);
        assert_eq!(rig.closed.unwrap_or_default(), !whole, "a FIN that anybody may have sent");
        assert_eq!(rig.peer.saw_close_notify(), whole);
        assert_eq!(rig.logs[0].reason, if whole { "" } else { "upstream_lost" });
    }
}

#[test]
fn client_of_another_policy_gets_no_request_through() {
    let asks = |policy| move |snapshot: &mut Snapshot| snapshot.listeners[0].client_policy = policy;
    let (one, other) = (Some([1; 32]), Some([2; 32]));
    for (before, after, let_in) in
        [(None, one, false), (one, other, false), (one, one, true), (one, None, true), (None, None, true)]
    {
        let mut rig = Rig::new(&snapshot(asks(before)), setup::HTTPS, Peer::rustls(TLS13));
        rig.send(format!("{GET}\r\n").as_bytes());
        rig.node.snapshot = snapshot(asks(after));
        rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); // it was let in when it asked
        assert!(rig.received().ends_with(b"ok"));
        rig.send(format!("{GET}\r\n").as_bytes());
        assert_eq!(rig.legs.contains_key(&2), let_in, "{before:?} {after:?}");
        if !let_in {
            assert!(text(&rig.received()).starts_with("HTTP/1.1 421 Misdirected Request\r\n"));
            assert_eq!((rig.client_fin, rig.logs[1].reason), (true, "client_certificate_policy"));
        }
    }
}

#[test]
fn a_tunnel_through_tls_servers_ends_on_both_sides() {
    let config = snapshot(|snapshot| snapshot.pools[0].tls = Some(upstream_tls()));
    let mut rig = Rig::new(&config, setup::TLS, Peer::rustls(TLS13));
    let mut server = TlsServer::new();
    server.turn(&mut rig, 1);
    rig.send(&noise(50_000));
    same(&server.turn(&mut rig, 1), &noise(50_000));
    server.send(b"bye");
    server.0.send_close_notify();
    server.turn(&mut rig, 1);
    same(&rig.received(), b"bye");
    assert!(rig.peer.saw_close_notify());
    rig.send(b"still here");
    same(&server.turn(&mut rig, 1), b"still here");
    rig.end_client();
    rig.wait(1);
    server.turn(&mut rig, 1);
    assert!(server.0.process_new_packets().unwrap().peer_has_closed());
    assert_eq!((rig.closed, rig.legs[&1].fin), (Some(false), true));
}

#[test]
fn a_body_gets_on_while_a_long_record_of_it_comes() {
    let config = snapshot(|snapshot| snapshot.listeners[0].limits.rate_min = 100);
    let mut rig = Rig::new(&config, setup::HTTPS, Peer::rustls(TLS13));
    rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 16000\r\n\r\n");
    let record = rig.peer.send(&[b'x'; 16_000]);
    for piece in record.chunks(3_000) {
        rig.wait(29_000);
        rig.wire(piece);
        rig.run();
        assert!(!rig.client_fin, "within the floor");
    }
    rig.serve(1, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert!(rig.received().starts_with(b"HTTP/1.1 200 OK\r\n"));
    // Below it a record is as slow as any body.
    rig.send(b"PUT /a HTTP/1.1\r\nHost: test.example\r\nContent-Length: 16000\r\n\r\n");
    let record = rig.peer.send(&[b'x'; 16_000]);
    rig.wire(&record[..2_000]);
    rig.wait(31_000);
    assert!(rig.received().starts_with(b"HTTP/1.1 408 "));
}
