//! Tiles and bundles of entries in the log's folder.
//!
//! The sequencer appends, the publisher reads hashes for proofs. The newest tiles stay in memory. A file gets its name
//! when it is whole; names of partial tiles go when the full tile exists.

use evergate_evidence::merkle::{Hash, Nodes, Tree, leaf_hash};
use evergate_evidence::tile::{Content, TILE_WIDTH, Tile, TileNodes, grown, put_entry, tile_hashes};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Newest tiles of a level that stay in memory.
const RECENT_TILES: u64 = 4;

/// Tiles of a log.
pub struct Tiles {
    folder: PathBuf,
    /// Hashes by level and index: only the newest of each level.
    recent: Mutex<BTreeMap<(u8, u64), Vec<Hash>>>,
}

/// Writing end: one for a log.
pub struct TileWriter {
    tree: Tree,
    /// Entries of the bundle that is not full, as its bytes, by index.
    bundles: BTreeMap<u64, Vec<u8>>,
    /// Size up to which files are written.
    written: u64,
}

impl Tiles {
    /// Tiles of a folder.
    pub fn new(folder: &Path) -> Tiles {
        Tiles { folder: folder.to_owned(), recent: Mutex::new(BTreeMap::new()) }
    }

    /// Hashes of a tile, from memory, from its file, or from the full tile that replaced it.
    pub fn read(&self, tile: Tile) -> Option<Vec<Hash>> {
        let Content::Hashes(level) = tile.content else { return None };
        let width = usize::from(tile.width);
        {
            let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(hashes) = recent.get(&(level, tile.index)).and_then(|hashes| hashes.get(..width)) {
                return Some(hashes.to_vec());
            }
        }
        let read = |tile: Tile| {
            let bytes = std::fs::read(self.folder.join(tile.path())).ok()?;
            tile_hashes(&bytes, tile.width).ok()
        };
        let full = Tile { width: TILE_WIDTH as u16, ..tile };
        read(tile).or_else(|| read(full)?.get(..width).map(<[Hash]>::to_vec))
    }

    /// Bytes of a bundle of entries.
    pub fn read_entries(&self, index: u64, size: u64) -> io::Result<(Tile, Vec<u8>)> {
        let tile = Tile::of_size(Content::Entries, index, size).ok_or(io::ErrorKind::InvalidInput)?;
        Ok((tile, std::fs::read(self.folder.join(tile.path()))?))
    }

    /// Source of hashes for proofs in the tree of a size.
    pub fn nodes(&self, size: u64) -> impl Nodes {
        TileNodes::new(size, |tile| self.read(tile))
    }

    /// Root of the tree of a size, computed from tiles.
    pub fn root(&self, size: u64) -> Option<Hash> {
        Tree::load(&self.nodes(size), size).map(|tree| tree.root())
    }

    /// Writing end for a log whose first `size` entries have their tiles; `size` is a multiple of the tile's width.
    pub fn writer(&self, size: u64) -> Option<TileWriter> {
        let tree = Tree::load(&self.nodes(size), size)?;
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.clear();
        drop(recent);
        for level in 0..=evergate_evidence::tile::LEVEL_MAX {
            let count = size >> (8 * u32::from(level));
            if let Some(tile) = Tile::of_size(Content::Hashes(level), count / TILE_WIDTH, size) {
                let hashes = self.read(tile)?;
                self.recent
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert((level, tile.index), hashes);
            }
        }
        Some(TileWriter { tree, bundles: BTreeMap::new(), written: size })
    }

    /// Syncs all files that a log has more at size `new` than at `old`, and their folders.
    pub fn sync(&self, old: u64, new: u64) -> io::Result<()> {
        let mut folders = std::collections::BTreeSet::new();
        for tile in grown(old, new) {
            let path = self.folder.join(tile.path());
            File::open(&path)?.sync_all()?;
            let inside = path.ancestors().skip(1).take_while(|folder| folder.starts_with(&self.folder));
            folders.extend(inside.map(Path::to_owned));
        }
        folders.iter().try_for_each(|folder| crate::journal::sync_folder(folder))
    }
}

impl TileWriter {
    /// Number of entries.
    pub fn size(&self) -> u64 {
        self.tree.size()
    }

