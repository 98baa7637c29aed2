//! Audited listeners: what reaches a Recorder, and what holders of both keys read in it.

use super::backend::Backend;
use super::node::{Folder, Node, eventually, web};
use super::pki::{certificate, client, https, issue, tls, tls12};
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::envelope::{Envelope, Layer};
use evergate_evidence::epochs::{EpochFile, EpochKeys};
use evergate_evidence::feed::{FromFeed, ToFeed};
use evergate_evidence::note::{PublicKey, SignatureLine, VerifyingKey};
use evergate_evidence::record::RequestRecord;
use evergate_evidence::secrets::{Label, SecretList};
use evergate_seal::{FileKeys, open_layer, open_secrets};
use evergate_submission::FeedChannel;
use rcgen::SigningKey;
use rustls::{HandshakeKind, KeyLog};
use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Keys of both layers for this hour and the next, and their published file.
struct Keys {
    inner: FileKeys,
    outer: FileKeys,
    log_key: String,
    file: Vec<u8>,
}

impl Keys {
    fn new() -> Keys {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let (mut inner, mut outer) = (FileKeys::default(), FileKeys::default());
        let epochs = now_s / 3600..=now_s / 3600 + 1;
        let keys = epochs.map(|epoch| EpochKeys {
            epoch,
            inner: inner.create(epoch).unwrap(),
            outer: outer.create(epoch).unwrap(),
        });
        let mut note = EpochFile::new(keys.collect()).unwrap().to_note().unwrap();
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let raw = pair.public_key_raw().try_into().unwrap();
        let key = VerifyingKey::new("audit.example/2026", PublicKey::Ed25519(raw)).unwrap();
        let signature = pair.sign(note.text().as_bytes()).unwrap();
        note.sign(SignatureLine::of(&key, signature)).unwrap();
        assert!(EpochFile::open(&note.to_bytes(), &key, &EvidenceVerifier).is_ok());
        Keys { inner, outer, log_key: key.to_vkey(), file: note.to_bytes() }
    }

    fn open(&mut self, envelope: &Envelope<'_>) -> SecretList {
        let inner = open_layer(envelope, Layer::Outer, envelope.sealed, &mut self.outer).unwrap();
        open_secrets(envelope, &inner, &mut self.inner).unwrap()
    }
}

/// A Recorder that keeps messages in memory. It acknowledges them unless it is slow.
#[derive(Default)]
struct Recorder {
    frames: Mutex<Vec<Vec<u8>>>,
    is_slow: AtomicBool,
    is_over: AtomicBool,
}

impl Recorder {
    fn start(folder: &Folder) -> Arc<Recorder> {
        let path = folder.path("feed.sock");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(path).unwrap();
        let recorder = Arc::new(Recorder::default());
        let shared = recorder.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let limit = Duration::from_secs(5);
                shared.serve(FeedChannel::of_unix(socket, limit).unwrap());
                if shared.is_over.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        recorder
    }

    fn serve(&self, mut channel: FeedChannel) {
        while !self.is_over.load(Ordering::SeqCst) {
            let Ok(frame) = channel.receive(Duration::from_millis(10)) else { return };
            let Some(frame) = frame else { continue };
            let number = ToFeed::decode(&frame).unwrap().number();
            self.frames.lock().unwrap().push(frame);
            if let Some(number) = number.filter(|_| !self.is_slow.load(Ordering::SeqCst)) {
                let _ = channel.send(&FromFeed::Acknowledged(number).to_frame());
            }
        }
    }

    fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Numbers and envelopes so far.
    fn envelopes(&self) -> Vec<(u64, Vec<u8>)> {
        let frames = self.frames.lock().unwrap();
        let envelopes = frames.iter().filter_map(|frame| match ToFeed::decode(frame).unwrap() {
            ToFeed::Envelope(number, envelope) => Some((number, envelope.to_vec())),
            _ => None,
        });
        envelopes.collect()
    }

    fn requests(&self) -> Vec<RequestRecord<'static>> {
        let frames = self.frames.lock().unwrap();
        let requests = frames.iter().filter_map(|frame| match ToFeed::decode(frame).unwrap() {
            ToFeed::Request(_, request) => Some(request.into_owned()),
            _ => None,
        });
        requests.collect()
    }
}

/// A client's key log: labels and secrets.
#[derive(Debug, Default)]
struct Secrets(Mutex<BTreeMap<String, (Vec<u8>, Vec<u8>)>>);

impl KeyLog for Secrets {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        let entry = (client_random.to_vec(), secret.to_vec());
        self.0.lock().unwrap().insert(label.to_owned(), entry);
    }
}

impl Secrets {
    fn is(&self, label: &str, secret: Option<&[u8]>) -> bool {
        self.0.lock().unwrap().get(label).map(|(_, known)| known.as_slice()) == secret
    }

    fn client_random(&self) -> Vec<u8> {
        self.0.lock().unwrap().values().next().unwrap().0.clone()
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
    let audit =
        format!("[audit]\nepochs = \"epochs\"\nlog_key = \"{}\"\nfeed = \"./feed.sock\"\n", keys.log_key);
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
