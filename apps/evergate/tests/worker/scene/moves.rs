//! Handoffs of buckets, and the events around them.

use super::*;
use evergate_tls::{Opened, Records, RecordsState};

#[test]
fn server_bytes_during_a_cancelled_handoff_are_read() {
    play(1, |mut scene| {
        scene.notify(all_ours(|_| false));
        let (_client, key) = scene.client(PORT);
        // The server's answer to our connect has arrived and is unread.
        let (_server, _) = scene.server.accept().unwrap();
        assert_eq!(scene.connecting(key), Some(true));
        scene.freeze(|_| true);
        let reported = scene.reported();
        scene.turn();
        assert_eq!(
            (scene.connecting(key), scene.reported()),
            (Some(true), reported),
            "it is the next owner's"
        );
        scene.call_off();
        assert_eq!(scene.connecting(key), Some(false));
        assert!(scene.reported() > reported);
    });
}

impl Scene {
    /// A client, and the server's end of a connection that is kept for the next request.
    fn kept_server(&mut self) -> (TcpStream, TcpStream) {
        let (mut client, key) = self.client(WEB);
        client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        self.turns_until(|scene| scene.connecting(key).is_some());
        let (mut server, _) = self.server.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        self.turns_until(|_| server.peek(&mut [0]).is_ok());
        server.set_nonblocking(false).unwrap();
        server.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        self.turns_until(|scene| scene.connecting(key).is_none());
        assert_eq!(self.steps().idle().len(), 1);
        server.set_read_timeout(Some(Duration::from_secs(30))).unwrap(); // only ends a hang
        (client, server)
    }
}

#[test]
fn a_kept_server_connection_ends_when_its_bucket_moves() {
    play(1, |mut scene| {
        scene.notify(all_ours(|_| false));
        let (_client, mut server) = scene.kept_server();
        scene.notify(all_ours(|_| true));
        scene.steps().report_frozen();
        let mut reported = Vec::new();
        let ended = server.read_to_end(&mut reported).unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::ConnectionReset, "it keeps the port, or waits for an ACK");
        assert!(reported.starts_with(b"GET / HTTP/1.1\r\n"), "{reported:?}");
    });
}

/// The record layer of a TLS 1.3 client (role 1) or server (0) with these secrets; see `RecordsState::encode`.
fn records(role: u8, tx: u8, rx: u8) -> Records {
    let direction = |secret: u8| [vec![secret; 32], vec![0, 0]].concat();
    let state = [vec![0x11 | role << 1], direction(tx), direction(rx)].concat();
    Records::import(&RecordsState::decode(&state).unwrap()).unwrap()
}

#[test]
fn kept_tls_server_connection_gets_close_notify_before_rst() {
    play(1, |mut scene| {
        scene.notify(all_ours(|_| false));
        let (_client, mut server) = scene.kept_server();
        let key = scene.steps().idle()[0];
        scene.steps().set_idle_records(key, records(1, 7, 9));
        scene.notify(all_ours(|_| true));
        scene.steps().report_frozen();
        let mut reported = Vec::new();
        assert_eq!(server.read_to_end(&mut reported).unwrap_err().kind(), ErrorKind::ConnectionReset);
        let start = reported.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        let opened = records(0, 9, 7).open(&mut reported[start..]);
        assert_eq!(opened, Ok(Opened::Alert { fatal: false, description: 0 }));
    });
}

#[test]
fn entries_without_waiters_are_batched_but_not_in_a_handoff() {
    play(1, |mut scene| {
        scene.notify(all_ours(|_| false));
        let (mut client, key) = scene.client(WEB);
        let kept = |scene: &mut Scene| scene.steps().connection(key).is_some_and(|c| c.has_entries());
        let mut server = None;
        let mut ask = |scene: &mut Scene| {
            client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
            scene.turns_until(|scene| scene.connecting(key).is_some());
            let (server, _) = server.get_or_insert_with(|| scene.server.accept().unwrap());
            server.set_nonblocking(true).unwrap();
            scene.turns_until(|_| server.peek(&mut [0]).is_ok());
            assert!(server.read(&mut [0; 4096]).unwrap() > 0);
            server.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
            while !kept(scene) {
                scene.steps().note_next_request(key); // as one that does not wait for acknowledgements
                scene.turn();
                scene.answer();
            }
        };
        ask(&mut scene);
        scene.turns_until(|scene| !kept(scene)); // it asks no more
        ask(&mut scene);
        scene.freeze(|_| true);
        assert!(!kept(&mut scene));
    });
}

#[test]
fn queued_request_gets_no_server_during_a_handoff() {
    play(1, |mut scene| {
        scene.notify(all_ours(|_| false));
        let (_first, _) = scene.client(PORT);
        let (_second, key) = scene.client(PORT);
        assert_eq!((scene.connecting(key), scene.counters().queued.get()), (None, 1));
        scene.freeze(|_| true);
        let reported = scene.reported();
        scene.generation.pools[0].servers[0].leave(); // the first one's place, as if it was another node's
        scene.steps().serve_all_waiting();
        assert_eq!((scene.connecting(key), scene.reported()), (None, reported));
        scene.call_off();
        scene.steps().serve_all_waiting();
        assert!(scene.connecting(key).is_some());
    });
}

#[test]
fn queued_request_is_not_replaced_during_a_handoff() {
    play(1, |mut scene| {
        scene.notify(all_ours(|_| false));
        let (_first, _) = scene.client(PORT);
        let (_second, key) = scene.client(PORT);
        let bucket = scene.steps().bucket_of(key).unwrap();
        scene.freeze(|of| of == bucket);
        let (mut better, _) = scene.client(WEB);
        better.write_all(b"GET /gold HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        scene.turn();
        let reasons = scene.counters().reasons.lock().unwrap().clone();
        assert_eq!(reasons.get("queue_full"), Some(&1), "{reasons:?}");
        assert!(scene.steps().connection(key).is_some());
        scene.call_off();
        assert_eq!(scene.counters().queued.get(), 1);
    });
}

#[test]
fn drain_ends_a_connection_of_a_cancelled_handoff() {
    play(1, |mut scene| {
        scene.notify(all_ours(|_| false));
        let (_client, key) = scene.client(WEB);
        scene.turn();
        scene.freeze(|_| true);
        let reported = scene.reported();
        scene.steps().drain();
        assert!(scene.steps().connection(key).is_some());
        assert_eq!(scene.reported(), reported, "it is the next owner's");
        scene.call_off();
        assert!(scene.reported() > reported);
    });
}
