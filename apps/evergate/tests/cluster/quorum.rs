//! Who may go on: the larger part of three nodes by majority, one of two with a witness; and nobody where nobody can know.

use crate::line::{Line, carrier, prepare, prepare_in};
use crate::world::{Node, World, inside, outside, privileged, settled};
use evergate::agent::status::ClusterStatus;
use std::net::IpAddr;

const MAJORITY: &str = "mode = \"majority\"";

fn stops(node: &Node) {
    node.eventually("does not serve", |status| status.phase != "active");
}

/// Nobody answers, on this connection or a new one.
fn no_answer(world: &World, line: &mut Line, when: &str) {
    line.is_silent(when);
    assert!(Line::open(world).is_err(), "{when}: a new connection was answered");
}

/// As people call it.
fn network_of(net: &str) -> &'static str {
    if net == "in" { "inside" } else { "outside" }
}

/// It says which network it is cut off, in all the ways that there are, and does not say that it joins soon.
fn reports_what_it_lacks(node: &Node, net: &str, why: &str) {
    let network = network_of(net);
    node.eventually("is cut off", |status| {
        let reported =
            status.cut_off.as_ref().is_some_and(|lost| lost.network == network && lost.why.contains(why));
        reported && status.rejoin_delay_ms.is_none()
    });
    let shown = node.cli(&["cluster", "status"]).out;
    assert!(shown.contains(&format!("cut off:       the {network} network: {why}")), "{shown}");
    let line = format!("is cut off the {network} network: {why}");
    node.process.line_after(0, &line);
    let reported = node.process.lines();
    assert!(!reported.iter().any(|line| line.contains("joins them in")), "{reported:#?}");
}

fn plug(world: &World, number: u8, nets: &[&str], state: &str) {
    for net in nets {
        world.switch.ip(&format!("link set {net}{number} {state}")).unwrap();
    }
}

#[test]
fn two_of_three_go_on_by_majority_and_the_last_one_stops() {
    if !privileged() {
        return;
    }
    let (world, mut nodes, config, _ends) = prepare(3, MAJORITY);
    let mut line = Line::open(&world).unwrap();
    line.continues("three nodes");
    let first = carrier(&mut nodes);
    let number = first.number;
    first.kill();
    line.continues("two nodes of three");
    settled(&nodes);

    carrier(&mut nodes).kill();
    stops(&nodes[0]);
    no_answer(&world, &mut line, "one node of three");

    // With another node there is a majority again; what only one remembers is given up.
    let at = if number < nodes[0].number { 0 } else { 1 };
    nodes.insert(at, world.start(number, &config));
    settled(&nodes);
    Line::open(&world).unwrap().continues("two nodes again");
}

/// Two of three are left, and one of them has lost a cable: it votes for the other one, which has everything.
#[test]
fn a_cut_off_node_votes_for_the_one_that_is_whole() {
    if !privileged() {
        return;
    }
    for net in ["in", "out"] {
        let (world, mut nodes, _config, _ends) = prepare(3, MAJORITY);
        let mut line = Line::open(&world).unwrap();
        line.continues("three nodes");
        let lonely = carrier(&mut nodes);
        nodes.remove(0).kill();
        let whole = nodes.remove(0);
        whole.process.line_after(0, "hears 2 of 3 nodes, itself included, and a majority is no less");
        let two = |status: &ClusterStatus| status.buckets.without_backup == 0 && status.buckets.syncing == 0;
        whole.eventually("has copies at the other one", two);
        lonely.eventually("has copies at the other one", two);

        plug(&world, lonely.number, &[net], "down");
        whole.eventually("has everything", |status| status.buckets.owned == 1024);
        line.continues("the whole one");
        let lives = |node: &Node| node.status().counts.state_dropped;
        reports_what_it_lacks(&lonely, net, "its card has no carrier");
        let network = network_of(net);
        let of_lonely = |status: &ClusterStatus| status.nodes[usize::from(lonely.number) - 1].lost.clone();
        whole.eventually("tells what the other one lacks", |status| of_lonely(status) == [network]);
        let shown = whole.cli(&["cluster", "status"]).out;
        assert!(shown.contains(" (down there)"), "{shown}");
        let before = (lives(&whole), lives(&lonely));
        assert_eq!(before, (0, 1), "only the one that is cut off gave its state up");
        for _ in 0..20 {
            Line::open(&world).unwrap().continues("the whole one and a vote");
            line.continues("the whole one and a vote");
        }
        assert_eq!((lives(&whole), lives(&lonely)), before);
        plug(&world, lonely.number, &[net], "up");
        lonely.eventually("has its share again", |status| status.buckets.owned > 400);
        assert!(of_lonely(&whole.status()).is_empty());
        line.continues("two whole ones");
    }
}

