//! SHA-256 for transcripts of TLS 1.3, as a plain value. A handshake copies its transcript a dozen times. Each copy of
//! an AWS-LC context is a second block of memory behind a table of functions.
//!
//! All transcripts have the client's own bytes, even if `rustls` parses a ClientHello with another host name: see
//! `alias` in `proto/tls`.

use evergate_base::seed::with_current;
use rustls::crypto::hash::{Context, Hash, HashAlgorithm, Output};
use sha2::{Digest, Sha256};

/// SHA-256, for rustls.
pub(crate) struct Sha256Hash;

struct Running(Sha256);

impl Hash for Sha256Hash {
    fn start(&self) -> Box<dyn Context> {
        Box::new(Running(Sha256::new()))
    }

    fn hash(&self, data: &[u8]) -> Output {
        Output::new(&Sha256::digest(data))
    }

    fn output_len(&self) -> usize {
        <Sha256 as Digest>::output_size()
    }

    fn algorithm(&self) -> HashAlgorithm {
        HashAlgorithm::SHA256
    }
}

impl Context for Running {
    fn fork_finish(&self) -> Output {
        Output::new(&self.0.clone().finalize())
    }

    fn fork(&self) -> Box<dyn Context> {
        Box::new(Running(self.0.clone()))
    }

    fn finish(self: Box<Self>) -> Output {
        Output::new(&self.0.finalize())
    }

    fn update(&mut self, data: &[u8]) {
        with_own_bytes(data, |part| self.0.update(part));
    }
}

/// Hash of another provider, over the client's own bytes.
pub(crate) struct TranscriptHash(pub(crate) &'static dyn Hash);

struct Transcript(Box<dyn Context>);

impl Hash for TranscriptHash {
    fn start(&self) -> Box<dyn Context> {
        Box::new(Transcript(self.0.start()))
    }

    fn hash(&self, data: &[u8]) -> Output {
        self.0.hash(data)
    }

    fn output_len(&self) -> usize {
        self.0.output_len()
    }

    fn algorithm(&self) -> HashAlgorithm {
        self.0.algorithm()
    }
}

impl Context for Transcript {
    fn fork_finish(&self) -> Output {
        self.0.fork_finish()
    }

    fn fork(&self) -> Box<dyn Context> {
        Box::new(Transcript(self.0.fork()))
    }

    fn finish(self: Box<Self>) -> Output {
        self.0.finish()
    }

    fn update(&mut self, data: &[u8]) {
        with_own_bytes(data, |part| self.0.update(part));
    }
}

/// Calls `step` with the client's own bytes if `data` begins with a hello under an alias, otherwise with `data`.
pub(crate) fn with_own_bytes(data: &[u8], mut step: impl FnMut(&[u8])) {
    let alias = with_current(|seed| seed.alias.clone()).flatten();
    match alias.as_ref().and_then(|alias| alias.restore(data)) {
        Some(parts) => parts.into_iter().for_each(step),
        None => step(data),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;

    /// Operations of a handshake on a transcript: an intermediate hash, an independent copy, and the end.
    fn all(hash: &dyn Hash, first: &[u8], second: &[u8]) -> Vec<Vec<u8>> {
        let mut running = hash.start();
        running.update(first);
        let between = running.fork_finish();
        let mut copy = running.fork();
        running.update(second);
        copy.update(b"copy");
        let ends = [between, running.finish(), copy.finish(), hash.hash(first)];
        ends.iter().map(|end| end.as_ref().to_vec()).collect()
    }

    proptest! {
        #[test]
        fn output_equals_that_of_the_other_implementation(
            first in proptest::collection::vec(any::<u8>(), 0..300),
            second in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let peer = TLS13_AES_128_GCM_SHA256.tls13().unwrap().common.hash_provider;
            prop_assert_eq!(all(&Sha256Hash, &first, &second), all(peer, &first, &second));
            prop_assert_eq!(Sha256Hash.output_len(), peer.output_len());
            prop_assert_eq!(Sha256Hash.algorithm(), peer.algorithm());
        }
    }
}
