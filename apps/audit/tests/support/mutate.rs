//! Seeded changes of a store, each of which `verify` must find.

use super::records::{Shape, forked_store, random_store, shape_of};
use super::{Random, has_others};
use evergate_evidence::pcapng::block_head;
use std::path::Path;

/// Change of a store.
#[derive(Clone, Debug)]
pub(crate) struct Mutation {
    /// Kind of the change.
    pub(crate) kind: &'static str,
    /// Files that it changes. A finding must name one of them.
    pub(crate) paths: Vec<String>,
    /// Whether only `--expect-checkpoint` finds it.
    pub(crate) needs_expected: bool,
}

/// Kinds of changes.
pub(crate) const KINDS: [&str; 20] = [
    "bit",
    "bytes",
    "delete_file",
    "delete_block",
    "reorder_blocks",
    "insert_block",
    "repeat_block",
    "truncate",
    "append",
    "swap_files",
    "swap_segments",
    "payload",
    "clock_back",
    "note_lines",
    "note_end",
    "forked_log",
    "older_store",
    "delete_statement",
    "delete_receipt",
    "swap_receipts",
];

/// Files of the store that are evidence, by their paths.
pub(crate) fn evidence(root: &Path) -> Vec<String> {
    let mut paths: Vec<String> = std::fs::read_dir(root.join("segments"))
        .unwrap()
        .map(|entry| format!("segments/{}", entry.unwrap().file_name().to_str().unwrap()))
        .collect();
    paths.extend(["statements", "checkpoint", "store.json"].map(String::from));
    paths.sort();
    paths
}

