//! Problems of the section `[cluster]`.

use crate::case::{Case, config_of, expect, problems_of};
use evergate_config::{Problem, Severity};

const CLUSTER: &str = "[node]\nworkers = 2\n\
    [[listeners]]\nname = \"l\"\naddress = \"203.0.113.10:80\"\nprotocol = \"tcp\"\npool = \"p\"\n\
    [[pools]]\nname = \"p\"\nservers = [{ address = \"10.0.1.50:80\" }]\n\
    [cluster]\nname = \"edge\"\nkey_file = \"cluster.key\"\naddresses = [\"203.0.113.10\"]\n\
    server_source = [\"10.0.1.100\"]\ninside_interface = \"eth1\"\noutside_interface = \"eth0\"\n\
    witness = [\"10.0.1.254\"]\n\
    [[cluster.nodes]]\nnumber = 1\ninside = \"10.0.1.1\"\noutside = \"203.0.113.1\"\n\
    [[cluster.nodes]]\nnumber = 2\ninside = \"10.0.1.2\"\noutside = \"203.0.113.2\"\n";

/// [`expect`] for a good cluster's file in which a part is replaced.
fn expect_in_cluster(severity: Severity, cases: &[(&str, &str, &str, &str)]) {
    let texts: Vec<String> = cases
        .iter()
        .map(|(part, by, ..)| {
            assert!(CLUSTER.contains(part), "{part}");
            CLUSTER.replacen(part, by, 1)
        })
        .collect();
    let all: Vec<Case<'_>> =
        texts.iter().zip(cases).map(|(text, (_, _, key, advice))| (text.as_str(), *key, *advice)).collect();
    expect(severity, &all);
}

#[test]
fn unsafe_cluster_is_refused_with_advice() {
    let (more, witness) = ("witness = [\"10.0.1.254\"]\n", "witness = [\"10.0.1.254\"]\n");
    let with = |line: &str| format!("{witness}{line}\n");
    let sources: Vec<String> = (100..117).map(|last| format!("\"10.0.1.{last}\"")).collect();
    let many = format!("[{}, @@{}]", sources[..16].join(", "), sources[16]);
    let second = "number = 2\ninside = \"10.0.1.2\"";
    let cases: &[(&str, &str, &str, &str)] = &[
        ("workers = 2\n", "workers = 2\nuser = @@\"evergate\"\n", "node.user", "AmbientCapabilities"),
        ("name = \"p\"\n", "name = \"p\"\nsource = @@\"client\"\n", "pools[0].source", "X-Forwarded-For"),
        ("name = \"edge\"", "name = @@\"a b\"", "cluster.name", "letters"),
        (
            "\"cluster.key\"",
            "@@\"short.key\"",
            "cluster.key_file",
            "(umask 077; evergate cluster key > FILE)",
        ),
        ("\"cluster.key\"", "@@\"none.key\"", "cluster.key_file", "create it"),
        ("[\"203.0.113.10\"]", "@@[]", "cluster.addresses", "203.0.113.10"),
        ("[\"203.0.113.10\"]", "[@@\"203.0.113.10:80\"]", "cluster.addresses[0]", "without port"),
        ("[\"203.0.113.10\"]", "[@@\"127.0.0.1\"]", "cluster.addresses[0]", "cannot be reached"),
        ("[\"203.0.113.10\"]", "[@@\"fe80::1\"]", "cluster.addresses[0]", "fd00:1::1"),
        ("[\"203.0.113.10\"]", "[@@\"203.0.113.1\"]", "cluster.addresses[0]", "cluster.nodes[0].outside"),
        ("[\"10.0.1.100\"]", "[\"10.0.1.100\", @@\"10.0.1.100\"]", "cluster.server_source[1]", "twice"),
        ("[\"10.0.1.100\"]", &many, "cluster.server_source[16]", "more than 16"),
        ("[\"10.0.1.100\"]", "[@@\"10.0.1.2\"]", "cluster.server_source[0]", "cluster.nodes[1].inside"),
        ("\"eth1\"", "@@\"eth1.with.a.long.name\"", "cluster.inside_interface", "ip link"),
        ("\"eth0\"", "@@\"eth/0\"", "cluster.outside_interface", "ip link"),
        (more, &with("virtual_mac = @@\"02:00:5e:00:00\""), "cluster.virtual_mac", "six pairs"),
        (more, &with("virtual_mac = @@\"03:00:5e:00:00:01\""), "cluster.virtual_mac", "even"),
        (more, &with("backups = @@7"), "cluster.backups", "between 1 and 6, or \"all\""),
        (more, &with("backups = @@\"many\""), "cluster.backups", "\"all\""),
        (more, &with("backups = @@true"), "cluster.backups", "\"all\""),
        (more, &with("mode = @@\"quorum\""), "cluster.mode", "majority"),
        (witness, "witness = @@[]\n", "cluster.witness", "mode = \"majority\""),
        (witness, "witness = [@@\"10.0.1.1\"]\n", "cluster.witness[0]", "gateway"),
        (witness, "witness = [@@\"gateway\"]\n", "cluster.witness[0]", "host name"),
        (more, &with("steering = @@\"copy\""), "cluster.steering", "flood"),
        (more, &with("port = @@65535"), "cluster.port", "lower port"),
        (more, &with("ports_per_bucket = @@40"), "cluster.ports_per_bucket", "at most 32"),
        (more, &with("node = @@3"), "cluster.node", "one of the nodes"),
        (more, &with("node = @@33"), "cluster.node", "between 1 and 32"),
        (more, &with("weight = @@-1"), "cluster.weight", "between 0 and 1000"),
        (more, &with("@@timeing = \"bare_metal\""), "cluster.timeing", "`timing`"),
        (second, "number = @@1\ninside = \"10.0.1.2\"", "cluster.nodes[1].number", "its own number"),
        (second, "number = 2\ninside = @@\"10.0.1.1\"", "cluster.nodes[1].inside", "its own address"),
        (second, "number = @@0\ninside = \"10.0.1.2\"", "cluster.nodes[1].number", "between 1 and 32"),
    ];
    expect_in_cluster(Severity::Error, cases);
}

