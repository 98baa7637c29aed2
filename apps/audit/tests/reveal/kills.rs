//! The Revealer is killed at each durable step, and at random times.

use crate::rig::{LIMIT, Rig, build_store, secrets};
use crate::support::Random;
use evergate_evidence::disclosure::{Grant, OutcomeKind, Request};
use evergate_evidence::entry::Event;
use evergate_evidence::merkle::sha256;
use evergate_seal::RecipientKey;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

#[test]
fn kill_at_each_durable_step_keeps_the_order() {
    let rig = Rig::new("kill", false);
    let keys = rig.announce();
    build_store(&rig, &keys);
    let recipient = RecipientKey::generate().unwrap();
    for (number, step) in
        ["opened", "checkpoint_stored", "grant_stored", "handed_out", "reported"].into_iter().enumerate()
    {
        let file = rig.request(2, &recipient, &format!("request-{step}"), &["bob", "carol"]);
        let _ = std::fs::remove_file(rig.path("grant"));
        let output = rig.reveal(&file, Some(step));
        assert!(!output.status.success(), "{step}: not reached");
        assert_eq!(rig.requests(), number + 1, "{step}");
        let before = std::fs::read(rig.path("grant")).ok();
        assert_eq!(before.is_some(), matches!(step, "handed_out" | "reported"), "{step}");
        let journal = rig.path("state/grants");
        let stored = std::fs::read_dir(journal).unwrap().count();
        assert_eq!(stored, number + usize::from(number > 1), "{step}");
        let bytes = rig.granted(&file);
        assert!(before.is_none_or(|before| before == bytes), "{step}");
        assert_eq!(rig.granted(&file), bytes);
        assert_eq!(rig.requests(), number + 1, "{step}");
        assert_eq!(recipient.open(&Grant::decode(&bytes).unwrap()), Ok(secrets(0xa2)));
    }
    let number = keys.epoch.to_string();
    let mut command = rig.revealer("destroy", &["--epoch", &number]);
    assert!(!command.env("EVERGATE_TEST_ABORT", "master_destroyed").status().unwrap().success());
    assert!(rig.revealer("destroy", &["--epoch", &number]).output().unwrap().status.success());
    let inner = std::fs::read_to_string(rig.path("inner")).unwrap();
    assert!(!inner.contains(&format!("{number} ")), "the inner key is still here");
}

/// One request, and its Revealer under fire.
struct Disclosure<'a> {
    rig: &'a Rig,
    file: String,
    note: Vec<u8>,
    journal: PathBuf,
    /// Grant that a try left behind.
    seen: Option<Vec<u8>>,
}

impl Disclosure<'_> {
    fn new<'a>(rig: &'a Rig, recipient: &RecipientKey, number: usize) -> Disclosure<'a> {
        let file = rig.request(2, recipient, &format!("request-{number}"), &["bob", "carol"]);
        let _ = std::fs::remove_file(rig.path("grant"));
        let note = std::fs::read(rig.path(&file)).unwrap();
        let (request, _) = Request::parse(&note).unwrap();
        let nonce: String = request.nonce.iter().map(|byte| format!("{byte:02x}")).collect();
        let journal = rig.path(&format!("state/grants/{nonce}.grant"));
        Disclosure { rig, file, note, journal, seen: None }
    }

    /// Runs the Revealer for at most this time. Answers its running time if it ended by itself.
    fn run_for(&self, limit: Duration) -> Option<Duration> {
        let mut command = self.rig.reveal_command(&self.file);
        let begin = Instant::now();
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while begin.elapsed() < limit {
            if let Some(status) = process.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return Some(begin.elapsed());
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        process.kill().unwrap();
        let status = process.wait().unwrap();
        assert!(status.success() || status.code().is_none(), "{status}");
        status.success().then(|| begin.elapsed())
    }

    /// Whatever is granted has its entry, and is the same as before. Answers what the disk has.
    fn check(&mut self) -> &'static str {
        // The grant is read before the log: an entry that follows it would be too late.
        let [journal, out] =
            [self.journal.clone(), self.rig.path("grant")].map(|path| std::fs::read(path).ok());
        let events = self.rig.entries();
        let (mut logged, mut granted) = (0, 0);
        for event in &events {
            match event {
                Event::DisclosureRequest(text) if text.as_bytes() == self.note => logged += 1,
                Event::DisclosureDone(outcome) if outcome.request == sha256(&self.note) => {
                    assert_eq!(
                        (outcome.kind, logged),
                        (OutcomeKind::Granted, 1),
                        "an outcome before its request"
                    );
                    granted += 1;
                }
                _ => {}
            }
        }
        assert!(logged <= 1 && granted <= 1, "{logged} requests, {granted} grants");
        for grant in [&journal, &out].into_iter().flatten() {
            assert_eq!(logged, 1, "a grant without its entry in the log");
            let seen = self.seen.get_or_insert_with(|| grant.clone());
            assert!(grant == seen, "another grant than before");
        }
        assert!(granted == 0 || out.is_some(), "an outcome before the grant left");
        match (logged, journal, out) {
            (0, ..) => "nothing",
            (_, None, _) => "a log entry",
            (_, Some(_), None) => "a grant in the journal",
            (_, Some(_), Some(_)) if granted == 0 => "a grant that left",
            _ => "an outcome",
        }
    }
}

