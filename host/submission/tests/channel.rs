//! Handshakes and frames over real sockets: pinned peers, foreign peers, silent peers.

use evergate_evidence::submission::{Hello, Refusal, RefusalCode, ToMaster, ToRecorder};
use evergate_submission::{Channel, ChannelError, ClientError, Identity, Trust, connect, server_config};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);

fn identity(name: &str) -> Identity {
    let (certificate, key) = Identity::generate(name).unwrap();
    Identity::parse(certificate.as_bytes(), key.as_bytes()).unwrap()
}

/// Master that accepts one connection and refuses its HELLO.
fn master(
    identity: Identity,
    trust: Trust,
) -> (String, std::thread::JoinHandle<Result<[u8; 32], ChannelError>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let config = server_config(&identity, &trust).unwrap();
    let thread = std::thread::spawn(move || {
        let channel = Channel::accept(listener.accept().unwrap().0, config, Duration::from_secs(2))?;
        let peer = channel.peer();
        let (sender, mut receiver) = channel.split();
        let hello = receiver.receive(LIMIT)?.unwrap();
        assert!(matches!(ToMaster::decode(&hello), Ok(ToMaster::Hello(_))));
        let refusal = Refusal { code: RefusalCode::Full, text: "full".into() };
        sender.send(&ToRecorder::Refused(refusal).to_frame())?;
        sender.close();
        Ok(peer)
    });
    (address, thread)
}

#[test]
fn refusal_arrives_with_its_code() {
    let (server, client) = (identity("master"), identity("recorder"));
    let trust = Trust::Pinned(vec![server.id()]);
    let (address, thread) = master(server, Trust::AnyKey);
    match connect(&address, &client, &trust, Hello::default(), LIMIT) {
        Err(ClientError::Refused(refusal)) => assert_eq!(refusal.code, RefusalCode::Full),
        other => panic!("{:?}", other.err()),
    }
    assert_eq!(thread.join().unwrap().unwrap(), client.id());
}

#[test]
fn foreign_master_is_refused() {
    let (server, client) = (identity("master"), identity("recorder"));
    let (address, thread) = master(server, Trust::AnyKey);
    let error =
        connect(&address, &client, &Trust::Pinned(vec![[1; 32]]), Hello::default(), LIMIT).err().unwrap();
    assert!(matches!(error, ClientError::Channel(ChannelError::Tls(_))), "{error}");
    assert!(thread.join().unwrap().is_err());
}

#[test]
fn foreign_recorder_is_refused() {
    let (server, client) = (identity("master"), identity("recorder"));
    let trust = Trust::Pinned(vec![server.id()]);
    let (address, thread) = master(server, Trust::Pinned(vec![[1; 32]]));
    assert!(connect(&address, &client, &trust, Hello::default(), LIMIT).is_err());
    assert!(matches!(thread.join().unwrap(), Err(ChannelError::Tls(_))));
}

#[test]
fn silent_peer_ends_at_the_limit() {
    let (address, thread) = master(identity("master"), Trust::AnyKey);
    let _silent = TcpStream::connect(&address).unwrap();
    assert!(matches!(thread.join().unwrap(), Err(ChannelError::Slow(_))));
}

#[test]
fn plain_text_is_refused() {
    let (address, thread) = master(identity("master"), Trust::AnyKey);
    TcpStream::connect(&address).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(thread.join().unwrap().is_err());
}

/// Authority with certificates for a name.
fn authority() -> (rcgen::CertifiedIssuer<'static, rcgen::KeyPair>, String) {
    let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let issuer =
        rcgen::CertifiedIssuer::self_signed(parameters, rcgen::KeyPair::generate().unwrap()).unwrap();
    let pem = issuer.pem();
    (issuer, pem)
}

fn issued(issuer: &rcgen::CertifiedIssuer<'static, rcgen::KeyPair>, name: &str) -> Identity {
    let key = rcgen::KeyPair::generate().unwrap();
    let parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
    let certificate = parameters.signed_by(&key, issuer).unwrap();
    Identity::parse(certificate.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap()
}

#[test]
fn authority_of_both_ends_is_enough() {
    let (issuer, pem) = authority();
    let trust = || Trust::Authorities(pem.clone().into_bytes());
    let (address, thread) = master(issued(&issuer, "127.0.0.1"), trust());
    let client = issued(&issuer, "recorder");
    let refused = connect(&address, &client, &trust(), Hello::default(), LIMIT);
    assert!(matches!(refused, Err(ClientError::Refused(_))), "{:?}", refused.err());
    assert_eq!(thread.join().unwrap().unwrap(), client.id());
}

#[test]
fn other_names_and_authorities_are_refused() {
    let (issuer, pem) = authority();
    let trust = Trust::Authorities(pem.into_bytes());
    let (address, thread) = master(issued(&issuer, "other.example"), trust.clone());
    assert!(connect(&address, &issued(&issuer, "recorder"), &trust, Hello::default(), LIMIT).is_err());
    assert!(thread.join().unwrap().is_err());
    let (address, thread) = master(issued(&issuer, "127.0.0.1"), trust.clone());
    assert!(connect(&address, &identity("recorder"), &trust, Hello::default(), LIMIT).is_err());
    assert!(thread.join().unwrap().is_err());
}
