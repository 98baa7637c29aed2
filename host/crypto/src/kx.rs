//! Key exchange with private values drawn from the seed.
//!
//! Invariant: a private value is drawn for one exchange. If the peer's share is known (TLS 1.3), it is mixed into the
//! draw.

use aws_lc_rs::agreement;
use evergate_base::seed::with_current;
use rustls::crypto::{
    ActiveKeyExchange, CompletedKeyExchange, GetRandomFailed, SharedSecret, SupportedKxGroup,
};
use rustls::{Error, NamedGroup, PeerMisbehaved, ProtocolVersion};
use zeroize::Zeroizing;

use crate::aws_lc::{MLKEM768_CIPHERTEXT, MLKEM768_KEY, mlkem768_encapsulate, x25519, x25519_public};
use crate::random::draw;

/// Limit of draws for a scalar: each is out of range with probability 2^-32 at most.
const DRAWS_MAX: usize = 8;

fn bad_share() -> Error {
    PeerMisbehaved::InvalidKeyShare.into()
}

/// A private value and its public one.
struct X25519Pair {
    private: Zeroizing<[u8; 32]>,
    public: [u8; 32],
}

impl X25519Pair {
    fn draw(label: &[u8], peer: &[u8]) -> Result<X25519Pair, Error> {
        let mut private = Zeroizing::new([0; 32]);
        draw(label, peer, &mut private[..])?;
        let public = x25519_public(&private);
        Ok(X25519Pair { private, public })
    }

    fn agree(&self, peer: &[u8]) -> Result<Zeroizing<[u8; 32]>, Error> {
        let peer = peer.try_into().map_err(|_| bad_share())?;
        // RFC 8446 section 7.4.2: abort on the all-zero value, which results from a share of small order.
        x25519(&self.private, peer).ok_or_else(bad_share)
    }
}

/// X25519 (RFC 7748).
#[derive(Debug)]
pub(crate) struct X25519;

impl SupportedKxGroup for X25519 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        Ok(Box::new(X25519Pair::draw(b"x25519 tls12", b"")?))
    }

    fn start_and_complete(&self, peer: &[u8]) -> Result<CompletedKeyExchange, Error> {
        let pair = X25519Pair::draw(b"x25519", peer)?;
        let secret = SharedSecret::from(&pair.agree(peer)?[..]);
        Ok(CompletedKeyExchange { group: self.name(), pub_key: pair.public.to_vec(), secret })
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

impl ActiveKeyExchange for X25519Pair {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        Ok(SharedSecret::from(&self.agree(peer)?[..]))
    }

    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

/// A private value and its public one on a NIST curve.
struct NistPair {
    group: NamedGroup,
    algorithm: &'static agreement::Algorithm,
    private: agreement::PrivateKey,
    public: Vec<u8>,
}

impl NistPair {
    /// `N`: bytes of a scalar.
    fn draw<const N: usize>(
        group: NamedGroup,
        algorithm: &'static agreement::Algorithm,
        label: &[u8],
        peer: &[u8],
    ) -> Result<NistPair, Error> {
        for _ in 0..DRAWS_MAX {
            let mut scalar = Zeroizing::new([0; N]);
            draw(label, peer, &mut scalar[..])?;
            // Refused when zero or not below the group's order: use the next draw.
            let Ok(private) = agreement::PrivateKey::from_private_key(algorithm, &scalar[..]) else {
                continue;
            };
            let public = private.compute_public_key().map_err(|_| GetRandomFailed)?.as_ref().to_vec();
            return Ok(NistPair { group, algorithm, private, public });
        }
        Err(GetRandomFailed.into())
    }

    fn p256(label: &[u8], peer: &[u8]) -> Result<NistPair, Error> {
        NistPair::draw::<32>(NamedGroup::secp256r1, &agreement::ECDH_P256, label, peer)
    }

    fn p384(label: &[u8], peer: &[u8]) -> Result<NistPair, Error> {
        NistPair::draw::<48>(NamedGroup::secp384r1, &agreement::ECDH_P384, label, peer)
    }

    fn agree(&self, peer: &[u8]) -> Result<SharedSecret, Error> {
        // RFC 8446 section 4.2.8.2: only the uncompressed form.
        if peer.first() != Some(&4) {
            return Err(bad_share());
        }
        let peer = agreement::UnparsedPublicKey::new(self.algorithm, peer);
        agreement::agree(&self.private, peer, bad_share(), |secret| Ok(SharedSecret::from(secret)))
    }

    fn answer(self, peer: &[u8]) -> Result<CompletedKeyExchange, Error> {
        let secret = self.agree(peer)?;
        Ok(CompletedKeyExchange { group: self.group, pub_key: self.public, secret })
    }
}

impl ActiveKeyExchange for NistPair {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        self.agree(peer)
    }

    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn group(&self) -> NamedGroup {
        self.group
    }
}

/// NIST P-256.
#[derive(Debug)]
pub(crate) struct P256;

impl SupportedKxGroup for P256 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        Ok(Box::new(NistPair::p256(b"p256 tls12", b"")?))
    }

    fn start_and_complete(&self, peer: &[u8]) -> Result<CompletedKeyExchange, Error> {
        NistPair::p256(b"p256", peer)?.answer(peer)
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::secp256r1
    }
}

/// NIST P-384, for clients that offer no preferred group. `rustls` follows the client's order of groups. It would
/// otherwise ask for a share of this group although the client sent a share of a faster one.
#[derive(Debug)]
pub(crate) struct P384;

impl SupportedKxGroup for P384 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        Ok(Box::new(NistPair::p384(b"p384 tls12", b"")?))
    }

    fn start_and_complete(&self, peer: &[u8]) -> Result<CompletedKeyExchange, Error> {
        NistPair::p384(b"p384", peer)?.answer(peer)
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::secp384r1
    }

    fn usable_for_version(&self, _: ProtocolVersion) -> bool {
        with_current(|seed| !seed.offers_first_groups).unwrap_or(true)
    }
}

/// Server side of ML-KEM-768 combined with X25519 (draft-ietf-tls-ecdhe-mlkem).
#[derive(Debug)]
pub(crate) struct X25519MlKem768;

impl SupportedKxGroup for X25519MlKem768 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        Err(Error::General("a server does not start a key encapsulation".into()))
    }

    fn start_and_complete(&self, peer: &[u8]) -> Result<CompletedKeyExchange, Error> {
        let (key, x25519_share) = peer.split_first_chunk::<MLKEM768_KEY>().ok_or_else(bad_share)?;
        let mut message = Zeroizing::new([0; 32]);
        draw(b"mlkem768", peer, &mut message[..])?;
        let (ciphertext, shared) = mlkem768_encapsulate(key, &message).ok_or_else(bad_share)?;
        let pair = X25519Pair::draw(b"x25519 hybrid", peer)?;
        let mut secret = Zeroizing::new([0; 64]);
        secret[..32].copy_from_slice(&shared[..]);
        secret[32..].copy_from_slice(&pair.agree(x25519_share)?[..]);
        let mut pub_key = Vec::with_capacity(MLKEM768_CIPHERTEXT + 32);
        pub_key.extend_from_slice(&ciphertext);
        pub_key.extend_from_slice(&pair.public);
        Ok(CompletedKeyExchange { group: self.name(), pub_key, secret: SharedSecret::from(&secret[..]) })
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }

    fn usable_for_version(&self, version: ProtocolVersion) -> bool {
        version == ProtocolVersion::TLSv1_3
    }
}
