//! Sessions of TLS 1.2 with RSA key exchange: real ones, recorded on loopback, disclosed with the server's key.

use crate::rig::Rig;
use crate::support::is_root;
use evergate_audit::segment_file::SegmentFile;
use evergate_audit::store::Store;
use evergate_evidence::connection_record::ConnectionRecord;
use evergate_evidence::disclosure::{Grant, OutcomeKind};
use evergate_evidence::entry::Event;
use evergate_evidence::record::Body;
use evergate_netns::Namespace;
use evergate_player::key_log::KeyLog;
use evergate_seal::RecipientKey;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Records the sessions of `server_key.py` in the rig's store; answers the client's port of each by its name.
fn record_sessions(rig: &Rig) -> BTreeMap<String, u16> {
    let namespace = Namespace::new().unwrap();
    let output = namespace
        .run(|| Command::new("ethtool").args("-K lo gro off gso off tso off".split(' ')).output().unwrap());
    assert!(output.status.success(), "{output:?}");
    let mut command = rig.command(&["record", "--interface", "lo", "--reserve", "0", "--store"]);
    command.arg(rig.path("store")).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut recorder = namespace.run(move || command.spawn().unwrap());
    let mut lines = BufReader::new(recorder.stderr.take().unwrap()).lines();
    assert!(lines.by_ref().map_while(Result::ok).any(|line| line.contains("recording ")));
    let rest = std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reveal/server_key.py");
    let folder = rig.path("");
    let output =
        namespace.run(move || Command::new("python3").arg("-B").arg(script).arg(folder).output().unwrap());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stopped = Command::new("kill").args(["-TERM", &recorder.id().to_string()]).status().unwrap();
    assert!(stopped.success() && recorder.wait().unwrap().success());
    rest.join().unwrap();
    let ports: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ports = ports.as_object().unwrap().iter();
    ports.map(|(name, port)| (name.clone(), port.as_u64().unwrap() as u16)).collect()
}

/// Last record of each connection by the client's port.
fn connections(rig: &Rig) -> BTreeMap<u16, ConnectionRecord> {
    let mut found = BTreeMap::new();
    for segment in Store::at(&rig.path("store")).segments().unwrap() {
        let mut file = SegmentFile::open(&segment.path).unwrap();
        while let Some(located) = file.read().unwrap() {
            if let Body::Connection(record) = located.record.body {
                found.insert(record.endpoints.client.port(), *record);
            }
        }
    }
    found
}

#[test]
fn server_key_discloses_sessions_without_forward_secrecy() {
    if !is_root("of server keys") {
        return;
    }
    let rig = Rig::new("server-key", false);
    let epoch = rig.announce().epoch;
    let ports = record_sessions(&rig);
    let records = connections(&rig);
    let log = KeyLog::parse(&std::fs::read(rig.path("keys.log")).unwrap()).unwrap();
    let recipient = RecipientKey::generate().unwrap();
    let [key, pkcs1, other] = ["server.key", "server-pkcs1.key", "other.key"]
        .map(|name| rig.path(name).to_str().unwrap().to_owned());
    // Both hashes, both forms of the master secret, a client's certificate, and both forms of the key.
    for (name, key) in
        [("gcm128", &key), ("gcm256", &pkcs1), ("plain128", &pkcs1), ("plain256", &key), ("client", &key)]
    {
        let record = &records[&ports[name]];
        let request = rig.request(record.connection, &recipient, name, &["bob", "carol"]);
        assert!(rig.refused_with(&request, &[], 2).contains("has an envelope"), "{name}");
        let refusal = rig.refused_with(&request, &["--server-key", &other], 1);
        assert!(refusal.contains("decrypts the recorded key exchange"), "{name}: {refusal}");
        let bytes = rig.granted_with(&request, &["--server-key", &other, "--server-key", key]);
        let grant = Grant::decode(&bytes).unwrap();
        let expected = log.get(&record.tls.client_random).unwrap();
        assert_eq!(&recipient.open(&grant).unwrap(), expected, "{name}");
        assert!(grant.envelope.is_empty());
        assert_eq!(rig.granted_with(&request, &["--server-key", key]), bytes);
    }
    // The failure with another key is logged, and each request once.
    assert_eq!(rig.requests(), 5);
    let outcomes: Vec<OutcomeKind> = rig
        .entries()
        .into_iter()
        .filter_map(|event| match event {
            Event::DisclosureDone(outcome) => Some(outcome.kind),
            _ => None,
        })
        .collect();
    assert_eq!(outcomes, [OutcomeKind::Failed, OutcomeKind::Granted].repeat(5));
    // Forward secrecy, other ciphers, other versions, resumed sessions.
    for name in ["ecdhe", "cbc", "tls13"] {
        let output = rig.request_output(records[&ports[name]].connection, &recipient, name);
        let failure = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && failure.contains("no envelope"), "{name}: {failure}");
    }
    let resumed = &records[&ports["resumed"]];
    let request = rig.request(resumed.connection, &recipient, "resumed", &["bob", "carol"]);
    let refusal = rig.refused_with(&request, &["--server-key", &key], 1);
    assert!(refusal.contains("it resumed a session"), "{refusal}");
    // Behind destruction of its epoch a request that was logged before is refused, too.
    let late = rig.request(records[&ports["late"]].connection, &recipient, "late", &["bob", "carol"]);
    assert!(rig.refused_with(&late, &["--server-key", &other], 1).contains("decrypts"));
    // The sessions may lie in either of the announced hours.
    for epoch in [epoch, epoch + 1] {
        let output = rig.revealer("destroy", &["--epoch", &epoch.to_string()]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let refusal = rig.refused_with(&late, &["--server-key", &key], 1);
    assert!(refusal.contains("destroyed"), "{refusal}");
}
