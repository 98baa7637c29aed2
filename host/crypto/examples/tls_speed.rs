//! Prints what the record layer and the server's handshake cost: sizes, GB/s and microseconds on one core.
//!
//! Run with `cargo run --release -p evergate-crypto --example tls_speed`.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use evergate_crypto::{
    ClientSettings, ServerSettings, TicketHandle, TicketKeys, Verify, client_config, load_certificate,
    self_signed, server_config, warm_up,
};
use evergate_tls::{
    ClientHandshake, ContentType, Finished, Handshake, HandshakeError, HandshakeParams, Opened, PAYLOAD_MAX,
    Progress, Records, RecordsState,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ServerConfig};

const ROUNDS: u32 = 20_000;
const HANDSHAKES: u32 = 1_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    warm_up();
    println!("Handshake {} B before its ClientHello", size_of::<Handshake>());
    println!("rustls server connection {} B", size_of::<rustls::server::UnbufferedServerConnection>());
    println!("AEAD context {} B each, two per connection", size_of::<aws_lc_sys::EVP_AEAD_CTX>());
    for (name, first, secret) in [
        ("tls 1.3 aes-128-gcm", 0x11, 32),
        ("tls 1.3 aes-256-gcm", 0x15, 48),
        ("tls 1.3 chacha20", 0x19, 32),
        ("tls 1.2 aes-128-gcm", 0x10, 28),
    ] {
        records(name, first, secret)?;
    }
    let (chain, key) = self_signed(&["localhost".to_owned()])?;
    let certificate = load_certificate(chain.as_bytes(), key.as_bytes())?;
    let roots = certificate.key.cert.clone();
    let server = server_config(ServerSettings {
        certificates: vec![certificate],
        tickets: Some(TicketHandle::new(TicketKeys::random(0))),
        ..ServerSettings::default()
    })?;
    let client = client_config(ClientSettings { verify: Verify::Roots(roots), ..ClientSettings::default() })?;
    for name in ["full", "resumed"] {
        let params = params();
        let (mut finished, server_finished, bytes) = connect(&server, &client, &params)?;
        let mut rest = std::mem::take(&mut finished.leftover);
        finished.records.open(&mut rest)?; // reads the tickets
        let start = Instant::now();
        for _ in 0..HANDSHAKES {
            let mut handshake = Handshake::new(&server, &params)?;
            let mut out = Vec::new();
            handshake.handle_input(&bytes, &mut out)?;
            black_box(handshake.finish()?);
        }
        let us = start.elapsed().as_secs_f64() * 1e6 / f64::from(HANDSHAKES);
        let facts = server_finished.facts;
        println!(
            "handshake {name} (resumed {}), {} {:?}: {us:.1} us",
            facts.resumed, facts.suite, facts.group
        );
    }
    Ok(())
}

fn records(name: &str, first: u8, secret: usize) -> Result<(), Box<dyn std::error::Error>> {
    let end = |role: u8, tx: u8, rx: u8| {
        let mut bytes = vec![first | role << 1];
        for fill in [tx, rx] {
            bytes.extend(std::iter::repeat_n(fill, secret));
            bytes.extend_from_slice(&[0, 0]);
        }
        RecordsState::decode(&bytes).and_then(|state| Records::import(&state))
    };
    let (mut server, mut client) = (end(0, 1, 2)?, end(1, 2, 1)?);
    let layout = server.layout();
    let mut slot = vec![7; layout.header + PAYLOAD_MAX + layout.trailer];
    let start = Instant::now();
    for _ in 0..ROUNDS {
        server.seal(ContentType::ApplicationData, &mut slot)?;
    }
    let seal = start.elapsed();
    server.seek_tx(client.rx())?;
    // Opening destroys the record, so each round seals again; the time of sealing is subtracted.
    let start = Instant::now();
    for _ in 0..ROUNDS {
        server.seal(ContentType::ApplicationData, &mut slot)?;
        match client.open(&mut slot)? {
            Opened::Data(range) => black_box(range),
            other => return Err(format!("{other:?}").into()),
        };
    }
    let open = start.elapsed().saturating_sub(seal);
    let gb = f64::from(ROUNDS) * PAYLOAD_MAX as f64 / 1e9;
    println!("{name}: seal {:.2} GB/s, open {:.2} GB/s", gb / seal.as_secs_f64(), gb / open.as_secs_f64());
    Ok(())
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

/// Connects both ends; also returns the client's bytes.
fn connect(
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
    params: &HandshakeParams,
) -> Result<(Finished, Finished, Vec<u8>), HandshakeError> {
    let name = ServerName::from(std::net::IpAddr::from([127, 0, 0, 1]));
    let name = ServerName::try_from("localhost").unwrap_or(name);
    let mut client = ClientHandshake::new(client, name)?;
    let mut server = Handshake::new(server, params)?;
    let (mut up, mut down, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    client.start(&mut up)?;
    loop {
        let progress = server.handle_input(&up, &mut down)?;
        bytes.append(&mut up);
        client.handle_input(&std::mem::take(&mut down), &mut up)?;
        if progress == Progress::Done {
            return Ok((client.finish()?, server.finish()?, bytes));
        }
    }
}
