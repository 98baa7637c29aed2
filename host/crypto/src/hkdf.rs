//! HKDF-SHA256 for TLS 1.3 (RFC 5869, RFC 8446 section 7.1) that prepares a secret once for all its expansions.
//!
//! A resumed handshake expands about thirty times. AWS-LC prepares the secret each time, in a context on the heap: this
//! took a ninth of the whole handshake.

use hmac::{Hmac, KeyInit, Mac};
use rustls::crypto::hmac::Tag;
use rustls::crypto::tls13::{Hkdf, HkdfExpander, OkmBlock, OutputLengthError};
use sha2::Sha256;
use zeroize::Zeroize;

const HASH: usize = 32;
/// RFC 5869 section 2.3: the block counter is one byte.
const BLOCKS_MAX: usize = 255;

/// HKDF with SHA-256, for rustls.
#[derive(Debug)]
pub(crate) struct HkdfSha256;

/// A secret with both halves of its HMAC started.
struct Expander(Hmac<Sha256>);

/// HMAC-SHA256 under `key`, both halves started.
pub(crate) fn keyed(key: &[u8]) -> Hmac<Sha256> {
    <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes keys of every length")
}

fn sign(mut mac: Hmac<Sha256>, parts: &[&[u8]]) -> OkmBlock {
    parts.iter().for_each(|part| mac.update(part));
    let mut bytes = mac.finalize().into_bytes();
    let block = OkmBlock::new(&bytes);
    bytes.as_mut_slice().zeroize();
    block
}

impl Hkdf for HkdfSha256 {
    fn extract_from_zero_ikm(&self, salt: Option<&[u8]>) -> Box<dyn HkdfExpander> {
        self.extract_from_secret(salt, &[0; HASH])
    }

    fn extract_from_secret(&self, salt: Option<&[u8]>, secret: &[u8]) -> Box<dyn HkdfExpander> {
        self.expander_for_okm(&sign(keyed(salt.unwrap_or(&[0; HASH])), &[secret]))
    }

    fn expander_for_okm(&self, okm: &OkmBlock) -> Box<dyn HkdfExpander> {
        Box::new(Expander(keyed(okm.as_ref())))
    }

    fn hmac_sign(&self, key: &OkmBlock, message: &[u8]) -> Tag {
        Tag::new(sign(keyed(key.as_ref()), &[message]).as_ref())
    }
}

impl Expander {
    fn block(&self, before: &[u8], info: &[&[u8]], counter: u8) -> OkmBlock {
        let mut mac = self.0.clone();
        mac.update(before);
        info.iter().for_each(|part| mac.update(part));
        sign(mac, &[&[counter]])
    }
}

impl HkdfExpander for Expander {
    fn expand_slice(&self, info: &[&[u8]], output: &mut [u8]) -> Result<(), OutputLengthError> {
        if output.len() > BLOCKS_MAX * HASH {
            return Err(OutputLengthError);
        }
        let mut last = OkmBlock::new(&[]);
        for (index, chunk) in output.chunks_mut(HASH).enumerate() {
            last = self.block(last.as_ref(), info, index as u8 + 1);
            chunk.copy_from_slice(last.as_ref().get(..chunk.len()).unwrap_or_default());
        }
        Ok(())
    }

    fn expand_block(&self, info: &[&[u8]]) -> OkmBlock {
        self.block(&[], info, 1)
    }

    fn hash_len(&self) -> usize {
        HASH
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;

    fn peer() -> &'static dyn Hkdf {
        TLS13_AES_128_GCM_SHA256.tls13().unwrap().hkdf_provider
    }

    fn all(hkdf: &dyn Hkdf, salt: Option<&[u8]>, secret: &[u8], info: &[&[u8]], len: usize) -> Vec<Vec<u8>> {
        let mut slice = vec![0; len];
        let expander = hkdf.extract_from_secret(salt, secret);
        expander.expand_slice(info, &mut slice).unwrap();
        let block = expander.expand_block(info);
        let again = hkdf.expander_for_okm(&block).expand_block(&[b"again"]);
        let zero = hkdf.extract_from_zero_ikm(salt).expand_block(info);
        let tag = hkdf.hmac_sign(&block, secret);
        vec![slice, block.as_ref().into(), again.as_ref().into(), zero.as_ref().into(), tag.as_ref().into()]
    }

    /// Appendix A.1.
    #[test]
    fn first_test_case_of_rfc_5869_holds() {
        let salt: Vec<u8> = (0..=0x0c).collect();
        let info: Vec<u8> = (0xf0..=0xf9).collect();
        let found = &all(&HkdfSha256, Some(&salt), &[0x0b; 22], &[&info], 42)[0];
        let hex: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
        );
    }

    proptest! {
        #[test]
        fn output_equals_that_of_the_other_implementation(
            salt in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..100)),
            secret in proptest::collection::vec(any::<u8>(), 0..200),
            info in proptest::collection::vec(any::<u8>(), 0..100),
            cut in 0_usize..100,
            len in 1_usize..300,
        ) {
            let (first, second) = info.split_at(cut.min(info.len()));
            let parts: [&[u8]; 2] = [first, second];
            prop_assert_eq!(
                all(&HkdfSha256, salt.as_deref(), &secret, &parts, len),
                all(peer(), salt.as_deref(), &secret, &parts, len)
            );
        }
    }

    #[test]
    fn output_beyond_the_hkdf_limit_is_refused() {
        let expander = HkdfSha256.extract_from_secret(None, b"secret");
        let mut most = vec![0; BLOCKS_MAX * HASH + 1];
        assert!(expander.expand_slice(&[], &mut most).is_err());
        assert!(expander.expand_slice(&[], &mut most[1..]).is_ok());
        assert_eq!(expander.hash_len(), HASH);
    }
}
