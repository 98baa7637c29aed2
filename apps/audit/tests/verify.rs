//! `evergate-audit verify` on stores that a Recorder left.

mod support;

use evergate_evidence::verify::FindingKind;
use std::path::Path;
use support::records::{Shape, fill, random_store};
use support::{Folder, StoreWriter, verify};

#[test]
fn good_store_is_proved() {
    for seed in 0..20 {
        let folder = Folder::new(&format!("good-{seed}"));
        let built = random_store(&folder.0.join("store"), seed, Shape::default());
        let trust = folder.0.join("trust.json");
        std::fs::write(&trust, &built.trust).unwrap();
        let report = verify(&built.root, &trust, None).unwrap();
        assert_eq!(report.findings, [], "seed {seed}");
        assert!(report.ok && report.warnings.is_empty());
        let checked = &report.checked;
        assert_eq!((checked.segments, checked.unsigned, checked.unacknowledged), (3, 0, 0));
        assert!(checked.packets > 60 && checked.batches == checked.acknowledged && checked.connections > 0);
    }
}

#[test]
fn deleted_segment_is_proved_by_its_entry() {
    let folder = Folder::new("deleted");
    let mut writer = StoreWriter::new(&folder.0.join("store"), 1);
    fill(&mut writer, 1, Shape::default());
    writer.end_batch();
    writer.sign();
    let first = |number: u64, writer: &StoreWriter| {
        let path = writer.store.segment(number);
        let mut file = evergate_audit::segment_file::SegmentFile::open(&path).unwrap();
        file.read().unwrap().unwrap().record.seq
    };
    let (begin, end) = (first(2, &writer), first(3, &writer) - 1);
    writer.delete(2, begin, end);
    let built = writer.finish();
    let trust = folder.0.join("trust.json");
    std::fs::write(&trust, &built.trust).unwrap();
    let report = verify(&built.root, &trust, None).unwrap();
    assert_eq!(report.findings, []);
    assert_eq!((report.checked.segments, report.checked.deleted_segments), (2, 1));
    assert!(report.checked.batches < report.checked.acknowledged);
    let answer = support::python::verify(&built.root, &trust, None);
    assert!(answer.ok, "{:?}", answer.findings);
    for name in ["segments/0000000002.deleted.json", "outbox/deletion-0000000002.receipt"] {
        let good = std::fs::read(built.root.join(name)).unwrap();
        for bit in (0..good.len() * 8).step_by(5) {
            let mut changed = good.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(built.root.join(name), changed).unwrap();
            let report = verify(&built.root, &trust, None).unwrap();
            let is_named = report.findings.iter().any(|finding| finding.path == name);
            assert!(!report.ok && is_named, "bit {bit} of {name}: {:?}", report.findings);
        }
        std::fs::write(built.root.join(name), good).unwrap();
    }
    std::fs::remove_file(built.root.join("segments/0000000002.deleted.json")).unwrap();
    let report = verify(&built.root, &trust, None).unwrap();
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert_eq!(report.findings[0].path, "segments/0000000002.pcapng");
}

/// A Recorder that starts again begins a segment and a batch: nothing spans the deleted segment and the next one.
#[test]
fn deleted_segment_may_end_with_a_batch() {
    let folder = Folder::new("deleted-whole");
    let mut writer = StoreWriter::new(&folder.0.join("store"), 1);
    writer.restart();
    let end = writer.seq;
    writer.restart();
    writer.delete(1, 1, end - 1);
    writer.delete(2, end, writer.seq - 1);
    writer.end_segment();
    let built = writer.finish();
    let trust = folder.0.join("trust.json");
    std::fs::write(&trust, &built.trust).unwrap();
    let report = verify(&built.root, &trust, None).unwrap();
    assert_eq!(report.findings, []);
    assert_eq!((report.checked.deleted_segments, report.checked.acknowledged), (2, 3));
    let answer = support::python::verify(&built.root, &trust, None);
    assert!(answer.ok, "{:?}", answer.findings);
}

/// Store whose second segment is deleted between the given statements about a hold; answers kinds of findings.
fn kinds_with_hold(
    name: &str,
    change: impl Fn(&mut StoreWriter, &dyn Fn(&mut StoreWriter)),
) -> Vec<FindingKind> {
    let folder = Folder::new(name);
    let mut writer = StoreWriter::new(&folder.0.join("store"), 2);
    fill(&mut writer, 2, Shape::default());
    writer.end_batch();
    writer.sign();
    let first = |number: u64, writer: &StoreWriter| {
        let path = writer.store.segment(number);
        evergate_audit::segment_file::SegmentFile::open(&path).unwrap().read().unwrap().unwrap().record.seq
    };
    let (begin, end) = (first(2, &writer), first(3, &writer) - 1);
    change(&mut writer, &|writer| writer.delete(2, begin, end));
    let built = writer.finish();
    let trust = folder.0.join("trust.json");
    std::fs::write(&trust, &built.trust).unwrap();
    let report = verify(&built.root, &trust, None).unwrap();
    report.findings.into_iter().chain(report.warnings).map(|finding| finding.kind).collect()
}

