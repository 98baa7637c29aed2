//! Snapshot of the Recorders' state at the beginning of a journal, so that a start reads no old entries.
//!
//! It is derived: without it, or if it is damaged, the state is computed from all entries.

use crate::disclosures::Disclosures;
use crate::recorders::Recorders;
use evergate_evidence::cursor::{Cursor, Malformed, put_short};
use evergate_evidence::merkle::sha256;
use evergate_evidence::statement::ChainEnd;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"EVGSNP2\n";

/// State of a log at a size.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The Recorders, without the places of their batches.
    pub recorders: Recorders,
    /// Disclosure.
    pub disclosures: Disclosures,
    /// Time of the last entry in ms since 1970.
    pub last_ms: u64,
}

/// File of the snapshot at a size.
pub fn path(folder: &Path, size: u64) -> PathBuf {
    folder.join(format!("state-{size:020}"))
}

impl Snapshot {
    /// Bytes of the file.
    pub fn encode(recorders: &Recorders, disclosures: &Disclosures, last_ms: u64, size: u64) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put(&mut out, &[size, last_ms, recorders.chains().count() as u64, recorders.enrolled().len() as u64]);
        for chain in recorders.chains() {
            out.extend_from_slice(&chain.end.recorder);
            put(&mut out, &[chain.end.batch, chain.end.last_seq, chain.last_index]);
            out.extend_from_slice(&chain.end.link);
        }
        for (recorder, name) in recorders.enrolled() {
            out.extend_from_slice(recorder);
            put_short(&mut out, name);
        }
        disclosures.encode_to(&mut out);
        let check = sha256(&out);
        out.extend_from_slice(&check);
        out
    }

    /// Snapshot from the file's bytes, if they are whole and of this size.
    pub fn decode(bytes: &[u8], size: u64) -> Result<Snapshot, Malformed> {
        let (body, check) = bytes.split_last_chunk::<32>().ok_or_else(|| Malformed::new("too short"))?;
        if sha256(body) != *check {
            return Err(Malformed::new("damaged"));
        }
        let mut cursor = Cursor::new(body);
        if cursor.bytes(8)? != MAGIC || cursor.u64()? != size {
            return Err(Malformed::new("of another version or size"));
        }
        let (last_ms, chains, enrolled) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
        let mut ends = Vec::new();
        for _ in 0..chains {
            let recorder = cursor.array()?;
            let (batch, last_seq, last_index) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
            ends.push((ChainEnd { recorder, batch, last_seq, link: cursor.array()? }, last_index));
        }
        let mut names = BTreeMap::new();
        for _ in 0..enrolled {
            names.insert(cursor.array()?, cursor.short_text()?);
        }
        let disclosures = Disclosures::decode(&mut cursor)?;
        cursor.end()?;
        Ok(Snapshot { recorders: Recorders::restore(ends, names), disclosures, last_ms })
    }
}

fn put(out: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_be_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_survives_and_damage_is_found() {
        let end = ChainEnd { recorder: [1; 32], batch: 2, last_seq: 3, link: [4; 32] };
        let recorders = Recorders::restore(vec![(end, 5)], BTreeMap::from([([1; 32], "edge".into())]));
        let bytes = Snapshot::encode(&recorders, &Disclosures::default(), 9, 4096);
        let read = Snapshot::decode(&bytes, 4096).unwrap();
        assert_eq!((read.last_ms, read.recorders.enrolled()), (9, recorders.enrolled()));
        assert_eq!(read.recorders.chain(&[1; 32]).unwrap().end, end);
        Snapshot::decode(&bytes, 8192).unwrap_err();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            Snapshot::decode(&changed, 4096).unwrap_err();
            Snapshot::decode(&bytes[..at], 4096).unwrap_err();
        }
    }
}
