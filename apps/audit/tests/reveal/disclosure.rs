//! Disclosure end to end, and what is refused.

use crate::rig::*;
use crate::support::StoreWriter;
use evergate_crypto::{EvidenceVerifier, LogKey};
use evergate_evidence::connection_record::{ConnectionRecord, Counts};
use evergate_evidence::disclosure::{DestroyOrder, Grant, OutcomeKind};
use evergate_evidence::entry::Event;
use evergate_evidence::envelope::EPOCH_NS;
use evergate_evidence::merkle::sha256;
use evergate_evidence::note::VerifyingKey;
use evergate_evidence::proof::Receipt;
use evergate_evidence::record::Body;
use evergate_evidence::secrets::{Label, SecretList};
use evergate_seal::RecipientKey;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn whole_path(name: &str, is_hsm: bool) {
    let mut rig = Rig::new(name, is_hsm);
    let keys = rig.announce();
    build_store(&rig, &keys);
    let recipient = RecipientKey::generate().unwrap();
    let file = rig.request(1, &recipient, "request", &["bob", "carol"]);
    let bytes = rig.granted(&file);
    let grant = Grant::decode(&bytes).unwrap();
    assert_eq!(recipient.open(&grant), Ok(secrets(0xa1)));
    assert!(RecipientKey::generate().unwrap().open(&grant).is_err());
    let key = std::fs::read_to_string(rig.path("state/log.vkey")).unwrap();
    let key = VerifyingKey::parse(key.trim()).unwrap();
    let receipt = Receipt::parse(&grant.proof).unwrap();
    receipt.verify(&grant.leaf(), &key, &[], &EvidenceVerifier).unwrap();
    assert_eq!(receipt.index, grant.index);
    // The same request gives the same grant, byte for byte, also from a Master that started again.
    assert_eq!(rig.granted(&file), bytes);
    rig.start_master();
    assert_eq!(rig.granted(&file), bytes);
    let outcomes: Vec<(OutcomeKind, [u8; 32])> = rig
        .entries()
        .into_iter()
        .filter_map(|event| match event {
            Event::DisclosureDone(outcome) => Some((outcome.kind, outcome.grant)),
            _ => None,
        })
        .collect();
    // Both bogus envelopes, then the grant, once.
    let failed = (OutcomeKind::Failed, [0; 32]);
    assert_eq!(outcomes, [failed, failed, (OutcomeKind::Granted, sha256(&bytes))]);
    assert_eq!(rig.requests(), 1);
    no_secret_in(&rig);
    // Destroyed: refused, and the grant of the journal stays.
    let file = rig.request(2, &recipient, "late", &["bob", "carol"]);
    let number = keys.epoch.to_string();
    let output = rig.revealer("destroy", &["--epoch", &number]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(rig.refused(&file).contains("destroyed"));
    assert_eq!(rig.granted("request"), bytes);
    assert!(rig.entries().contains(&Event::EpochDestroyed(keys.destroyed())));
}

/// No secret of a session, raw, hexadecimal or in base64, is in any file of the rig but its recipient's grant, where it
/// is sealed.
fn no_secret_in(rig: &Rig) {
    let mut needles = Vec::new();
    for byte in [0xa1_u8, 0xa2, 0xa3, 0x66, 0x67] {
        let raw = vec![byte; 24];
        needles.push(evergate_evidence::base64::encode(&raw).into_bytes());
        needles.push(raw.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into_bytes());
        needles.push(raw);
    }
    let mut folders = vec![rig.folder.0.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let content = std::fs::read(&path).unwrap();
            let found = needles.iter().any(|needle| content.windows(needle.len()).any(|part| part == needle));
            assert!(!found, "{}", path.display());
        }
    }
}

#[test]
fn one_session_is_disclosed_with_keys_in_files() {
    whole_path("files", false);
}

#[test]
fn one_session_is_disclosed_with_keys_in_an_hsm() {
    if !Path::new(MODULE).exists() {
        assert!(std::env::var_os("CI").is_none(), "{MODULE} is missing");
        eprintln!("skipped: {MODULE} is missing");
        return;
    }
    whole_path("hsm", true);
}

