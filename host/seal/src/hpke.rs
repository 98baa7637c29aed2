//! HPKE of RFC 9180 in base mode: DHKEM(P-256, HKDF-SHA256), HKDF-SHA256.
//!
//! ECDH is done elsewhere, in AWS-LC or in an HSM. This module derives from its result. Tests compare it with the crate
//! `hpke`, which is too slow for the switch and cannot use an HSM.

use aws_lc_rs::agreement::{
    ECDH_P256, EphemeralPrivateKey, ParsedPublicKey, UnparsedPublicKey, agree_ephemeral,
};
use aws_lc_rs::rand::SystemRandom;
use evergate_evidence::envelope::Point;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::{Zeroize, Zeroizing};

const HASH: usize = 32;
/// Longest output of an expansion here: a key of 32 bytes and a nonce of 12, rounded up.
const EXPAND_BYTES_MAX: usize = 2 * HASH;
const VERSION: &[u8] = b"HPKE-v1";
/// Id of DHKEM(P-256, HKDF-SHA256) for the derivation of the shared secret.
const KEM_SUITE: &[u8] = b"KEM\x00\x10";
/// Ids of the KEM, of HKDF-SHA256 and of export-only contexts.
pub(crate) const EXPORT_ONLY: &[u8; 10] = b"HPKE\x00\x10\x00\x01\xff\xff";

/// Ids of the KEM, of HKDF-SHA256 and of AES-256-GCM.
const AES_256_GCM: &[u8; 10] = b"HPKE\x00\x10\x00\x01\x00\x02";

/// Result of ECDH: the x coordinate. Erased with its owner.
pub(crate) type Dh = Zeroizing<[u8; HASH]>;

/// Secret of a context, ready for exports.
#[derive(Clone)]
pub(crate) struct Exporter(Hmac<Sha256>);

impl Exporter {
    /// Sender's context for a public key: the encapsulated key and the exporter. `None` if the key is no point, or if
    /// randomness fails.
    pub(crate) fn new_sender(recipient: &Point, info: &[u8]) -> Option<(Point, Exporter)> {
        let (enc, dh) = encapsulate(recipient)?;
        Some((enc, Exporter::of_dh(&dh, &enc, recipient, info)))
    }

    /// Context of both sides from the result of ECDH.
    pub(crate) fn of_dh(dh: &Dh, enc: &Point, recipient: &Point, info: &[u8]) -> Exporter {
        let (secret, context) = schedule(EXPORT_ONLY, dh, enc, recipient, info);
        let mut exporter = Zeroizing::new([0; HASH]);
        labeled_expand(&secret, EXPORT_ONLY, b"exp", &[&context], &mut exporter[..]);
        Exporter(keyed(&exporter[..]))
    }

    /// Secret of at most 64 bytes for a context in parts.
    pub(crate) fn export(&self, context: &[&[u8]], out: &mut [u8]) {
        labeled_expand(&self.0, EXPORT_ONLY, b"sec", context, out);
    }
}

/// ECDH of a fresh key with a public key: the encapsulated key and the result.
pub(crate) fn encapsulate(recipient: &Point) -> Option<(Point, Dh)> {
    let private = EphemeralPrivateKey::generate(&ECDH_P256, &SystemRandom::new()).ok()?;
    let enc: Point = private.compute_public_key().ok()?.as_ref().try_into().ok()?;
    let dh = agree_ephemeral(private, UnparsedPublicKey::new(&ECDH_P256, recipient), (), dh_of).ok()?;
    Some((enc, dh))
}

/// Key and nonce of the first message of a context with AES-256-GCM: 32 and 12 bytes.
pub(crate) fn first_key(dh: &Dh, enc: &Point, recipient: &Point, info: &[u8]) -> Zeroizing<[u8; 44]> {
    let (secret, context) = schedule(AES_256_GCM, dh, enc, recipient, info);
    let mut out = Zeroizing::new([0; 44]);
    let (key, nonce) = out.split_at_mut(32);
    labeled_expand(&secret, AES_256_GCM, b"key", &[&context], key);
    labeled_expand(&secret, AES_256_GCM, b"base_nonce", &[&context], nonce);
    out
}

/// RFC 9180 section 5.1 in base mode: the secret, prepared for expansions, and the context of all expansions.
fn schedule(suite: &[u8], dh: &Dh, enc: &Point, recipient: &Point, info: &[u8]) -> (Hmac<Sha256>, Vec<u8>) {
    let prk = labeled_extract(KEM_SUITE, &[], b"eae_prk", &dh[..]);
    let kem_context = [&enc[..], recipient].concat();
    let mut shared = Zeroizing::new([0; HASH]);
    labeled_expand(&keyed(&prk[..]), KEM_SUITE, b"shared_secret", &[&kem_context], &mut shared[..]);
    // Base mode: mode 0, neither a pre-shared key nor its id.
    let psk_id_hash = labeled_extract(suite, &[], b"psk_id_hash", &[]);
    let info_hash = labeled_extract(suite, &[], b"info_hash", info);
    let context = [&[0][..], &psk_id_hash[..], &info_hash[..]].concat();
    let secret = labeled_extract(suite, &shared[..], b"secret", &[]);
    (keyed(&secret[..]), context)
}

/// Whether these bytes are a point of P-256.
pub(crate) fn is_point(point: &Point) -> bool {
    ParsedPublicKey::try_from(UnparsedPublicKey::new(&ECDH_P256, point))
        .is_ok_and(|key| key.alg() == &ECDH_P256)
}

/// Result of an agreement as an array that erases itself.
pub(crate) fn dh_of(secret: &[u8]) -> Result<Dh, ()> {
    let mut dh = Zeroizing::new([0; HASH]);
    if secret.len() != HASH {
        return Err(());
    }
    dh.copy_from_slice(secret);
    Ok(dh)
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of every length")
}

/// RFC 9180 section 4: LabeledExtract.
fn labeled_extract(suite: &[u8], salt: &[u8], label: &[u8], input: &[u8]) -> Zeroizing<[u8; HASH]> {
    let mut mac = keyed(salt);
    [VERSION, suite, label, input].iter().for_each(|part| mac.update(part));
    finish(mac)
}

/// RFC 9180 section 4: LabeledExpand, with the information in parts and the secret prepared.
fn labeled_expand(secret: &Hmac<Sha256>, suite: &[u8], label: &[u8], info: &[&[u8]], out: &mut [u8]) {
    assert!(out.len() <= EXPAND_BYTES_MAX, "expansions here have at most two blocks");
    let len = (out.len() as u16).to_be_bytes();
    let mut last: Option<Zeroizing<[u8; HASH]>> = None;
    for (index, chunk) in out.chunks_mut(HASH).enumerate() {
        let mut mac = secret.clone();
        if let Some(last) = &last {
            mac.update(&last[..]);
        }
        [&len, VERSION, suite, label].iter().for_each(|part| mac.update(part));
        info.iter().for_each(|part| mac.update(part));
        mac.update(&[index as u8 + 1]);
        let block = finish(mac);
        chunk.copy_from_slice(&block[..chunk.len()]);
        last = Some(block);
    }
}

fn finish(mac: Hmac<Sha256>) -> Zeroizing<[u8; HASH]> {
    let mut bytes = mac.finalize().into_bytes();
    let mut out = Zeroizing::new([0; HASH]);
    out.copy_from_slice(&bytes);
    bytes.as_mut_slice().zeroize();
    out
}
