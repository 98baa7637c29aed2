//! Safe wrappers of the AWS-LC calls that take their randomness as an argument.
//!
//! All unsafe code of this crate is here. Invariants: types or checks before each call bound all lengths; a guard owns
//! every object that AWS-LC returns.
#![allow(unsafe_code)]

use std::ptr::{NonNull, null_mut};

use aws_lc_sys as c;
use zeroize::Zeroizing;

/// Bytes of an ML-KEM-768 encapsulation key.
pub(crate) const MLKEM768_KEY: usize = 1184;
/// Bytes of an ML-KEM-768 ciphertext.
pub(crate) const MLKEM768_CIPHERTEXT: usize = 1088;

/// Clears the queued errors of a failed call, which would otherwise accumulate on this thread.
fn clear_errors() {
    // SAFETY: works on this thread's queue alone.
    unsafe { c::ERR_clear_error() }
}

/// The X25519 public value of a private one.
pub(crate) fn x25519_public(private: &[u8; 32]) -> [u8; 32] {
    let mut public = [0; 32];
    // SAFETY: both pointers are to 32 bytes, the length of RFC 7748 values.
    unsafe { c::X25519_public_from_private(public.as_mut_ptr(), private.as_ptr()) };
    public
}

/// The X25519 shared secret; `None` for a peer's value of small order.
pub(crate) fn x25519(private: &[u8; 32], peer: &[u8; 32]) -> Option<Zeroizing<[u8; 32]>> {
    let mut shared = Zeroizing::new([0; 32]);
    // SAFETY: all pointers are to 32 bytes.
    let ok = unsafe { c::X25519(shared.as_mut_ptr(), private.as_ptr(), peer.as_ptr()) };
    if ok == 1 {
        return Some(shared);
    }
    clear_errors();
    None
}

/// Encapsulates to an ML-KEM-768 key with the given message `m` of FIPS 203; `None` for an invalid key.
pub(crate) fn mlkem768_encapsulate(
    key: &[u8; MLKEM768_KEY],
    m: &[u8; 32],
) -> Option<([u8; MLKEM768_CIPHERTEXT], Zeroizing<[u8; 32]>)> {
    struct Context(NonNull<c::EVP_PKEY_CTX>);
    impl Drop for Context {
        fn drop(&mut self) {
            // SAFETY: owned, freed once.
            unsafe { c::EVP_PKEY_CTX_free(self.0.as_ptr()) }
        }
    }
    // SAFETY: the key is MLKEM768_KEY readable bytes, which the call copies.
    let pkey = unsafe { c::EVP_PKEY_kem_new_raw_public_key(c::NID_MLKEM768, key.as_ptr(), key.len()) };
    let Some(pkey) = PKey::own(pkey) else {
        clear_errors();
        return None;
    };
    // SAFETY: the key is valid; the context takes its own reference to it.
    let context = NonNull::new(unsafe { c::EVP_PKEY_CTX_new(pkey.0.as_ptr(), null_mut()) }).map(Context)?;
    let mut ciphertext = [0; MLKEM768_CIPHERTEXT];
    let mut shared = Zeroizing::new([0; 32]);
    let (mut ciphertext_len, mut shared_len, mut m_len) = (ciphertext.len(), shared.len(), m.len());
    // SAFETY: each pointer is to as many bytes as the length beside it; the call checks lengths and may lower them, but
    // never raises them.
    let ok = unsafe {
        c::EVP_PKEY_encapsulate_deterministic(
            context.0.as_ptr(),
            ciphertext.as_mut_ptr(),
            &mut ciphertext_len,
            shared.as_mut_ptr(),
            &mut shared_len,
            m.as_ptr(),
            &mut m_len,
        )
    };
    if ok == 1 && ciphertext_len == ciphertext.len() && shared_len == shared.len() {
        return Some((ciphertext, shared));
    }
    clear_errors();
    None
}

/// Kind of a [`PKey`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PKeyKind {
    P256,
    P384,
    P521,
    Rsa { bits: u32 },
    Ed25519,
    Other,
}

/// Hash of a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HashKind {
    Sha256,
    Sha384,
    Sha512,
}

/// An owned key.
pub(crate) struct PKey(NonNull<c::EVP_PKEY>);

