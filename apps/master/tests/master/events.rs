//! Deletions and holds of Recorders, and logs that continue another one.

use crate::support::{LIMIT, Recorder, Setup, pin};
use evergate_evidence::entry::{Deletion, Entry, Event, Hold};
use evergate_evidence::note::VerifyingKey;
use evergate_evidence::submission::RefusalCode;
use evergate_evidence::tile::bundle_entries;
use evergate_master::tiles::Tiles;
use evergate_submission::ClientError;

fn deletion(recorder: [u8; 32]) -> Event {
    Event::Deletion(Deletion {
        recorder,
        segment: 3,
        bytes: 1 << 30,
        sha256: [5; 32],
        first_seq: 1,
        last_seq: 900,
        rule: "older than 90 days".into(),
    })
}

#[test]
fn deletions_and_holds_get_receipts() {
    let setup = Setup::new(1);
    let master = setup.start();
    let recorder = Recorder::new(&setup.recorders[0]);
    let id = recorder.identity.id();
    let mut connected = recorder.connect(&master, &pin(&setup)).unwrap();
    let log = VerifyingKey::parse(&connected.welcome.vkey).unwrap();
    let hold = Event::Hold(Hold {
        is_set: true,
        recorder: id,
        hold: 1,
        from_ns: 0,
        to_ns: u64::MAX,
        query: "sni example.org".into(),
        reason: "case 12".into(),
    });
    for (request, event) in [(7, deletion(id)), (8, hold)] {
        connected.sender.send_event(request, &event).unwrap();
        let answer = connected.receiver.receive(LIMIT).unwrap().unwrap();
        assert!(answer.is_event && answer.number == request);
        answer.check_event(&event, &log).unwrap();
        answer.check_event(&deletion([1; 32]), &log).unwrap_err();
    }
    connected.sender.send_event(9, &deletion([1; 32])).unwrap();
    match connected.receiver.receive(LIMIT) {
        Err(ClientError::Refused(refusal)) => assert_eq!(refusal.code, RefusalCode::Malformed),
        other => panic!("{other:?}"),
    }
}

#[test]
fn new_log_begins_with_the_last_checkpoint_of_the_one_before() {
    let setup = Setup::new(1);
    let mut recorder = Recorder::new(&setup.recorders[0]);
    let master = setup.start();
    recorder.submit(&master, &pin(&setup), 3, 3).unwrap();
    master.stop();
    let previous = std::fs::read(setup.log().join("checkpoint")).unwrap();
    std::fs::rename(setup.log(), setup.folder.join("old")).unwrap();
    setup.reconfigure("listen =", "continues = \"old/checkpoint\"\nlisten =");
    assert!(setup.refused_start().contains("the same origin"));
    setup.reconfigure("test.example/2026", "test.example/2027");
    for _ in 0..2 {
        let master = setup.start();
        crate::support::wait_until("a checkpoint", || setup.log().join("checkpoint").exists());
        assert_eq!(master.stop(), Some(0));
    }
    let size = setup.checkpoint().checkpoint().size;
    let (tile, bytes) = Tiles::new(&setup.log()).read_entries(0, size).unwrap();
    let entries: Vec<Entry> = bundle_entries(&bytes, tile.width)
        .unwrap()
        .into_iter()
        .map(|bytes| Entry::decode(bytes).unwrap())
        .collect();
    let events: Vec<_> = entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::Event(_, Event::Master(event)) => Some((event.is_key_change, event.previous.as_bytes())),
            _ => None,
        })
        .collect();
    assert_eq!(events, [(true, &previous[..]), (false, &[][..])]);
}
