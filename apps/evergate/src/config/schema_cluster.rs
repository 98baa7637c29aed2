//! Schema of the cluster: which nodes, which addresses move, how they watch each other.

use super::schema::{Kind, Section, optional, required, with_default};

/// `[cluster]`
pub(super) static CLUSTER: Section = Section {
    header: "[cluster]",
    about: "Several nodes that share addresses; a connection outlives the node that carries it. The same file serves all nodes. The presence of the table switches it on.",
    keys: &[
        required(
            "name",
            Kind::Text,
            "\"edge\"",
            "Tells clusters on one network apart. The same on all nodes.",
        ),
        optional(
            "node",
            Kind::Integer(1, NODES_MAX),
            "`--node` of the command line",
            "1",
            "Number of this node in `[[cluster.nodes]]`. `evergate run FILE --node N` goes before it, so that all nodes can have the same file.",
        ),
        required(
            "key_file",
            Kind::Text,
            "\"cluster.key\"",
            "File with 64 hexadecimal digits, the secret of the cluster, the same on all nodes. `evergate cluster key` prints a fresh one.",
        ),
        required("nodes", Kind::Tables(&NODE), "", "All nodes, see `[[cluster.nodes]]`."),
        required(
            "addresses",
            Kind::Texts,
            "[\"203.0.113.10\"]",
            "Addresses that move between the nodes. Connections to listeners on them, or on all addresses, outlive a node. Each node gives them to its loopback interface.",
        ),
        required(
            "server_source",
            Kind::Texts,
            "[\"10.0.1.100\"]",
            "Addresses that connections to servers start from, at most one per family; they move too.",
        ),
        required(
            "inside_interface",
            Kind::Text,
            "\"eth1\"",
            "Network interface towards the servers and the other nodes. It carries heartbeats and mirrored state.",
        ),
        required(
            "outside_interface",
            Kind::Text,
            "\"eth0\"",
            "Network interface that clients come from. It carries heartbeats too.",
        ),
        optional(
            "virtual_mac",
            Kind::Text,
            "derived from `name`",
            "\"02:00:5e:00:00:0a\"",
            "Ethernet address that `addresses` and `server_source` have for the network.",
        ),
        with_default(
            "backups",
            Kind::IntegerOr(1, BACKUPS_MAX, "all"),
            "1",
            "Nodes that hold a copy of each connection besides the one that carries it; `\"all\"` = every other node. So many nodes may die at once.",
        ),
        with_default(
            "mode",
            Kind::Choice(&["witness", "majority"]),
            "\"witness\"",
            "How a node knows that it is not cut off: a `witness` answers, or more than half of all nodes agree. `witness` survives down to one node; `majority` is safe under every partition, and of two nodes none goes on alone; four nodes tolerate no more failures than three.",
        ),
        with_default(
            "witness",
            Kind::Texts,
            "[]",
            "IP addresses that answer pings: the gateway, servers. One answer is enough, so nodes that reach any of them must hear each other: several must be lost together with the link between the nodes, such as all on the nodes' own switch. Where that is so, name one on each network: of two nodes the one whose network works goes on. For `mode = \"witness\"`.",
        ),
        with_default(
            "steering",
            Kind::Choice(&["steer", "flood"]),
            "\"steer\"",
            "How packets find their node: one node gets them and passes them on (`steer`), or the switch floods the virtual address and each node takes its own (`flood`).",
        ),
        with_default(
            "port",
            Kind::Integer(1, 65_535),
            "7400",
            "UDP port of the heartbeats, on both interfaces. Mirrored state uses this port + 1 (TCP, inside) for the first worker, + 2 for the second, and so on.",
        ),
        with_default(
            "server_ports_first",
            Kind::Integer(1024, 65_535),
            "32768",
            "First of the local ports of connections to servers.",
        ),
        with_default(
            "ports_per_bucket",
            Kind::Integer(1, 62),
            "27",
            "Ports of each of the 1024 buckets; so many connections at a time from one bucket to one server, with those that the node closed within the last minute (idle ones leave their port at once). A request for which none is left gets 502 (`connect_failed`).",
        ),
        with_default(
            "pins",
            Kind::Text,
            "\"/sys/fs/bpf/evergate\"",
            "Folder on a BPF file system, where the state of the packet filter outlives the process.",
        ),
        with_default(
            "timing",
            Kind::Choice(&["bare_metal", "virtual_machine"]),
            "\"bare_metal\"",
            "How exactly threads of this machine run on time. `bare_metal`: silence of 30 ms is suspicious, and a take-over begins after 40 ms. `virtual_machine`: 120 ms and 150 ms.",
        ),
        with_default(
            "flows_max",
            Kind::Integer(1024, 16_777_216),
            "262144",
            "TCP connections of clients and to servers together that can be carried at a time; about 450 bytes of kernel memory each, taken at start.",
        ),
        with_default(
            "stateless_accept",
            Kind::Bool,
            "true",
            "Whether SYNs are answered without keeping state, so that any node can go on from them: a connection survives its node from the first packet on, and a flood of SYNs costs no memory. Not for `protocol = \"tcp\"`, where the server may speak first. The segment size that is offered is that of the outside interface's MTU, also when that changes; a route's `advmss` and a netfilter rule that clamps the MSS change nothing of it.",
        ),
        with_default(
            "weight",
            Kind::Integer(0, 1000),
            "100",
            "Share of the connections that this node takes, relative to the others' weights; 0 = none, and no copies either while the others are enough for `backups`, as if it were drained for good.",
        ),
    ],
};

/// `[[cluster.nodes]]`
pub(super) static NODE: Section = Section {
    header: "[[cluster.nodes]]",
    about: "One node of the cluster.",
    keys: &[
        required("number", Kind::Integer(1, NODES_MAX), "1", "Its number."),
        required("inside", Kind::Text, "\"10.0.1.1\"", "Its own address on the inside; it does not move."),
        required(
            "outside",
            Kind::Text,
            "\"203.0.113.1\"",
            "Its own address on the outside; it does not move.",
        ),
    ],
};

/// Most nodes of a cluster.
const NODES_MAX: i64 = 32;
/// Most copies of a connection with a number of their own.
const BACKUPS_MAX: i64 = 6;
