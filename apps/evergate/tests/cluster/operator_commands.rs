//! Commands of an operator to a node.

use crate::support::{DEADLINE, Process};
use crate::traffic::{self, Traffic};
use crate::world::{World, privileged, settled};
use std::os::unix::net::UnixDatagram;

#[test]
fn drained_node_yields_its_buckets_until_undrain() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let nodes = world.cluster(2, "");
    assert_eq!(nodes[0].healthz(), (200, "ok\n".to_owned()));
    let output = nodes[0].cli(&["node", "drain", "--wait", "60"]);
    assert!(output.code == Some(0) && output.out.contains("node 1 is drained"), "{output:?}");
    let drained = nodes[0].status();
    assert!(drained.draining && drained.drained && drained.buckets.owned == 0, "{drained:?}");
    let never = nodes[0].cli(&["cluster", "wait"]);
    assert!(never.code == Some(1) && never.err.contains("`evergate node undrain`"), "{never:?}");
    let other = nodes[1].eventually("has everything", |status| status.buckets.owned == 1024);
    assert!(other.counts.handoffs > 0 && other.counts.failovers == 0, "{:?}", other.counts);
    assert_eq!(other.counts.state_dropped + drained.counts.state_dropped, 0);

    assert_eq!(nodes[0].healthz(), (503, "draining\n".to_owned()));
    assert_eq!(nodes[0].cli(&["node", "undrain"]).code, Some(0));
    nodes[0].eventually("owns buckets again", |status| !status.draining && status.buckets.owned > 0);
    assert_eq!(nodes[0].healthz().0, 200);
    let waited = nodes[0].cli(&["cluster", "wait", "--json"]);
    assert!(
        waited.code == Some(0) && waited.out.contains("each of its buckets has its replicas"),
        "{waited:?}"
    );
    let status = nodes[0].status();
    assert_eq!((status.buckets.without_backup, status.buckets.catching_up), (0, 0), "{status:?}");
}

#[test]
fn cluster_wait_reports_a_node_of_weight_zero() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let config = |more: &str| world.config(&World::entries(3), more);
    let others = [1, 2].map(|number| world.start(number, &config("")));
    settled(&others);
    let node = world.start(3, &config("weight = 0"));
    let waited = node.cli(&["cluster", "wait", "--timeout", "20"]);
    assert!(waited.code == Some(0) && waited.out.contains("its weight is 0"), "{waited:?}");
}

/// Typical host firewall. The kernel's connection tracking is outdated when a connection returns to this host.
const FIREWALL: &str = "table inet fw { chain input { type filter hook input priority 0;
    ct state established,related accept; iif lo accept; ct state invalid counter drop;\n}\n}\n";

#[test]
fn connections_return_to_a_host_that_drops_invalid_packets() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let config = traffic::config(&world, 2, "");
    let nodes: Vec<_> = (1..=2).map(|number| world.start(number, &config)).collect();
    settled(&nodes);
    for number in 1..=2 {
        world.firewall(number, FIREWALL); // also on a host where the firewall starts after the node
    }
    let traffic = Traffic::start(&world, &traffic::PLAIN);
    for round in ["first", "second"] {
        traffic.continues("before");
        for node in &nodes {
            assert_eq!(node.cli(&["node", "drain", "--wait", "60"]).code, Some(0), "{round}");
            traffic.continues("while they are at the other node");
            assert_eq!(node.cli(&["node", "undrain"]).code, Some(0), "{round}");
            node.eventually("has buckets again", |status| status.buckets.owned > 0);
            settled(&nodes);
        }
    }
    traffic.continues("afterwards");
    traffic.end();
}

#[test]
fn drained_node_that_fails_over_reports_its_buckets() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let mut nodes = world.cluster(2, "");
    assert_eq!(nodes[0].cli(&["node", "drain"]).code, Some(0));
    nodes[0].eventually("is drained", |status| status.drained);
    nodes.remove(1).kill();
    let alone = nodes[0].eventually("owns all buckets", |status| status.buckets.owned == 1024);
    assert!(alone.draining && !alone.drained, "{alone:?}");
    let again = nodes[0].cli(&["node", "drain"]);
    assert!(again.code == Some(0) && again.out.contains("as soon as a node accepts them"), "{again:?}");
    let waited = nodes[0].cli(&["node", "drain", "--wait", "1"]);
    assert!(waited.code == Some(1) && waited.err.contains("1024 buckets, and no other node"), "{waited:?}");
    assert_eq!(nodes[0].cli(&["node", "undrain"]).code, Some(0));
    let waited = nodes[0].cli(&["cluster", "wait", "--timeout", "3"]);
    assert!(waited.code == Some(1) && waited.err.contains("1024 buckets are without a backup"), "{waited:?}");
    assert!(waited.err.contains("--without-backup"), "{waited:?}");
    let waited = nodes[0].cli(&["cluster", "wait", "--without-backup"]);
    assert!(waited.code == Some(0) && waited.out.contains("serves alone"), "{waited:?}");
}

