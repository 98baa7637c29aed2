//! Test vectors of docs/evidence/vectors: both verifiers find what the expected reports have.
//!
//! The vectors are made from a seed. `EVERGATE_VECTORS=write` writes them again, after a change of the format.

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use support::mutate::{blocks, evidence};
use support::records::{Shape, random_store};
use support::{Folder, verify};

const SHAPE: Shape = Shape { segments: 2, records: 8, batch_records_max: 6, packet_bytes_max: 30 };
const SEED: u64 = 11;

/// Change of a store.
type Change = fn(&Path);

/// Vectors by name: a change of the good store, and whether an expected checkpoint is given.
const VECTORS: [(&str, Change, bool); 6] = [
    ("good", |_| {}, false),
    ("packet-changed", change_packet, false),
    ("record-removed", remove_record, false),
    ("statement-changed", change_statement, false),
    ("checkpoint-without-line-end", cut_checkpoint, false),
    ("older", make_older, true),
];

fn edit(path: PathBuf, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

fn change_packet(root: &Path) {
    edit(root.join("segments/0000000001.pcapng"), |bytes| {
        let mut blocks = blocks(bytes);
        let packet = blocks.iter_mut().find(|block| block[..4] == [6, 0, 0, 0]).unwrap();
        packet[30] ^= 0x40;
        *bytes = blocks.concat();
    });
}

fn remove_record(root: &Path) {
    edit(root.join("segments/0000000002.pcapng"), |bytes| {
        let mut blocks = blocks(bytes);
        let packet =
            blocks.iter().position(|block| block[..4] == [6, 0, 0, 0] && block[72..80] != [0; 8]).unwrap();
        blocks.remove(packet);
        *bytes = blocks.concat();
    });
}

fn change_statement(root: &Path) {
    edit(root.join("statements"), |bytes| bytes[110] ^= 1);
}

fn cut_checkpoint(root: &Path) {
    edit(root.join("checkpoint"), |bytes| bytes.truncate(bytes.len() - 1));
}

fn make_older(root: &Path) {
    std::fs::remove_dir_all(root).unwrap();
    random_store(root, SEED, Shape { segments: 1, ..SHAPE });
}

fn files(root: &Path) -> Vec<(String, Vec<u8>)> {
    evidence(root).into_iter().map(|path| (path.clone(), std::fs::read(root.join(path)).unwrap())).collect()
}

#[test]
fn both_verifiers_find_what_the_vectors_expect() {
    let home = support::python::documentation().join("vectors");
    let is_writing = std::env::var("EVERGATE_VECTORS").is_ok_and(|value| value == "write");
    let folder = Folder::new("vectors");
    let built = random_store(&folder.0.join("newest"), SEED, SHAPE);
    let newest = std::fs::read(built.root.join("checkpoint")).unwrap();
    for (name, change, has_expected) in VECTORS {
        let root = folder.0.join(name);
        random_store(&root, SEED, SHAPE);
        change(&root);
        if is_writing {
            write(&home, &root, name, &newest, &built.trust);
        }
        assert_eq!(files(&home.join(name)), files(&root), "vector {name} is not made by this generator");
        let expected = home.join("expected-checkpoint");
        let expected = has_expected.then_some(expected.as_path());
        let report = verify(&home.join(name), &home.join("trust.json"), expected).unwrap();
        let text = serde_json::to_string_pretty(&report).unwrap() + "\n";
        let file = home.join(format!("{name}.json"));
        if is_writing {
            std::fs::write(&file, &text).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "{name}");
        assert_eq!(report.ok, name == "good");
        let ours: BTreeSet<(String, String)> = report
            .findings
            .iter()
            .map(|finding| {
                let kind = serde_json::to_value(finding.kind).unwrap();
                (kind.as_str().unwrap().to_owned(), finding.path.clone())
            })
            .collect();
        let answer = support::python::verify(&home.join(name), &home.join("trust.json"), expected);
        assert_eq!((answer.ok, answer.findings.into_iter().collect()), (report.ok, ours), "{name}");
    }
}

fn write(home: &Path, root: &Path, name: &str, newest: &[u8], trust: &str) {
    std::fs::create_dir_all(home.join(name).join("segments")).unwrap();
    for (path, content) in files(root) {
        std::fs::write(home.join(name).join(path), content).unwrap();
    }
    std::fs::write(home.join("expected-checkpoint"), newest).unwrap();
    std::fs::write(home.join("trust.json"), trust).unwrap();
}