    /// Root over all entries.
    pub fn root(&self) -> Hash {
        self.tree.root()
    }

    /// Appends an entry to the tree.
    pub fn append(&mut self, tiles: &Tiles, entry: &[u8]) {
        let bundle = self.bundles.entry(self.tree.size() / TILE_WIDTH).or_default();
        // Entries are within the bound: they were encoded here or read from the journal.
        let _ = put_entry(bundle, entry);
        let mut recent = tiles.recent.lock().unwrap_or_else(PoisonError::into_inner);
        self.tree.push_with(leaf_hash(&[entry]), |level, index, hash| {
            if level % 8 == 0 {
                recent.entry((level / 8, index / TILE_WIDTH)).or_default().push(*hash);
            }
        });
    }

    /// Writes the files that are new or wider since the last call.
    pub fn write(&mut self, tiles: &Tiles) -> io::Result<()> {
        let size = self.tree.size();
        for tile in grown(self.written, size) {
            match tile.content {
                Content::Entries => {
                    let bundle = self.bundles.get(&tile.index).ok_or(io::ErrorKind::InvalidData)?;
                    write_tile(&tiles.folder, tile, bundle)?;
                }
                Content::Hashes(_) => {
                    let hashes = tiles.read(tile).ok_or(io::ErrorKind::InvalidData)?;
                    write_tile(&tiles.folder, tile, &hashes.concat())?;
                }
            }
        }
        self.written = size;
        self.bundles.retain(|&index, _| index >= size / TILE_WIDTH);
        let mut recent = tiles.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = |level: u8| (size >> (8 * u32::from(level))) / TILE_WIDTH;
        recent.retain(|&(level, index), _| index + RECENT_TILES > newest(level));
        Ok(())
    }
}

fn write_tile(folder: &Path, tile: Tile, bytes: &[u8]) -> io::Result<()> {
    let path = folder.join(tile.path());
    let parent = path.parent().unwrap_or(folder);
    let temporary = parent.join(format!(".{}.tmp", tile.width));
    let written = std::fs::write(&temporary, bytes);
    if matches!(&written, Err(error) if error.kind() == io::ErrorKind::NotFound) {
        std::fs::create_dir_all(parent)?;
        std::fs::write(&temporary, bytes)?;
    } else {
        written?;
    }
    std::fs::rename(&temporary, &path)?;
    if tile.is_full() {
        let mut partial = path.into_os_string();
        partial.push(".p");
        match std::fs::remove_dir_all(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_evidence::merkle::proof::{
        consistency_proof, inclusion_proof, verify_consistency, verify_inclusion,
    };

    #[test]
    fn proofs_hold_from_files_and_from_memory() {
        let folder = std::env::temp_dir().join(format!("evergate-tiles-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let tiles = Tiles::new(&folder);
        let mut writer = tiles.writer(0).unwrap();
        let mut heads = vec![];
        for index in 0..2500_u64 {
            writer.append(&tiles, &index.to_be_bytes());
            if index % 97 == 0 {
                writer.write(&tiles).unwrap();
                heads.push((writer.size(), writer.root()));
            }
        }
        writer.write(&tiles).unwrap();
        heads.push((writer.size(), writer.root()));
        let fresh = Tiles::new(&folder);
        let last = heads[heads.len() - 1];
        for &(size, root) in &heads {
            assert_eq!(tiles.root(size), Some(root));
            assert_eq!(fresh.root(size), Some(root), "{size}");
            let proof = consistency_proof(&fresh.nodes(last.0), size, last.0).unwrap();
            verify_consistency((size, &root), (last.0, &last.1), &proof).unwrap();
            let leaf = leaf_hash(&[&(size - 1).to_be_bytes()]);
            let proof = inclusion_proof(&tiles.nodes(last.0), size - 1, last.0).unwrap();
            verify_inclusion(&leaf, size - 1, last.0, &proof, &last.1).unwrap();
        }
        // Partial tiles go when the full tile exists.
        assert!(folder.join("tile/0/000").exists() && !folder.join("tile/0/000.p").exists());
        tiles.sync(0, 2500).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }
}