#[test]
fn refused_requests_disclose_nothing_and_are_logged() {
    let rig = Rig::new("refused", false);
    let keys = rig.announce();
    build_store(&rig, &keys);
    let recipient = RecipientKey::generate().unwrap();
    let few = rig.request(1, &recipient, "few", &["bob"]);
    assert!(rig.refused(&few).contains("too_few"));
    let by_requester = rig.request(1, &recipient, "requester", &["bob", "dave"]);
    assert!(rig.refused(&by_requester).contains("not_approver"));
    let good = rig.request(1, &recipient, "good", &["bob", "carol"]);
    let text = std::fs::read_to_string(rig.path("good")).unwrap();
    std::fs::write(rig.path("changed"), text.replace("connection 1", "connection 2")).unwrap();
    assert!(rig.refused("changed").contains("wrong_signature"));
    std::fs::write(rig.path("garbage"), "no request").unwrap();
    assert!(rig.refused("garbage").contains("malformed"));
    let refused = || rig.entries().iter().filter(|event| matches!(event, Event::DisclosureDone(_))).count();
    let begin = Instant::now();
    while refused() < 4 {
        // A refusal is answered when it is durable; the checkpoint follows.
        assert!(begin.elapsed() < LIMIT, "{} refusals", refused());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((refused(), rig.requests()), (4, 0));
    rig.granted(&good);
    // A Master with another log: nothing is disclosed.
    let other = rig.request(2, &recipient, "other", &["bob", "carol"]);
    let key = VerifyingKey::new("test/2026", LogKey::generate().unwrap().0.public_key()).unwrap();
    std::fs::write(rig.path("state/log.vkey"), key.to_vkey()).unwrap();
    let _ = std::fs::remove_file(rig.path("grant"));
    let output = rig.reveal(&other, None);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("pinned is"));
    assert!(!rig.path("grant").exists());
}

#[test]
fn server_on_a_socket_announces_and_answers() {
    let rig = Rig::new("serve", false);
    let keys = rig.announce();
    build_store(&rig, &keys);
    let recipient = RecipientKey::generate().unwrap();
    let few = rig.request(3, &recipient, "few", &["bob"]);
    let good = rig.request(3, &recipient, "good", &["bob", "carol"]);
    let (socket, store) = (rig.path("socket"), rig.path("store"));
    let more = ["--socket", socket.to_str().unwrap(), "--store", store.to_str().unwrap()];
    let (_server, _) = Process::start(&mut rig.revealer("serve", &more), "serving on ");
    let ask = |file: &str| rig.ask(&socket, file);
    let (kind, text) = ask(&few);
    assert!(kind == 1 && String::from_utf8(text).unwrap().contains("too_few"));
    let (kind, bytes) = ask(&good);
    assert_eq!(kind, 0);
    assert_eq!(recipient.open(&Grant::decode(&bytes).unwrap()), Ok(secrets(0xa3)));
    assert_eq!(ask(&good), (0, bytes));
    let announced = rig.entries().iter().filter(|event| matches!(event, Event::EpochKeys(_))).count();
    assert!(announced >= 26, "{announced}");
}