/// Changes the store in one way. `None`: this kind finds nothing to change in this store.
pub(crate) fn mutate(root: &Path, kind: &'static str, seed: u64, store_seed: u64) -> Option<Mutation> {
    let mut random = Random(seed ^ 0x0bad);
    let mutation = |paths: &[&str]| {
        Some(Mutation {
            kind,
            paths: paths.iter().map(|path| (*path).into()).collect(),
            needs_expected: false,
        })
    };
    let all = evidence(root);
    let any = all[random.below(all.len() as u64) as usize].as_str();
    let segment = any_segment(root, &mut random);
    let proofs = any_with(&all, ".proofs", &mut random);
    let edit = |path: &str, change: &mut dyn FnMut(&mut Vec<u8>)| {
        let mut bytes = std::fs::read(root.join(path)).unwrap();
        let before = bytes.clone();
        change(&mut bytes);
        std::fs::write(root.join(path), &bytes).unwrap();
        if bytes == before { None } else { mutation(&[path]) }
    };
    match kind {
        "bit" => edit(any, &mut |bytes| {
            let bit = random.below(bytes.len() as u64 * 8);
            bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        }),
        "bytes" => edit(any, &mut |bytes| {
            let at = random.below(bytes.len() as u64) as usize;
            let end = (at + 1 + random.below(40) as usize).min(bytes.len());
            bytes[at..end].iter_mut().for_each(|byte| *byte = random.next() as u8);
        }),
        "delete_file" => {
            std::fs::remove_file(root.join(any)).unwrap();
            mutation(&[any])
        }
        "delete_block" => edit_blocks(root, &segment, |blocks| {
            drop(blocks.remove(random.below(blocks.len() as u64) as usize))
        }),
        "reorder_blocks" => edit_blocks(root, &segment, |blocks| {
            let at = random.below(blocks.len() as u64 - 1) as usize;
            blocks.swap(at, at + 1);
        }),
        "insert_block" => {
            let other = blocks(&std::fs::read(root.join(any_segment(root, &mut random))).unwrap());
            let block = other[random.below(other.len() as u64) as usize].clone();
            edit_blocks(root, &segment, |blocks| {
                blocks.insert(random.below(blocks.len() as u64) as usize, block)
            })
        }
        "repeat_block" => edit_blocks(root, &segment, |blocks| {
            let at = random.below(blocks.len() as u64) as usize;
            blocks.insert(at, blocks[at].clone());
        }),
        "truncate" => edit(any, &mut |bytes| bytes.truncate(random.below(bytes.len() as u64) as usize)),
        "append" => edit(any, &mut |bytes| {
            (0..1 + random.below(60)).for_each(|_| bytes.push(random.next() as u8));
        }),
        "swap_files" => swap(root, any, &all[random.below(all.len() as u64) as usize], kind),
        "swap_segments" => swap(root, &segment, &any_segment(root, &mut random), kind),
        "payload" => edit_packet(root, &segment, &mut random, |block, random| {
            // Two 16-bit words of a block move by the same amount: the sum that TCP and IP checksums use stays.
            let captured = u32::from_le_bytes(block[20..24].try_into().unwrap()) as usize;
            if captured < 8 {
                return;
            }
            let at = 28 + 2 * random.below(captured as u64 / 2 - 3) as usize;
            block.swap(at, at + 2);
            block.swap(at + 1, at + 3);
        })
        .and_then(|path| mutation(&[&path])),
        "clock_back" => edit_packet(root, &segment, &mut random, |block, random| {
            let low = u32::from_le_bytes(block[16..20].try_into().unwrap());
            let back = low.wrapping_sub(1 + random.below(1 << 30) as u32);
            block[16..20].copy_from_slice(&back.to_le_bytes());
        })
        .and_then(|path| mutation(&[&path])),
        "note_lines" => edit("checkpoint", &mut |bytes| {
            let text = String::from_utf8(bytes.clone()).unwrap();
            let lines: Vec<&str> = text.split_inclusive('\n').collect();
            let at = random.below(lines.len() as u64) as usize;
            *bytes = match random.below(3) {
                0 => [&lines[..at], &[lines[at]], &lines[at..]].concat(),
                1 => [&lines[..at], &lines[at + 1..]].concat(),
                _ => [&lines[..at], &["\u{2014} audit.test/2027 AAAAAAAA\n"][..], &lines[at..]].concat(),
            }
            .concat()
            .into_bytes();
        }),
        "note_end" => edit("checkpoint", &mut |bytes| match random.below(3) {
            0 => drop(bytes.pop()),
            1 => bytes.push(b'\n'),
            _ => bytes.extend_from_slice(b" "),
        }),
        "forked_log" => fork(root, &proofs, store_seed),
        "older_store" => older(root, store_seed),
        "delete_statement" => edit("statements", &mut |bytes| {
            let at = 212 * random.below(bytes.len() as u64 / 212) as usize;
            bytes.drain(at..at + 212);
        }),
        "delete_receipt" => edit_frames(root, &proofs, |frames| {
            frames.remove(random.below(frames.len() as u64) as usize);
        }),
        "swap_receipts" => edit_frames(root, &proofs, |frames| {
            let (a, b) = (random.below(frames.len() as u64), random.below(frames.len() as u64));
            frames.swap(a as usize, b as usize);
        }),
        other => panic!("unknown kind {other}"),
    }
}

fn any_with(all: &[String], suffix: &str, random: &mut Random) -> String {
    let matching: Vec<&String> = all.iter().filter(|path| path.ends_with(suffix)).collect();
    matching[random.below(matching.len() as u64) as usize].clone()
}

fn any_segment(root: &Path, random: &mut Random) -> String {
    any_with(&evidence(root), ".pcapng", random)
}

/// Blocks of a segment.
pub(crate) fn blocks(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut rest, mut blocks) = (bytes, Vec::new());
    while let Some(head) = block_head(rest) {
        let (block, behind) = rest.split_at(head.total);
        blocks.push(block.to_vec());
        rest = behind;
    }
    blocks
}

fn edit_blocks(root: &Path, path: &str, change: impl FnOnce(&mut Vec<Vec<u8>>)) -> Option<Mutation> {
    let before = std::fs::read(root.join(path)).unwrap();
    let mut blocks = blocks(&before);
    change(&mut blocks);
    write_changed(root, path, &before, &blocks.concat(), "blocks")
}

