//! Disclosure at the Master: a request is in the signed log before a layer opens, and refusals are in the log too.

use crate::peers::witness;
use crate::support::{LIMIT, Master, Setup, identity, percentile, pin, run, wait_until};
use evergate_crypto::{EvidenceVerifier, LogKey};
use evergate_evidence::disclosure::{
    DestroyOrder, Member, Outcome, OutcomeKind, Policy, Request, Role, Scope,
};
use evergate_evidence::entry::{Entry, Event};
use evergate_evidence::envelope::{Aad, EPOCH_NS, Envelope};
use evergate_evidence::epochs::{EpochFile, EpochKeys};
use evergate_evidence::merkle::{Hash, sha256};
use evergate_evidence::note::{Note, SignatureLine, VerifyingKey};
use evergate_evidence::secrets::{Label, SecretList};
use evergate_evidence::tile::{TILE_WIDTH, Tile, bundle_entries};
use evergate_master::sequencer::wall_ms;
use evergate_master::tiles::Tiles;
use evergate_seal::{FileKeys, SealContext, open_secrets};
use evergate_submission::{Identity, Opened, RevealError, RevealerClient, id_text};
use std::process::Command;
use std::time::{Duration, Instant};

const PEOPLE: [(&str, &str, Role); 6] = [
    ("alice", "alice", Role::Both),
    ("alice", "alice-2", Role::Both),
    ("bob", "bob", Role::Approver),
    ("bob", "bob-2", Role::Approver),
    ("carol", "carol", Role::Approver),
    ("dave", "dave", Role::Requester),
];
const GOOD: [&str; 3] = ["alice", "bob", "carol"];

/// Master with a policy and escrow keys, and a Revealer with its keys.
struct Rig {
    setup: Setup,
    identity: Identity,
    people: Vec<(Member, LogKey)>,
    inner: FileKeys,
    epoch: u64,
}

impl Rig {
    fn new() -> Rig {
        let setup = Setup::new(0);
        let identity = identity();
        let person = |(person, name, role): &(&str, &str, Role)| {
            let (key, _) = LogKey::generate().unwrap();
            let vkey = VerifyingKey::new(name, key.public_key()).unwrap();
            (Member { person: (*person).into(), role: *role, key: vkey }, key)
        };
        let people: Vec<(Member, LogKey)> = PEOPLE.iter().map(person).collect();
        let policy = Policy {
            version: 1,
            threshold: 2,
            threshold_beyond: 0,
            per_day: 100_000,
            days: 7,
            scope: Scope::Connection,
            with_credentials: false,
            members: people.iter().map(|(member, _)| member.clone()).collect(),
        };
        let rig = Rig { setup, identity, people, inner: FileKeys::default(), epoch: wall_ms() / 3_600_000 };
        let note = rig.sign(&policy.to_text(), &["bob", "carol"]);
        std::fs::write(rig.setup.folder.join("policy"), note).unwrap();
        let text = rig.setup.read("master.toml");
        std::fs::write(rig.setup.config(), format!("policy = \"policy\"\n{text}")).unwrap();
        let id = id_text(&rig.identity.id());
        rig.setup.configure(&format!("\n[[revealer]]\nname = \"reveal-1\"\nid = \"{id}\"\n"));
        rig.setup.configure("\n[escrow]\nkind = \"file\"\nkeys = \"escrow\"\n");
        rig.setup.configure("\n[limits]\ndisclosure_ms = 0\n");
        rig
    }

    fn sign(&self, text: &str, names: &[&str]) -> Vec<u8> {
        let mut note = Note::new(text.to_owned()).unwrap();
        for name in names {
            let (member, key) = self.people.iter().find(|(member, _)| member.key.name() == *name).unwrap();
            note.sign(SignatureLine::of(&member.key, key.sign(text.as_bytes()).unwrap())).unwrap();
        }
        note.to_bytes()
    }