#[test]
fn cluster_wait_succeeds_for_the_only_node_of_a_configuration() {
    if !privileged() {
        return;
    }
    let world = World::new(1);
    let node = world.start(1, &world.config(&World::entries(1), ""));
    let waited = node.cli(&["cluster", "wait", "--timeout", "20"]);
    assert!(waited.code == Some(0) && waited.out.contains("serves alone"), "{waited:?}");
}

#[test]
fn node_that_leaves_is_replaced_at_once_and_stays_out() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let mut nodes = world.cluster(2, "");
    let leaver = nodes.remove(0);
    assert_eq!(leaver.cli(&["node", "leave"]).code, Some(0));
    leaver.eventually("has left", |status| status.phase == "left" && status.view.is_none());
    let rest = settled(&nodes).remove(0);
    assert_eq!(rest.view.unwrap().members, [2]);
    assert_eq!(rest.counts.failovers, 1);
    nodes[0].process.line_after(0, "nodes 2; node 1 has left");
    assert_eq!(leaver.status().phase, "left");
    assert_eq!(leaver.healthz(), (503, "left\n".to_owned()));
    for order in ["drain", "undrain", "leave"] {
        let refused = leaver.cli(&["node", order]);
        assert!(refused.code == Some(1) && refused.err.contains("has left"), "{refused:?}");
    }
    let lines = leaver.process.lines();
    assert!(!lines.iter().any(|line| line.contains("lost its membership")), "{lines:#?}");
}

#[test]
fn stopping_node_hands_off_its_buckets_first() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let mut nodes = world.cluster(2, "");
    let mut stopped = nodes.remove(0);
    stopped.process.signal("TERM");
    assert!(stopped.process.wait().success());
    let rest = settled(&nodes).remove(0);
    assert!(rest.counts.handoffs > 0, "{:?}", rest.counts);
    let lines = stopped.process.lines();
    assert!(lines.iter().any(|line| line.contains("is drained")), "{lines:#?}");
}

#[test]
fn nodes_that_all_stop_do_not_wait_for_a_handoff_target() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let mut nodes = world.cluster(2, "");
    nodes.iter().for_each(|node| node.process.signal("TERM"));
    for node in &mut nodes {
        assert!(node.process.wait().success());
        let lines = node.process.lines();
        assert!(!lines.iter().any(|line| line.contains("too long")), "{lines:#?}");
    }
}

#[test]
fn node_commands_without_a_cluster_report_its_absence() {
    let folder = crate::world::Folder::new();
    let config = "[node]\nworkers = 1\n[logs]\naccess = \"off\"\n[admin]\nsocket = \"admin.sock\"\n\
        [[listeners]]\nname = \"in\"\naddress = \"127.0.0.1:1\"\nprotocol = \"http\"\nredirect_to_https = true\n";
    let file = folder.write(
        "evergate.toml",
        &config.replace("127.0.0.1:1", &crate::support::Port::new().address().to_string()),
    );
    let process = crate::support::Process::start(|command| command.arg(&file));
    let socket = folder.path("admin.sock");
    let verbs = ["cluster status", "cluster wait", "node drain", "node undrain", "node leave"];
    for verb in verbs.map(|verb| verb.split(' ').collect::<Vec<_>>()) {
        let output = crate::world::evergate(&[verb[0], verb[1], "--socket", socket.to_str().unwrap()]);
        assert_eq!(output.code, Some(1), "{output:?}");
        assert!(output.err.contains("not part of a cluster"), "{output:?}");
    }
    drop(process);
    let output = crate::world::evergate(&["run", file.to_str().unwrap(), "--node", "1"]);
    assert_eq!(output.code, Some(2), "{output:?}");
    assert!(output.err.contains("there is no `[cluster]`"), "{output:?}");
}

/// Status text by sd_notify(3), which `systemctl status` shows.
#[test]
fn service_manager_receives_the_phase_of_the_node() {
    if !privileged() {
        return;
    }
    let world = World::new(1);
    let file = world.write_config(1, &world.config(&World::entries(1), ""));
    let path = world.folder.path("notify.sock");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(DEADLINE)).unwrap();
    let next = || {
        let mut buffer = [0; 512];
        let length = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    let process = world.host(1).run(move || {
        Process::start(|command| command.arg(&file).args(["--node", "1"]).env("NOTIFY_SOCKET", &path))
    });
    let ready = next();
    assert!(ready.starts_with("READY=1\nSTATUS=1 listener on 2 workers"), "{ready}");
    let phase = |reported: &str| reported.rsplit("; in its cluster: ").next().unwrap().trim().to_owned();
    let mut reported = vec![phase(&ready)];
    while reported.last().unwrap() != "active" {
        reported.push(phase(&next()));
    }
    assert_eq!(reported.first().unwrap(), "listening", "{reported:?}");
    drop(process);
}
