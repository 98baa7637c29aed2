//! Another tier: files are there before they are deleted, and no content replaces another.

#![cfg(feature = "object-store")]

mod index_support;

use index_support::{Folder, audit_code, sample};

#[test]
fn segment_is_in_the_tier_before_it_is_deleted() {
    let folder = Folder::new("tier");
    let (store, tier) = (sample(&folder.0.join("store"), 1), folder.0.join("tier"));
    let (path, url) = (store.root().to_str().expect("path"), format!("file://{}", tier.display()));
    let content = std::fs::read(store.segment(1)).expect("segment");
    let expire = ["expire", path, "--max-bytes", "0", "--tier", &url];
    audit_code(1, &expire);
    let objects = tier.join("01".repeat(32)).join("segments");
    assert_eq!(std::fs::read(objects.join("0000000001.pcapng")).expect("object"), content);
    let manifest = std::fs::read_to_string(objects.join("0000000001.pcapng.json")).expect("manifest");
    assert!(manifest.contains(&format!("\"bytes\":{}", content.len())), "{manifest}");
    assert!(objects.join("0000000001.proofs").exists());
    assert!(!store.segment(1).exists());
    let deleted = std::fs::read_to_string(store.deleted(1)).expect("statement");
    assert!(deleted.contains("copied to file://"), "{deleted}");
}

#[test]
fn other_content_of_the_same_name_is_refused() {
    let folder = Folder::new("tier-other");
    let (store, tier) = (sample(&folder.0.join("store"), 1), folder.0.join("tier"));
    let (path, url) = (store.root().to_str().expect("path"), format!("file://{}", tier.display()));
    let objects = tier.join("01".repeat(32)).join("segments");
    std::fs::create_dir_all(&objects).expect("folder");
    std::fs::write(objects.join("0000000001.pcapng.json"), "{\"bytes\":1,\"sha256\":\"00\"}")
        .expect("manifest");
    let (_, message) = audit_code(1, &["expire", path, "--max-bytes", "0", "--tier", &url]);
    assert!(message.contains("another content"), "{message}");
    assert!(store.segment(1).exists());
}

#[test]
fn interrupted_copy_is_repeated() {
    let folder = Folder::new("tier-torn");
    let (store, tier) = (sample(&folder.0.join("store"), 1), folder.0.join("tier"));
    let (path, url) = (store.root().to_str().expect("path"), format!("file://{}", tier.display()));
    let content = std::fs::read(store.segment(1)).expect("segment");
    audit_code(1, &["expire", path, "--max-bytes", "0", "--tier", &url]);
    // As after a crash within the copy of segment 1.
    let object = tier.join("01".repeat(32)).join("segments/0000000001.pcapng");
    std::fs::write(&object, &content[..100]).expect("torn");
    std::fs::write(store.segment(1), &content).expect("segment");
    std::fs::remove_file(store.deleted(1)).expect("removed");
    audit_code(1, &["expire", path, "--max-bytes", "0", "--tier", &url]);
    assert_eq!(std::fs::read(&object).expect("object"), content);
}

#[cfg(feature = "cold")]
#[test]
fn frozen_day_is_copied_with_its_digest() {
    let folder = Folder::new("tier-cold");
    let (store, tier) = (sample(&folder.0.join("store"), 1), folder.0.join("tier"));
    let (path, url) = (store.root().to_str().expect("path"), format!("file://{}", tier.display()));
    audit_code(0, &["index", path, "--freeze", "2026-11-28", "--tier", &url]);
    let objects: Vec<_> =
        std::fs::read_dir(tier.join("01".repeat(32)).join("cold/connection")).expect("objects").collect();
    assert_eq!(objects.len(), 2, "file and manifest");
}

#[test]
fn wrong_tier_is_refused_before_anything_is_deleted() {
    let folder = Folder::new("tier-wrong");
    let store = sample(&folder.0, 1);
    let path = folder.0.to_str().expect("path");
    for url in ["nonsense", "ftp://host/x", "file:///proc/none/x"] {
        let (_, message) = audit_code(2, &["expire", path, "--max-bytes", "0", "--tier", url]);
        assert!(message.contains("tier:"), "{message}");
    }
    assert!(store.segment(1).exists());
}