    fn connect(&self, master: &Master) -> RevealerClient {
        RevealerClient::connect(&master.address, &self.identity, &pin(&self.setup), String::new(), LIMIT)
            .unwrap()
    }

    fn log_key(&self, client: &RevealerClient) -> VerifyingKey {
        VerifyingKey::parse(&client.welcome().vkey).unwrap()
    }

    /// Announces the keys of the epoch and gives both, as a switch reads them.
    fn announce(&mut self, client: &mut RevealerClient) -> EpochKeys {
        let log = self.log_key(client);
        let inner = self.inner.create(self.epoch).unwrap();
        client.announce(self.epoch, &inner, &log).unwrap();
        let file = std::fs::read(self.setup.log().join("epochs")).unwrap();
        EpochFile::open(&file, &log, &EvidenceVerifier).unwrap().get(self.epoch).unwrap().clone()
    }

    fn request(&self, nonce: u8) -> Request {
        let created_s = wall_ms() / 1000;
        Request {
            connection: 7,
            client_random: [1; 32],
            server_random: [2; 32],
            epoch: self.epoch,
            recorder: [3; 32],
            recipient: [4; 65],
            scope: Scope::Connection,
            with_credentials: false,
            reason: "fraud report".into(),
            reference: "case-12".into(),
            requester: "alice".into(),
            created_s,
            expires_s: created_s + 3600,
            nonce: [nonce; 16],
        }
    }

    fn note(&self, nonce: u8) -> Vec<u8> {
        self.sign(&self.request(nonce).to_text(), &GOOD)
    }

    /// Entries of the log.
    fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        // A running Master replaces the last tile.
        wait_until("entries", || {
            let size = self.setup.checkpoint().checkpoint().size;
            let tiles = Tiles::new(&self.setup.log());
            let found: Result<Vec<(Tile, Vec<u8>)>, _> =
                (0..size.div_ceil(TILE_WIDTH)).map(|index| tiles.read_entries(index, size)).collect();
            let Ok(found) = found else { return false };
            let all = found.iter().flat_map(|(tile, bytes)| bundle_entries(bytes, tile.width).unwrap());
            entries = all.map(|bytes| Entry::decode(bytes).unwrap()).collect();
            true
        });
        entries
    }

    fn requests(&self) -> Vec<String> {
        let note = |entry: Entry| match entry {
            Entry::Event(_, Event::DisclosureRequest(note)) => Some(note),
            _ => None,
        };
        self.entries().into_iter().filter_map(note).collect()
    }

    fn outcomes(&self) -> Vec<Outcome> {
        let outcome = |entry: Entry| match entry {
            Entry::Event(_, Event::DisclosureDone(outcome)) => Some(outcome),
            _ => None,
        };
        self.entries().into_iter().filter_map(outcome).collect()
    }

    /// Starts a Master that ends at a step.
    fn start_until(&self, abort: &str) -> Master {
        let mut command = self.setup.command();
        command.env("EVERGATE_TEST_ABORT", abort);
        Master::start(command)
    }
}

fn secrets() -> SecretList {
    let mut list = SecretList::default();
    Label::ALL[1..].iter().for_each(|label| list.set(*label, &[7; 48]).unwrap());
    list
}

fn sealed(keys: &EpochKeys, client_random: Hash) -> Vec<u8> {
    let aad = Aad {
        switch: [9; 32],
        connection: 1,
        born_ns: keys.epoch * EPOCH_NS + 1,
        client: "10.0.0.1:50000".parse().unwrap(),
        local: "10.0.0.2:443".parse().unwrap(),
        client_random,
        server_random: [2; 32],
        tls_version: 0x304,
        cipher_suite: 0x1301,
        feed_number: 1,
        sni: b"a.test",
    };
    SealContext::new(keys).unwrap().seal(&aad, &secrets()).unwrap()
}

fn denied<T: std::fmt::Debug>(answer: Result<T, RevealError>) -> String {
    match answer {
        Err(RevealError::Denied { name, .. }) => name,
        other => panic!("{other:?}"),
    }
}

