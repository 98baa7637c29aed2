//! Sealing contexts of a switch.

use crate::error::SealError;
use crate::hpke::Exporter;
use crate::layer::{self, INFO};
use evergate_evidence::envelope::{Aad, Envelope, LAYERS, Layer, Point, TAG_BYTES};
use evergate_evidence::epochs::EpochKeys;
use evergate_evidence::secrets::{LIST_BYTES_MAX, SecretList};
use zeroize::Zeroizing;

/// Most connections that a context seals.
pub const CONNECTIONS_MAX: u32 = 1024;
/// Longest use of a context in seconds: its owner replaces it then. A reader of the process's memory opens at most
/// what the present context has sealed.
pub const CONTEXT_AGE_S_MAX: u64 = 60;

/// Both layers' contexts of one epoch. Making one takes two ECDH pairs, so a worker gets it from another thread.
pub struct SealContext {
    epoch: u64,
    inner: Sender,
    outer: Sender,
    /// Connections sealed so far: the number of the next one.
    sealed: u32,
}

struct Sender {
    enc: Point,
    exporter: Exporter,
}

impl SealContext {
    /// Contexts for both keys of an epoch.
    pub fn new(keys: &EpochKeys) -> Result<SealContext, SealError> {
        let sender = |layer, key| {
            let (enc, exporter) = Exporter::new_sender(key, INFO).ok_or(SealError::Key(layer, keys.epoch))?;
            Ok(Sender { enc, exporter })
        };
        Ok(SealContext {
            epoch: keys.epoch,
            inner: sender(Layer::Inner, &keys.inner)?,
            outer: sender(Layer::Outer, &keys.outer)?,
            sealed: 0,
        })
    }

    /// Epoch whose connections the context seals.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Connections that the context can still seal.
    pub fn left(&self) -> u32 {
        CONNECTIONS_MAX - self.sealed
    }

    /// Bytes of the envelope of one connection. Its number counts as used even if sealing fails.
    pub fn seal(&mut self, aad: &Aad<'_>, secrets: &SecretList) -> Result<Vec<u8>, SealError> {
        if aad.epoch() != self.epoch {
            return Err(SealError::Epoch { found: aad.epoch(), expected: self.epoch });
        }
        if !secrets.is_complete() {
            return Err(SealError::Incomplete);
        }
        if self.left() == 0 {
            return Err(SealError::Exhausted);
        }
        let index = self.sealed;
        self.sealed += 1;
        let facts = aad.encode();
        // Secrets in the clear until the first layer covers them, in a buffer that never grows.
        let most = LIST_BYTES_MAX + usize::from(LAYERS) * TAG_BYTES;
        let mut buffer = Zeroizing::new(Vec::with_capacity(most));
        secrets.encode_to(&mut buffer);
        for (layer, sender) in [(Layer::Inner, &self.inner), (Layer::Outer, &self.outer)] {
            layer::seal(&sender.exporter, layer, index, &facts, &mut buffer)
                .ok_or(SealError::Crypto("AES-256-GCM"))?;
        }
        let (enc_inner, enc_outer) = (self.inner.enc, self.outer.enc);
        Ok(Envelope { aad: *aad, index, enc_inner, enc_outer, sealed: &buffer }.encode())
    }
}

impl std::fmt::Debug for SealContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealContext").field("epoch", &self.epoch).field("sealed", &self.sealed).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_keys::FileKeys;
    use evergate_evidence::envelope::{EPOCH_NS, POINT_BYTES};
    use evergate_evidence::secrets::Label;
    use std::collections::BTreeSet;

    const EPOCH: u64 = 497_000;

    fn keys() -> EpochKeys {
        let (mut inner, mut outer) = (FileKeys::default(), FileKeys::default());
        EpochKeys { epoch: EPOCH, inner: inner.create(EPOCH).unwrap(), outer: outer.create(EPOCH).unwrap() }
    }

    fn aad(born_ns: u64) -> Aad<'static> {
        let end = "10.0.0.1:443".parse().unwrap();
        Aad {
            switch: [1; 32],
            connection: 1,
            born_ns,
            client: end,
            local: end,
            client_random: [2; 32],
            server_random: [3; 32],
            tls_version: 0x303,
            cipher_suite: 0xc02f,
            feed_number: 1,
            sni: b"",
        }
    }

    fn secrets() -> SecretList {
        let mut list = SecretList::default();
        list.set(Label::MasterSecret, &[6; 48]).unwrap();
        list
    }

    #[test]
    fn context_ends_after_its_connections() {
        let mut context = SealContext::new(&keys()).unwrap();
        let mut sealed = BTreeSet::new();
        for index in 0..CONNECTIONS_MAX {
            let bytes = context.seal(&aad(EPOCH * EPOCH_NS), &secrets()).unwrap();
            let envelope = Envelope::decode(&bytes).unwrap();
            assert_eq!(envelope.index, index);
            assert!(sealed.insert(envelope.sealed.to_vec()));
        }
        assert_eq!(context.left(), 0);
        assert_eq!(context.seal(&aad(EPOCH * EPOCH_NS), &secrets()), Err(SealError::Exhausted));
    }

    #[test]
    fn connection_of_another_epoch_is_refused() {
        let mut context = SealContext::new(&keys()).unwrap();
        for (born_ns, found) in [(EPOCH * EPOCH_NS - 1, EPOCH - 1), ((EPOCH + 1) * EPOCH_NS, EPOCH + 1)] {
            let refused = Err(SealError::Epoch { found, expected: EPOCH });
            assert_eq!(context.seal(&aad(born_ns), &secrets()), refused);
        }
        context.seal(&aad((EPOCH + 1) * EPOCH_NS - 1), &secrets()).unwrap();
    }

    #[test]
    fn incomplete_secrets_are_refused() {
        let mut context = SealContext::new(&keys()).unwrap();
        let mut list = SecretList::default();
        list.set(Label::ClientTraffic, &[6; 48]).unwrap();
        assert_eq!(context.seal(&aad(EPOCH * EPOCH_NS), &list), Err(SealError::Incomplete));
        assert_eq!(context.left(), CONNECTIONS_MAX);
    }

    #[test]
    fn keys_off_the_curve_are_refused_by_layer() {
        let mut wrong = keys();
        wrong.outer[64] ^= 1;
        assert_eq!(SealContext::new(&wrong).err(), Some(SealError::Key(Layer::Outer, EPOCH)));
        wrong.inner = [4; POINT_BYTES];
        assert_eq!(SealContext::new(&wrong).err(), Some(SealError::Key(Layer::Inner, EPOCH)));
    }
}