#[test]
fn deletion_under_a_hold_is_found() {
    let all = (0, u64::MAX);
    let held = kinds_with_hold("held", |writer, delete| {
        writer.hold(1, true, all, "");
        delete(writer);
        writer.hold(2, false, all, "");
    });
    assert_eq!(held, [FindingKind::Held]);
    let lifted = kinds_with_hold("lifted", |writer, delete| {
        writer.hold(1, true, all, "");
        writer.hold(2, false, all, "");
        delete(writer);
    });
    let later = kinds_with_hold("held-later", |writer, delete| {
        delete(writer);
        writer.hold(1, true, all, "");
    });
    let elsewhere = kinds_with_hold("held-elsewhere", |writer, delete| {
        writer.hold(1, true, (0, support::BEGIN_NS - 1), "");
        delete(writer);
    });
    assert_eq!((lifted, later, elsewhere), (vec![], vec![], vec![]));
    let query = kinds_with_hold("held-query", |writer, delete| {
        writer.hold(1, true, all, "--sni shop.example");
        delete(writer);
    });
    assert_eq!(query, [FindingKind::Unchecked]);
}

#[test]
fn p256_key_and_witness_are_verified_by_both() {
    let folder = Folder::new("p256");
    let mut writer = StoreWriter::new(&folder.0.join("store"), 2);
    writer.log.use_p256_and_witness();
    fill(&mut writer, 2, Shape { segments: 1, records: 10, ..Shape::default() });
    let built = writer.finish();
    let trust = folder.0.join("trust.json");
    std::fs::write(&trust, &built.trust).unwrap();
    assert_eq!(verify(&built.root, &trust, None).unwrap().findings, []);
    assert!(support::python::verify(&built.root, &trust, None).ok);
    // A checkpoint of the log alone lacks the witness.
    let path = built.root.join("checkpoint");
    let text = std::fs::read_to_string(&path).unwrap();
    let without = text.lines().filter(|line| !line.contains("witness")).map(|line| format!("{line}\n"));
    std::fs::write(&path, without.collect::<String>()).unwrap();
    let report = verify(&built.root, &trust, None).unwrap();
    assert_eq!(
        report.findings.iter().map(|finding| finding.kind).collect::<Vec<_>>(),
        [FindingKind::Witness]
    );
    assert!(!support::python::verify(&built.root, &trust, None).ok);
}

#[test]
fn trial_key_is_a_warning() {
    let folder = Folder::new("trial");
    let built = random_store(&folder.0.join("store"), 4, Shape::default());
    let trust = folder.0.join("trust.json");
    let id = built.trust.split('+').nth(1).unwrap();
    let with_trial = built.trust.replace("\n", "").replace("]}", &format!("],\"trial_keys\":[\"{id}\"]}}"));
    std::fs::write(&trust, with_trial).unwrap();
    let report = verify(&built.root, &trust, None).unwrap();
    assert!(report.ok);
    assert_eq!(report.warnings.len(), 1);
    assert_eq!(report.warnings[0].kind, FindingKind::Trial);
}

#[test]
fn store_without_a_master_is_not_proved() {
    let folder = Folder::new("offline");
    let built = random_store(&folder.0.join("store"), 5, Shape::default());
    for segment in 1..=built.last_segment {
        std::fs::remove_file(built.root.join(format!("segments/{segment:010}.proofs"))).unwrap();
    }
    std::fs::remove_file(built.root.join("checkpoint")).unwrap();
    let trust = folder.0.join("trust.json");
    std::fs::write(&trust, &built.trust).unwrap();
    let report = verify(&built.root, &trust, None).unwrap();
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert_eq!(report.findings[0].kind, FindingKind::Unacknowledged);
    assert!(report.checked.batches > 0 && report.checked.unacknowledged == report.checked.batches);
}

