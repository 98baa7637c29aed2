//! Authenticated encryption of records by one of two libraries, AWS-LC or `ring`.
//!
//! Invariants: both libraries seal to the same bytes, so the choice shows in speed alone, and the nodes of a cluster
//! may differ in it; a key is erased with its [`Cipher`]. This module does not measure: the host decides which library
//! is faster on its processor and installs its decision once ([`install_aead`]).

use std::sync::OnceLock;

use aws_lc_rs::aead as aws_lc;
use ring::aead as ring;

use crate::error::RecordError;
use crate::keys::Suite;

/// Bytes of a nonce, of all suites.
const NONCE: usize = 12;
/// Bytes of a tag, of all suites.
const TAG: usize = 16;
/// Bytes of the longest key.
const KEY_MAX: usize = 32;

/// Library that seals and opens records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AeadLibrary {
    /// AWS-LC: the fastest with AVX-512.
    #[default]
    AwsLc,
    /// `ring`: the fastest with VAES but without AVX-512.
    Ring,
}

impl AeadLibrary {
    /// All libraries.
    pub const ALL: [AeadLibrary; 2] = [AeadLibrary::AwsLc, AeadLibrary::Ring];

    /// Name for operators: `aws-lc` or `ring`.
    pub fn name(self) -> &'static str {
        match self {
            AeadLibrary::AwsLc => "aws-lc",
            AeadLibrary::Ring => "ring",
        }
    }
}

/// Library for each suite. The default is AWS-LC for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AeadLibraries {
    /// For AES-128-GCM.
    pub aes128_gcm: AeadLibrary,
    /// For AES-256-GCM.
    pub aes256_gcm: AeadLibrary,
    /// For ChaCha20-Poly1305.
    pub chacha20_poly1305: AeadLibrary,
}

impl AeadLibraries {
    /// The library that `choose` names for each suite.
    pub fn by(mut choose: impl FnMut(Suite) -> AeadLibrary) -> AeadLibraries {
        AeadLibraries {
            aes128_gcm: choose(Suite::Aes128Gcm),
            aes256_gcm: choose(Suite::Aes256Gcm),
            chacha20_poly1305: choose(Suite::Chacha20Poly1305),
        }
    }

    /// Library for `suite`.
    pub fn of(&self, suite: Suite) -> AeadLibrary {
        match suite {
            Suite::Aes128Gcm => self.aes128_gcm,
            Suite::Aes256Gcm => self.aes256_gcm,
            Suite::Chacha20Poly1305 => self.chacha20_poly1305,
        }
    }
}

static INSTALLED: OnceLock<AeadLibraries> = OnceLock::new();

/// Decides, once in a process, which libraries seal and open the records of connections from now on. False when the
/// process has decided before; that decision stays.
pub fn install_aead(libraries: AeadLibraries) -> bool {
    INSTALLED.set(libraries).is_ok()
}

/// The installed libraries; AWS-LC for all suites without an installation.
pub fn installed_aead() -> AeadLibraries {
    INSTALLED.get().copied().unwrap_or_default()
}

/// Key of one suite in the representation of one library. Erased when dropped.
pub struct Cipher {
    key: Key,
}

enum Key {
    AwsLc(aws_lc::LessSafeKey),
    Ring(RingKey),
}

impl std::fmt::Debug for Cipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cipher({})", self.library().name())
    }
}

impl Cipher {
    /// Expands `key`: 16 bytes for AES-128-GCM, 32 bytes for the others. Fails for another length.
    pub fn new(library: AeadLibrary, suite: Suite, key: &[u8]) -> Result<Cipher, RecordError> {
        let refused = RecordError::Cipher("key refused");
        let key = match library {
            AeadLibrary::AwsLc => {
                let algorithm = match suite {
                    Suite::Aes128Gcm => &aws_lc::AES_128_GCM,
                    Suite::Aes256Gcm => &aws_lc::AES_256_GCM,
                    Suite::Chacha20Poly1305 => &aws_lc::CHACHA20_POLY1305,
                };
                let key = aws_lc::UnboundKey::new(algorithm, key).map_err(|_| refused)?;
                Key::AwsLc(aws_lc::LessSafeKey::new(key))
            }
            AeadLibrary::Ring => {
                let algorithm = match suite {
                    Suite::Aes128Gcm => &ring::AES_128_GCM,
                    Suite::Aes256Gcm => &ring::AES_256_GCM,
                    Suite::Chacha20Poly1305 => &ring::CHACHA20_POLY1305,
                };
                Key::Ring(RingKey::new(algorithm, key).ok_or(refused)?)
            }
        };
        Ok(Cipher { key })
    }

