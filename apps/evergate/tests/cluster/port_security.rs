//! A network that drops frames of the virtual MAC, as with port security: heartbeats pass, and clients reach nothing.

use crate::world::{Node, VIRTUAL_MAC, World, privileged, settled};
use evergate::agent::status::UnreachableAddress;
use std::time::Duration;

/// Rules of the switches against frames with this MAC, on the outside network only.
fn refuse(world: &World, way: &str) {
    let rule = format!("iifname \"out*\" ether {way} {VIRTUAL_MAC} drop");
    let chain = format!("chain forward {{ type filter hook forward priority 0;\n{rule}\n}}\n");
    world.filter(&format!("table bridge security {{\n{chain}}}\n"));
}

fn found(node: &Node) -> UnreachableAddress {
    let status = node.eventually("has a fault", |status| !status.unreachable_addresses.is_empty());
    let mut all = status.unreachable_addresses;
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

#[test]
fn nodes_warn_when_no_frames_for_the_virtual_mac_arrive() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let nodes = world.cluster(2, "");
    std::thread::sleep(Duration::from_secs(12)); // longer than probes may be absent
    for node in &nodes {
        assert_eq!(node.status().unreachable_addresses, []);
        assert!(!node.process.lines().iter().any(|line| line.contains("the shared address")));
    }
    refuse(&world, "daddr");
    let mut reasons = Vec::new();
    for node in &nodes {
        let fault = found(node);
        assert_eq!((fault.network.as_str(), fault.interface.as_str()), ("outside", "out"), "{fault:?}");
        let gets_none = fault.why.contains("arrive here");
        let symptom = if gets_none { "gets no frames" } else { "gets no answer" };
        let (line, _) =
            node.process.line_after(0, &format!("{symptom} for the shared address {} on out", fault.address));
        assert!(line.contains("port security") && line.contains(VIRTUAL_MAC), "{line}");
        let shown = node.cli(&["cluster", "status"]).out;
        assert!(
            shown.contains(&format!("unreachable:   {} on out (outside): {}", fault.address, fault.why)),
            "{shown}"
        );
        assert_eq!(node.status().phase, "active");
        reasons.push(gets_none);
    }
    reasons.sort_unstable();
    assert_eq!(
        reasons,
        [false, true],
        "the node that answers for the address gets no frames, the other one no answer"
    );
    world.clear("security");
    for node in &nodes {
        node.process.line_after(0, "no longer sees a fault of the shared address");
        node.eventually("sees no fault", |status| status.unreachable_addresses.is_empty());
    }
    settled(&nodes);
}

/// What a hypervisor does to forged sources: the answers of the virtual MAC are lost, and its frames still arrive.
#[test]
fn node_warns_when_the_virtual_mac_gives_no_answer() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let nodes = world.cluster(2, "");
    refuse(&world, "saddr");
    crate::world::eventually("one node gets no answer", || {
        let lines = nodes.iter().flat_map(|node| node.process.lines());
        lines.into_iter().find(|line| line.contains("gets no answer for the shared address"))
    });
    assert!(
        !nodes.iter().any(|node| node.process.lines().iter().any(|line| line.contains("gets no frames")))
    );
}

/// Each node needs the frames, so a fault at one port shows at its node, whichever answers for the addresses.
#[test]
fn flood_mode_node_warns_about_its_own_port() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let nodes = world.cluster(3, "steering = \"flood\"");
    std::thread::sleep(Duration::from_secs(12)); // longer than probes may be absent
    let rule = format!("oifname \"out3\" ether daddr {VIRTUAL_MAC} drop");
    for node in &nodes {
        assert_eq!(node.status().unreachable_addresses, []);
    }
    let chain = format!("chain forward {{ type filter hook forward priority 0;\n{rule}\n}}\n");
    world.filter(&format!("table bridge security {{\n{chain}}}\n"));
    assert!(found(&nodes[2]).why.contains("arrive here"));
    nodes[2].process.line_after(0, "gets no frames for the shared address");
}
