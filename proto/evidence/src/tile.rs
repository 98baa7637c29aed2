//! Places of the log's files by C2SP tlog-tiles: tiles of 256 hashes, bundles of 256 entries, the path of each.
//!
//! A tile of level L has hashes over `256^L` entries each. The rightmost tile of a level may be partial; its path names
//! its width. [`TileNodes`] gives proofs their hashes from tiles.

use crate::cursor::{Cursor, Malformed};
use crate::merkle::{Hash, Nodes, node_hash, root};

/// Hashes in a full tile, entries in a full bundle.
pub const TILE_WIDTH: u64 = 256;
/// Most bytes of an entry: its length has 16 bits.
pub const ENTRY_BYTES_MAX: usize = 65_535;
/// Highest level that a tree of less than 2^64 entries has.
pub const LEVEL_MAX: u8 = 7;

/// Part of the log that a file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Content {
    /// Hashes of a level.
    Hashes(u8),
    /// Entries.
    Entries,
}

/// Place of a tile or of a bundle of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tile {
    /// What the file has.
    pub content: Content,
    /// Index within the level.
    pub index: u64,
    /// Number of hashes or entries: 1 to 256.
    pub width: u16,
}

impl Tile {
    /// Tile of a log of `size` entries: the full one, or as much as exists. `None` if it is empty.
    pub fn of_size(content: Content, index: u64, size: u64) -> Option<Tile> {
        let level = match content {
            Content::Hashes(level) if level <= LEVEL_MAX => level,
            Content::Hashes(_) => return None,
            Content::Entries => 0,
        };
        let hashes = size >> (8 * u32::from(level));
        let width = hashes.checked_sub(index.checked_mul(TILE_WIDTH)?)?.min(TILE_WIDTH) as u16;
        (width > 0).then_some(Tile { content, index, width })
    }

    /// Whether the tile is full and never changes.
    pub fn is_full(&self) -> bool {
        u64::from(self.width) == TILE_WIDTH
    }

    /// Path below the log's folder: `tile/0/x001/x234/067`, partial ones with `.p/WIDTH`.
    pub fn path(&self) -> String {
        let mut path = format!("{:03}", self.index % 1000);
        let mut rest = self.index / 1000;
        while rest > 0 {
            path = format!("x{:03}/{path}", rest % 1000);
            rest /= 1000;
        }
        let suffix = if self.is_full() { String::new() } else { format!(".p/{}", self.width) };
        match self.content {
            Content::Hashes(level) => format!("tile/{level}/{path}{suffix}"),
            Content::Entries => format!("tile/entries/{path}{suffix}"),
        }
    }

    /// Tile of a path; accepts exactly what [`Tile::path`] writes.
    pub fn parse(path: &str) -> Option<Tile> {
        let (content, rest) = path.strip_prefix("tile/")?.split_once('/')?;
        let content = match content {
            "entries" => Content::Entries,
            level => Content::Hashes(level.parse().ok().filter(|&level| level <= LEVEL_MAX)?),
        };
        let (digits, width) = match rest.split_once(".p/") {
            Some((digits, width)) => (digits, width.parse().ok()?),
            None => (rest, TILE_WIDTH as u16),
        };
        let mut index = 0_u64;
        for part in digits.split('/') {
            let part: u64 = part.strip_prefix('x').unwrap_or(part).parse().ok()?;
            index = index.checked_mul(1000)?.checked_add(part)?;
        }
        let tile = Tile { content, index, width };
        ((1..=TILE_WIDTH).contains(&u64::from(width)) && tile.path() == path).then_some(tile)
    }
}

/// All tiles and bundles that are new or wider in a log that grew from `old` to `new` entries. Levels in order, bundles
/// of entries last.
pub fn grown(old: u64, new: u64) -> Vec<Tile> {
    let mut tiles = Vec::new();
    for content in (0..=LEVEL_MAX).map(Content::Hashes).chain([Content::Entries]) {
        let shift = match content {
            Content::Hashes(level) => 8 * u32::from(level),
            Content::Entries => 0,
        };
        if old >> shift == new >> shift {
            continue;
        }
        for index in (old >> shift) / TILE_WIDTH..(new >> shift).div_ceil(TILE_WIDTH) {
            tiles.extend(Tile::of_size(content, index, new));
        }
    }
    tiles
}

/// Appends an entry to a bundle.
pub fn put_entry(bundle: &mut Vec<u8>, entry: &[u8]) -> Result<(), Malformed> {
    let len = u16::try_from(entry.len()).map_err(|_| Malformed(format!("entry of {} bytes", entry.len())))?;
    bundle.extend_from_slice(&len.to_be_bytes());
    bundle.extend_from_slice(entry);
    Ok(())
}

/// Entries of a bundle: exactly `width` of them.
pub fn bundle_entries(bytes: &[u8], width: u16) -> Result<Vec<&[u8]>, Malformed> {
    let mut cursor = Cursor::new(bytes);
    let entries = (0..width.min(TILE_WIDTH as u16)).map(|_| cursor.long()).collect::<Result<_, _>>()?;
    cursor.end()?;
    Ok(entries)
}

/// Hashes of a tile: exactly `width` of them.
pub fn tile_hashes(bytes: &[u8], width: u16) -> Result<Vec<Hash>, Malformed> {
    if bytes.len() != usize::from(width) * 32 {
        return Err(Malformed(format!(
            "tile of {} bytes, expected {}",
            bytes.len(),
            usize::from(width) * 32
        )));
    }
    Ok(bytes.as_chunks::<32>().0.to_vec())
}

