//! Passthrough connections, with a failover or an upgrade at every step.

use crate::exhaustive::{everywhere, tunnel};
use crate::harness::setup::client_hello;
use crate::scenario::{Act, Scenario, Step, Wire, config};
use crate::world::reference;
use evergate_connection::Scratch;

/// A tunnel that begins with a hello for this host, in records of so many bytes.
pub(crate) fn greeted(host: &str, record: usize, server_ends_after: Option<usize>) -> Scenario {
    let mut scenario = tunnel(Wire::Plain, false, server_ends_after);
    let hello = client_hello(host, &["h2", "http/1.1"], record);
    scenario.steps.insert(0, Step { act: Act::Send(hello), waits: true });
    scenario.steps.retain(|step| !matches!(step.act, Act::KeyUpdate(_)));
    scenario.greets = true;
    scenario
}

/// A client whose hello ends the connection.
pub(crate) fn refused(bytes: Vec<u8>) -> Scenario {
    let mut scenario = tunnel(Wire::Plain, false, None);
    scenario.steps =
        vec![Step { act: Act::Send(bytes), waits: true }, Step { act: Act::Close, waits: false }];
    scenario.greets = true;
    scenario
}

#[test]
fn greeted_tunnels_survive_at_every_step() {
    for record in [16_384, 40] {
        everywhere(&greeted("a.example", record, None));
        everywhere(&greeted("", record, None));
        everywhere(&greeted("a.example", record, Some(300)));
    }
}

#[test]
fn hello_in_two_sends_survives_at_every_step() {
    let mut scenario = greeted("a.example", 16_384, None);
    let Act::Send(hello) = &mut scenario.steps[0].act else { panic!("it begins with a hello") };
    let rest = hello.split_off(20);
    scenario.steps.insert(1, Step { act: Act::Send(rest), waits: false });
    everywhere(&scenario);
}

#[test]
fn refused_hellos_end_alike_at_every_step() {
    let mut twice = client_hello("a.example", &[], 16_384);
    twice[5] = 2; // a ServerHello
    let cases: [(Vec<u8>, &[u8], bool); 5] = [
        (client_hello("alert.example", &[], 100), &[21, 3, 3, 0, 2, 2, 49], false),
        (client_hello("reset.example", &[], 100), b"", true),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), b"HTTP/1.1 400 ", false),
        (b"\x80\x2e\x01\x03\x01 no TLS of today".to_vec(), &[21, 3, 3, 0, 2, 2], false),
        (twice, &[21, 3, 3, 0, 2, 2, 10], false),
    ];
    for (bytes, answer, aborted) in cases {
        let scenario = refused(bytes);
        let (_, outcome) = reference(&scenario, &config(Wire::Plain), &mut Scratch::new());
        assert!(outcome.client.starts_with(answer), "{:?} to {scenario:?}", outcome.client);
        assert_eq!((outcome.aborted, outcome.servers.len()), (aborted, 0), "{scenario:?}");
        everywhere(&scenario);
    }
}