#[test]
fn order_of_approvers_is_signed_by_the_program() {
    let rig = Rig::new("order", false);
    let keys = rig.announce();
    let now_s = epoch() * 3600;
    let order = DestroyOrder {
        epoch: keys.epoch,
        reason: "court order".into(),
        created_s: now_s,
        expires_s: now_s + 7 * 86_400,
    };
    std::fs::write(rig.path("order"), order.to_text()).unwrap();
    rig.approve("bob", "order");
    rig.approve("carol", "order");
    let (number, file) = (keys.epoch.to_string(), rig.path("order"));
    let output =
        rig.revealer("destroy", &["--epoch", &number, "--order", file.to_str().unwrap()]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn sessions_of_a_key_log_are_sealed_and_disclosed() {
    let rig = Rig::new("keylog", false);
    let keys = rig.announce();
    let mut writer = StoreWriter::new(&rig.path("store"), 1);
    for number in 1..=2 {
        let first_ns = keys.epoch * EPOCH_NS + 9;
        let counts = Counts { first_ns, last_ns: first_ns, ..Counts::default() };
        writer.push(Body::Connection(Box::new(ConnectionRecord { counts, ..record(number) })));
    }
    writer.finish();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let lines = |number: u64, secrets: &SecretList| {
        let random = hex(&record(number).tls.client_random);
        let line =
            |(label, secret): (Label, &[u8])| format!("{} {random} {}\n", label.key_log_name(), hex(secret));
        secrets.iter().map(line).collect::<String>()
            + &format!("EXPORTER_SECRET {random} {}\n", hex(&[1; 48]))
    };
    let keylog = rig.path("keylog");
    let text = format!("# a comment\n{}{}", lines(1, &secrets(0xb1)), lines(3, &secrets(0xb3)));
    std::fs::write(&keylog, &text).unwrap();
    let key = std::fs::read_to_string(rig.path("state/log.vkey")).unwrap();
    let (epochs, store, out) = (rig.path("master/log/epochs"), rig.path("store"), rig.path("envelopes"));
    let arguments = [
        "seal",
        "--keylog",
        keylog.to_str().unwrap(),
        "--epochs",
        epochs.to_str().unwrap(),
        "--log-key",
        key.trim(),
        "--store",
        store.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
        "--erase",
    ];
    // One connection is not recorded yet: the file stays.
    let output = rig.command(&arguments).output().unwrap();
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(1), &b"1 sealed, 1 left\n"[..]),
        "{output:?}"
    );
    assert_eq!(std::fs::read_to_string(&keylog).unwrap(), text);
    std::fs::write(&keylog, lines(1, &secrets(0xb1))).unwrap();
    assert_eq!(rig.run(&arguments), "1 sealed, 0 left\n");
    assert_eq!(std::fs::read(&keylog).unwrap(), b"");
    let recipient = RecipientKey::generate().unwrap();
    let public = evergate_evidence::base64::encode(&recipient.public());
    let (alice, file, grant) = (rig.path("alice.key"), rig.path("request"), rig.path("grant"));
    let envelopes = ["--envelopes", out.to_str().unwrap(), "--store", store.to_str().unwrap()];
    let mut request = rig.command(&["reveal", "request", "--connection", "1", "--recipient", &public]);
    request.args(["--reason", "fraud", "--key", alice.to_str().unwrap(), "--name", "alice"]);
    assert!(request.args(["--out", file.to_str().unwrap()]).args(envelopes).status().unwrap().success());
    rig.approve("bob", "request");
    rig.approve("carol", "request");
    let options = ["--request", file.to_str().unwrap(), "--out", grant.to_str().unwrap()];
    let output = rig.revealer("run", &options).args(envelopes).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // The recipient verifies and opens it.
    let (trust, recipient_key, opened) = (rig.path("trust.json"), rig.path("player.key"), rig.path("opened"));
    std::fs::write(&trust, format!("{{\"logs\":[\"{}\"]}}", key.trim())).unwrap();
    std::fs::write(&recipient_key, recipient.to_text().unwrap().as_bytes()).unwrap();
    let arguments = [
        "reveal",
        "open",
        "--grant",
        grant.to_str().unwrap(),
        "--key",
        recipient_key.to_str().unwrap(),
        "--trust",
        trust.to_str().unwrap(),
        "--keylog",
        opened.to_str().unwrap(),
    ];
    let text = rig.run(&arguments);
    assert!(text.contains("\"requester\":\"alice\"") && text.contains("\"sni\":\"shop.test\""), "{text}");
    let expected: String = lines(1, &secrets(0xb1)).lines().take(4).map(|line| format!("{line}\n")).collect();
    assert_eq!(std::fs::read_to_string(&opened).unwrap(), expected);
    std::fs::remove_file(&opened).unwrap();
    // A forged proof: another log's key.
    let other = VerifyingKey::new("test/2026", LogKey::generate().unwrap().0.public_key()).unwrap();
    std::fs::write(&trust, format!("{{\"logs\":[\"{}\"]}}", other.to_vkey())).unwrap();
    let output = rig.command(&arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(!opened.exists());
}

/// A capture whose packets are as if they came now: keys of past epochs are never published.
fn capture_of_now(capture: &[u8]) -> Vec<u8> {
    let mut bytes = capture.to_vec();
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert!(matches!(word(&bytes, 0), 0xa1b2_c3d4 | 0xa1b2_3c4d), "a little-endian pcap file");
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as u32;
    let shift = now_s - word(&bytes, 24);
    let mut at = 24;
    while at < bytes.len() {
        let time_s = word(&bytes, at) + shift;
        bytes[at..at + 4].copy_from_slice(&time_s.to_le_bytes());
        at += 16 + word(&bytes, at + 8) as usize;
    }
    bytes
}

/// Recorded packets decide: secrets that open none of them are not disclosed, whatever the envelope states.
#[test]
fn secrets_that_open_no_packet_are_not_disclosed() {
    let rig = Rig::new("packets", false);
    rig.announce();
    let (capture, store) = (rig.path("capture.pcap"), rig.path("store"));
    let bytes = include_bytes!("../../../../proto/player/tests/fixture/tls13.pcap");
    std::fs::write(&capture, capture_of_now(bytes)).unwrap();
    rig.run(&["record", "--read", capture.to_str().unwrap(), "--store", store.to_str().unwrap()]);
    let text = include_str!("../../../../proto/player/tests/fixture/keys.txt");
    let log = evergate_player::key_log::KeyLog::parse(text.as_bytes()).unwrap();
    let found = rig.run(&["find", store.to_str().unwrap(), "--json"]);
    let connections: Vec<serde_json::Value> =
        found.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let randoms: Vec<[u8; 32]> = connections
        .iter()
        .map(|found| evergate_evidence::deletion::unhex(found["client_random"].as_str().unwrap()).unwrap())
        .collect();
    let real = log.get(&randoms[0]).unwrap();
    let mut other = SecretList::default();
    for (label, secret) in real.iter() {
        other.set(label, &secret.iter().map(|byte| byte ^ 1).collect::<Vec<u8>>()).unwrap();
    }
    let [wrong, good] =
        [&other, real].map(|secrets| evergate_player::key_log::lines_of(&randoms[0], secrets));
    let key = std::fs::read_to_string(rig.path("state/log.vkey")).unwrap();
    let (epochs, keylog, out) = (rig.path("master/log/epochs"), rig.path("keylog"), rig.path("envelopes"));
    let recipient = RecipientKey::generate().unwrap();
    let number = connections[0]["connection"].to_string();
    let public = evergate_evidence::base64::encode(&recipient.public());
    for (lines, is_good) in [(&wrong, false), (&good, true)] {
        std::fs::write(&keylog, lines).unwrap();
        rig.run(&[
            "seal",
            "--keylog",
            keylog.to_str().unwrap(),
            "--epochs",
            epochs.to_str().unwrap(),
            "--log-key",
            key.trim(),
            "--store",
            store.to_str().unwrap(),
            "--out",
            out.to_str().unwrap(),
            "--erase",
        ]);
        let (alice, file, grant) = (rig.path("alice.key"), rig.path("request"), rig.path("grant"));
        let places = ["--envelopes", out.to_str().unwrap(), "--store", store.to_str().unwrap()];
        let mut request =
            rig.command(&["reveal", "request", "--connection", &number, "--recipient", &public]);
        request.args(["--reason", "fraud", "--key", alice.to_str().unwrap(), "--name", "alice"]);
        assert!(
            request.args(["--out", file.to_str().unwrap()]).args(places).output().unwrap().status.success()
        );
        rig.approve("bob", "request");
        rig.approve("carol", "request");
        let options = ["--request", file.to_str().unwrap(), "--out", grant.to_str().unwrap()];
        let output = rig.revealer("run", &options).args(places).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.success(), is_good, "{errors}");
        assert_eq!(grant.exists(), is_good);
        assert!(is_good || errors.contains("do not open the recorded packets"), "{errors}");
    }
    let grant = Grant::decode(&std::fs::read(rig.path("grant")).unwrap()).unwrap();
    assert_eq!(recipient.open(&grant).as_ref().ok(), log.get(&randoms[0]));
}
