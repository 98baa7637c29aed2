//! Recorders: many at once, repeated and foreign statements, hostile peers.

use crate::support::{LIMIT, Recorder, Setup, identity, percentile, pin, statement};
use evergate_evidence::entry::{Entry, Event};
use evergate_evidence::note::VerifyingKey;
use evergate_evidence::statement::Statement;
use evergate_evidence::submission::{Hello, RefusalCode, ToMaster, UNANSWERED_MAX};
use evergate_evidence::tile::bundle_entries;
use evergate_master::tiles::Tiles;
use evergate_submission::{Channel, ClientError, Trust, client_config, connect};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

fn code<T>(result: Result<T, ClientError>) -> RefusalCode {
    match result {
        Err(ClientError::Refused(refusal)) => refusal.code,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("not refused"),
    }
}

#[test]
fn eight_recorders_at_once_get_receipts() {
    let setup = Setup::new(8);
    let master = setup.start();
    let pin = pin(&setup);
    let mut recorders: Vec<Recorder> = setup.recorders.iter().map(Recorder::new).collect();
    std::thread::scope(|scope| {
        for recorder in &mut recorders {
            scope.spawn(|| recorder.submit(&master, &pin, 300, 8).unwrap());
        }
    });
    let mut latencies: Vec<Duration> = recorders.iter().flat_map(|r| r.latencies.clone()).collect();
    println!(
        "8 Recorders, file key: p50 {:?}, p99 {:?}",
        percentile(&mut latencies, 50),
        percentile(&mut latencies, 99)
    );
    assert_eq!(master.stop(), Some(0));
    for recorder in &recorders {
        setup.assert_continues(recorder.newest.as_ref().unwrap());
    }
    // Every entry has its place: one start, 8 enrolments, 2,400 statements in order.
    let size = setup.checkpoint().checkpoint().size;
    assert_eq!(size, 1 + 8 + 2400);
    let tiles = Tiles::new(&setup.log());
    let (mut last_ms, mut statements) = (0, 0);
    for bundle in 0..size.div_ceil(256) {
        let (tile, bytes) = tiles.read_entries(bundle, size).unwrap();
        for bytes in bundle_entries(&bytes, tile.width).unwrap() {
            let entry = Entry::decode(bytes).unwrap();
            assert!(entry.received_ms() >= last_ms);
            last_ms = entry.received_ms();
            statements += usize::from(matches!(entry, Entry::Statement(_)));
        }
    }
    assert_eq!(statements, 2400);
}

#[test]
fn restarts_continue_the_log_and_enrolment() {
    let setup = Setup::new(2);
    let pin = pin(&setup);
    let mut recorder = Recorder::new(&setup.recorders[0]);
    for _ in 0..3 {
        let master = setup.start();
        recorder.submit(&master, &pin, 5, 4).unwrap();
        assert_eq!(master.stop(), Some(0));
    }
    let text = setup.read("master.toml");
    std::fs::write(setup.config(), &text[..text.rfind("[[recorder]]").unwrap()]).unwrap();
    let master = setup.start();
    assert_eq!(code(Recorder::new(&setup.recorders[1]).connect(&master, &pin)), RefusalCode::NotEnrolled);
    recorder.submit(&master, &pin, 1, 1).unwrap();
    master.stop();
    // 4 starts, 2 enrolments, 1 removal, 16 statements.
    let size = setup.checkpoint().checkpoint().size;
    assert_eq!(size, 4 + 2 + 1 + 16);
    let (tile, bytes) = Tiles::new(&setup.log()).read_entries(0, size).unwrap();
    let entries = bundle_entries(&bytes, tile.width).unwrap();
    let removed = entries.iter().filter_map(|bytes| match Entry::decode(bytes).unwrap() {
        Entry::Event(_, Event::Enrolment(enrolment)) if !enrolment.is_enrolled => Some(enrolment.name),
        _ => None,
    });
    assert_eq!(removed.collect::<Vec<_>>(), ["edge-1"]);
}

#[test]
fn repeated_statement_gets_its_receipt_again() {
    let setup = Setup::new(1);
    let pin = pin(&setup);
    let master = setup.start();
    let mut recorder = Recorder::new(&setup.recorders[0]);
    recorder.submit(&master, &pin, 10, 10).unwrap();
    recorder.acknowledged = 3;
    recorder.submit(&master, &pin, 0, 10).unwrap();
    assert_eq!(setup.checkpoint().checkpoint().size, 12);
}

#[test]
fn wrong_statements_are_refused_by_reason() {
    let setup = Setup::new(2);
    let pin = pin(&setup);
    let master = setup.start();
    let mut recorder = Recorder::new(&setup.recorders[0]);
    recorder.submit(&master, &pin, 3, 3).unwrap();
    let refused = |statement: &Statement| {
        let mut connected = recorder.connect(&master, &pin).unwrap();
        connected.sender.send_statement(statement).unwrap();
        code(connected.receiver.receive(LIMIT))
    };
    let differs = Statement { root: [1; 32], ..recorder.sent[1].clone() };
    assert_eq!(refused(&differs), RefusalCode::Differs);
    let next = statement(recorder.identity.id(), recorder.sent.last());
    assert_eq!(refused(&Statement { previous: [0; 32], ..next.clone() }), RefusalCode::Sequence);
    assert_eq!(refused(&statement(recorder.identity.id(), Some(&next))), RefusalCode::Sequence);
    let foreign = statement(setup.recorders[1].id(), None);
    assert_eq!(refused(&foreign), RefusalCode::Malformed);
    assert_eq!(refused(&Statement { packets: 11, ..next.clone() }), RefusalCode::Malformed);
    // None of these is in the log, and the connection works afterwards.
    assert_eq!(setup.checkpoint().checkpoint().size, 1 + 2 + 3);
    recorder.submit(&master, &pin, 3, 3).unwrap();
}