/// The receipt proves the request under the log's key.
fn check(opened: &Opened, note: &[u8], log: &VerifyingKey, witnesses: &[VerifyingKey]) {
    let note = String::from_utf8(note.to_vec()).unwrap();
    let leaf = Entry::Event(opened.received_ms, Event::DisclosureRequest(note)).leaf();
    let verified = opened.receipt.verify(&leaf, log, witnesses, &EvidenceVerifier).unwrap();
    assert_eq!(verified.keys.len(), 1 + witnesses.len());
}

fn granted(note: &[u8], request: &Request, index: u64) -> Outcome {
    Outcome {
        kind: OutcomeKind::Granted,
        request: sha256(note),
        nonce: request.nonce,
        index,
        grant: [6; 32],
        reason: String::new(),
    }
}

fn discloses(rig: &mut Rig, master: Master) {
    let mut client = rig.connect(&master);
    let log = rig.log_key(&client);
    let keys = rig.announce(&mut client);
    let bytes = sealed(&keys, [1; 32]);
    let envelope = Envelope::decode(&bytes).unwrap();
    let (request, note) = (rig.request(1), rig.note(1));
    let opened = client.disclose(0, &note, &bytes).unwrap();
    check(&opened, &note, &log, &[]);
    assert_eq!(open_secrets(&envelope, &opened.inner, &mut rig.inner).unwrap(), secrets());
    // The same request again: the same place and the same answer.
    let again = client.disclose(0, &note, &bytes).unwrap();
    assert_eq!((again.receipt.index, &again.inner), (opened.receipt.index, &opened.inner));
    let outcome = granted(&note, &request, opened.receipt.index);
    let receipt = client.report(&outcome, &log).unwrap();
    assert_eq!(client.report(&outcome, &log).unwrap().index, receipt.index);
    let other = Outcome { grant: [5; 32], ..outcome.clone() };
    assert_eq!(denied(client.report(&other, &log)), "nonce_replayed");
    assert_eq!(rig.requests(), [String::from_utf8(note.clone()).unwrap()]);
    assert_eq!(rig.outcomes(), [outcome]);
    // Destroyed: refused, and the proof still holds.
    client.destroy(rig.epoch, &[], &log).unwrap();
    client.destroy(rig.epoch, &[], &log).unwrap();
    assert_eq!(denied(client.disclose(0, &note, &bytes)), "destroyed");
    let newer = rig.sign(&rig.request(2).to_text(), &GOOD);
    assert_eq!(denied(client.disclose(0, &newer, &bytes)), "destroyed");
    let inner = keys.inner;
    assert_eq!(denied(client.announce(rig.epoch, &inner, &log)), "destroyed");
    check(&opened, &note, &log, &[]);
    let file = std::fs::read(rig.setup.log().join("epochs")).unwrap();
    assert_eq!(EpochFile::open(&file, &log, &EvidenceVerifier).unwrap().get(rig.epoch), None);
    drop(client);
    assert_eq!(master.stop(), Some(0));
    let destroyed = rig.entries().into_iter().any(
        |entry| matches!(entry, Entry::Event(_, Event::EpochDestroyed(found)) if found == keys.destroyed()),
    );
    assert!(destroyed);
}

#[test]
fn request_is_logged_and_one_layer_opened() {
    let mut rig = Rig::new();
    let master = rig.setup.start();
    discloses(&mut rig, master);
}

#[test]
fn escrow_keys_in_an_hsm_open_and_are_destroyed() {
    let mut rig = Rig::new();
    crate::hsm::hsm(&rig.setup, "EC:prime256v1");
    rig.setup.reconfigure(
        "kind = \"file\"\nkeys = \"escrow\"",
        &format!(
            "kind = \"pkcs11\"\nmodule = \"{}\"\ntoken = \"{}\"\npin_file = \"pin\"",
            crate::hsm::MODULE,
            crate::hsm::TOKEN
        ),
    );
    let master = crate::hsm::start(&rig.setup, &[]);
    discloses(&mut rig, master);
    let mut command = Command::new("pkcs11-tool");
    command.env("SOFTHSM2_CONF", crate::hsm::conf(&rig.setup));
    let listed = run(command
        .args(["--module", crate::hsm::MODULE, "--token-label", crate::hsm::TOKEN])
        .args(["--login", "--pin", "1234", "--list-objects"]));
    assert!(listed.contains("label:      log") && !listed.contains("evergate-escrow"), "{listed}");
}