// SAFETY: an EVP_PKEY that is no longer modified may be used from several threads (AWS-LC, evp.h); locks protect the
// caches of its RSA functions. This module never modifies a key after parsing.
unsafe impl Send for PKey {}
// SAFETY: an unmodified EVP_PKEY may be used from several threads (see `Send`).
unsafe impl Sync for PKey {}

impl Drop for PKey {
    fn drop(&mut self) {
        // SAFETY: one reference is owned and released once; AWS-LC erases private parts.
        unsafe { c::EVP_PKEY_free(self.0.as_ptr()) }
    }
}

impl std::fmt::Debug for PKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PKey({:?})", self.kind())
    }
}

impl PKey {
    fn own(key: *mut c::EVP_PKEY) -> Option<PKey> {
        NonNull::new(key).map(PKey)
    }

    /// Parses PKCS#8, PKCS#1 or SEC1 with a named curve; no bytes may follow.
    pub(crate) fn parse_private(der: &[u8]) -> Option<PKey> {
        let mut at = der.as_ptr();
        let len = der.len().try_into().ok()?;
        // SAFETY: `at` points to `len` readable bytes and is moved within them; no existing key is passed.
        let key = PKey::own(unsafe { c::d2i_AutoPrivateKey(null_mut(), &mut at, len) });
        // SAFETY: the call left `at` inside `der` or at its end.
        let read = unsafe { at.offset_from(der.as_ptr()) };
        if key.is_none() {
            clear_errors();
        }
        key.filter(|_| usize::try_from(read) == Ok(der.len()))
    }

    fn ec(&self) -> Option<NonNull<c::EC_KEY>> {
        // SAFETY: the key is valid; the result is borrowed from it, null for a key of another kind.
        NonNull::new(unsafe { c::EVP_PKEY_get0_EC_KEY(self.0.as_ptr()) })
    }

    fn rsa(&self) -> Option<NonNull<c::RSA>> {
        // SAFETY: the key is valid; the result is borrowed from it, null for a key of another kind.
        NonNull::new(unsafe { c::EVP_PKEY_get0_RSA(self.0.as_ptr()) })
    }

    pub(crate) fn kind(&self) -> PKeyKind {
        // SAFETY: the key is valid.
        let id = unsafe { c::EVP_PKEY_id(self.0.as_ptr()) };
        match id {
            c::EVP_PKEY_ED25519 => PKeyKind::Ed25519,
            c::EVP_PKEY_RSA => self.rsa().map_or(PKeyKind::Other, |rsa| {
                // SAFETY: a valid RSA key, borrowed.
                let bits = unsafe { c::RSA_bits(rsa.as_ptr()) };
                PKeyKind::Rsa { bits }
            }),
            c::EVP_PKEY_EC => self.ec().map_or(PKeyKind::Other, |ec| {
                // SAFETY: a parsed key has a group; both are borrowed.
                let curve = unsafe { c::EC_GROUP_get_curve_name(c::EC_KEY_get0_group(ec.as_ptr())) };
                match curve {
                    c::NID_X9_62_prime256v1 => PKeyKind::P256,
                    c::NID_secp384r1 => PKeyKind::P384,
                    c::NID_secp521r1 => PKeyKind::P521,
                    _ => PKeyKind::Other,
                }
            }),
            _ => PKeyKind::Other,
        }
    }

    /// The SubjectPublicKeyInfo.
    pub(crate) fn public_der(&self) -> Option<Vec<u8>> {
        let mut out = null_mut();
        // SAFETY: with a null pointer behind `out` the call allocates; `copy_and_free` frees the result.
        let len = unsafe { c::i2d_PUBKEY(self.0.as_ptr(), &mut out) };
        copy_and_free(out, usize::try_from(len).unwrap_or_default())
    }

    /// The private scalar of an elliptic-curve key, big-endian; `None` for other keys.
    pub(crate) fn ec_scalar<const N: usize>(&self) -> Option<Zeroizing<[u8; N]>> {
        let ec = self.ec()?;
        // SAFETY: borrowed from a valid key; null when there is no private part.
        let scalar = NonNull::new(unsafe { c::EC_KEY_get0_private_key(ec.as_ptr()) }.cast_mut())?;
        let mut out = Zeroizing::new([0; N]);
        // SAFETY: `out` has N bytes; the call fails when the number needs more.
        let ok = unsafe { c::BN_bn2bin_padded(out.as_mut_ptr(), N, scalar.as_ptr()) };
        (ok == 1).then_some(out)
    }

