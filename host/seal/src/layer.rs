//! One layer of one envelope: AES-256-GCM under a key that its context exports for this connection alone.

use crate::hpke::Exporter;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use evergate_evidence::envelope::{Layer, TAG_BYTES};
use zeroize::Zeroizing;

/// `info` of the contexts, and the beginning of what they export for.
pub(crate) const INFO: &[u8] = b"evergate-audit seal v1";
const KEY_BYTES: usize = 32;

/// Seals `buffer` in place and appends the tag.
pub(crate) fn seal(
    exporter: &Exporter,
    layer: Layer,
    index: u32,
    aad: &[u8],
    buffer: &mut Vec<u8>,
) -> Option<()> {
    let (key, nonce) = key(exporter, layer, index)?;
    let tag = key.seal_in_place_separate_tag(nonce, Aad::from(aad), buffer).ok()?;
    buffer.extend_from_slice(tag.as_ref());
    Some(())
}

/// Opens `buffer` in place and cuts the tag off.
pub(crate) fn open(
    exporter: &Exporter,
    layer: Layer,
    index: u32,
    aad: &[u8],
    buffer: &mut Vec<u8>,
) -> Option<()> {
    let len = buffer.len().checked_sub(TAG_BYTES)?;
    let (key, nonce) = key(exporter, layer, index)?;
    key.open_in_place(nonce, Aad::from(aad), buffer).ok()?;
    buffer.truncate(len);
    Some(())
}

/// `K || N = Export("evergate-audit seal v1" || layer || index, 44)`.
fn key(exporter: &Exporter, layer: Layer, index: u32) -> Option<(LessSafeKey, Nonce)> {
    let mut bytes = Zeroizing::new([0; KEY_BYTES + NONCE_LEN]);
    exporter.export(&[INFO, &[layer as u8], &index.to_be_bytes()], &mut bytes[..]);
    let (key, nonce) = bytes.split_at(KEY_BYTES);
    let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).ok()?);
    Some((key, Nonce::try_assume_unique_for_key(nonce).ok()?))
}
