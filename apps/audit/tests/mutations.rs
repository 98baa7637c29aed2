//! Seeded changes of stores: `verify` finds each, and names a file that was changed.
//!
//! `EVERGATE_MUTATIONS` sets their number (`make audit-mutations`: 10,000). A failure prints its seed.

mod support;

use std::path::{Path, PathBuf};
use support::mutate::{KINDS, Mutation, evidence, mutate};
use support::records::{Shape, random_store, shape_of};
use support::{Folder, verify};

/// Stores that the changes start from.
const STORES: u64 = 25;

fn copy_store(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to.join("segments")).unwrap();
    for path in evidence(from) {
        std::fs::copy(from.join(&path), to.join(&path)).unwrap();
    }
}

fn base_stores(folder: &Path) -> Vec<PathBuf> {
    let build = |seed| random_store(&folder.join(format!("base-{seed}")), seed, shape_of(seed));
    let built: Vec<_> = (0..STORES).map(build).collect();
    std::fs::write(folder.join("trust.json"), &built[0].trust).unwrap();
    built.into_iter().map(|built| built.root).collect()
}

/// Error if the change is not found, or if no finding names a changed file.
fn check(root: &Path, trust: &Path, mutation: &Mutation) -> Result<(), String> {
    let expected = root.with_extension("expected");
    let report = verify(root, trust, mutation.needs_expected.then_some(expected.as_path()))?;
    if report.ok {
        return Err(format!("not found: {mutation:?}"));
    }
    match report.findings.iter().any(|finding| mutation.paths.contains(&finding.path)) {
        true => Ok(()),
        false => Err(format!("{mutation:?} is not named: {:?}", report.findings)),
    }
}

#[test]
fn every_mutation_is_found_and_named() {
    let count: u64 = std::env::var("EVERGATE_MUTATIONS").map_or(500, |count| count.parse().unwrap());
    let folder = Folder::new("mutations");
    let stores = base_stores(&folder.0);
    let (trust, work) = (folder.0.join("trust.json"), folder.0.join("work"));
    for store in &stores {
        copy_store(store, &work);
        assert_eq!(verify(&work, &trust, None).unwrap().findings, [], "{}", store.display());
    }
    let (mut done, mut failures) = (0, Vec::new());
    for seed in 0..count * 2 {
        if done == count {
            break;
        }
        let kind = KINDS[(seed % KINDS.len() as u64) as usize];
        let store_seed = seed / KINDS.len() as u64 % STORES;
        copy_store(&stores[store_seed as usize], &work);
        let Some(mutation) = mutate(&work, kind, seed, store_seed) else { continue };
        done += 1;
        if let Err(error) = check(&work, &trust, &mutation) {
            failures.push(format!("seed {seed}, store {store_seed}: {error}"));
        }
    }
    println!("{done} mutations of {} kinds, {} not found or not named", KINDS.len(), failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(done, count);
}

#[test]
fn every_single_bit_is_found_and_named() {
    let folder = Folder::new("bits");
    let shape = Shape { segments: 2, records: 5, batch_records_max: 6, packet_bytes_max: 20 };
    let built = random_store(&folder.0.join("store"), 3, shape);
    let trust = folder.0.join("trust.json");
    std::fs::write(&trust, &built.trust).unwrap();
    let mut bits = 0;
    for path in evidence(&built.root) {
        let file = built.root.join(&path);
        let good = std::fs::read(&file).unwrap();
        for bit in 0..good.len() * 8 {
            let mut changed = good.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&file, changed).unwrap();
            let report = verify(&built.root, &trust, None).unwrap();
            let is_named = report.findings.iter().any(|finding| finding.path == path);
            assert!(!report.ok && is_named, "bit {bit} of {path}: {:?}", report.findings);
            bits += 1;
        }
        std::fs::write(&file, good).unwrap();
    }
    println!("{bits} single bits found and named");
    assert!(verify(&built.root, &trust, None).unwrap().ok);
}

#[test]
fn independent_verifier_agrees_on_mutations() {
    let folder = Folder::new("independent");
    let stores = base_stores(&folder.0);
    let (trust, work) = (folder.0.join("trust.json"), folder.0.join("work"));
    for store in &stores[..4] {
        let ours = verify(store, &trust, None).unwrap().checked;
        let answer = support::python::verify(store, &trust, None);
        assert!(answer.ok, "{}: {:?}", store.display(), answer.findings);
        let counts = [
            ("records", ours.records),
            ("packets", ours.packets),
            ("packet_bytes", ours.packet_bytes),
            ("declared_lost", ours.declared_lost),
            ("batches", ours.batches),
            ("acknowledged", ours.acknowledged),
            ("segments", ours.segments),
        ];
        for (name, count) in counts {
            assert_eq!(answer.checked[name].as_u64(), Some(count), "{name}");
        }
    }
    let mut failures = Vec::new();
    for seed in 5000..5000 + 2 * KINDS.len() as u64 {
        let kind = KINDS[(seed % KINDS.len() as u64) as usize];
        let store_seed = seed / KINDS.len() as u64 % STORES;
        copy_store(&stores[store_seed as usize], &work);
        let Some(mutation) = mutate(&work, kind, seed, store_seed) else { continue };
        let expected = work.with_extension("expected");
        let expected = mutation.needs_expected.then_some(expected.as_path());
        let answer = support::python::verify(&work, &trust, expected);
        if answer.ok || !answer.findings.iter().any(|(_, path)| mutation.paths.contains(path)) {
            failures.push(format!("seed {seed}: {mutation:?}: {:?}", answer.findings));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
