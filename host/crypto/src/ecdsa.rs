//! ECDSA with the nonce of RFC 6979: P-256 with SHA-256, P-384 with SHA-384 and P-521 with SHA-512, the pairs of TLS
//! 1.3.

use std::sync::Arc;

use aws_lc_rs::hmac;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use zeroize::Zeroizing;

use crate::aws_lc::{HashKind, PKey};
use crate::error::KeyError;

/// Curve parameters by the size of a scalar.
trait Curve {
    const SCHEME: SignatureScheme;
    const HASH: HashKind;
    /// The group's order, big-endian.
    const ORDER: &'static [u8];
    /// Bits of a scalar's bytes that the order does not use.
    const SPARE_BITS: u32 = 0;
}

struct Scalars<const N: usize>;

impl Curve for Scalars<32> {
    const SCHEME: SignatureScheme = SignatureScheme::ECDSA_NISTP256_SHA256;
    const HASH: HashKind = HashKind::Sha256;
    const ORDER: &'static [u8] = &[
        0xff, 0xff, 0xff, 0xff, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xbc,
        0xe6, 0xfa, 0xad, 0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc, 0x63, 0x25, 0x51,
    ];
}

impl Curve for Scalars<48> {
    const SCHEME: SignatureScheme = SignatureScheme::ECDSA_NISTP384_SHA384;
    const HASH: HashKind = HashKind::Sha384;
    const ORDER: &'static [u8] = &[
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xc7, 0x63, 0x4d, 0x81, 0xf4, 0x37, 0x2d, 0xdf, 0x58, 0x1a,
        0x0d, 0xb2, 0x48, 0xb0, 0xa7, 0x7a, 0xec, 0xec, 0x19, 0x6a, 0xcc, 0xc5, 0x29, 0x73,
    ];
}

impl Curve for Scalars<66> {
    const SCHEME: SignatureScheme = SignatureScheme::ECDSA_NISTP521_SHA512;
    const HASH: HashKind = HashKind::Sha512;
    const ORDER: &'static [u8] = &[
        0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfa,
        0x51, 0x86, 0x87, 0x83, 0xbf, 0x2f, 0x96, 0x6b, 0x7f, 0xcc, 0x01, 0x48, 0xf7, 0x09, 0xa5, 0xd0, 0x3b,
        0xb5, 0xc9, 0xb8, 0x89, 0x9c, 0x47, 0xae, 0xbb, 0x6f, 0xb7, 0x1e, 0x91, 0x38, 0x64, 0x09,
    ];
    const SPARE_BITS: u32 = 7;
}

/// A key whose scalars have `N` bytes.
#[derive(Debug)]
pub(crate) struct EcdsaKey<const N: usize>(Arc<Inner<N>>);

struct Inner<const N: usize> {
    key: PKey,
    scalar: Zeroizing<[u8; N]>,
    public: Vec<u8>,
}

impl<const N: usize> std::fmt::Debug for Inner<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.key.fmt(f)
    }
}

impl<const N: usize> EcdsaKey<N> {
    pub(crate) fn new(key: PKey) -> Result<EcdsaKey<N>, KeyError> {
        let incomplete = || KeyError::Key("ECDSA key without its private or public part".into());
        let scalar = key.ec_scalar().ok_or_else(incomplete)?;
        let public = key.public_der().ok_or_else(incomplete)?;
        Ok(EcdsaKey(Arc::new(Inner { key, scalar, public })))
    }
}

impl<const N: usize> SigningKey for EcdsaKey<N>
where
    Scalars<N>: Curve,
{
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered
            .contains(&Scalars::<N>::SCHEME)
            .then(|| Box::new(EcdsaSigner(self.0.clone())) as Box<dyn Signer>)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(SubjectPublicKeyInfoDer::from(self.0.public.as_slice()))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

#[derive(Debug)]
struct EcdsaSigner<const N: usize>(Arc<Inner<N>>);

impl<const N: usize> Signer for EcdsaSigner<N>
where
    Scalars<N>: Curve,
{
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let failed = || Error::General("ecdsa signing failed".into());
        let digest = Scalars::<N>::HASH.digest(message);
        let nonce = nonce(&self.0.scalar, digest.as_ref());
        self.0.key.ecdsa_sign(digest.as_ref(), &nonce[..]).ok_or_else(failed)
    }

    fn scheme(&self) -> SignatureScheme {
        Scalars::<N>::SCHEME
    }
}

/// Length of the longest hash, in bytes.
const HASH_MAX: usize = 64;

/// The nonce of RFC 6979 section 3.2, for a hash that is no longer than the group's order.
fn nonce<const N: usize>(scalar: &[u8; N], hash: &[u8]) -> Zeroizing<[u8; N]>
where
    Scalars<N>: Curve,
{
    let algorithm = match Scalars::<N>::HASH {
        HashKind::Sha256 => hmac::HMAC_SHA256,
        HashKind::Sha384 => hmac::HMAC_SHA384,
        HashKind::Sha512 => hmac::HMAC_SHA512,
    };
    let hash_len = hash.len().min(HASH_MAX);
    let mac = |key: &[u8; HASH_MAX], parts: &[&[u8]]| {
        let mut context = hmac::Context::with_key(&hmac::Key::new(algorithm, &key[..hash_len]));
        parts.iter().for_each(|part| context.update(part));
        let mut out = Zeroizing::new([0_u8; HASH_MAX]);
        out.iter_mut().zip(context.sign().as_ref()).for_each(|(to, from)| *to = *from);
        out
    };
    let hash = bits2octets::<N>(hash);
    let mut v = Zeroizing::new([1; HASH_MAX]);
    let mut k = Zeroizing::new([0; HASH_MAX]);
    for step in [0, 1] {
        k = mac(&k, &[&v[..hash_len], &[step], scalar, &hash]);
        v = mac(&k, &[&v[..hash_len]]);
    }
    loop {
        let mut candidate = Zeroizing::new([0; N]);
        for part in candidate.chunks_mut(hash_len) {
            v = mac(&k, &[&v[..hash_len]]);
            part.copy_from_slice(&v[..part.len()]);
        }
        shift_right(&mut candidate[..], Scalars::<N>::SPARE_BITS);
        let (_, below_order) = subtract_order::<N>(&candidate);
        if below_order && candidate.iter().fold(0, |any, byte| any | byte) != 0 {
            return candidate;
        }
        k = mac(&k, &[&v[..hash_len], &[0]]);
        v = mac(&k, &[&v[..hash_len]]);
    }
}

