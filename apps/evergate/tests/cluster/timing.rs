//! Times of the protocol: chosen by the machine, shown, and different on two nodes.

use crate::world::{World, privileged, settled};
use std::time::Duration;

const LONG: &str = "timing = \"virtual_machine\"";

#[test]
fn node_without_timing_chooses_by_its_machine() {
    if !privileged() {
        return;
    }
    let world = World::new(1);
    let node = world.start(1, &world.config(&World::entries(1), "").replace(LONG, ""));
    let status = node.status();
    let signs = evergate_sys::machine_signs();
    if signs.cpuid_bit {
        assert_eq!(status.timing, "virtual_machine");
        assert_eq!(status.timing_reason, "auto: hypervisor found by CPUID");
    }
    assert!(status.timing_reason.starts_with("auto: "), "{}", status.timing_reason);
    let line = format!("timing: {} ({})", status.timing, status.timing_reason);
    node.process.line_after(0, &format!("cluster: {line}"));
    let shown = node.cli(&["cluster", "status"]).out;
    let shown = shown.lines().find(|line| line.starts_with("timing:")).unwrap();
    assert_eq!(shown.split_whitespace().collect::<Vec<_>>().join(" "), line);
}

/// No split: the shorter lease counts on both, buckets keep their replicas, and both nodes warn.
#[test]
fn nodes_with_different_timing_serve_and_warn() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let config = world.config(&World::entries(2), "");
    let short = config.replace(LONG, "timing = \"bare_metal\"");
    let nodes = [world.start(1, &config), world.start(2, &short)];
    for (node, own, other) in
        [(&nodes[0], "virtual_machine", "bare_metal"), (&nodes[1], "bare_metal", "virtual_machine")]
    {
        let number = 3 - node.number;
        let line = format!("runs with timing {own} (cluster.timing), and node {number} with timing {other}");
        let (line, _) = node.process.line_after(0, &line);
        assert!(line.contains("leases last 34 ms") && line.contains("set cluster.timing"), "{line}");
        let shown = node.cli(&["cluster", "status"]).out;
        assert!(shown.contains(&format!("{own} (cluster.timing); node {number}: {other}\n")), "{shown}");
    }
    settled(&nodes);
}

/// A process that stands still loses its membership, and the log names the cause and the key.
#[test]
fn late_node_logs_why_it_lost_its_place() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let nodes = world.cluster(2, "");
    nodes[0].process.signal("STOP");
    nodes[1].eventually("takes over", |status| status.buckets.owned == 1024);
    std::thread::sleep(Duration::from_millis(200)); // as late as a starved machine
    nodes[0].process.signal("CONT");
    let (line, _) = nodes[0].process.line_after(0, "lost its membership because its threads run late");
    assert!(line.contains("the agent ran ") && line.contains("(timing virtual_machine)"), "{line}");
    assert!(line.contains("reserve CPU time"), "{line}");
}