#[test]
fn who_is_needed_for_a_majority_says_so_before_it_goes_and_a_fenced_node_stops_at_once() {
    if !privileged() {
        return;
    }
    let (_world, mut nodes, _config, _ends) = prepare(3, MAJORITY);
    nodes.remove(0).kill();
    settled(&nodes);
    let why = "only 1 of 3 nodes would be left, of which 2 are needed";
    let reported = nodes[0].cli(&["node", "drain"]);
    assert!(reported.code == Some(0) && reported.out.contains(why), "{reported:?}");
    let waited = nodes[0].cli(&["node", "drain", "--wait", "30"]);
    assert!(waited.code == Some(1) && waited.err.contains(&format!("is drained, but {why}")), "{waited:?}");

    nodes.remove(0).kill();
    let mut last = nodes.remove(0);
    last.process
        .line_after(0, "is still fenced: it hears 1 of 3 nodes, itself included, and a majority is 2");
    assert!(last.cli(&["cluster", "status"]).out.contains("majority:      1 of 3 nodes heard"));
    last.process.signal("TERM");
    assert!(last.process.wait().success());
    let reported = last.process.lines();
    assert!(!reported.iter().any(|line| line.contains("draining took too long")), "{reported:#?}");
}

#[test]
fn the_larger_part_goes_on_by_majority_and_the_smaller_one_stops() {
    if !privileged() {
        return;
    }
    for nets in [&["in"][..], &["in", "out"]] {
        let (world, mut nodes, _config, _ends) = prepare(3, MAJORITY);
        let mut line = Line::open(&world).unwrap();
        line.continues("three nodes");
        let lonely = carrier(&mut nodes);
        plug(&world, lonely.number, nets, "down");
        stops(&lonely);
        line.continues("the larger part");
        settled(&nodes);
        assert_ne!(lonely.status().phase, "active");

        plug(&world, lonely.number, nets, "up");
        nodes.push(lonely);
        nodes.sort_by_key(|node| node.number);
        settled(&nodes);
        line.continues("together again");
    }
}

#[test]
fn one_of_two_goes_on_with_a_witness_and_stops_without() {
    if !privileged() {
        return;
    }
    let (world, mut nodes, _config, _ends) = prepare(2, "");
    let mut line = Line::open(&world).unwrap();
    line.continues("two nodes");
    // Cut off everything, the witness too.
    let lonely = carrier(&mut nodes);
    plug(&world, lonely.number, &["in", "out"], "down");
    stops(&lonely);
    line.continues("the one that reaches the witness");
    plug(&world, lonely.number, &["in", "out"], "up");
    nodes.push(lonely);
    nodes.sort_by_key(|node| node.number);
    settled(&nodes);
    line.continues("two nodes again");

    carrier(&mut nodes).kill();
    line.continues("one node of two");
    let witness = outside(254);
    let rule = format!("ip daddr {witness} icmp type echo-request counter drop");
    world.filter(&format!(
        "table inet quorum {{\nchain input {{ type filter hook input priority 0; {rule}; }}\n}}\n"
    ));
    stops(&nodes[0]);
    assert!(world.counted() > 0);
    no_answer(&world, &mut line, "nobody vouches for it");
    world.filter("delete table inet quorum\n");
    line.is_reachable_from("the witness is back");
    settled(&nodes);
}

/// What the kernel takes away when a link goes down is there again with it, but for an IPv6 address that nobody gives anew.
#[test]
fn one_of_two_that_has_lost_its_own_address_gives_way_until_it_has_it_again() {
    if !privileged() {
        return;
    }
    let (world, mut nodes, _config, _ends) = prepare(2, "");
    let mut line = Line::open(&world).unwrap();
    line.continues("two nodes");
    for (net, address) in [("out", outside as fn(u8) -> IpAddr), ("in", inside)] {
        let lonely = carrier(&mut nodes);
        let own = address(lonely.number);
        world.host(lonely.number).ip(&format!("addr del {own}/24 dev {net}")).unwrap();
        stops(&lonely);
        line.continues("the one that has its addresses");
        assert!(
            lonely
                .process
                .lines()
                .iter()
                .any(|reported| reported.contains(&format!("cannot send on {net} ")))
        );
        if net == "out" {
            reports_what_it_lacks(&lonely, net, "nothing can be sent there as this node");
        }
        world.host(lonely.number).ip(&format!("addr add {own}/24 dev {net}")).unwrap();
        nodes.push(lonely);
        nodes.sort_by_key(|node| node.number);
        settled(&nodes);
        line.continues("two nodes again");
    }
}