/// `EVERGATE_KILLS` is the number of kills, `EVERGATE_SEED` repeats their times.
#[test]
fn kill_at_random_moments_keeps_the_order() {
    let rig = Rig::new("kills", false);
    let keys = rig.announce();
    build_store(&rig, &keys);
    let recipient = RecipientKey::generate().unwrap();
    let number = |name: &str| std::env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    let seed = number("EVERGATE_SEED").unwrap_or(u64::from(std::process::id()));
    let kills = number("EVERGATE_KILLS").unwrap_or(10);
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut first = Disclosure::new(&rig, &recipient, 0);
    let mut usual = first.run_for(LIMIT).unwrap();
    first.check();
    let (mut killed, mut places, mut done) = (0, BTreeMap::new(), vec![first]);
    while killed < kills {
        let mut disclosure = Disclosure::new(&rig, &recipient, done.len());
        let (mut tries, mut ended) = (0, None);
        while ended.is_none() {
            // A part of the tries ends by itself.
            let limit = Duration::from_nanos(random.below(usual.as_nanos() as u64 * 5 / 4));
            ended = disclosure.run_for(limit);
            let place = disclosure.check();
            tries += 1;
            if ended.is_none() {
                *places.entry(place).or_insert(0) += 1;
                killed += 1;
                // The machine may be slower by now.
                usual += usual / 32;
            }
        }
        if tries == 1 {
            usual = ended.unwrap();
        }
        let bytes = rig.granted(&disclosure.file);
        disclosure.check();
        assert_eq!(disclosure.seen.as_ref(), Some(&bytes));
        assert_eq!(recipient.open(&Grant::decode(&bytes).unwrap()), Ok(secrets(0xa2)));
        done.push(disclosure);
    }
    println!("{killed} kills of {} disclosures; the disk had {places:?}", done.len() - 1);
    assert_eq!(rig.requests(), done.len());
    // Each grant is reported once. A report is answered when it is durable; the checkpoint follows.
    let granted = || {
        let events = rig.entries().into_iter();
        let grants = events.filter_map(|event| match event {
            Event::DisclosureDone(outcome) => Some((outcome.kind, outcome.grant)),
            _ => None,
        });
        let mut grants: Vec<_> = grants.collect();
        grants.sort_unstable_by_key(|(_, grant)| *grant);
        grants
    };
    let mut expected: Vec<_> =
        done.iter().map(|one| (OutcomeKind::Granted, sha256(one.seen.as_ref().unwrap()))).collect();
    expected.sort_unstable_by_key(|(_, grant)| *grant);
    let begin = Instant::now();
    while granted().len() < expected.len() {
        assert!(begin.elapsed() < LIMIT, "{} of {} outcomes", granted().len(), expected.len());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(granted(), expected);
}
