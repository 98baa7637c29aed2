//! A new program on every node, one after the other, as docs/operating.md says: nothing breaks.

use crate::traffic::{self, Traffic};
use crate::world::{World, privileged, settled};

#[test]
fn every_process_is_replaced_one_after_the_other_and_no_transfer_breaks() {
    if !privileged() {
        return;
    }
    let world = World::new(3);
    let (mut nodes, config) = traffic::three(&world);
    let traffic = Traffic::start(&world, &traffic::PLAIN);
    traffic.silences();
    for number in 1..=3 {
        let mut old = nodes.remove(usize::from(number) - 1);
        let before = old.process.id();
        assert_eq!(old.cli(&["node", "drain"]).code, Some(0));
        old.eventually("is drained", |status| status.drained);
        traffic.goes_on("without the drained node");
        old.process.signal("TERM");
        assert!(old.process.wait().success(), "{:#?}", old.process.lines());
        let new = world.start(number, &config);
        assert_ne!(new.process.id(), before);
        nodes.insert(usize::from(number) - 1, new);
        settled(&nodes);
        traffic.goes_on("with the new process");
    }
    let silences = traffic.silences();
    println!("longest silences {silences:?}");
    for status in settled(&nodes) {
        assert_eq!(status.counts.connections_lost + status.counts.take_overs, 0, "{:?}", status.counts);
    }
    traffic.end();
}

#[test]
fn a_node_of_a_cluster_says_how_it_is_upgraded() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    let nodes = world.cluster(2, "");
    let output = nodes[0].cli(&["upgrade"]);
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.err.contains("`evergate node drain`"), "{output:?}");
    settled(&nodes);
}
