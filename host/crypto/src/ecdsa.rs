//! ECDSA with the nonce of RFC 6979: P-256 with SHA-256 and P-384 with SHA-384, the pairs that TLS 1.3 names.

use std::sync::Arc;

use aws_lc_rs::hmac;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use zeroize::Zeroizing;

use crate::aws::{HashKind, PKey};
use crate::error::KeyError;

/// Curve parameters by the size of a scalar.
trait Curve {
    const SCHEME: SignatureScheme;
    const HASH: HashKind;
    /// The group's order, big-endian.
    const ORDER: &'static [u8];
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
        let hash: &[u8; N] = digest.as_ref().try_into().map_err(|_| failed())?;
        let nonce = nonce(&self.0.scalar, hash);
        self.0.key.ecdsa_sign(hash, &nonce[..]).ok_or_else(failed)
    }

    fn scheme(&self) -> SignatureScheme {
        Scalars::<N>::SCHEME
    }
}

/// RFC 6979 section 3.2, for a hash as long as the group's order.
fn nonce<const N: usize>(scalar: &[u8; N], hash: &[u8; N]) -> Zeroizing<[u8; N]>
where
    Scalars<N>: Curve,
{
    let algorithm = match Scalars::<N>::HASH {
        HashKind::Sha256 => hmac::HMAC_SHA256,
        HashKind::Sha384 => hmac::HMAC_SHA384,
        HashKind::Sha512 => hmac::HMAC_SHA512,
    };
    let mac = |key: &[u8; N], parts: &[&[u8]]| {
        let mut context = hmac::Context::with_key(&hmac::Key::new(algorithm, key));
        parts.iter().for_each(|part| context.update(part));
        let mut out = Zeroizing::new([0_u8; N]);
        out.iter_mut().zip(context.sign().as_ref()).for_each(|(to, from)| *to = *from);
        out
    };
    // bits2octets: the hash modulo the order; less than twice the order, so one subtraction does.
    let (difference, borrow) = subtract_order::<N>(hash);
    let hash = if borrow { *hash } else { difference };
    let mut v = Zeroizing::new([1; N]);
    let mut k = Zeroizing::new([0; N]);
    for step in [0, 1] {
        k = mac(&k, &[&v[..], &[step], scalar, &hash]);
        v = mac(&k, &[&v[..]]);
    }
    loop {
        v = mac(&k, &[&v[..]]);
        let (_, below_order) = subtract_order::<N>(&v);
        if below_order && v.iter().fold(0, |any, byte| any | byte) != 0 {
            return v;
        }
        k = mac(&k, &[&v[..], &[0]]);
        v = mac(&k, &[&v[..]]);
    }
}

/// `value` minus the order and whether it was below it, in a time that does not depend on the value.
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

    /// RFC 6979 sections A.2.5 and A.2.6.
    #[test]
    fn nonces_are_those_of_rfc_6979() {
        let x = hex::<32>("C9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721");
        for (message, k) in [
            ("sample", "A6E3C57DD01ABE90086538398355DD4C3B17AA873382B0F24D6129493D8AAD60"),
            ("test", "D16B6AE827F17175E040871A1C7EC3500192C4C92677336EC2537ACAEE0008E0"),
        ] {
            let digest = HashKind::Sha256.digest(message.as_bytes());
            assert_eq!(*nonce(&x, digest.as_ref().try_into().unwrap()), hex::<32>(k), "{message}");
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
            assert_eq!(*nonce(&x, digest.as_ref().try_into().unwrap()), hex::<48>(k), "{message}");
        }
    }

    #[test]
    fn a_hash_at_or_above_the_order_is_reduced() {
        let order: &[u8; 32] = Scalars::<32>::ORDER.try_into().unwrap();
        assert_eq!(subtract_order::<32>(order), ([0; 32], false));
        assert!(subtract_order::<32>(&[0; 32]).1);
        assert!(!subtract_order::<32>(&[0xff; 32]).1);
        let x = [7; 32];
        assert_eq!(*nonce::<32>(&x, order), *nonce::<32>(&x, &[0; 32]));
    }
}