    /// Library that this key is for.
    pub fn library(&self) -> AeadLibrary {
        match self.key {
            Key::AwsLc(_) => AeadLibrary::AwsLc,
            Key::Ring(_) => AeadLibrary::Ring,
        }
    }

    /// Encrypts `text` in place and returns its tag, which also covers `aad`. A key must see each nonce once (RFC 5116
    /// section 3.2): the sequence number of the record makes it unique.
    pub fn seal(&self, nonce: [u8; NONCE], aad: &[u8], text: &mut [u8]) -> Result<[u8; TAG], RecordError> {
        let failed = RecordError::Cipher("seal");
        let mut bytes = [0; TAG];
        match &self.key {
            Key::AwsLc(key) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                let tag = key.seal_in_place_separate_tag(nonce, aws_lc::Aad::from(aad), text);
                bytes.copy_from_slice(tag.map_err(|_| failed)?.as_ref());
            }
            Key::Ring(key) => {
                let nonce = ring::Nonce::assume_unique_for_key(nonce);
                let tag = key.0.seal_in_place_separate_tag(nonce, ring::Aad::from(aad), text);
                bytes.copy_from_slice(tag.map_err(|_| failed)?.as_ref());
            }
        }
        Ok(bytes)
    }

    /// Decrypts `text` in place. Returns false when `tag` does not fit; `text` is then useless.
    #[must_use]
    pub fn open(&self, nonce: [u8; NONCE], aad: &[u8], tag: &[u8], text: &mut [u8]) -> bool {
        // The tag is passed separately: opening a joined buffer would move the plaintext once more.
        match &self.key {
            Key::AwsLc(key) => {
                let nonce = aws_lc::Nonce::assume_unique_for_key(nonce);
                key.open_in_place_separate_tag(nonce, aws_lc::Aad::from(aad), tag, text).is_ok()
            }
            Key::Ring(key) => {
                let nonce = ring::Nonce::assume_unique_for_key(nonce);
                ring::Tag::try_from(tag).is_ok_and(|tag| {
                    key.0.open_in_place_separate_tag(nonce, ring::Aad::from(aad), tag, text, 0..).is_ok()
                })
            }
        }
    }
}

/// Key of `ring`, which does not erase keys itself. Boxed, as AWS-LC boxes its own: 544 bytes.
struct RingKey(Box<ring::LessSafeKey>);

impl RingKey {
    fn new(algorithm: &'static ring::Algorithm, key: &[u8]) -> Option<RingKey> {
        let key = ring::UnboundKey::new(algorithm, key).ok()?;
        Some(RingKey(Box::new(ring::LessSafeKey::new(key))))
    }

    /// Overwrites this key with a key of zeros. Such a key has the same variant of the library, so it covers every byte
    /// derived from this one.
    fn erase(&mut self) {
        let algorithm = self.0.algorithm();
        let zeros = ring::UnboundKey::new(algorithm, &[0; KEY_MAX][..algorithm.key_len()]);
        if let Ok(zeros) = zeros {
            *self.0 = ring::LessSafeKey::new(zeros);
            // Otherwise the compiler may omit a store that is only followed by the release of its memory.
            std::hint::black_box(&mut self.0);
        }
    }
}

