//! Costs of handshakes and encryption for a server on one core of this machine, measured with the code that serves.
//!
//! A client's bytes of one handshake are recorded and given to the server again and again. That works because a
//! handshake is a function of its seed and the client's bytes, and it leaves the client's work out of the figures.

use anyhow::{Context, Result, ensure};
use evergate_crypto::{
    ClientSettings, ServerSettings, TicketHandle, TicketKeys, Verify, client_config, load_certificate,
    server_config, warm_up,
};
use evergate_tls::{
    AeadLibrary, Cipher, ClientHandshake, ContentType, Finished, Handshake, HandshakeParams, PAYLOAD_MAX,
    Progress, Records, Suite, Version, installed_aead,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Costs of one kind of handshake, and of encryption with the suite that it agrees on. Microseconds and Mbit/s of one
/// core of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CryptoCost {
    /// `tls12_rsa`, `tls13_rsa` or `tls13_ecdsa`; RSA with 2048 bits, ECDSA with P-256.
    pub handshake: String,
    /// Cipher suite.
    pub suite: String,
    /// A full handshake.
    pub full_us: f64,
    /// A resumption by ticket.
    pub resumed_us: f64,
    /// Sealing records of full size.
    pub bulk_mbit_per_s: f64,
}

/// Cost of one record in one library, in microseconds of one core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordCost {
    /// Record protection: `aes-128-gcm`, `aes-256-gcm` or `chacha20-poly1305`.
    pub suite: String,
    /// `aws-lc` or `ring`.
    pub library: String,
    /// Whether connections with this suite use this library.
    pub chosen: bool,
    /// Payload of the record.
    pub payload_bytes: usize,
    /// Encryption.
    pub seal_us: f64,
    /// Decryption.
    pub open_us: f64,
}

/// Payloads of measured records, in bytes.
const PAYLOADS: [usize; 3] = [PAYLOAD_MAX, 1024, 125];

/// The kinds of handshakes.
const KINDS: [(&str, Version, &rcgen::SignatureAlgorithm); 3] = [
    ("tls12_rsa", Version::Tls12, &rcgen::PKCS_RSA_SHA256),
    ("tls13_rsa", Version::Tls13, &rcgen::PKCS_RSA_SHA256),
    ("tls13_ecdsa", Version::Tls13, &rcgen::PKCS_ECDSA_P256_SHA256),
];

/// Rounds of each measurement. The best round counts, because every disturbance makes it slower. Rounds are short, so
/// that some of them run undisturbed on a busy machine.
const ROUNDS: u32 = 100;

/// Measures all kinds; each of the three measurements of a kind takes about `time`.
pub fn measure(time: Duration) -> Result<Vec<CryptoCost>> {
    warm_up();
    KINDS
        .iter()
        .map(|(name, version, algorithm)| {
            measure_kind(name, *version, algorithm, time)
                .with_context(|| format!("cannot measure {name} handshakes"))
        })
        .collect()
}

/// Measures records of every suite in both libraries; each of the 36 measurements takes about `time`.
pub fn measure_records(time: Duration) -> Result<Vec<RecordCost>> {
    let mut costs = Vec::new();
    for suite in Suite::ALL {
        for payload in PAYLOADS {
            for library in AeadLibrary::ALL {
                costs.push(measure_record(suite, library, payload, time)?);
            }
        }
    }
    Ok(costs)
}

fn measure_record(
    suite: Suite,
    library: AeadLibrary,
    payload_bytes: usize,
    time: Duration,
) -> Result<RecordCost> {
    let cipher = Cipher::new(library, suite, &vec![7; suite.key_len()])?;
    let (nonce, aad, mut text) = ([1; 12], [7; 5], vec![7; payload_bytes]);
    let seal_s = best_s(time, || {
        black_box(cipher.seal(nonce, &aad, black_box(&mut text))?);
        Ok(())
    })?;
    // Opening needs sealed records, so the difference is measured.
    let both_s = best_s(time, || {
        let tag = cipher.seal(nonce, &aad, black_box(&mut text))?;
        ensure!(cipher.open(nonce, &aad, &tag, black_box(&mut text)), "a sealed record does not open");
        Ok(())
    })?;
    Ok(RecordCost {
        suite: suite.name().to_owned(),
        library: library.name().to_owned(),
        chosen: installed_aead().of(suite) == library,
        payload_bytes,
        seal_us: seal_s * 1e6,
        open_us: (both_s - seal_s).max(0.0) * 1e6,
    })
}