#[test]
fn missing_keys_of_a_cluster_are_named_with_an_example() {
    for (line, key, advice) in [
        ("workers = 2\n", "cluster", "workers = 4"),
        ("name = \"edge\"\n", "cluster.name", "name = \"edge\""),
        ("key_file = \"cluster.key\"\n", "cluster.key_file", "key_file = \"cluster.key\""),
        ("addresses = [\"203.0.113.10\"]\n", "cluster.addresses", "203.0.113.10"),
        ("server_source = [\"10.0.1.100\"]\n", "cluster.server_source", "10.0.1.100"),
        ("inside_interface = \"eth1\"\n", "cluster.inside_interface", "eth1"),
        ("witness = [\"10.0.1.254\"]\n", "cluster.witness", "10.0.1.254"),
        ("number = 1\n", "cluster.nodes[0].number", "number = 1"),
        ("inside = \"10.0.1.1\"\n", "cluster.nodes[0].inside", "10.0.1.1"),
    ] {
        assert!(CLUSTER.contains(line), "{line}");
        let problems = problems_of(&CLUSTER.replacen(line, "", 1));
        let errors: Vec<&Problem> = problems.iter().filter(|p| p.severity == Severity::Error).collect();
        assert_eq!(errors.iter().map(|p| p.key.as_str()).collect::<Vec<_>>(), [key], "{errors:#?}");
        let reported = format!("{} {} {}", errors[0].what, errors[0].consequence, errors[0].remedy);
        assert!(reported.contains(advice), "{reported}");
    }
    let nodes = CLUSTER.split("[[cluster.nodes]]").next().unwrap();
    assert_eq!(problems_of(nodes).iter().map(|p| p.key.as_str()).collect::<Vec<_>>(), ["cluster.nodes"]);
}

#[test]
fn doubtful_cluster_is_accepted_with_a_warning() {
    let witness = "witness = [\"10.0.1.254\"]\n";
    let with = |line: &str| format!("{witness}{line}\n");
    let node = |number: u8| {
        format!(
            "[[cluster.nodes]]\nnumber = {number}\ninside = \"10.0.1.{number}\"\noutside = \"203.0.113.{number}\"\n"
        )
    };
    let (third, fourth) = (node(3), node(4));
    let unasked = format!("mode = \"majority\"\nwitness = @@[\"10.0.1.254\"]\n{third}");
    let elsewhere = CLUSTER.replace("203.0.113.10:80", "203.0.113.1:80");
    let cases: &[(&str, &str, &str, &str)] = &[
        ("\"eth1\"", "@@\"eth0\"", "cluster.inside_interface", "two interfaces"),
        (witness, &with("virtual_mac = @@\"00:1b:21:00:00:01\""), "cluster.virtual_mac", "second bit"),
        (witness, &with("backups = @@3"), "cluster.backups", "\"all\""),
        (witness, &unasked, "cluster.witness", "remove one"),
        (witness, "mode = @@\"majority\"\n", "cluster.mode", "third node"),
        (witness, &format!("mode = @@\"majority\"\n{third}{fourth}"), "cluster.mode", "odd number"),
        (CLUSTER, &elsewhere.replace("addresses = [", "addresses = @@["), "cluster.addresses", "no listener"),
        ("\"10.0.1.50:80\"", "@@\"[fd00::1]:80\"", "pools[0].servers[0].address", "family"),
    ];
    expect_in_cluster(Severity::Warning, cases);
}

