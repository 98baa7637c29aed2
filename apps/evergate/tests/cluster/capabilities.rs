//! Capabilities that dist/ grants to a node of a cluster. A node with exactly these, under an unprivileged user,
//! joins a cluster and continues connections of another node. With one capability less it refuses to start or reports
//! which one is missing.

use crate::support::{Process, can_run, eventually};
use crate::world::{Node, World, privileged, settled};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

const USER: &str = "65534";
const CONNECTIONS: usize = 16;

fn dist(file: &str) -> String {
    std::fs::read_to_string(format!("{}/../../dist/{file}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Values of a key in a systemd unit, one per line.
fn values(unit: &str, key: &str) -> Vec<String> {
    let of = |line: &str| Some(line.strip_prefix(key)?.strip_prefix('=')?.to_owned());
    unit.lines().filter_map(of).collect()
}

/// Capabilities of the service with its drop-in.
fn capabilities() -> BTreeSet<String> {
    let units = [dist("evergate.service"), dist("evergate-cluster.conf")];
    let of = |key: &str| -> BTreeSet<String> {
        let all: Vec<String> = units.iter().flat_map(|unit| values(unit, key)).collect();
        let names = all.iter().flat_map(|line| line.split_whitespace());
        names.map(|name| name.trim_start_matches("CAP_").to_lowercase()).collect()
    };
    let ambient = of("AmbientCapabilities");
    assert_eq!(ambient, of("CapabilityBoundingSet"), "ambient capabilities are those of the bounding set");
    ambient
}

/// `setpriv` command that grants these capabilities and no others.
fn program(capabilities: &BTreeSet<String>) -> Vec<String> {
    let list: String = capabilities.iter().map(|name| format!(",+{name}")).collect();
    let user = ["--reuid", "--regid"].map(|of| format!("{of}={USER}"));
    let sets = ["--inh-caps", "--ambient-caps", "--bounding-set"].map(|set| format!("{set}=-all{list}"));
    let fixed = ["setpriv", "--clear-groups", "--no-new-privs"].map(str::to_owned);
    fixed.into_iter().chain(user).chain(sets).collect()
}

/// Starts a node on its host as a service manager with the drop-in would.
fn start(world: &World, number: u8, config: &str, capabilities: &BTreeSet<String>) -> Process {
    let file = world.write_config(number, config).display().to_string();
    let socket = world.folder.path(&format!("node-{number}.sock")).display().to_string();
    let before: Vec<String> = values(&dist("evergate-cluster.conf"), "ExecStartPre")
        .iter()
        .map(|line| line.trim_start_matches('+').replace("-o evergate -g evergate", "-o 65534 -g 65534"))
        .collect();
    let program = program(capabilities);
    world.host(number).run(move || {
        for command in std::iter::once("chmod 0700 /sys/fs/bpf").chain(before.iter().map(String::as_str)) {
            assert!(Command::new("sh").args(["-c", command]).status().unwrap().success(), "{command}");
        }
        let program: Vec<&str> = program.iter().map(String::as_str).collect();
        let number = number.to_string();
        Process::spawn_under(&program, |command| {
            command.args([&file, "--node", &number, "--socket", &socket])
        })
    })
}

fn prepared(hosts: u8) -> Option<World> {
    if !privileged() {
        return None;
    }
    let all = program(&capabilities());
    let known = Command::new(&all[0]).args(&all[1..]).arg("true").status();
    if !can_run(known.is_ok_and(|status| status.success()), "a setpriv that knows these capabilities") {
        return None;
    }
    let world = World::new(hosts);
    // The node reads its files and creates its socket in this folder.
    assert!(
        Command::new("chmod").args(["-R", "a+rwX"]).arg(world.folder.path("")).status().unwrap().success()
    );
    Some(world)
}

#[test]
fn node_with_the_capabilities_of_the_drop_in_continues_others() {
    let Some(world) = prepared(2) else { return };
    let config = world.config(&World::entries(2), "");
    let process = start(&world, 1, &config, &capabilities());
    let bounded = Node { number: 1, process, socket: world.folder.path("node-1.sock") };
    let nodes = vec![bounded, world.start(2, &config)];
    settled(&nodes);
    world.echo();
    let to = SocketAddr::new(world.family.address(), 8080);
    let mut clients: Vec<TcpStream> = world.switch.run(move || {
        let connect = |_| TcpStream::connect_timeout(&to, Duration::from_secs(20)).unwrap();
        (0..CONNECTIONS).map(connect).collect()
    });
    let mut all_echo = |word: &[u8; 4]| {
        for client in &mut clients {
            client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            client.write_all(word).unwrap();
            let mut answer = [0; 4];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, word);
        }
    };
    all_echo(b"once");
    settled(&nodes);
    let mut nodes = nodes;
    nodes.remove(1).kill();
    settled(&nodes);
    all_echo(b"more");
    let status =
        nodes[0].eventually("continued some connections", |status| status.counts.connections_continued > 0);
    assert_eq!(status.counts.connections_lost, 0);
    let reported = nodes[0].process.lines();
    assert!(!reported.iter().any(|line| line.contains("CAP_")), "{reported:#?}");
}

#[test]
fn node_reports_a_missing_capability_by_name() {
    let Some(world) = prepared(1) else { return };
    let config = world.config(&World::entries(1), "");
    for missing in capabilities() {
        if missing == "net_bind_service" {
            continue; // needed for ports below 1024, which this configuration does not use
        }
        let mut rights = capabilities();
        rights.remove(&missing);
        let node = start(&world, 1, &config, &rights);
        let named = format!("CAP_{}", missing.to_uppercase());
        eventually(&format!("the missing {named} is reported"), || {
            node.lines().iter().any(|line| line.contains(&named)).then_some(())
        });
    }
}

#[test]
fn node_reports_all_missing_privileges_before_it_starts() {
    let Some(world) = prepared(1) else { return };
    let config = world.config(&World::entries(1), "");
    let mut rights = capabilities();
    assert!(rights.remove("net_admin") && rights.remove("net_raw"));
    let node = start(&world, 1, &config, &rights);
    let needed = ["lacks what a node of a cluster needs", "TCP_REPAIR", "Linux 4.8", "raw probes"];
    eventually("both are reported, in one line", || {
        node.lines().iter().any(|line| needed.iter().all(|part| line.contains(part))).then_some(())
    });
}
