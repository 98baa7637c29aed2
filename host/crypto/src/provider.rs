//! The two providers: the deterministic one for servers, the ordinary one for upstream connections.

use std::sync::Arc;

use evergate_base::seed::{Seed, scoped};
use rustls::crypto::aws_lc_rs::{cipher_suite as suite, default_provider};
use rustls::crypto::{CryptoProvider, KeyProvider, SupportedKxGroup};
use rustls::sign::SigningKey;
use rustls::{Error, SupportedCipherSuite};
use rustls_pki_types::PrivateKeyDer;

use crate::kx::{P256, X25519, X25519MlKem768};
use crate::random::{SeedRandom, random_bytes};

/// AES-128 first: its margin is ample and it is the fastest with AES instructions.
const SUITES: [SupportedCipherSuite; 9] = [
    suite::TLS13_AES_128_GCM_SHA256,
    suite::TLS13_AES_256_GCM_SHA384,
    suite::TLS13_CHACHA20_POLY1305_SHA256,
    suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

/// Loads private keys for whoever asks the provider.
#[derive(Debug)]
struct Keys;

impl KeyProvider for Keys {
    fn load_private_key(&self, key: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, Error> {
        crate::sign::signing_key(key).map_err(|error| Error::General(error.to_string()))
    }
}

/// The server's provider: all randomness comes from the installed seed, and none is had without one.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: SUITES.to_vec(),
        kx_groups: vec![&X25519MlKem768, &X25519, &P256],
        secure_random: &SeedRandom,
        key_provider: &Keys,
        ..default_provider()
    })
}

/// The ordinary provider, for upstream connections and for checking certificates.
pub fn client_provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

/// Does once what is slow the first time (randomness, tables, self-tests), before a connection waits for it.
pub fn warm_up() {
    let secret: [u8; 32] = random_bytes();
    let mut seed = Some(Seed::new(secret, 0));
    scoped(&mut seed, || {
        for group in [&X25519 as &dyn SupportedKxGroup, &P256] {
            let _ = group.start().map(|exchange| exchange.pub_key().len());
        }
    });
    let _ = client_provider();
}