#[test]
fn hostile_requests_are_refused_and_logged() {
    let mut rig = Rig::new();
    let master = rig.setup.start();
    let mut client = rig.connect(&master);
    let log = rig.log_key(&client);
    let bytes = {
        let keys = rig.announce(&mut client);
        sealed(&keys, [1; 32])
    };
    let now_s = wall_ms() / 1000;
    let request = |nonce| rig.request(nonce);
    let text = |request: &Request| request.to_text();
    let twice = {
        let note = String::from_utf8(rig.note(11)).unwrap();
        let last = note.lines().last().unwrap();
        format!("{note}{last}\n").into_bytes()
    };
    let forged = String::from_utf8(rig.note(12)).unwrap().replace("connection 7", "connection 8");
    let week = Request { expires_s: now_s + 8 * 86_400, ..request(14) };
    let old = Request { created_s: now_s - 7200, expires_s: now_s - 1, ..request(15) };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("approver_twice", twice),
        ("wrong_signature", forged.into_bytes()),
        ("same_person", rig.sign(&text(&request(13)), &["alice", "bob", "bob-2"])),
        ("validity", rig.sign(&text(&week), &GOOD)),
        ("expired", rig.sign(&text(&old), &GOOD)),
        ("too_few", rig.sign(&text(&request(16)), &["alice", "bob"])),
        ("requester_approves", rig.sign(&text(&request(17)), &["alice", "alice-2", "bob"])),
        ("no_reason", rig.sign(&text(&Request { reason: String::new(), ..request(18) }), &GOOD)),
        ("wrong_scope", rig.sign(&text(&Request { scope: Scope::Family, ..request(19) }), &GOOD)),
        ("not_approver", rig.sign(&text(&request(20)), &["alice", "bob", "dave"])),
        ("no_requester", rig.sign(&text(&request(21)), &["bob", "carol"])),
        ("credentials", rig.sign(&text(&Request { with_credentials: true, ..request(22) }), &GOOD)),
        ("destroyed", rig.sign(&text(&Request { epoch: rig.epoch - 1, ..request(23) }), &GOOD)),
        ("malformed", b"no request".to_vec()),
    ];
    for (number, (name, note)) in cases.iter().enumerate() {
        assert_eq!(denied(client.disclose(0, note, &bytes)), *name);
        assert!(rig.requests().is_empty(), "{name}");
        let outcome = rig.wait_outcomes(number + 1).pop().unwrap();
        assert_eq!((outcome.kind, outcome.request), (OutcomeKind::Refused, sha256(note)));
        assert!(outcome.reason.starts_with(name), "{}", outcome.reason);
    }
    // A refused request with the approval that it lacked: its nonce is free.
    let whole = rig.sign(&text(&request(16)), &GOOD);
    client.disclose(0, &whole, &bytes).unwrap();
    // A nonce with other content.
    let good = rig.note(30);
    client.disclose(0, &good, &bytes).unwrap();
    let other = rig.sign(&text(&Request { connection: 8, ..request(30) }), &GOOD);
    assert_eq!(denied(client.disclose(0, &other, &bytes)), "nonce_replayed");
    // An envelope of another connection, or changed.
    let file = std::fs::read(rig.setup.log().join("epochs")).unwrap();
    let keys = EpochFile::open(&file, &log, &EvidenceVerifier).unwrap().get(rig.epoch).unwrap().clone();
    let note = rig.note(31);
    assert_eq!(denied(client.disclose(0, &note, &sealed(&keys, [8; 32]))), "other_envelope");
    let mut changed = bytes.clone();
    *changed.last_mut().unwrap() ^= 1;
    assert_eq!(denied(client.disclose(0, &note, &changed)), "closed");
    assert_eq!(denied(client.disclose(0, &note, b"no envelope")), "malformed");
    // The right one is disclosed all the same, under the same entry.
    let opened = client.disclose(0, &note, &bytes).unwrap();
    let outcomes = rig.wait_outcomes(cases.len() + 4);
    assert_eq!(outcomes.len(), cases.len() + 4);
    let failed: Vec<(OutcomeKind, u64)> =
        outcomes[cases.len() + 1..].iter().map(|outcome| (outcome.kind, outcome.index)).collect();
    assert_eq!(failed, [(OutcomeKind::Failed, opened.receipt.index); 3]);
    // A report about a request that the log lacks.
    let unknown = granted(&note, &request(99), opened.receipt.index);
    assert_eq!(denied(client.report(&unknown, &log)), "nonce_replayed");
}

