//! Audited capture: keys of epochs, and a Recorder in this process.

use super::Folder;
use evergate_crypto::EvidenceVerifier;
use evergate_evidence::envelope::{Envelope, Layer};
use evergate_evidence::epochs::{EpochFile, EpochKeys};
use evergate_evidence::feed::{Continuation, FromFeed, ToFeed};
use evergate_evidence::note::{PublicKey, SignatureLine, VerifyingKey};
use evergate_evidence::record::RequestRecord;
use evergate_evidence::secrets::SecretList;
use evergate_seal::{FileKeys, open_layer, open_secrets};
use evergate_submission::FeedChannel;
use rcgen::SigningKey;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Keys of both layers for this hour and the next, and their published file.
pub(crate) struct Keys {
    inner: FileKeys,
    outer: FileKeys,
    log_key: String,
    pub(crate) file: Vec<u8>,
}

impl Keys {
    pub(crate) fn new() -> Keys {
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

    /// The table of a configuration, with files in its folder.
    pub(crate) fn table(&self) -> String {
        format!("[audit]\nepochs = \"epochs\"\nlog_key = \"{}\"\nfeed = \"./feed.sock\"\n", self.log_key)
    }

    pub(crate) fn open(&mut self, envelope: &Envelope<'_>) -> SecretList {
        let inner = open_layer(envelope, Layer::Outer, envelope.sealed, &mut self.outer).unwrap();
        open_secrets(envelope, &inner, &mut self.inner).unwrap()
    }
}

/// A Recorder that keeps messages in memory. It acknowledges them unless it is slow.
#[derive(Default)]
pub(crate) struct Recorder {
    frames: Mutex<Vec<Vec<u8>>>,
    pub(crate) is_slow: AtomicBool,
    is_over: AtomicBool,
}

impl Recorder {
    pub(crate) fn start(folder: &Folder) -> Arc<Recorder> {
        let path = folder.path("feed.sock");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(path).unwrap();
        let recorder = Arc::new(Recorder::default());
        let shared = recorder.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                if shared.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let (recorder, limit) = (shared.clone(), Duration::from_secs(5));
                let channel = FeedChannel::of_unix(socket, limit).unwrap();
                std::thread::spawn(move || recorder.serve(channel));
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

    pub(crate) fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// Numbers and envelopes so far.
    pub(crate) fn envelopes(&self) -> Vec<(u64, Vec<u8>)> {
        let frames = self.frames.lock().unwrap();
        let envelopes = frames.iter().filter_map(|frame| match ToFeed::decode(frame).unwrap() {
            ToFeed::Envelope(number, envelope) => Some((number, envelope.to_vec())),
            _ => None,
        });
        envelopes.collect()
    }

    /// Connections that nodes continued.
    pub(crate) fn continuations(&self) -> Vec<Continuation> {
        let frames = self.frames.lock().unwrap();
        let continued = frames.iter().filter_map(|frame| match ToFeed::decode(frame).unwrap() {
            ToFeed::Continued(_, continued) => Some(continued),
            _ => None,
        });
        continued.collect()
    }

    pub(crate) fn requests(&self) -> Vec<RequestRecord<'static>> {
        let frames = self.frames.lock().unwrap();
        let requests = frames.iter().filter_map(|frame| match ToFeed::decode(frame).unwrap() {
            ToFeed::Request(_, request) => Some(request.into_owned()),
            _ => None,
        });
        requests.collect()
    }
}