fn measure_kind(
    name: &str,
    version: Version,
    algorithm: &'static rcgen::SignatureAlgorithm,
    time: Duration,
) -> Result<CryptoCost> {
    let key = rcgen::KeyPair::generate_for(algorithm)?;
    let signed = rcgen::CertificateParams::new(vec!["localhost".to_owned()])?.self_signed(&key)?;
    let certificate = load_certificate(signed.pem().as_bytes(), key.serialize_pem().as_bytes())?;
    let roots = certificate.key.cert.clone();
    let server = server_config(ServerSettings {
        certificates: vec![certificate],
        version_min: version,
        version_max: version,
        tickets: Some(TicketHandle::new(TicketKeys::random(0))),
        ..ServerSettings::default()
    })?;
    let client = client_config(ClientSettings { verify: Verify::Roots(roots), ..ClientSettings::default() })?;
    let full = record(&server, &client)?;
    let resumed = record(&server, &client)?;
    ensure!(
        !full.server.facts.resumed && resumed.server.facts.resumed,
        "the second handshake resumes nothing"
    );
    let suite = resumed.server.facts.suite.to_string();
    Ok(CryptoCost {
        handshake: name.to_owned(),
        suite,
        full_us: handshake_us(&server, &full.flights, time)?,
        resumed_us: handshake_us(&server, &resumed.flights, time)?,
        bulk_mbit_per_s: bulk_mbit_per_s(resumed.server.records, time)?,
    })
}

/// A handshake that took place: the client's flights, and the server's end of it.
struct Recorded {
    flights: Vec<Vec<u8>>,
    server: Finished,
}

fn record(server: &Arc<ServerConfig>, client: &Arc<ClientConfig>) -> Result<Recorded> {
    let mut client = ClientHandshake::new(client, ServerName::try_from("localhost")?)?;
    let mut server = Handshake::new(server, &params())?;
    let (mut up, mut down, mut flights) = (Vec::new(), Vec::new(), Vec::new());
    client.start(&mut up)?;
    // A handshake has at most three flights of the client.
    for _ in 0..4 {
        let progress = server.handle_input(&up, &mut down)?;
        flights.push(std::mem::take(&mut up));
        let client_progress = client.handle_input(&std::mem::take(&mut down), &mut up)?;
        if progress == Progress::Done && client_progress == Progress::Done {
            let mut finished = client.finish()?;
            // The tickets of TLS 1.3, which opening a record stores.
            let mut rest = std::mem::take(&mut finished.leftover);
            if !rest.is_empty() {
                finished.records.open(&mut rest)?;
            }
            return Ok(Recorded { flights, server: server.finish()? });
        }
    }
    anyhow::bail!("the handshake does not end")
}

fn params() -> HandshakeParams {
    let address = ([127, 0, 0, 1], 443).into();
    HandshakeParams {
        secret: [1; 32],
        accepted_unix_s: 1_800_000_000,
        generation: 1,
        client: address,
        local: address,
    }
}

fn handshake_us(server: &Arc<ServerConfig>, flights: &[Vec<u8>], time: Duration) -> Result<f64> {
    let params = params();
    let once = || -> Result<()> {
        let mut handshake = Handshake::new(server, &params)?;
        let mut out = Vec::new();
        for flight in flights {
            handshake.handle_input(flight, &mut out)?;
        }
        black_box(handshake.finish()?);
        Ok(())
    };
    Ok(best_s(time, once)? * 1e6)
}

fn bulk_mbit_per_s(mut records: Records, time: Duration) -> Result<f64> {
    let layout = records.layout();
    let mut slot = vec![7; layout.header + PAYLOAD_MAX + layout.trailer];
    let seconds = best_s(time, || Ok(records.seal(ContentType::ApplicationData, black_box(&mut slot))?))?;
    Ok(PAYLOAD_MAX as f64 * 8.0 / seconds / 1e6)
}

/// Seconds that `once` takes: the mean of a round, of the round where it is least.
fn best_s(time: Duration, mut once: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let (start, mut count) = (Instant::now(), 0u32);
        while count == 0 || start.elapsed() < time / ROUNDS {
            once()?;
            count += 1;
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(count));
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One turn of each: that the recorded handshakes can be replayed, not how long they take.
    #[test]
    fn every_kind_of_handshake_can_be_measured() {
        let costs = measure(Duration::ZERO).unwrap();
        let names: Vec<&str> = costs.iter().map(|cost| cost.handshake.as_str()).collect();
        assert_eq!(names, ["tls12_rsa", "tls13_rsa", "tls13_ecdsa"]);
        for cost in costs {
            assert!(cost.full_us > 0.0 && cost.resumed_us > 0.0 && cost.bulk_mbit_per_s > 0.0, "{cost:?}");
        }
    }
    #[test]
    fn every_suite_is_measured_in_both_libraries() {
        let costs = measure_records(Duration::ZERO).unwrap();
        assert_eq!(costs.len(), Suite::ALL.len() * PAYLOADS.len() * AeadLibrary::ALL.len());
        assert_eq!(costs.iter().filter(|cost| cost.chosen).count() * 2, costs.len());
        assert!(costs.iter().all(|cost| cost.seal_us > 0.0), "{costs:?}");
    }
}
