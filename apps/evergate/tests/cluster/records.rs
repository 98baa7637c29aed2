//! The access log says of a connection that moves what each node knows of it.

use crate::line::carrier;
use crate::support::eventually;
use crate::traffic::PATIENCE;
use crate::world::{Node, World, privileged, settled};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// Lines of a node's access log.
fn lines(world: &World, number: u8) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(world.folder.path(&format!("{number}.log"))).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_tunnel_that_moves_has_a_line_at_each_of_its_nodes() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let config = world.config(&World::entries(2), "");
    let with_log = |number: u8| config.replace("access = \"off\"", &format!("access = \"{number}.log\""));
    let mut nodes: Vec<Node> = (1..=2).map(|number| world.start(number, &with_log(number))).collect();
    settled(&nodes);
    world.echo();
    let to = SocketAddr::new(world.family.address(), 8080);
    let mut client = world.switch.run(move || TcpStream::connect_timeout(&to, PATIENCE)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let client_at = client.local_addr().unwrap().to_string();
    let mut echoes = |word: &[u8; 4]| {
        client.write_all(word).unwrap();
        let mut answer = [0; 4];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, word);
    };
    echoes(b"once");
    settled(&nodes);
    let first = carrier(&mut nodes);
    assert_eq!(first.cli(&["node", "drain"]).code, Some(0));
    first.eventually("is drained", |status| status.drained);
    let moved = eventually("the first one has its line", || lines(&world, first.number).pop());
    echoes(b"more");
    drop(client);
    let ended = eventually("the second one has its line", || lines(&world, nodes[0].number).pop());
    for (line, reason, continued) in [(&moved, "moved", None), (&ended, "", Some(true))] {
        assert_eq!(line["id"], moved["id"], "{line}");
        assert_eq!((&line["client"], &line["pool"]), (&client_at.as_str().into(), &"web".into()), "{line}");
        assert_eq!((line["reason"].as_str().unwrap_or(""), line["continued"].as_bool()), (reason, continued));
        assert_eq!((&line["bytes_in"], &line["bytes_out"]), (&4.into(), &4.into()), "{line}");
    }
    assert_eq!((lines(&world, first.number).len(), lines(&world, nodes[0].number).len()), (1, 1));
}