impl Rig {
    /// Outcomes once the checkpoint covers `count` of them: refusals are answered when they are durable.
    fn wait_outcomes(&self, count: usize) -> Vec<Outcome> {
        wait_until("the outcomes", || self.outcomes().len() >= count);
        self.outcomes()
    }
}

/// Nothing is disclosed without an earlier entry, and the repeated request has one place and one answer.
#[test]
fn kill_at_each_durable_step_keeps_the_order() {
    let mut rig = Rig::new();
    let keys = {
        let master = rig.setup.start();
        let mut client = rig.connect(&master);
        let keys = rig.announce(&mut client);
        drop(client);
        assert_eq!(master.stop(), Some(0));
        keys
    };
    let bytes = sealed(&keys, [1; 32]);
    let mut answers = Vec::new();
    // The first signature of a start is that of the Master's own entry.
    for (nonce, step) in [
        "entry_written:2",
        "entries_synced:2",
        "tiles_written:2",
        "signed:2",
        "checkpoint_written:2",
        "checkpoint_renamed:2",
        "layer_opened:1",
    ]
    .into_iter()
    .enumerate()
    {
        let note = rig.note(nonce as u8 + 1);
        let mut master = rig.start_until(step);
        let mut client = rig.connect(&master);
        let answer = client.disclose(0, &note, &bytes);
        assert!(answer.is_err(), "{step}: not reached");
        assert!(!master.wait_end().success());
        let master = rig.setup.start();
        let mut client = rig.connect(&master);
        let log = rig.log_key(&client);
        let opened = client.disclose(0, &note, &bytes).unwrap();
        check(&opened, &note, &log, &[]);
        let again = client.disclose(0, &note, &bytes).unwrap();
        assert_eq!((again.receipt.index, &again.inner), (opened.receipt.index, &opened.inner), "{step}");
        let text = String::from_utf8(note).unwrap();
        assert_eq!(rig.requests().iter().filter(|found| **found == text).count(), 1, "{step}");
        answers.push(opened.inner);
        drop(client);
        assert_eq!(master.stop(), Some(0));
    }
    answers.dedup();
    assert_eq!(answers.len(), 1);
}

#[test]
fn kill_while_keys_are_made_or_destroyed_continues() {
    let mut rig = Rig::new();
    let mut master = rig.start_until("key_created");
    let mut client = rig.connect(&master);
    let (log, inner) = (rig.log_key(&client), rig.inner.create(rig.epoch).unwrap());
    assert!(client.announce(rig.epoch, &inner, &log).is_err());
    assert!(!master.wait_end().success());
    let mut master = rig.start_until("key_destroyed");
    let mut client = rig.connect(&master);
    let keys = rig.announce(&mut client);
    assert!(client.destroy(rig.epoch, &[], &log).is_err());
    assert!(!master.wait_end().success());
    // The key is gone and the log does not have it yet: nothing opens, and the repeated call logs it.
    let master = rig.setup.start();
    let mut client = rig.connect(&master);
    let note = rig.note(1);
    assert_eq!(denied(client.disclose(0, &note, &sealed(&keys, [1; 32]))), "destroyed");
    client.destroy(rig.epoch, &[], &log).unwrap();
    assert_eq!(denied(client.disclose(0, &rig.note(2), &sealed(&keys, [1; 32]))), "destroyed");
    drop(client);
    assert_eq!(master.stop(), Some(0));
}

