//! Replication channels whose other end vanishes without FIN or RST.

use crate::world::{World, eventually, privileged, settled};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

/// The dead node's kernel has acknowledged all bytes, so this node retransmits nothing, and the RST is lost.
#[test]
fn channel_without_answers_is_replaced() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    world.host(2).sysctl("net.ipv4.tcp_orphan_retries", "1").unwrap();
    let mute = "ip saddr 10.71.0.2 tcp sport 7401-7402";
    world.filter(&format!(
        "table bridge silence {{\nchain forward {{\ntype filter hook forward priority 0;\n{mute} ip length > 80 drop\n\
         {mute} tcp flags & (fin | rst) != 0 drop\n}}\n}}\n"
    ));
    let config = world.config(&World::entries(2), "");
    let first = world.start(1, &config);
    first.eventually("is alone", |status| status.buckets.owned == 1024);
    let second = world.start(2, &config);
    first.eventually("copies", |status| status.buckets.syncing > 0);
    second.kill();
    first.eventually("has no backup", |status| status.buckets.syncing == 0);
    // The kernel answers for the dead process until its sockets are gone.
    eventually("nothing is left of the dead process", || {
        let left =
            world.host(2).run(|| Command::new("ss").args(["-tanH", "sport >= :7401"]).output().unwrap());
        (left.status.success() && !String::from_utf8_lossy(&left.stdout).contains(":740")).then_some(())
    });
    world.switch.run(|| assert!(Command::new("nft").args(["flush", "ruleset"]).status().unwrap().success()));
    let second = world.start(2, &config);
    settled(&[first, second]);
}

/// Requests that no server has yet are replicated whole. Here they exceed the queue towards one backup.
#[test]
fn backup_receives_more_than_its_channel_may_queue() {
    const CLIENTS: usize = 170;
    const SENT: usize = 480_000;
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let rule = "[[rules]]\nname = \"late\"\nwhen = 'json(\"/last\") == \"x\"'\ndeny = 403\n";
    let config = world
        .config(&World::entries(2), "")
        .replace("workers = 2", "workers = 1")
        .replace("protocol = \"tcp\"", "protocol = \"http\"\nlimits = { body_prefix_bytes = 490000 }");
    let config = format!("{rule}{config}");
    let first = world.start(1, &config);
    first.eventually("is alone", |status| status.buckets.owned == 1024);
    let at = SocketAddr::new(world.family.address(), 8080);
    let clients: Vec<TcpStream> = world.switch.run(move || {
        let client = |_| {
            let mut client = TcpStream::connect(at).unwrap();
            let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
                        Content-Length: 1500000\r\n\r\n";
            client.write_all(format!("{head}[{}", " ".repeat(SENT)).as_bytes()).unwrap();
            client
        };
        (0..CLIENTS).map(client).collect()
    });
    eventually("all of it is acknowledged, and thus replicated", || {
        let sockets = world.switch.run(|| {
            Command::new("ss").args(["-tnH", "state", "established", "dport = :8080"]).output().unwrap()
        });
        let text = String::from_utf8_lossy(&sockets.stdout).into_owned();
        let waits = |line: &str| line.split_whitespace().nth(1) != Some("0");
        (text.lines().count() == CLIENTS && !text.lines().any(waits)).then_some(())
    });
    let second = world.start(2, &config);
    let nodes = [first, second];
    for status in settled(&nodes) {
        assert_eq!(status.counts.channels_lost, 0, "{:?}", status.counts);
    }
    drop(clients);
}