#[test]
fn wrong_peers_are_refused_by_reason() {
    let setup = Setup::new(1);
    let pin = pin(&setup);
    let master = setup.start();
    let recorder = Recorder::new(&setup.recorders[0]);
    assert_eq!(code(Recorder::new(&identity()).connect(&master, &pin)), RefusalCode::NotEnrolled);
    let first = recorder.connect(&master, &pin).unwrap();
    assert_eq!(code(recorder.connect(&master, &pin)), RefusalCode::SecondConnection);
    first.sender.close();
    let hello = |acknowledged, origin: &str| {
        let hello = Hello { last_batch: acknowledged, acknowledged, origin: origin.into() };
        code(connect(&master.address, &recorder.identity, &pin, hello, LIMIT))
    };
    assert_eq!(hello(0, "other.example/2026"), RefusalCode::OtherLog);
    assert_eq!(hello(7, "test.example/2026"), RefusalCode::LogIsOlder);
}

#[test]
fn hostile_frames_end_only_their_connection() {
    let setup = Setup::new(2);
    let pin = pin(&setup);
    let mut master = setup.start();
    let config = client_config(&setup.recorders[0], &pin).unwrap();
    let hello = ToMaster::Hello(Hello::default()).to_frame();
    let frames: [Vec<u8>; 9] = [
        vec![0, 0, 0, 0],
        vec![255; 64],
        vec![0, 0, 0, 1, 0],
        vec![0, 0, 0, 1, 1],
        [&hello[..], &hello].concat(),
        [&hello[..], &[0, 0, 0, 3, 2, 1, 1]].concat(),
        [&hello[..], &[0, 0, 0, 1, 129]].concat(),
        [&hello[..], &[0x00, 0x10, 0, 0], &[3; 100]].concat(),
        ToMaster::Statement(statement(setup.recorders[0].id(), None)).to_frame(),
    ];
    for (number, frame) in frames.iter().enumerate() {
        let socket = TcpStream::connect(&master.address).unwrap();
        let name = rustls::pki_types::ServerName::try_from("127.0.0.1").unwrap();
        let (sender, mut receiver) = Channel::connect(socket, config.clone(), name, LIMIT).unwrap().split();
        let _ = sender.send(frame);
        if number == 7 {
            sender.close(); // a frame that never ends
        }
        // WELCOME, or a refusal, then the end.
        while receiver.receive(LIMIT).is_ok_and(|frame| frame.is_some()) {}
    }
    for plain in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff], &[0; 5000]] {
        let mut socket = TcpStream::connect(&master.address).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        let _ = socket.write_all(plain);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let _ = socket.read_to_end(&mut Vec::new());
    }
    assert!(master.is_running());
    Recorder::new(&setup.recorders[1]).submit(&master, &pin, 3, 3).unwrap();
}

#[test]
fn too_many_unanswered_statements_are_refused() {
    let setup = Setup::new(1);
    let mut command = setup.command();
    command.args(["--signer-delay", "1500"]);
    let master = crate::support::Master::start(command);
    let mut recorder = Recorder::new(&setup.recorders[0]);
    let mut connected = recorder.connect(&master, &pin(&setup)).unwrap();
    for _ in 0..=UNANSWERED_MAX {
        let statement = recorder.next();
        connected.sender.send_statement(&statement).unwrap();
    }
    let code = loop {
        match connected.receiver.receive(LIMIT) {
            Ok(Some(_)) => {}
            other => break code(other),
        }
    };
    assert_eq!(code, RefusalCode::TooMany);
}

#[test]
fn metrics_and_status_show_what_happened() {
    let setup = Setup::new(1);
    // Any free port: the configuration has no way to report one that the system chose.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    setup.reconfigure("listen =", &format!("metrics = \"127.0.0.1:{port}\"\nlisten ="));
    let pin = pin(&setup);
    let master = setup.start();
    let mut recorder = Recorder::new(&setup.recorders[0]);
    recorder.submit(&master, &pin, 3, 3).unwrap();
    let _ = Recorder::new(&identity()).connect(&master, &Trust::AnyKey);
    let _ = Recorder::new(&identity()).connect(&master, &pin);
    let page = || {
        let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut page = String::new();
        socket.read_to_string(&mut page).unwrap();
        page
    };
    crate::support::wait_until("the refusal is counted", || {
        let page = page();
        page.contains("evergate_master_entries_total 5\n")
            && page.contains("evergate_master_receipts_total 3\n")
            && page.contains("evergate_master_refused_total{reason=\"not_enrolled\"} 1\n")
            && page.contains("evergate_master_log_size 5\n")
    });
    let status = || String::from_utf8(setup.program(&["status", "--json"]).stdout).unwrap();
    crate::support::wait_until("the status is written", || {
        let status = status();
        status.contains("\"is_running\":true")
            && status.contains("\"size\":5")
            && status.contains("\"not_enrolled\":1")
    });
    let vkey = setup.program(&["check"]);
    assert!(vkey.status.success());
    let text = String::from_utf8(vkey.stdout).unwrap();
    VerifyingKey::parse(text.trim().rsplit(' ').next().unwrap()).unwrap();
    master.stop();
    assert!(status().contains("\"is_running\":false"));
}
