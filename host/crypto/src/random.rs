//! Randomness, time and secrets by way of the installed seed; and the operating system's randomness for the rest.

use std::time::Duration;

use aws_lc_rs::hmac;
use evergate_base::seed::{Captured, SecretKind, with_current};
use rustls::KeyLog;
use rustls::crypto::{GetRandomFailed, SecureRandom};
use rustls::time_provider::TimeProvider;
use rustls_pki_types::UnixTime;

/// Fills `out` from the installed seed. `label` separates purposes; `context` is mixed in (a peer's key share, so that
/// another share never meets the same private key, not even after a HelloRetryRequest). Fails outside a scope.
pub(crate) fn draw(label: &[u8], context: &[u8], out: &mut [u8]) -> Result<(), GetRandomFailed> {
    let filled = with_current(|seed| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &seed.key);
        let counter = seed.counter;
        seed.counter = counter.checked_add(1)?;
        for (block, chunk) in (0_u32..).zip(out.chunks_mut(32)) {
            let mut mac = hmac::Context::with_key(&key);
            mac.update(&counter.to_be_bytes());
            mac.update(&block.to_be_bytes());
            mac.update(&(label.len() as u32).to_be_bytes());
            mac.update(label);
            mac.update(context);
            chunk.copy_from_slice(mac.sign().as_ref().get(..chunk.len())?);
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

/// The time a handshake takes for now: when its connection was accepted.
#[derive(Debug)]
pub(crate) struct SeedTime;

impl TimeProvider for SeedTime {
    fn current_time(&self) -> Option<UnixTime> {
        with_current(|seed| UnixTime::since_unix_epoch(Duration::from_secs(seed.unix_s)))
    }
}

/// Hands TLS 1.3 traffic secrets to the handshake driver through the seed. Nothing is ever written anywhere.
#[derive(Debug)]
pub(crate) struct CaptureLog;

impl CaptureLog {
    fn kind(label: &str) -> Option<SecretKind> {
        match label {
            "CLIENT_TRAFFIC_SECRET_0" => Some(SecretKind::ClientTraffic),
            "SERVER_TRAFFIC_SECRET_0" => Some(SecretKind::ServerTraffic),
            _ => None,
        }
    }
}

impl KeyLog for CaptureLog {
    fn will_log(&self, label: &str) -> bool {
        CaptureLog::kind(label).is_some()
    }

    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        if let Some(kind) = CaptureLog::kind(label) {
            with_current(|seed| seed.captured.push(Captured { kind, secret: secret.to_vec() }));
        }
    }
}

/// Operating-system randomness, for the secret of each accepted connection.
///
/// # Panics
/// When the operating system gives none: no connection could be protected, so the process must not go on.
#[allow(clippy::expect_used)]
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the operating system gives no randomness");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use evergate_base::seed::{Seed, scoped};

    #[test]
    fn draws_repeat_with_the_seed_differ_from_each_other_and_fail_outside() {
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
}