#[test]
fn hold_keeps_an_epoch_unless_the_approvers_order() {
    let mut rig = Rig::new();
    let recorder = identity();
    let id = id_text(&recorder.id());
    rig.setup.configure(&format!("\n[[recorder]]\nname = \"edge\"\nid = \"{id}\"\n"));
    let master = rig.setup.start();
    let connected =
        evergate_submission::connect(&master.address, &recorder, &pin(&rig.setup), Default::default(), LIMIT);
    let mut connected = connected.unwrap();
    let begin = rig.epoch * EPOCH_NS;
    let hold = evergate_evidence::entry::Hold {
        is_set: true,
        recorder: recorder.id(),
        hold: 1,
        from_ns: begin,
        to_ns: begin + 1,
        query: String::new(),
        reason: "case".into(),
    };
    connected.sender.send_event(1, &Event::Hold(hold)).unwrap();
    connected.receiver.receive(LIMIT).unwrap().unwrap();
    let mut client = rig.connect(&master);
    let log = rig.log_key(&client);
    rig.announce(&mut client);
    assert_eq!(denied(client.destroy(rig.epoch, &[], &log)), "held");
    let now_s = wall_ms() / 1000;
    let order =
        |epoch| DestroyOrder { epoch, reason: "court".into(), created_s: now_s, expires_s: now_s + 60 };
    let few = rig.sign(&order(rig.epoch).to_text(), &["bob"]);
    assert_eq!(denied(client.destroy(rig.epoch, &few, &log)), "too_few");
    let other = rig.sign(&order(rig.epoch + 1).to_text(), &["bob", "carol"]);
    assert_eq!(denied(client.destroy(rig.epoch, &other, &log)), "malformed");
    let good = rig.sign(&order(rig.epoch).to_text(), &["bob", "carol"]);
    client.destroy(rig.epoch, &good, &log).unwrap();
}

#[test]
fn witness_cosigns_before_a_layer_opens() {
    let mut rig = Rig::new();
    let (server, vkey) = witness(&rig.setup);
    let master = rig.setup.start();
    let mut client = rig.connect(&master);
    let log = rig.log_key(&client);
    let keys = rig.announce(&mut client);
    let (note, bytes) = (rig.note(1), sealed(&keys, [1; 32]));
    let opened = client.disclose(0, &note, &bytes).unwrap();
    check(&opened, &note, &log, &[vkey]);
    drop(server);
    drop(client);
    assert_eq!(master.stop(), Some(0));
}

#[test]
fn messages_of_the_wrong_peer_end_the_connection() {
    let rig = Rig::new();
    let recorder = identity();
    let id = id_text(&recorder.id());
    rig.setup.configure(&format!("\n[[recorder]]\nname = \"edge\"\nid = \"{id}\"\n"));
    let master = rig.setup.start();
    let connect = |identity| {
        RevealerClient::connect(&master.address, identity, &pin(&rig.setup), String::new(), LIMIT).unwrap()
    };
    let mut client = connect(&recorder);
    let error = client.disclose(0, b"note", b"envelope").unwrap_err().to_string();
    assert!(error.contains("a message of a Revealer, from a peer that is none"), "{error}");
}