impl Drop for RingKey {
    fn drop(&mut self) {
        self.erase();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn suite() -> impl Strategy<Value = Suite> {
        prop::sample::select(Suite::ALL.to_vec())
    }

    fn cipher(library: AeadLibrary, suite: Suite, key: &[u8]) -> Cipher {
        Cipher::new(library, suite, &key[..suite.key_len()]).unwrap()
    }

    /// Lengths around blocks, the strides of vectorised code and the longest record.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        let len = prop_oneof![0..=600_usize, 16_000..=16_385_usize];
        (len, any::<u8>()).prop_map(|(len, start)| {
            (0..len).map(|at| (at as u8).wrapping_mul(31).wrapping_add(start)).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn libraries_seal_to_equal_bytes_and_open_each_other(
            suite in suite(), key in any::<[u8; 32]>(), nonce in any::<[u8; 12]>(),
            aad in prop::collection::vec(any::<u8>(), 0..=13), plain in text(), head in 0..16_usize,
            flip in any::<prop::sample::Index>(),
        ) {
            let sealed = AeadLibrary::ALL.map(|library| {
                // In place behind a header, at every alignment.
                let mut slot = [&vec![0xee; head][..], &plain].concat();
                let tag = cipher(library, suite, &key).seal(nonce, &aad, &mut slot[head..]).unwrap();
                assert!(slot[..head].iter().all(|&byte| byte == 0xee));
                (slot, tag)
            });
            prop_assert_eq!(&sealed[0], &sealed[1]);
            let (slot, tag) = &sealed[0];
            for library in AeadLibrary::ALL {
                let cipher = cipher(library, suite, &key);
                let mut opened = slot.clone();
                prop_assert!(cipher.open(nonce, &aad, tag, &mut opened[head..]));
                prop_assert_eq!(&opened[head..], &plain[..]);
                // One bit of the tag, the text or the additional data differs.
                let at = flip.index(TAG + plain.len() + aad.len());
                let (mut tag, mut text, mut aad) = (*tag, slot[head..].to_vec(), aad.clone());
                let all = tag.iter_mut().chain(&mut text).chain(&mut aad);
                all.skip(at).take(1).for_each(|byte| *byte ^= 1 << (at % 8));
                prop_assert!(!cipher.open(nonce, &aad, &tag, &mut text));
            }
        }
    }

    #[test]
    fn wrong_lengths_of_keys_and_tags_are_refused() {
        for library in AeadLibrary::ALL {
            for suite in Suite::ALL {
                for len in [0, suite.key_len() - 1, suite.key_len() + 1] {
                    assert!(
                        Cipher::new(library, suite, &[7; 64][..len]).is_err(),
                        "{library:?} {suite:?} {len}"
                    );
                }
                let cipher = cipher(library, suite, &[7; 32]);
                let mut text = *b"payload";
                let tag = cipher.seal([1; 12], b"", &mut text).unwrap();
                for len in 0..TAG {
                    assert!(!cipher.open([1; 12], b"", &tag[..len], &mut text.clone()));
                }
                assert!(!cipher.open([1; 12], b"", &[&tag[..], &[0]].concat(), &mut text.clone()));
                assert!(cipher.open([1; 12], b"", &tag, &mut text));
            }
        }
    }

    #[test]
    fn erased_ring_key_is_the_key_of_zeros() {
        for algorithm in [&ring::AES_128_GCM, &ring::AES_256_GCM, &ring::CHACHA20_POLY1305] {
            let sealed = |key: &RingKey| {
                let nonce = ring::Nonce::assume_unique_for_key([1; 12]);
                let mut text = [9; 50];
                let tag = key.0.seal_in_place_separate_tag(nonce, ring::Aad::empty(), &mut text).unwrap();
                (text, <[u8; TAG]>::try_from(tag.as_ref()).unwrap())
            };
            let zeros = RingKey::new(algorithm, &[0; 32][..algorithm.key_len()]).unwrap();
            let mut key = RingKey::new(algorithm, &[7; 32][..algorithm.key_len()]).unwrap();
            assert_ne!(sealed(&key), sealed(&zeros));
            key.erase();
            assert_eq!(sealed(&key), sealed(&zeros));
        }
    }

    #[test]
    fn library_of_a_suite_is_its_own_field() {
        for marked in Suite::ALL {
            let libraries = AeadLibraries::by(|suite| match suite == marked {
                true => AeadLibrary::Ring,
                false => AeadLibrary::AwsLc,
            });
            for suite in Suite::ALL {
                assert_eq!(libraries.of(suite) == AeadLibrary::Ring, suite == marked);
            }
        }
    }
}