fn write_changed(
    root: &Path,
    path: &str,
    before: &[u8],
    after: &[u8],
    kind: &'static str,
) -> Option<Mutation> {
    std::fs::write(root.join(path), after).unwrap();
    (before != after).then(|| Mutation { kind, paths: vec![path.into()], needs_expected: false })
}

/// Frames of a `.proofs` file.
fn edit_frames(root: &Path, path: &str, change: impl FnOnce(&mut Vec<Vec<u8>>)) -> Option<Mutation> {
    let before = std::fs::read(root.join(path)).unwrap();
    let (mut rest, mut frames) = (&before[..], Vec::new());
    while let Some((length, _)) = rest.split_first_chunk::<4>() {
        let (frame, behind) = rest.split_at(4 + u32::from_be_bytes(*length) as usize);
        frames.push(frame.to_vec());
        rest = behind;
    }
    change(&mut frames);
    write_changed(root, path, &before, &frames.concat(), "receipts")
}

/// Changes one packet's block; the file that was changed.
fn edit_packet(
    root: &Path,
    path: &str,
    random: &mut Random,
    change: impl FnOnce(&mut Vec<u8>, &mut Random),
) -> Option<String> {
    let before = std::fs::read(root.join(path)).unwrap();
    let mut blocks = blocks(&before);
    let packets: Vec<usize> = (0..blocks.len()).filter(|at| blocks[*at][..4] == [6, 0, 0, 0]).collect();
    let at = *packets.get(random.below(packets.len() as u64) as usize)?;
    change(&mut blocks[at], random);
    write_changed(root, path, &before, &blocks.concat(), "packet").map(|_| path.to_owned())
}

fn swap(root: &Path, one: &str, other: &str, kind: &'static str) -> Option<Mutation> {
    let (a, b) = (std::fs::read(root.join(one)).unwrap(), std::fs::read(root.join(other)).unwrap());
    std::fs::write(root.join(one), &b).unwrap();
    std::fs::write(root.join(other), &a).unwrap();
    (a != b).then(|| Mutation { kind, paths: vec![one.into(), other.into()], needs_expected: false })
}

/// The owner signs another history of the log, with the log's own key: receipts from one segment on, and the
/// checkpoint, are those of the other history.
///
/// In a log of one Recorder its receipts name every entry, so a fork is always found. Entries of other Recorders have
/// no receipts here: whether a fork shows depends on the hashes that the proofs share. A witness finds the rest.
fn fork(root: &Path, from: &str, store_seed: u64) -> Option<Mutation> {
    if has_others(store_seed) {
        return None;
    }
    let copy = root.with_extension("fork");
    let _ = std::fs::remove_dir_all(&copy);
    forked_store(&copy, store_seed, shape_of(store_seed));
    let (mut paths, mut is_mixed) = (Vec::new(), false);
    for path in evidence(root) {
        let other = std::fs::read(copy.join(&path)).unwrap();
        if path == "checkpoint" || path.ends_with(".proofs") && path.as_str() >= from {
            std::fs::write(root.join(&path), other).unwrap();
            paths.push(path);
        } else {
            is_mixed |= path.ends_with(".proofs");
        }
    }
    std::fs::remove_dir_all(&copy).unwrap();
    is_mixed.then_some(Mutation { kind: "forked_log", paths, needs_expected: false })
}

/// The store as it was before its last segments: a state that was valid then. `expected` has the newest checkpoint.
fn older(root: &Path, store_seed: u64) -> Option<Mutation> {
    let expected = std::fs::read(root.join("checkpoint")).unwrap();
    std::fs::remove_dir_all(root).unwrap();
    random_store(root, store_seed, Shape { segments: 1, ..shape_of(store_seed) });
    std::fs::write(root.with_extension("expected"), expected).unwrap();
    Some(Mutation { kind: "older_store", paths: vec!["checkpoint".into()], needs_expected: true })
}