#[test]
fn changed_policy_needs_the_approvers_before_it() {
    let rig = Rig::new();
    assert_eq!(rig.setup.start().stop(), Some(0));
    let mallory = LogKey::generate().unwrap().0;
    let key = VerifyingKey::new("mallory", mallory.public_key()).unwrap();
    let policy = Policy {
        version: 2,
        threshold: 1,
        threshold_beyond: 0,
        per_day: 20,
        days: 7,
        scope: Scope::Connection,
        with_credentials: false,
        members: vec![Member { person: "mallory".into(), role: Role::Both, key: key.clone() }],
    };
    let mut own = Note::new(policy.to_text()).unwrap();
    own.sign(SignatureLine::of(&key, mallory.sign(policy.to_text().as_bytes()).unwrap())).unwrap();
    std::fs::write(rig.setup.folder.join("policy"), own.to_bytes()).unwrap();
    let text = rig.setup.refused_start();
    assert!(text.contains("policy") && text.contains("no signature of a known key"), "{text}");
    let good = rig.sign(&policy.to_text(), &["bob", "carol"]);
    std::fs::write(rig.setup.folder.join("policy"), good).unwrap();
    assert_eq!(rig.setup.start().stop(), Some(0));
    assert_eq!(rig.setup.start().stop(), Some(0));
    let policies = rig.entries().into_iter().filter(|e| matches!(e, Entry::Event(_, Event::Policy(_))));
    assert_eq!(policies.count(), 2);
}

/// Nothing is disclosed without an entry, and an entry is never lost or repeated, whenever the Master is killed.
#[test]
fn kill_at_random_moments_keeps_the_order() {
    let mut rig = Rig::new();
    let keys = {
        let master = rig.setup.start();
        let mut client = rig.connect(&master);
        let keys = rig.announce(&mut client);
        drop(client);
        assert_eq!(master.stop(), Some(0));
        keys
    };
    let bytes = sealed(&keys, [1; 32]);
    let seed = std::process::id();
    println!("seed {seed}");
    let rounds = std::env::var("EVERGATE_KILLS").map_or(10, |kills| kills.parse().unwrap());
    let (mut sent, mut answered) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let mut master = rig.setup.start();
        let mut client = rig.connect(&master);
        let pause = u64::from(seed.wrapping_mul(2_654_435_761).rotate_left(round * 3 % 32) % 150);
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(pause));
            master.kill();
        });
        loop {
            let mut nonce = [0; 16];
            nonce[..8].copy_from_slice(&(sent.len() as u64 + 1).to_be_bytes());
            let note = rig.sign(&Request { nonce, ..rig.request(0) }.to_text(), &GOOD);
            sent.push(note.clone());
            match client.disclose(0, &note, &bytes) {
                Ok(opened) => answered.push((note, opened.receipt.index, opened.inner)),
                Err(_) => break,
            }
        }
        killer.join().unwrap();
    }
    let master = rig.setup.start();
    let mut client = rig.connect(&master);
    let log = rig.log_key(&client);
    for (note, index, inner) in &answered {
        let again = client.disclose(0, note, &bytes).unwrap();
        assert_eq!((again.receipt.index, &again.inner), (*index, inner));
    }
    // What was under way is either logged or not: its repetition is logged once.
    for note in &sent {
        check(&client.disclose(0, note, &bytes).unwrap(), note, &log, &[]);
    }
    let mut logged = rig.requests();
    assert_eq!(logged.len(), sent.len());
    logged.sort_unstable();
    logged.dedup();
    assert_eq!(logged.len(), sent.len());
}

#[test]
fn disclosure_is_answered_quickly() {
    let mut rig = Rig::new();
    let master = rig.setup.start();
    let mut client = rig.connect(&master);
    let keys = rig.announce(&mut client);
    let bytes = sealed(&keys, [1; 32]);
    let mut times: Vec<Duration> = (1..=50)
        .map(|nonce| {
            let note = rig.note(nonce);
            let begin = Instant::now();
            client.disclose(0, &note, &bytes).unwrap();
            begin.elapsed()
        })
        .collect();
    let (p50, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    println!("disclosure without a witness, keys in files: p50 {p50:?}, p99 {p99:?}");
    // 50 ms on a free machine; this one may be full.
    assert!(p50 < Duration::from_millis(500), "{p50:?}");
}