#[test]
fn listener_on_the_ports_of_connections_to_servers_is_refused() {
    let shared = CLUSTER.replace("[\"10.0.1.100\"]", "[\"203.0.113.10\"]");
    let errors = |text: &str| {
        let problems = problems_of(text);
        problems.iter().filter(|p| p.severity == Severity::Error).map(|p| p.key.clone()).collect::<Vec<_>>()
    };
    for port in [32_768, 40_000, 60_415] {
        let on = |ip: &str| format!("\"{ip}:{port}\"");
        for address in ["203.0.113.10", "0.0.0.0"] {
            let text = shared.replace("\"203.0.113.10:80\"", &on(address));
            assert_eq!(errors(&text), ["listeners[0].address"], "{address}:{port}");
            let text = CLUSTER.replace("\"203.0.113.10:80\"", &on(address));
            assert_eq!(errors(&text), [""; 0], "servers see another address");
        }
        assert_eq!(
            errors(&CLUSTER.replace("\"203.0.113.10:80\"", &on("10.0.1.100"))),
            ["listeners[0].address"]
        );
    }
    for port in [32_767, 60_416] {
        assert_eq!(errors(&shared.replace(":80\"\nprotocol", &format!(":{port}\"\nprotocol"))), [""; 0]);
    }
}

#[test]
fn request_limits_beyond_the_stash_of_backups_are_refused() {
    let with = |node: &str, listener: &str| {
        let listener = format!("protocol = \"tcp\"\nlimits = {{ {listener} }}\n");
        format!("{}[limits]\n{node}\n", CLUSTER.replace("protocol = \"tcp\"\n", &listener))
    };
    for (node, listener, key, advice) in [
        (
            "body_prefix_bytes = 498000",
            "",
            "limits.body_prefix_bytes",
            "`body_prefix_bytes = 497664` or less",
        ),
        ("", "body_prefix_bytes = 498000", "listeners[0].limits.body_prefix_bytes", "497664"),
        ("head_bytes_max = 1000000", "", "limits.head_bytes_max", "5856"),
        ("head_bytes_max = 1048576", "", "limits.head_bytes_max", "lower `head_bytes_max`"),
        ("body_prefix_bytes = 497664", "head_bytes_max = 8192", "", ""),
    ] {
        let problems = problems_of(&with(node, listener));
        let keys: Vec<_> = problems.iter().map(|problem| problem.key.as_str()).collect();
        let expected: &[&str] = if key.is_empty() { &[] } else { &[key] };
        assert_eq!(keys, expected, "{problems:#?}");
        assert!(problems.iter().all(|problem| problem.remedy.contains(advice)), "{problems:#?}");
    }
    let alone = &CLUSTER[..CLUSTER.find("[cluster]").unwrap()].replace("203.0.113.10", "127.0.0.1");
    assert!(problems_of(&format!("{alone}[limits]\nbody_prefix_bytes = 16777216\n")).is_empty());
}

#[test]
fn nodes_of_a_cluster_must_show_clients_the_same_certificate() {
    let text = CLUSTER.replace("protocol = \"tcp\"", "protocol = \"tls\"\ncertificates = [\"c\"]")
        + "[[certificates]]\nname = \"c\"\nself_signed = [\"localhost\"]\n";
    let problems = problems_of(&text);
    let found = problems.iter().find(|p| p.key == "listeners[0]").unwrap_or_else(|| panic!("{problems:#?}"));
    assert!(found.remedy.contains("`chain` and `key`"), "{found}");
}

#[test]
fn reload_that_changes_the_cluster_is_refused_with_its_keys() {
    let alone = &CLUSTER[..CLUSTER.find("[cluster]").unwrap()].replace("203.0.113.10", "127.0.0.1");
    let (here, alone) = (config_of(CLUSTER), config_of(alone));
    assert_eq!(here.refuses(&here), None);
    assert!(here.refuses(&alone).unwrap().contains("drain this node"));
    assert!(alone.refuses(&here).unwrap().contains("cannot come"));
    let changed = |line: &str| {
        let new = config_of(&CLUSTER.replace("witness = [\"10.0.1.254\"]\n", line));
        here.refuses(&new).unwrap()
    };
    let witness = changed("witness = [\"10.0.1.253\"]\nweight = 9\n");
    assert!(witness.contains("`witness`, `weight`") && witness.contains("one after the other"), "{witness}");
    let flood = changed("witness = [\"10.0.1.254\"]\nsteering = \"flood\"\nport = 4000\n");
    assert!(flood.contains("`steering`, `port`") && flood.contains("stop all nodes"), "{flood}");
}
