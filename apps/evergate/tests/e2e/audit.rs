//! Audited listeners: what reaches a Recorder, and what holders of both keys read in it.

use super::backend::Backend;
use super::node::{Folder, Node, eventually, web};
use super::pki::{certificate, client, https, issue, tls, tls12};
use crate::support::audit::{Keys, Recorder};
use evergate_evidence::envelope::Envelope;
use evergate_evidence::secrets::Label;
use rustls::{HandshakeKind, KeyLog};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

/// A client's key log: labels and secrets.
#[derive(Debug, Default)]
struct Secrets(Mutex<BTreeMap<String, Logged>>);

/// A line of the log.
#[derive(Debug)]
struct Logged {
    client_random: Vec<u8>,
    secret: Vec<u8>,
}

impl KeyLog for Secrets {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let logged = Logged { client_random: client_random.to_vec(), secret: secret.to_vec() };
        self.0.lock().unwrap().insert(label.to_owned(), logged);
    }
}

impl Secrets {
    fn is(&self, label: &str, secret: Option<&[u8]>) -> bool {
        self.0.lock().unwrap().get(label).map(|known| known.secret.as_slice()) == secret
    }

    fn client_random(&self) -> Vec<u8> {
        self.0.lock().unwrap().values().next().unwrap().client_random.clone()
    }
}

struct Scene {
    backend: Backend,
    node: Node,
    keys: Keys,
}

/// Node with an audited listener; `more`: further keys of `[audit]`, and tables behind it.
fn scene(listener: &str, more: &str, has_keys: bool) -> Scene {
    let (folder, keys, backend) = (Folder::new(), Keys::new(), Backend::new("one"));
    issue(&folder, "ca", "ecdsa", "", None);
    issue(&folder, "site", "ecdsa", "site.example", Some("ca"));
    if has_keys {
        std::fs::write(folder.path("epochs"), &keys.file).unwrap();
    }
    let web = web(&[backend.address()], "");
    let audit = keys.table();
    let config = format!("{}{}{web}{audit}{more}", https(listener), certificate("site"));
    Scene { backend, node: Node::start_in(folder, &config), keys }
}

impl Scene {
    /// One connection with these requests; what the client logged of it.
    fn visit(&self, is_tls13: bool, paths: &[&str]) -> (Arc<Secrets>, HandshakeKind) {
        let mut config = if is_tls13 { client(None) } else { tls12(&self.node.folder) };
        let secrets = Arc::new(Secrets::default());
        config.key_log = secrets.clone();
        let mut wire = tls(self.node.address("in"), &Arc::new(config), "site.example");
        for path in paths {
            assert_eq!(wire.get(path).unwrap().text(), "one");
        }
        (secrets, wire.stream.conn.handshake_kind().unwrap())
    }
}

#[test]
fn envelope_opens_to_what_the_client_logged() {
    let mut scene = scene("audit = true", "", true);
    let recorder = Recorder::start(&scene.node.folder);
    for (index, is_tls13) in [true, false].into_iter().enumerate() {
        let (logged, _) = scene.visit(is_tls13, &["/x"]);
        let (_, bytes) = eventually("the envelope", || recorder.envelopes().get(index).cloned());
        let envelope = Envelope::decode(&bytes).unwrap();
        assert_eq!(envelope.aad.client_random[..], logged.client_random()[..]);
        assert_eq!(envelope.aad.sni, b"site.example");
        assert_eq!(envelope.aad.local, scene.node.address("in"));
        let list = scene.keys.open(&envelope);
        let labels: &[(&str, Label)] = match is_tls13 {
            false => &[("CLIENT_RANDOM", Label::MasterSecret)],
            true => &[
                ("CLIENT_HANDSHAKE_TRAFFIC_SECRET", Label::ClientHandshake),
                ("SERVER_HANDSHAKE_TRAFFIC_SECRET", Label::ServerHandshake),
                ("CLIENT_TRAFFIC_SECRET_0", Label::ClientTraffic),
                ("SERVER_TRAFFIC_SECRET_0", Label::ServerTraffic),
            ],
        };
        assert_eq!(list.iter().count(), labels.len());
        for (name, label) in labels {
            assert!(logged.is(name, list.get(*label)), "{name}");
        }
    }
    assert_eq!(scene.node.metric("evergate_audit_sealed_total"), 2);
}

