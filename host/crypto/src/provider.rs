//! Two providers: the deterministic one for servers, the ordinary one for upstream connections.

use std::sync::{Arc, LazyLock};

use evergate_base::seed::{Seed, scoped};
use rustls::crypto::aws_lc_rs::{cipher_suite as suite, default_provider};
use rustls::crypto::{CryptoProvider, KeyProvider, SupportedKxGroup};
use rustls::sign::SigningKey;
use rustls::{CipherSuiteCommon, Error, SupportedCipherSuite, Tls12CipherSuite, Tls13CipherSuite};
use rustls_pki_types::PrivateKeyDer;

use crate::hkdf::HkdfSha256;
use crate::kx::{P256, P384, X25519, X25519MlKem768};
use crate::random::{SeedRandom, random_bytes};
use crate::sha256::{Sha256Hash, TranscriptHash};

/// The TLS 1.3 suites with the hash and key schedule of this crate. `None` never occurs, because the named suites are
/// of TLS 1.3.
static SHA256_SUITES: LazyLock<Option<[Tls13CipherSuite; 2]>> = LazyLock::new(|| {
    let own = |suite: SupportedCipherSuite| {
        let Tls13CipherSuite { common, aead_alg, .. } = suite.tls13()?;
        let CipherSuiteCommon { suite, confidentiality_limit, .. } = *common;
        let common = CipherSuiteCommon { suite, hash_provider: &Sha256Hash, confidentiality_limit };
        Some(Tls13CipherSuite { common, hkdf_provider: &HkdfSha256, aead_alg: *aead_alg, quic: None })
    };
    Some([own(suite::TLS13_AES_128_GCM_SHA256)?, own(suite::TLS13_CHACHA20_POLY1305_SHA256)?])
});

/// The other suites, with transcripts over the client's own bytes.
static OTHER_SUITES: LazyLock<Vec<SupportedCipherSuite>> = LazyLock::new(|| {
    let with_transcript = |suite: SupportedCipherSuite| match suite {
        SupportedCipherSuite::Tls12(suite) => {
            let &Tls12CipherSuite { ref common, prf_provider, kx, sign, aead_alg } = suite;
            let common = common_with_transcript(common);
            let own = Tls12CipherSuite { common, prf_provider, kx, sign, aead_alg };
            SupportedCipherSuite::Tls12(Box::leak(Box::new(own))) // once in a process
        }
        SupportedCipherSuite::Tls13(suite) => {
            let &Tls13CipherSuite { ref common, hkdf_provider, aead_alg, quic } = suite;
            let common = common_with_transcript(common);
            let own = Tls13CipherSuite { common, hkdf_provider, aead_alg, quic };
            SupportedCipherSuite::Tls13(Box::leak(Box::new(own)))
        }
    };
    std::iter::once(suite::TLS13_AES_256_GCM_SHA384).chain(TLS12_SUITES).map(with_transcript).collect()
});

fn common_with_transcript(common: &CipherSuiteCommon) -> CipherSuiteCommon {
    let CipherSuiteCommon { suite, hash_provider, confidentiality_limit } = *common;
    let hash_provider = Box::leak(Box::new(TranscriptHash(hash_provider)));
    CipherSuiteCommon { suite, hash_provider, confidentiality_limit }
}

/// AES-128 first: its margin is ample and it is the fastest with AES instructions.
fn suites() -> Vec<SupportedCipherSuite> {
    let own = SHA256_SUITES.as_ref().map(|[aes, chacha]| [aes, chacha].map(SupportedCipherSuite::Tls13));
    let [aes, chacha] =
        own.unwrap_or([suite::TLS13_AES_128_GCM_SHA256, suite::TLS13_CHACHA20_POLY1305_SHA256]);
    let (aes256, tls12) = OTHER_SUITES.split_at(1);
    [&[aes], aes256, &[chacha], tls12].concat()
}

const TLS12_SUITES: [SupportedCipherSuite; 6] = [
    suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

/// Loader of private keys for users of the provider.
#[derive(Debug)]
struct Keys;

impl KeyProvider for Keys {
    fn load_private_key(&self, key: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, Error> {
        crate::sign::signing_key(key).map_err(|error| Error::General(error.to_string()))
    }
}

/// The server's provider: all randomness comes from the installed seed; without a seed a draw fails.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: suites(),
        kx_groups: vec![&X25519MlKem768, &X25519, &P256, &P384],
        secure_random: &SeedRandom,
        key_provider: &Keys,
        ..default_provider()
    })
}

/// The ordinary provider, for upstream connections and for checking certificates.
pub fn client_provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

/// Performs operations that are slow the first time (randomness, tables, self-tests), before a connection waits for
/// them.
pub fn warm_up() {
    let secret: [u8; 32] = random_bytes();
    let mut seed = Some(Seed::new(secret, 0));
    scoped(&mut seed, || {
        for group in [&X25519 as &dyn SupportedKxGroup, &P256, &P384] {
            let _ = group.start().map(|exchange| exchange.pub_key().len());
        }
    });
    let _ = client_provider();
}
