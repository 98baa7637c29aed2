//! Audited connections of a cluster: whichever node serves, the Recorder gets secrets and requests.

use crate::raw_connection::carrier;
use crate::sessions::serve;
use crate::support::audit::{Keys, Recorder};
use crate::support::eventually;
use crate::traffic::{self, PATIENCE, Server, Transport, head};
use crate::world::{Node, World, privileged, settled};
use evergate_evidence::envelope::Envelope;
use rustls::{ClientConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

#[test]
fn node_that_continues_a_connection_feeds_its_envelope_again() {
    if !privileged() {
        return;
    }
    let mut keys = Keys::new();
    let world = World::new(3);
    let recorder = Recorder::start(&world.folder);
    std::fs::write(world.folder.path("epochs"), &keys.file).unwrap();
    let audited = "protocol = \"https\"\naudit = true";
    let config = traffic::config(&world, 3, "").replace("protocol = \"https\"", audited) + &keys.table();
    let mut nodes: Vec<Node> = (1..=3).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    serve(&world);
    let (secure, roots) = (Transport::Tls13, Arc::new(traffic::roots(&world)));
    let to = SocketAddr::new(world.family.address(), secure.port(Server::Plain));
    let mut client = world.switch.run(move || {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        StreamOwned::new(secure.client(&roots).unwrap(), stream)
    });
    ask(&mut client);
    let first = eventually("the envelope", || recorder.envelopes().pop()).1;
    let facts = Envelope::decode(&first).unwrap().aad;
    settled(&nodes);
    carrier(&mut nodes).kill();
    ask(&mut client);
    let fed = eventually("the envelope again", || {
        Some(recorder.envelopes()).filter(|envelopes| envelopes.len() == 2)
    });
    assert_eq!(fed[1].1, first, "the replica has the envelope");
    let [continued] = recorder.continuations()[..] else { panic!("{:?}", recorder.continuations()) };
    assert_eq!((continued.connection, continued.client_random), (facts.connection, facts.client_random));
    assert!(continued.to_client > (0, 0) && continued.from_client > (0, 0), "{continued:?}");
    let requests = eventually("both requests", || Some(recorder.requests()).filter(|all| all.len() == 2));
    assert!(requests.iter().enumerate().all(|(index, request)| {
        (request.index, request.client_random) == (index as u32, facts.client_random)
    }));
    assert_eq!(keys.open(&Envelope::decode(&first).unwrap()).iter().count(), 4);
}

fn ask(stream: &mut StreamOwned<ClientConnection, TcpStream>) {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
    assert!(head(stream).unwrap().starts_with("HTTP/1.1 200"));
    let mut body = [0; 2];
    stream.read_exact(&mut body).unwrap();
}
