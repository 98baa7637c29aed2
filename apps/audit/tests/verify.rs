//! `evergate-audit verify` on stores that a Recorder left.

mod support;

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
    std::fs::remove_file(built.root.join("segments/0000000002.deleted.json")).unwrap();
    let report = verify(&built.root, &trust, None).unwrap();
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert_eq!(report.findings[0].path, "segments/0000000002.pcapng");
}