/// The hash modulo the order, as long as a scalar. The hash is less than twice the order, so one subtraction suffices.
fn bits2octets<const N: usize>(hash: &[u8]) -> [u8; N]
where
    Scalars<N>: Curve,
{
    let mut octets = [0; N];
    octets.iter_mut().rev().zip(hash.iter().rev()).for_each(|(to, from)| *to = *from);
    let (difference, borrow) = subtract_order::<N>(&octets);
    if borrow { octets } else { difference }
}

/// Shifts a big-endian number right by fewer than 8 bits.
fn shift_right(value: &mut [u8], bits: u32) {
    let mut carry = 0_u16;
    for byte in value {
        let wide = carry << 8 | u16::from(*byte);
        carry = u16::from(*byte);
        *byte = (wide >> bits) as u8;
    }
}

/// `value` minus the order, and whether `value` was below it, in constant time.
fn subtract_order<const N: usize>(value: &[u8; N]) -> ([u8; N], bool)
where
    Scalars<N>: Curve,
{
    let mut difference = [0; N];
    let mut borrow = 0_i16;
    for ((out, &byte), &order) in difference.iter_mut().zip(value).zip(Scalars::<N>::ORDER).rev() {
        let step = i16::from(byte) - i16::from(order) - borrow;
        borrow = (step >> 8) & 1;
        *out = step as u8;
    }
    (difference, borrow == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex<const N: usize>(text: &str) -> [u8; N] {
        std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
    }

    /// RFC 6979 sections A.2.5 to A.2.7.
    #[test]
    fn nonces_are_those_of_rfc_6979() {
        let x = hex::<32>("C9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721");
        for (message, k) in [
            ("sample", "A6E3C57DD01ABE90086538398355DD4C3B17AA873382B0F24D6129493D8AAD60"),
            ("test", "D16B6AE827F17175E040871A1C7EC3500192C4C92677336EC2537ACAEE0008E0"),
        ] {
            let digest = HashKind::Sha256.digest(message.as_bytes());
            assert_eq!(*nonce(&x, digest.as_ref()), hex::<32>(k), "{message}");
        }
        let x = hex::<48>(
            "6B9D3DAD2E1B8C1C05B19875B6659F4DE23C3B667BF297BA9AA47740787137D896D5724E4C70A825F872C9EA60D2EDF5",
        );
        for (message, k) in [
            (
                "sample",
                "94ED910D1A099DAD3254E9242AE85ABDE4BA15168EAF0CA87A555FD56D10FBCA2907E3E83BA95368623B8C4686915CF9",
            ),
            (
                "test",
                "015EE46A5BF88773ED9123A5AB0807962D193719503C527B031B4C2D225092ADA71F4A459BC0DA98ADB95837DB8312EA",
            ),
        ] {
            let digest = HashKind::Sha384.digest(message.as_bytes());
            assert_eq!(*nonce(&x, digest.as_ref()), hex::<48>(k), "{message}");
        }
        let x = hex::<66>(concat!(
            "00FAD06DAA62BA3B25D2FB40133DA757205DE67F5BB0018FEE8C86E1B68C7E75C",
            "AA896EB32F1F47C70855836A6D16FCC1466F6D8FBEC67DB89EC0C08B0E996B83538"
        ));
        for (message, k) in [
            (
                "sample",
                concat!(
                    "01DAE2EA071F8110DC26882D4D5EAE0621A3256FC8847FB9022E2B7D28E6F10198B1574",
                    "FDD03A9053C08A1854A168AA5A57470EC97DD5CE090124EF52A2F7ECBFFD3"
                ),
            ),
            (
                "test",
                concat!(
                    "016200813020EC986863BEDFC1B121F605C1215645018AEA1A7B215A564DE9EB1B38A67",
                    "AA1128B80CE391C4FB71187654AAA3431027BFC7F395766CA988C964DC56D"
                ),
            ),
        ] {
            let digest = HashKind::Sha512.digest(message.as_bytes());
            assert_eq!(*nonce(&x, digest.as_ref()), hex::<66>(k), "{message}");
        }
    }

    #[test]
    fn hash_at_or_above_the_order_is_reduced() {
        let order: &[u8; 32] = Scalars::<32>::ORDER.try_into().unwrap();
        assert_eq!(subtract_order::<32>(order), ([0; 32], false));
        assert!(subtract_order::<32>(&[0; 32]).1);
        assert!(!subtract_order::<32>(&[0xff; 32]).1);
        let x = [7; 32];
        assert_eq!(*nonce::<32>(&x, &order[..]), *nonce::<32>(&x, &[0; 32]));
    }
}