#[test]
fn end_of_a_running_recorder_may_be_incomplete() {
    let folder = Folder::new("live");
    let built = random_store(&folder.0.join("store"), 6, Shape::default());
    let trust = folder.0.join("trust.json");
    std::fs::write(&trust, &built.trust).unwrap();
    let last = built.root.join(format!("segments/{:010}.pcapng", built.last_segment));
    let bytes = std::fs::read(&last).unwrap();
    // Half a block more than the statements cover.
    let mut torn = bytes.clone();
    torn.truncate(bytes.len() - 3);
    let statements = std::fs::read(built.root.join("statements")).unwrap();
    std::fs::write(built.root.join("statements"), &statements[..statements.len() - 212]).unwrap();
    let proofs = built.root.join(format!("segments/{:010}.proofs", built.last_segment));
    let _ = std::fs::remove_file(proofs);
    std::fs::write(&last, torn).unwrap();
    let dead = verify(&built.root, &trust, None).unwrap();
    assert!(dead.findings.iter().any(|finding| finding.kind == FindingKind::TornTail));
    let lock = evergate_audit::store::Store::at(&built.root).lock().unwrap();
    let live = verify(&built.root, &trust, None).unwrap();
    assert!(live.findings.iter().all(|finding| finding.kind != FindingKind::TornTail), "{:?}", live.findings);
    drop(lock);
}

#[test]
fn bundle_is_proved_and_each_bit_of_it_is_found() {
    let folder = Folder::new("bundle");
    let shape = Shape { segments: 1, records: 24, batch_records_max: 8, packet_bytes_max: 16 };
    let built = random_store(&folder.0.join("store"), 8, shape);
    let trust = folder.0.join("trust.json");
    std::fs::write(&trust, &built.trust).unwrap();
    let bundle = folder.0.join("bundle");
    evergate_audit::bundle::write(&evergate_audit::store::Store::at(&built.root), 1, &bundle).unwrap();
    let report = verify(&bundle, &trust, None).unwrap();
    assert_eq!(report.findings, []);
    assert!(report.checked.packets > 0 && report.checked.batches > 0);
    let answer = support::python::verify(&bundle, &trust, None);
    assert!(answer.ok, "{:?}", answer.findings);
    let mut names = vec!["manifest.json".into(), "session.pcapng".into(), "batches.bin".into()];
    for entry in std::fs::read_dir(bundle.join("proofs")).unwrap() {
        names.push(format!("proofs/{}", entry.unwrap().file_name().to_str().unwrap()));
    }
    for name in names {
        let good = std::fs::read(bundle.join(&name)).unwrap();
        for bit in (0..good.len() * 8).step_by(7) {
            let mut changed = good.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(bundle.join(&name), changed).unwrap();
            let report = verify(&bundle, &trust, None).unwrap();
            let is_named = report.findings.iter().any(|finding| finding.path == name);
            assert!(!report.ok && is_named, "bit {bit} of {name}: {:?}", report.findings);
        }
        std::fs::write(bundle.join(&name), good).unwrap();
    }
}

#[test]
fn exit_codes_and_json_are_an_interface() {
    let folder = Folder::new("exit");
    let built = random_store(&folder.0.join("store"), 9, Shape::default());
    let trust = folder.0.join("trust.json");
    std::fs::write(&trust, &built.trust).unwrap();
    let run = |folder: &Path, trust: &Path| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_evergate-audit"));
        let output = command.args(["verify", "--json", "--trust"]).arg(trust).arg(folder).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), text, String::from_utf8(output.stderr).unwrap())
    };
    let (code, text, _) = run(&built.root, &trust);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, report["ok"].as_bool()), (Some(0), Some(true)));
    std::fs::write(built.root.join("statements"), b"").unwrap();
    let (code, text, _) = run(&built.root, &trust);
    let report: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, report["findings"][0]["path"].as_str()), (Some(1), Some("statements")));
    let (code, _, error) = run(&folder.0.join("nothing"), &trust);
    assert_eq!(code, Some(2));
    assert!(error.contains("neither a store nor a bundle"), "{error}");
    std::fs::write(&trust, "{}").unwrap();
    let (code, _, error) = run(&built.root, &trust);
    assert_eq!(code, Some(2));
    assert!(error.contains("trust file"), "{error}");
}

#[test]
fn hostile_names_and_texts_are_escaped() {
    let folder = Folder::new("hostile");
    let built = random_store(&folder.0.join("store"), 9, Shape::default());
    let trust = folder.0.join("trust.json");
    std::fs::write(&trust, &built.trust).unwrap();
    std::fs::write(built.root.join("segments/\x1b[31m\n"), b"").unwrap();
    let report = verify(&built.root, &trust, None).unwrap();
    assert_eq!(report.warnings[0].path, "segments/\\u{1b}[31m\\n");
    assert!(report.ok);
}