    /// An ECDSA signature in DER with a nonce that the caller derived and never uses for another message.
    pub(crate) fn ecdsa_sign(&self, digest: &[u8], nonce: &[u8]) -> Option<Vec<u8>> {
        struct Signature(NonNull<c::ECDSA_SIG>);
        impl Drop for Signature {
            fn drop(&mut self) {
                // SAFETY: owned, freed once.
                unsafe { c::ECDSA_SIG_free(self.0.as_ptr()) }
            }
        }
        let ec = self.ec()?;
        // SAFETY: valid key, slices with their lengths. The name warns of carelessly chosen nonces; the arithmetic is
        // that of the ordinary signing path, in constant time.
        let signature = unsafe {
            c::ECDSA_sign_with_nonce_and_leak_private_key_for_testing(
                digest.as_ptr(),
                digest.len(),
                ec.as_ptr(),
                nonce.as_ptr(),
                nonce.len(),
            )
        };
        let Some(signature) = NonNull::new(signature).map(Signature) else {
            clear_errors();
            return None;
        };
        let (mut out, mut len) = (null_mut(), 0);
        // SAFETY: allocates `len` bytes at `out` on success, which `copy_and_free` frees.
        let ok = unsafe { c::ECDSA_SIG_to_bytes(&mut out, &mut len, signature.0.as_ptr()) };
        if ok == 1 { copy_and_free(out, len) } else { None }
    }

    /// The RSA private operation on a block as long as the modulus.
    pub(crate) fn rsa_raw(&self, block: &[u8]) -> Option<Vec<u8>> {
        let rsa = self.rsa()?;
        // SAFETY: valid key.
        let size = unsafe { c::RSA_size(rsa.as_ptr()) } as usize;
        let mut out = vec![0; size];
        let mut len = 0;
        // SAFETY: `out` has `size` bytes, which the call receives as its limit; the call checks the block's length.
        let ok = unsafe {
            c::RSA_sign_raw(
                rsa.as_ptr(),
                &mut len,
                out.as_mut_ptr(),
                size,
                block.as_ptr(),
                block.len(),
                c::RSA_NO_PADDING,
            )
        };
        finish(ok == 1 && len == size, out)
    }

    /// An RSASSA-PKCS1-v1_5 signature.
    pub(crate) fn rsa_pkcs1(&self, hash: HashKind, digest: &[u8]) -> Option<Vec<u8>> {
        let rsa = self.rsa()?;
        let nid = match hash {
            HashKind::Sha256 => c::NID_sha256,
            HashKind::Sha384 => c::NID_sha384,
            HashKind::Sha512 => c::NID_sha512,
        };
        // SAFETY: valid key.
        let size = unsafe { c::RSA_size(rsa.as_ptr()) } as usize;
        let mut out = vec![0; size];
        let mut len = 0;
        // SAFETY: `out` has the RSA_size bytes that the call may write.
        let ok = unsafe {
            c::RSA_sign(nid, digest.as_ptr(), digest.len(), out.as_mut_ptr(), &mut len, rsa.as_ptr())
        };
        finish(ok == 1 && len as usize == size, out)
    }
}

fn finish(ok: bool, out: Vec<u8>) -> Option<Vec<u8>> {
    if !ok {
        clear_errors();
    }
    ok.then_some(out)
}

/// Copies the bytes that AWS-LC allocated and frees them; `None` for a null pointer.
fn copy_and_free(bytes: *mut u8, len: usize) -> Option<Vec<u8>> {
    let bytes = NonNull::new(bytes)?;
    // SAFETY: AWS-LC returned `bytes` together with its length, and no other code refers to it.
    let copy = unsafe { std::slice::from_raw_parts(bytes.as_ptr(), len) }.to_vec();
    // SAFETY: AWS-LC allocated the bytes; freed once.
    unsafe { c::OPENSSL_free(bytes.as_ptr().cast()) };
    (len > 0).then_some(copy)
}