#[test]
fn requests_name_their_connection_and_both_addresses() {
    let scene = scene("audit = true", "", true);
    let recorder = Recorder::start(&scene.node.folder);
    let (logged, _) = scene.visit(true, &["/a", "/b"]);
    let requests = eventually("both requests", || Some(recorder.requests()).filter(|all| all.len() == 2));
    let seen = scene.backend.seen();
    for (index, request) in requests.iter().enumerate() {
        assert_eq!((request.index, request.status), (index as u32, 200));
        assert_eq!(request.client_random[..], logged.client_random()[..]);
        assert_eq!(request.client.local, scene.node.address("in"));
        assert_eq!(request.server.map(|server| server.peer), Some(scene.backend.address()));
        let id = String::from_utf8_lossy(&request.id).into_owned();
        assert_eq!(seen[index].head.field("x-request-id"), Some(id));
    }
}

#[test]
fn rules_choose_the_requests_that_are_recorded() {
    let rule = "[[rules]]\nname = \"pay\"\nwhen = 'path == \"/pay\"'\naudit = true\n";
    let scene = scene("", rule, true);
    let recorder = Recorder::start(&scene.node.folder);
    scene.visit(true, &["/a", "/pay", "/b"]);
    let requests = eventually("the request", || Some(recorder.requests()).filter(|all| !all.is_empty()));
    assert_eq!(requests.iter().map(|request| request.index).collect::<Vec<_>>(), [1]);
    assert_eq!(recorder.envelopes().len(), 1);
}

#[test]
fn tls12_clients_of_audited_listeners_resume_nothing() {
    let scene = scene("audit = true", "", true);
    let _recorder = Recorder::start(&scene.node.folder);
    let config = Arc::new(tls12(&scene.node.folder));
    for _ in 0..3 {
        let mut wire = tls(scene.node.address("in"), &config, "site.example");
        assert_eq!(wire.get("/x").unwrap().text(), "one");
        assert_eq!(wire.stream.conn.handshake_kind(), Some(HandshakeKind::Full));
    }
    assert_eq!(scene.node.metric("evergate_session_ids"), 0);
}

#[test]
fn messages_without_an_acknowledgement_are_sent_again() {
    let scene = scene("audit = true", "", true);
    let first = Recorder::start(&scene.node.folder);
    first.is_slow.store(true, Ordering::SeqCst);
    scene.visit(true, &["/x"]);
    let before = eventually("the envelope", || first.envelopes().first().cloned());
    first.stop();
    let second = Recorder::start(&scene.node.folder);
    let after = eventually("the same envelope", || second.envelopes().first().cloned());
    assert_eq!(before, after);
}

#[test]
fn listener_without_keys_serves_or_refuses_as_configured() {
    let (serves, refuses) =
        (scene("audit = true", "", false), scene("audit = true", "on_loss = \"refuse\"\n", false));
    serves.visit(true, &["/x"]);
    assert_eq!(serves.node.metric("evergate_audit_unsealed_total"), 1);
    assert_eq!(serves.node.metric("evergate_audit_feed_lost_total"), 1);
    let mut wire = tls(refuses.node.address("in"), &Arc::new(client(None)), "site.example");
    assert!(wire.get("/x").is_err());
    assert_eq!(refuses.node.metric("evergate_connections_refused_total"), 1);
    // Keys that are published later end the refusal.
    std::fs::write(refuses.node.folder.path("epochs"), &refuses.keys.file).unwrap();
    eventually("the keys are read", || {
        (refuses.node.metric("evergate_audit_epoch_ready") == 1).then_some(())
    });
    refuses.visit(true, &["/x"]);
}

#[test]
fn listener_without_audit_feeds_nothing() {
    let scene = scene("", "", true);
    let recorder = Recorder::start(&scene.node.folder);
    scene.visit(true, &["/x"]);
    eventually("a Recorder is connected", || {
        (scene.node.metric("evergate_audit_feed_connected") == 1).then_some(())
    });
    assert!(recorder.envelopes().is_empty() && recorder.requests().is_empty());
    assert_eq!(scene.node.metric("evergate_audit_sealed_total"), 0);
}
