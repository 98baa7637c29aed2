//! Randomness, time and secrets from the installed seed, and the operating system's randomness for other uses.

use std::time::Duration;

use evergate_base::seed::{Captured, KeptSecrets, SecretKind, with_current};
use hmac::Mac;
use rustls::KeyLog;
use rustls::crypto::{GetRandomFailed, SecureRandom};
use rustls::time_provider::TimeProvider;
use rustls_pki_types::UnixTime;

use crate::hkdf::keyed;

/// Fills `out` from the installed seed. `label` separates purposes. `context` is mixed in: with a peer's key share,
/// another share never meets the same private key, not even after a HelloRetryRequest. Fails outside a scope.
pub(crate) fn draw(label: &[u8], context: &[u8], out: &mut [u8]) -> Result<(), GetRandomFailed> {
    let filled = with_current(|seed| {
        let key = keyed(&seed.key);
        let counter = seed.counter;
        seed.counter = counter.checked_add(1)?;
        for (block, chunk) in (0_u32..).zip(out.chunks_mut(32)) {
            let mut mac = key.clone();
            mac.update(&counter.to_be_bytes());
            mac.update(&block.to_be_bytes());
            mac.update(&(label.len() as u32).to_be_bytes());
            mac.update(label);
            mac.update(context);
            chunk.copy_from_slice(mac.finalize().into_bytes().get(..chunk.len())?);
        }
        Some(())
    });
    filled.flatten().ok_or(GetRandomFailed)
}

/// The provider's `secure_random`.
#[derive(Debug)]
pub(crate) struct SeedRandom;

impl SecureRandom for SeedRandom {
    fn fill(&self, out: &mut [u8]) -> Result<(), GetRandomFailed> {
        draw(b"random", b"", out)
    }
}

/// Current time of a handshake: the time when its connection was accepted.
#[derive(Debug)]
pub(crate) struct SeedTime;

impl TimeProvider for SeedTime {
    fn current_time(&self) -> Option<UnixTime> {
        with_current(|seed| UnixTime::since_unix_epoch(Duration::from_secs(seed.unix_s)))
    }
}

/// Passes TLS 1.3 traffic secrets to the handshake driver through the seed; of an audited connection also the master
/// secret of TLS 1.2. It writes no log.
#[derive(Debug)]
pub(crate) struct CaptureLog;

impl CaptureLog {
    /// Kind of a label (RFC 9850), and which connections keep it.
    fn kind(label: &str) -> Option<(SecretKind, KeptSecrets)> {
        Some(match label {
            "CLIENT_HANDSHAKE_TRAFFIC_SECRET" => (SecretKind::ClientHandshake, KeptSecrets::RecordLayer),
            "CLIENT_TRAFFIC_SECRET_0" => (SecretKind::ClientTraffic, KeptSecrets::RecordLayer),
            "SERVER_TRAFFIC_SECRET_0" => (SecretKind::ServerTraffic, KeptSecrets::RecordLayer),
            "SERVER_HANDSHAKE_TRAFFIC_SECRET" => (SecretKind::ServerHandshake, KeptSecrets::Audit),
            "CLIENT_RANDOM" => (SecretKind::Master, KeptSecrets::Audit),
            _ => return None,
        })
    }
}

impl KeyLog for CaptureLog {
    fn will_log(&self, label: &str) -> bool {
        CaptureLog::kind(label).is_some()
    }

    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let Some((kind, kept_by)) = CaptureLog::kind(label) else { return };
        with_current(|seed| {
            if kept_by == KeptSecrets::RecordLayer || seed.kept_secrets == KeptSecrets::Audit {
                seed.captured.push(Captured { kind, secret: secret.to_vec() });
            }
        });
    }
}

/// Operating-system randomness, for the secret of each accepted connection.
///
/// # Panics
/// If the operating system provides none: no connection could be protected, so the process must end.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    fill_random(&mut bytes);
    bytes
}

/// Fills `bytes` with random ones of the operating system.
///
/// # Panics
/// As [`random_bytes`].
pub fn fill_random(bytes: &mut [u8]) {
    aws_lc_rs::rand::fill(bytes).expect("the operating system gives no randomness");
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_base::seed::{Seed, scoped};

    #[test]
    fn draws_repeat_with_the_seed_and_fail_outside_a_scope() {
        let run = |key: u8| {
            let mut seed = Some(Seed::new([key; 32], 1));
            scoped(&mut seed, || {
                let mut outs = [[0; 80]; 4];
                draw(b"a", b"", &mut outs[0]).unwrap();
                draw(b"a", b"", &mut outs[1]).unwrap();
                draw(b"b", b"", &mut outs[2]).unwrap();
                draw(b"b", b"x", &mut outs[3]).unwrap();
                outs
            })
        };
        let outs = run(1);
        assert_eq!(outs, run(1));
        for (index, out) in outs.iter().enumerate() {
            assert!(outs[..index].iter().all(|other| other != out) && out[..32] != out[32..64]);
            assert_ne!(out, &run(2)[index]);
        }
        assert!(draw(b"a", b"", &mut [0; 1]).is_err());
        assert!(SeedTime.current_time().is_none());
        assert_ne!(random_bytes::<32>(), random_bytes::<32>());
    }

    /// Nodes of two versions must draw the same bytes.
    #[test]
    fn draw_is_the_hmac_of_number_block_label_and_context() {
        use aws_lc_rs::hmac::{HMAC_SHA256, Key, sign};
        let mut seed = Some(Seed::new([7; 32], 1));
        let mut out = [0; 50];
        scoped(&mut seed, || {
            draw(b"kx", b"", &mut [0; 1]).unwrap();
            draw(b"kx", b"share", &mut out).unwrap();
        });
        let block = |number: u32| {
            let number = number.to_be_bytes();
            let message = [&1_u64.to_be_bytes()[..], &number, &2_u32.to_be_bytes(), b"kx", b"share"].concat();
            sign(&Key::new(HMAC_SHA256, &[7; 32]), &message)
        };
        assert_eq!(out, [block(0).as_ref(), block(1).as_ref()].concat()[..50]);
    }
}
