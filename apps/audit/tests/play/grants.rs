//! Secrets that the Revealer granted, and the binding of an envelope's secrets to recorded packets.

use crate::rig::{Exchange, Recorded, audit, played, recorded};
use evergate_audit::reveal::FirstRecords;
use evergate_audit::sessions::RecordedSessions;
use evergate_evidence::connection_record::{ConnectionRecord, Counts, Endpoints, TlsHellos};
use evergate_evidence::disclosure::grant::aad;
use evergate_evidence::disclosure::{Grant, Request, Scope};
use evergate_evidence::envelope::{Aad, Envelope};
use evergate_evidence::note::{PublicKey, SignatureLine, VerifyingKey};
use evergate_evidence::secrets::SecretList;
use evergate_player::SecretSource;
use evergate_player::key_log::KeyLog;
use evergate_seal::{RecipientKey, seal_grant};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

/// Randoms of the recorded sessions and their secrets, by the port of the client.
fn secrets(recorded: &Recorded) -> BTreeMap<u16, ([u8; 32], SecretList)> {
    let log = KeyLog::parse(&std::fs::read(recorded.keys()).unwrap()).unwrap();
    let sessions = recorded.play(&[&recorded.store()], &[]);
    let of = |(port, session): (u16, crate::rig::Played)| {
        let hex = session.report["client_random"].as_str().unwrap();
        let random: Vec<u8> =
            (0..32).map(|at| u8::from_str_radix(&hex[2 * at..][..2], 16).unwrap()).collect();
        let random: [u8; 32] = random.try_into().unwrap();
        (port, (random, log.secrets(&random).unwrap()))
    };
    sessions.into_iter().map(of).collect()
}

fn end() -> SocketAddr {
    "127.0.0.1:443".parse().unwrap()
}

fn facts(client_random: [u8; 32]) -> Aad<'static> {
    Aad {
        switch: [0; 32],
        connection: 1,
        born_ns: 0,
        client: end(),
        local: end(),
        client_random,
        server_random: [2; 32],
        tls_version: 0x304,
        cipher_suite: 0x1301,
        feed_number: 0,
        sni: b"",
    }
}

fn grant(key: &RecipientKey, client_random: [u8; 32], secrets: &SecretList, with_credentials: bool) -> Grant {
    let request = Request {
        connection: 7,
        client_random,
        server_random: [2; 32],
        epoch: 0,
        recorder: [3; 32],
        recipient: key.public(),
        scope: Scope::Connection,
        with_credentials,
        reason: "a test".into(),
        reference: String::new(),
        requester: "alice".into(),
        created_s: 1,
        expires_s: 2,
        nonce: [0; 16],
    };
    let envelope = Envelope {
        aad: facts(client_random),
        index: 0,
        enc_inner: key.public(),
        enc_outer: key.public(),
        sealed: &[0; 40],
    };
    let mut note = request.to_note().unwrap();
    let alice = VerifyingKey::new("alice", PublicKey::Ed25519([1; 32])).unwrap();
    note.sign(SignatureLine::of(&alice, vec![0; 64])).unwrap();
    let note = String::from_utf8(note.to_bytes()).unwrap();
    let (proof, envelope, sealed) = (b"no proof".to_vec(), envelope.encode(), Vec::new());
    let mut grant = Grant { index: 1, received_ms: 1, note, proof, envelope, enc: key.public(), sealed };
    (grant.enc, grant.sealed) = seal_grant(&key.public(), &aad(&grant.leaf(), 1), secrets).unwrap();
    grant
}

#[test]
fn grant_opens_its_session_and_no_other() {
    let Some(recorded) = recorded() else { return };
    let all = secrets(recorded);
    let (port, (random, list)) = all.iter().nth(3).unwrap();
    let key = RecipientKey::generate().unwrap();
    let files = ["recipient.key", "one.grant", "other.key"].map(|name| recorded.path(name));
    let [key_file, grant_file, other_file] = &files;
    std::fs::write(key_file, key.to_text().unwrap().as_bytes()).unwrap();
    std::fs::write(other_file, RecipientKey::generate().unwrap().to_text().unwrap().as_bytes()).unwrap();
    std::fs::write(grant_file, grant(&key, *random, list, false).encode()).unwrap();
    let store = recorded.store();
    let fixed = ["play", &store, "--json", "--grant", grant_file, "--recipient-key"];
    let (out, _) = audit(0, &[&fixed[..], &[key_file]].concat());
    let sessions = played(&out);
    assert_eq!(sessions.keys().collect::<Vec<_>>(), [port]);
    let without_query = |exchange: &Exchange| exchange.response.clone();
    let found: Vec<_> = sessions[port].exchanges().iter().map(without_query).collect();
    assert_eq!(found, recorded.sessions[port].iter().map(without_query).collect::<Vec<_>>());
    assert!(!out.contains("hidden"));
    let (_, err) = audit(2, &[&fixed[..], &[key_file, "--with-credentials"]].concat());
    assert!(err.contains("does not permit credentials"), "{err}");
    let (_, err) = audit(2, &[&fixed[..], &[other_file]].concat());
    assert!(err.contains("for another key"), "{err}");
    std::fs::write(grant_file, grant(&key, *random, list, true).encode()).unwrap();
    let (out, _) = audit(0, &[&fixed[..], &[key_file, "--with-credentials"]].concat());
    assert!(out.contains("sid=hidden"));
}

#[test]
fn secrets_of_another_session_do_not_pass_the_binding() {
    let Some(recorded) = recorded() else { return };
    let all: Vec<_> = secrets(recorded).into_values().collect();
    let sessions = RecordedSessions::of(&[recorded.store().into()]);
    let record = |client_random| ConnectionRecord {
        connection: 1,
        is_final: true,
        endpoints: Endpoints { client: end(), server: end(), vlan: 0 },
        counts: Counts::default(),
        tls: TlsHellos { client_random, ..TlsHellos::default() },
    };
    for (number, (random, list)) in all.iter().enumerate() {
        let facts = facts(*random);
        assert_eq!(sessions.open_first(&record(*random), &facts, list), Ok(()));
        let (_, other) = &all[(number + 1) % all.len()];
        // Resumed sessions of TLS 1.2 share their secret.
        assert!(other == list || sessions.open_first(&record(*random), &facts, other).is_err());
    }
    // Without an index the packets are found by their number and ends.
    let bare = recorded.folder.join("bare");
    std::fs::create_dir_all(bare.join("segments")).unwrap();
    for name in ["store.json", "segments/0000000001.pcapng"] {
        std::fs::copy(Path::new(&recorded.store()).join(name), bare.join(name)).unwrap();
    }
    let bare = RecordedSessions::of(&[bare]);
    let played = recorded.play(&[&recorded.store()], &[]);
    let (random, list) = &all[0];
    let report = &played.values().next().unwrap().report;
    let end = |name: &str| report[name].as_str().unwrap().parse().unwrap();
    let endpoints = Endpoints { client: end("client"), server: end("server"), vlan: 0 };
    let number = report["parts"][0]["connection"].as_u64().unwrap();
    let found = ConnectionRecord { connection: number, endpoints, ..record(*random) };
    assert_eq!(bare.open_first(&found, &facts(*random), list), Ok(()));
    assert!(bare.open_first(&found, &facts(*random), &all[1].1).is_err());
    assert!(sessions.open_first(&record([9; 32]), &facts([9; 32]), &all[0].1).is_err());
}