/// Hashes of perfect subtrees in a log of one size, from its tiles.
pub struct TileNodes<F> {
    size: u64,
    read: F,
}

impl<F: Fn(Tile) -> Option<Vec<Hash>>> TileNodes<F> {
    /// Source for a log of `size` entries; `read` gives the hashes of a tile.
    pub fn new(size: u64, read: F) -> TileNodes<F> {
        TileNodes { size, read }
    }
}

impl<F: Fn(Tile) -> Option<Vec<Hash>>> Nodes for TileNodes<F> {
    fn node(&self, level: u8, index: u64) -> Option<Hash> {
        let first = index.checked_shl(u32::from(level % 8)).filter(|first| first >> (level % 8) == index)?;
        let tile = Tile::of_size(Content::Hashes(level / 8), first / TILE_WIDTH, self.size)?;
        let hashes = (self.read)(tile)?;
        let first = (first % TILE_WIDTH) as usize;
        let hashes = hashes.get(first..first + (1 << (level % 8)))?;
        match hashes {
            [left, right] => Some(node_hash(left, right)),
            hashes => Some(root(hashes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merkle::proof::{consistency_proof, inclusion_proof};
    use crate::merkle::{Tree, leaf_hash};
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn paths_are_those_of_the_specification() {
        let tile = |content, index, width| Tile { content, index, width };
        for (tile, path) in [
            (tile(Content::Hashes(0), 1_234_067, 256), "tile/0/x001/x234/067"),
            (tile(Content::Hashes(0), 273, 112), "tile/0/273.p/112"),
            (tile(Content::Hashes(1), 1, 17), "tile/1/001.p/17"),
            (tile(Content::Entries, 0, 256), "tile/entries/000"),
            (tile(Content::Entries, 1000, 1), "tile/entries/x001/000.p/1"),
        ] {
            assert_eq!(tile.path(), path);
            assert_eq!(Tile::parse(path), Some(tile));
        }
        for wrong in [
            "",
            "tile/0/1",
            "tile/8/001",
            "tile/00/001",
            "tile/0/x000/001",
            "tile/0/001.p/256",
            "tile/0/001.p/257",
            "tile/0/+01",
            "tile/0/001.p/0",
            "tile/0/001.p/01",
            "tile/0/x001/0000",
            "tile/entries/001/",
            "../tile/0/001",
        ] {
            assert_eq!(Tile::parse(wrong), None, "{wrong}");
        }
    }

    /// Example of the specification: 70,000 entries.
    #[test]
    fn tiles_of_a_log_are_those_of_the_specification() {
        let all = grown(0, 70_000);
        let level = |wanted| all.iter().filter(|tile| tile.content == wanted).collect::<Vec<_>>();
        assert_eq!(level(Content::Hashes(0)).len(), 274);
        assert_eq!(level(Content::Hashes(0)).last().unwrap().width, 112);
        assert_eq!(level(Content::Hashes(1)).iter().map(|tile| tile.width).collect::<Vec<_>>(), [256, 17]);
        assert_eq!(level(Content::Hashes(2)).iter().map(|tile| tile.width).collect::<Vec<_>>(), [1]);
        assert_eq!(level(Content::Entries).len(), 274);
        assert_eq!(grown(70_000, 70_000), []);
        assert_eq!(grown(70_000, 70_001).len(), 2);
        assert_eq!(grown(0, 256).len(), 3);
    }

    #[test]
    fn bundles_have_exactly_their_entries() {
        let mut bundle = Vec::new();
        put_entry(&mut bundle, b"one").unwrap();
        put_entry(&mut bundle, b"").unwrap();
        assert_eq!(bundle_entries(&bundle, 2).unwrap(), [&b"one"[..], b""]);
        assert!(bundle_entries(&bundle, 1).is_err());
        assert!(bundle_entries(&bundle, 3).is_err());
        assert!(put_entry(&mut bundle, &[0; 65_536]).is_err());
        assert!(tile_hashes(&[0; 63], 2).is_err());
    }

    /// Tiles as a Master writes them.
    fn tiles(leaves: &[Hash]) -> HashMap<(u8, u64), Vec<Hash>> {
        let mut tiles: HashMap<_, Vec<Hash>> = HashMap::new();
        let mut tree = Tree::new();
        for leaf in leaves {
            tree.push_with(*leaf, |level, index, hash| {
                if level % 8 == 0 {
                    tiles.entry((level / 8, index / TILE_WIDTH)).or_default().push(*hash);
                }
            });
        }
        tiles
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn proofs_from_tiles_are_those_from_leaves(size in 1_u64..3000, index: u64, old: u64) {
            let leaves: Vec<Hash> = (0..size).map(|i| leaf_hash(&[&i.to_be_bytes()])).collect();
            let tiles = tiles(&leaves);
            let nodes = TileNodes::new(size, |tile: Tile| {
                let Content::Hashes(level) = tile.content else { return None };
                tiles.get(&(level, tile.index)).filter(|hashes| hashes.len() == usize::from(tile.width)).cloned()
            });
            let (index, old) = (index % size, old % (size + 1));
            prop_assert_eq!(inclusion_proof(&nodes, index, size), inclusion_proof(&leaves[..], index, size));
            prop_assert_eq!(consistency_proof(&nodes, old, size), consistency_proof(&leaves[..], old, size));
            prop_assert_eq!(Tree::load(&nodes, size).unwrap().root(), root(&leaves));
        }

        #[test]
        fn random_paths_never_panic(path in "tile/[0-9]{1,2}/[x0-9/.p]{0,40}") {
            if let Some(tile) = Tile::parse(&path) {
                prop_assert_eq!(tile.path(), path);
            }
        }
    }
}
