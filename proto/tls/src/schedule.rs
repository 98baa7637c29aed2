//! The part of the TLS 1.3 key schedule that is needed after the handshake (RFC 8446 sections 7.1 to 7.3).

use aws_lc_rs::hmac;
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
    /// `None` when it is longer than any secret of TLS.
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

/// HKDF-Expand-Label with an empty context. `len` is at most the hash's length, so one block is enough.
fn expand_label(suite: Suite, secret: &Secret, label: &[u8], len: usize) -> Secret {
    let algorithm = match suite {
        Suite::Aes256Gcm => hmac::HMAC_SHA384,
        Suite::Aes128Gcm | Suite::Chacha20Poly1305 => hmac::HMAC_SHA256,
    };
    let mut context = hmac::Context::with_key(&hmac::Key::new(algorithm, secret.as_slice()));
    // struct HkdfLabel { uint16 length; opaque label<7..255> = "tls13 " + Label; opaque context<0..255>; }
    context.update(&[0, len as u8, (6 + label.len()) as u8]);
    context.update(b"tls13 ");
    context.update(label);
    context.update(&[0, 1]); // empty context; HKDF's block counter
    let block = context.sign();
    let mut out = Secret { len: len as u8, bytes: [0; SECRET_MAX] };
    for (to, from) in out.bytes.iter_mut().zip(block.as_ref()).take(len) {
        *to = *from;
    }
    out
}

/// `[sender]_write_key` of a traffic secret.
pub(crate) fn traffic_key(suite: Suite, secret: &Secret) -> Secret {
    expand_label(suite, secret, b"key", suite.key_len())
}

/// `[sender]_write_iv` of a traffic secret.
pub(crate) fn traffic_iv(suite: Suite, secret: &Secret) -> [u8; 12] {
    let iv = expand_label(suite, secret, b"iv", 12);
    let mut out = [0; 12];
    out.copy_from_slice(&iv.bytes[..12]);
    out
}

/// `application_traffic_secret_N+1` (section 7.2).
pub(crate) fn next_secret(suite: Suite, secret: &Secret) -> Secret {
    expand_label(suite, secret, b"traffic upd", suite.secret_len())
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
            assert_eq!(traffic_key(Suite::Aes128Gcm, &secret).as_slice(), hex(key));
            assert_eq!(traffic_iv(Suite::Aes128Gcm, &secret).as_slice(), hex(iv));
        }
    }
}