/// The cards keep their carriers, so only the witness on that network knows whose side is broken.
#[test]
fn one_of_two_whose_network_is_silent_gives_way_to_the_one_that_reaches_the_witness_there() {
    if !privileged() {
        return;
    }
    for net in ["in", "out"] {
        let witnesses = format!("witness = [\"{}\", \"{}\"]", outside(254), inside(254));
        let (world, mut nodes, _config, _ends) = prepare(2, &witnesses);
        let mut line = Line::open(&world).unwrap();
        line.continues("two nodes");
        let lonely = carrier(&mut nodes);
        world.mute(lonely.number, &[net]);
        stops(&lonely);
        line.continues("the one whose networks work");
        reports_what_it_lacks(
            &lonely,
            net,
            "it hears no node there, or none hears it, and no witness of it answers",
        );
        nodes[0].eventually("has everything", |status| status.buckets.owned == 1024);
        Line::open(&world).unwrap().continues("a new one");
        world.clear("mute");
        lonely.process.line_after(0, "is no longer cut off a network");
        nodes.push(lonely);
        nodes.sort_by_key(|node| node.number);
        settled(&nodes);
        line.continues("two nodes again");
    }
}

/// What the kernel prefers as the source is another address than the node's own, and the route to one witness comes later.
#[test]
fn a_witness_is_on_the_network_that_the_route_to_it_leads_over() {
    if !privileged() {
        return;
    }
    let world = World::new(2);
    for number in [1, 2] {
        for (net, address) in [("out", outside as fn(u8) -> IpAddr), ("in", inside)] {
            let (own, other) = (address(number), address(number + 50));
            world.host(number).ip(&format!("addr del {own}/24 dev {net}")).unwrap();
            world.host(number).ip(&format!("addr add {other}/24 dev {net}")).unwrap();
            world.host(number).ip(&format!("addr add {own}/24 dev {net}")).unwrap();
        }
    }
    let behind = "10.73.0.254";
    world.switch.ip(&format!("addr add {behind}/32 dev in")).unwrap();
    let (world, mut nodes, _config, _ends) =
        prepare_in(world, 2, &format!("witness = [\"{}\", \"{behind}\"]", outside(254)));
    let networks = |status: &ClusterStatus| -> Vec<Option<String>> {
        status.witnesses.iter().map(|witness| witness.network.clone()).collect()
    };
    let known = |name: &str| Some(name.to_owned());
    for node in &nodes {
        assert_eq!(networks(&node.status()), [known("outside"), None]);
        let (reported, _) = node.process.line_after(0, "has no witness on the inside network");
        assert!(reported.contains(&format!("no route leads to {behind}")), "{reported}");
        world.host(node.number).ip(&format!("route add {behind} via {}", inside(254))).unwrap();
        node.eventually("knows both", |status| networks(status) == [known("outside"), known("inside")]);
        let shown = node.cli(&["cluster", "status"]).out;
        assert!(shown.contains(&format!("witness:       {behind} (inside) ")), "{shown}");
    }
    let mut line = Line::open(&world).unwrap();
    line.continues("two nodes");
    let lonely = carrier(&mut nodes);
    world.mute(lonely.number, &["in"]);
    stops(&lonely);
    line.continues("the one whose networks work");
}

/// Nothing shows while all agree, and then it could not promise anything to the other one.
#[test]
fn one_of_three_goes_on_beside_one_that_has_lost_its_witness() {
    if !privileged() {
        return;
    }
    let (world, mut nodes, _config, _ends) = prepare(3, "backups = 2");
    let mut line = Line::open(&world).unwrap();
    line.continues("three nodes");
    let dying = carrier(&mut nodes);
    let (well, ailing) = (nodes[0].number, nodes[1].number);
    let rule =
        format!("ip saddr {} ip daddr {} icmp type echo-request counter drop", outside(ailing), outside(254));
    world.filter(&format!(
        "table inet quorum {{\nchain input {{ type filter hook input priority 0; {rule}; }}\n}}\n"
    ));
    nodes[0].eventually("hears of it", |status| {
        status.nodes.iter().any(|node| node.number == ailing && node.witnessed == Some(false))
    });
    assert!(world.counted() > 0);
    plug(&world, dying.number, &["in", "out"], "down"); // without a word
    line.continues("the one that is well");
    let status = nodes[0].eventually("serves", |status| status.phase == "active");
    assert!(
        status.view.is_some_and(|view| view.members.contains(&well) && !view.members.contains(&dying.number))
    );
}

#[test]
fn one_of_two_stops_by_majority() {
    if !privileged() {
        return;
    }
    let (world, mut nodes, _config, _ends) = prepare(2, MAJORITY);
    let mut line = Line::open(&world).unwrap();
    line.continues("two nodes");
    carrier(&mut nodes).kill();
    stops(&nodes[0]);
    no_answer(&world, &mut line, "half of two is no majority");
}
