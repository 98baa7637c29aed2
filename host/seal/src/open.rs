//! Opening of one layer, by the holder of its key.

use crate::error::OpenError;
use crate::hpke::{Dh, Exporter};
use crate::layer::{self, INFO};
use evergate_evidence::envelope::{Envelope, Layer, Point};
use evergate_evidence::secrets::SecretList;
use zeroize::Zeroizing;

/// Result of ECDH with an epoch's private key.
pub struct Shared {
    /// The epoch's public key, which the derivation includes.
    pub public: Point,
    /// The x coordinate of the shared point.
    pub secret: Dh,
}

/// Holder of the private keys of one layer.
pub trait Decapsulate {
    /// ECDH of the epoch's private key with an encapsulated key. An encapsulated key may be hostile.
    fn shared(&mut self, layer: Layer, epoch: u64, enc: &Point) -> Result<Shared, OpenError>;
}

/// Content of one layer: of the outer one the inner ciphertext, of the inner one the encoded secrets. `ciphertext` is
/// what the envelope has for the outer layer, and what the outer layer held for the inner one.
pub fn open_layer(
    envelope: &Envelope<'_>,
    layer: Layer,
    ciphertext: &[u8],
    keys: &mut dyn Decapsulate,
) -> Result<Zeroizing<Vec<u8>>, OpenError> {
    let enc = envelope.enc(layer);
    let Shared { public, secret } = keys.shared(layer, envelope.aad.epoch(), enc)?;
    let exporter = Exporter::of_dh(&secret, enc, &public, INFO);
    let mut buffer = Zeroizing::new(ciphertext.to_vec());
    layer::open(&exporter, layer, envelope.index, &envelope.aad.encode(), &mut buffer)
        .ok_or(OpenError::Closed(layer))?;
    Ok(buffer)
}

/// Secrets in an inner layer that the Master has uncovered.
pub fn open_secrets(
    envelope: &Envelope<'_>,
    inner: &[u8],
    keys: &mut dyn Decapsulate,
) -> Result<SecretList, OpenError> {
    let bytes = open_layer(envelope, Layer::Inner, inner, keys)?;
    Ok(SecretList::decode(&bytes)?)
}
