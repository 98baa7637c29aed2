//! The part of the TLS 1.3 key schedule that is needed after the handshake (RFC 8446 sections 7.1 to 7.3).

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Sha256, Sha384};
use zeroize::Zeroize;

use crate::keys::Suite;

/// Longest secret: SHA-384.
pub(crate) const SECRET_MAX: usize = 48;

/// A secret or key of at most [`SECRET_MAX`] bytes, erased when dropped.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret {
    len: u8,
    bytes: [u8; SECRET_MAX],
}

impl Secret {
    /// `None` when the secret is longer than any secret of TLS.
    pub(crate) fn new(secret: &[u8]) -> Option<Secret> {
        let mut bytes = [0; SECRET_MAX];
        bytes.get_mut(..secret.len())?.copy_from_slice(secret);
        Some(Secret { len: secret.len() as u8, bytes })
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret({} bytes)", self.len)
    }
}

/// A secret with both halves of its HMAC started: each expansion then takes two blocks of hashing.
enum Prepared {
    Sha256(Hmac<Sha256>),
    Sha384(Hmac<Sha384>),
}

fn keyed<M: KeyInit>(secret: &Secret) -> M {
    M::new_from_slice(secret.as_slice()).expect("HMAC takes keys of every length")
}

impl Prepared {
    fn new(suite: Suite, secret: &Secret) -> Prepared {
        match suite {
            Suite::Aes256Gcm => Prepared::Sha384(keyed(secret)),
            Suite::Aes128Gcm | Suite::Chacha20Poly1305 => Prepared::Sha256(keyed(secret)),
        }
    }

    /// HKDF-Expand-Label with an empty context. `len` is at most the hash's length, so one block is enough.
    fn expand_label(&self, label: &[u8], len: usize) -> Secret {
        // struct HkdfLabel { uint16 length; opaque label<7..255> = "tls13 " + Label; opaque context<0..255>; }
        let head = [0, len as u8, (6 + label.len()) as u8];
        let tail = [0, 1]; // empty context; HKDF's block counter
        let info: [&[u8]; 4] = [&head, b"tls13 ", label, &tail];
        match self {
            Prepared::Sha256(mac) => block(mac, &info, len),
            Prepared::Sha384(mac) => block(mac, &info, len),
        }
    }
}

fn block<M: Mac + Clone>(mac: &M, info: &[&[u8]], len: usize) -> Secret {
    let mut mac = mac.clone();
    info.iter().for_each(|part| mac.update(part));
    let mut block = mac.finalize().into_bytes();
    let mut out = Secret { len: len as u8, bytes: [0; SECRET_MAX] };
    for (to, from) in out.bytes.iter_mut().zip(block.iter()).take(len) {
        *to = *from;
    }
    block.as_mut_slice().zeroize();
    out
}

/// `[sender]_write_key` and `[sender]_write_iv` of a traffic secret.
pub(crate) fn traffic_keys(suite: Suite, secret: &Secret) -> (Secret, [u8; 12]) {
    let prepared = Prepared::new(suite, secret);
    let expanded = prepared.expand_label(b"iv", 12);
    let mut iv = [0; 12];
    iv.copy_from_slice(&expanded.bytes[..12]);
    (prepared.expand_label(b"key", suite.key_len()), iv)
}

/// `application_traffic_secret_N+1` (section 7.2).
pub(crate) fn next_secret(suite: Suite, secret: &Secret) -> Secret {
    Prepared::new(suite, secret).expand_label(b"traffic upd", suite.secret_len())
}

/// PRF of TLS 1.2 (RFC 5246 section 5) with the hash of the suite.
pub(crate) fn prf(suite: Suite, secret: &Secret, label: &[u8], seed: &[u8], len: usize) -> Vec<u8> {
    match Prepared::new(suite, secret) {
        Prepared::Sha256(mac) => expand(&mac, label, seed, len),
        Prepared::Sha384(mac) => expand(&mac, label, seed, len),
    }
}

/// P_hash: HMAC(secret, A(i) + seed) for i = 1, 2, …, where A(i) = HMAC(secret, A(i - 1)).
fn expand<M: Mac + Clone>(mac: &M, label: &[u8], seed: &[u8], len: usize) -> Vec<u8> {
    let digest = |parts: &[&[u8]]| {
        let mut mac = mac.clone();
        parts.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes()
    };
    let (mut out, mut a) = (Vec::with_capacity(len + SECRET_MAX), digest(&[label, seed]));
    while out.len() < len {
        out.extend_from_slice(&digest(&[&a, label, seed]));
        a = digest(&[&a]);
    }
    out.truncate(len);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|p| u8::from_str_radix(std::str::from_utf8(p).unwrap(), 16).unwrap()).collect()
    }

    /// RFC 8448 section 3, "{server} derive write traffic keys for application data" and the client's.
    #[test]
    fn traffic_keys_are_those_of_rfc_8448() {
        for (secret, key, iv) in [
            (
                "a1 1a f9 f0 55 31 f8 56 ad 47 11 6b 45 a9 50 32 82 04 b4 f4 4b fb 6b 3a 4b 4f 1f 3f cb 63 16 43",
                "9f 02 28 3b 6c 9c 07 ef c2 6b b9 f2 ac 92 e3 56",
                "cf 78 2b 88 dd 83 54 9a ad f1 e9 84",
            ),
            (
                "9e 40 64 6c e7 9a 7f 9d c0 5a f8 88 9b ce 65 52 87 5a fa 0b 06 df 00 87 f7 92 eb b7 c1 75 04 a5",
                "17 42 2d da 59 6e d5 d9 ac d8 90 e3 c6 3f 50 51",
                "5b 78 92 3d ee 08 57 90 33 e5 23 d9",
            ),
        ] {
            let secret = Secret::new(&hex(secret)).unwrap();
            let found = traffic_keys(Suite::Aes128Gcm, &secret);
            assert_eq!((found.0.as_slice(), &found.1[..]), (&hex(key)[..], &hex(iv)[..]));
        }
    }

    /// The vector for SHA-256 that implementers share (IETF TLS list, 2009).
    #[test]
    fn prf_is_that_of_tls12() {
        let secret = Secret::new(&hex("9b be 43 6b a9 40 f0 17 b1 76 52 84 9a 71 db 35")).unwrap();
        let seed = hex("a0 ba 9f 93 6c da 31 18 27 a6 f7 96 ff d5 19 8c");
        let expected = hex(
            "e3 f2 29 ba 72 7b e1 7b 8d 12 26 20 55 7c d4 53 c2 aa b2 1d 07 c3 d4 95 32 9b 52 d4 e6 1e db 5a \
             6b 30 17 91 e9 0d 35 c9 c9 a4 6b 4e 14 ba f9 af 0f a0 22 f7 07 7d ef 17 ab fd 37 97 c0 56 4b ab",
        );
        assert_eq!(prf(Suite::Aes128Gcm, &secret, b"test label", &seed, 64), expected);
    }
}
