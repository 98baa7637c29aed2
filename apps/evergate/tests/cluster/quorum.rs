//! Right to serve: the larger part of three nodes in majority mode, one of two with a witness, and no node without
//! evidence.

use crate::raw_connection::{RawConnection, carrier, prepare, prepare_in};
use crate::world::{Node, World, inside, outside, privileged, settled};
use evergate::agent::status::ClusterStatus;
use std::net::IpAddr;

const MAJORITY: &str = "mode = \"majority\"";

fn stops(node: &Node) {
    node.eventually("does not serve", |status| status.phase != "active");
}

/// Checks that neither this connection nor a new one is answered.
fn expect_no_answer(world: &World, connection: &mut RawConnection, when: &str) {
    connection.expect_silence(when);
    assert!(RawConnection::open(world).is_err(), "{when}: a new connection was answered");
}

/// Name of the network in the documents.
fn network_of(net: &str) -> &'static str {
    if net == "in" { "inside" } else { "outside" }
}

/// Checks that status, log and health report the lost network, and that no line announces an early rejoin.
fn reports_lost_network(node: &Node, net: &str, why: &str) {
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
fn two_of_three_serve_by_majority_and_the_last_one_stops() {
    if !privileged() {
        return;
    }
    let (world, mut nodes, config, _ends) = prepare(3, MAJORITY);
    let mut connection = RawConnection::open(&world).unwrap();
    connection.continues("three nodes");
    let first = carrier(&mut nodes);
    let number = first.number;
    first.kill();
    connection.continues("two nodes of three");
    settled(&nodes);

    carrier(&mut nodes).kill();
    stops(&nodes[0]);
    expect_no_answer(&world, &mut connection, "one node of three");

    // With another node there is a majority again. State that only one node holds is dropped.
    let at = if number < nodes[0].number { 0 } else { 1 };
    nodes.insert(at, world.start(number, &config));
    settled(&nodes);
    RawConnection::open(&world).unwrap().continues("two nodes again");
}

/// Two of three nodes are left, and one of them has lost a cable. It promises a view to the other node, which then
/// owns everything.
#[test]
fn cut_off_node_promises_a_view_to_the_whole_node() {
    if !privileged() {
        return;
    }
    for net in ["in", "out"] {
        let (world, mut nodes, _config, _ends) = prepare(3, MAJORITY);
        let mut connection = RawConnection::open(&world).unwrap();
        connection.continues("three nodes");
        let isolated = carrier(&mut nodes);
        nodes.remove(0).kill();
        let whole = nodes.remove(0);
        whole.process.line_after(0, "reaches 2 of 3 nodes, itself included: a majority needs 2");
        let two = |status: &ClusterStatus| status.buckets.without_backup == 0 && status.buckets.syncing == 0;
        whole.eventually("has replicas at the other node", two);
        isolated.eventually("has replicas at the other node", two);

        plug(&world, isolated.number, &[net], "down");
        whole.eventually("has everything", |status| status.buckets.owned == 1024);
        connection.continues("the whole node");
        let state_dropped = |node: &Node| node.status().counts.state_dropped;
        reports_lost_network(&isolated, net, "its card has no carrier");
        let network = network_of(net);
        let of_isolated =
            |status: &ClusterStatus| status.nodes[usize::from(isolated.number) - 1].lost.clone();
        whole.eventually("reports the other node's lost network", |status| of_isolated(status) == [network]);
        let shown = whole.cli(&["cluster", "status"]).out;
        assert!(shown.contains(" (down there)"), "{shown}");
        let before = (state_dropped(&whole), state_dropped(&isolated));
        assert_eq!(before, (0, 1), "only the node that is cut off has dropped its state");
        for _ in 0..20 {
            RawConnection::open(&world).unwrap().continues("the whole node and a promise");
            connection.continues("the whole node and a promise");
        }
        assert_eq!((state_dropped(&whole), state_dropped(&isolated)), before);
        plug(&world, isolated.number, &[net], "up");
        isolated.eventually("has its share again", |status| status.buckets.owned > 400);
        assert!(of_isolated(&whole.status()).is_empty());
        connection.continues("two whole nodes");
    }
}

#[test]
fn drain_warns_about_the_majority_and_a_fenced_node_stops() {
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
        .line_after(0, "is still fenced: it reaches 1 of 3 nodes, itself included, and a majority is 2");
    assert!(last.cli(&["cluster", "status"]).out.contains("majority:      1 of 3 nodes reachable"));
    last.process.signal("TERM");
    assert!(last.process.wait().success());
    let reported = last.process.lines();
    assert!(!reported.iter().any(|line| line.contains("draining took too long")), "{reported:#?}");
}

#[test]
fn larger_part_serves_by_majority_and_smaller_part_stops() {
    if !privileged() {
        return;
    }
    for nets in [&["in"][..], &["in", "out"]] {
        let (world, mut nodes, _config, _ends) = prepare(3, MAJORITY);
        let mut connection = RawConnection::open(&world).unwrap();
        connection.continues("three nodes");
        let isolated = carrier(&mut nodes);
        plug(&world, isolated.number, nets, "down");
        stops(&isolated);
        connection.continues("the larger part");
        settled(&nodes);
        assert_ne!(isolated.status().phase, "active");

        plug(&world, isolated.number, nets, "up");
        nodes.push(isolated);
        nodes.sort_by_key(|node| node.number);
        settled(&nodes);
        connection.continues("together again");
    }
}

#[test]
fn one_of_two_serves_with_a_witness_and_stops_without() {
    if !privileged() {
        return;
    }
    let (world, mut nodes, _config, _ends) = prepare(2, "");
    let mut connection = RawConnection::open(&world).unwrap();
    connection.continues("two nodes");
    // Cut off from everything, the witness as well.
    let isolated = carrier(&mut nodes);
    plug(&world, isolated.number, &["in", "out"], "down");
    stops(&isolated);
    connection.continues("the one that reaches the witness");
    plug(&world, isolated.number, &["in", "out"], "up");
    nodes.push(isolated);
    nodes.sort_by_key(|node| node.number);
    settled(&nodes);
    connection.continues("two nodes again");

    carrier(&mut nodes).kill();
    connection.continues("one node of two");
    let witness = outside(254);
    let rule = format!("ip daddr {witness} icmp type echo-request counter drop");
    world.filter(&format!(
        "table inet quorum {{\nchain input {{ type filter hook input priority 0; {rule}; }}\n}}\n"
    ));
    stops(&nodes[0]);
    assert!(world.counted() > 0);
    expect_no_answer(&world, &mut connection, "no node and no witness vouches for it");
    world.filter("delete table inet quorum\n");
    connection.expect_echo("the witness is back");
    settled(&nodes);
}

/// The kernel removes routes and neighbours with a link and restores them with it, except for IPv6 addresses.
#[test]
fn node_without_its_own_address_yields_until_it_is_back() {
    if !privileged() {
        return;
    }
    let (world, mut nodes, _config, _ends) = prepare(2, "");
    let mut connection = RawConnection::open(&world).unwrap();
    connection.continues("two nodes");
    for (net, address) in [("out", outside as fn(u8) -> IpAddr), ("in", inside)] {
        let isolated = carrier(&mut nodes);
        let own = address(isolated.number);
        world.host(isolated.number).ip(&format!("addr del {own}/24 dev {net}")).unwrap();
        stops(&isolated);
        connection.continues("the one that has its addresses");
        assert!(
            isolated
                .process
                .lines()
                .iter()
                .any(|reported| reported.contains(&format!("cannot send on {net} ")))
        );
        if net == "out" {
            reports_lost_network(&isolated, net, "this node cannot send there from its own address");
        }
        world.host(isolated.number).ip(&format!("addr add {own}/24 dev {net}")).unwrap();
        nodes.push(isolated);
        nodes.sort_by_key(|node| node.number);
        settled(&nodes);
        connection.continues("two nodes again");
    }
}

/// The cards keep their carriers. Only the witness on that network shows which side is broken.
#[test]
fn node_on_a_silent_network_yields_to_the_witnessed_node() {
    if !privileged() {
        return;
    }
    for net in ["in", "out"] {
        let witnesses = format!("witness = [\"{}\", \"{}\"]", outside(254), inside(254));
        let (world, mut nodes, _config, _ends) = prepare(2, &witnesses);
        let mut connection = RawConnection::open(&world).unwrap();
        connection.continues("two nodes");
        let isolated = carrier(&mut nodes);
        world.silence(isolated.number, &[net]);
        stops(&isolated);
        connection.continues("the one whose networks work");
        reports_lost_network(
            &isolated,
            net,
            "it exchanges heartbeats with no node there, and no witness there answers",
        );
        nodes[0].eventually("has everything", |status| status.buckets.owned == 1024);
        RawConnection::open(&world).unwrap().continues("a new one");
        world.clear("silence");
        isolated.process.line_after(0, "is no longer cut off a network");
        nodes.push(isolated);
        nodes.sort_by_key(|node| node.number);
        settled(&nodes);
        connection.continues("two nodes again");
    }
}

/// The kernel prefers another source address than the node's own. The route to one witness is added later.
#[test]
fn witness_belongs_to_the_network_of_its_route() {
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
    let mut connection = RawConnection::open(&world).unwrap();
    connection.continues("two nodes");
    let isolated = carrier(&mut nodes);
    world.silence(isolated.number, &["in"]);
    stops(&isolated);
    connection.continues("the one whose networks work");
}

/// The lost witness has no effect while all nodes are connected. Without it the node cannot promise a view to the
/// other node.
#[test]
fn node_serves_beside_a_node_that_lost_its_witness() {
    if !privileged() {
        return;
    }
    let (world, mut nodes, _config, _ends) = prepare(3, "backups = 2");
    let mut connection = RawConnection::open(&world).unwrap();
    connection.continues("three nodes");
    let dying = carrier(&mut nodes);
    let (witnessed, unwitnessed) = (nodes[0].number, nodes[1].number);
    let rule = format!(
        "ip saddr {} ip daddr {} icmp type echo-request counter drop",
        outside(unwitnessed),
        outside(254)
    );
    world.filter(&format!(
        "table inet quorum {{\nchain input {{ type filter hook input priority 0; {rule}; }}\n}}\n"
    ));
    nodes[0].eventually("receives the other node's report", |status| {
        status.nodes.iter().any(|node| node.number == unwitnessed && node.witnessed == Some(false))
    });
    assert!(world.counted() > 0);
    plug(&world, dying.number, &["in", "out"], "down"); // without a LEAVE
    connection.continues("the node with a witness");
    let status = nodes[0].eventually("serves", |status| status.phase == "active");
    assert!(
        status
            .view
            .is_some_and(|view| view.members.contains(&witnessed) && !view.members.contains(&dying.number))
    );
}

#[test]
fn one_of_two_stops_by_majority() {
    if !privileged() {
        return;
    }
    let (world, mut nodes, _config, _ends) = prepare(2, MAJORITY);
    let mut connection = RawConnection::open(&world).unwrap();
    connection.continues("two nodes");
    carrier(&mut nodes).kill();
    stops(&nodes[0]);
    expect_no_answer(&world, &mut connection, "half of two is no majority");
}
