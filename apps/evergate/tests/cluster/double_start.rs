//! Processes that must not serve: a second process of a running node, and one whose interfaces contradict its file.

use crate::world::{World, evergate, privileged};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Sends four bytes to the echo server; whether they come back.
fn echoed(stream: &mut TcpStream, word: &[u8; 4]) -> bool {
    let mut answer = [0; 4];
    stream.write_all(word).is_ok() && stream.read_exact(&mut answer).is_ok() && answer == *word
}

#[test]
fn second_process_is_refused_and_connections_continue() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let nodes = world.cluster(2, "");
    world.echo();
    let to = SocketAddr::new(world.family.address(), 8080);
    let connect = move || {
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(10)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream
    };
    let mut open = world.switch.run(connect);
    assert!(echoed(&mut open, b"once"));
    for node in &nodes {
        let file = world.folder.path(&format!("node-{}.toml", node.number)).display().to_string();
        let number = node.number.to_string();
        let output = world
            .host(node.number)
            .run(move || evergate(&["run", &file, "--node", &number, "--socket", "/nonexistent/admin.sock"]));
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(output.err.contains("does it not run already?"), "{output:?}");
    }
    assert!(echoed(&mut open, b"more"));
    assert!(echoed(&mut world.switch.run(connect), b"back"));
    for node in &nodes {
        assert_eq!(node.status().phase, "active");
    }
}

#[test]
fn interchanged_interfaces_are_reported_before_any_change() {
    if !privileged() {
        return;
    }
    let world = World::new(1);
    let config = world.config(&World::entries(1), "");
    let swapped = config
        .replace("inside_interface = \"in\"", "inside_interface = \"out\"")
        .replace("outside_interface = \"out\"", "outside_interface = \"in\"");
    let file = world.write_config(1, &swapped).display().to_string();
    let output = world
        .host(1)
        .run(move || evergate(&["run", &file, "--node", "1", "--socket", "/nonexistent/admin.sock"]));
    assert_eq!(output.code, Some(1), "{output:?}");
    let reported = output.err;
    assert!(
        reported.contains("is an address of in, and not of out") && reported.contains("interchanged"),
        "{reported}"
    );
}
