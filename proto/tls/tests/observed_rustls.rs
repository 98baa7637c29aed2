//! Observed handshakes of `rustls` with itself: a server that renews tickets, and a hello with post-quantum key shares.

use std::sync::Arc;

use evergate_base::Micros;
use evergate_base::session::SessionHasher;
use evergate_tls::{
    ClientHello, HelloScan, HelloStatus, Observation, SessionObserver, SessionOffer, hello_message,
};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider, kx_group};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion,
};

const CERTIFICATE: &[u8] = include_bytes!("../../../fuzz/fixture/localhost.pem");
const KEY: &[u8] = include_bytes!("../../../fuzz/fixture/localhost.key.pem");

fn certificate() -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(CERTIFICATE).unwrap()
}

fn provider() -> Arc<CryptoProvider> {
    let kx_groups = vec![kx_group::X25519MLKEM768, kx_group::X25519];
    Arc::new(CryptoProvider { kx_groups, ..default_provider() })
}

fn server_config(tickets: bool) -> Arc<ServerConfig> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate()], PrivateKeyDer::from_pem_slice(KEY).unwrap())
        .unwrap();
    if tickets {
        config.ticketer = Ticketer::new().unwrap();
    }
    Arc::new(config)
}

fn client_config(version: &'static SupportedProtocolVersion) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate()).unwrap();
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// Relays a whole handshake in pieces of `size` bytes. Returns the client's offer, the length of its hello, and the
/// observations.
fn relay(
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
    size: usize,
) -> (SessionOffer, usize, Vec<Observation>) {
    let hasher = SessionHasher::new([7, 9]);
    let mut client =
        ClientConnection::new(client.clone(), ServerName::try_from("localhost").unwrap()).unwrap();
    let mut server = ServerConnection::new(server.clone()).unwrap();
    let mut hello = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut hello).unwrap();
    }
    let mut scan = HelloScan::new(16 << 10);
    let complete = (1..=hello.len()).find(|&len| scan.advance(&hello[..len]) != HelloStatus::Partial);
    assert_eq!(complete, Some(hello.len()));
    let message = hello_message(&hello).unwrap();
    let read = ClientHello::read(&message).unwrap();
    assert_eq!((read.check(), read.server_name().as_deref()), (Ok(()), Some("localhost")));
    let mut observer = SessionObserver::new(&read, hasher, Micros(0));
    server.read_tls(&mut &hello[..]).unwrap();
    server.process_new_packets().unwrap();
    let mut observations = Vec::new();
    while server.wants_write() || client.wants_write() {
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        for piece in bytes.chunks(size) {
            observations.extend(observer.handle_server(piece, Micros(1)));
            client.read_tls(&mut &piece[..]).unwrap();
            client.process_new_packets().unwrap();
        }
        bytes.clear();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        for piece in bytes.chunks(size) {
            observations.extend(observer.handle_client(piece, Micros(2)));
            server.read_tls(&mut &piece[..]).unwrap();
            server.process_new_packets().unwrap();
        }
    }
    assert!(!client.is_handshaking() && !server.is_handshaking() && observer.is_done());
    (SessionOffer::new(&read, &hasher), hello.len(), observations)
}

#[test]
fn renewed_ticket_is_found_at_the_next_connection() {
    for size in [1, 9, 5000] {
        let (client, server) = (client_config(&rustls::version::TLS12), server_config(true));
        let (offer, _, observations) = relay(&client, &server, size);
        let [Observation::Full(first)] = observations[..] else { panic!("{observations:?}") };
        assert!(offer.is_empty() && !offer.is_certain());
        let mut known = first.made.unwrap();
        for _ in 0..3 {
            let (offer, _, observations) = relay(&client, &server, size);
            let [Observation::Resumed(next)] = observations[..] else { panic!("{observations:?}") };
            assert!(offer.is_certain());
            assert_eq!(offer.hashes().collect::<Vec<_>>(), [known.hash]);
            assert_eq!(next.reused, Some(known.hash));
            assert_ne!(next.made.unwrap().hash, known.hash);
            known = next.made.unwrap();
        }
    }
}

#[test]
fn session_id_is_found_at_the_next_connection() {
    for size in [1, 9, 5000] {
        let (client, server) = (client_config(&rustls::version::TLS12), server_config(false));
        let (_, _, observations) = relay(&client, &server, size);
        let [Observation::Full(first)] = observations[..] else { panic!("{observations:?}") };
        let (offer, _, observations) = relay(&client, &server, size);
        let [Observation::Resumed(next)] = observations[..] else { panic!("{observations:?}") };
        assert_eq!(offer.hashes().collect::<Vec<_>>(), [first.made.unwrap().hash]);
        assert_eq!((next.reused, next.made), (Some(first.made.unwrap().hash), None));
    }
}

#[test]
fn post_quantum_hello_is_observed_in_any_pieces() {
    for size in [1, 9, 5000] {
        let (client, server) = (client_config(&rustls::version::TLS13), server_config(true));
        let (_, len, observations) = relay(&client, &server, size);
        assert!(len > 1300, "{len} bytes");
        assert!(matches!(observations[..], [Observation::Full(_)]), "{observations:?}");
        let (offer, _, observations) = relay(&client, &server, size);
        let [Observation::Resumed(next)] = observations[..] else { panic!("{observations:?}") };
        assert_eq!(next.reused, offer.hashes().next());
        assert!(next.reused.is_some());
    }
}
